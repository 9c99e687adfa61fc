/* ERNIE 4.5 with and without experts: GQA with neighbours rotated; leading dense layers, softmax scores with a selection bias, shared experts. Reference:
 * transformers, models/ernie4_5_moe and models/ernie4_5. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void read_moe_layers(struct config_reader *r, struct config *c) {
    int first = config_int(r, "moe_layer_start_index", 1, 0, CONFIG_MAX_LAYERS), last = config_int(r, "moe_layer_end_index", -1, -1, CONFIG_MAX_LAYERS),
        every = config_int(r, "moe_layer_interval", 1, 1, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= first && (last < 0 || i <= last) && (i + 1) % every == 0;
}

static void parse_common(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    if (!config_has(r, "tie_word_embeddings")) c->tied = true;
    if (config_bool(r, "use_bias", false)) config_fail(r, "'use_bias' is true: hearth reads no biases of this family's FFNs");
    if (!config_bool(r, "use_rmsnorm", true)) config_fail(r, "'use_rmsnorm' is false: the reference has RMSNorm only");
    c->rope.interleaved = true;
    config_read_rope(r, c, c->head_dim, 500000);
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const gates[] = {"topk", NULL};
    parse_common(r, c);
    read_moe_layers(r, c);
    config_choice(r, "moe_gate", gates, 0);
    config_has(r, "moe_capacity"); /* limits the tokens of an expert in training */
    config_num(r, "moe_norm_min", 1e-12, 0, 1e-6);
    config_bool(r, "moe_use_aux_free", true); /* how the selection bias was trained; the reference always applies it */
    c->n_experts = config_int(r, "moe_num_experts", 0, 1, 4096);
    c->topk = config_int(r, "moe_k", 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "moe_num_shared_experts", config_is_null(r, "moe_num_shared_experts") ? 0 : 2, 0, 64) * c->moe_inter;
    c->score = SCORE_SOFTMAX;
    c->router_bias = c->norm_topk = true;
    c->routed_scale = 1;
}

static const char *const types[] = {"ernie4_5_moe", NULL};
const struct arch arch_ernie4_5_moe = {
    .model_types = types,
    .title = "ERNIE 4.5 MoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_ROUTER("model."), .router_bias = "model.layers.%d.mlp.moe_statics.e_score_correction_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
};
static const char *const dense[] = {"ernie4_5", NULL};
const struct arch arch_ernie4_5 = {.model_types = dense,
                                   .title = "ERNIE 4.5",
                                   .norm_eps = 1e-5,
                                   .defaults = {.head_dim = 128},
                                   .parse = parse_common,
                                   .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
