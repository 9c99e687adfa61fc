#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Splits a text into words. The text is a list of ranges in characters. Split steps read the map (one byte per
 * character); rewrite steps produce a new text and map. If the last step is a split, it passes its words on directly,
 * so a long text needs no word list. */
struct pretok_run {
    struct encoder *x;
    const struct pretok *p;
    const char *s;
    size_t n;
    const uint8_t *map; /* [chars] bytes of the alphabet; the text itself if it is ASCII */
    size_t chars;
    size_t at_char, at_byte; /* last position that byte_at converted; ranges come in order */
    struct ids *out;
    struct error *e;
    struct word_ranges *to; /* NULL: encode the words */
};

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory to split a text"); }

/* Returns the offset in bytes of character c. */
static size_t byte_at(struct pretok_run *w, size_t c) {
    if (w->chars == w->n) return c;
    if (c < w->at_char) w->at_char = w->at_byte = 0;
    while (w->at_char < c) {
        w->at_byte += utf8_size((unsigned char)w->s[w->at_byte]);
        w->at_char++;
    }
    return w->at_byte;
}

static int make_map(struct pretok_run *w) {
    struct encoder *x = w->x;
    w->at_char = w->at_byte = 0;
    w->map = (const uint8_t *)w->s;
    w->chars = w->n;
    if (utf8_ascii(w->s, w->n) == w->n) return 0;
    if (mem_grow(&x->char_map.data, &x->char_map.cap, w->n + 1, 1)) return no_memory(w->e);
    w->chars = alphabet_map(&w->p->alphabet, w->s, w->n, (uint8_t *)x->char_map.data);
    w->map = (const uint8_t *)x->char_map.data;
    return 0;
}

/* --- splitting -------------------------------------------------------------------------------- */

/* Passes on characters [begin, end) of the range from, if there are any. */
static int emit_word(struct pretok_run *w, struct word_range from, size_t begin, size_t end) {
    if (begin == end) return 0;
    if (w->to) {
        if (w->to->n == w->to->cap && mem_grow(&w->to->v, &w->to->cap, w->to->n + 1, sizeof *w->to->v))
            return no_memory(w->e);
        w->to->v[w->to->n++] = (struct word_range){begin, end, from.at_text_start && begin == from.begin};
        return 0;
    }
    size_t b = byte_at(w, begin), e = byte_at(w, end);
    return bpe_encode(w->x, w->s + b, e - b, w->out, w->e);
}

/* Matches and gaps arrive in order; the behavior decides how they join. A range may still grow, so one is held back. */
struct splitter {
    struct pretok_run *w;
    const struct pre_step *step;
    struct word_range from;
    size_t begin, end;            /* the held range */
    bool has_held, held_is_match; /* a range is held; it was a match */
};

static int add_range(struct splitter *k, size_t begin, size_t end, bool match) {
    if (k->step->invert) match = !match;
    bool grow = false;
    switch ((enum split_behavior)k->step->behavior) {
    case SPLIT_REMOVED: return match ? 0 : emit_word(k->w, k->from, begin, end);
    case SPLIT_ISOLATED: return emit_word(k->w, k->from, begin, end);
    case SPLIT_MERGED_WITH_PREVIOUS: grow = match && !k->held_is_match; break;
    case SPLIT_MERGED_WITH_NEXT: grow = !match && k->held_is_match; break;
    case SPLIT_CONTIGUOUS: grow = match == k->held_is_match; break;
    }
    k->held_is_match = match;
    if (k->has_held && grow) {
        k->end = end;
        return 0;
    }
    int rc = k->has_held ? emit_word(k->w, k->from, k->begin, k->end) : 0;
    k->begin = begin;
    k->end = end;
    k->has_held = true;
    return rc;
}

