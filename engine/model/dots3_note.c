/* Dots 3 Note, language model only: MLA with a sigmoid gate per head, scaled latents and a norm of the rotated keys.
 * Most layers have a window, with sizes of their own; the others attend to the keys that an indexer selects.
 * DeepSeek-V3's router. Reference: transformers, models/dots3_note. */
#include <math.h>
#include <stdio.h>

#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 1, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

/* Sizes of layers with a window: keys with a prefix, or an object of the layer in per_layer_config, whose keys default
 * to the other layers'. */
struct window_sizes {
    int heads, q_lora, kv_lora, nope, rope, v_dim, dim;
};
static struct window_sizes read_prefixed(struct config_reader *r) {
    struct window_sizes s = {.heads = config_int(r, "swa_num_attention_heads", 64, 1, 1024),
                             .q_lora = config_int(r, "swa_q_lora_rank", 1024, 1, 16384),
                             .kv_lora = config_int(r, "swa_kv_lora_rank", 1024, 1, 8192),
                             .nope = config_int(r, "swa_qk_nope_head_dim", 192, 1, 1024),
                             .v_dim = config_int(r, "swa_v_head_dim", 128, 1, 1024),
                             .dim = config_int(r, "swa_head_dim", 256, 2, 2048)};
    s.rope = config_int(r, "swa_qk_rope_head_dim", s.dim - s.nope, 1, 1024);
    if (config_int(r, "swa_num_key_value_heads", s.heads, 1, 1024) != s.heads)
        config_fail(r, "'swa_num_key_value_heads' is not 'swa_num_attention_heads': MLA has one for each");
    return s;
}
static struct window_sizes read_listed(const struct config *c, struct config_reader *all, int layer) {
    char key[16];
    struct config_reader in;
    snprintf(key, sizeof key, "%d", layer);
    config_open(all, key, &in);
    struct window_sizes s = {.heads = config_int(&in, "num_attention_heads", c->n_heads, 1, 1024),
                             .q_lora = config_int(&in, "q_lora_rank", c->q_lora, 1, 16384),
                             .kv_lora = config_int(&in, "kv_lora_rank", c->kv_lora, 1, 8192),
                             .nope = config_int(&in, "qk_nope_head_dim", c->qk_nope, 1, 1024),
                             .rope = config_int(&in, "qk_rope_head_dim", c->qk_rope, 1, 1024),
                             .v_dim = config_int(&in, "v_head_dim", c->v_dim, 1, 1024)};
    s.dim = config_int(&in, "head_dim", s.nope + s.rope, 2, 2048);
    if (config_int(&in, "num_key_value_heads", s.heads, 1, 1024) != s.heads)
        config_fail(&in, "'per_layer_config.%d.num_key_value_heads' is not its number of heads: MLA has one for each",
                    layer);
    config_close(all, key, &in);
    return s;
}

static void set_sizes(struct config_reader *r, struct config *c, int layer, const struct window_sizes *s) {
    struct layer_config *l = &c->layer[layer];
    if (s->dim != s->nope + s->rope)
        config_fail(r, "heads of layer %d have %d dimensions, their parts make %d", layer, s->dim, s->nope + s->rope);
    config_set_heads(r, c, layer, s->heads, 1);
    l->q_lora = s->q_lora, l->kv_lora = s->kv_lora, l->qk_nope = s->nope, l->qk_rope = s->rope, l->v_dim = s->v_dim,
    l->head_dim = s->nope + s->rope;
    l->attn_scale = (float)(1 / sqrt(l->head_dim));
}
static int larger(int a, int b) { return a > b ? a : b; }

/* Reads which layers have a window. Published configs name the others full_attention, and say by use_dsa that they have
 * an indexer. */
static void read_kinds(struct config_reader *r, struct config *c, bool per_layer) {
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    const bool windows = config_bool(r, "use_sliding_window", true), given = config_has(r, "use_dsa"),
               dsa = config_bool(r, "use_dsa", !per_layer);
    const int window =
        config_int(r, "sliding_window", config_int(r, "sliding_window_size", 512, 1, 1 << 24), 1, 1 << 24);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *t = types ? json_at(types, (uint32_t)i) : NULL;
        const bool sliding = t ? json_is(t, "sliding_attention") : windows && i >= 2 && i % 4 != 1,
                   full = t && json_is(t, "full_attention"), indexed = t ? json_is(t, "indexed_attention") : !sliding;
        if (!sliding && !full && !indexed)
            config_fail(
                r, "'layer_types' of layer %d is neither sliding_attention, full_attention nor indexed_attention", i);
        c->layer[i].window = sliding ? window : 0;
        c->layer[i].index = sliding || !(given || !per_layer ? dsa : indexed) ? INDEX_NONE : INDEX_OWN;
        c->layer[i].rope = sliding ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
    }
}

