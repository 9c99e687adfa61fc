#pragma once
/* Shared by the generations of Ling. */
#include "engine/model/config.h"

extern const char *const bailing_keys[][2]; /* key_aliases of struct arch */
/* Reads the leading dense layers, experts and the router. */
void bailing_read_experts(struct config_reader *r, struct config *c);
