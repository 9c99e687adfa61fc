/* Mistral Large 4, language model only: DeepSeek-V3.2's attention without a latent of queries, whose heads have factors
 * by position, and with learned rotary frequencies; some layers rotate nothing, take the latents of an earlier layer,
 * or its selection of keys. Mistral Small 4's router. Reference: transformers, models/mistral_large4. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static void read_attention(struct config_reader *r, struct config *c) {
    c->attn = ATTN_DSA;
    c->n_heads = config_int(r, "num_attention_heads", 64, 1, 1024);
    c->n_kv_heads = 1; /* the latent cache has one */
    if (config_int(r, "num_key_value_heads", 64, 1, 1024) != c->n_heads)
        config_fail(r, "'num_key_value_heads' is not 'num_attention_heads', which is %d: MLA has one for each",
                    c->n_heads);
    c->kv_lora = config_int(r, "kv_lora_rank", 512, 1, 8192);
    c->qk_nope = config_int(r, "qk_nope_head_dim", 64, 1, 1024);
    c->qk_rope = config_int(r, "qk_rope_head_dim", 64, 2, 1024);
    c->v_dim = config_int(r, "v_head_dim", 128, 1, 1024);
    c->head_dim = c->qk_nope + c->qk_rope;
    if (config_int(r, "qk_head_dim", c->head_dim, 1, 4096) != c->head_dim)
        config_fail(r, "'qk_head_dim' is not the sum of its parts, %d", c->head_dim);
    config_ignore(r, "head_dim"); /* repeats qk_rope_head_dim */
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->latent_eps = c->norm_eps;
    c->scales_heads = c->index_from_input = c->rope_alpha = true;
    c->index_heads = config_int(r, "index_n_heads", 32, 1, 1024);
    c->index_dim = config_int(r, "index_head_dim", 128, 2, 1024);
    c->index_topk = config_int(r, "index_topk", 2048, 1, 1 << 20);
    c->index_interleaved = true;
    if (!r->rc && c->qk_rope > c->index_dim)
        config_fail(r, "'index_head_dim' is %d, of which %d are to be rotated", c->index_dim, c->qk_rope);
}

static void read_rotation(struct config_reader *r, struct config *c) {
    const bool given = config_has(r, "rope_parameters") || config_has(r, "rope_scaling");
    c->rope.interleaved = true;
    config_read_rope(r, c, c->qk_rope, 10000);
    if (!given)
        c->rope.kind = ROPE_YARN, c->rope.factor = 2048, c->rope.original_max = 512, c->rope.attention_factor = 1;
    if (!given) c->rope.beta_fast = 32, c->rope.beta_slow = 1;
    if (c->rope.dim != c->qk_rope)
        config_fail(r, "'partial_rotary_factor' rotates %d of %d dimensions: hearth supports this family with all",
                    c->rope.dim, c->qk_rope);
    if (c->rope.kind == ROPE_LONG)
        config_fail(r, "'rope_type' is longrope: hearth supports this family with one set of frequencies");
    c->attn_scale = deepseek_attn_scale(c);
}

/* As config_layer_list(), of integers or booleans. */
static const struct json *read_list(struct config_reader *r, const struct config *c, const char *key, bool longer) {
    const struct json *list = config_layer_list(r, c, key, longer);
    for (int i = 0; list && i < c->n_layers; i++) {
        const struct json *v = json_at(list, (uint32_t)i);
        if (v->type != JSON_INT && v->type != JSON_BOOL) config_fail(r, "'%s' of layer %d is not a number", key, i);
    }
    return r->rc ? NULL : list;
}

/* Layers without rotation have heads and latents of other parts, of the same size together. */
static void read_unrotated(struct config_reader *r, struct config *c) {
    const int every = config_int(r, "no_rope_layer_interval", 4, 1, CONFIG_MAX_LAYERS);
    const struct json *list = read_list(r, c, "no_rope_layers", true);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *v = list ? json_at(list, (uint32_t)i) : NULL;
        const bool rotates = !v ? (i + 1) % every != 0 : v->type == JSON_BOOL ? v->boolean : json_int(v, 0) != 0;
        if (!rotates)
            c->layer[i].rope = LAYER_ROPE_NONE, c->layer[i].no_qk_rope = true, c->layer[i].qk_nope = c->head_dim;
    }
}

/* Layers that take an earlier layer's latents. The reference takes those of the last layer before that passes any and
 * rotates as this one does. */
