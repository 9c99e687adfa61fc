/* Cohere 2 MoE (Command A): attention and FFN side by side after one LayerNorm without bias; rotation in layers with a
 * window, and in leading dense layers that have none. Weights are the softmax over the chosen logits (of all,
 * renormalized) or their sigmoids. Reference: transformers, models/cohere2_moe. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24),
              every = config_int(r, "sliding_window_pattern", 4, 1, CONFIG_MAX_LAYERS),
              dense = config_int(r, "first_k_dense_replace", 0, 0, CONFIG_MAX_LAYERS),
              first = config_int(r, "prefix_dense_sliding_window_pattern", 1, 1, CONFIG_MAX_LAYERS);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layer[i];
        if (!listed) l->window = (i < dense ? (i + 1) % first : (i - dense + 1) % every) ? window : 0;
        l->moe = i >= dense;
    }
    config_read_mlp_types(r, c);
    bool any_dense = false;
    for (int i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layer[i];
        if (config_has(r, "first_k_dense_replace") && l->moe != (i >= dense))
            config_fail(r, "'first_k_dense_replace' and 'mlp_layer_types' differ in layer %d", i);
        any_dense |= !l->moe;
        l->rope = l->window || (!l->moe && first == 1) ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
    }
    if (any_dense) c->dense_inter = config_int(r, "prefix_dense_intermediate_size", 0, 1, 1 << 20);
    else config_has(r, "prefix_dense_intermediate_size");
}

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const scores[] = {"softmax", "sigmoid", NULL}, *const sums[] = {"average", "sum", NULL};
    const bool softmax = !config_choice(r, "expert_selection_fn", scores, 0),
               norm = config_bool(r, "norm_topk_prob", true),
               average = !config_choice(r, "shared_expert_combination_strategy", sums, 0);
    const int shared = config_int(r, "num_shared_experts", 0, 0, 64);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = shared * c->moe_inter;
    c->score = softmax ? SCORE_SOFTMAX : SCORE_SIGMOID;
    c->norm_topk = softmax || norm;
    c->routed_scale = 1;
    if (shared && average) c->routed_scale = c->shared_scale = 0.5f; /* of routed and shared */
}

static void parse(struct config_reader *r, struct config *c) {
    c->norm = NORM_LAYER;
    c->rope.interleaved = true;
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    read_layers(r, c);
    read_experts(r, c);
    c->logit_scale = (float)config_num(r, "logit_scale", 0.0625, 1e-6, 1e6);
    c->parallel_block = true;
    config_keep_stream(c);
}

/* Cohere (Command R): all layers rotate. Command R+ norms each head of q and k by weights of its own, which hearth does
 * not. */
static void parse_1(struct config_reader *r, struct config *c) {
    if (config_bool(r, "use_qk_norm", false))
        config_fail(r, "'use_qk_norm' is true: hearth has no norms with weights for each head");
    c->norm = NORM_LAYER;
    config_read_dense(r, c);
    /* longer than max_position_embeddings in Command R */
    c->max_context = config_int(r, "model_max_length", c->max_context, 1, 1 << 24);
    c->rope.interleaved = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    c->logit_scale = (float)config_num(r, "logit_scale", 0.0625, 1e-6, 1e6);
    c->parallel_block = true;
    config_keep_stream(c);
}

/* Cohere 2 without experts (Command R7B, Command A): layers without a window, every fourth, do not rotate. */
static void parse_dense(struct config_reader *r, struct config *c) {
    static const char *const always[] = {"use_parallel_block", "use_gated_activation"},
                             *const rotations[] = {"rope_gptj", NULL}, *const orders[] = {"local_attn_first", NULL};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!config_bool(r, always[i], true))
            config_fail(r, "'%s' is false: the reference has no such model", always[i]);
    config_choice(r, "position_embedding_type", rotations, 0),
        config_choice(r, "order_of_interleaved_layers", orders, 0);
    config_ignore(r, "use_parallel_embedding"), config_ignore(r, "use_embedding_sharing");
    c->rope.default_partial_factor = config_num(r, "rotary_pct", 1, 0, 1);
    parse_1(r, c);
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24),
              other = config_int(r, "layer_switch", 4, 1, CONFIG_MAX_LAYERS),
              every = config_int(r, "sliding_window_pattern", other, 1, CONFIG_MAX_LAYERS);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++) {
        if (!listed) c->layer[i].window = (i + 1) % every ? window : 0;
        c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
    }
}

#define NAMES \
    NAMES_ATTENTION("model."), .attn_norm = "model.layers.%d.input_layernorm", \
                               .ffn_norm = "model.layers.%d.input_layernorm", NAMES_DENSE("model.")
static const char *const types[] = {"cohere2_moe", NULL}, *const dense[] = {"cohere2", NULL},
                         *const first[] = {"cohere", NULL};
static const char *const keys[][2] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};
const struct arch arch_cohere2_moe = {
    .model_types = types,
    .title = "Cohere 2 MoE",
    .norm_eps = 1e-5,
    .defaults = {.tied = true, .topk = 2},
    .parse = parse,
    .names = {NAMES, NAMES_ROUTER("model."), NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts")},
    .key_aliases = keys,
};
const struct arch arch_cohere2 = {.model_types = dense,
                                  .title = "Cohere 2",
                                  .norm_eps = 1e-5,
                                  .defaults = {.tied = true},
                                  .parse = parse_dense,
                                  .names = {NAMES},
                                  .key_aliases = keys};
const struct arch arch_cohere = {.model_types = first,
                                 .title = "Cohere",
                                 .norm_eps = 1e-5,
                                 .defaults = {.tied = true},
                                 .parse = parse_1,
                                 .names = {NAMES},
                                 .key_aliases = keys};
