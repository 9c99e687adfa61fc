#include "tokenizer/grammar/look_ahead.h"

#include <string.h>

struct part { /* of a pattern */
    const char *s;
    size_t n;
};

/* Returns the length of what comes before the first of two characters that stands in no group and in no set of
 * characters; the whole length if there is none. */
static size_t length_before(struct part t, char stop, char other) {
    int depth = 0;
    bool is_set = false;
    for (size_t i = 0; i < t.n; i++) {
        const char c = t.s[i];
        if (!is_set && !depth && (c == stop || c == other)) return i;
        if (c == '\\') i++;
        else if (is_set) is_set = c != ']';
        else if (c == '[') {
            is_set = true;
            if (i + 1 < t.n && t.s[i + 1] == '^') i++;
            if (i + 1 < t.n && t.s[i + 1] == ']') i++; /* a set's first character */
        } else depth += (c == '(') - (c == ')');
    }
    return t.n;
}

/* Takes the look-ahead with which a pattern begins. */
static bool take(struct part *rest, struct part *in, bool *is_negative) {
    if (rest->n < 4 || memcmp(rest->s, "(?", 2) != 0 || (rest->s[2] != '!' && rest->s[2] != '=')) return false;
    *is_negative = rest->s[2] == '!';
    const struct part tail = {rest->s + 3, rest->n - 3};
    const size_t n = length_before(tail, ')', ')');
    *in = (struct part){tail.s, n};
    if (n == tail.n) return false;
    *rest = (struct part){tail.s + n + 1, tail.n - n - 1};
    return true;
}

/* The strings at whose beginning the pattern matches. */
static int beginning(struct effort *effort, struct arena *a, struct part t, struct lang *out, struct error *e) {
    const struct regex *r;
    if (t.n && *t.s == '^') t.s++, t.n--;
    char *text = arena_alloc(a, t.n + 5);
    if (!text) return error_set(e, ERR_MEMORY, "no memory");
    const bool is_choice = length_before(t, '|', '|') < t.n;
    const size_t head = is_choice ? 4 : 1;
    memcpy(text, is_choice ? "^(?:" : "^", head);
    memcpy(text + head, t.s, t.n);
    if (is_choice) text[head + t.n] = ')';
    TRY(regex_parse(a, text, head + t.n + is_choice, &r, e));
    return lang_search(effort, r, out, e);
}

int look_ahead_search(struct effort *effort, struct arena *a, const char *pattern, size_t n, struct lang *out,
                      struct error *e) {
    struct part rest = {pattern, n}, in;
    const struct regex *r;
    bool is_negative;
    const bool is_anchored = n && *pattern == '^';
    if (is_anchored) rest.s++, rest.n--;
    struct part after = rest;
    while (is_anchored && take(&after, &in, &is_negative)) {
    }
    if (after.s == rest.s || length_before(after, '|', '|') < after.n) {
        TRY(regex_parse(a, pattern, n, &r, e));
        return lang_search(effort, r, out, e);
    }
    TRY(beginning(effort, a, after, out, e));
    while (take(&rest, &in, &is_negative)) {
        const struct lang from = *out;
        struct lang ahead;
        TRY(beginning(effort, a, in, &ahead, e));
        TRY(lang_product(effort, &from, &ahead, is_negative, out, e));
    }
    return 0;
}
