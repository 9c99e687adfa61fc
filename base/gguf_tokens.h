#pragma once
/* The tokens in the metadata of a GGUF file: how they are used, and which of them end a turn. Files say both, and say
 * it wrongly often enough that llama.cpp knows the names. Pure. */
#include "base/json.h"

enum gguf_token_type { /* values of tokenizer.ggml.token_type */
                       GGUF_TOKEN_NORMAL = 1,
                       GGUF_TOKEN_UNKNOWN,
                       GGUF_TOKEN_CONTROL,
                       GGUF_TOKEN_USER,
                       GGUF_TOKEN_UNUSED,
                       GGUF_TOKEN_BYTE,
                       GGUF_TOKEN_PIECE /* in no file: what tokenizer.model calls user-defined */
};
static const int64_t GGUF_TOKEN_NONE = UINT32_MAX; /* what some files have as the id of a token that they lack */
/* Returns the type of a token: that of the file, or GGUF_TOKEN_CONTROL for names that only control tokens have. texts,
 * types: tokenizer.ggml.tokens and token_type; types may be NULL. */
int64_t gguf_token_type(const struct json *texts, const struct json *types, uint32_t id);

/* Writes the ids of at most `most` tokens that end a turn, those of the metadata first, and returns their number. Ids
 * of the metadata are not checked against the vocabulary. */
uint32_t gguf_token_ends(const struct json *meta, int64_t *ids, uint32_t most);
