#include "engine/transfer/copy_runs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
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

static int list_ranges(const struct param *list, int n, const void *src, void *view, struct copy_range *out) {
    struct collect found = {out, 0};
    for (int i = 0; i < n; i++) {
        const struct param *p = &list[i];
        if (p->stays_on_host) continue;
        if (!p->cols) {
            float **v = params_vector(view, p);
            *v = *params_vector(src, p);
            out[found.n++] = (struct copy_range){
                .host = (const char *)*v, .bytes = (size_t)p->rows * sizeof **v, .field = (const void **)v};
            continue;
        }
        struct mat *m = params_mat(view, p);
        const void **fields[] = {&m->data, &m->scale, (const void **)&m->order};
        int first = found.n;
        *m = *params_mat(src, p);
        op_visit_mat(m, collect_one, &found); /* visits copies of the pointers, in this order */
        for (int k = first; k < found.n; k++) out[k].field = fields[k - first];
    }
    return found.n;
}
int copy_ranges_list(const struct config *c, int layer, unsigned modules, const void *src, void *view,
                     struct copy_range *out) {
    struct param list[PARAMS_MAX];
    params_copy_traits(modules, src, view);
    return list_ranges(list, params_list(c, layer, modules, list), src, view, out);
}
int copy_ranges_list_expert(struct expert_params *p, const struct config *c, int layer, const struct expert *src,
                            struct expert *view, struct copy_range *out) {
    if (p->end_layer != layer + 1) {
        struct param list[PARAMS_MAX];
        p->n = params_list(c, layer, MODULE_EXPERT, list);
        assert(p->n <= EXPERT_PARAMS);
        memcpy(p->list, list, (size_t)p->n * sizeof *list);
        p->end_layer = layer + 1;
    }
    params_copy_traits(MODULE_EXPERT, src, view);
    return list_ranges(p->list, p->n, src, view, out);
}

static int by_host(const void *a, const void *b) {
    const struct copy_range *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

/* Kernels read 16 bytes at once where an address allows it. A safetensors file aligns its tensors to 8 bytes only. */
enum { ALIGN = 16, SMALL = 4096 /* bytes: another copy costs more than reading so few in narrow steps */ };
/* Whether a range continues a run, without a large range losing its alignment. */
static bool joins(const struct copy_run *run, const struct copy_range *r) {
    if (r->row || run->row || r->host > run->host + run->bytes) return false;
    return r->bytes < SMALL || (size_t)(r->host - run->host) % ALIGN == 0;
}

int copy_runs_merge(struct copy_range *r, int n, struct copy_run *runs, size_t *bytes) {
    int k = 0;
    size_t at = 0;
    qsort(r, (size_t)n, sizeof *r, by_host);
    for (int i = 0; i < n; i++) {
        const char *end = r[i].host + r[i].bytes;
        if (!k || !joins(&runs[k - 1], &r[i])) {
            at = align_up(at, 256);
            runs[k++] = (struct copy_run){
                .host = r[i].host, .bytes = r[i].bytes, .at = at, .row = r[i].row, .pitch = r[i].pitch};
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
