/* MiniCPM and MiniCPM 4: Llama with factors of embeddings, of what blocks add to the residual stream, and of logits.
 * MiniCPM 3: the same factors around DeepSeek-V2's MLA, which rotates halves. Reference: modeling_minicpm.py of
 * openbmb's checkpoints, and transformers, models/minicpm3. */
#include <math.h>

#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

/* The arguments are defaults. */
static void read_factors(struct config_reader *r, struct config *c, double embed, double depth, int base) {
    c->embed_scale = (float)config_num(r, "scale_emb", embed, 1e-9, 1e6);
    c->residual_scale = (float)(config_num(r, "scale_depth", depth, 1e-9, 1e6) / sqrt(c->n_layers));
    c->logit_scale = (float)(config_int(r, "dim_model_base", base, 1, 1 << 24) / (double)c->hidden);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    read_factors(r, c, 1, 1, 1);
    config_ignore(r, "mup_denominator"); /* of training */
    if (config_has(r, "sparse_config"))
        config_fail(r,
                    "'sparse_config' asks for attention to selected blocks; hearth computes MiniCPM without that key");
}

static void parse_3(struct config_reader *r, struct config *c) {
    c->v_dim = c->hidden / config_int(r, "num_attention_heads", 0, 1, 1024);
    deepseek_attention(r, c);
    c->rope.interleaved = false;
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: the vendor's code has none");
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    read_factors(r, c, 12, 1.4, 256);
}

static const char *const types[] = {"minicpm", NULL}, *const third[] = {"minicpm3", NULL};
const struct arch arch_minicpm = {
    .model_types = types,
    .title = "MiniCPM",
    .defaults = {.tied = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_DENSE("model.")},
};
const struct arch arch_minicpm3 = {
    .model_types = third,
    .title = "MiniCPM 3",
    .norm_eps = 1e-5,
    .defaults = {.tied = true},
    .parse = parse_3,
    .names = {NAMES_USUAL("model."), DEEPSEEK_MLA_NAMES("model."), NAMES_DENSE("model.")},
};
