#pragma once
/* Unigram models of SentencePiece: the pieces of a text whose scores have the largest sum. Included by
 * tokenizer_internal.h. */
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/merges.h"

struct tokenizer;
struct encoder;
struct ids;
struct unigram {
    double *scores; /* [n] by id; NULL: the tokenizer is no unigram model */
    uint32_t n;
    double unknown;     /* score of a character that is no piece */
    struct merges trie; /* (node, byte) to the next node (rank) and the piece that ends there (id) */
};
/* Reads the pieces of model.vocab into the vocabulary. ERR_MODEL, ERR_MEMORY. */
int unigram_load(struct tokenizer *t, const struct json *vocab, size_t file_size, struct error *e);
/* Builds the trie of the pieces once all added tokens are known: text becomes no control token by its spelling. */
int unigram_index(struct tokenizer *t, const struct json *vocab, struct error *e);
void unigram_free(struct unigram *u);
/* Encodes one word and appends its ids to out. s: valid UTF-8. */
int unigram_encode(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e);
