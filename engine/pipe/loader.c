/* The loader: streams the weights of each layer into the rings, in the order in which they will be used, straight from
 * where the checkpoint is mapped. */
#include <string.h>

#include "engine/pipe/kvring.h"

static const size_t stage_bytes = (size_t)16 << 20, small = (size_t)64 << 10;

static int add(struct pipe_range *out, int n, const void *field, const void *host, size_t bytes) {
    if (!host || !bytes) return n;
    out[n] = (struct pipe_range){.host = host, .bytes = bytes, .field = (const void **)field};
    return n + 1;
}
struct collect {
    struct pipe_range *out;
    int n;
};
/* The visitor shows a copy of the pointer it read; the field itself is found by the caller, in the order data, scale. */
static int collect_one(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    struct collect *c = ctx;
    c->out[c->n++] = (struct pipe_range){.host = *p, .bytes = bytes};
    return 0;
}
static int add_mat(struct pipe_range *out, int n, const struct mat *src, struct mat *view) {
    struct pipe_range found[2];
    struct collect c = {found, 0};
    *view = *src;
    op_visit_mat(view, collect_one, &c);
    if (c.n > 0) n = add(out, n, &view->data, found[0].host, found[0].bytes);
    if (c.n > 1) n = add(out, n, &view->scale, found[1].host, found[1].bytes);
    return n;
}

int module_expert(const struct expert *src, struct expert *view, struct pipe_range *out) {
    int n = add_mat(out, 0, &src->gate, &view->gate);
    n = add_mat(out, n, &src->up, &view->up);
    return add_mat(out, n, &src->down, &view->down);
}

int module_dense(const struct config *c, const struct layer *s, enum pipe_module which, struct layer *v, struct pipe_range *out) {
    size_t hidden = (size_t)c->hidden * 4, head = (size_t)c->head_dim * 4;
    int n = 0;
    *v = *s;
    if (which == MODULE_FFN) {
        n = add(out, n, &v->ffn_norm, s->ffn_norm, hidden);
        n = add_mat(out, n, &s->router, &v->router);
        n = add(out, n, &v->router_bias, s->router_bias, (size_t)c->n_experts * 4);
        n = add_mat(out, n, &s->shared_gate, &v->shared_gate);
        n = add_mat(out, n, &s->dense.gate, &v->dense.gate);
        n = add_mat(out, n, &s->dense.up, &v->dense.up);
        return add_mat(out, n, &s->dense.down, &v->dense.down);
    }
    n = add(out, n, &v->attn_norm, s->attn_norm, hidden);
    const struct mat *from[] = {&s->q, &s->k, &s->v, &s->o, &s->q_a, &s->q_b, &s->kv_a, &s->kv_b};
    struct mat *to[] = {&v->q, &v->k, &v->v, &v->o, &v->q_a, &v->q_b, &v->kv_a, &v->kv_b};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) n = add_mat(out, n, from[i], to[i]);
    n = add(out, n, &v->q_bias, s->q_bias, (size_t)s->q.rows * 4);
    n = add(out, n, &v->k_bias, s->k_bias, (size_t)s->k.rows * 4);
    n = add(out, n, &v->v_bias, s->v_bias, (size_t)s->v.rows * 4);
    n = add(out, n, &v->o_bias, s->o_bias, (size_t)s->o.rows * 4);
    n = add(out, n, &v->q_norm, s->q_norm, head);
    n = add(out, n, &v->k_norm, s->k_norm, head);
    n = add(out, n, &v->q_a_norm, s->q_a_norm, (size_t)c->q_lora * 4);
    n = add(out, n, &v->q_a_bias, s->q_a_bias, (size_t)s->q_a.rows * 4);
    n = add(out, n, &v->kv_a_norm, s->kv_a_norm, (size_t)c->kv_lora * 4);
    return add(out, n, &v->kv_a_bias, s->kv_a_bias, (size_t)s->kv_a.rows * 4);
}

/* Pinned memory goes in one copy; small things the driver takes by itself; the rest through two pinned buffers. */
int loader_send(struct rank *r, char *dst, const char *src, size_t size) {
    const struct gpu_set *set = r->p->job->set;
    if (!size) return 0;
    atomic_fetch_add(&r->p->h2d, size);
    if (set->spec.is_virtual || size <= small || gpu_set_pinned(set, src, size)) return gpu_copy(r->load, dst, src, size, GPU_H2D);
    for (size_t at = 0; at < size; at += stage_bytes) {
        size_t n = size - at < stage_bytes ? size - at : stage_bytes;
        int i = r->next_stage, rc = gpu_event_sync(r->staged[i]);
        if (rc || atomic_load(&r->p->stop)) return rc ? rc : ERR_CANCELLED;
        memcpy(r->stage[i], src + at, n);
        rc = gpu_copy(r->load, dst + at, r->stage[i], n, GPU_H2D);
        if (!rc) rc = gpu_event_record(r->staged[i], r->load);
        if (rc) return rc;
        r->next_stage = (i + 1) % STAGES;
    }
    return 0;
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

static int load_dense(struct rank *r, uint64_t k, int layer, enum pipe_module which) {
    struct pipe *p = r->p;
    struct pipe_range ranges[MODULE_RANGES];
    struct slot *s;
    int rc = ring_claim(p, &r->dense, k, r->load, &s);
    if (rc) return rc;
    int n = module_dense(p->c, &p->job->w->layers[layer], which, &s->layer, ranges);
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
    int n = module_expert(&p->job->w->layers[layer].experts[expert], &s->expert, ranges);
    int span = trace_begin(p->trace, r->load, r->id, LANE_LOAD, "load expert", layer, expert);
    rc = send_module(r, s, ranges, n);
    trace_end(p->trace, span, r->load);
    return rc;
}

/* What is about to be sent of a layer: its experts that are taken, or the rest of it. */
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

/* The modules of each layer in the order of their use. Where the router has to say which experts come, the next layer's other
 * modules (one, when no more fit) go before them, so that the bus does not stand idle until it has run. */
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
