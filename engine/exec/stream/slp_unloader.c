/* Unloader thread: downloads each layer's KV to the session's cache, and reports the layer once all of it is
 * enqueued. */
#include "engine/exec/stream/kvring.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp_fail.h"
#include "engine/exec/stream/slp_threads.h"

void *slp_unloader_thread(void *arg) {
    struct slp_rank *r = arg;
    struct slp_run *p = r->p;
    int rc = 0;
    for (int l = 0; l < p->c->n_layers && !rc; l++) {
        rc = kvring_download(r, l); /* first: other ranks' attention may wait for it, and this one's for theirs */
        if (!rc) rc = ring_wait_released(&r->dense, (uint64_t)(2 * l + 1));
        if (!rc) rc = kvring_save(r, l);
        if (!rc) slp_layer_done(r, l);
    }
    slp_check(r, rc);
    return NULL;
}
