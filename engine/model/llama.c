/* Llama 2 and 3, and models of the same architecture (SmolLM2, Yi, ...): dense GQA. Reference: transformers, models/llama. */
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    config_has(r, "is_llama_config"), config_has(r, "transformers.js_config"); /* SmolLM2 */
}

static const char *const types[] = {"llama", NULL};
const struct arch arch_llama = {.model_types = types, .title = "Llama", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
