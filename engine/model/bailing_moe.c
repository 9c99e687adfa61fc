/* Ling and Ring, 1.x and 2.0, Sarvam and Param2: GQA with q, k and v in one matrix, leading dense layers, shared
 * experts. Version 2 and Sarvam have per-head norms of q and k and DeepSeek-V3's router; version 1 has a softmax
 * router. Reference: the vendor's modeling_bailing_moe_v2.py; vLLM, models/bailing_moe, models/param2moe. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/bailing.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .norm = true, .groups = 1, .topk_group = 1};

void bailing_read_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d, bool is_v3) {
    static const char *const scores[] = {"softmax", "sigmoid", NULL}, *const dtypes[] = {"fp32", NULL};
    deepseek_experts(r, c, d);
    c->shared_inter =
        c->shared_inter / c->moe_inter * config_int(r, "moe_shared_expert_intermediate_size", c->moe_inter, 1, 1 << 20);
    config_choice(r, "router_dtype", dtypes, 0);
    c->score = config_choice(r, "score_function", scores, is_v3) ? SCORE_SIGMOID : SCORE_SOFTMAX;
    deepseek_groups(r, c, d->groups, d->topk_group);
    c->router_bias = config_bool(r, "moe_router_enable_expert_bias", is_v3);
}

static void parse_with(struct config_reader *r, struct config *c, bool is_v3) {
    config_read_gqa(r, c);
    c->qk_norm = config_bool(r, "use_qk_norm", false) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = config_bool(r, "use_qkv_bias", false);
    c->o_bias = config_bool(r, "use_bias", false);
    if (!config_bool(r, "use_rmsnorm", true)) config_fail(r, "'use_rmsnorm' is false: the reference has RMSNorm only");
    config_ignore(r, "max_window_layers"); /* windows need use_sliding_window, which is refused unless false */
    config_ignore(r, "embedding_dropout"), config_ignore(r, "output_dropout"),
        config_ignore(r, "mtp_loss_scaling_factor");
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF of Ling 1 only */
    config_read_rope(r, c, c->head_dim, 600000);
    bailing_read_experts(r, c, &defaults, is_v3);
}
static void parse(struct config_reader *r, struct config *c) { parse_with(r, c, false); }
/* Sarvam 30B. Reference: transformers, models/sarvam_moe, which saves it with the common names of keys, without those
 * of the router. */
static void parse_sarvam(struct config_reader *r, struct config *c) {
    parse_with(r, c, true);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = config_bool(r, config_either(r, "use_qkv_bias", "attention_bias"), false);
}
/* Its moe_shared_expert_intermediate_size is that of all shared experts together. */
static void parse_param2(struct config_reader *r, struct config *c) {
    parse_with(r, c, true);
    if (config_has(r, "moe_shared_expert_intermediate_size"))
        c->shared_inter = config_int(r, "moe_shared_expert_intermediate_size", 0, 1, 1 << 20);
    if (c->n_group > 1)
        config_fail(r, "'n_group' is %d: transformers and vLLM rank groups of experts of this family differently",
                    c->n_group);
}

static const char *const types[] = {"bailing_moe", "bailing_moe_v2", NULL};
const char *const bailing_keys[][2] = {
    {"n_routed_experts", "num_experts"}, {"n_shared_experts", "num_shared_experts"}, {NULL, NULL}};
const struct arch arch_bailing_moe = {.model_types = types,
                                      .title = "Bailing MoE",
                                      .parse = parse,
                                      .key_aliases = bailing_keys,
                                      .names = {BAILING_NAMES, BAILING_GQA_NAMES},
                                      .layout = {.qkv = true}};
static const char *const sarvam[] = {"sarvam_moe", NULL};
const struct arch arch_sarvam_moe = {.model_types = sarvam,
                                     .title = "Sarvam MoE",
                                     .defaults = {.topk = 6},
                                     .parse = parse_sarvam,
                                     .key_aliases = bailing_keys,
                                     .names = {BAILING_NAMES, BAILING_GQA_NAMES},
                                     .layout = {.qkv = true}};
static const char *const param2[] = {"param2moe", NULL};
const struct arch arch_param2moe = {.model_types = param2,
                                    .title = "Param2 MoE",
                                    .parse = parse_param2,
                                    .key_aliases = bailing_keys,
                                    .names = {BAILING_NAMES, BAILING_GQA_NAMES},
                                    .layout = {.qkv = true}};
