#pragma once
/* Bounded reader for untrusted GGUF files (versions 2 and 3, little-endian): the metadata as a JSON object, and the
 * position of each tensor. Source: ggml's docs/gguf.md. Arrays become JSON arrays, numbers JSON numbers. Strings point
 * into the file, which must outlive the result; the rest is in the caller's arena.
 */
#include "base/gguf_header.h"
#include "base/mat.h"

/* Reads the header of a file of `size` bytes. ERR_MODEL names file, key or tensor, and numbers; unsupported tensor
 * formats are refused by name. */
int gguf_parse(struct gguf *g, struct arena *a, const uint8_t *data, size_t size, const char *what, struct error *e);

/* Whether a file of this name has a vision tower instead of a model, as llama.cpp's converter and those who publish
 * them call it: mmproj-F16.gguf, NAME-mmproj-BF16.gguf. */
bool gguf_names_tower(const char *name);
/* Orders such files by their formats, the best first: BF16, F16, Q8_0, others. With 16 bits nothing is lost; F32 is
 * larger for nothing. */
int gguf_tower_rank(const char *name);
/* Resolves a model path to a GGUF file: the path itself if its name ends in .gguf or it begins as such a file, or the
 * only model (its first part if split) in a directory without config.json. Returns 1; 0 if the path is not GGUF;
 * ERR_USAGE for two models. */
int gguf_find(const char *path, char *file, size_t cap, struct error *e);
/* Parses the name of a split file ("...-00001-of-00003.gguf"); false: not split. stem: bytes before the numbers. */
bool gguf_split(const char *name, int *number, int *count, size_t *stem);
