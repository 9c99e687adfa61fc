#pragma once
/* Shared by the generations of Ling. */
#include "engine/model/deepseek.h"

extern const char *const bailing_keys[][2]; /* key_aliases of struct arch */
/* Reads the leading dense layers, experts and the router. is_v3: scores are sigmoids with a selection bias where
 * config.json does not say. */
void bailing_read_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d, bool is_v3);
/* Names that all have; of heads, whose output projection is `dense`; of lightning attention. */
#define BAILING_LAYER "model.layers.%d."
#define BAILING_NAMES \
    .embed = "model.word_embeddings", .norm = "model.norm", .head = "lm_head", NAMES_NORMS_BEFORE("model."), \
    NAMES_ROUTER("model."), .router_bias = BAILING_LAYER "mlp.gate.expert_bias", NAMES_EXPERTS("model."), \
    NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")
#define BAILING_HEAD_NAMES \
    .o = BAILING_LAYER "attention.dense", .q_norm = BAILING_LAYER "attention.query_layernorm", \
    .k_norm = BAILING_LAYER "attention.key_layernorm"
#define BAILING_GQA_NAMES \
    .q = BAILING_LAYER "attention.query_key_value", .k = BAILING_LAYER "attention.query_key_value", \
    .v = BAILING_LAYER "attention.query_key_value", BAILING_HEAD_NAMES
#define BAILING_LIGHTNING_NAMES \
    .mix_in = BAILING_LAYER "attention.query_key_value", .mix_gate = BAILING_LAYER "attention.g_proj", \
    .mix_norm = BAILING_LAYER "attention.g_norm", .mix_out = BAILING_LAYER "attention.dense"
/* Sets the mixer of a complete group's layers, except its last one, to `kind`. Without is_required no layer has it. */
void bailing_read_groups(struct config_reader *r, struct config *c, bool is_required, enum mixer kind);
/* Reads lightning attention of the layers that it has, after c->rope and the number of heads. */
void bailing_read_lightning(struct config_reader *r, struct config *c);
