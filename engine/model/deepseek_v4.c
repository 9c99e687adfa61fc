/* DeepSeek-V4: several residual streams (manifold-constrained hyper-connections), a window of keys plus compressed ones
 * (CSA: of four tokens, selected by an indexer; HCA: of 128), experts in FP4, table-selected experts in the first
 * layers. Reference: transformers, models/deepseek_v4; the vendor's inference/model.py, without its rounding of keys to
 * FP8, as in transformers. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

enum { CSA_RATIO = 4, HCA_RATIO = 128 };

static void set_ratio(struct config *c, int layer, int ratio, bool overlap) {
    c->layer[layer].ratio = ratio;
    c->layer[layer].overlap = overlap;
}

/* Reads a layer's kind by name, or the number of tokens per compressed key (the vendor's list has an extra entry for
 * the MTP layer). */
static int64_t ratio_of_type(const struct json *type) {
    if (json_is(type, "sliding_attention")) return 0;
    if (json_is(type, "compressed_sparse_attention")) return CSA_RATIO;
    return json_is(type, "heavily_compressed_attention") ? HCA_RATIO : -1;
}
static void read_ratios(struct config_reader *r, struct config *c) {
    const struct json *types = config_get(r, "layer_types"), *ratios = config_get(r, "compress_ratios"),
                      *list = types ? types : ratios;
    struct config_reader in;
    config_open(r, "compress_rates", &in);
    int csa = config_int(&in, "compressed_sparse_attention", CSA_RATIO, 1, 1 << 16),
        hca = config_int(&in, "heavily_compressed_attention", HCA_RATIO, 1, 1 << 16);
    config_close(r, "compress_rates", &in);
    csa = config_int(r, "compress_rate_csa", csa, 1, 1 << 16),
    hca = config_int(r, "compress_rate_hca", hca, 1, 1 << 16);
    if (list && (list->type != JSON_ARRAY || (int)list->n < c->n_layers))
        config_fail(r, "'%s' is not a list of %d layers", types ? "layer_types" : "compress_ratios", c->n_layers);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *one = list ? json_at(list, (uint32_t)i) : NULL;
        int64_t ratio = list && !types ? json_int(one, -1) : i < 2 || i % 2 == 0 ? HCA_RATIO : CSA_RATIO; /* default */
        if (types) ratio = ratio_of_type(one);
        const int64_t published = types && ratios ? json_int(json_at(ratios, (uint32_t)i), -1) : ratio;
        if (published != ratio) config_fail(r, "'compress_ratios' and 'layer_types' differ in layer %d", i);
        if (ratio == 0) set_ratio(c, i, 0, false);
        else if (ratio == CSA_RATIO) set_ratio(c, i, csa, true);
        else if (ratio == HCA_RATIO) set_ratio(c, i, hca, false);
        else
            config_fail(r, "'%s' of layer %d is a kind that hearth does not support; it supports %s",
                        types ? "layer_types" : "compress_ratios", i,
                        types ? "sliding_attention, compressed_sparse_attention and heavily_compressed_attention"
                              : "0, 4 and 128");
    }
}

/* Layers without compressed keys use rope_theta only; the others use compress_rope_theta and YaRN with a cos/sin factor
 * of 1. transformers writes both as objects, main and compress. */