static void read_sources(struct config_reader *r, struct config *c) {
    const struct json *list = read_list(r, c, "kv_source_layers", false);
    int last[2] = {-1, -1}, at[2] = {-1, -1}; /* by no_qk_rope: that layer, and its place in work.carried */
    for (int i = 0; list && i < c->n_layers && !r->rc; i++) {
        const int64_t from = json_int(json_at(list, (uint32_t)i), -1);
        const bool kind = c->layer[i].no_qk_rope;
        bool passes = false;
        if (from < 0 || from > i || json_int(json_at(list, (uint32_t)from), -1) != from)
            config_fail(
                r,
                "'kv_source_layers' of layer %d is %lld: neither itself nor an earlier layer with a cache of its own",
                i, (long long)from);
        else if (from != i && (c->layer[from].no_qk_rope != kind || last[kind] != from))
            config_fail(r,
                        "'kv_source_layers' of layer %d is %lld: hearth takes only the last such source that rotates "
                        "its keys as the layer does, %d",
                        i, (long long)from, last[kind]);
        for (int k = i + 1; k < c->n_layers; k++) passes |= json_int(json_at(list, (uint32_t)k), -1) == i;
        if (r->rc) return;
        if (from == i && passes) {
            if (at[kind] < 0) at[kind] = c->carried, c->carried += config_mla(c, i).latent;
            last[kind] = i, c->layer[i].passes_kv = KV_PASSED, c->layer[i].carried_at = at[kind];
        } else if (from != i)
            c->layer[i].passes_kv = KV_TAKEN, c->layer[i].carried_at = at[kind], c->layer[i].kv_source = (int)from;
    }
}

static void read_experts(struct config_reader *r, struct config *c) {
    c->dense_inter = config_int(r, "intermediate_size", 24576, 1, 1 << 20);
    c->n_experts = config_int(
        r, "num_experts", config_int(r, "n_routed_experts", config_int(r, "num_local_experts", 128, 1, 4096), 1, 4096),
        1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 6144, 1, 1 << 20);
    c->shared_inter = config_int(r, "n_shared_experts", 1, 0, 64) * c->moe_inter;
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e4);
    const int dense = config_int(r, "first_k_dense_replace", 1, 0, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= dense;
    config_read_mlp_types(r, c);
    deepseek_groups(r, c, 1, 1);
    c->router_bias = false;
    c->group_zero = c->norm_topk = true;
    if (!config_bool(r, "norm_topk_prob", true))
        config_fail(r, "'norm_topk_prob' is false: the reference always norms the weights of experts");
    c->score = SCORE_SOFTMAX;
}

static void read_layer_types(struct config_reader *r, const struct config *c) {
    static const char *const options[] = {"indexed_attention", NULL};
    const struct json *list = config_layer_list(r, c, "layer_types", false);
    for (int i = 0; list && i < c->n_layers && !r->rc; i++) config_layer_choice(r, "layer_types", list, i, options);
}

static void parse(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    read_attention(r, c);
    read_rotation(r, c);
    read_layer_types(r, c);
    read_unrotated(r, c);
    deepseek_index_sharing(r, c, 1);
    read_sources(r, c);
    read_experts(r, c);
    c->logit_cap = (float)config_num(r, "final_logit_softcapping", 30, 1e-3, 1e6);
}

#define FAMILY \
    .model_types = types, .title = "Mistral Large 4", .norm_eps = 1e-5, .text_config_key = "text_config", \
    .parse = parse, .defaults = {.vocab = 204800, .hidden = 6144, .layers = 72, .context = 1048576}
static const char *const types[] = {"mistral_large4", NULL};
/* As transformers names the tensors, with a layer's experts in one tensor or, as quantization tools may write them, one
 * by one. */
#define M "model.language_model."
#define A M "layers.%d.self_attn."
#define RENAMED(experts_) \
    .names = {NAMES_USUAL(M), \
              DEEPSEEK_MLA_NAMES(M), \
              NAMES_ROUTER(M), \
              experts_(M), \
              NAMES_SHARED(M, "shared_experts"), \
              NAMES_DENSE(M), \
              .rope_alpha = M "rotary_emb.alpha", \
              .q_slope = A "softmax_scaling.scale", \
              .q_base = A "softmax_scaling.bias", \
              .index_q = A "indexer.wq_b", \
              .index_k = A "indexer.wk", \
              .index_k_norm = A "indexer.k_norm", \
              .index_weights = A "indexer.weights_proj", \
              .index_in_norm = A "indexer.q_input_norm", \
              .index_slope = A "indexer.softmax_scaling.scale", \
              .index_base = A "indexer.softmax_scaling.bias"}
static const struct arch stacked = {FAMILY, RENAMED(NAMES_STACKED),
                                    .layout = {.experts = true, .gate_up = GATE_UP_STACKED}};
static const struct arch renamed = {FAMILY, RENAMED(NAMES_EXPERTS), .variant = &stacked,
                                    .variant_tensor = M "layers.%d.mlp.experts.gate_up_proj"};
#define L "layers.%d."
const struct arch arch_mistral_large4 = {
    FAMILY,
    .names = {MISTRAL_NAMES(L), .rope_alpha = "lerope.alpha", .q_slope = L "attention.ssmax_scaling.s",
              .q_base = L "attention.ssmax_scaling.b", .index_q = L "attention.indexer.wq_b",
              .index_k = L "attention.indexer.wk", .index_k_norm = L "attention.indexer.k_norm",
              .index_weights = L "attention.indexer.weights_proj", .index_in_norm = L "attention.indexer.q_input_norm",
              .index_slope = L "attention.indexer.ssmax_scaling.s",
              .index_base = L "attention.indexer.ssmax_scaling.b"},
    .variant = &renamed,
    .variant_tensor = M "layers.%d.input_layernorm.weight",
};
