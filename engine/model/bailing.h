#pragma once
/* Shared by the generations of Ling. */
#include "engine/model/deepseek.h"

extern const char *const bailing_keys[][2]; /* key_aliases of struct arch */
/* Reads the leading dense layers, experts and the router. is_v3: scores are sigmoids with a selection bias where config.json does not say. */
void bailing_read_experts(struct config_reader *r, struct config *c, const struct deepseek_defaults *d, bool is_v3);
