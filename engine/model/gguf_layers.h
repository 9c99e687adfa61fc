#pragma once
/* Values of GGUF metadata and facts of tensors by layer, as lists of config.json; internal to engine/model/gguf*.c.
 * Pure. */
#include "engine/model/gguf_build.h"

#define GGUF_WINDOWS "attention.sliding_window_pattern"
/* A number of a layer: an entry of a list, or the number that applies to all layers. Booleans count as 0 and 1.
 * default_value: if it is absent. */
int64_t gguf_layers_at(const struct config_builder *t, const char *key, int64_t layer, int64_t default_value);
/* The largest of these numbers among the layers whose `pattern` is `kind` (0 or 1); pattern NULL: among all layers. */
int64_t gguf_layers_largest(const struct config_builder *t, const char *key, const char *pattern, int64_t kind);
/* Whether the layer has these parts, which the tensors show. */
bool gguf_layers_has(const struct config_builder *t, int64_t layer, enum gguf_part part);
double gguf_layers_has_router(const struct config_builder *t, int64_t layer);
/* Checks the number of layers before lists of that length are made. */
uint32_t gguf_layers_count(struct config_builder *t);
/* List a name or a number per layer. */
void gguf_layers_kinds(struct config_builder *t, const char *key,
                       const char *(*kind)(const struct config_builder *t, int64_t layer));
void gguf_layers_numbers(struct config_builder *t, const char *key,
                         double (*number)(const struct config_builder *t, int64_t layer));
const char *gguf_layers_window_kind(const struct config_builder *t, int64_t layer);
/* Sets sliding_window, and layer_types from the window pattern; without one, of `every` layers the first
 * (full_first) or the last has no window. */
void gguf_layers_windows(struct config_builder *t, int64_t every, bool full_first);

/* "full": it has an indexer; "shared": it uses that of an earlier layer */
const char *gguf_layers_index_kind(const struct config_builder *t, int64_t layer);

/* Sets swiglu_limit: the limit of the activation in all layers, of all experts. 0: none */
void gguf_layers_limit(struct config_builder *t);

/* Keys that gguf_layers_windows() reads. */
#define GGUF_LAYER_WINDOW_KEYS \
    {"attention.sliding_window", NULL}, { GGUF_WINDOWS, NULL }

/* Hyper-connections of attention and FFN. */
#define GGUF_MIXES \
    .attn_mix = GGUF_LAYER "hc_attn_fn.weight", .attn_mix_base = GGUF_LAYER "hc_attn_base.weight", \
    .attn_mix_scale = GGUF_LAYER "hc_attn_scale.weight", .ffn_mix = GGUF_LAYER "hc_ffn_fn.weight", \
    .ffn_mix_base = GGUF_LAYER "hc_ffn_base.weight", .ffn_mix_scale = GGUF_LAYER "hc_ffn_scale.weight"
#define GGUF_INDEXER \
    .index_q = GGUF_LAYER "indexer.attn_q_b", .index_k = GGUF_LAYER "indexer.attn_k", \
    .index_k_norm = GGUF_LAYER "indexer.k_norm", .index_weights = GGUF_LAYER "indexer.proj"
#define GGUF_STREAM_KEYS \
    {"hyper_connection.count", "hc_mult"}, { "hyper_connection.epsilon", "hc_eps" }
#define GGUF_INDEXER_KEYS \
    {"attention.indexer.head_count", "index_n_heads"}, {"attention.indexer.key_length", "index_head_dim"}, { \
        "attention.indexer.top_k", "index_topk" \
    }
