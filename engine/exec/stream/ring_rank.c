#include "engine/exec/stream/ring_rank.h"

#include "engine/transfer/resident_set.h"
#include "engine/transfer/stage.h"

int ring_wait_quarter(const struct slp_rank *r, uint64_t k, uint64_t n_modules, uint64_t *known) {
    const uint64_t quarter = (uint64_t)ring_quarter(r->experts.n);
    if (k < *known || k >= n_modules || quarter < 2) return 0;
    *known = k + quarter < n_modules ? k + quarter : n_modules;
    return gpu_pair_wait(ring_at(&r->experts, *known - 1)->loaded, ring_module_use(&r->experts, *known - 1), NULL);
}

int ring_pace_unit(struct slp_rank *r, struct pace *c, struct gpu_stream *s) {
    if (gpu_info(r->g)->is_virtual) return 0; /* virtual streams cancel at once */
    struct gpu_event *ev = c->event[c->n++ % PACE];
    int rc = gpu_event_sync(ev);
    if (!rc && atomic_load(&r->p->stop)) rc = ERR_CANCELLED;
    return rc ? rc : gpu_event_record(ev, s);
}

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
    for (int e = 0; e < n; e++)
        r->selected[(size_t)layer * (size_t)n + (size_t)e] = r->host_offset[e + 1] > r->host_offset[e];
    r->n_selected_layers = layer + 1;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

int ring_send(struct slp_rank *r, char *dst, const char *src, size_t size) {
    struct copy_run run = {.host = src, .bytes = size};
    if (!size) return 0;
    atomic_fetch_add(&r->p->h2d, size);
    int rc = stage_send(r->stage, &(struct stage_unit){.runs = &run, .n = 1, .to = dst});
    return rc ? rc : stage_flush(r->stage);
}
