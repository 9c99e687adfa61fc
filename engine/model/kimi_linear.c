/* Kimi Linear: Kimi delta attention in most layers, MLA without rotation in the others, DeepSeek-V3's experts under Mixtral's names. Reference: the vendor's
 * modeling_kimi.py; transformers, models/kimi_linear. */
#include <math.h>

#include "engine/model/deepseek.h"
#include "engine/model/kda.h"

static const struct deepseek_defaults defaults = {.scale = 2.446, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse(struct config_reader *r, struct config *c) {
    c->max_context = config_int(r, "model_max_length", c->max_context, 1, 1 << 24);
    deepseek_attention(r, c);
    if (!config_bool(r, "mla_use_nope", config_has(r, "layer_types"))) config_fail(r, "'mla_use_nope' is not true: the reference rotates no keys");
    if (c->rope.kind != ROPE_DEFAULT) config_fail(r, "'rope_scaling' is set: the reference rotates no keys");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: the reference has none");
    kda_read_layers(r, c, 1);
    const struct json *lists = config_get(r, "linear_attn_config");
    kda_read_types(r, c, lists && json_get(lists, "kda_layers"));
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    if (!config_bool(r, "use_grouped_topk", true) && c->n_group > 1) config_fail(r, "'use_grouped_topk' is false with %d groups of experts", c->n_group);
}

#define L "model.layers.%d."
static const char *const types[] = {"kimi_linear", NULL};
static const char *const keys[][2] = {{"num_experts_per_tok", "num_experts_per_token"},
                                      {"n_routed_experts", "num_experts"},
                                      {"n_shared_experts", "num_shared_experts"},
                                      {"norm_topk_prob", "moe_renormalize"},
                                      {"scoring_func", "moe_router_activation_func"},
                                      {"n_group", "num_expert_group"},
                                      {NULL, NULL}};
#define EXPERTS L "block_sparse_moe."
/* `mlp` names a dense FFN in published files; transformers writes it under the experts' prefix. */
#define ARCH(mlp, ...) \
    { \
        .model_types = types, .title = "Kimi Linear", .norm_eps = 1e-5, .defaults = {.context = 4096, .topk = 8}, .parse = parse, .key_aliases = keys, \
        __VA_ARGS__, .names = { \
            NAMES_USUAL("model."), \
            DEEPSEEK_MLA_NAMES("model."), \
            KDA_NAMES(L "self_attn."), \
            KDA_LOW_NAMES(L "self_attn."), \
            NAMES_SPARSE("model."), \
            .router_bias = EXPERTS "gate.e_score_correction_bias", \
            .shared_gate_proj = EXPERTS "shared_experts.gate_proj", \
            .shared_up = EXPERTS "shared_experts.up_proj", \
            .shared_down = EXPERTS "shared_experts.down_proj", \
            .dense_gate = mlp "gate_proj", \
            .dense_up = mlp "up_proj", \
            .dense_down = mlp "down_proj" \
        } \
    }
static const struct arch saved = ARCH(EXPERTS, .variant = NULL);
const struct arch arch_kimi_linear = ARCH(L "mlp.", .variant = &saved, .variant_tensor = EXPERTS "gate_proj.weight");
