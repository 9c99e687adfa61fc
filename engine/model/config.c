#include "engine/model/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "engine/model/arch.h"
#include "engine/model/quantization.h"

/* --- Reading keys and marking them as known ------------------------------------------------------------------------- */

int config_fail(struct config_reader *r, const char *fmt, ...) {
    if (r->rc) return r->rc;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return r->rc = error_set(r->e, ERR_MODEL, "%s: %s", r->what, text);
}

static const char *family_key(const struct config_reader *r, const char *key) { /* the family's name of a key */
    for (int i = 0; r->key_aliases && r->key_aliases[i][0]; i++)
        if (!strcmp(key, r->key_aliases[i][0])) return r->key_aliases[i][1];
    return key;
}

static const struct json *find_and_mark(const struct json *root, uint64_t seen[CONFIG_MEMBERS_MOST / 64], const char *key) {
    const struct json *v = root ? json_get(root, key) : NULL;
    if (v) {
        size_t i = (size_t)(v - root->items) / 2;
        if (i < CONFIG_MEMBERS_MOST) seen[i / 64] |= (uint64_t)1 << i % 64;
    }
    return v && v->type != JSON_NULL ? v : NULL;
}
/* Other names of keys: those that transformers 5 saves, whatever the family's published configs call them, and Sarvam's of experts. {common, other}. */
static const char *const other_names[][2] = {
    {"num_experts", "num_local_experts"}, {"num_key_value_heads", "num_key_value_heads"}, {"num_experts_per_tok", "num_experts_per_token"},
    {"n_group", "num_expert_group"},      {"norm_topk_prob", "moe_renormalize"},          {"max_position_embeddings", "model_max_length"},
    {"n_routed_experts", "num_experts"},  {"n_shared_experts", "num_shared_experts"}};
static const struct json *read_key(struct config_reader *r, const char *key) {
    const char *name = family_key(r, key);
    const struct json *inner = find_and_mark(r->root, r->seen, name), *outer = find_and_mark(r->outer, r->outer_seen, name);
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names && !inner && !outer; i++)
        if (!strcmp(key, other_names[i][0])) inner = find_and_mark(r->root, r->seen, other_names[i][1]);
    return inner ? inner : outer;
}

const struct json *config_get(struct config_reader *r, const char *key) { return read_key(r, key); }
bool config_has(struct config_reader *r, const char *key) { return read_key(r, key) != NULL; }
void config_ignore(struct config_reader *r, const char *key) { read_key(r, key); }
bool config_is_null(const struct config_reader *r, const char *key) {
    const struct json *v = r->root ? json_get(r->root, family_key(r, key)) : NULL;
    return v && v->type == JSON_NULL;
}

int config_int(struct config_reader *r, const char *key, int default_value, int min, int max) {
    const struct json *v = read_key(r, key);
    if (!v) {
        if (default_value < min) config_fail(r, "'%s' is missing", family_key(r, key));
        return default_value < min ? min : default_value;
    }
    int64_t n = json_int(v, INT64_MIN);
    if (n == INT64_MIN) config_fail(r, "'%s' is not a whole number", family_key(r, key));
    else if (n < min || n > max) config_fail(r, "'%s' is %lld; hearth takes %d to %d", family_key(r, key), (long long)n, min, max);
    else return (int)n;
    return min;
}

double config_num(struct config_reader *r, const char *key, double default_value, double min, double max) {
    const struct json *v = read_key(r, key);
    if (!v) return default_value;
    double x = json_num(v, NAN);
    if (isnan(x)) config_fail(r, "'%s' is not a number", family_key(r, key));
    else if (!(x >= min && x <= max)) config_fail(r, "'%s' is %g; hearth takes %g to %g", family_key(r, key), x, min, max);
    else return x;
    return min;
}

bool config_bool(struct config_reader *r, const char *key, bool default_value) {
    const struct json *v = read_key(r, key);
    if (v && v->type != JSON_BOOL) config_fail(r, "'%s' is neither true nor false", family_key(r, key));
    return json_bool(v, default_value);
}

