#pragma once
/* Shared by Step's generations. */
#include "engine/model/config_read.h"

/* Reads which layers have experts: moe_layers_enum is a text of their numbers, separated by commas, or a list of them.
 * first: without it, the first of them. */
void step3_read_moe_layers(struct config_reader *r, struct config *c, int first);
#define STEP3_EXPERT_NAMES \
    .router = "model.layers.%d.moe.gate", .expert_gate = "model.layers.%d.moe.gate_proj", \
    .expert_up = "model.layers.%d.moe.up_proj", .expert_down = "model.layers.%d.moe.down_proj", \
    .shared_gate_proj = "model.layers.%d.share_expert.gate_proj", .shared_up = "model.layers.%d.share_expert.up_proj", \
    .shared_down = "model.layers.%d.share_expert.down_proj"
