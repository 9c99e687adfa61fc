#include "engine/model/gguf_build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct json *gguf_build_meta(const struct config_builder *t, const char *key) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", t->arch, key);
    return json_get(t->meta, name);
}

int gguf_build_fail(struct config_builder *t, const char *fmt, ...) {
    char text[400];
    va_list ap;
    if (t->rc) return t->rc;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return t->rc = error_set(t->e, ERR_MODEL, "%s: %s", t->what, text);
}

void gguf_build_member(struct config_builder *t, const char *key, size_t n, struct json v) {
    uint32_t i = 0;
    if (t->rc) return;
    while (i < t->n && (t->items[2 * i].n != n || memcmp(t->items[2 * i].string, key, n))) i++;
    if (i == t->capacity) {
        gguf_build_fail(t, "more metadata of '%s' than a model's config has", t->arch);
        return;
    }
    t->items[2 * i] = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = key};
    t->items[2 * i + 1] = v;
    t->n += i == t->n;
}
void gguf_build_json(struct config_builder *t, const char *key, struct json v) {
    gguf_build_member(t, key, strlen(key), v);
}
void gguf_build_int(struct config_builder *t, const char *key, int64_t v) {
    gguf_build_json(t, key, (struct json){.type = JSON_INT, .integer = v});
}
void gguf_build_num(struct config_builder *t, const char *key, double v) {
    gguf_build_json(t, key, (struct json){.type = JSON_FLOAT, .number = v});
}
void gguf_build_bool(struct config_builder *t, const char *key, bool v) {
    gguf_build_json(t, key, (struct json){.type = JSON_BOOL, .boolean = v});
}
void gguf_build_text(struct config_builder *t, const char *key, const char *v) {
    gguf_build_json(t, key, (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(v), .string = v});
}

struct json gguf_build_uniform(struct config_builder *t, const char *key, const struct json *v) {
    if (v->type != JSON_ARRAY || !v->n) return *v;
    for (uint32_t i = 1; i < v->n && !t->rc; i++)
        if (v->items[i].type != v->items[0].type || json_num(&v->items[i], 0) != json_num(&v->items[0], 0))
            gguf_build_fail(
                t, "metadata '%s.%s' differs from layer to layer, which hearth does not support of this family",
                t->arch, key);
    return v->items[0];
}

int64_t gguf_build_layers(const struct config_builder *t) {
    int64_t n;
    return __builtin_sub_overflow(json_int(gguf_build_meta(t, "block_count"), 0),
                                  json_int(gguf_build_meta(t, "nextn_predict_layers"), 0), &n)
               ? 0
               : n;
}
int64_t gguf_build_head_dim(const struct config_builder *t) {
    const struct json *key = gguf_build_meta(t, "attention.key_length");
    int64_t heads = json_int(gguf_build_meta(t, "attention.head_count"), 0);
    return key ? json_int(key, 0) : heads > 0 ? json_int(gguf_build_meta(t, "embedding_length"), 0) / heads : 0;
}

bool gguf_build_open(struct config_builder *t, struct config_builder *in) {
    enum { MEMBERS = 16 };
    *in = *t;
    in->n = 0, in->capacity = MEMBERS;
    if ((in->items = arena_alloc(t->arena, 2 * MEMBERS * sizeof *in->items))) return true;
    t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    return false;
}
void gguf_build_close(struct config_builder *t, const struct config_builder *in, const char *key) {
    if (!t->rc) t->rc = in->rc; /* a failure of the outer object stays */
    gguf_build_json(t, key, (struct json){.type = JSON_OBJECT, .n = in->n, .items = in->items});
}
struct json *gguf_build_list(struct config_builder *t, const char *key, uint32_t n) {
    struct json *v = arena_alloc(t->arena, ((size_t)n + 1) * sizeof *v);
    if (!v && !t->rc) t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    gguf_build_json(t, key, (struct json){.type = JSON_ARRAY, .n = v ? n : 0, .items = v});
    return v;
}
void gguf_build_factors(struct config_builder *t, const char *key, const char *tensor, struct gguf_factors f) {
    struct json *v = f.v ? gguf_build_list(t, key, f.n) : NULL;
    for (uint32_t i = 0; v && i < f.n; i++) {
        if (!(f.v[i] > 0))
            gguf_build_fail(t, "%s has %g at %u: frequencies are divided by it; hearth takes more than 0", tensor,
                            (double)f.v[i], i);
        v[i] = (struct json){.type = JSON_FLOAT, .number = (double)f.v[i]};
    }
}