static void read_sizes(struct config_reader *r, struct config *c, bool per_layer) {
    const struct window_sizes first = {.heads = c->n_heads,
                                       .q_lora = c->q_lora,
                                       .kv_lora = c->kv_lora,
                                       .nope = c->qk_nope,
                                       .rope = c->qk_rope,
                                       .v_dim = c->v_dim,
                                       .dim = c->head_dim};
    struct config_reader all;
    struct window_sizes second = first, one;
    bool any = false;
    if (per_layer) config_open(r, "per_layer_config", &all);
    else one = read_prefixed(r);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const bool sliding = c->layer[i].window;
        if (sliding) second = per_layer ? read_listed(c, &all, i) : one;
        if (sliding && any && second.rope != c->second_rope.dim)
            config_fail(r, "layers with a window differ in their rotated dimensions");
        if (sliding) c->second_rope.dim = second.rope, any = true;
        set_sizes(r, c, i, sliding ? &second : &first);
    }
    if (per_layer) config_close(r, "per_layer_config", &all);
    c->n_kv_heads = 1;
    for (int i = 0; i < c->n_layers; i++) { /* the model's are the largest */
        const struct layer_config *l = &c->layer[i];
        c->q_lora = larger(c->q_lora, l->q_lora), c->kv_lora = larger(c->kv_lora, l->kv_lora),
        c->qk_nope = larger(c->qk_nope, l->qk_nope);
        c->qk_rope = larger(c->qk_rope, l->qk_rope), c->v_dim = larger(c->v_dim, l->v_dim),
        c->head_dim = larger(c->head_dim, l->head_dim);
    }
}

/* Rotations of both kinds: nested objects by kind, or a base of each. The rotated part of a head has its size from
 * other keys. */
static double read_theta(struct config_reader *r, const char *key, double theta) {
    static const char *const kinds[] = {"default", NULL};
    struct config_reader in;
    config_open(r, key, &in);
    config_choice(&in, "rope_type", kinds, 0);
    config_has(&in, "partial_rotary_factor");
    theta = config_num(&in, "rope_theta", theta, 1.001, 1e12);
    config_close(r, key, &in);
    return theta;
}
static void read_ropes(struct config_reader *r, struct config *c, int rotated) {
    double theta = config_num(r, "rope_theta", 80000000, 1.001, 1e12),
           window_theta = config_num(r, "swa_rope_theta", 50000, 1.001, 1e12);
    struct config_reader in;
    if (config_has(r, "rope_scaling"))
        config_fail(r, "'rope_scaling' is set: hearth supports this family with unscaled rotations");
    if (config_has(r, "rope_parameters")) {
        config_open(r, "rope_parameters", &in);
        window_theta = read_theta(&in, "sliding_attention", window_theta);
        theta = read_theta(&in, config_has(&in, "full_attention") ? "full_attention" : "indexed_attention", theta);
        config_close(r, "rope_parameters", &in);
    }
    if (rotated % 2 || c->second_rope.dim % 2)
        config_fail(r, "heads have %d and %d rotary dimensions: both must be even", rotated, c->second_rope.dim);
    c->rope = (struct rope_config){
        .kind = ROPE_DEFAULT, .interleaved = true, .truncate = true, .dim = rotated, .theta = theta};
    if (!c->second_rope.dim) return;
    c->second_rope = (struct rope_config){
        .kind = ROPE_DEFAULT, .interleaved = true, .truncate = true, .dim = c->second_rope.dim, .theta = window_theta};
}

