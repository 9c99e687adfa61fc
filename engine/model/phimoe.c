/* Phi-3.5-MoE: GQA, LayerNorm, biases, an LM head with a bias, LongRoPE, and its own router (sparse mixer). Reference:
 * Microsoft's modeling_phimoe.py; transformers, models/phimoe. Sequences up to original_max_position_embeddings use the
 * short factors, longer ones the long factors at all positions. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->head_bias = config_bool(r, "lm_head_bias", false);
    config_read_rope(r, c, c->head_dim, 1000000);
    config_ignore(r, "original_max_position_embeddings"); /* unused without LongRoPE */
    int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i] = (struct layer_config){.moe = true, .window = window};
    c->n_experts = config_int(r, "num_local_experts", 16, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 2, 2, 2); /* the mixer supports two only */
    c->moe_inter = config_int(r, "intermediate_size", 6400, 1, 1 << 20);
    c->score = SCORE_MIXER;
    c->router_jitter = (float)config_num(r, "router_jitter_noise", 0.01, 0, 1);
    config_ignore(r, "input_jitter_noise"); /* training only */
    c->routed_scale = 1;
}

static const char *const types[] = {"phimoe", NULL};
const struct arch arch_phimoe = {
    .model_types = types,
    .title = "Phi-3.5-MoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_SPARSE("model.")},
};
