#pragma once
/* A growing byte string. Zero-initialised is valid and empty. A failed append leaves the contents unchanged and returns
 * ERR_MEMORY; `failed` stays set, so a writer may check once at the end. */
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* NUL-terminated after the first append */
    size_t len, cap;
    bool failed;
};
int buf_add(struct buf *b, const void *data, size_t n);
int buf_str(struct buf *b, const char *s);
int buf_char(struct buf *b, char c);
int buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_free(struct buf *b);
