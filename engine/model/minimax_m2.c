/* MiniMax-M2: GQA with a norm over all heads of q and k, partial rotary embedding, a sigmoid router with selection
 * bias. Reference: the vendor's modeling_minimax_m2.py; transformers, models/minimax_m2. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Refuses options of the architecture that the published models do not use. */
static void only_published(struct config_reader *r, const struct config *c) {
    static const char *const scores[] = {"sigmoid", NULL}, *const norms[] = {"per_layer", NULL},
                             *const modes[] = {"sigmoid", NULL};
    static const char *const betas[] = {"layernorm_full_attention_beta", "layernorm_linear_attention_beta",
                                        "layernorm_mlp_beta", NULL};
    config_choice(r, "scoring_func", scores, 0);
    config_choice(r, "qk_norm_type", norms, 0);
    config_choice(r, "shared_moe_mode", modes, 0);
    for (int i = 0; betas[i]; i++)
        if (config_num(r, betas[i], 1, -1e9, 1e9) != 1) config_fail(r, "'%s' is not 1", betas[i]);
    config_int(r, "shared_intermediate_size", 0, 0, 0);
    config_ignore(r, "mlp_intermediate_size"); /* of dense layers, which the models do not have */
    config_ignore(r, "use_mtp"), config_ignore(r, "num_mtp_modules"), config_ignore(r, "mtp_transformer_layers");
    const struct json *types = config_layer_list(r, c, "attn_type_list", false);
    for (uint32_t i = 0; types && i < types->n; i++)
        if (json_int(json_at(types, i), -1) != 1)
            config_fail(r, "'attn_type_list' of layer %u is not 1, softmax attention", i);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    only_published(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_ALL : QK_NORM_NONE;
    c->rope.default_partial_factor = (double)config_int(r, "rotary_dim", c->head_dim, 2, c->head_dim) / c->head_dim;
    config_read_rope(r, c, c->head_dim, 5000000);
    int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i] = (struct layer_config){.moe = true, .window = window};
    c->n_experts = config_int(r, "num_local_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->score = SCORE_SIGMOID;
    c->router_bias = config_bool(r, "use_routing_bias", true);
    c->norm_topk = true;
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e4);
}

static const char *const types[] = {"minimax_m2", NULL};
const struct arch arch_minimax_m2 = {
    .model_types = types,
    .title = "MiniMax-M2",
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_SPARSE("model."),
              .router_bias = "model.layers.%d.block_sparse_moe.e_score_correction_bias"},
};
