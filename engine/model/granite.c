/* Granite 3: dense GQA with factors on embeddings, scores, what blocks add to the residual stream, and logits. Reference: transformers, models/granite. */
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    c->attn_scale = (float)config_num(r, "attention_multiplier", 1, 1e-9, 1e6);
    c->embed_scale = (float)config_num(r, "embedding_multiplier", 1, 1e-9, 1e6);
    c->residual_scale = (float)config_num(r, "residual_multiplier", 1, 1e-9, 1e6);
    c->logit_scale = (float)(1 / config_num(r, "logits_scaling", 1, 1e-9, 1e9));
}

static const char *const types[] = {"granite", NULL};
const struct arch arch_granite = {.model_types = types, .title = "Granite", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
