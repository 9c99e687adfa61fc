#pragma once
/* How families derive the numbers of n-grams' hashes (struct ngram_config) from their configs. */
#include "engine/model/config.h"

/* Sets the vocabularies of embedding `nth`: primes from base on, a different one for each hash of all embeddings.
 * Offsets place the rows of the hashes one after the other. Returns their number. */
int64_t ngram_hash_place(struct ngram_config *g, int nth, int64_t base);
/* Draws odd multipliers whose products with numbers below `vocab` are less than 2^63, from a generator with this
 * seed. */
void ngram_hash_draw(struct ngram_config *g, uint32_t seed, int vocab);
