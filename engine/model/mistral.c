/* Mistral 7B, NeMo, Small: dense GQA with a sliding window in every layer if the config has one. Reference: transformers, models/mistral. */
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
}

static const char *const types[] = {"mistral", NULL};
const struct arch arch_mistral = {.model_types = types, .title = "Mistral", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
