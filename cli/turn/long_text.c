#include "cli/turn/long_text.h"

#include <stdbool.h>
#include <string.h>

/* Moves a position within a character to its beginning. */
static size_t align(const struct long_text *t, size_t at) {
    while (at < t->n && at && ((unsigned char)t->data[at] & 0xC0) == 0x80) at--;
    return at;
}

static size_t after_character(const struct long_text *t, size_t at) {
    for (at++; at < t->n && ((unsigned char)t->data[at] & 0xC0) == 0x80;) at++;
    return at;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Whether a blank line ends before data[at]. */
static bool ends_paragraph(const char *s, size_t at) {
    if (s[at - 1] != '\n') return false;
    for (at--; at && is_blank(s[at - 1]);) at--;
    return at && s[at - 1] == '\n';
}

/* Whether a sentence and the space after it end before data[at]. */
static bool ends_sentence(const char *s, size_t at) {
    static const char *const wide[] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"}; /* 。！？ */
    for (size_t i = 0; i < sizeof wide / sizeof *wide && at >= 3; i++)
        if (!memcmp(s + at - 3, wide[i], 3)) return true;
    if (!is_blank(s[at - 1]) && s[at - 1] != '\n') return false;
    while (at && (is_blank(s[at - 1]) || s[at - 1] == '\n')) at--;
    while (at && strchr("\"')]", s[at - 1]) && s[at - 1]) at--;
    return at && s[at - 1] && strchr(".!?", s[at - 1]);
}

static bool ends_line(const char *s, size_t at) { return s[at - 1] == '\n'; }
static bool ends_word(const char *s, size_t at) { return is_blank(s[at - 1]); }

/* Returns the best place for a cut in the second half of data[from, to). */
static size_t best_end(const struct long_text *t, size_t from, size_t to) {
    static bool (*const ends[])(const char *, size_t) = {ends_paragraph, ends_sentence, ends_line, ends_word};
    if (to == t->n) return to;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        for (size_t at = to; at > from + (to - from) / 2; at--)
            if (ends[k](t->data, at)) return at;
    return to;
}

/* Finds nearly the longest data[from, *fits) that has at most `most` tokens; *fits == from: no character fits. */
static int find_longest(struct long_text *t, size_t from, size_t *fits, struct error *e) {
    enum { MOST_TRIES = 40, CLOSE = 32, FIRST_TOKEN_BYTES = 3 };
    const double share = 0.98;          /* aims below the limit, so that the first try mostly fits */
    size_t low = from, high = t->n + 1; /* low fits, high does not */
    for (int i = 0; i < MOST_TRIES && low < t->n && high > after_character(t, low); i++) {
        const double bytes = t->token_bytes > 0 ? t->token_bytes : FIRST_TOKEN_BYTES;
        size_t to = from + (size_t)((double)t->most * bytes * share), tokens;
        if (to <= low) to = high > t->n ? low + (low - from) / 8 + CLOSE : low + (high - low) / 2;
        if (to >= high) to = low + (high - low) / 2;
        to = to > t->n ? t->n : align(t, to);
        if (to <= low) to = after_character(t, low);
        TRY(t->count(t->ctx, from, to, &tokens, e));
        if (tokens) t->token_bytes = (double)(to - from) / (double)tokens;
        if (tokens <= t->most) low = to;
        else high = to;
        /* close enough: a cut will go back farther than that */
        if (low > from && high <= t->n && high - low < CLOSE + (low - from) / CLOSE) break;
        if (low > from && high > t->n && t->most - tokens < t->most / CLOSE) break;
    }
    *fits = low;
    return 0;
}

int long_text_next(struct long_text *t, size_t from, size_t *to, struct error *e) {
    size_t fits = from;
    TRY(find_longest(t, from, &fits, e));
    if (fits == from)
        return error_set(e, ERR_CONTEXT,
                         "no part of the document fits into the context beside the question; -c N gives more");
    *to = best_end(t, from, fits);
    return 0;
}
