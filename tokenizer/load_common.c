/* Functions that several loaders of vocabularies call. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

int load_fail_unknown(const char *what, const struct json *name, struct error *e) {
    bool named = name && name->type == JSON_STRING;
    return error_set(e, ERR_MODEL, "unknown %s %.*s", what, named ? (int)name->n : 1, named ? name->string : "?");
}

bool load_has_inner_mark(const char *s, size_t n) {
    size_t at = 0;
    while (at + 3 <= n && !memcmp(s + at, "\xE2\x96\x81", 3)) at += 3;
    return at < n && memmem(s + at, n - at, "\xE2\x96\x81", 3);
}

size_t load_decode_spelling(const struct tokenizer *t, const char *s, size_t n, char *out, bool *literal) {
    *literal = false;
    if (t->bpe.is_byte_level) {
        long k = vocab_bytes_of_chars(s, n, out);
        if (k >= 0) return (size_t)k;
        *literal = true;
    }
    memcpy(out, s, n);
    return n;
}

int64_t load_find_token(const struct tokenizer *t, const char *s, size_t n) {
    char on_stack[256], *out = n <= sizeof on_stack ? on_stack : mem_alloc(n);
    bool literal;
    if (!out) return -1;
    size_t k = load_decode_spelling(t, s, n, out, &literal);
    int64_t id = vocab_find(&t->vocab, out, k, literal);
    if (out != on_stack) mem_free(out);
    return id;
}
