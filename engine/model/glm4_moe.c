/* GLM-4.5, 4.6 and 4.7: GQA with half-rotary heads, DeepSeek-V3's router, a shared expert. Reference: transformers, models/glm4_moe. Attention bias applies to
 * q, k and v; Air has no norm over q and k. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .dense = 1, .norm = true};

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = config_bool(r, "use_qk_norm", false) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    deepseek_experts(r, c, &defaults);
    c->score = SCORE_SIGMOID;
    c->n_group = config_int(r, "n_group", 1, 1, 4096);
    c->topk_group = config_int(r, "topk_group", 1, 1, 4096);
    c->group_top2 = true;
    c->router_bias = true;
    if (c->n_group > 1 && c->n_experts / c->n_group < 2) config_fail(r, "%d experts in %d groups: a group needs two", c->n_experts, c->n_group);
}

static const char *const types[] = {"glm4_moe", NULL};
const struct arch arch_glm4_moe = {
    .model_types = types,
    .title = "GLM-4 MoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), .router_bias = "model.layers.%d.mlp.gate.e_score_correction_bias",
              NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
};
