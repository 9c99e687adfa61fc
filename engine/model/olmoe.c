/* OLMoE: GQA with a norm over all heads of q and k, experts in every layer, a softmax router. Reference: transformers, models/olmoe; it clips queries and keys
 * after their norm. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_ALL;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->qkv_clip = (float)config_num(r, "clip_qkv", 0, 1e-6, 1e6);
    config_read_rope(r, c, c->head_dim, 10000);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->n_experts = config_int(r, "num_experts", 64, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 2048, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

static const char *const types[] = {"olmoe", NULL};
const struct arch arch_olmoe = {
    .model_types = types,
    .title = "OLMoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."), NAMES_EXPERTS("model.")},
};
