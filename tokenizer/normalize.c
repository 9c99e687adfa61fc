#include <string.h>
#include <utf8proc.h>

#include "tokenizer/tokenizer_internal.h"

/* Normalizes a text before it is split: each step reads one text and writes another, with the origin of each byte where
 * origins are mixed. */

/* A text may become this many times as long, and longer by SPARE bytes. The longest normal form of a character takes 11
 * times its bytes; the steps of a hostile file can double a text any number of times. */
enum { MOST_GROWTH = 16, SPARE = 64 << 10 };

/* --- output ----------------------------------------------------------------------------------- */

/* Appends s. origin: of each byte; NULL: all are value. in: says whether the text has origins at all. ERR_MODEL: the
 * text would be longer than `most`. */
static int append_text(struct norm_text_buf *o, const struct norm_text *in, const char *s, size_t n,
                       const uint8_t *origin, uint8_t value) {
    if (n > o->most - o->s.len) return o->most = 0, ERR_MODEL;
    int rc = buf_add(&o->s, s, n);
    if (!in->origin) return rc;
    if (origin) return buf_add(&o->origin, origin, n) || rc ? ERR_MEMORY : 0;
    for (size_t i = 0; i < n; i++)
        if (buf_char(&o->origin, (char)value)) return ERR_MEMORY;
    return rc;
}
/* Copies bytes [begin, end) of in unchanged. */
static int copy_range(struct norm_text_buf *o, const struct norm_text *in, size_t begin, size_t end) {
    return append_text(o, in, in->s + begin, end - begin, in->origin ? in->origin + begin : NULL, 0);
}
/* The output of a stretch is TEXT_VALUE if any of its bytes is. */
static uint8_t origin_of(const struct norm_text *in, size_t begin, size_t end) {
    uint8_t v = TEXT_TEMPLATE;
    for (size_t i = begin; in->origin && i < end; i++)
        if (in->origin[i] == TEXT_VALUE) v = TEXT_VALUE;
    return v;
}

/* ---- normal forms ----
 * The reference uses Unicode 9.0: newer characters pass unchanged (unicode_opaque), whatever utf8proc says. */

/* Returns whether a character never changes and never composes with the preceding one. */
static bool is_inert(uint8_t kind, uint32_t c) {
    if (c < 0x80) return true;
    if (kind != NORM_NFC) return false;
    return c < 0x300 || (c >= 0x388 && c <= 0x482) || (c >= 0x48A && c <= 0x52F) || (c >= 0x2010 && c <= 0x205E) ||
           (c >= 0x3041 && c <= 0x3098) || (c >= 0x30A0 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x9FFF) ||
           (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFF60) || (c >= 0x1F300 && c <= 0x1FAFF);
}

struct codepoints {
    int32_t *v;
    size_t n, cap;
};

static int ccc(int32_t c) { return utf8proc_get_property(c)->combining_class; }

/* Canonical order: sorts each run of marks by combining class, stably. Long runs use a counting sort, so that a text of
 * marks stays linear. */
static int order_marks(struct codepoints *w) {
    int32_t *spare = NULL;
    for (size_t i = 0; i < w->n;) {
        if (!ccc(w->v[i])) {
            i++;
            continue;
        }
        size_t j = i;
        while (j < w->n && ccc(w->v[j])) j++;
        if (j - i <= 16) {
            for (size_t a = i + 1; a < j; a++) {
                int32_t c = w->v[a];
                size_t b = a;
                for (; b > i && ccc(w->v[b - 1]) > ccc(c); b--) w->v[b] = w->v[b - 1];
                w->v[b] = c;
            }
        } else {
            size_t place[257] = {0};
            if (!spare && !(spare = mem_alloc(w->n * sizeof *spare))) return ERR_MEMORY;
            for (size_t a = i; a < j; a++) place[ccc(w->v[a]) + 1]++;
            for (int k = 0; k < 256; k++) place[k + 1] += place[k];
            for (size_t a = i; a < j; a++) spare[place[ccc(w->v[a])]++] = w->v[a];
            memcpy(w->v + i, spare, (j - i) * sizeof *spare);
        }
        i = j;
    }
    mem_free(spare);
    return 0;
}

