/* dots.llm1: GQA with per-head norms of q and k, DeepSeek-V3's router, shared experts. Reference: transformers,
 * models/dots1. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .norm = false, .groups = 1, .topk_group = 1};

/* layer_types, or a window in the layers from max_window_layers on. */
static void read_windows(struct config_reader *r, struct config *c) {
    const bool use = config_bool(r, "use_sliding_window", false);
    const int first = config_int(r, "max_window_layers", 62, 0, 1 << 20),
              window = config_int(r, "sliding_window", 0, 0, 1 << 24);
    config_read_windows(r, c, window, 0);
    if (use && !window) config_fail(r, "'use_sliding_window' is true, but 'sliding_window' is missing or 0");
    for (int i = first; i < c->n_layers && use && !config_has(r, "layer_types"); i++) c->layer[i].window = window;
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    read_windows(r, c);
}

static const char *const types[] = {"dots1", NULL};
const struct arch arch_dots1 = {
    .model_types = types,
    .title = "dots.llm1",
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), DEEPSEEK_BIAS_NAME,
              NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
};