static int split_range(struct pretok_run *w, const struct pre_step *step, struct word_range from) {
    struct splitter k = {.w = w, .step = step, .from = from};
    struct pattern_iter walk = {0};
    const uint8_t *map = w->map + from.begin;
    size_t n = from.end - from.begin, done = 0, begin, end;
    int rc;
    while ((rc = pattern_next(&step->pattern, &w->x->matcher, map, n, &walk, &begin, &end, w->e)) == 1) {
        if (begin > done && (rc = add_range(&k, from.begin + done, from.begin + begin, false))) return rc;
        if ((rc = add_range(&k, from.begin + begin, from.begin + end, true))) return rc;
        done = end;
    }
    if (!rc && done < n) rc = add_range(&k, from.begin + done, from.end, false);
    return rc || !k.has_held ? rc : emit_word(w, from, k.begin, k.end);
}

/* --- rewriting -------------------------------------------------------------------------------- */

/* Appends the character c of n bytes as the step writes it. Returns the number of characters appended. */
static size_t put_rewritten(struct buf *o, const struct pre_step *step, const char *c, size_t n) {
    if (step->kind == PRE_BYTES) {
        char shown[4];
        for (size_t j = 0; j < n; j++) buf_add(o, shown, vocab_char_of_byte((unsigned char)c[j], shown));
        return n;
    }
    if (step->kind == PRE_METASPACE && *c == ' ') buf_add(o, step->mark, step->n_mark);
    else buf_add(o, c, n);
    return 1;
}

/* Writes the ranges one after another as the step spells them; they then hold the places in the new text. */
static int rewrite_text(struct pretok_run *w, const struct pre_step *step, struct word_ranges *spans) {
    struct buf *o = &w->x->rewritten;
    struct buf old = {0};
    size_t chars = 0;
    if (w->s == o->data) { /* the new text would overwrite the old one */
        if (buf_add(&old, w->s, w->n)) return no_memory(w->e);
        w->s = old.data;
    }
    o->len = 0;
    for (size_t i = 0; i < spans->n; i++) {
        struct word_range *v = &spans->v[i];
        size_t b = byte_at(w, v->begin), e = byte_at(w, v->end);
        size_t begin = chars;
        if (step->kind == PRE_SPACE_BEFORE && w->s[b] != ' ') buf_char(o, ' '), chars++;
        if (step->kind == PRE_METASPACE) {
            bool marked = w->s[b] == ' ' || (e - b >= step->n_mark && !memcmp(w->s + b, step->mark, step->n_mark));
            if (!marked && (step->mark_always || (step->mark_first && v->at_text_start)))
                buf_add(o, step->mark, step->n_mark), chars++;
        }
        for (size_t k = b, n; k < e; k += n) {
            n = utf8_size((unsigned char)w->s[k]);
            chars += put_rewritten(o, step, w->s + k, n);
        }
        v->begin = begin;
        v->end = chars;
    }
    buf_free(&old);
    if (o->failed) {
        o->failed = false;
        return no_memory(w->e);
    }
    w->s = o->data ? o->data : "";
    w->n = o->len;
    return make_map(w);
}

int pretok_encode(struct encoder *x, const char *s, size_t n, bool first, struct ids *out, struct error *e) {
    const struct pretok *p = &x->t->pretok;
    if (!n) return 0;
    if (!p->n) return bpe_encode(x, s, n, out, e);
    struct pretok_run w = {.x = x, .p = p, .s = s, .n = n, .out = out, .e = e};
    int rc = make_map(&w), side = 0;
    if (rc) return rc;
    struct word_ranges *in = &x->ranges[0];
    in->n = 0;
    w.to = in;
    if ((rc = emit_word(&w, (struct word_range){0, w.chars, first}, 0, w.chars))) return rc;
    for (size_t i = 0; i < p->n; i++) {
        const struct pre_step *step = &p->steps[i];
        if (step->kind != PRE_SPLIT) {
            if ((rc = rewrite_text(&w, step, in))) return rc;
            continue;
        }
        w.to = i + 1 < p->n ? &x->ranges[side = !side] : NULL;
        if (w.to) w.to->n = 0;
        for (size_t k = 0; k < in->n; k++)
            if ((rc = split_range(&w, step, in->v[k]))) return rc;
        if (!w.to) return 0;
        in = w.to;
    }
    w.to = NULL;
    for (size_t k = 0; k < in->n; k++)
        if ((rc = emit_word(&w, in->v[k], in->v[k].begin, in->v[k].end))) return rc;
    return 0;
}

