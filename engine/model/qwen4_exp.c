/* Qwen3.8-Flash-Next (Qwen4-Exp): Qwen3.5-MoE's DeltaNet, attention and experts with gated residual streams instead of
 * norms, attention over selected blocks of keys, and embeddings of hashed n-grams before some layers. Reference:
 * transformers, models/qwen4_exp (language model only). */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"
#include "engine/model/ngram_hash.h"
#include "engine/model/qwen3_next.h"

static void read_indexer(struct config_reader *r, struct config *c) {
    if (!config_has(r, "indexer_n_heads")) return;
    c->index_heads = config_int(r, "indexer_n_heads", 0, 1, 1024);
    config_int(r, "indexer_kv_heads", 1, 1, 1);
    c->index_dim = config_int(r, "indexer_head_dim", 0, 2, 1024);
    c->index_block = config_int(r, "indexer_compress_ratio", 0, 1, 1 << 16);
    /* the budget counts tokens */
    c->index_topk = config_int(r, "indexer_budget", 0, 1, 1 << 24) / (c->index_block > 0 ? c->index_block : 1);
    if (!r->rc && c->index_topk < 1) config_fail(r, "'indexer_budget' has no room for a block of %d", c->index_block);
    if (!r->rc && c->rope.dim > c->index_dim)
        config_fail(r, "'indexer_head_dim' is %d, of which %d are to be rotated", c->index_dim, c->rope.dim);
}

static uint64_t splitmix64(uint64_t v) {
    v += 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9u;
    v = (v ^ v >> 27) * 0x94D049BB133111EBu;
    return v ^ v >> 31;
}

/* Derives the numbers of the nth embedding. Multipliers are odd numbers from the seed. */
static void derive_hashes(struct config_reader *r, struct ngram_config *g, int nth, int64_t base, int64_t pad,
                          int64_t seed, int vocab) {
    const uint64_t bound = INT64_MAX / (uint64_t)vocab / 2;
    for (int i = 0; i < g->size; i++)
        g->multiplier[i] =
            2 * (splitmix64((uint64_t)seed + 10007 * (uint64_t)nth + 0x9E3779B97F4A7C15u * (uint64_t)(i + 1)) %
                 (bound ? bound : 1)) +
            1;
    const int64_t rows = (ngram_hash_place(g, nth, base) + pad - 1) / pad * pad;
    if (rows > INT32_MAX)
        config_fail(r, "a table of n-grams of %lld rows; hearth takes up to %d", (long long)rows, INT32_MAX);
    else if (rows % g->parts) config_fail(r, "a table of n-grams of %lld rows in %d parts", (long long)rows, g->parts);
    g->rows = (int)rows;
}

/* GGUF only: numbers of the hashes, of which published checkpoints have tensors. */
static int64_t number_at(struct config_reader *r, const char *key, int i, int64_t least, int64_t most) {
    const struct json *list = config_get(r, key);
    const int64_t v =
        list && list->type == JSON_ARRAY && (uint32_t)i < list->n ? json_int(json_at(list, (uint32_t)i), -1) : -1;
    if (v >= least && v <= most) return v;
    config_fail(r, "'%s' has no number from %lld to %lld at %d", key, (long long)least, (long long)most, i);
    return least;
}
static void read_hashes(struct config_reader *r, struct ngram_config *g) {
    g->rows = config_int(r, "ple_rows", 0, 1, INT32_MAX);
    for (int i = 0; i < g->size; i++)
        g->multiplier[i] = (uint64_t)number_at(r, "ple_layer_multipliers", i, 1, INT64_MAX);
    for (int i = 0; i < config_ngram_hashes(g) && !r->rc; i++) {
        g->vocab[i] = (uint32_t)number_at(r, "ple_head_vocab_sizes", i, 1, g->rows);
        g->offset[i] = (uint32_t)number_at(r, "ple_head_offsets", i, 0, g->rows - (int64_t)g->vocab[i]);
    }
}

static void read_ngrams(struct config_reader *r, struct config *c) {
    const struct json *layers = config_get(r, "ple_layer_ids"); /* counted from 1 */
    const struct ngram_config common = {.size = config_int(r, "ngram_size", 3, 2, NGRAM_MOST),
                                        .per = config_int(r, "heads_per_ngram", 8, 1, NGRAM_HASHES_MOST),
                                        .dim = config_int(r, "ple_embed_dim", c->hidden, 1, 1 << 20),
                                        .taps = config_int(r, "ple_conv_kernel_size", 4, 2, 8),
                                        .parts = config_int(r, "split_ngram_parts", 512, 1, 1 << 16)};
    const int base = config_int(r, "ngram_vocab_size_base", 20000000, 2, 1 << 28),
              pad = config_int(r, "make_ngram_vocab_size_divisible_by", 128, 1, 1 << 20),
              seed = config_int(r, "seed", 1234, 0, INT32_MAX), hashes = config_ngram_hashes(&common);
    if (!layers || r->rc) return;
    if (layers->type != JSON_ARRAY || layers->n > CONFIG_NGRAMS_MOST)
        config_fail(r, "'ple_layer_ids' is not a list of up to %d layers", CONFIG_NGRAMS_MOST);
    else if (hashes > NGRAM_HASHES_MOST)
        config_fail(r, "%d hashes of n-grams; hearth takes up to %d", hashes, NGRAM_HASHES_MOST);
    else if (common.dim % hashes)
        config_fail(r, "'ple_embed_dim' %d does not divide among %d hashes", common.dim, hashes);
    for (uint32_t i = 0; i < layers->n && !r->rc; i++) {
        const int64_t k = json_int(json_at(layers, i), -1);
        if (k < 1 || k > c->n_layers)
            config_fail(r, "'ple_layer_ids' names layer %lld of %d", (long long)k, c->n_layers);
        else c->layer[k - 1].ngram = 1;
    }
    for (int i = 0, nth = 0; i < c->n_layers && !r->rc; i++) { /* in the order of layers */
        if (!c->layer[i].ngram) continue;
        c->ngram[nth] = common;
        if (config_has(r, "ple_layer_multipliers")) read_hashes(r, &c->ngram[nth]);
        else derive_hashes(r, &c->ngram[nth], nth, base, pad, seed, c->vocab);
        c->layer[i].ngram = (uint8_t)++nth;
    }
    /* GGUF only */
    if (config_has(r, "ple_eos_token_id")) c->ngram_end = config_int(r, "ple_eos_token_id", 0, 0, INT32_MAX);
    else if (c->n_eos) c->ngram_end = c->eos[0];
    else config_fail(r, "'eos_token_id' is missing: n-grams end at it");
}

