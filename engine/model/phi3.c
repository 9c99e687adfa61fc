/* Phi-3, Phi-3.5 and Phi-4 (mini): dense GQA with one matrix for q, k, v and one for gate and up, and LongRoPE over a
 * part of a head. Sequences up to original_max_position_embeddings use the short factors, longer ones the long factors
 * at all positions. Reference: Microsoft's modeling_phi3.py; transformers, models/phi3. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"embd_pdrop", "resid_pdrop", "full_attn_mod", "interpolate_factor", NULL};
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    config_ignore(r, "original_max_position_embeddings"); /* unused without LongRoPE */
    c->head_bias = config_bool(r, "lm_head_bias", false);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
}

static const char *const types[] = {"phi3", NULL};
const struct arch arch_phi3 = {
    .model_types = types,
    .title = "Phi-3",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_ENDS("model."), NAMES_NORMS_BEFORE("model."), .o = "model.layers.%d.self_attn.o_proj",
              .q = "model.layers.%d.self_attn.qkv_proj", .k = "model.layers.%d.self_attn.qkv_proj",
              .v = "model.layers.%d.self_attn.qkv_proj", .dense_gate = "model.layers.%d.mlp.gate_up_proj",
              .dense_up = "model.layers.%d.mlp.gate_up_proj", .dense_down = "model.layers.%d.mlp.down_proj"},
    .layout = {.qkv = true, .dense_gate_up = GATE_UP_STACKED},
};
