#pragma once
/* Parses a whole config.json: finds the family, lets it read its keys, checks the result, and refuses keys that no
 * reader used. */
#include "engine/model/config.h"

/* Reads a config.json. `what` names it in errors. force: unknown keys are logged instead of refused. ERR_MODEL. */
int config_parse(struct config *c, const struct json *root, const char *what, bool force, struct error *e);
