/* LongCat-Flash: each published layer has two attention blocks and two dense FFNs, and routed experts that read the first FFN's input and whose output is added
 * with the second one's. hearth reads it as two layers: the first keeps its FFN input, which the second routes, with its own FFN as a shared expert. MLA with
 * scaled latents; some experts return their input. Reference: transformers, models/longcat_flash. */
#include <math.h>

#include "engine/base/ops.h"
#include "engine/model/deepseek.h"

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"identity", NULL}, *const dtypes[] = {"float32", NULL};
    c->dense_inter = c->shared_inter = config_int(r, "ffn_hidden_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "n_routed_experts", 0, 1, 4096);
    c->n_idle_experts = config_int(r, "zero_expert_num", 0, 0, 4096);
    c->topk = config_int(r, "moe_topk", 0, 1, 64);
    c->moe_inter = config_int(r, "expert_ffn_hidden_size", 0, 1, 1 << 20);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 6, 0, 1e4);
    config_choice(r, "zero_expert_type", kinds, 0);
    config_choice(r, "router_dtype", dtypes, 0);
    c->router_shift = config_bool(r, "router_bias", false);
    c->router_bias = true;
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const methods[] = {"MLA", NULL};
    config_choice(r, "attention_method", methods, 0);
    deepseek_attention(r, c);
    if (config_bool(r, "mla_scale_q_lora", true) && c->q_lora) c->q_latent_scale = sqrtf((float)c->hidden / (float)c->q_lora);
    if (config_bool(r, "mla_scale_kv_lora", true)) c->kv_latent_scale = sqrtf((float)c->hidden / (float)c->kv_lora);
    read_experts(r, c);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].keeps_input = i % 2 == 0, c->layer[i].moe = c->layer[i].routes_kept = i % 2;
}

#define L "model.layers.%d."
static const char *const types[] = {"longcat_flash", NULL}, *const aliases[][2] = {{"num_hidden_layers", "num_layers"}, {NULL, NULL}};
const struct arch arch_longcat_flash = {
    .model_types = types,
    .title = "LongCat-Flash",
    .norm_eps = 1e-5,
    .sublayers = 2,
    .parse = parse,
    .key_aliases = aliases,
    .names = {NAMES_ENDS("model."),
              .attn_norm = L "input_layernorm.%d",
              .ffn_norm = L "post_attention_layernorm.%d",
              .q = L "self_attn.%d.q_proj",
              .q_a = L "self_attn.%d.q_a_proj",
              .q_a_norm = L "self_attn.%d.q_a_layernorm",
              .q_b = L "self_attn.%d.q_b_proj",
              .kv_a = L "self_attn.%d.kv_a_proj_with_mqa",
              .kv_a_norm = L "self_attn.%d.kv_a_layernorm",
              .kv_b = L "self_attn.%d.kv_b_proj",
              .o = L "self_attn.%d.o_proj",
              .router = L "mlp.router.classifier",
              .router_bias = L "mlp.router.e_score_correction_bias",
              NAMES_EXPERTS("model."),
              .shared_gate_proj = L "mlps.%d.gate_proj",
              .shared_up = L "mlps.%d.up_proj",
              .shared_down = L "mlps.%d.down_proj",
              .dense_gate = L "mlps.%d.gate_proj",
              .dense_up = L "mlps.%d.up_proj",
              .dense_down = L "mlps.%d.down_proj"},
};
