#pragma once
/* Text to token ids and back, exactly as the model's vendor does it. Reads tokenizer.json (BPE), Kimi's tiktoken.model,
 * Mistral's tekken.json, or the lists of a GGUF file. A tokenizer is read-only after opening and may be shared by
 * threads; each encoding call uses its own encoder. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct tokenizer;

/* Opens the tokenizer of a checkpoint directory, of a directory with only tokenizer files, of a GGUF file, or of the
 * built-in model ("ember:"). ERR_MODEL: the tokenizer is invalid or not supported; the message names the file and the
 * reason. ERR_RUNTIME: there is no tokenizer file. */
int tokenizer_open(struct tokenizer **t, const char *dir, struct error *e);
void tokenizer_close(struct tokenizer **t);

int tokenizer_n_ids(const struct tokenizer *t); /* ids are 0 .. n - 1, added tokens included */
/* Returns the exact bytes of a token, or NULL if the id has none; valid as long as the tokenizer. n, special: may be
 * NULL; special: whether it is a control token. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n, bool *special);
/* Sets out[id] for ids 0 .. n - 1: tokens whose texts differ in case, accents, compatibility forms or white space only
 * have the same number, counted from 0 by first appearance (alike.c). ERR_MEMORY, ERR_RUNTIME. */
int tokenizer_number_alike(const struct tokenizer *t, int32_t *out, int n, int *n_numbers, struct error *e);
int32_t tokenizer_added_id(const struct tokenizer *t, const char *token); /* -1 if no added token has this text */

/* How the decoder makes text of the bytes of tokens: whether it removes a space from the beginning of a text, and
 * whether it puts one between tokens. */
bool tokenizer_strips_start(const struct tokenizer *t);
bool tokenizer_joins_with_space(const struct tokenizer *t);

/* Origin of prompt text. Control tokens are recognized only in TEXT_TEMPLATE. TEXT_VALUE came from a user, a document
 * or a tool and never becomes one. Added tokens that are neither flagged special nor marks of chats (runs of spaces,
 * HTML tags) are recognized in both. */
enum text_origin { TEXT_VALUE, TEXT_TEMPLATE };
struct text_run {
    size_t n;       /* bytes */
    uint8_t origin; /* enum text_origin */
};
/* A text with the origin of each byte. The runs cover it in order and completely. Owns data and runs (text_free). */
struct text {
    char *data;
    size_t n;
    struct text_run *runs;
    size_t n_runs;
};
void text_free(struct text *t);

struct ids { /* growable; zero-initialized is empty */
    int32_t *data;
    size_t n, cap;
};
void ids_free(struct ids *ids);

/* Encodes data[0..n) of one origin and appends to out. Adds no BOS. Replaces invalid UTF-8 as the reference does
 * (U+FFFD). n log n for any input. ERR_RUNTIME on a pattern limit, ERR_MEMORY. */
int tokenizer_encode(const struct tokenizer *t, const char *data, size_t n, enum text_origin origin, struct ids *out,
                     struct error *e);
/* Encodes a text of mixed origin. Only a control token in template bytes splits the text. Elsewhere runs of both
 * origins join before splitting and BPE, so that ordinary text tokenizes as if it had one origin. */
int tokenizer_encode_text(const struct tokenizer *t, const struct text *text, struct ids *out, struct error *e);
/* Returns the token that the post-processor (or add_bos_token) puts before a sequence, or -1. */
int32_t tokenizer_bos(const struct tokenizer *t);
/* Returns the token that ends a sequence, as tokenizer_config.json names it (eos_token), or -1. */
int32_t tokenizer_eos(const struct tokenizer *t);

/* Streaming decoder. Holds bytes back while a character is incomplete. */
struct decoder {
    const struct tokenizer *t;
    bool skip_special; /* omit control tokens from the text */
    bool has_output;
    uint8_t n_stripped; /* spaces already removed from the beginning */
    char held[8];
    uint8_t n_held;
};
struct buf;
/* 0 or ERR_MEMORY, ERR_RUNTIME on an id out of range */
int decoder_add(struct decoder *d, int32_t id, struct buf *out);
int decoder_flush(struct decoder *d, struct buf *out); /* emits the held bytes unchanged */
