#pragma once
/* Samples a token from logits. Pure: the same logits, history and position give the same token on every machine and
 * with any number of threads. The random number depends on seed and position only. */
#include <stdbool.h>

#include "engine/sampling/sampling.h"

#define SAMPLE_SCRATCH(vocab, n_seen) ((size_t)(vocab) + ((size_t)(n_seen) + 1) / 2)
/* Modifies logits [vocab] in place (bias and penalties). seen: previous tokens, for the penalties; those from
 * s->answer_from are the answer's. scratch [SAMPLE_SCRATCH(vocab, n_seen)]. Order: bias, repeat penalty, presence and
 * frequency penalty, DRY, top-n-sigma, temperature, top-k, top-p, min-p (as transformers and llama.cpp). Ties go to the
 * lower id. Returns the argmax if all logits are NaN or the largest is infinite. Takes about 2 ns per vocabulary entry.
 */
int32_t sample_token(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n_seen,
                     uint64_t position, struct sample_item *scratch);
/* Whether sampling always picks the argmax, so that a known argmax needs no pass over the logits. */
bool sample_is_argmax(const struct sampling *s);
/* Returns s without what modifies logits, to sample again from logits that are modified already. */
struct sampling sample_unmodified(const struct sampling *s);
