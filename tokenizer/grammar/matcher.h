#pragma once
/* The tokens that a grammar allows next. A matcher follows one answer, token by token. Used by one thread at a time. */
#include "tokenizer/grammar/automaton.h"
#include "tokenizer/grammar/token_trie.h"

struct matcher;
/* Grammar and trie must outlive the matcher. */
int matcher_open(struct matcher **m, const struct grammar *g, const struct token_trie *t, struct error *e);
void matcher_close(struct matcher **m);
/* at the beginning of the text: those of an answer's text are dropped, so it must not begin with any */
void matcher_allow_line_ends(struct matcher *m);

/* Sets *bits [(n_ids + 63) / 64] to the allowed tokens, bit i % 64 of word i / 64; valid until the next call. left <
 * UINT32_MAX: only tokens after which the text can be completed with left - 1 further tokens; there is one if left is
 * matcher_least_tokens() or more. ERR_RUNTIME: the grammar is too ambiguous. ERR_MEMORY. */
int matcher_mask(struct matcher *m, uint32_t left, const uint64_t **bits, struct error *e);
/* Whether the text can be completed with `left` tokens after this token: by one token per byte, or by the tokens of the
 * shortest completion. False for a token that is not allowed. */
bool matcher_fits(struct matcher *m, int32_t id, uint32_t left);
/* Appends a token. ERR_RUNTIME if it is not allowed. */
int matcher_accept(struct matcher *m, int32_t id, struct error *e);
bool matcher_is_complete(const struct matcher *m); /* the text matches; more may follow */
bool matcher_is_final(const struct matcher *m);    /* it matches, and nothing may follow */
uint32_t matcher_missing(const struct matcher *m); /* bytes that are needed at least */
/* Returns the smallest limit of tokens within which matcher_fits() lets the text be completed; UINT32_MAX: none. */
uint32_t matcher_least_tokens(struct matcher *m);
/* Appends the bytes of text that must follow, at most `most`, to out; returns their number. */
size_t matcher_forced(struct matcher *m, uint8_t *out, size_t most);
