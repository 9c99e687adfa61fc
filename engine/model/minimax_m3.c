/* The language model of MiniMax-M3: GQA with norms by 1 + w per head, in most layers over blocks of keys that an
 * indexer selects for each group of heads; a sigmoid router with a selection bias, a shared expert, clamped SwiGLU with
 * up + 1. The published config has the indexer in sparse_attention_config; transformers writes it as index_* and
 * layer_types. Reference: transformers, models/minimax_m3_vl (language model only). */
#include <string.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* The indexer's numbers; block 0: no layer selects keys. */
struct indexer {
    int heads, dim, block, topk, local;
};

/* Layers with a flag select keys by an indexer of their own; the others see all keys. */
static void mark_layers(struct config *c, const bool flags[CONFIG_MAX_LAYERS]) {
    for (int i = 0; i < c->n_layers; i++) c->layer[i].index = flags[i] ? INDEX_OWN : INDEX_NONE;
}

/* Fails if an option of sparse_attention_config has another value than the published one. */
static void refuse_unpublished(struct config_reader *r, const struct config *c) {
    static const char *const scores[] = {"max", NULL};
    bool disabled[CONFIG_MAX_LAYERS] = {0};
    config_choice(r, "sparse_score_type", scores, 0);
    config_int(r, "sparse_init_block", 0, 0, 0);
    if (!config_read_flags(r, c, "sparse_disable_index_value", disabled)) return;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].index == INDEX_OWN && !disabled[i])
            config_fail(r, "'sparse_disable_index_value' of layer %d is 0: hearth's indexers have no values", i);
}

static struct indexer read_published(struct config_reader *r, struct config *c) {
    bool sparse[CONFIG_MAX_LAYERS] = {0};
    struct config_reader in;
    struct indexer x = {0};
    config_open(r, "sparse_attention_config", &in);
    config_read_flags(&in, c, "sparse_attention_freq", sparse);
    if (!config_bool(&in, "use_sparse_attention", true)) memset(sparse, 0, sizeof sparse);
    mark_layers(c, sparse);
    x = (struct indexer){.heads = config_int(&in, "sparse_num_index_heads", 4, 1, 1024),
                         .dim = config_int(&in, "sparse_index_dim", 128, 2, 1024),
                         .block = config_int(&in, "sparse_block_size", 128, 1, 1 << 16),
                         .topk = config_int(&in, "sparse_topk_blocks", 16, 1, 1 << 20),
                         .local = config_int(&in, "sparse_local_block", 1, 0, 1 << 20)};
    refuse_unpublished(&in, c);
    config_close(r, "sparse_attention_config", &in);
    return x;
}

static struct indexer read_converted(struct config_reader *r, struct config *c) {
    bool sparse[CONFIG_MAX_LAYERS] = {0};
    static const char *const kinds[] = {"minimax_m3_sparse", "full_attention", NULL};
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    for (int i = 0; types && i < c->n_layers && !r->rc; i++)
        sparse[i] = !config_layer_choice(r, "layer_types", types, i, kinds);
    mark_layers(c, sparse);
    return (struct indexer){.heads = config_int(r, "index_n_heads", 4, 1, 1024),
                            .dim = config_int(r, "index_head_dim", 128, 2, 1024),
                            .block = config_int(r, "index_block_size", 128, 1, 1 << 16),
                            .topk = config_int(r, "index_topk_blocks", 16, 1, 1 << 20),
                            .local = config_int(r, "index_local_blocks", 1, 0, 1 << 20)};
}

static void read_indexer(struct config_reader *r, struct config *c) {
    const bool published = config_has(r, "sparse_attention_config");
    const struct indexer x = published ? read_published(r, c) : read_converted(r, c);
    bool any = false;
    for (int i = 0; i < c->n_layers; i++) any |= c->layer[i].index == INDEX_OWN;
    if (!any || r->rc) return;
    if (c->n_kv_heads % x.heads)
        config_fail(r, "%d heads of the indexer for %d key-value heads: each must select for as many of them", x.heads,
                    c->n_kv_heads);
    if (x.local < 1) config_fail(r, "0 local blocks: hearth's queries always see their own block");
    if (x.topk < 2)
        config_fail(r, "an indexer that selects one block, which is always the query's own: hearth takes 2 or more");
    if (x.local > x.topk) config_fail(r, "%d local blocks of %d that are selected", x.local, x.topk);
    if (c->rope.dim > x.dim)
        config_fail(r, "the indexer's heads have %d dimensions, of which %d are to be rotated", x.dim, c->rope.dim);
    c->index_by_group = true;
    c->index_heads = x.heads, c->index_dim = x.dim, c->index_block = x.block;
    c->index_topk = x.topk - 1, c->index_latest = x.local - 1; /* besides the query's own block */
}

static void read_rope(struct config_reader *r, struct config *c) {
    const int dim = config_int(r, "rotary_dim", c->head_dim < 64 ? c->head_dim : 64, 2, c->head_dim);
    c->rope.default_partial_factor = (double)dim / c->head_dim;
    config_read_rope(r, c, c->head_dim, 5000000);
    if (!r->rc && config_has(r, "rotary_dim") && c->rope.dim != dim)
        config_fail(r, "'rotary_dim' is %d, 'partial_rotary_factor' makes it %d", dim, c->rope.dim);
}

