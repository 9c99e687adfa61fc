#pragma once
/* Tokens of the fake tokenizer: bytes, and the special tokens after them. */
enum { EOS = 256, THINK, END_THINK, CALL, END_CALL, VOCAB };
