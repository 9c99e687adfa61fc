#include "engine/layer/work.h"

#include "gpu/gpu.h"

void *work_alloc(const struct work *w, size_t size) {
    void *p;
    if (!w->g) return w->alloc(w->ctx, size);
    return gpu_alloc(w->g, &p, size, NULL) ? NULL : p;
}
void work_release(const struct work *w, void *p) {
    if (!w->g) {
        w->release(w->ctx, p);
        return;
    }
    if (w->stream && *w->stream) gpu_stream_sync(*w->stream); /* queued operations may still read it */
    gpu_free(w->g, p);
}
