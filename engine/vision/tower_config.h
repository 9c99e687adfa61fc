#pragma once
/* What the families of towers share in reading their configs. */
#include "engine/model/config_read.h"
#include "engine/vision/tower.h"

/* Reads a list of at most `most` numbers; returns how many they are. The list is `none` if the key is absent. */
int tower_ints(struct config_reader *r, const char *key, const int *none, int n_none, int *out, int most);
/* Sets what Qwen's processors do where no file says it: limits of pixels, bicubic resizing, values of -1 to 1. */
void tower_set_processor(struct tower_config *c, double min_pixels, double max_pixels);
/* Reads the limits and factors of pixels in the metadata of a GGUF file. ERR_MODEL names what is wrong. */
int tower_read_clip(struct tower_config *c, const struct json *meta, const char *what, struct error *e);
/* Reads preprocessor_config.json of a checkpoint, or the same part of processor_config.json, into c, whose sizes are
 * known. ERR_MODEL names what is wrong. */
int tower_read_processor(struct tower_config *c, const char *dir, struct error *e);
