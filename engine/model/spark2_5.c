/* Spark 2.5: GQA with q, k and v in one matrix, gates per head, windows and rotations by kind of layer; dense FFNs with
 * the exact GELU. Reference: mlx-lm, models/spark2_5. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const gates[] = {"sigmoid", NULL}, *const acts[] = {"gelu", NULL};
    config_read_dense(r, c);
    config_choice(r, "hidden_act", acts, 0);
    c->glu = (struct glu){.is_erf = true};
    config_choice(r, "gate_attn_act_mode", gates, 0);
    c->attn_gate = config_bool(r, "headwise_attn_output_gate", true) ? ATTN_GATE_HEAD : ATTN_GATE_NONE;
    if (config_bool(r, "attention_bias", false) || config_bool(r, "mlp_bias", false))
        config_fail(r, "'attention_bias' or 'mlp_bias' is true: no published model has them");
    const int window = config_int(r, "sliding_window", 0, 1, 1 << 24);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    else
        for (int i = 0; i < c->n_layers; i++) c->layer[i].window = i % 4 == 3 ? 0 : window;
    config_read_ropes(r, c, 10000, 10000);
}

#define M "model."
#define L M "layers.%d."
static const char *const types[] = {"spark2_5", NULL};
#define ARCH(embedding, ...) \
    { \
        .model_types = types, .title = "Spark 2.5", .defaults = {.own_activation = true, .tied = true}, \
        .parse = parse, \
        .names = {.embed = M embedding, \
                  .norm = M "norm", \
                  .head = "lm_head", \
                  NAMES_NORMS_BEFORE(M), \
                  .q = L "self_attn.q_k_v_proj", \
                  .k = L "self_attn.q_k_v_proj", \
                  .v = L "self_attn.q_k_v_proj", \
                  .o = L "self_attn.out_proj", \
                  .attn_gate = L "self_attn.g_proj", \
                  NAMES_DENSE(M)}, \
        .layout = {.qkv = true}, __VA_ARGS__ \
    }
/* Converters rename the embedding. */
static const struct arch renamed = ARCH("embed_tokens", .variant = NULL);
const struct arch arch_spark2_5 = ARCH("embedding", .variant = &renamed, .variant_tensor = M "embed_tokens.weight");
