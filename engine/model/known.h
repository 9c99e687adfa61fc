#pragma once
/* Architectures known by heart, for plans of machines where no checkpoint lies: the numbers of their published config.json. */
#include "engine/base/error.h"
#include "engine/base/mat.h"
#include "engine/model/config.h"

struct known_model {
    const char *name;          /* "deepseek-v3" */
    const char *title;         /* as the vendor spells it */
    const char *config;        /* what of its config.json says what it computes */
    enum dtype dense, experts; /* of the matrices, as published: routers, embedding and head are BF16 always */
    double total, active;      /* parameters as the vendor states them, in 10^9 */
};
const struct known_model *known_at(int i);              /* NULL past the last */
const struct known_model *known_find(const char *name); /* NULL: there is none of that name; case, dots and dashes aside */
/* Its config as config_parse has it. ERR_MODEL, ERR_MEMORY. */
int known_config(const struct known_model *k, struct config *c, struct error *e);
