/* Aria, language model only: GQA, experts in every layer, stacked and transposed, softmax over the chosen logits,
 * shared experts. Reference: transformers, models/aria. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"silu", NULL};
    if (r->outer) {
        config_skip_vision(r, c);
        config_ignore(r, "projector_patch_to_query_dict"), config_ignore(r, "max_value_projector_patch_to_query_dict"),
            config_ignore(r, "ignore_index");
    }
    /* names the activation of shared experts; routed experts have SiLU always */
    config_choice(r, "hidden_act", acts, 0);
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: hearth has no biases of shared experts");
    config_read_rope(r, c, c->head_dim, 10000);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->n_experts = config_int(r, "moe_num_experts", 8, 1, 4096);
    c->topk = config_int(r, "moe_topk", 2, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 4096, 1, 1 << 20);
    c->shared_inter = config_int(r, "moe_num_shared_experts", 2, 0, 64) * c->moe_inter;
    c->norm_topk = true; /* softmax over all and renormalization equals softmax over the chosen */
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define ARCH(types, member, m, lm_head) \
    { \
        .model_types = types, .title = "Aria", .text_config_key = member, .defaults = {.own_activation = true}, \
        .parse = parse, \
        .names = {.embed = m "embed_tokens", \
                  .norm = m "norm", \
                  .head = lm_head, \
                  NAMES_NORMS_BEFORE(m), \
                  .q = m "layers.%d.self_attn.q_proj", \
                  .k = m "layers.%d.self_attn.k_proj", \
                  .v = m "layers.%d.self_attn.v_proj", \
                  .o = m "layers.%d.self_attn.o_proj", \
                  .router = m "layers.%d.mlp.router", \
                  .expert_gate = m "layers.%d.mlp.experts.fc1", \
                  .expert_up = m "layers.%d.mlp.experts.fc1", \
                  .expert_down = m "layers.%d.mlp.experts.fc2", \
                  NAMES_SHARED(m, "shared_experts")}, \
        .layout = { \
            .experts = true, \
            .has_suffix = true, \
            .transposed_down = true, \
            .transposed_gate_up = true, \
            .gate_up = GATE_UP_STACKED \
        } \
    }
static const char *const with_vision[] = {"aria", NULL}, *const text[] = {"aria_text", NULL};
const struct arch arch_aria = ARCH(with_vision, "text_config", "language_model.model.", "language_model.lm_head");
const struct arch arch_aria_text = ARCH(text, NULL, "model.", "lm_head");
