/* Maple: GQA with norms of heads, of which a part turns in layers with a window and none in the others; Qwen3-MoE's
 * router, and experts with clamped activations. Reference: the vendor's modeling_maple.py, which clamps at 7. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    /* other names of published choices that the reference does not read */
    static const char *const unused[] = {"intermediate_size", "moe_shared_expert_intermediate_size", "qat_ternary",
                                         "quantize", "preaffine"};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) config_ignore(r, unused[i]);
    config_read_gqa(r, c);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = c->o_bias = config_bool(r, "use_bias", config_bool(r, "attention_bias", false));
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    config_read_windows(r, c, config_int(r, "sliding_window", 512, 1, 1 << 24), 0);
    const bool stops = config_bool(r, "nope_on_global_attention", true);
    for (int i = 0; i < c->n_layers; i++) {
        c->layer[i].moe = true;
        if (stops && !c->layer[i].window) c->layer[i].rope = LAYER_ROPE_NONE;
    }
    c->n_experts = config_int(r, "num_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->glu.limit = (float)config_num(r, "swiglu_limit", 7, 0, 1e6);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
    if (config_int(r, "num_shared_experts", 0, 0, 64))
        config_fail(r, "'num_shared_experts' is not 0: the reference has none");
    if (config_bool(r, "moe_router_enable_expert_bias", false))
        config_fail(r, "'moe_router_enable_expert_bias' is true: the reference has no selection bias");
}

#define M "model."
static const char *const types[] = {"maple", NULL};
const struct arch arch_maple = {
    .model_types = types,
    .title = "Maple",
    .parse = parse,
    .names = {.embed = M "word_embeddings",
              .norm = M "norm",
              .head = "lm_head",
              NAMES_QKVO(M),
              NAMES_NORMS_BEFORE(M),
              NAMES_QK_NORM(M),
              NAMES_ROUTER(M),
              NAMES_EXPERTS(M)},
};
