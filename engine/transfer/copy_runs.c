#include "engine/transfer/copy_runs.h"

#include <stdlib.h>

#include "engine/base/mem.h"
#include "gpu/op.h"

struct collect {
    struct copy_range *out;
    int n;
};
static int collect_one(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    struct collect *c = ctx;
    c->out[c->n++] = (struct copy_range){.host = *p, .bytes = bytes};
    return 0;
}

int copy_ranges_list(const struct config *c, int layer, unsigned modules, const void *src, void *view, struct copy_range *out) {
    struct param list[PARAMS_MAX];
    struct collect found = {out, 0};
    params_copy_traits(modules, src, view);
    for (int i = 0, n = params_list(c, layer, modules, list); i < n; i++) {
        const struct param *p = &list[i];
        if (!p->cols) {
            float **v = params_vector(view, p);
            *v = *params_vector(src, p);
            out[found.n++] = (struct copy_range){.host = (const char *)*v, .bytes = (size_t)p->rows * sizeof **v, .field = (const void **)v};
            continue;
        }
        struct mat *m = params_mat(view, p);
        const void **fields[] = {&m->data, &m->scale};
        int first = found.n;
        *m = *params_mat(src, p);
        op_visit_mat(m, collect_one, &found); /* visits copies of the pointers, in this order */
        for (int k = first; k < found.n; k++) out[k].field = fields[k - first];
    }
    return found.n;
}

static int by_host(const void *a, const void *b) {
    const struct copy_range *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

int copy_runs_merge(struct copy_range *r, int n, struct copy_run *runs, size_t *bytes) {
    int k = 0;
    size_t at = 0;
    qsort(r, (size_t)n, sizeof *r, by_host);
    for (int i = 0; i < n; i++) {
        const char *end = r[i].host + r[i].bytes;
        if (!k || r[i].row || runs[k - 1].row || r[i].host > runs[k - 1].host + runs[k - 1].bytes) {
            at = align_up(at, 256) + (size_t)r[i].host % 256; /* same alignment as on the host, for aligned loads */
            runs[k++] = (struct copy_run){.host = r[i].host, .bytes = r[i].bytes, .at = at, .row = r[i].row, .pitch = r[i].pitch};
        } else if (end > runs[k - 1].host + runs[k - 1].bytes) {
            runs[k - 1].bytes = (size_t)(end - runs[k - 1].host);
        }
        r[i].at = runs[k - 1].at + (size_t)(r[i].host - runs[k - 1].host);
        at = runs[k - 1].at + runs[k - 1].bytes;
    }
    *bytes = at;
    return k;
}

size_t copy_ranges_bytes(struct copy_range *r, int n) {
    struct copy_run runs[COPY_RANGES_MAX];
    size_t bytes;
    copy_runs_merge(r, n, runs, &bytes);
    return align_up(bytes, 256);
}
