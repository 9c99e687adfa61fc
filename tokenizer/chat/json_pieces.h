#pragma once
/* A JSON object that arrives in pieces, as text that only grows: strings are passed on as they come, other values when
 * they are complete. The finished text is what json_write() gives for the parsed object, or with `raw` the text itself.
 * Pure. */
#include <stdint.h>

#include "base/buf.h"

enum { JSON_PIECES_DEPTH = 120 };
struct json_pieces {
    struct buf out;
    struct buf held; /* a number or word, or an escape, that is not complete */
    bool raw;
    uint8_t state; /* enum in json_pieces.c */
    bool is_key;   /* the string that is being read */
    bool is_done, has_failed;
    int depth;
    char open[JSON_PIECES_DEPTH]; /* brackets */
};
/* ready for the text from the opening brace on */
void json_pieces_begin(struct json_pieces *p, bool raw);
void json_pieces_free(struct json_pieces *p);
/* Takes text, in whole characters, up to the end of the object. Returns the number of bytes taken; p->has_failed: it is
 * not JSON, or memory was lacking. */
size_t json_pieces_add(struct json_pieces *p, const char *s, size_t n);
