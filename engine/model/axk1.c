/* A.X K1: DeepSeek-V3's layers, in the published checkpoint without a selection bias, and with a norm of what the
 * experts add. Reference: transformers, models/axk1; a checkpoint also has such a norm in dense layers, which the
 * reference does not use. */
#include "base/ops.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 1, .shared = 1, .norm = true, .groups = 8, .topk_group = 4};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    c->output_norm = OUTPUT_NORM_EXPERTS;
    config_keep_stream(c);
}

static const char *const types[] = {"axk1", NULL}, *const skipped[] = {".post_mlp_layernorm.", NULL};
const struct arch arch_axk1 = {
    .model_types = types,
    .title = "A.X K1",
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME, .ffn_out_norm = "model.layers.%d.post_mlp_layernorm"},
    .has_optional_bias = true, /* transformers saves it; without it, it is 0 */
    .skipped_tensors = skipped};
