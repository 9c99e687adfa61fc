#pragma once
/* Shared by families with gated DeltaNet. */
#include "engine/model/arch.h"
#include "engine/model/names.h"

/* Reads attention, DeltaNet and experts, without the choice of layers with experts. attention: what layer_types calls a
 * layer with attention. */
void qwen3_next_parse(struct config_reader *r, struct config *c, const char *attention);

/* Reads the sizes of gated DeltaNet. k_heads, v_heads: defaults */
void qwen3_next_read_delta(struct config_reader *r, struct config *c, int k_heads, int v_heads);

/* model: prefix of the language model's tensor names */
#define QWEN3_NEXT_NAMES(model) \
    NAMES_GQA(model), NAMES_QK_NORM(model), \
        .delta_qkvz = model "layers.%d.linear_attn.in_proj_qkvz", \
        .delta_ba = model "layers.%d.linear_attn.in_proj_ba", .delta_qkv = model "layers.%d.linear_attn.in_proj_qkv", \
        .delta_z = model "layers.%d.linear_attn.in_proj_z", .delta_b = model "layers.%d.linear_attn.in_proj_b", \
        .delta_a = model "layers.%d.linear_attn.in_proj_a", .delta_out = model "layers.%d.linear_attn.out_proj", \
        .delta_conv = model "layers.%d.linear_attn.conv1d", .delta_rate = model "layers.%d.linear_attn.A_log", \
        .delta_dt = model "layers.%d.linear_attn.dt_bias", .delta_norm = model "layers.%d.linear_attn.norm", \
        NAMES_ROUTER(model), NAMES_SHARED(model, "shared_expert"), \
        .shared_gate = model "layers.%d.mlp.shared_expert_gate", NAMES_DENSE(model)
