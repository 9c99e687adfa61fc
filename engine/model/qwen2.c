/* Qwen2, Qwen2.5, MiMo, Qwen3 and the language model of Qwen3-VL: dense GQA, Qwen2 and MiMo with bias on q, k, v, Qwen3
 * with a norm per head on q and k. With use_sliding_window, layers from max_window_layers on have a window, unless
 * layer_types lists them. Reference: transformers, models/qwen2, models/qwen3 and models/qwen3_vl. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_windows(struct config_reader *r, struct config *c) {
    const bool use = config_bool(r, "use_sliding_window", false);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 0, 1 << 24) : 4096,
              first = config_int(r, "max_window_layers", 28, 0, 1 << 20);
    if (use && !window) config_fail(r, "'use_sliding_window' is true, but 'sliding_window' is missing or 0");
    config_read_windows(r, c, use ? window : 0, 0);
    for (int i = first; i < c->n_layers && use && !config_has(r, "layer_types"); i++) c->layer[i].window = window;
}

static void parse_common(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    read_windows(r, c);
}
static void parse_2(struct config_reader *r, struct config *c) {
    parse_common(r, c);
    c->qkv_bias = true;
    config_ignore(r, "attention_bias"); /* the reference has the bias whatever the config says */
}
/* MiMo-7B. Reference: vLLM, models/mimo. Its layers that predict later tokens are not read. */
static void parse_mimo(struct config_reader *r, struct config *c) {
    parse_2(r, c);
    c->n_mtp = 0;
}
static void parse_3(struct config_reader *r, struct config *c) {
    parse_common(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
}

static void parse_vision(struct config_reader *r, struct config *c) {
    c->rope.default_section[0] = c->rope.default_section[1] = 20;
    config_skip_vision(r, c);
    parse_3(r, c);
}

/* Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni (the thinker): text only. Their configs have the text model's keys inside, or
 * beside those of images. Reference: transformers, models/qwen2_vl, models/qwen2_5_vl and models/qwen2_5_omni. */
static void parse_2_vision(struct config_reader *r, struct config *c) {
    static const char *const others[] = {"vision_token_id", "talker_config", "token2wav_config", "enable_audio_output",
                                         "enable_talker"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_ignore(r, others[i]);
    c->rope.sections_in_order = true;
    if (r->outer) config_skip_vision(r, c);
    parse_2(r, c);
}

static const char *const qwen2[] = {"qwen2", NULL}, *const mimo[] = {"mimo", NULL},
                         *const predicting[] = {"model.mtp_layers.", NULL}, *const qwen3[] = {"qwen3", NULL},
                         *const vision[] = {"qwen3_vl", NULL};
const struct arch arch_qwen2 = {
    .model_types = qwen2, .title = "Qwen2", .parse = parse_2, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_mimo = {.model_types = mimo,
                               .title = "MiMo",
                               .parse = parse_mimo,
                               .names = {NAMES_GQA("model."), NAMES_DENSE("model.")},
                               .skipped_tensors = predicting};
const struct arch arch_qwen3 = {.model_types = qwen3,
                                .title = "Qwen3",
                                .parse = parse_3,
                                .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_DENSE("model.")}};
#define M "model.language_model."
static const char *const vision_2[] = {"qwen2_vl", "qwen2_5_vl", NULL},
                         *const text_2[] = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", NULL},
                         *const omni_2[] = {"qwen2_5_omni", NULL};
const struct arch arch_qwen2_vl = {.model_types = vision_2,
                                   .title = "Qwen2-VL",
                                   .text_config_key = "text_config",
                                   .norm_eps = 1e-5,
                                   .parse = parse_2_vision,
                                   .names = {NAMES_GQA(M), NAMES_DENSE(M)}};
const struct arch arch_qwen2_vl_text = {.model_types = text_2,
                                        .title = "Qwen2-VL",
                                        .norm_eps = 1e-5,
                                        .parse = parse_2_vision,
                                        .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
#define T "thinker.model."
const struct arch arch_qwen2_5_omni = {.model_types = omni_2,
                                       .title = "Qwen2.5-Omni",
                                       .text_config_key = "thinker_config.text_config",
                                       .parse = parse_2_vision,
                                       .names = {.embed = T "embed_tokens",
                                                 .norm = T "norm",
                                                 .head = "thinker.lm_head",
                                                 NAMES_QKVO(T),
                                                 NAMES_NORMS_BEFORE(T),
                                                 NAMES_DENSE(T)}};
const struct arch arch_qwen3_vl = {.model_types = vision,
                                   .title = "Qwen3-VL",
                                   .text_config_key = "text_config",
                                   .parse = parse_vision,
                                   .names = {NAMES_GQA(M), NAMES_QK_NORM(M), NAMES_DENSE(M)}};