/* Appends the normal form of bytes [begin, end), which no character outside changes. */
static int normal_form_run(uint8_t kind, struct codepoints *w, struct norm_text_buf *o, const struct norm_text *in,
                           size_t begin, size_t end) {
    bool compose = kind == NORM_NFC || kind == NORM_NFKC, compat = kind == NORM_NFKC || kind == NORM_NFKD;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0), bound = 0;
    w->n = 0;
    for (const char *s = in->s + begin; s < in->s + end;) {
        uint32_t c = utf8_next(&s);
        if (mem_grow(&w->v, &w->cap, w->n + 32, sizeof *w->v)) return ERR_MEMORY;
        utf8proc_ssize_t k = utf8proc_decompose_char((int32_t)c, w->v + w->n, 32, (utf8proc_option_t)options, &bound);
        if (k < 0 || k > 32) w->v[w->n] = (int32_t)c, k = 1; /* unassigned */
        w->n += (size_t)k;
    }
    if (order_marks(w)) return ERR_MEMORY;
    if (compose) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(w->v, (utf8proc_ssize_t)w->n,
                                                      (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        if (k >= 0) w->n = (size_t)k;
    }
    uint8_t from = origin_of(in, begin, end);
    char text[4];
    int rc = 0;
    for (size_t i = 0; i < w->n && !rc; i++)
        rc = append_text(o, in, text, utf8_put((uint32_t)w->v[i], text), NULL, from);
    return rc;
}

/* Returns 1 if o holds the result, 0 if a quick check finds in already normalized, or ERR_MEMORY. */
static int normal_form(uint8_t kind, const struct norm_text *in, struct norm_text_buf *o) {
    struct codepoints w = {0};
    const char *s = in->s, *end = in->s + in->n;
    size_t done = 0;
    int rc = 0;
    while (!rc && s < end) {
        s += utf8_ascii(s, (size_t)(end - s));
        if (s == end) break;
        const char *c = s;
        if (is_inert(kind, utf8_next(&s))) continue;
        /* A run that may change: from the character before, which may absorb the marks, to the next inert character. */
        size_t begin = (size_t)(c - in->s);
        if (begin > done) begin = (size_t)(utf8_back(c) - in->s);
        if (kind == NORM_NFC || kind == NORM_NFKC) rc = copy_range(o, in, done, begin);
        else rc = copy_range(o, in, done, begin = (size_t)(c - in->s));
        for (s = c; !rc;) {
            const char *at = s;
            uint32_t k = s < end ? utf8_next(&s) : 0;
            bool opaque = k >= 0x80 && unicode_in_ranges(unicode_opaque, unicode_opaque_n, k);
            if (at < end && !opaque && !is_inert(kind, k)) continue;
            rc = normal_form_run(kind, &w, o, in, begin, (size_t)(at - in->s));
            if (opaque && !rc) rc = copy_range(o, in, (size_t)(at - in->s), (size_t)(s - in->s));
            done = begin = (size_t)((opaque ? s : at) - in->s);
            if (opaque) continue;
            s = at;
            break;
        }
    }
    mem_free(w.v);
    if (!rc && !done) return 0;
    if (!rc) rc = copy_range(o, in, done, in->n);
    return rc ? rc : 1;
}

/* --- the other steps -------------------------------------------------------------------------- */

static int lowercase_text(const struct norm_text *in, struct norm_text_buf *o) {
    int rc = 0;
    for (const char *s = in->s, *end = s + in->n; s < end && !rc;) {
        size_t at = (size_t)(s - in->s);
        uint32_t c = utf8_next(&s);
        char text[4];
        uint8_t from = in->origin ? in->origin[at] : 0;
        if (c == 0x130) { /* U+0130 is the only letter with a two-character lower case */
            rc = append_text(o, in, "i\xCC\x87", 3, NULL, from);
            continue;
        }
        size_t lo = 0, hi = unicode_lower_n;
        while (lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (c > unicode_lower[mid].last) lo = mid + 1;
            else hi = mid;
        }
        const struct unicode_case *k = &unicode_lower[lo];
        if (lo < unicode_lower_n && c >= k->first && (k->offset != 1 || !((c - k->first) & 1))) c += k->offset;
        rc = append_text(o, in, text, utf8_put(c, text), NULL, from);
    }
    return rc;
}

