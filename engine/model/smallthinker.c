/* SmallThinker: GQA with windows and rotations listed by layer; experts with ReLU gates, whose router reads the stream
 * before attention without a norm and chooses by its logits. Reference: the vendor's modeling_smallthinker.py. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c) {
    bool rotated[CONFIG_MAX_LAYERS], sliding[CONFIG_MAX_LAYERS], moe[CONFIG_MAX_LAYERS];
    const int window = config_int(r, "sliding_window_size", 4096, 1, 1 << 24);
    const bool ropes = config_read_flags(r, c, "rope_layout", rotated),
               windows = config_read_flags(r, c, "sliding_window_layout", sliding),
               kinds = config_read_flags(r, c, "moe_layer_layout", moe);
    for (int i = 0; i < c->n_layers; i++) {
        c->layer[i].rope = ropes && !rotated[i] ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST;
        c->layer[i].window = windows && sliding[i] ? window : 0;
        c->layer[i].moe = true;
        if (kinds && !r->rc && !moe[i])
            config_fail(
                r, "'moe_layer_layout' of layer %d is 0; hearth supports SmallThinker with experts in every layer", i);
    }
    config_ignore(r, "sliding_window"), config_ignore(r, "sliding_window_pattern"); /* for vLLM, the same again */
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu", NULL};
    config_choice(r, "hidden_act", acts, 0);
    config_ignore(r, "model_name");
    config_ignore(r, "dense_ffn_hidden_size"); /* of layers without experts */
    if (!config_bool(r, "moe_enable_early_router", true))
        config_fail(r, "'moe_enable_early_router' is false: hearth routes before attention");
    config_read_gqa(r, c);
    config_read_rope(r, c, c->head_dim, 1000000);
    read_layers(r, c);
    c->glu = (struct glu){.is_relu = true};
    c->n_experts = config_int(r, "moe_num_primary_experts", 32, 1, 4096);
    c->topk = config_int(r, "moe_num_active_primary_experts", 4, 1, 64);
    c->moe_inter = config_int(r, "moe_ffn_hidden_size", 768, 1, 1 << 20);
    /* both rank logits */
    c->score = config_bool(r, "moe_primary_router_apply_softmax", false) ? SCORE_SOFTMAX : SCORE_SIGMOID_BY_LOGIT;
    c->norm_topk = true;
    c->routed_scale = 1;
    c->reads_early = EARLY_ROUTER;
}

#define L "model.layers.%d."
static const char *const types[] = {"smallthinker", NULL};
const struct arch arch_smallthinker = {
    .model_types = types,
    .title = "SmallThinker",
    .defaults = {.vocab = 151936,
                 .hidden = 1536,
                 .layers = 32,
                 .context = 131072,
                 .heads = 12,
                 .kv_heads = 2,
                 .head_dim = 128,
                 .tied = true,
                 .own_activation = true},
    .parse = parse,
    .names = {NAMES_GQA("model."), .router = L "block_sparse_moe.primary_router",
              .expert_gate = L "block_sparse_moe.experts.%d.gate", .expert_up = L "block_sparse_moe.experts.%d.up",
              .expert_down = L "block_sparse_moe.experts.%d.down"},
};