static void read_ropes(struct config_reader *r, struct config *c, int dim) {
    const struct json *parameters = config_get(r, "rope_parameters");
    double theta = config_num(r, "rope_theta", 10000, 1, 1e12),
           compressed_theta = config_num(r, "compress_rope_theta", 160000, 1, 1e12);
    c->rope.interleaved = true;
    config_num(r, "partial_rotary_factor", 1, 0, 1);
    if (parameters && json_get(parameters, "main") && json_get(parameters, "compress")) {
        struct config_reader in;
        config_open(r, "rope_parameters", &in);
        config_read_rope_object(&in, c, "compress", c->head_dim, compressed_theta);
        c->second_rope = c->rope;
        config_read_rope_object(&in, c, "main", c->head_dim, theta);
        config_has(&in, "rope_type"), config_has(&in, "rope_theta"), config_has(&in, "type");
        config_close(r, "rope_parameters", &in);
        for (int i = 0; i < 2; i++) {
            const int rotated = i ? c->rope.dim : c->second_rope.dim;
            if (rotated != dim && rotated != c->head_dim)
                config_fail(r,
                            "'rope_parameters' rotate %d dimensions of a head, 'qk_rope_head_dim' or "
                            "'partial_rotary_factor' %d",
                            rotated, dim);
        }
    } else {
        config_read_rope_object(r, c, parameters ? "rope_parameters" : "rope_scaling", c->head_dim, compressed_theta);
        c->second_rope = c->rope;
        c->second_rope.theta = compressed_theta;
        c->rope = (struct rope_config){.kind = ROPE_DEFAULT, .interleaved = true, .truncate = true, .theta = theta};
    }
    c->rope.dim = c->second_rope.dim = dim;
    if (c->rope.kind != ROPE_DEFAULT)
        config_fail(r, "rope of the layers without compressed keys is scaled: the reference's is not");
    if (c->second_rope.kind == ROPE_YARN && c->second_rope.attention_factor == 0) c->second_rope.attention_factor = 1;
    if (c->second_rope.kind > ROPE_YARN || (c->second_rope.kind == ROPE_YARN && c->second_rope.attention_factor != 1))
        config_fail(r, "rope of compressed keys is scaled in a way that hearth does not support");
}

void deepseek_v4_attention(struct config_reader *r, struct config *c) {
    c->attn = ATTN_COMPRESSED;
    c->n_heads = config_int(r, "num_attention_heads", 64, 1, 1024);
    c->n_kv_heads = config_int(r, "num_key_value_heads", 1, 1, 1);
    c->head_dim = c->v_dim = config_int(r, "head_dim", 512, 2, 1024);
    c->q_lora = config_int(r, "q_lora_rank", 1024, 1, 16384);
    c->o_groups = config_int(r, "o_groups", 8, 1, 1024);
    c->o_lora = config_int(r, "o_lora_rank", 1024, 1, 16384);
    if (c->n_heads % c->o_groups)
        config_fail(r, "%d attention heads do not divide into %d groups", c->n_heads, c->o_groups);
    if (config_bool(r, "attention_bias", false)) config_fail(r, "'attention_bias' is true: the reference has none");
    c->sinks = true;
    c->attn_scale = (float)(1 / sqrt(c->head_dim));
    int dim = config_int(r, "qk_rope_head_dim",
                         (int)(c->head_dim * config_num(r, "partial_rotary_factor", 64.0 / 512, 0, 1)), 0, c->head_dim);
    if (config_has(r, "partial_rotary_factor") &&
        (int)(c->head_dim * config_num(r, "partial_rotary_factor", 1, 0, 1)) != dim)
        config_fail(r, "'qk_rope_head_dim' is %d, 'partial_rotary_factor' makes it another number", dim);
    if (dim < 2 || dim % 2)
        config_fail(r, "%d rotary dimensions of a head of %d: must be even and at least 2", dim, c->head_dim);
    read_ropes(r, c, dim);
    int window = config_int(r, "sliding_window", 128, 1, 1 << 24);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
    c->index_heads = config_int(r, "index_n_heads", 64, 1, 1024);
    c->index_dim = config_int(r, "index_head_dim", 128, 2, 1024);
    c->index_topk = config_int(r, "index_topk", 512, 1, 1 << 20);
    c->index_interleaved = true;
    if (!r->rc && dim > c->index_dim)
        config_fail(r, "'index_head_dim' is %d, of which %d are to be rotated", c->index_dim, dim);
}

