#pragma once
/* Log probabilities of the vocabulary. Pure. */
#include "engine/sampling/sampling.h"

/* Computes those of token id and of the n_top likeliest tokens, ties in order of their ids, from logits [vocab]. n_top
 * is at most MAX_TOP_LOGPROBS. */
void logprobs_compute(const float *logits, int vocab, int32_t id, int n_top, struct token_logprobs *out);
