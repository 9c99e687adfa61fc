/* Grok-1 and Grok-2: GQA with capped scores, norms before and after each block, a capped softmax router of experts with
 * GELU gates, scaled embeddings and logits. Grok-2 multiplies the sum of experts and a dense FFN by sqrt(1/2); hearth
 * reads the FFN as a shared expert. References: xAI's model.py; SGLang, models/grok. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_attention(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"original", "default", NULL}, *const caps[] = {"tanh", NULL},
                             *const scaling[] = {"scaling_factor",
                                                 "original_max_position_embeddings",
                                                 "extrapolation_factor",
                                                 "attn_factor",
                                                 "beta_fast",
                                                 "beta_slow",
                                                 "global_attn_every_n"};
    config_read_gqa(r, c);
    /* of scores, despite its name */
    c->attn_scale = (float)config_num(r, "attn_output_multiplier", (double)c->attn_scale, 1e-6, 1e3);
    c->score_cap = (float)config_num(r, "attn_logit_softcapping", config_num(r, "max_attn_value", 30, 0, 1e6), 0, 1e6);
    config_choice(r, "attn_logit_softcapping_method", caps, 0);
    config_choice(r, "rope_type", kinds, 0); /* without a scaled rotation, the rest of the keys has no effect */
    for (size_t i = 0; i < sizeof scaling / sizeof *scaling; i++) config_ignore(r, scaling[i]);
    config_read_rope(r, c, c->head_dim, 10000);
    if (config_int(r, "sliding_window_size", -1, -1, 1 << 24) > 0)
        config_fail(r, "'sliding_window_size' is set; hearth supports Grok without windows");
    const int temperature_len = config_int(r, "attn_temperature_len", -1, -1, 1 << 24);
    if (temperature_len == 1) config_fail(r, "'attn_temperature_len' is 1, whose logarithm is 0");
    c->temperature_len = temperature_len > 0 ? temperature_len : 0;
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"gelu", NULL};
    config_choice(r, "hidden_act", acts, 0);
    read_attention(r, c);
    const bool residual = config_bool(r, "residual_moe", false);
    const int inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    const float alpha = 2 * sqrtf(2 / (float)M_PI);
    c->glu = (struct glu){.alpha = alpha, .cubic = 0.044715f * alpha};
    c->n_experts = config_int(r, "num_local_experts", config_int(r, "num_experts", 8, 1, 4096), 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 2, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", inter, 1, 1 << 20);
    c->router_cap = (float)config_num(r, "router_logit_softcapping", 30, 0, 1e6);
    c->score = SCORE_SOFTMAX;
    /* vLLM's keys; without a dense FFN the norm of the sum hides the difference */
    c->norm_topk = config_bool(r, "moe_router_renormalize", config_bool(r, "moe_renormalize", !residual));
    c->routed_scale = 1;
    if (residual) c->shared_inter = inter, c->shared_scale = c->routed_scale = sqrtf(0.5f);
    c->embed_scale = (float)config_num(r, "embedding_multiplier_scale", 78.38367176906169, 1e-6, 1e6);
    c->logit_scale = (float)config_num(r, "output_multiplier_scale", 0.5773502691896257, 1e-6, 1e6);
    c->logit_cap = (float)config_num(r, "final_logit_softcapping", 0, 0, 1e6);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
}

#define L "model.layers.%d."
static const char *const types[] = {"grok", NULL};
const struct arch arch_grok = {
    .model_types = types,
    .title = "Grok",
    .norm_eps = 1e-5,
    .defaults = {.own_activation = true},
    .parse = parse,
    .names = {NAMES_ATTENTION("model."), .attn_norm = L "pre_attn_norm", .attn_out_norm = L "post_attn_norm",
              .ffn_norm = L "pre_moe_norm", .ffn_out_norm = L "post_moe_norm", NAMES_SPARSE("model."),
              .shared_gate_proj = L "mlp.gate_proj", .shared_up = L "mlp.up_proj", .shared_down = L "mlp.down_proj"},
};
