/* Qwen3-MoE, and the language models of Qwen3-VL-MoE, Qwen3-Omni and Intern-S1-Pro: GQA with per-head RMSNorm on q and
 * k, softmax router, no shared expert. Reference: transformers, models/qwen3_moe, models/qwen3_vl_moe, which always
 * normalizes the experts' weights, and models/qwen3_omni_moe (the thinker, which writes text). A sliding window, if
 * enabled, applies to every layer. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    config_read_sparse_step(r, c);
    config_ignore(r, "max_window_layers"); /* the reference ignores it for this family */
    bool sliding = config_bool(r, "use_sliding_window", false);
    int window = config_int(r, "sliding_window", 4096, 0, 1 << 24);
    if (sliding) {
        if (!window) config_fail(r, "'use_sliding_window' is true, but 'sliding_window' is missing or 0");
        for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
    }
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

/* Intern-S1-Pro: FoPE instead of RoPE, and a router that chooses as many experts of each group. Reference: vLLM,
 * models/interns1_pro. */
static void parse_interns1_pro(struct config_reader *r, struct config *c) {
    c->rope.reads_fope = true;
    parse(r, c);
    if (!r->rc && !c->rope.fope_pairs) config_fail(r, "'rope_scaling' has none of FoPE's keys");
    if (!r->rc && c->rope.dim != c->head_dim)
        config_fail(r, "FoPE turns %d dimensions of a head of %d: the reference turns all", c->rope.dim, c->head_dim);
    const int groups = config_int(r, "router_n_groups", -1, -1, 4096);
    if (groups < 1) return;
    c->n_group = c->topk_group = groups, c->group_each = true;
    if (c->topk % groups) config_fail(r, "%d experts a token do not divide among %d groups", c->topk, groups);
}

static void parse_vision(struct config_reader *r, struct config *c) {
    c->rope.default_section[0] = c->rope.default_section[1] = 20;
    config_skip_vision(r, c);
    parse(r, c);
    c->norm_topk = true;
}

static void parse_omni(struct config_reader *r, struct config *c) {
    static const char *const others[] = {"talker_config",      "code2wav_config", "enable_audio_output",
                                         "assistant_token_id", "system_token_id", "user_token_id",
                                         "im_start_token_id",  "im_end_token_id", "tts_bos_token_id",
                                         "tts_eos_token_id",   "tts_pad_token_id"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_ignore(r, others[i]);
    config_skip_vision(r, c);
    parse(r, c);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
}

#define NAMES_LAYERS(m) NAMES_QKVO(m), NAMES_NORMS_BEFORE(m), NAMES_QK_NORM(m), NAMES_ROUTER(m), NAMES_DENSE(m)
#define NAMES(m)        NAMES_ENDS(m), NAMES_LAYERS(m)
static const char *const types[] = {"qwen3_moe", NULL}, *const vision[] = {"qwen3_vl_moe", NULL};
const struct arch arch_qwen3_moe = {
    .model_types = types,
    .title = "Qwen3-MoE",
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {NAMES("model."), NAMES_EXPERTS("model.")},
};
/* Experts published stacked and transposed in BF16, one by one in FP8; transformers 5 writes them stacked and not
 * transposed. */
#define M "model.language_model."
#define VISION(experts, ...) \
    { \
        .model_types = vision, .title = "Qwen3-VL-MoE", .defaults = {.topk = 4}, .text_config_key = "text_config", \
        .parse = parse_vision, .names = {NAMES(M), experts(M)}, __VA_ARGS__ \
    }
static const struct arch arch_qwen3_vl_moe_apart = VISION(NAMES_EXPERTS, .layout = {0});
static const struct arch arch_qwen3_vl_moe_saved =
    VISION(NAMES_STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED});
const struct arch arch_qwen3_vl_moe =
    VISION(NAMES_STACKED,
           .layout = {.experts = true, .transposed_down = true, .transposed_gate_up = true, .gate_up = GATE_UP_STACKED},
           .unstacked = &arch_qwen3_vl_moe_apart, .transposed = &arch_qwen3_vl_moe_saved);
static const char *const intern[] = {"interns1_pro_text", NULL};
#define INTERN(experts, ...) \
    { \
        .model_types = intern, .title = "Intern-S1-Pro", .defaults = {.topk = 8}, .parse = parse_interns1_pro, \
        .names = {NAMES("model."), .fope_cos = "model.rotary_emb.cos_coef", .fope_sin = "model.rotary_emb.sin_coef", \
                  experts("model.")}, \
        __VA_ARGS__ \
    }
static const struct arch arch_interns1_pro_apart = INTERN(NAMES_EXPERTS, .layout = {0});
static const struct arch arch_interns1_pro_saved =
    INTERN(NAMES_STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED});
const struct arch arch_interns1_pro =
    INTERN(NAMES_STACKED,
           .layout = {.experts = true, .transposed_down = true, .transposed_gate_up = true, .gate_up = GATE_UP_STACKED},
           .unstacked = &arch_interns1_pro_apart, .transposed = &arch_interns1_pro_saved);
static const char *const omni[] = {"qwen3_omni_moe", NULL};
#define T "thinker.model."
static const char *const thinker[] = {"qwen3_omni_moe_thinker", NULL};
const struct arch arch_qwen3_omni_moe_thinker = {
    .model_types = thinker,
    .title = "Qwen3-Omni",
    .defaults = {.topk = 8},
    .text_config_key = "text_config",
    .parse = parse_omni,
    .names =
        {.embed = T "embed_tokens", .norm = T "norm", .head = "thinker.lm_head", NAMES_LAYERS(T), NAMES_EXPERTS(T)},
};
const struct arch arch_qwen3_omni_moe = {
    .model_types = omni,
    .title = "Qwen3-Omni",
    .defaults = {.topk = 8},
    .text_config_key = "thinker_config.text_config",
    .parse = parse_omni,
    .names =
        {.embed = T "embed_tokens", .norm = T "norm", .head = "thinker.lm_head", NAMES_LAYERS(T), NAMES_EXPERTS(T)},
};
