#include "engine/model/gguf_layers.h"

#include <string.h>

int64_t gguf_layers_at(const struct config_builder *t, const char *key, int64_t layer, int64_t default_value) {
    const struct json *v = gguf_build_meta(t, key);
    if (v && v->type == JSON_ARRAY) v = layer < v->n ? json_at(v, (uint32_t)layer) : NULL;
    return !v ? default_value : v->type == JSON_BOOL ? v->boolean : json_int(v, default_value);
}
int64_t gguf_layers_largest(const struct config_builder *t, const char *key, const char *pattern, int64_t kind) {
    int64_t largest = 0;
    for (int64_t i = 0, n = gguf_build_layers(t); i < n; i++)
        if (!pattern || (gguf_layers_at(t, pattern, i, 0) != 0) == kind)
            largest = gguf_layers_at(t, key, i, 0) > largest ? gguf_layers_at(t, key, i, 0) : largest;
    return largest;
}
bool gguf_layers_has(const struct config_builder *t, int64_t layer, enum gguf_part part) {
    return layer < CONFIG_MAX_LAYERS && t->facts->layer[layer] & part;
}

uint32_t gguf_layers_count(struct config_builder *t) {
    const int64_t n = gguf_build_layers(t);
    if (n >= 1 && n <= CONFIG_MAX_LAYERS) return (uint32_t)n;
    gguf_build_fail(t, "metadata '%s.block_count' gives %lld layers; hearth takes 1 to %d", t->arch, (long long)n,
                    CONFIG_MAX_LAYERS);
    return 0;
}
void gguf_layers_kinds(struct config_builder *t, const char *key,
                       const char *(*kind)(const struct config_builder *t, int64_t layer)) {
    const uint32_t n = gguf_layers_count(t);
    struct json *v = gguf_build_list(t, key, n);
    for (uint32_t i = 0; v && i < n; i++) {
        const char *name = kind(t, i);
        v[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
}
void gguf_layers_numbers(struct config_builder *t, const char *key,
                         double (*number)(const struct config_builder *t, int64_t layer)) {
    const uint32_t n = gguf_layers_count(t);
    struct json *v = gguf_build_list(t, key, n);
    for (uint32_t i = 0; v && i < n; i++) {
        const double x = number(t, i);
        v[i] = x == (double)(int64_t)x ? (struct json){.type = JSON_INT, .integer = (int64_t)x}
                                       : (struct json){.type = JSON_FLOAT, .number = x};
    }
}

const char *gguf_layers_window_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, GGUF_WINDOWS, layer, 0) ? "sliding_attention" : "full_attention";
}
/* Whether a layer has a window: a list by layer, or a period whose last or first layer has none. */
static bool has_window(const struct config_builder *t, int64_t layer, int64_t every, bool full_first) {
    const struct json *v = gguf_build_meta(t, GGUF_WINDOWS);
    if (v && v->type == JSON_ARRAY) return gguf_layers_at(t, GGUF_WINDOWS, layer, 0);
    every = json_int(v, every);
    return every <= 0 || (full_first ? layer % every != 0 : layer % every < every - 1);
}
void gguf_layers_windows(struct config_builder *t, int64_t every, bool full_first) {
    const uint32_t n = gguf_layers_count(t);
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    const bool any = json_int(window, 0) > 0;
    if (any) gguf_build_json(t, "sliding_window", *window);
    struct json *v = gguf_build_list(t, "layer_types", n);
    for (uint32_t i = 0; v && i < n; i++) {
        const char *name = any && has_window(t, i, every, full_first) ? "sliding_attention" : "full_attention";
        v[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
}

double gguf_layers_has_router(const struct config_builder *t, int64_t layer) {
    return gguf_layers_has(t, layer, GGUF_HAS_ROUTER);
}
const char *gguf_layers_index_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_at(t, "attention.indexer.types", layer, 1) ? "full" : "shared";
}

void gguf_layers_limit(struct config_builder *t) {
    const struct json *routed = gguf_build_meta(t, "swiglu_clamp_exp"),
                      *shared = gguf_build_meta(t, "swiglu_clamp_shexp");
    const struct json none = {.type = JSON_INT},
                      routed_limit = routed ? gguf_build_uniform(t, "swiglu_clamp_exp", routed) : none,
                      shared_limit = shared ? gguf_build_uniform(t, "swiglu_clamp_shexp", shared) : routed_limit;
    gguf_build_json(t, "swiglu_limit", routed_limit);
    if (json_num(&routed_limit, 0) != json_num(&shared_limit, 0))
        gguf_build_fail(t,
                        "metadata '%s.swiglu_clamp_shexp' differs from 'swiglu_clamp_exp'; hearth supports one limit "
                        "for this family",
                        t->arch);
}