/* Returns the factor of linear scaling, 1: none. A factor without a type is linear, as in llama.cpp; rope.scale_linear
 * is the factor's name in old files. */
static double linear_factor(const struct config_builder *t) {
    const struct json *type = gguf_build_meta(t, "rope.scaling.type"), *now = gguf_build_meta(t, "rope.scaling.factor"),
                      *old = gguf_build_meta(t, "rope.scale_linear");
    const double factor = json_num(now ? now : old, 0);
    const bool is_linear = type ? json_is(type, "linear") : !t->facts->short_factors.v && !t->facts->long_factors.v;
    return is_linear && factor != 0 ? factor : 1;
}
/* Whether metadata or tensors say more of the rotation than its base. */
static bool is_scaled(const struct config_builder *t) {
    const struct json *type = gguf_build_meta(t, "rope.scaling.type");
    const struct gguf_facts *f = t->facts;
    return (type && !json_is(type, "none")) || f->freqs.v || f->short_factors.v || f->long_factors.v ||
           linear_factor(t) != 1;
}
/* Divides by linear scaling, too, which applies beside the factors of single frequencies. */
static void put_factors(struct config_builder *in, struct gguf_factors f, double linear) {
    float *v = f.v ? arena_alloc(in->arena, ((size_t)f.n + 1) * sizeof *v) : NULL;
    if (f.v && !v && !in->rc) in->rc = error_set(in->e, ERR_MEMORY, "%s: no memory for its metadata", in->what);
    for (uint32_t i = 0; v && i < f.n; i++) v[i] = f.v[i] * (float)linear;
    gguf_build_factors(in, "factors", "rope_freqs.weight", (struct gguf_factors){v, f.n});
}
static void put_scaling(struct config_builder *t, struct config_builder *in) {
    static const struct gguf_key rows[] = {
        {"rope.scaling.factor", "factor"},
        {"rope.scaling.original_context_length", "original_max_position_embeddings"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
        {"rope.scaling.attn_factor", "attention_factor"},
        {"rope.scaling.yarn_attn_factor", "attention_factor"},
        {"attention.temperature_scale", "llama_4_scaling_beta"},
    };
    const struct gguf_facts *f = t->facts;
    const struct json *type = gguf_build_meta(t, "rope.scaling.type"),
                      *log = gguf_build_meta(t, "rope.scaling.yarn_log_multiplier");
    const bool plain = !type || json_is(type, "none"), longrope = f->short_factors.v || f->long_factors.v;
    const double linear = linear_factor(t);
    if ((f->freqs.v || longrope) && !plain && !json_is(type, longrope ? "longrope" : "linear"))
        gguf_build_fail(t,
                        "factors of rotary frequencies (%s) beside metadata '%s.rope.scaling.type' %.*s: hearth takes "
                        "one of them",
                        longrope ? "rope_factors_long.weight" : "rope_freqs.weight", t->arch,
                        type->type == JSON_STRING ? (int)(type->n < 40 ? type->n : 40) : 1,
                        type->type == JSON_STRING ? type->string : "?");
    if (longrope) gguf_build_text(in, "rope_type", "longrope");
    else if (f->freqs.v) gguf_build_text(in, "rope_type", "factors");
    else if (linear != 1) gguf_build_text(in, "rope_type", "linear");
    else if (plain) gguf_build_text(in, "rope_type", "default");
    else gguf_build_json(in, "rope_type", *type);
    put_factors(in, f->freqs, linear);
    gguf_build_factors(in, "short_factor", "rope_factors_short.weight", f->short_factors);
    gguf_build_factors(in, "long_factor", "rope_factors_long.weight", f->long_factors);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct json *v = gguf_build_meta(t, rows[i].key);
        if (v) gguf_build_json(in, rows[i].name, *v);
    }
    if (linear != 1) gguf_build_num(in, "factor", linear);
    /* DeepSeek's two factors are equal, or the other one is not stored. Others use only their ratio: a tenth is right
     * for Mistral's, too. */
    if (log) {
        const double factor = json_num(log, 0) * 10; /* llama.cpp: TAG_DEEPSEEK2_YARN_LOG_MUL_FIX */
        gguf_build_num(in, "mscale", factor);
        gguf_build_num(in, "mscale_all_dim", factor);
    }
}

