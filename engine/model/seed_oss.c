/* Seed-OSS: dense GQA with optional biases. Reference: transformers, models/seed_oss. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", true);
    c->o_bias = config_bool(r, "attention_out_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    config_ignore(r, "residual_dropout"); /* training only */
}

static const char *const types[] = {"seed_oss", NULL};
const struct arch arch_seed_oss = {
    .model_types = types, .title = "Seed-OSS", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
