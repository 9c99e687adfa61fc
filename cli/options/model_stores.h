#pragma once
/* Models that other programs keep: LM Studio's ORG/NAME folders, the downloads of llama.cpp, and ollama's blobs, which
 * its manifests name. */
#include "cli/options/model_list.h"

/* Adds them; what cannot be read adds nothing. ERR_MEMORY. */
int model_stores_list(struct model_list *l);
/* Adds ollama's models with a LoRA adapter, which hearth does not apply and the list above leaves out. ERR_MEMORY. */
int model_stores_list_adapted(struct model_list *l);
/* Writes the name that the list has for a file, such as ORG/NAME:QUANT. false: the file is none of theirs. */
bool model_stores_name(const char *path, char *out, size_t cap);
