#pragma once
#include "base/error.h"
#include "base/json.h"
#include "base/mem.h"

/* Mistral's params.json, which Mistral Large 3 has instead of config.json: builds the config of the same meaning in the
 * arena; it points into params. Unknown keys keep their names, so that config_parse refuses them. ERR_MODEL names the
 * key. */
int params_json_config(struct arena *a, const struct json *params, const char *what, struct json *config,
                       struct error *e);
