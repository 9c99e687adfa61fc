#pragma once
/* per_layer_config, in which transformers saves what single layers have instead of the model's values. */
#include "engine/model/config_read.h"

/* Refuses overrides of layers that the model lacks, and of keys other than these (NULL-terminated). */
void overrides_check(struct config_reader *r, const struct config *c, const char *const *keys);
/* Returns what a layer has of `key`, or `all`, which the model has. */
int overrides_int(struct config_reader *r, const char *key, int layer, int all, int min, int max);
