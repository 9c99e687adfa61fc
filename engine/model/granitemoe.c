/* Granite MoE, without and with a shared expert: GQA, stacked experts in every layer, softmax over the chosen logits; factors of the embeddings, the scores,
 * the residual stream and the logits. Reference: transformers, models/granitemoe and models/granitemoeshared. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only: it stores rotated pairs adjacently */
    config_read_rope(r, c, c->head_dim, 10000);
    c->attn_scale = (float)config_num(r, "attention_multiplier", 1, 1e-9, 1e6);
    c->embed_scale = (float)config_num(r, "embedding_multiplier", 1, 1e-9, 1e6);
    c->residual_scale = (float)config_num(r, "residual_multiplier", 1, 1e-9, 1e6);
    c->logit_scale = (float)(1 / config_num(r, "logits_scaling", 1, 1e-9, 1e6));
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

#define LAYER "model.layers.%d."
#define ARCH(types, name, parser) \
    { \
        .model_types = types, .title = name, .parse = parser, \
        .names = {NAMES_GQA("model."), \
                  .router = LAYER "block_sparse_moe.router.layer", \
                  .expert_gate = LAYER "block_sparse_moe.input_linear", \
                  .expert_up = LAYER "block_sparse_moe.input_linear", \
                  .expert_down = LAYER "block_sparse_moe.output_linear", \
                  .shared_gate_proj = LAYER "shared_mlp.input_linear", \
                  .shared_up = LAYER "shared_mlp.input_linear", \
                  .shared_down = LAYER "shared_mlp.output_linear"}, \
        .layout = { \
            .experts = true, \
            .has_suffix = true, \
            .gate_up = GATE_UP_STACKED, \
            .dense_gate_up = GATE_UP_STACKED \
        } \
    }
static const char *const types[] = {"granitemoe", NULL}, *const with_shared[] = {"granitemoeshared", NULL};
const struct arch arch_granitemoe = ARCH(types, "Granite MoE", parse), arch_granitemoeshared = ARCH(with_shared, "Granite MoE, shared", parse_shared);
