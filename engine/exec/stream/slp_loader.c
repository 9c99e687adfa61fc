/* Loader thread: uploads the weights of each layer into the rings, in order of use, directly from the mapped
 * checkpoint. A dense module that is resident occupies a slot, so that slots follow from module numbers, but is not
 * copied. */
#include <string.h>

#include "engine/exec/stream/kvring.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp.h"
#include "engine/exec/stream/slp_fail.h"
#include "engine/exec/stream/slp_threads.h"
#include "engine/transfer/resident_set.h"
#include "engine/transfer/stage.h"

static int send_module(struct slp_rank *r, struct ring_slot *s, struct copy_range *ranges, int n) {
    struct copy_run runs[COPY_RANGES_MAX];
    size_t bytes;
    int k = copy_runs_merge(ranges, n, runs, &bytes), rc = 0;
    for (int i = 0; i < k && !rc; i++) rc = ring_send(r, s->mem.at + runs[i].at, runs[i].host, runs[i].bytes);
    for (int i = 0; i < n; i++) *ranges[i].field = s->mem.at + ranges[i].at;
    if (!rc) rc = gpu_pair_record(s->loaded, r->load_stream);
    return rc ? rc : ring_pace_unit(r, &r->pace_load, r->load_stream);
}

static int load_dense(struct slp_rank *r, uint64_t k, int layer, enum module which) {
    struct slp_run *p = r->p;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct ring_slot *s;
    int rc = ring_claim(&r->dense, false, k, r->load_stream, &s);
    if (rc) return rc;
    const struct layer *resident = resident_set_layer(r->resident, layer);
    s->layer = resident ? *resident : (struct layer){0}; /* clears fields of other modules and host pointers */
    int n = resident ? 0 : copy_ranges_list(p->c, layer, which, &p->job->w->layers[layer], &s->layer, ranges);
    int span = trace_begin(p->trace, r->load_stream, r->id, LANE_LOAD,
                           which == MODULE_FFN ? "load ffn" : "load attention", layer, -1);
    if (which == MODULE_ATTENTION) rc = kvring_load_prefix(r, layer);
    if (!rc) rc = send_module(r, s, ranges, n);
    trace_end(p->trace, span, r->load_stream);
    return rc;
}

static int load_expert(struct slp_rank *r, uint64_t k, int layer, int expert) {
    struct slp_run *p = r->p;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct ring_slot *s;
    int rc = ring_claim(&r->experts, gpu_info(r->g)->is_virtual, k, r->load_stream, &s);
    if (rc) return rc;
    int n = copy_ranges_list_expert(&r->expert_params, p->c, layer, &p->job->w->layers[layer].experts[expert],
                                    &s->expert, ranges);
    int span = trace_begin(p->trace, r->load_stream, r->id, LANE_LOAD, "load expert", layer, expert);
    rc = send_module(r, s, ranges, n);
    trace_end(p->trace, span, r->load_stream);
    return rc;
}

/* Runs the job's check on a layer's experts that will be sent, or on the rest of the layer. Resident weights were
 * checked before. */
static int check_before_send(struct slp_rank *r, int layer, bool experts) {
    const struct slp_job *j = r->p->job;
    struct error e = {0};
    int n = 0;
    if (!j->check_weights || (!experts && resident_set_layer(r->resident, layer))) return 0;
    for (int x = r->first_expert; experts && x < r->last_expert; x++)
        if (ring_takes_expert(r, layer, x - r->first_expert)) r->check_ids[n++] = x;
    int rc = experts && !n ? 0 : j->check_weights(j->ctx, layer, experts ? r->check_ids : NULL, n, &e);
    return rc ? slp_fail(r->p, rc, &e) : 0;
}

/* Sends the modules of each layer in order of use. If the router selects the experts to load, the next layer's dense
 * modules (one, if no more fit) go before them, so that the bus is not idle until it has run. */
void *slp_loader_thread(void *arg) {
    struct slp_rank *r = arg;
    struct slp_run *p = r->p;
    uint64_t dense = 0, expert = 0;
    int rc = 0, ahead = !r->selected ? 0 : r->plan.dense_slots < 4 ? 1 : 2, layers = p->c->n_layers;
    for (int l = 0; l < layers && !rc; l++) {
        uint64_t until = (uint64_t)(2 * l + 2 + (l < layers - 1 ? ahead : 0));
        for (; dense < until && !rc; dense++) {
            if (dense % 2 == 0) rc = check_before_send(r, (int)(dense / 2), false);
            if (!rc) rc = load_dense(r, dense, (int)(dense / 2), dense % 2 ? MODULE_FFN : MODULE_ATTENTION);
        }
        if (rc || !p->job->w->layers[l].experts) continue;
        rc = ring_wait_selected(r, l);
        if (!rc) rc = check_before_send(r, l, true);
        for (int e = r->first_expert; e < r->last_expert && !rc; e++)
            if (ring_takes_expert(r, l, e - r->first_expert)) rc = load_expert(r, expert++, l, e);
    }
    slp_check(r, rc);
    return NULL;
}
