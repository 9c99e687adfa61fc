#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

int buf_add(struct buf *b, const void *data, size_t n) {
    if (n > SIZE_MAX / 2 || mem_grow(&b->data, &b->cap, b->len + n + 1, 1)) {
        b->failed = true;
        return ERR_MEMORY;
    }
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
    return 0;
}
int buf_str(struct buf *b, const char *s) { return buf_add(b, s, strlen(s)); }
int buf_char(struct buf *b, char c) { return buf_add(b, &c, 1); }

int buf_fmt(struct buf *b, const char *fmt, ...) {
    char small[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) return ERR_RUNTIME;
    if ((size_t)n < sizeof small) return buf_add(b, small, (size_t)n);
    if (mem_grow(&b->data, &b->cap, b->len + (size_t)n + 1, 1)) {
        b->failed = true;
        return ERR_MEMORY;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

void buf_free(struct buf *b) {
    mem_free(b->data);
    *b = (struct buf){0};
}
