#pragma once
/* Reads keys of a config.json, for the families' parsers. */
#include "engine/model/config.h"

/* For the families' parsers: each read marks its key as known. A value of the wrong type or out of range is an error
 * that the reader keeps, so that a parser needs one check at its end. */
struct config_reader {
    /* outer: the object that contains root; read for keys that root lacks; NULL: none */
    const struct json *root, *outer;
    const char *const (*key_aliases)[2]; /* of struct arch; NULL: none */
    const char *what, *family;           /* family: 'model_type', for messages */
    struct error *e;
    int rc;
    bool force; /* unknown members are ignored */
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
/* Opens a nested object for reading; config_close ends with config_read_unknown() of its unread keys. *in is an empty
 * object if the key is absent. */
void config_open(struct config_reader *r, const char *key, struct config_reader *in);
void config_close(struct config_reader *r, const char *key, struct config_reader *in);
/* What a member that no parser reads does: its key is known to change nothing, or its value says that there is nothing
 * of the kind; it changes nothing as far as its name and value tell, which a note should say; or it may change the
 * computation. key: its name, also after the name of an object that contains it and a dot. */
enum config_effect { EFFECT_NONE, EFFECT_UNLIKELY, EFFECT_POSSIBLE };
enum config_effect config_read_effect(const char *key, const struct json *value);
/* Refuses an unread member if it may change the computation, unless r->force; otherwise says that it is ignored. */
void config_read_unknown(struct config_reader *r, const char *key, const struct json *value);