/* The fraction of dim that rotates, so that dim * fraction rounds down to count. */
static void put_fraction(struct config_builder *t, int64_t count, int64_t dim) {
    if (dim > 0 && count != dim) gguf_build_num(t, "partial_rotary_factor", ((double)count + 0.25) / (double)dim);
}

void gguf_build_rope(struct config_builder *t, int64_t dim) {
    const struct json *count = gguf_build_meta(t, "rope.dimension_count"),
                      *length = gguf_build_meta(t, "attention.temperature_length");
    if (count) put_fraction(t, json_int(count, 0), dim);
    if (length && gguf_build_meta(t, "attention.temperature_scale") &&
        json_int(length, 0) != json_int(gguf_build_meta(t, "rope.scaling.original_context_length"), 0))
        gguf_build_fail(t,
                        "metadata '%s.attention.temperature_length' is not that of "
                        "'rope.scaling.original_context_length', which hearth scales queries by",
                        t->arch);
    const bool implies_yarn = !strcmp(t->arch, "gpt-oss"), scales = is_scaled(t) || implies_yarn;
    const struct json *sections = gguf_build_meta(t, "rope.dimension_sections");
    if (sections && (sections->type != JSON_ARRAY || sections->n < 3)) sections = NULL;
    struct config_builder in;
    if ((!scales && !sections) || !gguf_build_open(t, &in)) return;
    if (sections)
        gguf_build_json(&in, "mrope_section", (struct json){.type = JSON_ARRAY, .n = 3, .items = sections->items});
    if (scales) put_scaling(t, &in);
    if (implies_yarn) gguf_build_bool(&in, "truncate", false); /* the vendor's value; GGUF has no key for it */
    gguf_build_close(t, &in, "rope_scaling");
}

void gguf_build_rope_by_window(struct config_builder *t) {
    const int64_t dim = gguf_build_head_dim(t), rotated = json_int(gguf_build_meta(t, "rope.dimension_count"), dim),
                  window_rotated = json_int(gguf_build_meta(t, "rope.dimension_count_swa"), rotated);
    const struct json *theta = gguf_build_meta(t, "rope.freq_base"),
                      *window_theta = gguf_build_meta(t, "rope.freq_base_swa");
    struct config_builder in, kind;
    if (!gguf_build_open(t, &in) || !gguf_build_open(&in, &kind)) return;
    put_scaling(t, &kind);
    if (theta) gguf_build_json(&kind, "rope_theta", *theta);
    put_fraction(&kind, rotated, dim);
    gguf_build_close(&in, &kind, "full_attention");
    if (!gguf_build_open(&in, &kind)) return;
    if (window_theta || theta) gguf_build_json(&kind, "rope_theta", window_theta ? *window_theta : *theta);
    put_fraction(&kind, window_rotated, dim);
    gguf_build_close(&in, &kind, "sliding_attention");
    gguf_build_close(t, &in, "rope_parameters");
}

void gguf_build_head_sizes(struct config_builder *t) {
    const struct json *key = gguf_build_meta(t, "attention.key_length"),
                      *value = gguf_build_meta(t, "attention.value_length");
    if (key) gguf_build_json(t, "head_dim", *key);
    if (value && json_int(value, 0) != gguf_build_head_dim(t))
        gguf_build_fail(
            t,
            "metadata '%s.attention.value_length' is %lld, keys have %lld: hearth does not support that of this family",
            t->arch, (long long)json_int(value, 0), (long long)gguf_build_head_dim(t));
}
void gguf_build_attention(struct config_builder *t) {
    gguf_build_head_sizes(t);
    gguf_build_rope(t, gguf_build_head_dim(t));
}

