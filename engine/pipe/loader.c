/* Loader thread: uploads the weights of each layer into the rings, in order of use, directly from the mapped checkpoint. */
#include <string.h>

#include "engine/pipe/kvring.h"
#include "engine/pipe/stage.h"

struct collect {
    struct pipe_range *out;
    int n;
};
static int collect_one(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    struct collect *c = ctx;
    c->out[c->n++] = (struct pipe_range){.host = *p, .bytes = bytes};
    return 0;
}

int module_ranges(const struct config *c, int layer, unsigned modules, const void *src, void *view, struct pipe_range *out) {
    struct param list[PARAMS_MAX];
    struct collect found = {out, 0};
    params_kind(modules, src, view);
    for (int i = 0, n = params_list(c, layer, modules, list); i < n; i++) {
        const struct param *p = &list[i];
        if (!p->cols) {
            float **v = params_vector(view, p);
            *v = *params_vector(src, p);
            out[found.n++] = (struct pipe_range){.host = (const char *)*v, .bytes = (size_t)p->rows * sizeof **v, .field = (const void **)v};
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

int loader_send(struct rank *r, char *dst, const char *src, size_t size) {
    struct pipe_run run = {.host = src, .bytes = size};
    if (!size) return 0;
    atomic_fetch_add(&r->p->h2d, size);
    int rc = stage_send(r->stage, &(struct stage_unit){.runs = &run, .n = 1, .to = dst});
    return rc ? rc : stage_flush(r->stage);
}

static int send_module(struct rank *r, struct slot *s, struct pipe_range *ranges, int n) {
    struct pipe_run runs[MODULE_RANGES];
    size_t bytes;
    int k = pipe_runs(ranges, n, runs, &bytes), rc = 0;
    for (int i = 0; i < k && !rc; i++) rc = loader_send(r, s->mem + runs[i].at, runs[i].host, runs[i].bytes);
    for (int i = 0; i < n; i++) *ranges[i].field = s->mem + ranges[i].at;
    if (!rc) rc = gpu_pair_set(s->on, r->load);
    return rc ? rc : pace_unit(r, &r->pace_load, r->load);
}

static int load_dense(struct rank *r, uint64_t k, int layer, enum module which) {
    struct pipe *p = r->p;
    struct pipe_range ranges[MODULE_RANGES];
    struct slot *s;
    int rc = ring_claim(p, &r->dense, k, r->load, &s);
    if (rc) return rc;
    s->layer = (struct layer){0}; /* clears fields of other modules and host pointers */
    int n = module_ranges(p->c, layer, which, &p->job->w->layers[layer], &s->layer, ranges);
    int span = trace_begin(p->trace, r->load, r->id, LANE_LOAD, which == MODULE_FFN ? "load ffn" : "load attention", layer, -1);
    if (which == MODULE_ATTENTION) rc = kvring_prefix(r, layer);
    if (!rc) rc = send_module(r, s, ranges, n);
    trace_end(p->trace, span, r->load);
    return rc;
}

static int load_expert(struct rank *r, uint64_t k, int layer, int expert) {
    struct pipe *p = r->p;
    struct pipe_range ranges[MODULE_RANGES];
    struct slot *s;
    int rc = ring_claim(p, &r->experts, k, r->load, &s);
    if (rc) return rc;
    int n = module_ranges(p->c, layer, MODULE_EXPERT, &p->job->w->layers[layer].experts[expert], &s->expert, ranges);
    int span = trace_begin(p->trace, r->load, r->id, LANE_LOAD, "load expert", layer, expert);
    rc = send_module(r, s, ranges, n);
    trace_end(p->trace, span, r->load);
    return rc;
}

/* Runs the job's check on a layer's experts that will be sent, or on the rest of the layer. */
static int check(struct rank *r, int layer, bool experts) {
    const struct pipe_job *j = r->p->job;
    struct error e = {0};
    int n = 0;
    if (!j->check) return 0;
    for (int x = r->first; experts && x < r->last; x++)
        if (ring_takes(r, layer, x - r->first)) r->check_ids[n++] = x;
    int rc = experts && !n ? 0 : j->check(j->ctx, layer, experts ? r->check_ids : NULL, n, &e);
    return rc ? pipe_fail(r->p, rc, &e) : 0;
}

/* Sends the modules of each layer in order of use. If the router selects the experts to load, the next layer's dense modules (one, if no
 * more fit) go before them, so that the bus is not idle until it has run. */
void *loader_thread(void *arg) {
    struct rank *r = arg;
    struct pipe *p = r->p;
    uint64_t dense = 0, expert = 0;
    int rc = 0, ahead = !r->chosen ? 0 : r->plan.dense < 4 ? 1 : 2, layers = p->c->n_layers;
    for (int l = 0; l < layers && !rc; l++) {
        uint64_t until = (uint64_t)(2 * l + 2 + (l < layers - 1 ? ahead : 0));
        for (; dense < until && !rc; dense++) {
            if (dense % 2 == 0) rc = check(r, (int)(dense / 2), false);
            if (!rc) rc = load_dense(r, dense, (int)(dense / 2), dense % 2 ? MODULE_FFN : MODULE_ATTENTION);
        }
        if (rc || !p->job->w->layers[l].experts) continue;
        rc = ring_await(r, l);
        if (!rc) rc = check(r, l, true);
        for (int e = r->first; e < r->last && !rc; e++)
            if (ring_takes(r, l, e - r->first)) rc = load_expert(r, expert++, l, e);
    }
    pipe_check(r, rc);
    return NULL;
}
