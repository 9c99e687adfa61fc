#pragma once
/* Text to token ids and back, as the model's vendor does it: tokenizer.json (BPE), tiktoken.model of Kimi, or the lists of a GGUF file.
 * A tokenizer is read-only after opening and may be shared by threads; each thread that encodes uses its own encoder. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

struct tokenizer;

/* dir: a checkpoint directory (or "ember:"), one that holds tokenizer files alone, or a GGUF file. ERR_MODEL names the file and what
 * is unknown or wrong in it; ERR_RUNTIME when there is no tokenizer file. */
int tokenizer_open(struct tokenizer **t, const char *dir, struct error *e);
void tokenizer_close(struct tokenizer **t);

int tokenizer_vocab(const struct tokenizer *t); /* ids are 0 .. vocab - 1, added tokens included */
/* The exact bytes of a token, NULL for an id without one. special: a control token (flagged special). */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n, bool *special);
int32_t tokenizer_id(const struct tokenizer *t, const char *piece); /* of an added token, or -1 */

/* Where a stretch of prompt text comes from. Added (control) tokens are recognised in TEXT_TEMPLATE bytes only; TEXT_VALUE
 * is what a user, a document or a tool wrote: always plain text. */
enum text_origin { TEXT_VALUE, TEXT_TEMPLATE };
struct text_span {
    size_t n; /* bytes */
    uint8_t origin;
};
/* A text with the origin of each byte: spans cover it in order, with nothing left over. */
struct text {
    char *data;
    size_t n;
    struct text_span *spans;
    size_t n_spans;
};
void text_free(struct text *t);

struct ids { /* grows; zero-initialised is empty */
    int32_t *data;
    size_t n, cap;
};
void ids_free(struct ids *ids);

/* Encodes data[0..n) of one origin, appending to out. No BOS. Invalid UTF-8 in the input is replaced as the reference
 * does (U+FFFD). n log n for any input. ERR_RUNTIME on a regex limit, ERR_MEMORY. */
int tokenizer_encode(const struct tokenizer *t, const char *data, size_t n, enum text_origin origin, struct ids *out, struct error *e);
/* The same for a text of mixed origin. Only a control token in template bytes cuts the text; elsewhere spans of both
 * origins join before splitting and BPE, so that ordinary text tokenizes as if it had one origin. */
int tokenizer_encode_text(const struct tokenizer *t, const struct text *text, struct ids *out, struct error *e);
/* What the post-processor (or add_bos_token) puts before a sequence; -1: nothing. */
int32_t tokenizer_bos(const struct tokenizer *t);

/* Streaming decoder: bytes of ids as they come, held back while a character is incomplete. */
struct decoder {
    const struct tokenizer *t;
    bool skip_special; /* leave control tokens out of the text */
    bool begun;
    uint8_t stripped; /* spaces taken off the beginning so far */
    char held[8];
    uint8_t n_held;
};
struct buf;
int decoder_add(struct decoder *d, int32_t id, struct buf *out); /* 0 or ERR_MEMORY, ERR_RUNTIME on an id out of range */
int decoder_flush(struct decoder *d, struct buf *out);           /* the held bytes, as they are */
