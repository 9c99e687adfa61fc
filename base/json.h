#pragma once
/* Bounded JSON reader for untrusted files: config.json, tokenizer.json, safetensors headers, sessions. Strict RFC 8259:
 * no comments, no trailing commas, no NaN (but with JSON_PYTHON), valid UTF-8 only, after a byte order mark or without.
 * The escape of half a surrogate pair, which JavaScript and Python write for text that was cut within a character, is
 * read as U+FFFD. Members keep their order. The tree is in the caller's arena; strings without escapes point into the
 * text, which must outlive the tree.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mem.h"

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_FLOAT, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    uint8_t type;
    uint32_t n; /* bytes of a string, items of an array, members of an object, digits of a JSON_FLOAT that has them */
    union {
        bool boolean;
        int64_t integer; /* whole numbers in range; others are JSON_FLOAT with digits */
        double number;   /* n 0; otherwise json_num() */
        /* not NUL-terminated; of a JSON_FLOAT with n: the digits, after a minus sign if it has one */
        const char *string;
        const struct json *items; /* array: n values; object: 2n, key (a string) then value */
    };
};

enum {
    JSON_UNIQUE = 1, /* a repeated key is an error */
    JSON_PYTHON = 2  /* numbers may be Infinity, -Infinity and NaN, as Python's json module writes them */
};

/* Parses text[0..n). Trailing bytes other than white space, and nesting deeper than 128, are errors. `what` names the
 * file in errors ("FILE: line 3, column 9:
 * ..."). ERR_MODEL, ERR_MEMORY. */
int json_parse(struct arena *a, const char *text, size_t n, int flags, const char *what, struct json *root,
               struct error *e);

/* Look-ups: NULL when j is NULL, of another type, or lacks the key. The last of repeated keys counts. */
const struct json *json_get(const struct json *j, const char *key);
const struct json *json_at(const struct json *j, uint32_t i);
const struct json *json_path(const struct json *j, const char *dotted); /* "a.b.c" */
bool json_is(const struct json *j, const char *text);                   /* a string equal to text */
bool json_ends_in(const struct json *j, const char *text);              /* a longer string that ends in text */
bool json_bool(const struct json *j, bool none);
int64_t json_int(const struct json *j, int64_t none); /* accepts whole floats */
double json_num(const struct json *j, double none);
char *json_strdup(const struct json *j); /* mem_alloc'd, NULL if not a string */
/* Appends text as a JSON string, quotes included, ensure_ascii=False; for writers. Returns 0 or ERR_MEMORY. */
struct buf;
int json_quote(struct buf *b, const char *s, size_t n);
/* Appends a tree as JSON text; numbers survive a round trip. */
int json_write(struct buf *b, const struct json *j);

/* Modified copies of objects. json_members copies an object's members (keys and values alternate) with room for `more`
 * at the end, for the caller to fill; NULL: no memory. json_set replaces the value of the members with that key among
 * n. */
struct json *json_members(struct arena *a, const struct json *object, uint32_t more);
void json_set(struct json *members, uint32_t n, const char *key, const struct json *value);