/* Layers with experts: mlp_layer_types, or the number of dense ones at the beginning and a period or list. */
static void read_moe_layers(struct config_reader *r, struct config *c) {
    const struct json *freq = config_get(r, "moe_layer_freq");
    const int dense = config_int(r, "first_k_dense_replace", 1, 0, CONFIG_MAX_LAYERS);
    bool flags[CONFIG_MAX_LAYERS];
    const bool listed = freq && freq->type == JSON_ARRAY && config_read_flags(r, c, "moe_layer_freq", flags);
    const int every = listed ? 1 : config_int(r, "moe_layer_freq", 1, 1, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= dense && (listed ? flags[i] : i % every == 0);
    config_read_mlp_types(r, c);
}

static void skip_media(struct config_reader *r, struct config *c) {
    static const char *const keys[] = {"audio_config", "audio_token_id"};
    config_skip_vision(r, c);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_ignore(r, keys[i]);
}

/* Keys of published configs with one value that the reference knows. */
static void read_fixed(struct config_reader *r) {
    static const char *const gates[] = {"headwise", NULL}, *const norms[] = {"RMSNorm", NULL};
    config_choice(r, "attention_gate_type", gates, 0), config_choice(r, "swa_attention_gate_type", gates, 0);
    config_choice(r, "normalization", norms, 0), config_choice(r, "final_norm", norms, 0);
    if (!config_bool(r, "k_rope_only_layernorm", true))
        config_fail(r, "'k_rope_only_layernorm' is false: hearth reads the norm's weights");
}

static void parse(struct config_reader *r, struct config *c) {
    const bool per_layer = config_has(r, "per_layer_config");
    skip_media(r, c);
    c->attn = ATTN_DSA;
    c->n_heads = config_int(r, "num_attention_heads", 128, 1, 1024);
    if (config_int(r, "num_key_value_heads", c->n_heads, 1, 1024) != c->n_heads)
        config_fail(r, "'num_key_value_heads' is not 'num_attention_heads': MLA has one for each");
    c->q_lora = config_int(r, "q_lora_rank", 1024, 1, 16384);
    c->kv_lora = config_int(r, "kv_lora_rank", 512, 1, 8192);
    c->qk_nope = config_int(r, "qk_nope_head_dim", 128, 1, 1024);
    c->qk_rope = config_int(r, "qk_rope_head_dim", 64, 1, 1024);
    c->v_dim = config_int(r, "v_head_dim", 128, 1, 1024);
    c->head_dim = c->qk_nope + c->qk_rope;
    const int rotated = c->qk_rope;
    read_fixed(r);
    c->split_kv_b = config_bool(r, "split_kv_b", false); /* GGUF only */
    /* only their product counts, the rotated part */
    config_ignore(r, "head_dim"), config_ignore(r, "partial_rotary_factor");
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: the reference has none");
    read_kinds(r, c, per_layer);
    read_sizes(r, c, per_layer);
    read_ropes(r, c, rotated);
    c->latent_eps = c->norm_eps;
    c->scales_latents = config_bool(r, "apply_mla_qkv_lora_rescale", true);
    c->k_rope_norm = true;
    c->attn_gate = ATTN_GATE_HEAD, c->attn_gate_kind = GATE_SIGMOID;
    deepseek_moe(r, c, &defaults);
    c->shared_inter = c->shared_inter / c->moe_inter *
                      config_int(r, "shared_experts_intermediate_size",
                                 config_int(r, "moe_shared_expert_intermediate_size", 1536, 1, 1 << 20), 1, 1 << 20);
    read_moe_layers(r, c);
    deepseek_router(r, c, &defaults);
    c->index_heads = config_int(r, "index_n_heads", 64, 1, 1024);
    c->index_dim = config_int(r, "index_head_dim", 128, 2, 1024);
    c->index_topk = config_int(r, "index_topk", 2048, 1, 1 << 20);
    c->index_interleaved = true;
    if (!r->rc && rotated > c->index_dim)
        config_fail(r, "'index_head_dim' is %d, of which %d are to be rotated", c->index_dim, rotated);
}

#define L "model.layers.%d."
static const char *const types[] = {"dots3_note", NULL}, *const text[] = {"dots3_note_text", NULL};
#define ARCH(model_types_) \
    { \
        .model_types = model_types_, .title = "Dots 3 Note", .norm_eps = 1e-5, \
        .defaults = {.vocab = 152064, .hidden = 5120, .layers = 46, .context = 524288}, .parse = parse, .names = { \
            DEEPSEEK_NAMES, \
            DEEPSEEK_BIAS_NAME, \
            DEEPSEEK_INDEX_NAMES, \
            .k_rope_norm = L "self_attn.k_rope_only_layernorm", \
            .attn_gate = L "self_attn.g_proj" \
        } \
    }
const struct arch arch_dots3_note = ARCH(types), arch_dots3_note_text = ARCH(text);
