/* Gemma 2 and 3: dense GQA, (1 + w) norms before and after attention and FFN, GELU, embeddings times sqrt(hidden).
 * Gemma 1 has the norms before only, and so has VaultGemma, which is otherwise Gemma 2. Gemma 2 caps scores and logits
 * and has a window in every other layer. Gemma 3 has a norm per head on q and k, and a window with its own rotary base
 * in all but every sixth layer. Reference: transformers, models/gemma, models/gemma2, models/vaultgemma and
 * models/gemma3; Google's code rounds sqrt(hidden) to BF16. */
#include <math.h>

#include "base/minifloat.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Layers with a window rotate with the second table, which is never scaled. */
static void read_layers(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24),
              every = config_int(r, "sliding_window_pattern", 6, 1, CONFIG_MAX_LAYERS);
    const double local = config_num(r, "rope_local_base_freq", 10000, 1, 1e12);
    c->second_rope = (struct rope_config){.kind = ROPE_DEFAULT, .dim = c->rope.dim, .theta = local, .truncate = true};
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++) {
        if (!config_has(r, "layer_types")) c->layer[i].window = (i + 1) % every ? window : 0;
        c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
    }
}

/* transformers 5 keeps the parameters of both kinds of layers in rope_parameters. */
static void read_ropes(struct config_reader *r, struct config *c) {
    const struct json *p = config_get(r, "rope_parameters");
    if (!p || p->type != JSON_OBJECT || !json_get(p, "full_attention")) {
        config_read_rope(r, c, c->head_dim, 1000000);
        read_layers(r, c);
        return;
    }
    struct config_reader in;
    config_open(r, "rope_parameters", &in);
    config_read_rope_object(&in, c, "sliding_attention", c->head_dim, 10000);
    const struct rope_config local = c->rope;
    config_read_rope_object(&in, c, "full_attention", c->head_dim, 1000000);
    config_close(r, "rope_parameters", &in);
    read_layers(r, c);
    c->second_rope = local;
}

static float read_cap(struct config_reader *r, const char *key, double default_cap) {
    const struct json *v = json_get(r->root, key); /* null: no cap */
    return (float)config_num(r, key, v && v->type == JSON_NULL ? 0 : default_cap, 0, 1e6);
}

/* Reads what all generations have. */
static void parse_base(struct config_reader *r, struct config *c) {
    c->norm = NORM_RMS_PLUS_ONE;
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->embed_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)c->hidden)));
}

/* Published configs say "gelu" and mean its approximation, as the reference knows. */
static void parse_1(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"gelu_pytorch_tanh", "gelu", NULL}, *const later[] = {"gelu_pytorch_tanh", NULL};
    const float alpha = 2 * sqrtf(2 / (float)M_PI);
    parse_base(r, c);
    config_choice(r, "hidden_act", acts, 0), config_choice(r, "hidden_activation", later, 0);
    c->glu = (struct glu){.alpha = alpha, .cubic = 0.044715f * alpha};
    if (config_bool(r, "use_bidirectional_attention", false))
        config_fail(r, "'use_bidirectional_attention' is true: hearth computes causal attention");
    config_read_rope(r, c, c->head_dim, 10000);
}

/* Reads what Gemma 2 and 3 have. caps: defaults of the caps on scores and logits. */
static void parse_common(struct config_reader *r, struct config *c, double score_cap, double logit_cap) {
    parse_base(r, c);
    c->score_cap = read_cap(r, "attn_logit_softcapping", score_cap);
    c->logit_cap = read_cap(r, "final_logit_softcapping", logit_cap);
    c->attn_scale = (float)(1 / sqrt(config_num(r, "query_pre_attn_scalar", 256, 1e-6, 1e6)));
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static void parse_2(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"gelu_pytorch_tanh", NULL};
    parse_common(r, c, 50, 30);
    /* beside hidden_act in published configs; the reference reads this one */
    config_choice(r, "hidden_activation", acts, 0);
    config_read_rope(r, c, c->head_dim, 10000);
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24);
    config_ignore(r, "sliding_window_size"); /* repeats sliding_window in published configs */
    config_read_windows(r, c, window, c->n_layers);
}

static void parse_vault(struct config_reader *r, struct config *c) {
    parse_2(r, c);
    c->output_norm = OUTPUT_NORM_NONE;
}
static void parse_text(struct config_reader *r, struct config *c) {
    parse_common(r, c, 0, 0);
    c->qk_norm = QK_NORM_HEAD;
    read_ropes(r, c);
}
static void parse(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    config_ignore(r, "mm_tokens_per_image");
    parse_text(r, c);
}

static const char *const gemma2[] = {"gemma2", NULL}, *const text[] = {"gemma3_text", NULL},
                         *const with_vision[] = {"gemma3", NULL};
static const char *const keys[][2] = {{"hidden_act", "hidden_activation"}, {NULL, NULL}};
/* m: prefix of the language model's tensor names */
#define NAMES(m) \
    { NAMES_ATTENTION(m), NAMES_NORMS_AROUND(m), NAMES_QK_NORM(m), NAMES_DENSE(m) }
#define DEFAULTS \
    { \
        .vocab = 262208, .hidden = 2304, .layers = 26, .context = 131072, .inter = 9216, .heads = 8, .kv_heads = 4, \
        .head_dim = 256, .tied = true, .is_gelu = true \
    }
#define DEFAULTS_2 \
    { \
        .vocab = 256000, .hidden = 2304, .layers = 26, .context = 8192, .inter = 9216, .heads = 8, .kv_heads = 4, \
        .head_dim = 256, .tied = true, .is_gelu = true \
    }
static const char *const gemma[] = {"gemma", NULL};
const struct arch arch_gemma = {.model_types = gemma,
                                .title = "Gemma",
                                .defaults = {.vocab = 256000,
                                             .hidden = 3072,
                                             .layers = 28,
                                             .context = 8192,
                                             .inter = 24576,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .head_dim = 256,
                                             .tied = true,
                                             .own_activation = true},
                                .parse = parse_1,
                                .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_gemma2 = {
    .model_types = gemma2,
    .title = "Gemma 2",
    .defaults = DEFAULTS_2,
    .parse = parse_2,
    .names = {NAMES_ATTENTION("model."), NAMES_NORMS_AROUND("model."), NAMES_DENSE("model.")}};
static const char *const vault[] = {"vaultgemma", NULL};
const struct arch arch_vaultgemma = {
    .model_types = vault,
    .title = "VaultGemma",
    .defaults = DEFAULTS_2,
    .parse = parse_vault,
    .names = {NAMES_ATTENTION("model."), .attn_norm = "model.layers.%d.input_layernorm",
              .ffn_norm = "model.layers.%d.pre_feedforward_layernorm", NAMES_DENSE("model.")}};
const struct arch arch_gemma3_text = {.model_types = text,
                                      .title = "Gemma 3",
                                      .defaults = DEFAULTS,
                                      .parse = parse_text,
                                      .names = NAMES("model."),
                                      .key_aliases = keys};
const struct arch arch_gemma3 = {.model_types = with_vision,
                                 .title = "Gemma 3",
                                 .text_config_key = "text_config",
                                 .defaults = DEFAULTS,
                                 .parse = parse,
                                 .names = NAMES("language_model.model."),
                                 .key_aliases = keys};
