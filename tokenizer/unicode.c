#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* --- sets ------------------------------------------------------------------------------------- */

int charset_add(struct charset *s, uint32_t lo, uint32_t hi) {
    if (mem_grow(&s->r, &s->cap, s->n + 1, sizeof *s->r)) return ERR_MEMORY;
    s->r[s->n++] = (struct unicode_range){lo, hi};
    return 0;
}

int charset_union(struct charset *s, const struct unicode_range *r, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (charset_add(s, r[i].lo, r[i].hi)) return ERR_MEMORY;
    charset_tidy(s);
    return 0;
}

static int compare_lo(const void *a, const void *b) {
    const struct unicode_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void charset_tidy(struct charset *s) {
    bool sorted = true;
    for (size_t i = 1; i < s->n && sorted; i++) sorted = s->r[i - 1].lo <= s->r[i].lo;
    if (!sorted) qsort(s->r, s->n, sizeof *s->r, compare_lo);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->r[i].lo <= s->r[n - 1].hi + 1) {
            if (s->r[i].hi > s->r[n - 1].hi) s->r[n - 1].hi = s->r[i].hi;
        } else s->r[n++] = s->r[i];
    }
    s->n = n;
}

int charset_invert(struct charset *s) {
    struct charset out = {0};
    uint32_t next = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > next && charset_add(&out, next, s->r[i].lo - 1)) goto failed;
        next = s->r[i].hi + 1;
    }
    if (next < UNICODE_END && charset_add(&out, next, UNICODE_END - 1)) goto failed;
    charset_free(s);
    *s = out;
    return 0;
failed:
    charset_free(&out);
    return ERR_MEMORY;
}

int charset_intersect(struct charset *s, const struct charset *other) {
    struct charset out = {0};
    for (size_t i = 0, j = 0; i < s->n && j < other->n;) {
        uint32_t lo = s->r[i].lo > other->r[j].lo ? s->r[i].lo : other->r[j].lo;
        uint32_t hi = s->r[i].hi < other->r[j].hi ? s->r[i].hi : other->r[j].hi;
        if (lo <= hi && charset_add(&out, lo, hi)) {
            charset_free(&out);
            return ERR_MEMORY;
        }
        if (s->r[i].hi < other->r[j].hi) i++;
        else j++;
    }
    charset_free(s);
    *s = out;
    return 0;
}

bool unicode_in_ranges(const struct unicode_range *r, size_t n, uint32_t c) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > r[mid].hi) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && c >= r[lo].lo;
}
bool charset_has(const struct charset *s, uint32_t c) { return unicode_in_ranges(s->r, s->n, c); }
bool charset_equal(const struct charset *a, const struct charset *b) {
    return a->n == b->n && (!a->n || !memcmp(a->r, b->r, a->n * sizeof *a->r));
}
void charset_free(struct charset *s) {
    mem_free(s->r);
    *s = (struct charset){0};
}

/* --- properties ------------------------------------------------------------------------------- */

/* The order is that of unicode_data.py. */
static const char categories[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                     "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                     "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs", "Cn"};
enum { N_CATEGORIES = sizeof categories / sizeof *categories };

static int add_categories(struct charset *s, uint32_t mask) {
    for (size_t i = 0; i < unicode_runs_n; i++) {
        if (!(mask >> (unicode_runs[i] & 255) & 1)) continue;
        uint32_t end = i + 1 < unicode_runs_n ? unicode_runs[i + 1] >> 8 : UNICODE_END;
        if (charset_add(s, unicode_runs[i] >> 8, end - 1)) return ERR_MEMORY;
    }
    charset_tidy(s);
    return 0;
}

static uint32_t category_mask(const char *name) {
    uint32_t mask = 0;
    for (int i = 0; i < N_CATEGORIES; i++) {
        char low[3] = {(char)(categories[i][0] | 32), categories[i][1], 0};
        if (name[0] == low[0] && (!name[1] || !strcmp(name + 1, low + 1))) mask |= 1u << i;
    }
    return strcmp(name, "lc") ? mask : 7; /* cased letters: Lu, Ll, Lt */
}

int charset_property(struct charset *s, const char *name, size_t n) {
    char key[16];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == '_' || c == ' ' || c == '-') continue;
        if (len == sizeof key - 1) return ERR_USAGE;
        key[len++] = (char)(c >= 'A' && c <= 'Z' ? c | 32 : c);
    }
    key[len] = 0;
    uint32_t mask = len == 1 || len == 2 ? category_mask(key) : 0;
    if (mask) return add_categories(s, mask);
    if (!strcmp(key, "han")) return charset_union(s, unicode_han, unicode_han_n);
    if (!strcmp(key, "hiragana")) return charset_union(s, unicode_hiragana, unicode_hiragana_n);
    if (!strcmp(key, "katakana")) return charset_union(s, unicode_katakana, unicode_katakana_n);
    if (!strcmp(key, "hangul")) return charset_union(s, unicode_hangul, unicode_hangul_n);
    return ERR_USAGE;
}

enum { WORD_MASK = 0xFF | 1 << 8 | 1 << 9 | 1 << 11 }; /* L, M, Nd, Nl, Pc */
int charset_word(struct charset *s, enum word_kind kind) {
    if (add_categories(s, WORD_MASK)) return ERR_MEMORY;
    if (kind == WORD_RUST) return charset_union(s, unicode_word_rust, unicode_word_rust_n);
    size_t latin = 0; /* superscripts and fractions of Latin-1 come first */
    while (kind == WORD_ONIG_CLASS && latin < unicode_word_onig_n && unicode_word_onig[latin].hi < 0x100) latin++;
    return charset_union(s, unicode_word_onig + latin, unicode_word_onig_n - latin);
}

bool unicode_is_word(uint32_t c) {
    size_t lo = 0, hi = unicode_runs_n;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (unicode_runs[mid] >> 8 <= c) lo = mid;
        else hi = mid;
    }
    return WORD_MASK >> (unicode_runs[lo] & 255) & 1 || unicode_in_ranges(unicode_word_rust, unicode_word_rust_n, c);
}

const struct unicode_range unicode_space[] = {{9, 13},          {32, 32},         {0x85, 0x85},     {0xA0, 0xA0},
                                              {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                              {0x205F, 0x205F}, {0x3000, 0x3000}};
const size_t unicode_space_n = sizeof unicode_space / sizeof *unicode_space;
bool unicode_is_space(uint32_t c) {
    return c < 0x80 ? c == 32 || (c >= 9 && c <= 13) : unicode_in_ranges(unicode_space, unicode_space_n, c);
}
bool unicode_is_python_space(uint32_t c) { return unicode_is_space(c) || (c >= 28 && c <= 31); }
