/* Hy3: GQA with per-head norms of q and k, DeepSeek-V3's router without groups, a shared expert. Reference:
 * transformers, models/hy_v3. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 2.826, .dense = 1, .shared = 1, .norm = true};
/* Keys that choose the reference's precision and kernels. */
static const char *const precision[] = {"enable_attention_fp32_softmax", "enable_lm_head_fp32",
                                        "enable_moe_fp32_combine", "use_grouped_mm", NULL};

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = config_bool(r, "qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: hearth reads no such tensors");
    config_read_rope(r, c, c->head_dim, 11158840);
    deepseek_experts(r, c, &defaults);
    const int expert_dim = config_int(r, "expert_hidden_dim", c->moe_inter, 1, 1 << 20);
    if (expert_dim != c->moe_inter)
        config_fail(r, "'expert_hidden_dim' is %d, 'moe_intermediate_size' %d", expert_dim, c->moe_inter);
    c->score = config_bool(r, "moe_router_use_sigmoid", true) ? SCORE_SIGMOID : SCORE_SOFTMAX;
    c->router_bias = config_bool(r, "moe_router_enable_expert_bias", true);
    for (int i = 0; precision[i]; i++) config_ignore(r, precision[i]);
}

static const char *const types[] = {"hy_v3", NULL}, *const aliases[][2] = {
                                                        {"n_routed_experts", "num_experts"},
                                                        {"n_shared_experts", "num_shared_experts"},
                                                        {"routed_scaling_factor", "router_scaling_factor"},
                                                        {"norm_topk_prob", "route_norm"},
                                                        {NULL, NULL}};
const struct arch arch_hy_v3 = {
    .model_types = types,
    .title = "Hy3",
    .defaults = {.topk = 8},
    .norm_eps = 1e-5,
    .parse = parse,
    .key_aliases = aliases,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), .router = "model.layers.%d.mlp.router.gate",
              .router_bias = "model.layers.%d.mlp.expert_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_mlp"), NAMES_DENSE("model.")},
};
