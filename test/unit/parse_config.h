#pragma once
/* Parses the text of a config.json. */
#include <string.h>

#include "base/json.h"
#include "engine/model/config.h"
#include "engine/model/config_parse.h"

static inline int parse(struct config *c, const char *text, bool force, struct error *e) {
    struct arena a = {0};
    struct json j;
    int rc = json_parse(&a, text, strlen(text), JSON_UNIQUE, "config.json", &j, e);
    if (!rc) rc = config_parse(c, &j, "config.json", force, e);
    arena_free(&a);
    return rc;
}

/* A dense model of the given type, with more keys. */
#define DENSE(type, more) \
    "{\"model_type\":\"" type "\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_" \
    "heads\":4,\"num_key_value_heads\":2," \
    "\"intermediate_size\":512,\"max_position_embeddings\":4096" more "}"

/* A list of six equal texts. */
#define SIX(one) one "," one "," one "," one "," one "," one
