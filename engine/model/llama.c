/* Llama 2 and 3, and models of the same architecture (SmolLM2, Yi, IQuest-Coder, InternLM 2 and 3, ...): dense GQA.
 * CWM: the same with windows. Helium: neighbours rotated. Arcee (AFM): FFNs of one matrix before squared ReLU.
 * Reference: transformers, models/llama, models/internlm3, models/cwm, models/helium and models/arcee; the vendor's
 * modeling_internlm2.py. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_base(struct config_reader *r, struct config *c, double theta) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, theta);
}
static void parse(struct config_reader *r, struct config *c) {
    parse_base(r, c, 10000);
    config_ignore(r, "is_llama_config"), config_ignore(r, "transformers.js_config"); /* SmolLM2 */
}

static void parse_arcee(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu2", NULL};
    parse(r, c);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
}

/* InternLM 3: other names of the keys of biases. */
static void parse_internlm3(struct config_reader *r, struct config *c) {
    parse(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, config_either(r, "qkv_bias", "attention_bias"), false);
    c->dense_bias = config_bool(r, config_either(r, "bias", "mlp_bias"), false);
    if (c->qkv_bias != c->dense_bias) config_fail(r, "'qkv_bias' and 'bias' differ: the reference has no such model");
}

/* InternLM 2 and 2.5: q, k and v are one matrix, whose rows are ordered by KV head. */
static void parse_internlm2(struct config_reader *r, struct config *c) {
    parse(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "bias", false);
    if (c->qkv_bias) config_fail(r, "'bias' is true: hearth has none for matrices in pieces");
    c->qkv_pieces = c->n_kv_heads;
    config_ignore(r, "attn_implementation"), config_ignore(r, "pretraining_tp");
}
static void parse_helium(struct config_reader *r, struct config *c) {
    parse_base(r, c, 100000);
    c->o_bias = false;
    c->rope.interleaved = true;
}

/* CWM: windows in three of four layers. */
static void parse_cwm(struct config_reader *r, struct config *c) {
    parse(r, c);
    const int window = config_int(r, "sliding_window", 8192, 1, 1 << 24);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    else
        for (int i = 0; i < c->n_layers; i++) c->layer[i].window = i % 4 ? window : 0;
}

/* EXAONE 3 and 3.5: names of its own for keys and tensors. */
static void parse_exaone(struct config_reader *r, struct config *c) {
    parse(r, c);
    config_ignore(r, "embed_dropout");
}
static const char *const exaone[] = {"exaone", NULL}, *const exaone_keys[][2] = {{"num_hidden_layers", "num_layers"},
                                                                                 {"rms_norm_eps", "layer_norm_epsilon"},
                                                                                 {"hidden_act", "activation_function"},
                                                                                 {NULL, NULL}};
#define H "transformer.h.%d."
const struct arch arch_exaone = {.model_types = exaone,
                                 .title = "EXAONE",
                                 .norm_eps = 1e-5,
                                 .parse = parse_exaone,
                                 .key_aliases = exaone_keys,
                                 .names = {.embed = "transformer.wte",
                                           .norm = "transformer.ln_f",
                                           .head = "lm_head",
                                           .attn_norm = H "ln_1",
                                           .ffn_norm = H "ln_2",
                                           .q = H "attn.attention.q_proj",
                                           .k = H "attn.attention.k_proj",
                                           .v = H "attn.attention.v_proj",
                                           .o = H "attn.attention.out_proj",
                                           .dense_gate = H "mlp.c_fc_0",
                                           .dense_up = H "mlp.c_fc_1",
                                           .dense_down = H "mlp.c_proj"}};

static const char *const types[] = {"llama", "iquestcoder", NULL}, *const arcee[] = {"arcee", NULL},
                         *const internlm3[] = {"internlm3", NULL}, *const cwm[] = {"cwm", NULL},
                         *const internlm2[] = {"internlm2", NULL}, *const helium[] = {"helium", NULL};
const struct arch arch_llama = {
    .model_types = types, .title = "Llama", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_internlm3 = {.model_types = internlm3,
                                    .title = "InternLM 3",
                                    .norm_eps = 1e-5,
                                    .defaults = {.kv_heads = 2, .head_dim = 128},
                                    .parse = parse_internlm3,
                                    .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
#undef H
#define L "model.layers.%d."
const struct arch arch_internlm2 = {.model_types = internlm2,
                                    .title = "InternLM 2",
                                    .parse = parse_internlm2,
                                    .names = {.embed = "model.tok_embeddings",
                                              .norm = "model.norm",
                                              .head = "output",
                                              .attn_norm = L "attention_norm",
                                              .ffn_norm = L "ffn_norm",
                                              .q = L "attention.wqkv",
                                              .k = L "attention.wqkv",
                                              .v = L "attention.wqkv",
                                              .o = L "attention.wo",
                                              .dense_gate = L "feed_forward.w1",
                                              .dense_up = L "feed_forward.w3",
                                              .dense_down = L "feed_forward.w2"},
                                    .layout = {.qkv = true}};
const struct arch arch_helium = {.model_types = helium,
                                 .title = "Helium",
                                 .norm_eps = 1e-8,
                                 .defaults = {.kv_heads = 20, .head_dim = 128},
                                 .parse = parse_helium,
                                 .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_cwm = {.model_types = cwm,
                              .title = "CWM",
                              .norm_eps = 1e-5,
                              .defaults = {.kv_heads = 8, .head_dim = 128},
                              .parse = parse_cwm,
                              .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_arcee = {
    .model_types = arcee,
    .title = "Arcee",
    .norm_eps = 1e-5,
    .defaults = {.inter = 18432, .own_activation = true},
    .parse = parse_arcee,
    .names = {NAMES_GQA("model."), .dense_gate = "model.layers.%d.mlp.up_proj",
              .dense_down = "model.layers.%d.mlp.down_proj"},
};
