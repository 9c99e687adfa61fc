/* Granite MoE, without and with a shared expert: GQA, stacked experts in every layer, softmax over the chosen logits;
 * factors of the embeddings, the scores, the residual stream and the logits. Granite MoE SWA: the same with a sink per
 * head, and windows and rotations by layer. Reference: transformers, models/granitemoe, models/granitemoeshared and
 * models/granitemoe_swa. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/granite.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only: it stores rotated pairs adjacently */
    config_read_rope(r, c, c->head_dim, 10000);
    granite_read_factors(r, c);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->n_experts = config_int(r, "num_local_experts", 8, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 2, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = true; /* softmax over all and renormalization equals softmax over the chosen */
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}
static void parse_shared(struct config_reader *r, struct config *c) {
    parse(r, c);
    c->shared_inter = config_int(r, "shared_intermediate_size", 0, 0, 1 << 20);
}

static void parse_swa(struct config_reader *r, struct config *c) {
    parse_shared(r, c);
    granite_read_swa(r, c);
}

#define LAYER "model.layers.%d."
#define NAMES \
    NAMES_GQA("model."), .shared_gate_proj = LAYER "shared_mlp.input_linear", \
                         .shared_up = LAYER "shared_mlp.input_linear", .shared_down = LAYER "shared_mlp.output_linear"
#define ARCH(types, name, parser) \
    { \
        .model_types = types, .title = name, .parse = parser, \
        .names = {NAMES, .router = LAYER "block_sparse_moe.router.layer", \
                  .expert_gate = LAYER "block_sparse_moe.input_linear", \
                  .expert_up = LAYER "block_sparse_moe.input_linear", \
                  .expert_down = LAYER "block_sparse_moe.output_linear"}, \
        .layout = { \
            .experts = true, \
            .has_suffix = true, \
            .gate_up = GATE_UP_STACKED, \
            .dense_gate_up = GATE_UP_STACKED \
        } \
    }
static const char *const types[] = {"granitemoe", NULL}, *const with_shared[] = {"granitemoeshared", NULL},
                         *const swa[] = {"granitemoe_swa", NULL};
const struct arch arch_granitemoe = ARCH(types, "Granite MoE", parse),
                  arch_granitemoeshared = ARCH(with_shared, "Granite MoE, shared", parse_shared);
const struct arch arch_granitemoe_swa = {
    .model_types = swa,
    .title = "Granite MoE SWA",
    .parse = parse_swa,
    .names = {NAMES, .sinks = LAYER "self_attn.sinks", .router = LAYER "block_sparse_moe.router",
              .expert_gate = LAYER "block_sparse_moe.experts.gate_up_proj",
              .expert_up = LAYER "block_sparse_moe.experts.gate_up_proj",
              .expert_down = LAYER "block_sparse_moe.experts.down_proj"},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED, .dense_gate_up = GATE_UP_STACKED},
};
