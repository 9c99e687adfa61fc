/* openPangu-Ultra-MoE: DeepSeek-V3's attention and experts with norms around both blocks; a sigmoid router over all experts at once. Its first configs have
 * names of their own for DeepSeek's keys, those of version 1.1 do not. References: the vendor's modeling code, and vLLM, models/openpangu, for 1.1. */
#include "engine/base/ops.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {.scale = 2.5, .dense = 3, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};
static const char *const first_keys[][2] = {{"q_lora_rank", "attention_q_lora_dim"},
                                            {"kv_lora_rank", "attention_kv_lora_dim"},
                                            {"qk_nope_head_dim", "attention_qk_dim"},
                                            {"qk_rope_head_dim", "attention_qk_rope_dim"},
                                            {"v_head_dim", "attention_v_dim"},
                                            {"n_routed_experts", "num_routed_experts"},
                                            {"n_shared_experts", "num_shared_experts"},
                                            {"first_k_dense_replace", "num_dense_layers"},
                                            {NULL, NULL}};

static void parse(struct config_reader *r, struct config *c) {
    if (config_has(r, "attention_kv_lora_dim")) r->key_aliases = first_keys;
    deepseek_attention(r, c);
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: hearth reads no such tensors of this family");
    if (!config_bool(r, "sandwich_norm", false)) config_fail(r, "'sandwich_norm' is not true: hearth knows this family with norms around both blocks only");
    deepseek_experts(r, c, &defaults);
    c->score = SCORE_SIGMOID;
    c->n_group = c->topk_group = 1;
    c->router_bias = config_bool(r, "router_enable_expert_bias", false);
    c->n_mtp = config_int(r, "num_mtp_layers", c->n_mtp, 0, 16);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"pangu_ultra_moe", NULL};
const struct arch arch_openpangu = {.model_types = types,
                                    .title = "openPangu-Ultra-MoE",
                                    .norm_eps = 1e-5,
                                    .defaults = {.topk = 8, .theta = 25600000},
                                    .parse = parse,
                                    .names = {NAMES_ENDS("model."), .attn_norm = L "input_layernorm", .attn_out_norm = L "post_attention_layernorm",
                                              .ffn_norm = L "pre_mlp_layernorm", .ffn_out_norm = L "post_mlp_layernorm", .q = L "self_attn.q_proj",
                                              .o = L "self_attn.o_proj", DEEPSEEK_MLA_NAMES("model."), NAMES_ROUTER("model."),
                                              .router_bias = L "mlp.e_score_correction_bias", NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts"),
                                              NAMES_DENSE("model.")}};
