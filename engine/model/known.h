#pragma once
/* Built-in architectures, for --plan without a checkpoint: the values of their published config.json. */
#include "base/error.h"
#include "base/mat.h"
#include "engine/model/config.h"

struct known_model {
    const char *name;          /* "deepseek-v3" */
    const char *title;         /* the vendor's spelling */
    const char *config;        /* the keys of its config.json that define the computation */
    enum dtype dense, experts; /* published dtypes of matrices; routers, embedding and head are always BF16 */
    double total, active;      /* parameters stated by the vendor, in 10^9 */
};
const struct known_model *known_model_at(int i);              /* NULL past the last */
const struct known_model *known_model_find(const char *name); /* NULL: unknown name; ignores case, dots and dashes */
/* Formats in which models are published or traded, by the names used there: dtypes of layer matrices, and of routed
 * experts' gate and up, and down. */
struct known_format {
    const char *name;
    enum dtype dense, gate_up, down;
};
const struct known_format *known_format_at(int i); /* NULL past the last */
/* "q4_k_m"; NULL: unknown name; ignores case and underscores */
const struct known_format *known_format_find(const char *name);
/* Returns its config as config_parse would. ERR_MODEL, ERR_MEMORY. */
int known_model_config(const struct known_model *k, struct config *c, struct error *e);
