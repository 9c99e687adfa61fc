/* Nemotron 4 and Minitron: dense GQA of which half of each head is rotated, layer norms by 1 + w with biases, and FFNs
 * with squared ReLU. Reference: transformers, models/nemotron. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu2", NULL};
    config_read_dense(r, c);
    c->norm = NORM_LAYER;
    c->norm_bias = c->centered_norms = c->centered_head_norm = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
}

static const char *const types[] = {"nemotron", NULL}, *const keys[][2] = {{"rms_norm_eps", "norm_eps"}, {NULL, NULL}};
const struct arch arch_nemotron = {
    .model_types = types,
    .title = "Nemotron",
    .norm_eps = 1e-5,
    .defaults = {.own_activation = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.up_proj",
              .dense_down = "model.layers.%d.mlp.down_proj"},
    .key_aliases = keys,
};
