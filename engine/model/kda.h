#pragma once
/* Shared by families with layers of Kimi delta attention. */
#include "engine/model/config.h"

/* Reads linear_attn_config: the layers with KDA, counted from `first`, and the sizes of KDA. Other layers have attention. */
void kda_read_layers(struct config_reader *r, struct config *c, int first);

/* p: prefix of the names of a layer's mixer */
#define KDA_NAMES(p) \
    .k = p "k_proj", .v = p "v_proj", .kda_q_conv = p "q_conv1d", .kda_k_conv = p "k_conv1d", .kda_v_conv = p "v_conv1d", .kda_beta = p "b_proj", \
    .mix_rate = p "A_log", .mix_dt = p "dt_bias", .mix_norm = p "o_norm", .mix_out = p "o_proj"
/* Projections of decays and gates with a low rank. */
#define KDA_LOW_NAMES(p) .kda_decay = p "f_a_proj", .kda_decay_up = p "f_b_proj", .kda_gate = p "g_a_proj", .kda_gate_up = p "g_b_proj"
