/* StableLM (3B, Zephyr, 2 1.6B): dense GQA with layer norms, a quarter of each head rotated; attention and FFN side by
 * side in some. Reference: transformers, models/stablelm. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    if (config_bool(r, "qk_layernorm", false))
        config_fail(r, "'qk_layernorm' is true: hearth has no norms with weights for each head");
    config_read_dense(r, c);
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->qkv_bias = config_bool(r, "use_qkv_bias", false);
    c->rope.default_partial_factor = config_num(r, "rope_pct", 0.25, 0, 1);
    config_read_rope(r, c, c->head_dim, 10000);
    if (!config_bool(r, "use_parallel_residual", false)) return;
    c->parallel_block = true;
    c->arch = &arch_stablelm_parallel, c->names = &c->arch->names;
    config_keep_stream(c);
}

static const char *const types[] = {"stablelm", "stablelm_epoch", NULL}, *const none[] = {NULL};
static const char *const keys[][2] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};
const struct arch arch_stablelm = {.model_types = types,
                                   .title = "StableLM",
                                   .norm_eps = 1e-5,
                                   .parse = parse,
                                   .names = {NAMES_GQA("model."), NAMES_DENSE("model.")},
                                   .key_aliases = keys};
/* attention and FFN side by side after one norm */
const struct arch arch_stablelm_parallel = {
    .model_types = none,
    .title = "StableLM",
    .names = {NAMES_ATTENTION("model."), .attn_norm = "model.layers.%d.input_layernorm",
              .ffn_norm = "model.layers.%d.input_layernorm", NAMES_DENSE("model.")}};