/* --- loading ---------------------------------------------------------------------------------- */

static struct pre_step *add_step(struct pretok *p, uint8_t kind, struct error *e) {
    if (mem_grow(&p->steps, &p->cap, p->n + 1, sizeof *p->steps)) return no_memory(e), NULL;
    p->steps[p->n] = (struct pre_step){.kind = kind};
    return &p->steps[p->n++];
}

static int load_behavior(struct pre_step *step, const struct json *j, struct error *e) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    for (int i = 0; i < 5; i++)
        if (json_is(j, names[i])) return step->behavior = (uint8_t)i, 0;
    bool named = j && j->type == JSON_STRING;
    return error_set(e, ERR_MODEL, "pre-tokenizer: unknown behavior %.*s", named ? (int)j->n : 1,
                     named ? j->string : "?");
}

int pretok_add_pattern(struct pretok *p, const char *pattern, size_t n, enum split_behavior b, struct error *e) {
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    if (!step) return ERR_MEMORY;
    step->behavior = b;
    return pattern_parse(&step->pattern, &p->alphabet, pattern, n, e);
}

static int load_split(struct pretok *p, const struct json *j, struct error *e) {
    const struct json *pattern = json_get(j, "pattern"), *regex = json_get(pattern, "Regex"),
                      *string = json_get(pattern, "String");
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    if (!step) return ERR_MEMORY;
    step->invert = json_bool(json_get(j, "invert"), false);
    int rc = load_behavior(step, json_get(j, "behavior"), e);
    if (rc) return rc;
    if (regex && regex->type == JSON_STRING)
        return pattern_parse(&step->pattern, &p->alphabet, regex->string, regex->n, e);
    if (!string || string->type != JSON_STRING) return error_set(e, ERR_MODEL, "pre-tokenizer: Split has no pattern");
    if (!string->n) return pattern_add_text(&step->pattern, "(?!)", e); /* an empty pattern never matches */
    for (const char *s = string->string, *end = s + string->n; s < end && !rc;) {
        struct charset one = {0};
        uint32_t c = utf8_next(&s);
        if (charset_add(&one, c, c)) return no_memory(e);
        rc = pattern_add_set(&step->pattern, &p->alphabet, &one, "", e);
    }
    return rc;
}

/* Adds a split at single characters of a set, which it frees. rc: whether the set could be made (else: no memory). */
static int add_set_split(struct pretok *p, struct charset *s, int rc, enum split_behavior b, struct error *e) {
    struct pre_step *step = rc ? NULL : add_step(p, PRE_SPLIT, e);
    if (!step) {
        charset_free(s);
        return no_memory(e);
    }
    step->behavior = b;
    return pattern_add_set(&step->pattern, &p->alphabet, s, "", e);
}

/* Rust's \w+|[^\w\s]+: words and runs of anything else, without the white space between them. */
static int load_whitespace(struct pretok *p, struct error *e) {
    struct charset word = {0}, other = {0};
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    if (!step || charset_word(&word, WORD_RUST) || charset_union(&other, word.r, word.n) ||
        charset_union(&other, unicode_space, unicode_space_n) || charset_invert(&other)) {
        charset_free(&word);
        charset_free(&other);
        return no_memory(e);
    }
    step->invert = true;
    step->behavior = SPLIT_REMOVED;
    int rc = pattern_add_set(&step->pattern, &p->alphabet, &word, "+|", e);
    if (rc) charset_free(&other);
    return rc ? rc : pattern_add_set(&step->pattern, &p->alphabet, &other, "+", e);
}

