/* Snowflake Arctic: Llama's attention, and in each layer a dense FFN of the model's width beside the experts. Router
 * and experts read the stream before attention through a norm of their own; hearth reads the dense FFN as a shared
 * expert. Reference: the vendor's modeling_arctic.py; vLLM, models/arctic. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const training[] = {"moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity",
                                           "moe_token_dropping", "enable_expert_tensor_parallelism"};
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) config_ignore(r, training[i]);
    config_read_gqa(r, c);
    /* GGUF only, which stores rotated pairs adjacently */
    c->rope.interleaved = config_bool(r, "rope_interleave", false);
    config_read_rope(r, c, c->head_dim, 1000000);
    const int every = config_int(r, "moe_layer_frequency", 2, 1, CONFIG_MAX_LAYERS);
    if (every != 1)
        config_fail(r, "'moe_layer_frequency' is %d; hearth supports Arctic with experts in every layer, 1", every);
    if (!config_bool(r, "parallel_attn_mlp_res", false) || !config_bool(r, "use_residual", true))
        config_fail(r, "'parallel_attn_mlp_res' or 'use_residual' is false; hearth supports Arctic with a dense FFN "
                       "beside the experts");
    if (config_has(r, "sliding_window")) config_fail(r, "'sliding_window' is set: the reference has none");
    c->n_experts = config_int(r, "num_local_experts", 8, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 1, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 14336, 1, 1 << 20);
    c->shared_inter = c->hidden;
    c->norm_topk = c->topk > 1;
    c->routed_scale = 1;
    c->score = SCORE_SOFTMAX;
    c->reads_early = EARLY_ROUTED;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
}

#define L "model.layers.%d."
static const char *const types[] = {"arctic", NULL};
const struct arch arch_arctic = {
    .model_types = types,
    .title = "Arctic",
    .norm_eps = 1e-5,
    .defaults = {.vocab = 32000, .hidden = 4096, .layers = 32, .context = 4096, .heads = 32},
    .parse = parse,
    .names = {NAMES_ATTENTION("model."), .attn_norm = L "input_layernorm", .ffn_norm = L "residual_layernorm",
              .experts_norm = L "post_attention_layernorm", NAMES_SPARSE("model."),
              .shared_gate_proj = L "residual_mlp.w1", .shared_up = L "residual_mlp.w3",
              .shared_down = L "residual_mlp.w2"},
};
