#pragma once
/* A draft at almost no cost: the tokens that followed an earlier occurrence of the last tokens. Works well where an
 * answer repeats its prompt or itself: documents, code. Source: "Prompt lookup decoding" (Saxena). Pure. */
#include <stdint.h>

/* Writes up to `most` tokens that may follow tokens[0..n) to out, from the longest earlier occurrence of their end, the
 * latest of equally long ones. Returns their number. *matched: tokens in common, up to LOOKUP_MATCH; 0: no
 * occurrence. */
enum { LOOKUP_MATCH = 16 };
int lookup_draft(const int32_t *tokens, int n, int most, int32_t *out, int *matched);