static int load_metaspace(struct pretok *p, const struct json *j, struct error *e) {
    const struct json *mark = json_get(j, "replacement"), *scheme = json_get(j, "prepend_scheme");
    const char *s = mark && mark->type == JSON_STRING && mark->n ? mark->string : NULL;
    if (!s || utf8_size((unsigned char)*s) != mark->n)
        return error_set(e, ERR_MODEL, "pre-tokenizer: Metaspace has no replacement");
    struct pre_step *step = add_step(p, PRE_METASPACE, e);
    if (!step) return ERR_MEMORY;
    memcpy(step->mark, s, mark->n);
    step->n_mark = (uint8_t)mark->n;
    step->mark_always = !scheme || json_is(scheme, "always");
    step->mark_first = json_is(scheme, "first");
    if (scheme && !step->mark_always && !step->mark_first && !json_is(scheme, "never"))
        return error_set(e, ERR_MODEL, "pre-tokenizer: unknown prepend_scheme of Metaspace");
    if (!json_bool(json_get(j, "add_prefix_space"), true)) step->mark_always = step->mark_first = false;
    if (!json_bool(json_get(j, "split"), true)) return 0;
    struct charset at = {0};
    uint32_t c = utf8_next(&s);
    return add_set_split(p, &at, charset_add(&at, c, c), SPLIT_MERGED_WITH_NEXT, e);
}

static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int load_byte_level(struct pretok *p, const struct json *j, struct error *e) {
    int rc = 0;
    if (json_bool(json_get(j, "add_prefix_space"), true) && !add_step(p, PRE_SPACE_BEFORE, e)) return ERR_MEMORY;
    if (json_bool(json_get(j, "use_regex"), true))
        rc = pretok_add_pattern(p, byte_level_pattern, sizeof byte_level_pattern - 1, SPLIT_ISOLATED, e);
    p->is_byte_level = true;
    return rc ? rc : add_step(p, PRE_BYTES, e) ? 0 : ERR_MEMORY;
}

static int load_steps(struct pretok *p, const struct json *j, int depth, struct error *e) {
    if (!j || j->type == JSON_NULL) return 0;
    const struct json *type = json_get(j, "type");
    struct charset s = {0};
    if (json_is(type, "Sequence")) {
        const struct json *list = json_get(j, "pretokenizers");
        if (!list || list->type != JSON_ARRAY || depth > 8)
            return error_set(e, ERR_MODEL, "pre-tokenizer: a Sequence has no list");
        for (uint32_t i = 0; i < list->n; i++) {
            int rc = load_steps(p, &list->items[i], depth + 1, e);
            if (rc) return rc;
        }
        return 0;
    }
    if (json_is(type, "Split")) return load_split(p, j, e);
    if (json_is(type, "ByteLevel")) return load_byte_level(p, j, e);
    if (json_is(type, "Metaspace")) return load_metaspace(p, j, e);
    if (json_is(type, "Whitespace")) return load_whitespace(p, e);
    if (json_is(type, "WhitespaceSplit"))
        return add_set_split(p, &s, charset_union(&s, unicode_space, unicode_space_n), SPLIT_REMOVED, e);
    if (json_is(type, "Digits")) {
        bool each = json_bool(json_get(j, "individual_digits"), false);
        int rc = charset_property(&s, "N", 1);
        if (!rc) rc = charset_union(&s, unicode_digits_more, unicode_digits_more_n);
        return add_set_split(p, &s, rc, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, e);
    }
    if (json_is(type, "Punctuation")) {
        struct pre_step how = {.behavior = SPLIT_ISOLATED};
        const struct json *b = json_get(j, "behavior");
        int rc = b ? load_behavior(&how, b, e) : 0;
        return rc ? rc
                  : add_set_split(p, &s, charset_union(&s, unicode_punctuation, unicode_punctuation_n),
                                  (enum split_behavior)how.behavior, e);
    }
    return load_fail_unknown("pre-tokenizer", type, e);
}

int pretok_load(struct pretok *p, const struct json *j, struct error *e) { return load_steps(p, j, 0, e); }

int pretok_compile(struct pretok *p, struct error *e) {
    int rc = alphabet_build(&p->alphabet, e);
    for (size_t i = 0; i < p->n && !rc; i++)
        if (p->steps[i].kind == PRE_SPLIT) rc = pattern_compile(&p->steps[i].pattern, &p->alphabet, e);
    return rc;
}

void pretok_free(struct pretok *p) {
    for (size_t i = 0; i < p->n; i++) pattern_free(&p->steps[i].pattern);
    mem_free(p->steps);
    alphabet_free(&p->alphabet);
    *p = (struct pretok){0};
}