/* Removes combining marks, which the normal forms C and KC would have left in letters. */
static int strip_accents(const struct norm_text *in, struct norm_text_buf *o) {
    int rc = 0;
    for (const char *s = in->s, *end = s + in->n; s < end && !rc;) {
        const size_t at = (size_t)(s - in->s);
        const uint32_t c = utf8_next(&s);
        const utf8proc_category_t kind = c < 0x300 || unicode_in_ranges(unicode_opaque, unicode_opaque_n, c)
                                             ? UTF8PROC_CATEGORY_CN
                                             : utf8proc_category((utf8proc_int32_t)c);
        if (kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME) continue;
        rc = copy_range(o, in, at, (size_t)(s - in->s));
    }
    return rc;
}

/* Control characters go, other white space and marks of a text's direction or end become spaces, as in the reference.
 */
static int nmt(const struct norm_text *in, struct norm_text_buf *o) {
    int rc = 0;
    for (const char *s = in->s, *end = s + in->n; s < end && !rc;) {
        const size_t at = (size_t)(s - in->s);
        const uint32_t c = utf8_next(&s);
        if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) continue;
        const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
        rc = space ? append_text(o, in, " ", 1, NULL, in->origin ? in->origin[at] : 0)
                   : copy_range(o, in, at, (size_t)(s - in->s));
    }
    return rc;
}

/* Returns the end of the grapheme that begins at s. */
static const char *grapheme_end(const char *s, const char *end) {
    utf8proc_int32_t state = 0;
    for (uint32_t c = utf8_next(&s); s < end;) {
        const char *next = s;
        const uint32_t after = utf8_next(&next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)after, &state)) break;
        c = after, s = next;
    }
    return s;
}
/* Appends the replacement of bytes [begin, end), if the table has one. */
static int append_mapped(const struct norm_step *z, const struct norm_text *in, struct norm_text_buf *o, size_t begin,
                         size_t end, bool *is_mapped) {
    size_t n = 0;
    const char *to = charsmap_find(z->charsmap, in->s + begin, end - begin, &n);
    *is_mapped = to;
    return to ? append_text(o, in, to, n, NULL, origin_of(in, begin, end)) : 0;
}
/* As the reference, not SentencePiece: a grapheme of up to five bytes is replaced by what its first key says, else each
 * of its characters is. */
static int map_chars(const struct norm_step *z, const struct norm_text *in, struct norm_text_buf *o) {
    enum { MOST_BYTES = 5 };
    const char *end = in->s + in->n;
    int rc = 0;
    for (const char *s = in->s, *next; s < end && !rc; s = next) {
        bool is_mapped = false;
        const size_t at = (size_t)(s - in->s), n = (size_t)((next = grapheme_end(s, end)) - s);
        if (n <= MOST_BYTES) rc = append_mapped(z, in, o, at, at + n, &is_mapped);
        for (size_t i = 0, size; i < n && !is_mapped && !rc; i += size) {
            bool is_replaced;
            size = utf8_size((unsigned char)s[i]);
            rc = append_mapped(z, in, o, at + i, at + i + size, &is_replaced);
            if (!rc && !is_replaced) rc = copy_range(o, in, at + i, at + i + size);
        }
    }
    return rc;
}

static int replace_literal(const struct norm_step *z, const struct norm_text *in, struct norm_text_buf *o) {
    size_t done = 0;
    int rc = 0;
    while (!rc && done < in->n) {
        const char *hit = memmem(in->s + done, in->n - done, z->literal, z->n_literal);
        if (!hit) break;
        size_t at = (size_t)(hit - in->s);
        rc = copy_range(o, in, done, at);
        done = at + z->n_literal;
        if (!rc) rc = append_text(o, in, z->insert, z->n_insert, NULL, origin_of(in, at, done));
    }
    return rc ? rc : copy_range(o, in, done, in->n);
}

