/* Mixtral: GQA, experts in every layer, softmax router renormalized over the chosen. Reference: transformers,
 * models/mixtral; a sliding window applies to every layer. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    /* GGUF only, which stores rotated pairs adjacently */
    c->rope.interleaved = config_bool(r, "rope_interleave", false);
    config_read_rope(r, c, c->head_dim, 1000000);
    if (config_bool(r, "attention_bias", false))
        config_fail(r, "'attention_bias' is true: Mixtral has no such tensors");
    int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i] = (struct layer_config){.moe = true, .window = window};
    c->n_experts = config_int(r, "num_local_experts", 8, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 2, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->score = SCORE_SOFTMAX;
    c->norm_topk = true;
    c->routed_scale = 1;
}

static const char *const types[] = {"mixtral", NULL};
const struct arch arch_mixtral = {
    .model_types = types,
    .title = "Mixtral",
    .norm_eps = 1e-5,
    .defaults = {.heads = 32, .kv_heads = 8},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_SPARSE("model.")},
};