void deepseek_v4_experts(struct config_reader *r, struct config *c, int hash_layers) {
    static const char *const scores[] = {"sqrtsoftplus", "sigmoid", "softmax", NULL},
                             *const methods[] = {"noaux_tc", NULL}, *const dtypes[] = {"fp4", "fp8", NULL};
    static const uint8_t fns[] = {SCORE_SQRT_SOFTPLUS, SCORE_SIGMOID, SCORE_SOFTMAX};
    c->n_experts = config_int(r, "n_routed_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 6, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 2048, 1, 1 << 20);
    if (config_int(r, "n_shared_experts", 1, 1, 64) != 1)
        config_fail(r, "'n_shared_experts' is not 1: the reference has one");
    c->shared_inter = c->moe_inter;
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: hearth reads no such tensors");
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1.5, 0, 1e4);
    if (!config_bool(r, "norm_topk_prob", true))
        config_fail(r, "'norm_topk_prob' is false: the reference always normalizes");
    c->norm_topk = c->router_bias = true;
    c->score = fns[config_choice(r, "scoring_func", scores, 0)];
    config_choice(r, "topk_method", methods, 0);
    config_choice(r, "expert_dtype", dtypes, 0); /* redundant: the tensors show it */
    c->glu.limit = (float)config_num(r, "swiglu_limit", 10, 0, 1e6);
    int hashed = config_int(r, "num_hash_layers", hash_layers, 0, CONFIG_MAX_LAYERS);
    static const char *const kinds[] = {"hash_moe", "moe", NULL};
    const struct json *types = config_layer_list(r, c, "mlp_layer_types", true);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        c->layer[i].moe = true;
        if (types && config_has(r, "num_hash_layers") && !json_is(json_at(types, (uint32_t)i), kinds[i >= hashed]))
            config_fail(r, "'num_hash_layers' and 'mlp_layer_types' differ in layer %d", i);
        c->layer[i].hashed = types ? !config_layer_choice(r, "mlp_layer_types", types, i, kinds) : i < hashed;
    }
}

void deepseek_v4_streams(struct config_reader *r, struct config *c) {
    c->streams.n = config_int(r, "hc_mult", 4, 1, STREAMS_MOST);
    c->streams.iters = config_int(r, "hc_sinkhorn_iters", 20, 1, 1000);
    c->streams.eps = (float)config_num(r, "hc_eps", 1e-6, 0, 1);
}

static void parse(struct config_reader *r, struct config *c) {
    deepseek_v4_attention(r, c);
    c->qk_norm = QK_NORM_PLAIN;
    read_ratios(r, c);
    deepseek_v4_experts(r, c, 3);
    deepseek_v4_streams(r, c);
}

/* m: prefix of the names; embedding, window_norm and the streams' last mix have other names where transformers saved
 * the checkpoint. */
#define NAMES(m, embedding, window_norm, last_mix) \
    DEEPSEEK_V4_NAMES(m, embedding, window_norm), .head_mix = last_mix "fn", .head_mix_base = last_mix "base", \
                                                  .head_mix_scale = last_mix "scale", \
                                                  .compress_bias = m "layers.%d.attn.compressor.ape", \
                                                  .index_compress_kv = m "layers.%d.attn.indexer.compressor.wkv", \
                                                  .index_compress_gate = m "layers.%d.attn.indexer.compressor.wgate", \
                                                  .index_compress_norm = m "layers.%d.attn.indexer.compressor.norm", \
                                                  .index_compress_bias = m "layers.%d.attn.indexer.compressor.ape", \
                                                  .router_table = m "layers.%d.ffn.gate.tid2eid"
static const char *const types[] = {"deepseek_v4", NULL};
static const char *const of_images[] = {".gate.bias_vl", ".exp_probs_b_vl.", NULL}; /* in safetensors and in GGUF */
#define ARCH(...) \
    { .model_types = types, .title = "DeepSeek-V4", .parse = parse, .skipped_tensors = of_images, __VA_ARGS__ }
/* As transformers saves it. */
static const struct arch saved = ARCH(.names = {NAMES("model.", "model.embed_tokens", "norm", "model.hc_head.hc_")});
const struct arch arch_deepseek_v4 = ARCH(.names = {NAMES("", "embed", "kv_norm", "hc_head_")}, .variant = &saved,
                                          .variant_tensor = "model.layers.%d.attn.wq_a.weight");
