/* Unloader thread: frees slots after their last use (the host copy is authoritative, so there is nothing to write back) and downloads
 * each layer's KV to the session's cache. */
#include "engine/exec/stream/kvring.h"

void *slp_unloader_thread(void *arg) {
    struct slp_rank *r = arg;
    struct slp_run *p = r->p;
    uint64_t dense = 0, expert = 0;
    int rc = 0;
    for (int l = 0; l < p->c->n_layers && !rc; l++) {
        rc = kvring_download(r, l); /* first: other ranks' attention may wait for it, and this one's for theirs */
        if (!rc) rc = ring_free(p, &r->dense, dense++);
        bool routed = p->job->w->layers[l].experts;
        if (!rc && routed) rc = ring_wait_selected(r, l);
        for (int e = 0; routed && e < r->last_expert - r->first_expert && !rc; e++)
            if (ring_takes_expert(r, l, e)) rc = ring_free(p, &r->experts, expert++);
        if (!rc) rc = ring_free(p, &r->dense, dense++);
        if (!rc) rc = kvring_save(r, l);
        if (!rc) slp_layer_done(r, l);
    }
    slp_check(r, rc);
    return NULL;
}
