/* Values of GGUF metadata and facts of tensors by layer, as lists of config.json. */
#include <string.h>

#include "engine/model/gguf_build.h"

int64_t gguf_build_at(const struct config_builder *t, const char *key, int64_t layer, int64_t none) {
    const struct json *v = gguf_build_meta(t, key);
    if (v && v->type == JSON_ARRAY) v = layer < v->n ? json_at(v, (uint32_t)layer) : NULL;
    return !v ? none : v->type == JSON_BOOL ? v->boolean : json_int(v, none);
}
int64_t gguf_build_largest(const struct config_builder *t, const char *key, const char *pattern, int64_t kind) {
    int64_t most = 0;
    for (int64_t i = 0, n = gguf_build_layers(t); i < n; i++)
        if (!pattern || (gguf_build_at(t, pattern, i, 0) != 0) == kind) most = gguf_build_at(t, key, i, 0) > most ? gguf_build_at(t, key, i, 0) : most;
    return most;
}
bool gguf_build_has(const struct config_builder *t, int64_t layer, enum gguf_part part) { return layer < CONFIG_MAX_LAYERS && t->facts->layer[layer] & part; }

uint32_t gguf_build_count(struct config_builder *t) {
    const int64_t n = gguf_build_layers(t);
    if (n >= 1 && n <= CONFIG_MAX_LAYERS) return (uint32_t)n;
    gguf_build_fail(t, "metadata '%s.block_count' gives %lld layers; hearth takes 1 to %d", t->arch, (long long)n, CONFIG_MAX_LAYERS);
    return 0;
}
void gguf_build_kinds(struct config_builder *t, const char *key, const char *(*kind)(const struct config_builder *t, int64_t layer)) {
    const uint32_t n = gguf_build_count(t);
    struct json *v = gguf_build_list(t, key, n);
    for (uint32_t i = 0; v && i < n; i++) {
        const char *name = kind(t, i);
        v[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
}
void gguf_build_numbers(struct config_builder *t, const char *key, double (*number)(const struct config_builder *t, int64_t layer)) {
    const uint32_t n = gguf_build_count(t);
    struct json *v = gguf_build_list(t, key, n);
    for (uint32_t i = 0; v && i < n; i++) {
        const double x = number(t, i);
        v[i] = x == (double)(int64_t)x ? (struct json){.type = JSON_INT, .integer = (int64_t)x} : (struct json){.type = JSON_FLOAT, .number = x};
    }
}

const char *gguf_build_window_kind(const struct config_builder *t, int64_t layer) {
    return gguf_build_at(t, GGUF_WINDOWS, layer, 0) ? "sliding_attention" : "full_attention";
}
void gguf_build_only_sigmoid(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), 2);
    if (gating != 2 && gating != 0) gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth knows 2, sigmoid", t->arch, (long long)gating);
}

/* Whether a layer has a window: a list by layer, or a period whose last or first layer has none. */
static bool slides(const struct config_builder *t, int64_t layer, int64_t every, bool full_first) {
    const struct json *v = gguf_build_meta(t, GGUF_WINDOWS);
    if (v && v->type == JSON_ARRAY) return gguf_build_at(t, GGUF_WINDOWS, layer, 0);
    every = json_int(v, every);
    return every <= 0 || (full_first ? layer % every != 0 : layer % every < every - 1);
}
void gguf_build_windows(struct config_builder *t, int64_t every, bool full_first) {
    const uint32_t n = gguf_build_count(t);
    const bool any = json_int(gguf_build_meta(t, "attention.sliding_window"), 0) > 0;
    struct json *v = gguf_build_list(t, "layer_types", n);
    for (uint32_t i = 0; v && i < n; i++) {
        const char *name = any && slides(t, i, every, full_first) ? "sliding_attention" : "full_attention";
        v[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
}

void gguf_build_rotation(struct config_builder *t, const char *key, struct gguf_factors f, int64_t n, const char *theta) {
    struct config_builder in;
    const struct json *base = gguf_build_meta(t, theta);
    if (!gguf_build_open(t, &in)) return;
    if (f.v && n >= 0 && f.n > n) f.n = (uint32_t)n;
    gguf_build_text(&in, "rope_type", f.v ? "factors" : "default");
    gguf_build_factors(&in, "factors", "rope_freqs.weight", f);
    if (base) gguf_build_json(&in, "rope_theta", *base);
    gguf_build_close(t, &in, key);
}

double gguf_build_has_router(const struct config_builder *t, int64_t layer) { return gguf_build_has(t, layer, GGUF_HAS_ROUTER); }
const char *gguf_build_index_kind(const struct config_builder *t, int64_t layer) {
    return gguf_build_at(t, "attention.indexer.types", layer, 1) ? "full" : "shared";
}
