/* nanochat: GQA whose q and k are rotated backwards, then normed, FFNs with squared ReLU; no norm has weights, and
 * embeddings are normed, too. Reference: transformers, models/nanochat. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu2", NULL};
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = QK_NORM_PLAIN;
    c->qk_norm_after_rope = true;
    c->unit_norms = c->embed_norm_unit = true;
    c->rope.backwards = true;
    config_read_rope(r, c, c->head_dim, 10000);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
    c->dense_inter = config_int(r, "intermediate_size", 8192, 1, 1 << 20);
    c->logit_cap =
        (float)config_num(r, "final_logit_softcapping", config_is_null(r, "final_logit_softcapping") ? 0 : 15, 0, 1e6);
}

static const char *const types[] = {"nanochat", NULL};
const struct arch arch_nanochat = {
    .model_types = types,
    .title = "nanochat",
    .defaults = {.vocab = 50304, .hidden = 768, .layers = 12, .context = 2048, .heads = 6, .own_activation = true},
    .parse = parse,
    /* the norms have no tensors */
    .names = {NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.fc1", .dense_down = "model.layers.%d.mlp.fc2"},
};