static int replace_pattern(struct encoder *x, const struct norm_step *z, const struct norm_text *in,
                           struct norm_text_buf *o, struct error *e) {
    x->char_map.len = 0;
    if (mem_grow(&x->char_map.data, &x->char_map.cap, in->n + 1, 1)) return ERR_MEMORY;
    const uint8_t *map = (const uint8_t *)x->char_map.data;
    size_t n = alphabet_map(&z->alphabet, in->s, in->n, (uint8_t *)x->char_map.data), begin, end, at = 0, done = 0;
    const char *s = in->s;
    struct pattern_iter w = {0};
    int rc;
    while ((rc = pattern_next(&z->pattern, &x->matcher, map, n, &w, &begin, &end, e)) == 1) {
        for (; at < begin; at++) s += utf8_size((unsigned char)*s);
        size_t from = (size_t)(s - in->s);
        for (; at < end; at++) s += utf8_size((unsigned char)*s);
        size_t to = (size_t)(s - in->s);
        rc = copy_range(o, in, done, from);
        if (!rc) rc = append_text(o, in, z->insert, z->n_insert, NULL, origin_of(in, from, to));
        if (rc) return rc;
        done = to;
    }
    return rc ? rc : copy_range(o, in, done, in->n);
}

static struct norm_text strip_text(const struct norm_step *z, struct norm_text in) {
    const char *s = in.s, *end = in.s + in.n;
    for (const char *p = s; z->left && s < end && unicode_is_space(utf8_next(&p));) s = p;
    while (z->right && end > s) {
        const char *p = utf8_back(end), *q = p;
        if (!unicode_is_space(utf8_next(&q))) break;
        end = p;
    }
    return (struct norm_text){s, (size_t)(end - s), in.origin ? in.origin + (s - in.s) : NULL,
                              in.begin_stripped || s > in.s};
}

int normalizer_run(struct encoder *x, const struct normalizer *z, struct norm_text in, struct norm_text *out,
                   struct error *e) {
    const size_t given = in.n, most = given * MOST_GROWTH + SPARE;
    int side = 0;
    x->norm[0].most = x->norm[1].most = most;
    for (size_t i = 0; i < z->n && in.n; i++) {
        const struct norm_step *k = &z->steps[i];
        struct norm_text_buf *o = &x->norm[side];
        int rc = 0;
        bool changed = true, cut = in.begin_stripped;
        o->s.len = o->origin.len = 0;
        switch ((enum norm_kind)k->kind) {
        case NORM_NFC:
        case NORM_NFD:
        case NORM_NFKC:
        case NORM_NFKD:
            rc = normal_form(k->kind, &in, o);
            if (rc >= 0) changed = rc, rc = 0;
            break;
        case NORM_PREPEND:
            rc = append_text(o, &in, k->insert, k->n_insert, NULL, in.origin ? in.origin[0] : 0);
            if (!rc) rc = copy_range(o, &in, 0, in.n);
            break;
        case NORM_REPLACE:
            if (k->pattern.code) rc = replace_pattern(x, k, &in, o, e);
            else if (k->n_literal && memmem(in.s, in.n, k->literal, k->n_literal)) rc = replace_literal(k, &in, o);
            else changed = false;
            /* nothing replaced the beginning of the text */
            cut |= changed && !k->n_insert && !rc && (!o->s.len || o->s.data[0] != in.s[0]);
            break;
        case NORM_STRIP: in = strip_text(k, in), changed = false; break;
        case NORM_LOWERCASE: rc = lowercase_text(&in, o); break;
        case NORM_STRIP_ACCENTS: rc = strip_accents(&in, o); break;
        case NORM_NMT: rc = nmt(&in, o); break;
        case NORM_CHARSMAP: rc = map_chars(k, &in, o); break;
        }
        if (!o->most)
            return error_set(e, ERR_MODEL, "the tokenizer's normalizer makes a text of %zu bytes longer than %zu bytes",
                             given, most);
        if (rc) return rc == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory to normalize %zu bytes", in.n) : rc;
        if (!changed) continue;
        in = (struct norm_text){o->s.data ? o->s.data : "", o->s.len,
                                in.origin ? (const uint8_t *)o->origin.data : NULL, cut};
        side = !side;
    }
    *out = in;
    return 0;
}

/* --- loading ---------------------------------------------------------------------------------- */

static int copy_text(const struct json *j, const char *key, char **s, size_t *n, struct error *e) {
    const struct json *v = json_get(j, key);
    if (!v || v->type != JSON_STRING) return error_set(e, ERR_MODEL, "normalizer: %s is missing", key);
    *n = v->n;
    return (*s = json_strdup(v)) ? 0 : error_set(e, ERR_MEMORY, "no memory for the normalizer");
}

