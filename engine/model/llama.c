/* Llama 2 and 3, and models of the same architecture (SmolLM2, Yi, ...): dense GQA. Arcee (AFM): the same with FFNs of one matrix before squared ReLU.
 * Reference: transformers, models/llama and models/arcee. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    config_has(r, "is_llama_config"), config_has(r, "transformers.js_config"); /* SmolLM2 */
}

static void parse_arcee(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu2", NULL};
    parse(r, c);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
}

static const char *const types[] = {"llama", NULL}, *const arcee[] = {"arcee", NULL};
const struct arch arch_llama = {.model_types = types, .title = "Llama", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_arcee = {
    .model_types = arcee,
    .title = "Arcee",
    .norm_eps = 1e-5,
    .defaults = {.inter = 18432, .own_activation = true},
    .parse = parse_arcee,
    .names = {NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.up_proj", .dense_down = "model.layers.%d.mlp.down_proj"},
};
