/* Apertus: GQA with norms of heads, dense FFNs of one matrix with xIELU, whose numbers are learned. Reference: mlx-lm,
 * models/apertus, and transformers, models/apertus. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"xielu", NULL};
    config_read_dense(r, c);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = c->learned_xielu = true;
    c->glu = (struct glu){.xielu_p = 0.8f, .xielu_n = 0.8f, .xielu_beta = 0.5f}; /* of layers without weights */
    c->qk_norm = config_bool(r, "qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    if (config_bool(r, "post_norm", false))
        config_fail(r, "'post_norm' is true: the reference norms before its blocks");
    config_read_rope(r, c, c->head_dim, 12000000);
}

#define M "model."
#define L M "layers.%d."
static const char *const types[] = {"apertus", NULL};
const struct arch arch_apertus = {
    .model_types = types,
    .title = "Apertus",
    .norm_eps = 1e-5,
    .defaults = {.own_activation = true},
    .parse = parse,
    .names = {NAMES_ATTENTION(M), NAMES_QK_NORM(M), .attn_norm = L "attention_layernorm",
              .ffn_norm = L "feedforward_layernorm", .dense_gate = L "mlp.up_proj", .dense_down = L "mlp.down_proj",
              .xielu = {L "mlp.act_fn.alpha_p", L "mlp.act_fn.alpha_n", L "mlp.act_fn.beta"}},
    .skipped_tensors = (const char *const[]){"act_fn.eps", NULL},
};
