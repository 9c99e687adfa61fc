#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/jinja/jstr.h"

/* Character properties and case as in Python's str. utf8proc lacks the characters whose upper or lower case has several
 * characters (SpecialCasing.txt); the table below has them. */

uint32_t junicode_decode(const char *s, size_t n, size_t *len) {
    unsigned char c = (unsigned char)*s;
    size_t want = utf8_size(c);
    if (want > n) want = n;
    *len = want;
    if (want == 1) return c;
    uint32_t v = c & (0xFF >> (want + 1));
    for (size_t i = 1; i < want; i++) v = v << 6 | ((unsigned char)s[i] & 63);
    return v;
}
static utf8proc_category_t general_category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

bool junicode_is_printable(uint32_t c) {
    if (c < 0x7F) return c >= 32;
    switch (general_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}
bool junicode_is_alpha(uint32_t c) {
    utf8proc_category_t k = general_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool junicode_is_digit(uint32_t c) { return general_category(c) == UTF8PROC_CATEGORY_ND; }
bool junicode_is_word(uint32_t c) {
    utf8proc_category_t k = general_category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}
bool junicode_is_upper(uint32_t c) { return utf8proc_isupper((utf8proc_int32_t)c); }
bool junicode_is_lower(uint32_t c) { return utf8proc_islower((utf8proc_int32_t)c); }
bool junicode_is_title(uint32_t c) { return general_category(c) == UTF8PROC_CATEGORY_LT; }

static const struct special {
    uint16_t c, upper[3], title[3];
} special[] = {
    {0xDF, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
    {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}},
    {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
    {0x1FB3, {0x391, 0x399}, {0x1FBC}},
    {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}},
    {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}},
    {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
    {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
    {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
    {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
    {0xFB00, {0x46, 0x46}, {0x46, 0x66}},
    {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}},
    {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}},
    {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}},
};

int junicode_case(uint32_t c, enum jcase to, uint32_t out[3]) {
    if (c < 0x80) {
        bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
        out[0] = !letter ? c : to == CASE_LOWER ? c | 32 : c & ~32u;
        return 1;
    }
    if (to == CASE_LOWER) {
        if (c == 0x130) return out[0] = 'i', out[1] = 0x307, 2;
        out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        return 1;
    }
    for (size_t lo = 0, hi = sizeof special / sizeof *special; lo < hi;) {
        size_t mid = (lo + hi) / 2;
        if (special[mid].c == c) {
            const uint16_t *p = to == CASE_UPPER ? special[mid].upper : special[mid].title;
            int n = 0;
            while (n < 3 && p[n]) out[n] = p[n], n++;
            return n;
        }
        if (special[mid].c < c) lo = mid + 1;
        else hi = mid;
    }
    out[0] =
        (uint32_t)(to == CASE_UPPER ? utf8proc_toupper((utf8proc_int32_t)c) : utf8proc_totitle((utf8proc_int32_t)c));
    return 1;
}

static bool is_cased(uint32_t c) { return junicode_is_upper(c) || junicode_is_lower(c) || junicode_is_title(c); }
static bool is_case_ignorable(uint32_t c) {
    utf8proc_category_t k = general_category(c);
    return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 || k == UTF8PROC_CATEGORY_MN ||
           k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_SK;
}
/* Final sigma: a cased character before it, none after it. */
static bool is_final_sigma(const struct jstr *s, size_t at, size_t len) {
    size_t k, i = at;
    bool before = false;
    while (i > 0 && !before) {
        do i--;
        while (i > 0 && ((unsigned char)s->s[i] & 0xC0) == 0x80);
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        if (is_case_ignorable(c)) continue;
        if (!is_cased(c)) return false;
        before = true;
    }
    for (i = at + len; before && i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        if (!is_case_ignorable(c)) return !is_cased(c);
    }
    return before;
}

bool junicode_is_cased(const struct jstr *s, bool upper) {
    bool any = false;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        if (upper ? junicode_is_lower(c) || junicode_is_title(c) : junicode_is_upper(c) || junicode_is_title(c))
            return false;
        any |= upper ? junicode_is_upper(c) : junicode_is_lower(c);
    }
    return any;
}

void junicode_add_cased(struct jrun *r, struct jbuf *b, const struct jstr *s, size_t i, uint32_t c, size_t k,
                        enum jcase to) {
    uint32_t out[3];
    int n = junicode_case(c, to, out);
    if (to == CASE_LOWER && c == 0x3A3 && is_final_sigma(s, i, k)) out[0] = 0x3C2;
    for (int j = 0; j < n; j++) jbuf_char(r, b, out[j], jstr_origin_at(s, i));
}
struct jval junicode_map(struct jrun *r, const struct jstr *s, enum jcase to) {
    struct jbuf b = {0};
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        junicode_add_cased(r, &b, s, i, c, k, to);
    }
    struct jval v = jbuf_finish(r, &b);
    v.s->markup = s->markup;
    return v;
}
struct jval junicode_capitalize(struct jrun *r, const struct jstr *s) {
    struct jbuf b = {0};
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        junicode_add_cased(r, &b, s, i, c, k, i ? CASE_LOWER : CASE_TITLE);
    }
    struct jval v = jbuf_finish(r, &b);
    v.s->markup = s->markup;
    return v;
}
