/* Beam: GQA with a norm per head on q and k and a gate per element with a bias per head; norms before and after each
 * block, whose outputs and stream are divided by the square root of their number; DeepSeek-V3's router without shared
 * experts. A kind of layers without rotation scales queries by a power of their position. Reference: transformers,
 * models/beam. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static void read_layers(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 512, 1, 1 << 24);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++) {
        if (!listed) c->layer[i].window = (i + 1) % 6 && i < c->n_layers - 1 ? window : 0;
        c->layer[i].moe = i >= 3;
    }
    config_read_mlp_types(r, c);
}

/* A kind of layers that rope_parameters gives null has no rotation. */
static void read_ropes(struct config_reader *r, struct config *c) {
    const bool given = config_has(r, "rope_parameters");
    struct config_reader in;
    config_open(r, "rope_parameters", &in);
    const bool sliding = !given || config_has(&in, "sliding_attention"), full = config_has(&in, "full_attention");
    config_read_rope_object(&in, c, "sliding_attention", c->head_dim, 10000);
    c->second_rope = c->rope;
    config_read_rope_object(&in, c, "full_attention", c->head_dim, 10000);
    config_close(r, "rope_parameters", &in);
    for (int i = 0; i < c->n_layers; i++)
        c->layer[i].rope = c->layer[i].window ? (sliding ? LAYER_ROPE_SECOND : LAYER_ROPE_NONE)
                                              : (full ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE);
    c->query_scale =
        (struct query_scale){.slope = 0.1f, .every = 2048, .shift = 1, .kind = SCALE_POWER, .no_rope_only = true};
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->attn_gate = ATTN_GATE_ELEMENT, c->attn_gate_kind = GATE_SIGMOID, c->attn_gate_bias = true;
    read_layers(r, c);
    read_ropes(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 20480, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 2560, 1, 1 << 20);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 2.5, 0, 1e4);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->score = SCORE_SIGMOID;
    deepseek_groups(r, c, 8, 4);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    c->divides_stream = true;
    config_keep_stream(c);
    c->logit_cap = config_is_null(r, "final_logit_softcapping")
                       ? 0
                       : (float)config_num(r, "final_logit_softcapping", 30, 1e-6, 1e6);
}

#define L "model.layers.%d."
static const char *const types[] = {"beam", NULL};
const struct arch arch_beam = {
    .model_types = types,
    .title = "Beam",
    .defaults = {.heads = 48, .kv_heads = 8, .head_dim = 128},
    .parse = parse,
    .names = {NAMES_ATTENTION("model."), NAMES_NORMS_AROUND("model."), NAMES_QK_NORM("model."),
              .attn_gate = L "self_attn.gate_proj", .attn_gate_bias = L "self_attn.gate_bias", NAMES_ROUTER("model."),
              DEEPSEEK_BIAS_NAME, NAMES_EXPERTS("model."), NAMES_DENSE("model.")},
};
