/* DeepSeek V1 (deepseek-moe-16b): Llama's attention, leading dense layers, shared experts, a softmax router without
 * scale. Reference: the vendor's modeling_deepseek.py. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {.scale = 1};

static void parse(struct config_reader *r, struct config *c) {
    static const char *const scores[] = {"softmax", NULL};
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    /* GGUF only, which stores rotated pairs adjacently */
    c->rope.interleaved = config_bool(r, "rope_interleave", false);
    config_read_rope(r, c, c->head_dim, 10000);
    deepseek_experts(r, c, &defaults);
    config_choice(r, "scoring_func", scores, 0);
    c->score = SCORE_SOFTMAX;
    if (c->topk == 1) c->norm_topk = false;
    if (c->routed_scale != 1)
        config_fail(r, "'routed_scaling_factor' is %g: the reference has none", (double)c->routed_scale);
}

static const char *const types[] = {"deepseek", NULL};
const struct arch arch_deepseek_v1 = {
    .model_types = types,
    .title = "DeepSeek V1",
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
};
