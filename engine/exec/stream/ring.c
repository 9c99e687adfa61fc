#include "engine/exec/stream/ring.h"

#include "base/mem.h"
#include "gpu/op.h"

int ring_open(struct ring *r, struct ledger *l, int n, size_t slot_bytes, struct error *e) {
    *r = (struct ring){.n = n};
    if (!(r->slots = mem_calloc((size_t)n, sizeof *r->slots)))
        return error_set(e, ERR_MEMORY, "no memory for a ring of %d slots", n);
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
uint64_t ring_module_use(const struct ring *r, uint64_t k) { return k / (uint64_t)r->n + 1; }

/* The compute thread can release the awaited half of the ring without the other half, because a group of experts takes
 * at most a quarter. */
int ring_claim(struct ring *r, bool in_halves, uint64_t k, struct gpu_stream *s, struct ring_slot **out) {
    const uint64_t n = (uint64_t)r->n, half = n / 2;
    *out = ring_at(r, k);
    if (k < n) return 0;
    if (in_halves && half >= 4 && k % half == 0) TRY(ring_wait_released(r, k - n + half - 1));
    return gpu_pair_wait((*out)->freed, ring_module_use(r, k) - 1, s);
}
int ring_wait_loaded(const struct ring *r, uint64_t k, struct gpu_stream *s) {
    return gpu_pair_wait(ring_at(r, k)->loaded, ring_module_use(r, k), s);
}
int ring_release(const struct ring *r, uint64_t k, struct gpu_stream *s) {
    return gpu_pair_record(ring_at(r, k)->freed, s);
}
int ring_wait_released(const struct ring *r, uint64_t k) {
    return gpu_pair_wait(ring_at(r, k)->freed, ring_module_use(r, k), NULL);
}

/* --- Pace ------------------------------------------------------------------------------------- */

int ring_pace_open(struct pace *c, struct gpu *g, struct error *e) {
    int rc = 0;
    for (int i = 0; i < PACE && !rc; i++) rc = gpu_event_open(g, &c->event[i], e);
    return rc;
}
void ring_pace_close(struct pace *c) {
    for (int i = 0; i < PACE; i++) gpu_event_close(&c->event[i]);
}
