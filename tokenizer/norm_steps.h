#pragma once
/* Normalizers of tokenizer.json: steps that rewrite a text before it is split. Included by tokenizer_internal.h. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"
#include "tokenizer/pattern.h"

struct encoder;
/* A text during encoding. origin: enum text_origin of each byte; NULL: all bytes have the same, which is passed beside
 * the text. */
struct norm_text {
    const char *s;
    size_t n;
    const uint8_t *origin;
    bool begin_stripped; /* a normalizer step removed its beginning */
};
struct norm_text_buf { /* buffers of a norm_text */
    struct buf s, origin;
    size_t most; /* bytes of s, at most; 0: more were to be appended */
};
enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_PREPEND,
    NORM_REPLACE,
    NORM_STRIP,
    NORM_LOWERCASE,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
    NORM_CHARSMAP
};
enum { MOST_STEPS = 256 }; /* of a normalizer or decoder: files have at most ten */
struct norm_step {
    uint8_t kind;
    bool left, right; /* strip: the ends of the text to strip */
    char *insert;     /* prepend, replace: the inserted text */
    size_t n_insert;
    char *literal; /* replace: the replaced text, or a pattern */
    size_t n_literal;
    struct alphabet alphabet;
    struct pattern pattern;
    struct charsmap *charsmap;
};
struct normalizer {
    struct norm_step *steps;
    size_t n, cap;
};
int normalizer_load(struct normalizer *z, const struct json *j, struct error *e); /* j NULL or null: no steps */
void normalizer_free(struct normalizer *z);
/* Points out into in or into the encoder's buffers; valid until the next call. */
int normalizer_run(struct encoder *x, const struct normalizer *z, struct norm_text in, struct norm_text *out,
                   struct error *e);

/* --- charsmap.c: SentencePiece's table of replacements ------------------------------------------------------------ */

struct charsmap;
/* Reads a precompiled_charsmap in base64. ERR_MODEL: damaged. */
int charsmap_load(struct charsmap **out, const struct json *base64, struct error *e);
void charsmap_close(struct charsmap **m);
/* Returns the replacement of the shortest key that s begins with, and its length; NULL: no key. */
const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, size_t *n_to);
