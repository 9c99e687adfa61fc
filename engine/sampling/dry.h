#pragma once
/* The DRY penalty (struct dry). Pure. */
#include <stdbool.h>

#include "engine/sampling/sampling.h"

static inline bool dry_is_on(const struct dry *d) { return d->multiplier > 0; }
/* Lowers the logits of tokens that would go on with a repetition. seen [n]: previous tokens. scratch as of
 * sample_token(). Takes time in proportion to the tokens that are searched. */
void dry_apply(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n,
               struct sample_item *scratch);
