/* GLM-5: DeepSeek-V3.2 with one expert group, where some layers reuse the key selection of the layer before. Reference:
 * transformers, models/glm_moe_dsa. */
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 3, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    deepseek_indexer(r, c, 32, true);
    deepseek_index_sharing(r, c, 1);
}

static const char *const types[] = {"glm_moe_dsa", NULL};
const struct arch arch_glm_moe_dsa = {.model_types = types,
                                      .title = "GLM-5",
                                      .defaults = {.topk = 8},
                                      .norm_eps = 1e-5,
                                      .parse = parse,
                                      .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME, DEEPSEEK_INDEX_NAMES}};
