/* Long pastes in the edited line: a token replaces each of them until the line is entered. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/line.h"

enum { MAX_SHOWN_ROWS = 20 }; /* a longer paste is replaced by a token */

struct line_paste {
    char token[64]; /* replaces the paste in the edited text */
    struct buf text;
};

bool line_paste_fold(struct line *l, size_t from, char *token, size_t cap) {
    const char *s = l->text.data + from;
    size_t n = l->cursor - from, lines = 1, rows = 1;
    char size[32];
    for (size_t i = 0, col = 0; i < n; i++) { /* with each character as one column */
        const bool is_full = col >= (size_t)l->cols && s[i] != '\n';
        if (((unsigned char)s[i] & 0xC0) == 0x80) continue;
        lines += s[i] == '\n';
        rows += is_full || s[i] == '\n';
        col = s[i] == '\n' ? 0 : is_full ? 1 : col + 1;
    }
    if (rows <= MAX_SHOWN_ROWS || mem_grow(&l->pastes, &l->cap_pastes, l->n_pastes + 1, sizeof *l->pastes))
        return false;
    struct line_paste *p = &l->pastes[l->n_pastes];
    *p = (struct line_paste){0};
    snprintf(p->token, sizeof p->token, "[paste %zu: %zu line%s, %s]", l->n_pastes + 1, lines, lines == 1 ? "" : "s",
             amount_bytes(n, size, sizeof size));
    if (buf_add(&p->text, s, n)) {
        buf_free(&p->text);
        return false;
    }
    l->n_pastes++;
    snprintf(token, cap, "%s", p->token);
    return true;
}

bool line_paste_at(const struct line *l, size_t at, size_t *from, size_t *to) {
    for (size_t i = 0; i < l->n_pastes; i++) {
        const char *token = l->pastes[i].token;
        size_t k = strlen(token);
        for (size_t begin = at < k ? 0 : at - k + 1; begin <= at && begin + k <= l->text.len; begin++) {
            if (memcmp(l->text.data + begin, token, k)) continue;
            *from = begin;
            *to = begin + k;
            return true;
        }
    }
    return false;
}

void line_paste_expand(const struct line *l, const struct buf *text, struct buf *out) {
    const char *s = text->data ? text->data : "", *end = s + text->len;
    buf_add(out, "", 0);
    while (s < end) {
        const struct line_paste *first = NULL;
        const char *at = end;
        for (size_t i = 0; i < l->n_pastes; i++) {
            const char *hit = strstr(s, l->pastes[i].token);
            if (hit && hit < at) at = hit, first = &l->pastes[i];
        }
        buf_add(out, s, (size_t)(at - s));
        if (first) buf_add(out, first->text.data, first->text.len);
        s = first ? at + strlen(first->token) : end;
    }
}

void line_paste_free(struct line *l) {
    for (size_t i = 0; i < l->n_pastes; i++) buf_free(&l->pastes[i].text);
    mem_free(l->pastes);
    l->pastes = NULL;
    l->n_pastes = l->cap_pastes = 0;
}
