#pragma once
/* What the families of towers share in reading their configs. */
#include "engine/model/config_read.h"
#include "engine/vision/tower.h"

/* Reads a list of at most `most` numbers; returns how many they are. The list is `none` if the key is absent. */
int tower_ints(struct config_reader *r, const char *key, const int *none, int n_none, int *out, int most);
/* Reads preprocessor_config.json of a checkpoint into c, whose sizes are known. ERR_MODEL names what is wrong. */
int tower_read_processor(struct tower_config *c, const char *dir, struct error *e);