static void read_experts(struct config_reader *r, struct config *c) {
    /* transformers writes silu and computes swigluoai */
    static const char *const acts[] = {"swigluoai", "silu", NULL}, *const scores[] = {"sigmoid", NULL};
    bool moe[CONFIG_MAX_LAYERS];
    config_choice(r, "hidden_act", acts, 0);
    for (int i = 0; i < c->n_layers; i++) moe[i] = true;
    const bool listed = config_read_flags(r, c, "moe_layer_freq", moe);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = moe[i];
    config_read_mlp_types(r, c);
    for (int i = 0; i < c->n_layers; i++)
        if (listed && c->layer[i].moe != moe[i])
            config_fail(r, "'moe_layer_freq' and 'mlp_layer_types' differ in layer %d", i);
    c->dense_inter = config_int(r, "dense_intermediate_size", 12288, 1, 1 << 20);
    c->n_experts = config_int(r, "num_local_experts", 128, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 3072, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_intermediate_size", 3072, 1, 1 << 20);
    config_choice(r, "scoring_func", scores, 0);
    c->score = SCORE_SIGMOID;
    c->router_bias = config_bool(r, "use_routing_bias", true);
    c->norm_topk = true;
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 2, 0, 1e4);
    c->glu = (struct glu){.limit = (float)config_num(r, "swiglu_limit", 7, 1e-6, 1e6),
                          .alpha = (float)config_num(r, "swiglu_alpha", 1.702, 1e-6, 1e3),
                          .shift = 1};
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const norms[] = {"per_head", NULL}, *const others[] = {"video_token_index",
                                                                              "projector_hidden_size",
                                                                              "use_mtp",
                                                                              "num_mtp_modules",
                                                                              "mtp_transformer_layers",
                                                                              "merged_hidden_size"};
    config_skip_vision(r, c);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_ignore(r, others[i]);
    config_read_gqa(r, c);
    config_choice(r, "qk_norm_type", norms, 0);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->norm = config_bool(r, "use_gemma_norm", true) ? NORM_RMS_PLUS_ONE : NORM_RMS;
    if (config_bool(r, "attention_bias", false)) config_fail(r, "'attention_bias' is true: the reference has none");
    read_rope(r, c);
    read_experts(r, c);
    read_indexer(r, c);
}

/* m: prefix of the text model's names */
#define LAYER(m)  m "layers.%d."
#define NAMES(m)  .embed = m "embed_tokens", .norm = m "norm", NAMES_NORMS_BEFORE(m), NAMES_QKVO(m), NAMES_QK_NORM(m)
#define INDEX(p)  .index_q = p "q_proj", .index_k = p "k_proj", .index_q_norm = p "q_norm", .index_k_norm = p "k_norm"
#define PUBLISHED "language_model.model."
static const char *const types[] = {"minimax_m3_vl", NULL}, *const text[] = {"minimax_m3_vl_text", NULL},
                         *const published_text[] = {"minimax_m3", NULL};
#define ARCH(types, member, m, lm_head) \
    { \
        .model_types = types, .title = "MiniMax-M3", .defaults = {.own_activation = true}, .text_config_key = member, \
        .parse = parse, .names = { \
            NAMES(m), \
            .head = lm_head, \
            INDEX(LAYER(m) "self_attn.index_"), \
            NAMES_SPARSE(m), \
            .router_bias = LAYER(m) "block_sparse_moe.e_score_correction_bias", \
            .shared_gate_proj = LAYER(m) "block_sparse_moe.shared_experts.gate_proj", \
            .shared_up = LAYER(m) "block_sparse_moe.shared_experts.up_proj", \
            .shared_down = LAYER(m) "block_sparse_moe.shared_experts.down_proj", \
            NAMES_DENSE(m) \
        } \
    }
#define SAVED "model."
const struct arch arch_minimax_m3 = ARCH(types, "text_config", PUBLISHED, "language_model.lm_head"),
                  arch_minimax_m3_published_text = ARCH(published_text, NULL, SAVED, "lm_head");
/* The text model alone, as transformers saves it. */
const struct arch arch_minimax_m3_text = {
    .model_types = text,
    .title = "MiniMax-M3",
    .defaults = {.own_activation = true},
    .parse = parse,
    .names = {NAMES(SAVED), .head = "lm_head", INDEX(LAYER(SAVED) "self_attn.indexer."), NAMES_ROUTER(SAVED),
              .router_bias = LAYER(SAVED) "mlp.gate.e_score_correction_bias", NAMES_STACKED(SAVED),
              .shared_gate_proj = LAYER(SAVED) "mlp.shared_experts.gate_up_proj",
              .shared_up = LAYER(SAVED) "mlp.shared_experts.gate_up_proj",
              .shared_down = LAYER(SAVED) "mlp.shared_experts.down_proj", .dense_gate = LAYER(SAVED) "mlp.gate_up_proj",
              .dense_up = LAYER(SAVED) "mlp.gate_up_proj", .dense_down = LAYER(SAVED) "mlp.down_proj"},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED, .dense_gate_up = GATE_UP_STACKED},
};
