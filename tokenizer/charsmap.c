/* SentencePiece's precompiled_charsmap: a trie of Darts-clone (double array) from texts to places in a list of
 * replacements, each of which ends with a zero. */
#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

struct charsmap {
    struct buf bytes; /* the file: size of the trie in bytes, its units, the replacements */
    const uint8_t *units;
    const char *texts;
    size_t n_units, n_texts; /* n_texts: bytes */
};

static int damaged(struct error *e) { return error_set(e, ERR_MODEL, "normalizer: precompiled_charsmap is damaged"); }

static int read_parts(struct charsmap *m, struct error *e) {
    uint32_t trie;
    if (m->bytes.len < sizeof trie) return damaged(e);
    memcpy(&trie, m->bytes.data, sizeof trie); /* little-endian, as the machine */
    if (trie > m->bytes.len - sizeof trie || trie % sizeof trie || !trie) return damaged(e);
    m->units = (const uint8_t *)m->bytes.data + sizeof trie;
    m->n_units = trie / sizeof trie;
    m->texts = (const char *)m->units + trie;
    m->n_texts = m->bytes.len - sizeof trie - trie;
    return utf8_valid(m->texts, m->n_texts) == m->n_texts ? 0 : damaged(e);
}

int charsmap_load(struct charsmap **out, const struct json *base64, struct error *e) {
    *out = NULL;
    if (!base64 || base64->type != JSON_STRING) return damaged(e);
    struct charsmap *m = mem_calloc(1, sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory for the normalizer");
    int rc = base64_decode(base64->string, base64->n, &m->bytes);
    if (m->bytes.failed) rc = error_set(e, ERR_MEMORY, "no memory for the normalizer");
    else rc = rc ? damaged(e) : read_parts(m, e);
    *out = m;
    if (rc) charsmap_close(out);
    return rc;
}
void charsmap_close(struct charsmap **at) {
    if (*at) buf_free(&(*at)->bytes);
    mem_free(*at);
    *at = NULL;
}

/* A unit of the double array. Of a node: label, whether a key ends there, and how far its children are. Of a leaf: the
 * value. */
static uint32_t unit_at(const struct charsmap *m, size_t i) {
    uint32_t unit;
    memcpy(&unit, m->units + i * sizeof unit, sizeof unit);
    return unit;
}
static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
static uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xFF); }

const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, size_t *n_to) {
    uint32_t unit = unit_at(m, 0), at = offset_of(unit);
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (uint8_t)s[i];
        if (at >= m->n_units || label_of(unit = unit_at(m, at)) != (uint8_t)s[i]) return NULL;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1)) continue;
        const uint32_t value = at < m->n_units ? unit_at(m, at) & ~(1u << 31) : UINT32_MAX;
        if (value > m->n_texts || (value < m->n_texts && (m->texts[value] & 0xC0) == 0x80)) return NULL;
        *n_to = strnlen(m->texts + value, m->n_texts - value);
        return m->texts + value;
    }
    return NULL;
}
