#pragma once
/* Reading a vision_config, for the families of towers. A value of the wrong type or out of range is an error that the
 * reader keeps, so that a family needs one check at its end. */
#include "engine/vision/tower.h"

struct tower_reader {
    const struct json *root; /* vision_config; NULL: all values are the defaults */
    const char *what;        /* names the file in errors */
    struct error *e;
    int rc; /* of the first error */
};
void tower_fail(struct tower_reader *r, const char *why);
int64_t tower_int(struct tower_reader *r, const char *key, int64_t none, int64_t min, int64_t max);
/* Reads a list of at most `most` numbers; returns how many they are. The list is `none` if the key is absent. */
int tower_ints(struct tower_reader *r, const char *key, const int64_t *none, int n_none, int *out, int most);
/* Fails unless the key is absent or has this text. */
void tower_word(struct tower_reader *r, const char *key, const char *text);
/* Reads preprocessor_config.json of a checkpoint into c, whose sizes are known. ERR_MODEL names what is wrong. */
int tower_read_processor(struct tower_config *c, const char *dir, struct error *e);
