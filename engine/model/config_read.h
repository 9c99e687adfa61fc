#pragma once
/* Reads keys of a config.json, for the families' parsers. */
#include "engine/model/config.h"

/* For the families' parsers: each read marks its key as known. A value of the wrong type or out of range is an error
 * that the reader keeps, so that a parser needs one check at its end. */
struct config_reader {
    /* outer: the object that contains root; read for keys that root lacks; NULL: none */
    const struct json *root, *outer;
    const char *const (*key_aliases)[2]; /* of struct arch; NULL: none */
    const char *what;
    struct error *e;
    int rc;
    /* bit i: member i of root, of outer, was read */
    uint64_t seen[CONFIG_MEMBERS_MOST / 64], outer_seen[CONFIG_MEMBERS_MOST / 64];
};
/* present and not null */
bool config_has(struct config_reader *r, const char *key);
/* accepts a key that hearth makes no use of */
void config_ignore(struct config_reader *r, const char *key);
/* present, and says that there is none */
bool config_is_null(const struct config_reader *r, const char *key);
/* default_value < min: required */
int config_int(struct config_reader *r, const char *key, int default_value, int min, int max);
double config_num(struct config_reader *r, const char *key, double default_value, double min, double max);
bool config_bool(struct config_reader *r, const char *key, bool default_value);
/* Reads a value that must be one of the options (NULL-terminated); returns its index. default_value: index if
 * absent. */
int config_choice(struct config_reader *r, const char *key, const char *const *options, int default_value);
const struct json *config_get(struct config_reader *r, const char *key); /* NULL when absent or null */
int config_fail(struct config_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns the name under which the config has a key: as published or as transformers saves it. Fails if it has both and
 * they differ. */
const char *config_either(struct config_reader *r, const char *published, const char *saved);
/* Opens a nested object for reading; config_close refuses its unread keys. *in is an empty object if the key is
 * absent. */
void config_open(struct config_reader *r, const char *key, struct config_reader *in);
void config_close(struct config_reader *r, const char *key, struct config_reader *in);
/* Closes an object that is itself a model's config: it may have keys without effect, such as id2label. */
void config_close_config(struct config_reader *r, const char *key, struct config_reader *in);
/* Whether a member that no parser reads cannot change the computation. */
bool config_read_is_ignored(const struct json *key, const struct json *value);
