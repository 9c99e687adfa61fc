#pragma once
/* Shared by the generations of Ling. */
#include "engine/model/deepseek.h"

extern const char *const bailing_keys[][2]; /* key_aliases of struct arch */
/* Reads the leading dense layers, experts and the router. is_v3: scores are sigmoids with a selection bias where config.json does not say. */
void bailing_read_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d, bool is_v3);
/* Sets the mixer of a complete group's layers, except its last one, to `kind`. Without is_required no layer has it. */
void bailing_read_groups(struct config_reader *r, struct config *c, bool is_required, enum mixer kind);
/* Reads lightning attention of the layers that it has, after c->rope and the number of heads. */
void bailing_read_lightning(struct config_reader *r, struct config *c);
