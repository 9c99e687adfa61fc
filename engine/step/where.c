#include "engine/step/where.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *where_name(enum where_what what) {
    static const char *const names[] = {[WHERE_EMBEDDING] = "embedding",
                                        [WHERE_LAYERS] = "attention and dense parts",
                                        [WHERE_HEAD] = "head",
                                        [WHERE_EXPERTS] = "routed experts",
                                        [WHERE_ROOM] = "KV caches, workspace, prefill ring"};
    return names[what];
}

void where_add(struct where *w, struct where_row row, const char *why) {
    if (w->n == WHERE_ROWS) return;
    snprintf(row.why, sizeof row.why, "%s", why);
    w->row[w->n++] = row;
}

void where_say(const struct where *w, char *out, size_t cap) {
    bool any = false;
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < w->n; i++) any |= w->row[i].device >= 0;
    for (int i = 0; i < w->n; i++) {
        const struct where_row *r = &w->row[i];
        bool said = false;
        if (r->what != WHERE_LAYERS && r->what != WHERE_EXPERTS) continue;
        if (any ? r->device < 0 : r->what != WHERE_LAYERS) continue;
        for (int k = 0; k < i; k++) said |= w->row[k].what == r->what && w->row[k].device >= 0 && !strcmp(w->row[k].why, r->why);
        if (!said && *r->why && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s%s", at ? "; " : "", r->what == WHERE_EXPERTS ? "routed experts: " : "", r->why);
    }
}
