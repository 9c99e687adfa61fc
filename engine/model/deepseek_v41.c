/* DeepSeek-V4.1: V4's window and multi-token keys, of one or two tokens each, made by a few layers for those after
 * them; an indexer per few layers, the later ones among the keys of blocks that an earlier one selected; residual
 * streams whose mix gives the weights of the next block's input; embeddings of hashed n-grams ("engram"). Keys are
 * rounded to FP8 and FP4 as in training. Sources: the vendor's inference code; SGLang and vLLM, models/deepseek_v41;
 * mlx-lm, models/deepseek_v41 (without n-grams). The prediction layers ("dspark") and images are not computed. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/ngram_hash.h"

/* Marks the layers in a list of layers in rising order. */
static void read_layers(struct config_reader *r, const struct config *c, const char *key,
                        bool marks[CONFIG_MAX_LAYERS]) {
    const struct json *list = config_get(r, key);
    int64_t previous = -1;
    if (!list || list->type != JSON_ARRAY) config_fail(r, "'%s' is not a list of layers", key);
    for (uint32_t i = 0; !r->rc && i < list->n; i++) {
        const int64_t k = json_int(json_at(list, i), -1);
        if (k <= previous || k >= c->n_layers)
            config_fail(r, "'%s' is not a rising list of layers below %d", key, c->n_layers);
        else marks[k] = true, previous = k;
    }
}

static void read_ratios(struct config_reader *r, struct config *c) {
    const struct json *list = config_get(r, "compress_ratios"); /* also of the prediction layers */
    if (!list || list->type != JSON_ARRAY || (int)list->n < c->n_layers)
        config_fail(r, "'compress_ratios' is not a list of %d layers", c->n_layers);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const int64_t ratio = json_int(json_at(list, (uint32_t)i), -1);
        if (ratio < 0 || ratio > 1 << 16) config_fail(r, "'compress_ratios' has no number of tokens for layer %d", i);
        else c->layer[i].ratio = (int)ratio;
    }
}

/* Reads which layers make multi-token keys, and which have an indexer. Others use those of the last layer that does. */
static void read_sources(struct config_reader *r, struct config *c) {
    bool makes_keys[CONFIG_MAX_LAYERS] = {false}, selects[CONFIG_MAX_LAYERS] = {false};
    read_ratios(r, c);
    read_layers(r, c, "kv_source_layer_ids", makes_keys);
    read_layers(r, c, "index_source_layer_ids", selects);
    for (int i = 0, source = -1; i < c->n_layers && !r->rc; i++) {
        struct layer_config *y = &c->layer[i];
        if (makes_keys[i]) source = i;
        if ((makes_keys[i] || selects[i]) && !y->ratio)
            config_fail(r, "layer %d has a source of keys or an indexer, but 'compress_ratios' 0", i);
        else if (makes_keys[i] && !selects[i])
            config_fail(r, "layer %d is in 'kv_source_layer_ids', but not in 'index_source_layer_ids'", i);
        else if (y->ratio && source < 0)
            config_fail(r, "layer %d has 'compress_ratios' %d, but no layer up to it is in 'kv_source_layer_ids'", i,
                        y->ratio);
        else if (y->ratio && y->ratio != c->layer[source].ratio)
            config_fail(r, "layer %d has 'compress_ratios' %d, its source of keys, layer %d, %d", i, y->ratio, source,
                        c->layer[source].ratio);
        if (r->rc || !y->ratio) continue;
        y->passes_kv = makes_keys[i] ? KV_PASSED : KV_TAKEN, y->kv_source = source;
        y->index = selects[i] ? INDEX_OWN : INDEX_PREVIOUS;
    }
    c->index_from_entries = c->rounds_keys = true;
    c->carried = c->head_dim + c->index_dim;
}

/* Reads which indexer also selects blocks of keys, to which later ones are limited. */
static void read_candidates(struct config_reader *r, struct config *c) {
    const int at = config_int(r, "candidate_source_layer_id", -1, -1, c->n_layers - 1),
              blocks = config_int(r, "candidate_topk_blocks", 0, 0, 1 << 20),
              keys = config_int(r, "candidate_block_size", 0, 0, 1 << 16);
    if (r->rc || at < 0 || !blocks) return;
    const struct layer_config *source = &c->layer[at];
    if (!source->ratio || source->index != INDEX_OWN)
        config_fail(r, "'candidate_source_layer_id' is %d, which is not in 'index_source_layer_ids'", at);
    else if (keys < 1 || (int64_t)(blocks - 1) * keys < c->index_topk)
        config_fail(r,
                    "%d blocks of %d keys ('candidate_topk_blocks', 'candidate_block_size') are too few to select %d "
                    "keys from ('index_topk')",
                    blocks, keys, c->index_topk);
    c->candidate_blocks = blocks - 1, c->candidate_keys = keys; /* the latest block is always among them */
    for (int i = at + 1; i < c->n_layers && !r->rc; i++) {
        struct layer_config *y = &c->layer[i];
        if (!y->ratio || y->index != INDEX_OWN) continue;
        if (y->kv_source != source->kv_source)
            config_fail(r, "layer %d selects among blocks of layer %d, whose keys are not its own", i, at);
        c->layer[at].lists_blocks = y->limits_keys = true;
    }
}

