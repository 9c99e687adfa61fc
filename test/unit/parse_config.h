#pragma once
/* Parses the text of a config.json. */
#include <string.h>

#include "engine/base/json.h"
#include "engine/model/config.h"

static inline int parse(struct config *c, const char *text, bool force, struct error *e) {
    struct arena a = {0};
    struct json j;
    int rc = json_parse(&a, text, strlen(text), JSON_UNIQUE, "config.json", &j, e);
    if (!rc) rc = config_parse(c, &j, "config.json", force, e);
    arena_free(&a);
    return rc;
}
