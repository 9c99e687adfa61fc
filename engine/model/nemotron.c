/* Nemotron 4 and Minitron: dense GQA of which half of each head is rotated, layer norms by 1 + w with biases, and FFNs
 * with squared ReLU. Jais 2: the same with whole heads, norms by w and biases everywhere. Reference: transformers,
 * models/nemotron and models/jais2. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_with(struct config_reader *r, struct config *c, bool bias, double partial) {
    static const char *const acts[] = {"relu2", NULL};
    config_read_dense(r, c);
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", bias);
    c->dense_bias = config_bool(r, "mlp_bias", bias);
    c->rope.default_partial_factor = partial;
    config_read_rope(r, c, c->head_dim, 10000);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
}
static void parse(struct config_reader *r, struct config *c) {
    c->centered_norms = c->centered_head_norm = true;
    parse_with(r, c, false, 0.5);
}
static void parse_jais(struct config_reader *r, struct config *c) { parse_with(r, c, true, 1); }

static const char *const types[] = {"nemotron", NULL}, *const keys[][2] = {{"rms_norm_eps", "norm_eps"}, {NULL, NULL}},
                         *const jais[] = {"jais2", NULL},
                         *const jais_keys[][2] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};
#define NAMES \
    { NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.up_proj", .dense_down = "model.layers.%d.mlp.down_proj" }
const struct arch arch_nemotron = {
    .model_types = types,
    .title = "Nemotron",
    .norm_eps = 1e-5,
    .defaults = {.own_activation = true},
    .parse = parse,
    .names = NAMES,
    .key_aliases = keys,
};
const struct arch arch_jais2 = {
    .model_types = jais,
    .title = "Jais 2",
    .norm_eps = 1e-5,
    .defaults = {.own_activation = true},
    .parse = parse_jais,
    .names = NAMES,
    .key_aliases = jais_keys,
};
