/* Ling 3: Kimi delta attention with a bound on its decays, every few layers MLA with a gate per head, Ling 2's experts.
 * Reference: transformers, models/bailing_hybrid. Ling and Ring 2.5 and 2.6, of the same model_type: lightning
 * attention with rotated heads, and MLA without a gate. Reference: vLLM, models/bailing_moe_linear. */
#include "engine/model/bailing.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/kda.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 2, .shared = 1, .norm = true, .groups = 8, .topk_group = 4};

/* head_dim is that of KDA as published, and that of MLA's rotated part where transformers 5 saves KDA's sizes as keys
 * of their own. */
static void read_sizes(struct config_reader *r, struct config *c) {
    const int dim = config_int(r, "head_dim", config_has(r, "linear_head_dim"), 1, DELTA_MAX_K_DIM),
              taps = config_int(r, "short_conv_kernel_size", 4, 2, 64);
    c->kda.heads = config_int(r, "linear_num_heads", c->n_heads, 1, 1024);
    c->kda.dim = config_int(r, "linear_head_dim", dim, 1, DELTA_MAX_K_DIM);
    c->kda.taps = config_int(r, "linear_conv_kernel_dim", taps, 2, 64);
    if (config_has(r, "head_dim") && dim != c->kda.dim && dim != c->qk_rope)
        config_fail(r, "'head_dim' is %d: neither 'linear_head_dim', %d, nor 'qk_rope_head_dim', %d", dim, c->kda.dim,
                    c->qk_rope);
    if (config_has(r, "short_conv_kernel_size") && taps != c->kda.taps)
        config_fail(r, "'short_conv_kernel_size' is %d, 'linear_conv_kernel_dim' %d", taps, c->kda.taps);
}

static void read_kda(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"kda", NULL};
    const bool grouped = config_has(r, "layer_group_size"), listed = config_has(r, "layer_types");
    bailing_read_groups(r, c, grouped || !listed, MIXER_KDA);
    kda_read_types(r, c, grouped);
    config_choice(r, "linear_attention", kinds, 0);
    if (!config_bool(r, "no_kda_lora", true))
        config_fail(r, "'no_kda_lora' is false: the reference's projections of gates have full rank");
    read_sizes(r, c);
    const double bound = config_num(r, "kda_lower_bound", -5, -100, 0);
    if (config_bool(r, "kda_safe_gate", true)) c->kda.bound = (float)bound;
    c->kda.rates_are_positive = config_bool(r, "kda_rates_are_positive", false); /* GGUF only */
}

/* Reads a list with a limit of the activation per layer, 0: none, into glu_limit[which]. */
static void read_limits(struct config_reader *r, struct config *c, const char *key, int which) {
    const struct json *list = config_layer_list(r, c, key, true);
    for (int i = 0; list && i < c->n_layers && !r->rc; i++) {
        const struct json *v = json_at(list, (uint32_t)i);
        const double limit = v->type == JSON_NULL ? 0 : json_num(v, -1);
        if (!(limit >= 0 && limit <= 1e6)) config_fail(r, "'%s' of layer %d is not a number of 0 or more", key, i);
        else if (c->layer[i].moe) c->layer[i].glu_limit[which] = (float)limit;
    }
}

/* Whether the config is one of Ling 2.5 or 2.6: it has groups of heads to norm, and no key of KDA. */
static bool has_lightning(struct config_reader *r) {
    static const char *const kda[] = {
        "linear_attention",       "no_kda_lora",      "kda_safe_gate",   "kda_lower_bound",
        "short_conv_kernel_size", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"};
    for (size_t i = 0; i < sizeof kda / sizeof *kda; i++)
        if (config_has(r, kda[i])) return false;
    return config_has(r, "group_norm_size");
}

/* The tensors' names in files with lightning attention; their layers' attention has no gate. */
static const struct arch lightning;
static void parse_lightning(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"mla", NULL};
    deepseek_mla(r, c);
    c->rope.dim = c->qk_rope;
    /* Ling 3's default is another */
    if (!config_has(r, "rope_theta") && !config_has(r, "rope_parameters")) c->rope.theta = 600000;
    const int qk = config_int(r, "qk_head_dim", c->head_dim, 1, 4096);
    if (qk != c->head_dim) config_fail(r, "'qk_head_dim' is %d, its parts make %d", qk, c->head_dim);
    if (!r->rc && (c->qk_rope < 2 || c->qk_rope % 2))
        config_fail(r, "'qk_rope_head_dim' is %d: must be even, and at least 2", c->qk_rope);
    config_ignore(r, "num_key_value_heads"); /* of GQA; MLA and lightning attention have one for each head */
    config_ignore(r, "mtp_loss_scaling_factor");
    if (c->qkv_bias || config_bool(r, "use_qkv_bias", false) || config_bool(r, "use_bias", false))
        config_fail(r, "its projections have biases: hearth has none of them");
    bailing_read_lightning(r, c);
    config_choice(r, "full_attention_type", kinds, 0);
    bailing_read_experts(r, c, &defaults, true);
    c->arch = &lightning, c->names = &lightning.names;
}

