#pragma once
/* The numbers of tokens in hashed n-grams (config.ngram_numbers). */
#include "engine/weights/weights.h"

/* Derives them from the checkpoint's tokenizer, in w->ngram_ids, and config.ngram_end from the token there. ERR_MODEL:
 * there are not as many as the config says. */
int ngram_ids_load(struct weights *w, const char *dir, struct error *e);