static void read_engrams(struct config_reader *r, struct config *c) {
    const struct json *rows = config_get(r, "engram_num_embeddings");
    bool has[CONFIG_MAX_LAYERS] = {false};
    const int per = config_int(r, "engram_n_heads", 8, 1, NGRAM_HASHES_MOST),
              size = config_int(r, "engram_max_ngram_size", 4, 2, NGRAM_MOST),
              dim = config_int(r, "engram_head_dim", 256, 1, 1 << 16),
              base = config_int(r, "engram_vocab_size", 16000000, 2, 1 << 28);
    const struct ngram_config common = {.size = size, .per = per, .dim = (size - 1) * per * dim, .taps = 1, .parts = 1};
    c->ngram_end = config_int(r, "engram_pad_token_id", 2, 0, c->vocab - 1);
    const int numbers = config_int(r, "engram_compressed_vocab_size", 0, 0, 1 << 24);
    if (!config_has(r, "engram_layer_ids") || r->rc) return;
    read_layers(r, c, "engram_layer_ids", has);
    if (!r->rc && config_ngram_hashes(&common) > NGRAM_HASHES_MOST)
        config_fail(r, "%d hashes of n-grams; hearth takes up to %d", config_ngram_hashes(&common), NGRAM_HASHES_MOST);
    for (int i = 0, nth = 0; i < c->n_layers && !r->rc; i++) {
        if (!has[i]) continue;
        struct ngram_config *g = &c->ngram[nth];
        const int64_t n = rows && rows->type == JSON_ARRAY ? json_int(json_at(rows, (uint32_t)nth), -1) : -1;
        if (nth == CONFIG_NGRAMS_MOST) config_fail(r, "'engram_layer_ids' has more than %d layers", CONFIG_NGRAMS_MOST);
        else if (!numbers) config_fail(r, "'engram_compressed_vocab_size' is missing: numbers of hashes depend on it");
        if (r->rc) break;
        *g = common;
        const int64_t placed = ngram_hash_place(g, nth, base);
        if (placed != n || n > INT32_MAX)
            config_fail(
                r, "'engram_num_embeddings' gives layer %d %lld rows; its hashes have %lld, and hearth takes up to %d",
                i, (long long)n, (long long)placed, INT32_MAX);
        g->rows = (int)n;
        ngram_hash_draw(g, 10007u * (uint32_t)i, numbers);
        c->layer[i].ngram = (uint8_t)++nth;
        c->ngram_numbers = numbers;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const drafts[] = {"dspark_block_size",  "dspark_noise_token_id",   "dspark_target_layer_ids",
                                         "dspark_markov_rank", "dspark_n_routed_experts", "dspark_num_experts_per_tok"};
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) config_ignore(r, drafts[i]);
    config_skip_vision(r, c);
    deepseek_v4_attention(r, c);
    read_sources(r, c);
    read_candidates(r, c);
    deepseek_v4_experts(r, c, 0);
    const double temperature = config_num(r, "gate_temp", 1, 1e-6, 1e6);
    if (temperature != 1) c->router_scale = (float)(1 / temperature);
    deepseek_v4_streams(r, c);
    c->streams.passes_weights = true, c->streams.weights_at = c->carried, c->carried += c->streams.n;
    read_engrams(r, c);
}

#define L "layers.%d."
static const char *const types[] = {"deepseek_v41", NULL}, *const of_images[] = {".gate.bias_vl", NULL};
const struct arch arch_deepseek_v41 = {
    .model_types = types,
    .title = "DeepSeek-V4.1",
    .defaults = {0},
    .norm_eps = 1e-20,
    .text_config_key = "text_config",
    .parse = parse,
    .skipped_tensors = of_images,
    .names = {DEEPSEEK_V4_NAMES("", "embed", "kv_norm"), .index_k = L "attn.indexer.wk",
              .index_k_norm = L "attn.indexer.k_norm", .ngram_table = L "engram.embed", .ngram_key = L "engram.wkv",
              .ngram_value = L "engram.wkv", .ngram_key_norm = L "engram.k_weight",
              .ngram_query_norm = L "engram.q_weight"}};
