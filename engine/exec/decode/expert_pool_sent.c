/* A pool that sends (--expert-cache sent): the device computes all experts that its rows selected, and those that it
 * lacks are uploaded first. They stay in place of the experts with the lowest scores. Each expert is computed by
 * itself, in rising order, so sums do not depend on which experts were there.
 *
 * Where no slot can be evicted, since the rows need all of them or a prefill reads them, experts pass through a few
 * transit slots, whose parts are enqueued one after the other. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/expert_pool_internal.h"

/* Scans the experts that are about to be uploaded, and requests those on disk. Uses x->cpu_ids. */
static int prepare_missing(struct expert_pool *x, const struct decode_micro_batch *m, int layer, struct error *e) {
    struct runtime *r = x->d->s->m;
    const int n = m->n_dev * x->d->s->c->topk;
    for (int i = 0; i < n; i++) x->cpu_ids[i] = expert_pool_resident(x, layer, m->host.ids[i]) ? -1 : m->host.ids[i];
    if (r->disk_prefetch) disk_prefetch_selected(r->disk_prefetch, layer, x->cpu_ids, n);
    const int rc = nan_scan_experts(&r->scan, layer, x->cpu_ids, n, e);
    memcpy(x->cpu_ids, m->host.ids, (size_t)n * sizeof *x->cpu_ids);
    return rc;
}

/* The slots of a layer's parts. */
struct sending {
    struct device_part part;
    int n_transit; /* transit slots of this part */
    bool any;
};
static int flush_part(struct expert_pool *x, int micro, int layer, struct sending *to) {
    TRY(expert_pool_run_part(x, micro, layer, &to->part));
    to->any |= to->part.n > 0;
    to->part.n = 0, to->part.first_pair = to->part.pairs;
    to->n_transit = 0;
    return 0;
}

/* Uploads a missing expert; *slot: where. May enqueue what was collected, to reuse its transit slots. */
static int upload_missing(struct expert_pool *x, int micro, int layer, int id, struct sending *to,
                          struct expert_slot **slot) {
    const int k = x->is_frozen ? -1 : expert_pool_victim(x, layer, x->expert_rows);
    x->expected_s[micro] = -INFINITY; /* not measurable: the device waits for uploads */
    if (k >= 0) {
        *slot = &expert_pool_slots(x, layer)[k];
        return expert_pool_upload(x, layer, k, id, false);
    }
    if (to->n_transit == EXPERT_POOL_TRANSIT) TRY(flush_part(x, micro, layer, to));
    *slot = &x->transit[to->n_transit++];
    return expert_pool_upload_to(x, *slot, layer, id);
}

int expert_pool_send(struct expert_pool *x, const struct decode_micro_batch *m, int layer, struct error *e) {
    struct decode *s = x->d->s;
    const int micro = (int)(m - s->micro_batch), n = m->n_dev * s->c->topk;
    struct sending to = {.part = {0}};
    memset(x->expert_rows, 0, (size_t)s->c->n_experts * sizeof *x->expert_rows);
    for (int i = 0; i < n; i++) x->expert_rows[m->host.ids[i]]++;
    TRY(prepare_missing(x, m, layer, e));
    TRY(expert_pool_begin_parts(x, micro, layer, m->n_dev));
    for (int id = 0; id < s->c->n_experts; id++) {
        if (!x->expert_rows[id]) continue;
        struct expert_slot *t = expert_pool_resident(x, layer, id);
        s->counts.selected++, s->counts.hits += t != NULL;
        if (t) x->d->n_hits += (uint64_t)x->expert_rows[id];
        else TRY(upload_missing(x, micro, layer, id, &to, &t));
        if (to.part.n == EXPERT_POOL_USED_MOST) TRY(flush_part(x, micro, layer, &to));
        expert_pool_add_to_part(x, m, &to.part, t, id);
    }
    TRY(flush_part(x, micro, layer, &to));
    return expert_pool_end_parts(x, micro, m->n_dev, to.any);
}
