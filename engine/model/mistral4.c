/* Mistral Small 4 and Large 3, language model only: DeepSeek-V3's attention with queries scaled by position, a softmax
 * router, a shared expert. Reference: transformers, models/mistral4; of Large 3, whose config is a params.json
 * (params_json.c), vLLM. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {.scale = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse_text(struct config_reader *r, struct config *c) {
    c->rope.partial_of = config_int(r, "qk_nope_head_dim", 0, 1, 1024) + config_int(r, "qk_rope_head_dim", 0, 2, 1024);
    const double share = (double)config_int(r, "qk_rope_head_dim", 0, 2, 1024) / c->rope.partial_of;
    c->rope.default_partial_factor = share;
    deepseek_attention(r, c);
    if (c->rope.dim != c->qk_rope)
        config_fail(r, "'partial_rotary_factor' rotates %d of %d dimensions; 'qk_rope_head_dim' is %d", c->rope.dim,
                    c->head_dim, c->qk_rope);
    deepseek_experts(r, c, &defaults);
    deepseek_groups(r, c, 1, 1);
    c->router_bias = false;
    c->score = SCORE_SOFTMAX;
}

static void parse(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    parse_text(r, c);
}

static const char *const types[] = {"mistral3", NULL}, *const text[] = {"mistral4", NULL};
const struct arch arch_mistral4 = {
    .model_types = types,
    .title = "Mistral 4",
    .defaults = {.topk = 4},
    .text_config_key = "text_config",
    .text_type = "mistral4",
    .parse = parse,
    .names = {DEEPSEEK_LANGUAGE_MODEL_NAMES, NAMES_STACKED(DEEPSEEK_LANGUAGE_MODEL)},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED},
};
/* The language model alone, as in GGUF files. */
const struct arch arch_mistral4_text = {
    .model_types = text,
    .title = "Mistral 4",
    .defaults = {.topk = 4},
    .parse = parse_text,
    .names = {NAMES_USUAL("model."), DEEPSEEK_MLA_NAMES("model."), NAMES_ROUTER("model."), NAMES_STACKED("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED},
};
#define L "layers.%d."
static const char *const large3[] = {"mistral_large_3", NULL};
const struct arch arch_mistral_large3 = {
    .model_types = large3,
    .title = "Mistral Large 3",
    .defaults = {.topk = 4},
    .parse = parse_text,
    .names = {MISTRAL_NAMES(L), .q_a = L "attention.wq_a", .q_a_norm = L "attention.q_a_norm",
              .q_b = L "attention.wq_b"},
};
