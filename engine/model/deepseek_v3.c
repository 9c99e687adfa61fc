/* DeepSeek-V3, R1, V3.1, Kimi-K2 and JoyAI-LLM-Flash (same architecture, other sizes), Kimi-K2.5's language model, and
 * Sarvam 105B. Reference: the vendor's inference/model.py; config.json as published. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

/* Without rotary dimensions the tables of angles have the least size, and no layer reads them. */
static void read_no_rope(struct config *c) {
    c->rope = (struct rope_config){.kind = ROPE_DEFAULT, .dim = 2, .theta = 10000, .truncate = true};
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
}

float deepseek_attn_scale(const struct config *c) {
    double scale = 1 / sqrt(c->head_dim);
    if (c->rope.kind != ROPE_DEFAULT && c->rope.mscale_all_dim > 0 && c->rope.factor > 1) {
        double m = 0.1 * c->rope.mscale_all_dim * log(c->rope.factor) + 1;
        scale *= m * m;
    }
    return (float)scale;
}

void deepseek_mla(struct config_reader *r, struct config *c) {
    c->attn = ATTN_MLA;
    c->n_heads = config_int(r, "num_attention_heads", 0, 1, 1024);
    c->n_kv_heads = 1; /* the latent cache has one */
    c->q_lora = config_has(r, "q_lora_rank") ? config_int(r, "q_lora_rank", 0, 1, 16384) : 0;
    c->kv_lora = config_int(r, "kv_lora_rank", 0, 1, 8192);
    c->qk_nope = config_int(r, "qk_nope_head_dim", 0, 1, 1024);
    c->qk_rope = config_int(r, "qk_rope_head_dim", -1, 0, 1024);
    c->v_dim = config_int(r, "v_head_dim", c->v_dim, 1, 1024); /* MiniCPM 3 has a default */
    c->head_dim = c->qk_nope + c->qk_rope;
    config_ignore(r, "head_dim"); /* some configs repeat qk_rope_head_dim here */
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->rope.interleaved = config_bool(r, "rope_interleave", true);
    c->split_kv_b = config_bool(r, "split_kv_b", false); /* GGUF only */
    if (c->qk_rope) config_read_rope(r, c, c->qk_rope, c->arch->defaults.theta > 0 ? c->arch->defaults.theta : 10000);
    else read_no_rope(c);
    c->attn_scale = deepseek_attn_scale(c);
}
void deepseek_attention(struct config_reader *r, struct config *c) {
    deepseek_mla(r, c);
    const int kv = config_int(r, "num_key_value_heads", c->n_heads, 1, 1024),
              qk = config_int(r, "qk_head_dim", c->head_dim, 1, 4096);
    if (kv != c->n_heads)
        config_fail(r, "'num_key_value_heads' is %d, heads are %d: MLA has one for each", kv, c->n_heads);
    if (qk != c->head_dim) config_fail(r, "'qk_head_dim' is %d, its parts make %d", qk, c->head_dim);
}

const struct deepseek_defaults deepseek_v3_defaults = {
    .scale = 2.5, .dense = 3, .shared = 1, .norm = true, .groups = 8, .topk_group = 4};

void deepseek_moe(struct config_reader *r, struct config *c, const struct deepseek_defaults *d) {
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "n_routed_experts", 0, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", c->arch->defaults.topk, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    int shared = config_int(r, "n_shared_experts", config_is_null(r, "n_shared_experts") ? 0 : d->shared, 0, 64);
    c->shared_inter = shared * c->moe_inter;
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", d->scale, 0, 1e4);
    c->norm_topk = config_bool(r, "norm_topk_prob", d->norm);
}

void deepseek_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d) {
    deepseek_moe(r, c, d);
    int first = config_int(r, "first_k_dense_replace", d->dense, 0, CONFIG_MAX_LAYERS),
        freq = config_int(r, "moe_layer_freq", 1, 1, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= first && i % freq == 0;
    config_read_mlp_types(r, c);
}

void deepseek_groups(struct config_reader *r, struct config *c, int groups, int topk_group) {
    c->n_group = config_int(r, "n_group", groups, 1, 4096);
    c->topk_group = config_int(r, "topk_group", topk_group, 1, 4096);
    c->group_top2 = true;
    c->router_bias = true;
    if (c->n_group > 1 && c->n_experts / c->n_group < 2)
        config_fail(r, "%d experts in %d groups: a group needs two", c->n_experts, c->n_group);
}

void deepseek_router(struct config_reader *r, struct config *c, const struct deepseek_defaults *d) {
    static const char *const scores[] = {"softmax", "sigmoid", "noaux_tc", NULL}, *const methods[] = {"noaux_tc", NULL};
    /* dots.llm1 repeats the method there and means sigmoid */
    c->score = config_choice(r, "scoring_func", scores, 1) ? SCORE_SIGMOID : SCORE_SOFTMAX;
    config_choice(r, "topk_method", methods, 0);
    deepseek_groups(r, c, d->groups, d->topk_group);
}

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &deepseek_v3_defaults);
    deepseek_router(r, c, &deepseek_v3_defaults);
}

static const char *const types[] = {"deepseek_v3", "kimi_k2", "joyai_llm_flash", NULL};
const struct arch arch_deepseek_v3 = {.model_types = types,
                                      .title = "DeepSeek-V3",
                                      .defaults = {.topk = 8},
                                      .parse = parse,
                                      .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME}};

/* Sarvam 105B: all experts are one group. Reference: transformers, models/sarvam_mla. */
static const struct deepseek_defaults sarvam_defaults = {
    .scale = 2.5, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};
static void parse_sarvam(struct config_reader *r, struct config *c) {
    /* of training and other programs; use_qk_norm means the norm of the latent, which MLA always has */
    static const char *const unused[] = {"embedding_dropout", "output_dropout", "attn_implementation",
                                         "default_theta",     "use_qk_norm",    "num_mtp_layers"};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) config_ignore(r, unused[i]);
    const bool has_bias = config_bool(r, "moe_router_enable_expert_bias", true);
    deepseek_attention(r, c);
    const int q = config_int(r, "q_head_dim", c->head_dim, 1, 4096);
    if (q != c->head_dim) config_fail(r, "'q_head_dim' is %d, its parts make %d", q, c->head_dim);
    deepseek_experts(r, c, &sarvam_defaults);
    deepseek_router(r, c, &sarvam_defaults);
    c->router_bias = has_bias;
}

static const char *const sarvam[] = {"sarvam_mla", NULL};
const struct arch arch_sarvam_mla = {.model_types = sarvam,
                                     .title = "Sarvam",
                                     .defaults = {.topk = 8},
                                     .parse = parse_sarvam,
                                     .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME}};

/* Keys of images (vision/tower_kimi.c) and of training. */
static void parse_k25(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    config_ignore(r, "media_placeholder_token_id");
    config_ignore(r, "projection_hidden_size");
    config_ignore(r, "ignore_index");
    parse(r, c);
}

static const char *const k25[] = {"kimi_k25", NULL};
const struct arch arch_kimi_k25 = {
    .model_types = k25,
    .title = "Kimi-K2.5",
    .defaults = {.topk = 8},
    .text_config_key = "text_config",
    .parse = parse_k25,
    .names = {DEEPSEEK_LANGUAGE_MODEL_NAMES, NAMES_EXPERTS(DEEPSEEK_LANGUAGE_MODEL),
              .router_bias = DEEPSEEK_LANGUAGE_MODEL "layers.%d.mlp.gate.e_score_correction_bias"},
};
