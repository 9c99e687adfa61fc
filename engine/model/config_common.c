#include "engine/model/config_common.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch.h"

/* Reads a list with one number per pair of rotary dimensions. The factor 1e30 in a file means that the pair does not
 * rotate. */
static void read_factors(struct config_reader *r, const char *key, float *out, int n) {
    const struct json *v = config_get(r, key);
    if (!v || v->type != JSON_ARRAY || v->n != (uint32_t)n) {
        config_fail(r, "'rope_scaling.%s' is not a list of %d", key, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        double x = json_num(json_at(v, (uint32_t)i), 0);
        if (!(x > 0 && x <= 1e31))
            config_fail(r, "'rope_scaling.%s' has %g at %d; hearth takes more than 0", key, x, i);
        out[i] = (float)x;
    }
}

/* LongRoPE (Ding et al. 2024) as in Phi-3.5-MoE. Without explicit factors for cos and sin they are derived from the
 * context extension. */
static void read_long(struct config_reader *in, struct rope_config *k, int max_context, int pairs) {
    read_factors(in, "short_factor", k->factors[0], pairs);
    read_factors(in, "long_factor", k->factors[1], pairs);
    if (k->factor == 0) k->factor = max_context / k->original_max;
    double m = k->attention_factor > 0 ? k->attention_factor
               : k->factor > 1         ? sqrt(1 + log(k->factor) / log(k->original_max))
                                       : 1;
    k->factors_mscale[0] = (float)config_num(in, "short_mscale", m, 0, 1e3);
    k->factors_mscale[1] = (float)config_num(in, "long_mscale", m, 0, 1e3);
}

/* FoPE (Hua et al. 2024): frequencies whose waves are longer than the context are left out. */
static void read_fope(struct config_reader *in, struct rope_config *k, int max_context, int dim) {
    if (!config_has(in, "fope_init_factor") && !config_has(in, "fope_sep_head") && !config_has(in, "num_inv_freq"))
        return;
    config_num(in, "fope_init_factor", 0, 0, 1e3); /* of training */
    if (!config_bool(in, "fope_sep_head", true))
        config_fail(in, "'rope_scaling.fope_sep_head' is false: hearth supports FoPE with weights of each KV head");
    if (k->kind != ROPE_DEFAULT) config_fail(in, "'rope_scaling' scales FoPE's frequencies: the reference does not");
    int pairs = 0;
    while (pairs < dim / 2 && pow(k->theta, -2.0 * pairs / dim) > 2 * M_PI / max_context) pairs++;
    k->fope_pairs = config_int(in, "num_inv_freq", pairs, 1, dim / 2);
}

/* M-RoPE. For text alone the sections change nothing. */
static void read_sections(struct config_reader *in, struct rope_config *k) {
    const struct json *list = config_get(in, "mrope_section");
    config_has(in, "mrope_interleaved");
    if (!list) return;
    bool fits = list->type == JSON_ARRAY && list->n == 3;
    int section[2] = {0};
    for (uint32_t i = 0; i < 2 && fits; i++) {
        const int64_t n = json_int(&list->items[i + 1], -1);
        fits = n >= 1 && n <= ROPE_PAIRS_MAX;
        section[i] = fits ? (int)n : 0;
    }
    if (fits) memcpy(k->section, section, sizeof section);
    else if (k->default_section[0])
        config_fail(in, "'mrope_section' is not a list of three numbers of 1 to %d", ROPE_PAIRS_MAX);
}

void config_read_rope(struct config_reader *r, struct config *c, int dim, double theta) {
    const char *key = config_has(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    config_get(r, "rope_scaling"); /* transformers 5 calls it parameters; a config may have both */
    config_read_rope_object(r, c, key, dim, config_num(r, "rope_theta", theta, 1, 1e12));
}

/* Dynamic NTK: Hunyuan's has one factor for all lengths; that of others begins where the trained context ends, which
 * ends hearth's, too. */
static void read_dynamic(struct config_reader *in, struct config *c, int dim) {
    struct rope_config *k = &c->rope;
    const double alpha = config_num(in, "alpha", 0, 1e-6, 1e9);
    if (dim > 2 && alpha > 0) k->theta *= pow(alpha, dim / (dim - 2.0));
    if (alpha == 0 && k->original_max < c->max_context) c->max_context = (int)k->original_max;
    k->kind = ROPE_DEFAULT;
}

void config_read_rope_object(struct config_reader *r, struct config *c, const char *key, int dim, double theta) {
    struct rope_config *k = &c->rope;
    *k = (struct rope_config){.kind = ROPE_DEFAULT,
                              .dim = dim,
                              .theta = theta,
                              .truncate = true,
                              .interleaved = k->interleaved,
                              .backwards = k->backwards,
                              .default_partial_factor = k->default_partial_factor,
                              .partial_of = k->partial_of,
                              .reads_fope = k->reads_fope,
                              .section = {k->default_section[0], k->default_section[1]},
                              .default_section = {k->default_section[0], k->default_section[1]},
                              .sections_in_order = k->sections_in_order};
    double partial =
        config_num(r, "partial_rotary_factor", k->default_partial_factor > 0 ? k->default_partial_factor : 1, 0, 1);
    if (config_has(r, key)) {
        struct config_reader in;
        config_open(r, key, &in);
        static const char *const kinds[] = {"default",      "linear",  "yarn",          "llama3", "longrope", "factors",
                                            "proportional", "dynamic", "deepseek_yarn", "mrope",  NULL};
        enum { ALPHA = ROPE_PROPORTIONAL + 1, DEEPSEEK_YARN, MROPE };
        const char *type = config_has(&in, "rope_type") ? "rope_type" : "type";
        config_has(&in, "type"); /* both spellings may be present */
        k->kind = (uint8_t)config_choice(&in, type, kinds, 0);
        if (k->kind == DEEPSEEK_YARN) k->kind = ROPE_YARN;
        if (k->kind == MROPE) k->kind = ROPE_DEFAULT; /* of Qwen2-VL: mrope_section says the rest */
        double original = k->kind == ROPE_LONG
                              ? config_num(r, "original_max_position_embeddings", c->max_context, 1, 1e9)
                              : c->max_context;
        k->theta = config_num(&in, "rope_theta", k->theta, 1, 1e12);
        partial = config_num(&in, "partial_rotary_factor", partial, 0, 1);
        k->original_max = config_num(&in, "original_max_position_embeddings", original, 1, 1e9);
        k->factor = config_num(&in, "factor", k->kind == ROPE_DEFAULT ? 1 : 0, 0, 1e6);
        k->beta_fast = config_num(&in, "beta_fast", 32, 0, 1e6);
        k->beta_slow = config_num(&in, "beta_slow", 1, 0, 1e6);
        if (k->beta_fast == 0) k->beta_fast = 32;
        if (k->beta_slow == 0) k->beta_slow = 1;
        k->mscale = config_num(&in, "mscale", 0, 0, 1e3);
        k->mscale_all_dim = config_num(&in, "mscale_all_dim", 0, 0, 1e3);
        k->attention_factor = config_num(&in, "attention_factor", 0, 0, 1e3);
        k->truncate = config_bool(&in, "truncate", true);
        config_has(&in, "max_position_embeddings");
        const double slope = config_num(&in, "llama_4_scaling_beta", 0, 0, 1e3); /* Mistral */
        if (slope > 0) c->query_scale = (struct query_scale){.slope = (float)slope, .every = (int)k->original_max};
        /* the three positions are equal for text */
        read_sections(&in, k);
        if (k->kind == ALPHA) read_dynamic(&in, c, dim);
        k->low_freq = config_num(&in, "low_freq_factor", 0, 0, 1e6);
        k->high_freq = config_num(&in, "high_freq_factor", 0, 0, 1e6);
        if (k->reads_fope) read_fope(&in, k, c->max_context, dim);
        if (!in.rc && k->kind == ROPE_YARN && k->factor == 0) k->factor = c->max_context / k->original_max;
        if (!in.rc && k->kind == ROPE_LONG) read_long(&in, k, c->max_context, (int)(dim * partial) / 2);
        if (!in.rc && k->kind == ROPE_FACTORS) read_factors(&in, "factors", k->factors[0], (int)(dim * partial) / 2);
        if (!in.rc && k->kind != ROPE_DEFAULT && k->kind < ROPE_LONG && !(k->factor >= 1))
            config_fail(&in, "'rope_scaling.factor' is %g; hearth takes 1 or more", k->factor);
        if (!in.rc && k->kind == ROPE_LLAMA3 && !(k->high_freq >= k->low_freq && k->low_freq > 0))
            config_fail(&in, "'rope_scaling' of type llama3 needs 0 < low_freq_factor <= high_freq_factor");
        config_close(r, "rope_scaling", &in);
    }
    k->dim = (int)((k->partial_of ? k->partial_of : dim) * partial);
    if (k->kind == ROPE_PROPORTIONAL) k->turning_pairs = k->dim / 2, k->dim = dim;
    if (!r->rc && (k->dim < 2 || k->dim % 2))
        config_fail(r, "%d rotary dimensions of a head of %d: must be even and at least 2", k->dim, dim);
    if (!r->rc && k->theta <= 1) config_fail(r, "'rope_theta' is %g; hearth takes more than 1", k->theta);
}

void config_read_gqa(struct config_reader *r, struct config *c) {
    c->attn = ATTN_GQA;
    const struct config_defaults *d = &c->arch->defaults;
    c->n_heads = config_int(r, "num_attention_heads", d->heads, 1, 1024);
    c->n_kv_heads = config_int(r, "num_key_value_heads", d->kv_heads ? d->kv_heads : c->n_heads, 1, 1024);
    c->head_dim = c->v_dim =
        config_int(r, "head_dim", d->head_dim ? d->head_dim : c->hidden / (c->n_heads ? c->n_heads : 1), 2, 1024);
    if (c->n_heads % c->n_kv_heads)
        config_fail(r, "%d attention heads do not divide among %d key-value heads", c->n_heads, c->n_kv_heads);
    if (!d->head_dim && !config_has(r, "head_dim") && c->hidden % c->n_heads)
        config_fail(r, "hidden_size %d does not divide among %d heads", c->hidden, c->n_heads);
    c->attn_scale = (float)(1 / sqrt(c->head_dim));
}

void config_read_dense(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only */
    c->dense_inter = config_int(r, "intermediate_size", c->arch->defaults.inter, 1, 1 << 20);
}

void config_read_ungated(struct config_reader *r, struct config *c, enum ungated form) {
    static const char *const acts[] = {"gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", NULL};
    const float alpha = 2 * sqrtf(2 / (float)M_PI);
    c->no_up = true;
    c->glu = config_choice(r, "hidden_act", acts, form) == UNGATED_GELU
                 ? (struct glu){.is_ungated = true, .is_erf = true}
                 : (struct glu){.is_ungated = true, .alpha = alpha, .cubic = 0.044715f * alpha};
}

void config_read_windows(struct config_reader *r, struct config *c, int window, int layers) {
    const struct json *types = config_get(r, "layer_types");
    const bool fits =
        types && types->type == JSON_ARRAY && ((int)types->n == c->n_layers || (int)types->n == c->n_layers + c->n_mtp);
    if (types && !fits) {
        config_fail(r, "'layer_types' is not a list of %d", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        bool sliding = i % 2 == 0 && i < layers;
        if (types) {
            const struct json *t = json_at(types, (uint32_t)i);
            sliding = json_is(t, "sliding_attention");
            if (!sliding && !json_is(t, "full_attention"))
                config_fail(r, "'layer_types' of layer %d is neither full_attention nor sliding_attention", i);
            if (sliding && !window)
                config_fail(r, "'layer_types' asks for a sliding window in layer %d, and none is in force", i);
        }
        c->layer[i].window = sliding ? window : 0;
    }
}

void config_read_mixers(struct config_reader *r, struct config *c, const char *key, enum mixer kind, const char *name,
                        const char *attention) {
    const char *const options[] = {name, attention, NULL};
    const struct json *types = config_layer_list(r, c, key, false);
    if (!types) config_fail(r, "'%s' is not a list of %d", key, c->n_layers);
    for (int i = 0; i < c->n_layers && !r->rc; i++)
        c->layer[i].mixer = (uint8_t)(config_layer_choice(r, key, types, i, options) ? MIXER_ATTENTION : kind);
}

void config_set_heads(struct config_reader *r, struct config *c, int layer, int64_t heads, int64_t kv_heads) {
    if (heads < 1 || heads > 1024 || kv_heads < 1 || heads % kv_heads) {
        config_fail(r, "%lld attention heads and %lld key-value heads in layer %d", (long long)heads,
                    (long long)kv_heads, layer);
        return;
    }
    c->layer[layer].n_heads = (int)heads, c->layer[layer].n_kv_heads = (int)kv_heads;
    if (heads > c->n_heads) c->n_heads = (int)heads;
    if (kv_heads > c->n_kv_heads) c->n_kv_heads = (int)kv_heads;
}

void config_read_ropes(struct config_reader *r, struct config *c, double full, double sliding) {
    const struct json *all = config_get(r, "rope_parameters");
    struct config_reader in;
    if (!all || all->type != JSON_OBJECT || !json_get(all, "full_attention")) {
        config_read_rope(r, c, c->head_dim, full);
        return;
    }
    config_open(r, "rope_parameters", &in);
    config_read_rope_object(&in, c, "sliding_attention", c->head_dim, sliding);
    c->second_rope = c->rope;
    config_read_rope_object(&in, c, "full_attention", c->head_dim, full);
    config_close(r, "rope_parameters", &in);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
}

void config_read_mlp_types(struct config_reader *r, struct config *c) {
    static const char *const options[] = {"dense", "sparse", NULL};
    const struct json *types = config_layer_list(r, c, "mlp_layer_types", true);
    for (int i = 0; types && i < c->n_layers && !r->rc; i++)
        c->layer[i].moe = config_layer_choice(r, "mlp_layer_types", types, i, options) == 1;
}

void config_skip_vision(struct config_reader *r, struct config *c) {
    static const char *const keys[] = {"vision_config",
                                       "image_token_id",
                                       "image_token_index",
                                       "image_start_token_id",
                                       "image_end_token_id",
                                       "video_token_id",
                                       "video_start_token_id",
                                       "video_end_token_id",
                                       "vision_start_token_id",
                                       "vision_end_token_id",
                                       "boi_token_index",
                                       "eoi_token_index",
                                       "multimodal_projector_bias",
                                       "projector_hidden_act",
                                       "projector_hidden_size",
                                       "projector_bias",
                                       "spatial_merge_size",
                                       "understand_projector_stride",
                                       "vision_feature_layer"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_ignore(r, keys[i]);
    /* transformers before 5 saved it here only; a head tensor unties */
    const bool inner = json_bool(json_get(r->root, "tie_word_embeddings"), false);
    c->tied = inner || json_bool(json_get(r->outer, "tie_word_embeddings"), c->tied);
}

void config_read_sparse_step(struct config_reader *r, struct config *c) {
    int step = config_int(r, "decoder_sparse_step", 1, 1, CONFIG_MAX_LAYERS);
    const struct json *dense = config_get(r, "mlp_only_layers");
    if (dense && dense->type != JSON_ARRAY) config_fail(r, "'mlp_only_layers' is not a list");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = (i + 1) % step == 0;
    for (uint32_t i = 0; dense && dense->type == JSON_ARRAY && i < dense->n; i++) {
        int64_t k = json_int(json_at(dense, i), -1);
        if (k < 0 || k >= c->n_layers)
            config_fail(r, "'mlp_only_layers' names layer %lld of %d", (long long)k, c->n_layers);
        else c->layer[k].moe = false;
    }
}

const struct json *config_layer_list(struct config_reader *r, const struct config *c, const char *key, bool longer) {
    const struct json *list = config_get(r, key);
    const bool fits = list && list->type == JSON_ARRAY &&
                      (longer ? list->n >= (uint32_t)c->n_layers : list->n == (uint32_t)c->n_layers);
    if (list && !fits) config_fail(r, "'%s' is not a list of %d", key, c->n_layers);
    return fits ? list : NULL;
}
bool config_is_layer_kind(const struct json *v, const char *kind) {
    /* {published, as transformers 5 saves it} */
    static const char *const saved[][2] = {{"mamba", "linear_attention"}, {"attention", "full_attention"}};
    bool is = json_is(v, kind);
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
        is |= !strcmp(kind, saved[i][0]) && json_is(v, saved[i][1]);
    return is;
}
int config_layer_choice(struct config_reader *r, const char *key, const struct json *list, int layer,
                        const char *const *options) {
    for (int k = 0; options[k]; k++)
        if (config_is_layer_kind(json_at(list, (uint32_t)layer), options[k])) return k;
    if (!options[1]) config_fail(r, "'%s' of layer %d is not %s", key, layer, options[0]);
    else if (!options[2]) config_fail(r, "'%s' of layer %d is neither %s nor %s", key, layer, options[0], options[1]);
    else config_fail(r, "'%s' of layer %d is none of %s, %s and %s", key, layer, options[0], options[1], options[2]);
    return 0;
}

bool config_read_flags(struct config_reader *r, const struct config *c, const char *key, bool out[CONFIG_MAX_LAYERS]) {
    const struct json *v = config_layer_list(r, c, key, false);
    if (!v) return false;
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *t = json_at(v, (uint32_t)i);
        int64_t k = t->type == JSON_BOOL ? t->boolean : json_int(t, -1);
        if (k != 0 && k != 1) config_fail(r, "'%s' of layer %d is neither true nor false", key, i);
        out[i] = k == 1;
    }
    return true;
}

/* Whether a list of two limits leaves every step as it is: [0, infinity], which JSON has no number for. */
static bool limits_nothing(const struct json *v) {
    if (v->type != JSON_ARRAY || v->n != 2 || json_num(json_at(v, 0), -1) != 0) return false;
    const struct json *upper = json_at(v, 1);
    return json_num(upper, 0) >= 1e30 || json_is(upper, "Infinity") || json_is(upper, "inf") ||
           (upper->type == JSON_OBJECT && json_is(json_get(upper, "__float__"), "Infinity"));
}
void config_check_step_limit(struct config_reader *r, const char *key) {
    const struct json *v = config_get(r, key);
    if (v && !limits_nothing(v)) config_fail(r, "'%s' limits Mamba's step; hearth supports [0, infinity]", key);
}