int config_choice(struct config_reader *r, const char *key, const char *const *options, int default_value) {
    const struct json *v = read_key(r, key);
    if (!v) return default_value;
    char known_options[200] = "";
    for (int i = 0; options[i]; i++) {
        if (json_is(v, options[i])) return i;
        size_t at = strlen(known_options);
        snprintf(known_options + at, sizeof known_options - at, "%s%s", i ? ", " : "", options[i]);
    }
    if (v->type == JSON_STRING)
        config_fail(r, "'%s' is \"%.*s\"; hearth supports %s", family_key(r, key), (int)(v->n < 80 ? v->n : 80), v->string, known_options);
    else config_fail(r, "'%s' is not a text; hearth supports %s", family_key(r, key), known_options);
    return 0;
}

static bool is_same(const struct json *a, const struct json *b) { /* scalars, and lists of them */
    if (a->type == JSON_ARRAY || b->type == JSON_ARRAY) {
        if (a->type != b->type || a->n != b->n) return false;
        for (uint32_t i = 0; i < a->n; i++)
            if (!is_same(json_at(a, i), json_at(b, i))) return false;
        return true;
    }
    if (a->type == JSON_STRING || b->type == JSON_STRING) return a->type == b->type && a->n == b->n && !memcmp(a->string, b->string, a->n);
    if (a->type == JSON_BOOL || b->type == JSON_BOOL) return a->type == b->type && a->boolean == b->boolean;
    return json_num(a, NAN) == json_num(b, NAN);
}
const char *config_either(struct config_reader *r, const char *published, const char *saved) {
    const struct json *p = read_key(r, published), *s = read_key(r, saved);
    if (p && s && !is_same(p, s)) config_fail(r, "'%s' and '%s' differ, which are names of the same", family_key(r, published), family_key(r, saved));
    return s ? saved : published;
}

/* --- Nested objects ------------------------------------------------------------------------------------------------------ */

void config_open(struct config_reader *r, const char *key, struct config_reader *in) {
    static const struct json none = {.type = JSON_OBJECT};
    const struct json *v = read_key(r, key);
    *in = (struct config_reader){.root = v && v->type == JSON_OBJECT ? v : &none, .what = r->what, .e = r->e, .rc = r->rc};
    if (v && v->type != JSON_OBJECT) config_fail(in, "'%s' is not an object", key);
    else if (in->root->n > CONFIG_MEMBERS_MOST) config_fail(in, "'%s' has %u members, more than any kind of it", key, in->root->n);
}

void config_close(struct config_reader *r, const char *key, struct config_reader *in) {
    const struct json *s = in->root;
    for (uint32_t i = 0; i < s->n && !in->rc; i++)
        if (!(in->seen[i / 64] >> i % 64 & 1) && s->items[2 * i + 1].type != JSON_NULL)
            config_fail(in, "'%s.%.*s' is unknown to hearth", key, (int)s->items[2 * i].n, s->items[2 * i].string);
    r->rc = in->rc;
}

/* --- Shared by many families ---------------------------------------------------------------------------------------- */