/* Returns the name that layer_types has for layers with attention; published configs and those of transformers
 * differ. */
static const char *attention_name(struct config_reader *r) {
    const struct json *types = config_get(r, "layer_types");
    for (uint32_t i = 0; types && types->type == JSON_ARRAY && i < types->n; i++)
        if (json_is(json_at(types, i), "indexed_attention")) return "indexed_attention";
    return "full_attention";
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const gates[] = {"silu", "sigmoid", NULL};
    c->rope.default_section[0] = 11, c->rope.default_section[1] = 10;
    config_skip_vision(r, c);
    config_ignore(r, "number_of_conv_states"); /* sizes the cache of transformers */
    qwen3_next_parse(r, c, attention_name(r));
    c->delta.sigmoid_gate = config_choice(r, "output_gate_type", gates, 0);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->streams = (struct residual_streams){.n = config_int(r, "hc_count", 4, 2, STREAMS_MOST),
                                           .rank = config_int(r, "hc_lowrank", 320, 1, 1 << 16),
                                           .is_gated = true};
    read_indexer(r, c);
    read_ngrams(r, c);
}

/* m: prefix of the language model's tensor names; field: attn, ffn or head; p: prefix of the names */
#define GATED(field, p) \
    .field##_gated_norm = p "hc_norm", .field##_gated_down = p "input_mix_weight_down", \
    .field##_gated_up = p "input_mix_weight_up"
#define LAYER(m) m "layers.%d."
#define NAMES(m) \
    QWEN3_NEXT_NAMES(m), GATED(attn, LAYER(m) "attn_hyper_connection."), \
        .attn_gated_inject = LAYER(m) "attn_hyper_connection.block_inject_weight", \
        GATED(ffn, LAYER(m) "mlp_hyper_connection."), \
        .ffn_gated_inject = LAYER(m) "mlp_hyper_connection.block_inject_weight", \
        GATED(head, m "hyper_connection_mixer."), \
        .ngram_table = LAYER(m) "ple.ple_embedding.ngram_embedding.shard_%d", .ngram_key = LAYER(m) "ple.key_proj", \
        .ngram_value = LAYER(m) "ple.value_proj", .ngram_key_norm = LAYER(m) "ple.norm_key", \
        .ngram_query_norm = LAYER(m) "ple.norm_query", .ngram_conv_norm = LAYER(m) "ple.norm_conv", \
        .ngram_conv = LAYER(m) "ple.conv1d", .index_qk = LAYER(m) "self_attn.indexer.index_qk_proj", \
        .index_q_norm = LAYER(m) "self_attn.indexer.q_layernorm", \
        .index_k_norm = LAYER(m) "self_attn.indexer.k_layernorm"
/* The numbers of the hashes, which derive_hashes() derives as the reference does: multipliers, vocabularies,
 * offsets. */
#define NUMBERS(m) \
    LAYER(m) \
    "ple.ple_embedding.layer_multipliers", LAYER(m) "ple.ple_embedding.ngram_heads_vocab_sizes", \
        LAYER(m) "ple.ple_embedding.ngram_heads_offsets"

static const char *const types[] = {"qwen4_exp", NULL}, *const text[] = {"qwen4_exp_text", NULL};
static const char *const numbers[] = {NUMBERS("model.language_model.")}, *const text_numbers[] = {NUMBERS("model.")};
#define ARCH(types_, member, m, numbers_, experts, ...) \
    { \
        .model_types = types_, .title = "Qwen4-Exp", .defaults = {.kv_heads = 2, .topk = 10}, \
        .text_config_key = member, .parse = parse, .names = {NAMES(m), experts(m)}, .ngram_numbers = numbers_, \
        __VA_ARGS__ \
    }
#define STACKED_OR_APART(name, ...) \
    static const struct arch name##_apart = ARCH(__VA_ARGS__, NAMES_EXPERTS, .layout = {0}); \
    const struct arch name = ARCH(__VA_ARGS__, NAMES_STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED}, \
                                  .unstacked = &name##_apart)
STACKED_OR_APART(arch_qwen4_exp, types, "text_config", "model.language_model.", numbers);
STACKED_OR_APART(arch_qwen4_exp_text, text, NULL, "model.", text_numbers);
