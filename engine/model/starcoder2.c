/* StarCoder 2: dense GQA with layer norms, FFNs without gate, biases everywhere, and a window in all layers. Reference:
 * transformers, models/starcoder2. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    config_read_ungated(r, c, UNGATED_GELU_TANH);
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->qkv_bias = c->o_bias = c->dense_bias = config_bool(r, "use_bias", true);
    config_read_rope(r, c, c->head_dim, 10000);
    const int window = config_int(r, "sliding_window", 0, 0, 1 << 24);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
}

static const char *const types[] = {"starcoder2", NULL}, *const keys[][2] = {{"rms_norm_eps", "norm_epsilon"},
                                                                             {NULL, NULL}};
const struct arch arch_starcoder2 = {
    .model_types = types,
    .title = "StarCoder 2",
    .norm_eps = 1e-5,
    .defaults = {.context = 4096, .kv_heads = 2, .tied = true, .own_activation = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.c_fc",
              .dense_down = "model.layers.%d.mlp.c_proj"},
    .key_aliases = keys,
};