static void parse(struct config_reader *r, struct config *c) {
    if (has_lightning(r)) {
        parse_lightning(r, c);
        return;
    }
    deepseek_attention(r, c);
    c->rope.dim = c->qk_rope; /* partial_rotary_factor is of families before */
    if (!r->rc && (c->qk_rope < 2 || c->qk_rope % 2))
        config_fail(r, "'qk_rope_head_dim' is %d: must be even, and at least 2", c->qk_rope);
    config_ignore(r, "use_qk_norm"); /* KDA always normalizes, MLA never */
    config_ignore(r, "mtp_loss_scaling_factor");
    if (c->qkv_bias || config_bool(r, "use_qkv_bias", false) || config_bool(r, "use_bias", false))
        config_fail(r, "its projections have biases: the reference's have none");
    static const char *const gates[] = {"head_wise", "element_wise", NULL};
    c->attn_gate =
        config_choice(r, "gated_attention_proj_granularity_type", gates, 0) ? ATTN_GATE_ELEMENT : ATTN_GATE_HEAD;
    c->attn_gate_kind = GATE_SIGMOID;
    read_kda(r, c);
    bailing_read_experts(r, c, &defaults, true);
    c->glu.clamp_after = true; /* as the vendor's vLLM; transformers has no limits */
    read_limits(r, c, "expert_swiglu_limit_list", 0);
    read_limits(r, c, "share_expert_swiglu_limit_list", 1);
}

#define L BAILING_LAYER
static const char *const types[] = {"bailing_hybrid", NULL};
#define MLA_NAMES \
    BAILING_NAMES, .q = L "attention.q_proj", .q_a = L "attention.q_a_proj", .q_a_norm = L "attention.q_a_layernorm", \
                   .q_b = L "attention.q_b_proj", .kv_a = L "attention.kv_a_proj_with_mqa", \
                   .kv_a_norm = L "attention.kv_a_layernorm", .kv_b = L "attention.kv_b_proj"
static const struct arch lightning = {.model_types = types,
                                      .title = "Ling 2.5",
                                      .defaults = {.topk = 8},
                                      .parse = parse_lightning,
                                      .key_aliases = bailing_keys,
                                      .names = {MLA_NAMES, BAILING_HEAD_NAMES, BAILING_LIGHTNING_NAMES}};
/* The projections of the outputs of MLA and KDA are `dense` and o_proj in published files. transformers writes o_proj
 * for both, or from 5.24 `dense`. */
#define ARCH(mla_output, kda_output, ...) \
    { \
        .model_types = types, .title = "Ling 3", .defaults = {.topk = 8, .theta = 6e6}, .parse = parse, \
        .key_aliases = bailing_keys, __VA_ARGS__, .names = { \
            MLA_NAMES, \
            .o = L mla_output, \
            .attn_gate = L "attention.g_proj", \
            KDA_NAMES_OUT(L "attention.", kda_output), \
            .kda_decay = L "attention.f_proj", \
            .kda_gate = L "attention.g_proj" \
        } \
    }
static const struct arch published = ARCH("attention.dense", "o_proj", .variant = NULL);
static const struct arch saved =
    ARCH("attention.dense", "dense", .variant = &published, .variant_tensor = L "attention.o_proj.weight");
const struct arch arch_bailing_hybrid =
    ARCH("attention.o_proj", "o_proj", .variant = &saved, .variant_tensor = L "attention.dense.weight");