static int load_step(struct norm_step *z, const struct json *j, struct error *e) {
    static const struct {
        const char *name;
        uint8_t kind;
    } kinds[] = {{"NFC", NORM_NFC},
                 {"NFD", NORM_NFD},
                 {"NFKC", NORM_NFKC},
                 {"NFKD", NORM_NFKD},
                 {"Prepend", NORM_PREPEND},
                 {"Replace", NORM_REPLACE},
                 {"Strip", NORM_STRIP},
                 {"Lowercase", NORM_LOWERCASE},
                 {"StripAccents", NORM_STRIP_ACCENTS},
                 {"Nmt", NORM_NMT},
                 {"Precompiled", NORM_CHARSMAP}};
    const struct json *type = json_get(j, "type");
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    while (i < n && !json_is(type, kinds[i].name)) i++;
    if (i == n) return load_fail_unknown("normalizer", type, e);
    z->kind = kinds[i].kind;
    z->left = json_bool(json_get(j, "strip_left"), true);
    z->right = json_bool(json_get(j, "strip_right"), true);
    if (z->kind == NORM_PREPEND) return copy_text(j, "prepend", &z->insert, &z->n_insert, e);
    if (z->kind == NORM_CHARSMAP) return charsmap_load(&z->charsmap, json_get(j, "precompiled_charsmap"), e);
    if (z->kind != NORM_REPLACE) return 0;
    int rc = copy_text(j, "content", &z->insert, &z->n_insert, e);
    const struct json *pattern = json_get(j, "pattern"), *regex = json_get(pattern, "Regex");
    if (rc) return rc;
    if (!regex) return copy_text(pattern, "String", &z->literal, &z->n_literal, e);
    if (regex->type != JSON_STRING) return error_set(e, ERR_MODEL, "normalizer: the pattern is not a string");
    rc = pattern_parse(&z->pattern, &z->alphabet, regex->string, regex->n, e);
    if (!rc) rc = alphabet_build(&z->alphabet, e);
    if (!rc) rc = pattern_compile(&z->pattern, &z->alphabet, e);
    struct pattern_matcher run = {0};
    size_t begin, end;
    if (!rc && !(rc = pattern_matcher_open(&run, e)))
        rc = pattern_match(&z->pattern, &run, (const uint8_t *)"", 0, 0, &begin, &end, e);
    pattern_matcher_close(&run);
    /* the reference inserts at empty matches in its own way */
    return rc == 1 ? error_set(e, ERR_MODEL,
                               "normalizer: Replace with a regex that matches the empty string is not supported")
                   : rc;
}

static int load_steps(struct normalizer *z, const struct json *j, int depth, struct error *e) {
    if (!j || j->type == JSON_NULL) return 0;
    if (json_is(json_get(j, "type"), "Sequence")) {
        const struct json *list = json_get(j, "normalizers");
        if (!list || list->type != JSON_ARRAY || depth > 8)
            return error_set(e, ERR_MODEL, "normalizer: a Sequence has no list");
        for (uint32_t i = 0; i < list->n; i++) {
            int rc = load_steps(z, &list->items[i], depth + 1, e);
            if (rc) return rc;
        }
        return 0;
    }
    if (z->n == MOST_STEPS) return error_set(e, ERR_MODEL, "normalizer: more than %d steps", MOST_STEPS);
    if (mem_grow(&z->steps, &z->cap, z->n + 1, sizeof *z->steps))
        return error_set(e, ERR_MEMORY, "no memory for the normalizer");
    z->steps[z->n] = (struct norm_step){0};
    return load_step(&z->steps[z->n++], j, e);
}
int normalizer_load(struct normalizer *z, const struct json *j, struct error *e) { return load_steps(z, j, 0, e); }

void normalizer_free(struct normalizer *z) {
    for (size_t i = 0; i < z->n; i++) {
        mem_free(z->steps[i].insert);
        mem_free(z->steps[i].literal);
        pattern_free(&z->steps[i].pattern);
        alphabet_free(&z->steps[i].alphabet);
        charsmap_close(&z->steps[i].charsmap);
    }
    mem_free(z->steps);
    *z = (struct normalizer){0};
}
