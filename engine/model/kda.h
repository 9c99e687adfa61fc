#pragma once
/* Shared by families with layers of Kimi delta attention. */
#include "engine/model/config_read.h"

/* Reads linear_attn_config: the layers with KDA, counted from `first`, and the sizes of KDA. Other layers have
 * attention. transformers 5 saves the sizes as keys of their own, beside this object or without it; a config without
 * the lists of layers has layer_types, which this does not read. */
void kda_read_layers(struct config_reader *r, struct config *c, int first);
/* Reads the sizes only, from linear_attn_config, opened as `in`, and those keys. */
void kda_read_sizes(struct config_reader *r, struct config *c, struct config_reader *in);
/* Reads which layers have KDA and which attention from layer_types, as transformers 5 saves it, if present. is_known:
 * other keys list the layers as well; the two must agree. */
void kda_read_types(struct config_reader *r, struct config *c, bool is_known);

/* p: prefix of the names of a layer's mixer; out: the name of its output projection */
#define KDA_NAMES_OUT(p, out) \
    .k = p "k_proj", .v = p "v_proj", .kda_q_conv = p "q_conv1d", .kda_k_conv = p "k_conv1d", \
    .kda_v_conv = p "v_conv1d", .kda_beta = p "b_proj", .mix_rate = p "A_log", .mix_dt = p "dt_bias", \
    .mix_norm = p "o_norm", .mix_out = p out
#define KDA_NAMES(p) KDA_NAMES_OUT(p, "o_proj")
/* Projections of decays and gates with a low rank. */
#define KDA_LOW_NAMES(p) \
    .kda_decay = p "f_a_proj", .kda_decay_up = p "f_b_proj", .kda_gate = p "g_a_proj", .kda_gate_up = p "g_b_proj"
