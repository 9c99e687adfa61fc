#include "base/mem.h"
#include "engine/exec/stream/slp_internal.h"

int ring_open(struct ring *r, struct ledger *l, int n, size_t slot_bytes, struct error *e) {
    *r = (struct ring){.n = n};
    if (!(r->slots = mem_calloc((size_t)n, sizeof *r->slots))) return error_set(e, ERR_MEMORY, "no memory for a ring of %d slots", n);
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        rc = ledger_alloc(l, LEDGER_STREAMED, slot_bytes, &r->slots[i].mem, e);
        if (!rc) rc = gpu_pair_open(l->g, &r->slots[i].loaded, e);
        if (!rc) rc = gpu_pair_open(l->g, &r->slots[i].freed, e);
    }
    return rc;
}

void ring_close(struct ring *r, struct ledger *l) {
    for (int i = 0; r->slots && i < r->n; i++) {
        gpu_pair_close(&r->slots[i].loaded);
        gpu_pair_close(&r->slots[i].freed);
        ledger_free(l, &r->slots[i].mem);
    }
    mem_free(r->slots);
    *r = (struct ring){0};
}

void ring_abort(struct ring *r) {
    for (int i = 0; r->slots && i < r->n; i++) {
        if (r->slots[i].loaded) gpu_pair_abort(r->slots[i].loaded);
        if (r->slots[i].freed) gpu_pair_abort(r->slots[i].freed);
    }
}

struct ring_slot *ring_at(const struct ring *r, uint64_t k) {
    return &r->slots[k % (uint64_t)r->n];
}
/* Module k's use of its slot's events, counted from 1. */
static uint64_t module_use(const struct ring *r, uint64_t k) { return k / (uint64_t)r->n + 1; }

/* The compute thread can release the awaited half of the ring without the other half, because a group of experts takes at most a quarter. */
int ring_claim(struct ring *r, bool in_halves, uint64_t k, struct gpu_stream *s, struct ring_slot **out) {
    const uint64_t n = (uint64_t)r->n, half = n / 2;
    *out = ring_at(r, k);
    if (k < n) return 0;
    if (in_halves && half >= 4 && k % half == 0) TRY(ring_wait_released(r, k - n + half - 1));
    return gpu_pair_wait((*out)->freed, module_use(r, k) - 1, s);
}
int ring_wait_loaded(const struct ring *r, uint64_t k, struct gpu_stream *s) { return gpu_pair_wait(ring_at(r, k)->loaded, module_use(r, k), s); }
int ring_release(const struct ring *r, uint64_t k, struct gpu_stream *s) { return gpu_pair_record(ring_at(r, k)->freed, s); }
int ring_wait_released(const struct ring *r, uint64_t k) { return gpu_pair_wait(ring_at(r, k)->freed, module_use(r, k), NULL); }

int ring_wait_quarter(const struct slp_rank *r, uint64_t k, uint64_t n_modules, uint64_t *known) {
    const uint64_t quarter = (uint64_t)ring_quarter(r->experts.n);
    if (k < *known || k >= n_modules || quarter < 2) return 0;
    *known = k + quarter < n_modules ? k + quarter : n_modules;
    return gpu_pair_wait(ring_at(&r->experts, *known - 1)->loaded, module_use(&r->experts, *known - 1), NULL);
}

/* --- Pace ------------------------------------------------------------------------------------------------------------------------------ */

int pace_open(struct pace *c, struct gpu *g, struct error *e) {
    int rc = 0;
    for (int i = 0; i < PACE && !rc; i++) rc = gpu_event_open(g, &c->event[i], e);
    return rc;
}
void pace_close(struct pace *c) {
    for (int i = 0; i < PACE; i++) gpu_event_close(&c->event[i]);
}
int pace_unit(struct slp_rank *r, struct pace *c, struct gpu_stream *s) {
    if (gpu_info(r->g)->is_virtual) return 0; /* virtual streams cancel at once */
    struct gpu_event *ev = c->event[c->n++ % PACE];
    int rc = gpu_event_sync(ev);
    if (!rc && atomic_load(&r->p->stop)) rc = ERR_CANCELLED;
    return rc ? rc : gpu_event_record(ev, s);
}

/* --- Selected experts -------------------------------------------------------------------------------------------------------------------- */

int ring_wait_selected(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    if (!r->selected) return 0;
    pthread_mutex_lock(&p->lock);
    while (r->n_selected_layers <= layer && !atomic_load(&p->stop)) pthread_cond_wait(&p->cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return atomic_load(&p->stop) ? ERR_CANCELLED : 0;
}
bool ring_computes_expert(const struct slp_rank *r, int layer, int expert) {
    return !r->selected || r->selected[(size_t)layer * (size_t)(r->last_expert - r->first_expert) + (size_t)expert];
}
bool ring_takes_expert(const struct slp_rank *r, int layer, int expert) {
    return ring_computes_expert(r, layer, expert) && !resident_set_expert(r->resident, layer, r->first_expert + expert);
}
int ring_get_expert(struct slp_rank *r, int layer, int expert, uint64_t module, struct expert *out) {
    const struct expert *resident = resident_set_expert(r->resident, layer, r->first_expert + expert);
    int rc = resident ? 0 : ring_wait_loaded(&r->experts, module, r->compute_stream);
    if (!rc) *out = resident ? *resident : ring_at(&r->experts, module)->expert;
    return rc;
}
void ring_publish_selected(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    int n = r->last_expert - r->first_expert;
    if (!r->selected) return;
    pthread_mutex_lock(&p->lock);
    for (int e = 0; e < n; e++) r->selected[(size_t)layer * (size_t)n + (size_t)e] = r->host_offset[e + 1] > r->host_offset[e];
    r->n_selected_layers = layer + 1;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}
