#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Names from a hostile file may hold escape sequences: no byte below 0x20 leaves through an error. */
static void clean(char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) s[i] = '?';
    /* Truncation may have split a character. */
    size_t i = n;
    while (i > 0 && n - i < 3 && ((unsigned char)s[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    if (n - (i - 1) < utf8_size((unsigned char)s[i - 1])) s[i - 1] = 0;
}

int error_set(struct error *e, int code, const char *fmt, ...) {
    if (!e) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    clean(e->text);
    e->code = code;
    return code;
}

int error_prefix(struct error *e, const char *fmt, ...) {
    if (!e) return ERR_RUNTIME;
    char head[256], old[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(old, e->text, sizeof old);
    int n = snprintf(e->text, sizeof e->text, "%s: ", head);
    snprintf(e->text + n, sizeof e->text - (size_t)n, "%s", old);
    clean(e->text);
    return e->code;
}

const char *error_reason(int number) {
    switch (number) {
    case EMFILE: return "this process may not open more files; a larger limit helps (ulimit -n)";
    case ENFILE: return "this machine has too many open files; a larger limit helps (sysctl fs.file-max)";
    case EAGAIN: return "no further thread may start; a larger limit helps (ulimit -u, or the container's of pids)";
    default: return strerror(number);
    }
}

int error_exit_code(int code) {
    switch (code) {
    case 0: return 0;
    case ERR_USAGE: return 2;
    case ERR_MODEL: return 3;
    case ERR_CONTEXT: return 4;
    case ERR_MEMORY: return 5;
    case ERR_CANCELLED: return 130;
    default: return 1;
    }
}
