/* Falcon (7B, 40B, 180B, 2 11B): attention and FFN side by side, FFNs without gate, one matrix of q, k and v. 7B has
 * one KV head and one layer norm before both blocks; the others have several KV heads, whose rows of q, k and v are
 * pieces of that matrix, and in 40B and 180B each block has a norm of its own. Reference: transformers, models/falcon.
 */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"

static void parse(struct config_reader *r, struct config *c) {
    if (config_bool(r, "alibi", false))
        config_fail(r, "'alibi' is true: hearth has no biases of scores by distance without weights");
    config_ignore(r, "ff_factor"), config_ignore(r, "n_embed"); /* stated by the sizes */
    config_read_gqa(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 4 * c->hidden, 1, 1 << 20);
    config_read_ungated(r, c, UNGATED_GELU);
    const bool grouped = config_bool(r, "new_decoder_architecture", false);
    if (config_bool(r, "multi_query", true) && !grouped) c->n_kv_heads = 1;
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->qkv_bias = c->o_bias = c->dense_bias = config_bool(r, "bias", false);
    c->qkv_pieces = c->n_kv_heads;
    config_read_rope(r, c, c->head_dim, 10000);
    const int norms = config_int(r, "num_ln_in_parallel_attn", grouped ? 2 : 1, 1, 2);
    if (!config_bool(r, "parallel_attn", true) || (norms == 2 && !grouped)) {
        config_fail(r, "'parallel_attn' is false, or 'num_ln_in_parallel_attn' is 2 without "
                       "'new_decoder_architecture': hearth knows no published model of that kind");
        return;
    }
    if (norms == 2) c->arch = &arch_falcon_norms, c->names = &c->arch->names;
    c->parallel_block = true;
    config_keep_stream(c);
}

#define L "transformer.h.%d."
#define NAMES \
    .embed = "transformer.word_embeddings", .norm = "transformer.ln_f", .head = "lm_head", \
    .q = L "self_attention.query_key_value", .k = L "self_attention.query_key_value", \
    .v = L "self_attention.query_key_value", .o = L "self_attention.dense", .dense_gate = L "mlp.dense_h_to_4h", \
    .dense_down = L "mlp.dense_4h_to_h"
static const char *const types[] = {"falcon", "RefinedWebModel", NULL}, *const none[] = {NULL};
static const char *const keys[][2] = {{"num_hidden_layers", "n_layer"},
                                      {"num_attention_heads", "n_head"},
                                      {"num_key_value_heads", "num_kv_heads"},
                                      {"intermediate_size", "ffn_hidden_size"},
                                      {"rms_norm_eps", "layer_norm_epsilon"},
                                      {"hidden_act", "activation"},
                                      {NULL, NULL}};
const struct arch arch_falcon = {.model_types = types,
                                 .title = "Falcon",
                                 .norm_eps = 1e-5,
                                 .defaults = {.context = 2048, .tied = true, .own_activation = true},
                                 .parse = parse,
                                 .names = {NAMES, .attn_norm = L "input_layernorm", .ffn_norm = L "input_layernorm"},
                                 .layout = {.qkv = true},
                                 .key_aliases = keys};
/* a norm for each block */
const struct arch arch_falcon_norms = {.model_types = none,
                                       .title = "Falcon",
                                       .names = {NAMES, .attn_norm = L "ln_attn", .ffn_norm = L "ln_mlp"},
                                       .layout = {.qkv = true}};
