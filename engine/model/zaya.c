/* ZAYA1: convolved queries and keys, values half from the previous token (attention_cca.c), a router MLP that continues
 * the previous layer's, one expert per token, and biases and factors per channel wherever the residual stream is added
 * to. The last choice of the router is not an expert: as in Zyphra's code, such a token gets its input times the
 * weight. Reference: transformers, models/zaya. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"
#include "engine/model/rope.h"

/* layer_types: "hybrid_sliding" layers see a window, and rotate by frequencies of their own. */
static void read_layers(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"hybrid", "hybrid_sliding", NULL};
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; types && i < c->n_layers && !r->rc; i++) {
        const bool sliding = config_layer_choice(r, "layer_types", types, i, kinds) == 1;
        if (sliding && !window)
            config_fail(r, "'layer_types' asks for a sliding window in layer %d, and none is in force", i);
        if (sliding) c->layer[i].window = window, c->layer[i].rope = LAYER_ROPE_SECOND;
    }
}

static void read_ropes(struct config_reader *r, struct config *c) {
    struct config_reader in;
    c->rope.default_partial_factor = 0.5;
    if (!config_has(r, "rope_parameters")) {
        config_read_rope(r, c, c->head_dim, 5e6);
        c->second_rope = c->rope;
        return;
    }
    config_open(r, "rope_parameters", &in);
    config_has(&in, "rope_type"); /* those inside count */
    config_read_rope_object(&in, c, "hybrid_sliding", c->head_dim, 10000);
    c->second_rope = c->rope;
    config_read_rope_object(&in, c, "hybrid", c->head_dim, 5e6);
    config_close(r, "rope_parameters", &in);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->attn = ATTN_CCA;
    c->cca = (struct cca_config){{config_int(r, "cca_time0", 2, 1, 16), config_int(r, "cca_time1", 2, 1, 16)}};
    if (c->cca.taps[0] + c->cca.taps[1] < 3)
        config_fail(r, "'cca_time0' and 'cca_time1' are 1; hearth supports ZAYA's attention with convolutions");
    if (c->n_kv_heads * c->head_dim % 2)
        config_fail(r, "%d value dimensions do not divide into two halves", c->n_kv_heads * c->head_dim);
    if (config_bool(r, "attention_bias", false))
        config_fail(r, "'attention_bias' is true; hearth supports ZAYA's projections without biases");
    if (config_bool(r, "lm_head_bias", false))
        config_fail(r, "'lm_head_bias' is true; hearth supports ZAYA's head without a bias");
    read_ropes(r, c);
    read_layers(r, c);
    config_keep_stream(c);
    c->merges_stream = true;
    c->n_experts = config_int(r, "num_experts", 16, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 1, 1, 1);
    c->n_idle_experts = 1;
    c->moe_inter = config_int(r, "moe_intermediate_size", 2048, 1, 1 << 20);
    c->carried = c->router_inter = config_int(r, "router_hidden_size", 256, 1, 65536);
    c->router_bias = true;
    /* for tokens that choose no expert */
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = c->layer[i].keeps_input = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define L   "model.layers.%d."
#define QKV L "self_attn.qkv_proj."
#define MERGE(p) \
    { p "hidden_states_bias", p "hidden_states_scale", p "residual_bias", p "residual_scale" }
static const char *const types[] = {"zaya", NULL};
const struct arch arch_zaya = {
    .model_types = types,
    .title = "ZAYA1",
    .norm_eps = 1e-5,
    .defaults = {.tied = true, .kv_heads = 2},
    .parse = parse,
    .names = {NAMES_ENDS("model."),
              NAMES_NORMS_BEFORE("model."),
              NAMES_STACKED("model."),
              .q = QKV "q_proj",
              .k = QKV "k_proj",
              .v = QKV "v_proj_current",
              .v_delayed = QKV "v_proj_delayed",
              .o = L "self_attn.o_proj",
              .mix_conv = QKV "conv_qk_depthwise",
              .cca_taps = QKV "conv_qk_grouped",
              .cca_bias = QKV "conv_qk_grouped.bias",
              .cca_temp = L "self_attn.qk_norm.temp",
              .attn_merge = MERGE(L "post_attention_residual_scale."),
              .ffn_merge = MERGE(L "post_mlp_residual_scale."),
              .embed_merge = {"model.input_hidden_states_bias", "model.input_hidden_states_scale"},
              .router_down = L "mlp.gate.down_proj",
              .router_carry = L "mlp.gate.router_states_scale",
              .router_mlp_norm = L "mlp.gate.router_mlp.norm",
              .router_fc1 = L "mlp.gate.router_mlp.fc1",
              .router_fc2 = L "mlp.gate.router_mlp.fc2",
              .router = L "mlp.gate.router_mlp.out_proj",
              .router_bias = L "mlp.gate.balancing_biases"},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED},
};
