#include "tokenizer/chat/markup.h"

#include <string.h>

const char *markup_find(struct markup_range t, const char *what) {
    return memmem(t.s, (size_t)(t.end - t.s), what, strlen(what));
}

bool markup_starts_with(struct markup_range t, const char *what) {
    return (size_t)(t.end - t.s) >= strlen(what) && !memcmp(t.s, what, strlen(what));
}

void markup_skip_blanks(struct markup_range *t) {
    while (t->s < t->end && markup_is_blank(*t->s)) t->s++;
}

struct markup_range markup_trim(struct markup_range t) {
    markup_skip_blanks(&t);
    while (t.end > t.s && markup_is_blank(t.end[-1])) t.end--;
    return t;
}

bool markup_take_between(struct markup_range *rest, const char *open, const char *close, struct markup_range *in) {
    const char *opening = markup_find(*rest, open), *closing;
    if (!opening) return false;
    in->s = opening + strlen(open);
    in->end = rest->end;
    rest->s = rest->end;
    if (close && (closing = markup_find(*in, close))) {
        in->end = closing;
        rest->s = closing + strlen(close);
    }
    return true;
}

const char *markup_skip_json(struct markup_range t) {
    bool in_string = false;
    int depth = 0;
    t = markup_trim(t);
    if (!markup_starts_with(t, "{") && !markup_starts_with(t, "[")) return t.s;
    for (const char *p = t.s; p < t.end; p++) {
        if (in_string && *p == '\\') p++;
        else if (*p == '"') in_string = !in_string;
        else if (!in_string) {
            depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
            if (!depth) return p + 1;
        }
    }
    return t.s;
}

bool markup_take_call(struct markup_range *rest, const char *open, const char *head, const char *close,
                      struct markup_range *in) {
    const char *opening = markup_find(*rest, open), *arguments = NULL;
    if (!opening) return false;
    struct markup_range tail = {opening + strlen(open), rest->end};
    in->s = tail.s;
    if (head && (arguments = markup_find(tail, head)) &&
        (arguments = memchr(arguments, '{', (size_t)(tail.end - arguments))))
        tail.s = arguments;
    tail.s = markup_skip_json(tail);
    const char *closing = markup_find(tail, close);
    in->end = closing ? closing : rest->end;
    rest->s = closing ? closing + strlen(close) : rest->end;
    return true;
}

bool markup_take_before(struct markup_range *rest, const char *mark, struct markup_range *head) {
    const char *at = markup_find(*rest, mark);
    if (!at) return false;
    *head = (struct markup_range){rest->s, at};
    rest->s = at + strlen(mark);
    return true;
}

bool markup_find_attribute(struct markup_range tag, const char *name, struct markup_range *value) {
    return markup_take_between(&tag, name, "\"", value);
}