void gguf_build_rope_by_factors(struct config_builder *t, const char *key, struct gguf_factors f, int64_t n,
                                const char *theta) {
    struct config_builder in;
    const struct json *base = gguf_build_meta(t, theta);
    if (!gguf_build_open(t, &in)) return;
    if (f.v && n >= 0 && f.n > n) f.n = (uint32_t)n;
    gguf_build_text(&in, "rope_type", f.v ? "factors" : "default");
    gguf_build_factors(&in, "factors", "rope_freqs.weight", f);
    if (base) gguf_build_json(&in, "rope_theta", *base);
    gguf_build_close(t, &in, key);
}
void gguf_build_only_sigmoid(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID);
    if (gating != GATING_SIGMOID && gating != GATING_UNSET)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 2, sigmoid", t->arch,
                        (long long)gating);
}

/* Mistral Large 3, which llama.cpp's converter calls deepseek2: Mistral Small 4's family. Files from before the
 * converter had a tenth in the multiplier differ.
 */
static void check_mistral(struct config_builder *t, int64_t gating) {
    const double log = json_num(gguf_build_meta(t, "rope.scaling.yarn_log_multiplier"), 0);
    if (gating != GATING_SOFTMAX)
        gguf_build_fail(
            t,
            "metadata '%s.expert_gating_func' is %lld beside 'attention.temperature_scale'; hearth supports 1, softmax",
            t->arch, (long long)gating);
    if (!(fabs(log - 0.1) < 1e-6))
        gguf_build_fail(t,
                        "metadata '%s.rope.scaling.yarn_log_multiplier' is %g beside 'attention.temperature_scale'; "
                        "hearth supports 0.1",
                        t->arch, log);
}

const char *gguf_build_deepseek_family(const struct config_builder *t) {
    if (gguf_build_meta(t, "attention.temperature_scale")) return "mistral4";
    int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_UNSET);
    return gating == GATING_SIGMOID || t->facts->router_bias ? "deepseek_v3" : "deepseek_v2";
}

void gguf_build_mla(struct config_builder *t) {
    const struct json *mla = gguf_build_meta(t, "attention.key_length_mla"),
                      *key = mla ? mla : gguf_build_meta(t, "attention.key_length");
    const struct json *value =
        mla ? gguf_build_meta(t, "attention.value_length_mla") : gguf_build_meta(t, "attention.value_length");
    const int64_t rope = json_int(gguf_build_meta(t, "rope.dimension_count"), 0);
    /* the file's count is of the latent cache */
    gguf_build_int(t, "num_key_value_heads", json_int(gguf_build_meta(t, "attention.head_count"), 0));
    gguf_build_int(t, "qk_rope_head_dim", rope);
    gguf_build_int(t, "qk_nope_head_dim", json_int(key, 0) - rope);
    gguf_build_int(t, "v_head_dim", json_int(value, 0));
    gguf_build_bool(t, "split_kv_b", t->facts->split_kv_b);
    gguf_build_rope(t, 0);
}

void gguf_build_deepseek(struct config_builder *t) {
    static const char *const scores[] = {[GATING_SOFTMAX] = "softmax", [GATING_SIGMOID] = "sigmoid"};
    const bool v3 = !strcmp(gguf_build_deepseek_family(t), "deepseek_v3");
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), v3 ? GATING_SIGMOID : GATING_SOFTMAX);
    gguf_build_mla(t);
    if (!strcmp(gguf_build_deepseek_family(t), "mistral4")) {
        check_mistral(t, gating);
        return;
    }
    if (gating != GATING_SOFTMAX && gating != GATING_SIGMOID) {
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1 and 2", t->arch,
                        (long long)gating);
        return;
    }
    gguf_build_text(t, "scoring_func", scores[gating]);
    gguf_build_text(t, "topk_method",
                    v3                                                          ? "noaux_tc"
                    : json_int(gguf_build_meta(t, "expert_group_count"), 0) > 1 ? "group_limited_greedy"
                                                                                : "greedy");
}
