#pragma once
/* A draft that costs next to nothing: what followed when the last tokens occurred before. It guesses well where an answer repeats
 * its prompt or itself: documents, code. Source: "Prompt lookup decoding" (Saxena). Pure. */
#include <stdint.h>

/* Guesses up to `most` tokens that follow tokens[0..n) into out, by the longest earlier occurrence of their end, of equally long ones
 * the latest. Returns how many; *matched: tokens that it has in common, up to LOOKUP_MATCH; 0: there is none. */
enum { LOOKUP_MATCH = 16 };
int draft_lookup(const int32_t *tokens, int n, int most, int32_t *out, int *matched);
