/* openPangu-Ultra-MoE: DeepSeek-V3's attention and experts with norms around both blocks; a sigmoid router over all
 * experts at once. Its first configs have names of their own for DeepSeek's keys, those of version 1.1 do not.
 * References: the vendor's modeling code, and vLLM, models/openpangu, for 1.1. Pangu-Pro-MoE: GQA with biases, experts
 * of which the best of each group is chosen by a softmax over all; its weight is multiplied by a factor of the expert.
 * References: PanguProMoE in the vendor's vllm-ascend and in vllm-mindspore. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 3, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};
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
    if (!config_bool(r, "sandwich_norm", false))
        config_fail(r, "'sandwich_norm' is not true: hearth supports this family with norms around both blocks only");
    deepseek_experts(r, c, &defaults);
    c->score = SCORE_SIGMOID;
    c->n_group = c->topk_group = 1;
    c->router_bias = config_bool(r, "router_enable_expert_bias", false);
    c->n_mtp = config_int(r, "num_mtp_layers", c->n_mtp, 0, 16);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

/* Neither reference reads norm_topk_prob: weights are not normalized. */
static void parse_pro(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = true;
    config_read_rope(r, c, c->head_dim, 10000);
    config_read_sparse_step(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 0, 0, 1 << 20);
    for (int i = 0; i < c->n_layers && !c->dense_inter && !r->rc; i++)
        if (!c->layer[i].moe) config_fail(r, "layer %d is dense and 'intermediate_size' is missing", i);
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "shared_expert_intermediate_size", 0, 0, 1 << 20);
    config_ignore(r, "norm_topk_prob");
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
    c->n_group = c->topk_group = c->topk;
    c->group_each = c->expert_scale = true;
    if (!r->rc && c->n_experts % c->topk)
        config_fail(r, "%d experts do not divide among %d groups", c->n_experts, c->topk);
}

#define L "model.layers.%d."
static const char *const types[] = {"pangu_ultra_moe", NULL};
const struct arch arch_openpangu = {
    .model_types = types,
    .title = "openPangu-Ultra-MoE",
    .norm_eps = 1e-5,
    .defaults = {.topk = 8, .theta = 25600000},
    .parse = parse,
    .names = {NAMES_ENDS("model."), .attn_norm = L "input_layernorm", .attn_out_norm = L "post_attention_layernorm",
              .ffn_norm = L "pre_mlp_layernorm", .ffn_out_norm = L "post_mlp_layernorm", .q = L "self_attn.q_proj",
              .o = L "self_attn.o_proj", DEEPSEEK_MLA_NAMES("model."), NAMES_ROUTER("model."),
              .router_bias = L "mlp.e_score_correction_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")}};
static const char *const pro[] = {"PanguProMoE", NULL};
const struct arch arch_pangu_pro = {.model_types = pro,
                                    .title = "Pangu-Pro-MoE",
                                    .norm_eps = 1e-5,
                                    .parse = parse_pro,
                                    .names = {NAMES_GQA("model."), NAMES_ROUTER("model."),
                                              .expert_scale = L "mlp.router_scale", NAMES_EXPERTS("model."),
                                              NAMES_SHARED("model.", "shared_expert"), NAMES_DENSE("model.")}};
