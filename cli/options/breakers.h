#pragma once
/* --dry-sequence-breakers: a JSON list of texts, as struct dry has them. */
#include "base/json.h"

enum { BREAKERS_BYTES = 256 };                               /* DRY_BREAKER_BYTES */
#define BREAKERS_DEFAULT "[\"\\n\", \":\", \"\\\"\", \"*\"]" /* those of llama.cpp */
/* Reads a list. ERR_USAGE: not a list of texts, an empty text, or more than fits. */
int breakers_read(const struct json *list, char out[BREAKERS_BYTES], struct error *e);
/* The same of its JSON text; "none" is an empty list, NULL the default. */
int breakers_parse(const char *text, char out[BREAKERS_BYTES], struct error *e);
