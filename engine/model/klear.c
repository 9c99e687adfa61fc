/* Klear: Qwen3's attention; a sigmoid router with a selection bias, whose experts and shared expert are mixed by a
 * softmax over two learned numbers per token. Reference: mlx-lm's Klear, which like the published model's other readers
 * makes no use of routed_scaling_factor. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_ignore(r, "routed_scaling_factor"); /* see above */
    config_ignore(r, "moe_aux_loss_coeff");    /* training only */
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 500000);
    config_read_sparse_step(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = c->moe_inter * config_int(r, "n_shared_experts", 0, 1, 64);
    c->shared_gate = c->mixes_shared = true;
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->score = SCORE_SIGMOID;
    c->router_bias = true;
    c->routed_scale = 1;
}

#define L "model.layers.%d.mlp."
static const char *const types[] = {"Klear", NULL};
const struct arch arch_klear = {
    .model_types = types,
    .title = "Klear",
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), .router_bias = L "expert_bias",
              NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts"), .shared_gate = L "coefficient",
              NAMES_DENSE("model.")},
};
