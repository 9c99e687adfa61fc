/* gpt-oss: GQA with biases, a sink per head and a window on every other layer; softmax over the chosen experts, with
 * clamped gate and up. Reference: transformers, models/gpt_oss; OpenAI's gpt_oss/torch/model.py. Experts in MXFP4 as
 * published, or in F32, BF16 or F16 as transformers writes them: transposed. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", true);
    c->sinks = true;
    config_read_rope(r, c, c->head_dim, 150000);
    if (!config_has(r, "rope_parameters") && !config_has(r, "rope_scaling")) {
        c->rope.kind = ROPE_YARN;
        c->rope.factor = 32, c->rope.original_max = 4096, c->rope.beta_fast = 32, c->rope.beta_slow = 1;
        c->rope.truncate = false;
    }
    config_ignore(r, "initial_context_length"); /* also in rope_scaling */
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    config_read_windows(r, c, config_int(r, "sliding_window", 128, 1, 1 << 24), c->n_layers);
    c->n_experts = config_int(r, "num_local_experts", 128, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 4, 1, 64);
    const int per_token = config_int(r, "experts_per_token", c->topk, 1, 64);
    if (per_token != c->topk) config_fail(r, "'experts_per_token' is %d, 'num_experts_per_tok' %d", per_token, c->topk);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->router_shift = c->expert_bias = true;
    c->glu = (struct glu){.limit = (float)config_num(r, "swiglu_limit", 7, 1e-6, 1e6),
                          .alpha = (float)config_num(r, "swiglu_alpha", 1.702, 1e-6, 1e6),
                          .shift = 1};
    c->score = SCORE_SOFTMAX; /* softmax over all and renormalization equals softmax over the chosen */
    c->norm_topk = true;
    c->routed_scale = 1;
}

static const char *const types[] = {"gpt_oss", NULL};
#define ARCH(...) \
    { \
        .model_types = types, .title = "gpt-oss", .norm_eps = 1e-5, .parse = parse, __VA_ARGS__, .names = { \
            NAMES_GQA("model."), \
            NAMES_STACKED("model."), \
            .sinks = "model.layers.%d.self_attn.sinks", \
            .router = "model.layers.%d.mlp.router" \
        } \
    }
static const struct arch transposed =
    ARCH(.layout = {
             .experts = true, .transposes_gate_up = true, .transposed_down = true, .gate_up = GATE_UP_INTERLEAVED});
const struct arch arch_gpt_oss =
    ARCH(.layout = {.experts = true, .gate_up = GATE_UP_INTERLEAVED}, .transposed = &transposed);
