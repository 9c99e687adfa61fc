#pragma once
/* Models that other programs keep: LM Studio's ORG/NAME folders, the downloads of llama.cpp, and ollama's blobs, which
 * its manifests name. */
#include "cli/options/model_list.h"

/* Adds them; what cannot be read adds nothing. ERR_MEMORY. */
int model_stores_list(struct model_list *l);
/* Writes ollama's name of one of its blobs. false: the path is none. */
bool model_stores_name(const char *path, char *out, size_t cap);
