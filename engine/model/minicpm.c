/* MiniCPM and MiniCPM 4: Llama with factors of embeddings, of what blocks add to the residual stream, and of logits.
 * Reference: modeling_minicpm.py of openbmb's checkpoints. */
#include <math.h>

#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    c->embed_scale = (float)config_num(r, "scale_emb", 1, 1e-9, 1e6);
    c->residual_scale = (float)(config_num(r, "scale_depth", 1, 1e-9, 1e6) / sqrt(c->n_layers));
    c->logit_scale = (float)(config_int(r, "dim_model_base", 1, 1, 1 << 24) / (double)c->hidden);
    config_ignore(r, "mup_denominator"); /* of training */
    if (config_has(r, "sparse_config"))
        config_fail(r,
                    "'sparse_config' asks for attention to selected blocks; hearth computes MiniCPM without that key");
}

static const char *const types[] = {"minicpm", NULL};
const struct arch arch_minicpm = {
    .model_types = types,
    .title = "MiniCPM",
    .defaults = {.tied = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_DENSE("model.")},
};
