/* GPT-NeoX (Pythia, GPT-NeoX-20B, Dolly, RedPajama): attention and FFN side by side, each after a layer norm of its
 * own, a quarter of each head rotated, FFNs without gate. q, k and v are one matrix, whose rows are ordered by head.
 * Reference: transformers, models/gpt_neox. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    config_read_ungated(r, c, UNGATED_GELU);
    c->norm = NORM_LAYER;
    c->norm_bias = c->dense_bias = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", true);
    if (c->n_kv_heads != c->n_heads)
        config_fail(r, "'num_key_value_heads' is %d of %d heads: the reference has as many", c->n_kv_heads, c->n_heads);
    c->qkv_pieces = c->n_heads;
    c->rope.default_partial_factor = 0.25;
    config_read_rope(r, c, c->head_dim, 10000);
    if (!config_bool(r, "use_parallel_residual", true)) return;
    c->parallel_block = true;
    config_keep_stream(c);
}

#define L "gpt_neox.layers.%d."
static const char *const types[] = {"gpt_neox", NULL}, *const keys[][2] = {{"rms_norm_eps", "layer_norm_eps"},
                                                                           {"rope_theta", "rotary_emb_base"},
                                                                           {"partial_rotary_factor", "rotary_pct"},
                                                                           {NULL, NULL}};
/* masks, which older versions of transformers saved */
static const char *const masks[] = {".attention.bias", ".attention.masked_bias", NULL};
#define ARCH(head_, ...) \
    { \
        .model_types = types, .title = "GPT-NeoX", .norm_eps = 1e-5, \
        .defaults = {.context = 2048, .own_activation = true}, .parse = parse, \
        .names = {.embed = "gpt_neox.embed_in", \
                  .norm = "gpt_neox.final_layer_norm", \
                  .head = head_, \
                  .attn_norm = L "input_layernorm", \
                  .ffn_norm = L "post_attention_layernorm", \
                  .q = L "attention.query_key_value", \
                  .k = L "attention.query_key_value", \
                  .v = L "attention.query_key_value", \
                  .o = L "attention.dense", \
                  .dense_gate = L "mlp.dense_h_to_4h", \
                  .dense_down = L "mlp.dense_4h_to_h"}, \
        .layout = {.qkv = true}, .skipped_tensors = masks, .key_aliases = keys, __VA_ARGS__ \
    }
/* as transformers 5 names the head */
static const struct arch renamed = ARCH("lm_head", .variant = NULL);
const struct arch arch_gpt_neox = ARCH("embed_out", .variant = &renamed, .variant_tensor = "lm_head.weight");
