#include "engine/exec/stream/slp_fail.h"

#include "engine/exec/stream/exchange.h"
#include "engine/exec/stream/kvring.h"
#include "engine/exec/stream/slp.h"

int slp_fail(struct slp_run *p, int code, const struct error *e) {
    pthread_mutex_lock(&p->lock);
    if (!p->error.code) {
        if (e) p->error = *e;
        p->error.code = code;
    }
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_ranks; i++) {
        struct slp_rank *r = &p->rank[i];
        ring_abort(&r->dense);
        ring_abort(&r->experts);
        exchange_abort(r);
        kvring_abort(r);
    }
    return code;
}

int slp_check(struct slp_rank *r, int rc) {
    struct error e = {0};
    if (!rc) return 0;
    if (atomic_load(&r->p->stop)) return rc; /* another failure was first */
    if (!gpu_error_since(r->g, r->n_cleared, &e))
        error_set(&e, rc, rc == ERR_CANCELLED ? "stopped" : "device %d: an operation failed",
                  r->id + r->p->job->device);
    return slp_fail(r->p, e.code, &e);
}

void slp_layer_done(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    pthread_mutex_lock(&p->lock);
    p->rank_layers[r->id] = layer + 1;
    int least = layer + 1;
    for (int i = 0; i < p->n_ranks; i++) least = p->rank_layers[i] < least ? p->rank_layers[i] : least;
    p->layers_done = least;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}
