/* Ring-linear 2.0: lightning attention with rotated heads, every few layers Ling 2's GQA, its experts. Reference: vLLM,
 * models/bailing_moe_linear; mlx-lm, models/bailing_moe_linear, whose decays differ (lightning_slope()). */
#include "base/ops.h"
#include "engine/model/bailing.h"
#include "engine/model/config_common.h"

static const struct deepseek_defaults defaults = {.scale = 1, .shared = 1, .norm = true, .groups = 8, .topk_group = 4};

void bailing_read_groups(struct config_reader *r, struct config *c, bool is_required, enum mixer kind) {
    const int period = is_required ? config_int(r, "layer_group_size", 0, 1, CONFIG_MAX_LAYERS) : 1;
    const int whole = c->n_layers / period * period;
    for (int i = 0; i < whole; i++) c->layer[i].mixer = (uint8_t)((i + 1) % period ? kind : MIXER_ATTENTION);
}

void bailing_read_lightning(struct config_reader *r, struct config *c) {
    struct lightning_config *l = &c->lightning;
    bailing_read_groups(r, c, true, MIXER_LIGHTNING);
    *l = (struct lightning_config){.heads = c->n_heads,
                                   .dim = config_int(r, "head_dim", c->hidden / c->n_heads, 1, DELTA_MAX_K_DIM),
                                   .is_rotated = true};
    l->norm_groups = config_int(r, "group_norm_size", 1, 1, 1024);
    l->qk_norm = config_bool(r, "use_qk_norm", true);
    if (l->heads & (l->heads - 1))
        config_fail(r, "%d heads of lightning attention: hearth has its decays for powers of two only", l->heads);
    if (l->heads % l->norm_groups)
        config_fail(r, "'group_norm_size' is %d: %d heads do not divide by it", l->norm_groups, l->heads);
    if (c->rope.kind != ROPE_DEFAULT)
        config_fail(r, "'rope_scaling' is in force: hearth does not support that of lightning attention");
    const double partial = config_num(r, "partial_rotary_factor", 0, 0, 1);
    const int part = (int)(l->dim * partial), rotated = config_int(r, "rotary_dim", part, 0, l->dim);
    if (part && rotated != part)
        config_fail(r, "'rotary_dim' is %d, 'partial_rotary_factor' makes it %d", rotated, part);
    if (rotated < 2 || rotated % 2)
        config_fail(r, "%d dimensions of a head are rotated: 'partial_rotary_factor' is missing or too small", rotated);
    const bool same = rotated == c->rope.dim && !c->rope.interleaved;
    if (!same) c->second_rope = c->rope, c->second_rope.dim = rotated, c->second_rope.interleaved = false;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].mixer == MIXER_LIGHTNING) c->layer[i].rope = same ? LAYER_ROPE_FIRST : LAYER_ROPE_SECOND;
    /* kernels of other programs; windows need use_sliding_window */
    config_ignore(r, "linear_backend"), config_ignore(r, "max_window_layers");
    config_ignore(r, "embedding_dropout"), config_ignore(r, "output_dropout");
    if (config_bool(r, "linear_silu", false) || config_bool(r, "use_linear_silu", false) ||
        !config_bool(r, "linear_rope", true))
        config_fail(r, "'linear_silu' or 'linear_rope' differ from the published models'");
    if (!config_bool(r, "use_rmsnorm", true)) config_fail(r, "'use_rmsnorm' is false: the reference has RMSNorm only");
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    config_read_rope(r, c, c->head_dim, 600000);
    bailing_read_lightning(r, c);
    c->qk_norm = c->lightning.qk_norm ? QK_NORM_HEAD : QK_NORM_NONE;
    if (config_bool(r, "use_qkv_bias", false) || config_bool(r, "use_bias", false))
        config_fail(r, "its projections have biases: hearth has none of them");
    bailing_read_experts(r, c, &defaults, true);
}

static const char *const types[] = {"bailing_moe_linear", NULL};
const struct arch arch_bailing_moe_linear = {
    .model_types = types,
    .title = "Ring-linear",
    .defaults = {.topk = 8},
    .parse = parse,
    .key_aliases = bailing_keys,
    .names = {BAILING_NAMES, BAILING_GQA_NAMES, BAILING_LIGHTNING_NAMES},
    .layout = {.qkv = true},
};