/* Reads a list with one number per pair of rotary dimensions. The factor 1e30 in a file means that the pair does not rotate. */
static void read_factors(struct config_reader *r, const char *key, float *out, int n) {
    const struct json *v = config_get(r, key);
    if (!v || v->type != JSON_ARRAY || v->n != (uint32_t)n) {
        config_fail(r, "'rope_scaling.%s' is not a list of %d", key, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        double x = json_num(json_at(v, (uint32_t)i), 0);
        if (!(x > 0 && x <= 1e31)) config_fail(r, "'rope_scaling.%s' has %g at %d; hearth takes more than 0", key, x, i);
        out[i] = (float)x;
    }
}

/* LongRoPE (Ding et al. 2024) as in Phi-3.5-MoE. Without explicit factors for cos and sin they are derived from the context extension. */
static void read_long(struct config_reader *in, struct rope_config *k, int max_context, int pairs) {
    read_factors(in, "short_factor", k->factors[0], pairs);
    read_factors(in, "long_factor", k->factors[1], pairs);
    if (k->factor == 0) k->factor = max_context / k->original_max;
    double m = k->attention_factor > 0 ? k->attention_factor : k->factor > 1 ? sqrt(1 + log(k->factor) / log(k->original_max)) : 1;
    k->factors_mscale[0] = (float)config_num(in, "short_mscale", m, 0, 1e3);
    k->factors_mscale[1] = (float)config_num(in, "long_mscale", m, 0, 1e3);
}

/* FoPE (Hua et al. 2024): frequencies whose waves are longer than the context are left out. */
static void read_fope(struct config_reader *in, struct rope_config *k, int max_context, int dim) {
    if (!config_has(in, "fope_init_factor") && !config_has(in, "fope_sep_head") && !config_has(in, "num_inv_freq")) return;
    config_num(in, "fope_init_factor", 0, 0, 1e3); /* of training */
    if (!config_bool(in, "fope_sep_head", true)) config_fail(in, "'rope_scaling.fope_sep_head' is false: hearth supports FoPE with weights of each KV head");
    if (k->kind != ROPE_DEFAULT) config_fail(in, "'rope_scaling' scales FoPE's frequencies: the reference does not");
    int pairs = 0;
    while (pairs < dim / 2 && pow(k->theta, -2.0 * pairs / dim) > 2 * M_PI / max_context) pairs++;
    k->fope_pairs = config_int(in, "num_inv_freq", pairs, 1, dim / 2);
}

void config_read_rope(struct config_reader *r, struct config *c, int dim, double theta) {
    const char *key = config_has(r, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    config_get(r, "rope_scaling"); /* transformers 5 calls it parameters; a config may have both */
    config_read_rope_object(r, c, key, dim, config_num(r, "rope_theta", theta, 1, 1e12));
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
                              .reads_fope = k->reads_fope};
    double partial = config_num(r, "partial_rotary_factor", k->default_partial_factor > 0 ? k->default_partial_factor : 1, 0, 1);
    if (config_has(r, key)) {
        struct config_reader in;
        config_open(r, key, &in);
        static const char *const kinds[] = {"default", "linear", "yarn", "llama3", "longrope", "factors", "proportional", "dynamic", "deepseek_yarn", NULL};
        enum { ALPHA = ROPE_PROPORTIONAL + 1, DEEPSEEK_YARN };
        const char *type = config_has(&in, "rope_type") ? "rope_type" : "type";
        config_has(&in, "type"); /* both spellings may be present */
        k->kind = (uint8_t)config_choice(&in, type, kinds, 0);
        if (k->kind == DEEPSEEK_YARN) k->kind = ROPE_YARN;
        double original = k->kind == ROPE_LONG ? config_num(r, "original_max_position_embeddings", c->max_context, 1, 1e9) : c->max_context;
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
        config_has(&in, "mrope_section"), config_has(&in, "mrope_interleaved"); /* the three positions are equal for text */
        if (k->kind == ALPHA) {                                                 /* Hunyuan's NTK scaling: one factor for all lengths */
            const double alpha = config_num(&in, "alpha", 0, 1e-6, 1e9);
            if (alpha == 0) config_fail(&in, "'rope_scaling' of type dynamic is known to hearth with 'alpha' only");
            if (dim > 2 && alpha > 0) k->theta *= pow(alpha, dim / (dim - 2.0));
            k->kind = ROPE_DEFAULT;
        }
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
    if (!r->rc && (k->dim < 2 || k->dim % 2)) config_fail(r, "%d rotary dimensions of a head of %d: must be even and at least 2", k->dim, dim);
    if (!r->rc && k->theta <= 1) config_fail(r, "'rope_theta' is %g; hearth takes more than 1", k->theta);
}

void config_read_gqa(struct config_reader *r, struct config *c) {
    c->attn = ATTN_GQA;
    const struct config_defaults *d = &c->arch->defaults;
    c->n_heads = config_int(r, "num_attention_heads", d->heads, 1, 1024);
    c->n_kv_heads = config_int(r, "num_key_value_heads", d->kv_heads ? d->kv_heads : c->n_heads, 1, 1024);
    c->head_dim = c->v_dim = config_int(r, "head_dim", d->head_dim ? d->head_dim : c->hidden / (c->n_heads ? c->n_heads : 1), 2, 1024);
    if (c->n_heads % c->n_kv_heads) config_fail(r, "%d attention heads do not divide among %d key-value heads", c->n_heads, c->n_kv_heads);
    if (!d->head_dim && !config_has(r, "head_dim") && c->hidden % c->n_heads)
        config_fail(r, "hidden_size %d does not divide among %d heads", c->hidden, c->n_heads);
    c->attn_scale = (float)(1 / sqrt(c->head_dim));
}

void config_read_dense(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only */
    c->dense_inter = config_int(r, "intermediate_size", c->arch->defaults.inter, 1, 1 << 20);
}

void config_read_windows(struct config_reader *r, struct config *c, int window, int layers) {
    const struct json *types = config_get(r, "layer_types");
    const bool fits = types && types->type == JSON_ARRAY && ((int)types->n == c->n_layers || (int)types->n == c->n_layers + c->n_mtp);
    if (types && !fits) {
        config_fail(r, "'layer_types' is not a list of %d", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        bool sliding = i % 2 == 0 && i < layers;
        if (types) {
            const struct json *t = json_at(types, (uint32_t)i);
            sliding = json_is(t, "sliding_attention");
            if (!sliding && !json_is(t, "full_attention")) config_fail(r, "'layer_types' of layer %d is neither full_attention nor sliding_attention", i);
            if (sliding && !window) config_fail(r, "'layer_types' asks for a sliding window in layer %d, and none is in force", i);
        }
        c->layer[i].window = sliding ? window : 0;
    }
}

void config_read_mixers(struct config_reader *r, struct config *c, const char *key, enum mixer kind, const char *name, const char *attention) {
    const char *const options[] = {name, attention, NULL};
    const struct json *types = config_layer_list(r, c, key, false);
    if (!types) config_fail(r, "'%s' is not a list of %d", key, c->n_layers);
    for (int i = 0; i < c->n_layers && !r->rc; i++) c->layer[i].mixer = (uint8_t)(config_layer_choice(r, key, types, i, options) ? MIXER_ATTENTION : kind);
}

void config_set_heads(struct config_reader *r, struct config *c, int layer, int64_t heads, int64_t kv_heads) {
    if (heads < 1 || heads > 1024 || kv_heads < 1 || heads % kv_heads) {
        config_fail(r, "%lld attention heads and %lld key-value heads in layer %d", (long long)heads, (long long)kv_heads, layer);
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
    for (int i = 0; types && i < c->n_layers && !r->rc; i++) c->layer[i].moe = config_layer_choice(r, "mlp_layer_types", types, i, options) == 1;
}

void config_skip_vision(struct config_reader *r, struct config *c) {
    static const char *const keys[] = {
        "vision_config",   "image_token_id",       "image_token_index",           "image_start_token_id",  "image_end_token_id",
        "video_token_id",  "video_start_token_id", "video_end_token_id",          "vision_start_token_id", "vision_end_token_id",
        "boi_token_index", "eoi_token_index",      "multimodal_projector_bias",   "projector_hidden_act",  "projector_hidden_size",
        "projector_bias",  "spatial_merge_size",   "understand_projector_stride", "vision_feature_layer"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_ignore(r, keys[i]);
    const bool inner = json_bool(json_get(r->root, "tie_word_embeddings"), false); /* transformers before 5 saved it here only; a head tensor unties */
    c->tied = inner || json_bool(json_get(r->outer, "tie_word_embeddings"), c->tied);
}

void config_read_sparse_step(struct config_reader *r, struct config *c) {
    int step = config_int(r, "decoder_sparse_step", 1, 1, CONFIG_MAX_LAYERS);
    const struct json *dense = config_get(r, "mlp_only_layers");
    if (dense && dense->type != JSON_ARRAY) config_fail(r, "'mlp_only_layers' is not a list");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = (i + 1) % step == 0;
    for (uint32_t i = 0; dense && dense->type == JSON_ARRAY && i < dense->n; i++) {
        int64_t k = json_int(json_at(dense, i), -1);
        if (k < 0 || k >= c->n_layers) config_fail(r, "'mlp_only_layers' names layer %lld of %d", (long long)k, c->n_layers);
        else c->layer[k].moe = false;
    }
}

const struct json *config_layer_list(struct config_reader *r, const struct config *c, const char *key, bool longer) {
    const struct json *list = config_get(r, key);
    const bool fits = list && list->type == JSON_ARRAY && (longer ? list->n >= (uint32_t)c->n_layers : list->n == (uint32_t)c->n_layers);
    if (list && !fits) config_fail(r, "'%s' is not a list of %d", key, c->n_layers);
    return fits ? list : NULL;
}
bool config_is_layer_kind(const struct json *v, const char *kind) {
    static const char *const saved[][2] = {{"mamba", "linear_attention"}, {"attention", "full_attention"}}; /* {published, as transformers 5 saves it} */
    bool is = json_is(v, kind);
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) is |= !strcmp(kind, saved[i][0]) && json_is(v, saved[i][1]);
    return is;
}
int config_layer_choice(struct config_reader *r, const char *key, const struct json *list, int layer, const char *const *options) {
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

/* --- The whole file -------------------------------------------------------------------------------------------------- */

/* Keys about training, storage or other programs that do not affect the forward pass. */
static const char *const ignored_keys[] = {
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "keep_prefix",
    "label2id",
    "language",
    "length_penalty",
    "library_name",
    "max_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "use_mrope",
    NULL,
};

/* Whether an unknown key with this value is taken for a feature that the model does not use. */
static bool is_inactive(const struct json *v) {
    switch (v->type) {
    case JSON_NULL: return true;
    case JSON_BOOL: return !v->boolean;
    case JSON_INT: return v->integer == 0;
    case JSON_FLOAT: return json_num(v, 0) == 0;
    default: return v->n == 0;
    }
}

/* Whether a member that no parser reads cannot change the computation. */
static bool is_ignored(const struct json *k, const struct json *v) {
    bool known = is_inactive(v) || (k->n && k->string[0] == '_');
    for (const char *const *h = ignored_keys; *h && !known; h++) known = json_is(k, *h);
    return known;
}

void config_close_config(struct config_reader *r, const char *key, struct config_reader *in) {
    for (uint32_t i = 0; i < in->root->n && i < CONFIG_MEMBERS_MOST; i++)
        if (is_ignored(&in->root->items[2 * i], &in->root->items[2 * i + 1])) in->seen[i / 64] |= (uint64_t)1 << i % 64;
    config_close(r, key, in);
}

static void refuse_unknown(struct config_reader *r, const struct json *root, const uint64_t seen[CONFIG_MEMBERS_MOST / 64], const struct config *c,
                           bool force) {
    for (uint32_t i = 0; root && i < root->n && !r->rc; i++) {
        const struct json *k = &root->items[2 * i], *v = k + 1;
        if (i < CONFIG_MEMBERS_MOST && seen[i / 64] >> i % 64 & 1) continue;
        if (is_ignored(k, v)) continue;
        int n = (int)(k->n < 80 ? k->n : 80);
        if (force) log_say(LOG_WARN, "%s: '%.*s' is unknown to hearth and ignored", r->what, n, k->string);
        else config_fail(r, "'%.*s' is unknown to hearth for the family %s and may change the computation; --force ignores it", n, k->string, c->model_type);
    }
}

static void read_tokens(struct config_reader *r, struct config *c) {
    c->bos = config_int(r, "bos_token_id", -1, -1, c->vocab - 1);
    const struct json *eos = config_get(r, "eos_token_id");
    uint32_t n = !eos ? 0 : eos->type == JSON_ARRAY ? eos->n : 1;
    if (n > CONFIG_MAX_EOS) config_fail(r, "'eos_token_id' lists %u ids; hearth takes up to %d", n, CONFIG_MAX_EOS);
    for (uint32_t i = 0; i < n && !r->rc; i++) {
        int64_t id = json_int(eos->type == JSON_ARRAY ? json_at(eos, i) : eos, -1);
        if (id < 0 || id >= c->vocab) config_fail(r, "'eos_token_id' is %lld in a vocabulary of %d", (long long)id, c->vocab);
        else c->eos[c->n_eos++] = (int)id;
    }
}

/* Families with an activation of their own overwrite c->glu. */
static void read_activation(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"silu", "gelu_pytorch_tanh", NULL};
    if (c->arch->defaults.own_activation) return;
    const float alpha = 2 * sqrtf(2 / (float)M_PI);
    if (config_choice(r, "hidden_act", acts, c->arch->defaults.is_gelu)) c->glu = (struct glu){.alpha = alpha, .cubic = 0.044715f * alpha};
}

/* Continues with the member that describes the text model; keys that it lacks are read from the outermost object. */
static int enter_text_config(struct config_reader *r, const char *member) {
    char first[40];
    const char *dot = strchr(member, '.'); /* a member of a member, whose other keys are of other parts */
    snprintf(first, sizeof first, "%.*s", dot ? (int)(dot - member) : (int)strlen(member), member);
    const struct json *inner = config_get(r, first);
    if (dot) inner = inner && inner->type == JSON_OBJECT ? json_get(inner, dot + 1) : NULL;
    if (!inner || inner->type != JSON_OBJECT) return config_fail(r, "'%s' is missing or not an object", member);
    if (inner->n > CONFIG_MEMBERS_MOST) return config_fail(r, "'%s' has %u keys, more than a model's config has", member, inner->n);
    r->outer = r->root;
    memcpy(r->outer_seen, r->seen, sizeof r->seen);
    memset(r->seen, 0, sizeof r->seen);
    r->root = inner;
    return 0;
}

/* Refuses tensors and states whose sizes, products of several keys, exceed an int. Other products do not by the limits of their keys. */
static void check_products(struct config_reader *r, const struct config *c) {
    const int64_t inner = (int64_t)c->mamba.heads * c->mamba.head_dim, qk = ((int64_t)c->n_heads + c->n_kv_heads) * c->head_dim;
    if (inner * c->mamba.state > INT32_MAX)
        config_fail(r, "Mamba with %lld channels and states of %d: larger than hearth takes", (long long)inner, c->mamba.state);
    if (qk * c->head_dim * c->cca.taps[1] > INT32_MAX)
        config_fail(r, "convolutions of %lld channels in heads of %d with %d taps: larger than hearth takes", (long long)qk, c->head_dim, c->cca.taps[1]);
}

/* A model whose layers are all dense has no experts, whatever its config says of them. */
static void drop_unused_experts(struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].moe) return;
    c->n_experts = c->topk = c->moe_latent = 0;
    c->expert_out_norm = c->routed_sum_norm = false;
}

int config_parse(struct config *c, const struct json *root, const char *what, bool force, struct error *e) {
    *c = (struct config){0};
    if (root->type != JSON_OBJECT) return error_set(e, ERR_MODEL, "%s: not a JSON object", what);
    struct config_reader r = {.root = root, .what = what, .e = e};
    if (root->n > CONFIG_MEMBERS_MOST) return error_set(e, ERR_MODEL, "%s: %u keys, more than a model's config has", what, root->n);
    const struct json *type = config_get(&r, "model_type");
    int rc;
    const struct json *classes = type ? NULL : json_get(root, "architectures");
    c->arch = type ? arch_find(type, root) : arch_find_class(classes);
    const char *member = c->arch ? c->arch->text_config_key : NULL, *why = NULL;
    if (!c->arch && type) c->is_part = (c->arch = arch_find_text(type, root, &member, &why)) != NULL;
    if (!c->arch) {
        static const char list[] = "hearth --version -v lists the architectures that it opens";
        const struct json *name = classes && classes->type == JSON_ARRAY && classes->n ? json_at(classes, 0) : NULL;
        if (name && name->type == JSON_STRING)
            return error_set(e, ERR_MODEL, "%s: 'model_type' is missing, and hearth does not support 'architectures' '%.*s'; %s", what,
                             (int)(name->n < 60 ? name->n : 60), name->string, list);
        if (!type || type->type != JSON_STRING) return error_set(e, ERR_MODEL, "%s: 'model_type' is missing; %s", what, list);
        const struct json *text = arch_text_type(root);
        return error_set(e, ERR_MODEL, "%s: hearth cannot open the architecture '%.*s'%s%.*s%s, which llama.cpp or vLLM may run%s%s; %s", what,
                         (int)(type->n < 60 ? type->n : 60), type->string, text ? " with '" : "", text ? (int)(text->n < 60 ? text->n : 60) : 0,
                         text ? text->string : "", text ? "'" : "", why ? ": " : "", why ? why : "", list);
    }
    c->names = &c->arch->names, c->layout = &c->arch->layout;
    r.key_aliases = c->arch->key_aliases;
    if (member && (rc = enter_text_config(&r, member))) return rc;
    if (c->is_part) type = json_get(r.root, "model_type");
    if (type) snprintf(c->model_type, sizeof c->model_type, "%.*s", (int)type->n, type->string);
    else snprintf(c->model_type, sizeof c->model_type, "%s", c->arch->model_types[0]);
    const struct config_defaults *d = &c->arch->defaults;
    c->vocab = config_int(&r, "vocab_size", d->vocab, 1, 1 << 22);
    c->hidden = config_int(&r, "hidden_size", d->hidden, 1, 65536);
    c->n_layers = config_int(&r, "num_hidden_layers", d->layers, 1, CONFIG_MAX_LAYERS);
    if (c->arch->sublayers > 1) c->n_layers *= c->arch->sublayers;
    if (c->n_layers > CONFIG_MAX_LAYERS) config_fail(&r, "%d layers; hearth takes up to %d", c->n_layers, CONFIG_MAX_LAYERS);
    c->max_context = config_int(&r, "max_position_embeddings", d->context, 1, 1 << 24);
    c->norm_eps = (float)config_num(&r, "rms_norm_eps", c->arch->norm_eps > 0 ? c->arch->norm_eps : 1e-6, 0, 1);
    c->tied = config_bool(&r, "tie_word_embeddings", d->tied);
    if (c->is_part) c->tied = json_bool(json_get(r.outer, "tie_word_embeddings"), c->tied); /* the whole model's key decides */
    c->n_mtp = config_int(&r, "num_nextn_predict_layers", 0, 0, 16);
    if (r.outer) config_get(&r, "model_type"); /* the text model's own type adds nothing */
    read_activation(&r, c);
    quantization_read(&r, c);
    if (!r.rc) read_tokens(&r, c);
    if (!r.rc) c->arch->parse(&r, c);
    if (!r.rc) check_products(&r, c);
    if (!r.rc && c->topk > c->n_experts) config_fail(&r, "%d experts a token of %d", c->topk, c->n_experts);
    if (!r.rc && c->topk > 64) config_fail(&r, "%d experts a token; hearth takes up to 64", c->topk);
    if (!r.rc && c->n_group > 1) {
        if (c->n_experts % c->n_group) config_fail(&r, "%d experts do not divide into %d groups", c->n_experts, c->n_group);
        else if (c->topk_group < 1 || c->topk_group > c->n_group) config_fail(&r, "'topk_group' is %d of %d groups", c->topk_group, c->n_group);
        else if (c->topk > c->n_experts / c->n_group * c->topk_group)
            config_fail(&r, "%d experts a token out of %d groups of %d", c->topk, c->topk_group, c->n_experts / c->n_group);
    }
    if (!r.rc) drop_unused_experts(c);
    if (!r.rc) refuse_unknown(&r, r.root, r.seen, c, force);
    if (!r.rc && !c->is_part) refuse_unknown(&r, r.outer, r.outer_seen, c, force); /* else those are of images or sound */
    return r.rc;
}
