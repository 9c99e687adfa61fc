#pragma once
/* GGUF files of ollama's own converter, which its library has published until August 2026: other names of
 * architectures, keys and tensors, and metadata that is missing or wrong. Source: what ollama itself corrects before
 * llama.cpp reads such a file (llama/compat). Pure. */
#include "base/gguf_header.h"

/* Rewrites metadata and names of tensors in llama.cpp's terms. Other files stay as they are. New texts and members are
 * in the arena. ERR_MEMORY. */
int gguf_ollama_translate(struct gguf *g, struct arena *a);
