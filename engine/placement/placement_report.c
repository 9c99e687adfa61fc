#include "engine/placement/placement_report.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *placement_report_name(enum placement_item what) {
    static const char *const names[] = {[PLACED_EMBEDDING] = "embedding",
                                        [PLACED_LAYERS] = "attention and dense parts",
                                        [PLACED_HEAD] = "head",
                                        [PLACED_EXPERTS] = "routed experts",
                                        [PLACED_RESERVE] = "KV caches, workspace, prefill ring"};
    return names[what];
}

void placement_report_add(struct placement_report *w, struct placement_row row, const char *why) {
    if (w->n == PLACEMENT_REPORT_ROWS) return;
    snprintf(row.why, sizeof row.why, "%s", why);
    w->row[w->n++] = row;
}

void placement_report_reasons(const struct placement_report *w, char *out, size_t cap) {
    bool any = false;
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < w->n; i++) any |= w->row[i].device >= 0;
    for (int i = 0; i < w->n; i++) {
        const struct placement_row *r = &w->row[i];
        bool said = false;
        if (r->item != PLACED_LAYERS && r->item != PLACED_EXPERTS) continue;
        if (any ? r->device < 0 : r->item != PLACED_LAYERS) continue;
        for (int k = 0; k < i; k++)
            said |= w->row[k].item == r->item && w->row[k].device >= 0 && !strcmp(w->row[k].why, r->why);
        if (!said && *r->why && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s%s", at ? "; " : "",
                                   r->item == PLACED_EXPERTS ? "routed experts: " : "", r->why);
    }
}
