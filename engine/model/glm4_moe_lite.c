/* GLM-4.7-Flash: DeepSeek-V3's layers with other defaults. Reference: transformers, models/glm4_moe_lite. */
#include "base/ops.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 1.8, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
}

static const char *const types[] = {"glm4_moe_lite", NULL};
const struct arch arch_glm4_moe_lite = {.model_types = types,
                                        .title = "GLM-4 MoE Lite",
                                        .defaults = {.topk = 4},
                                        .norm_eps = 1e-5,
                                        .parse = parse,
                                        .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME}};
