#include "engine/transfer/upload.h"

#include <assert.h>

#include "base/test_limits.h"

int upload_open(struct upload_queue *q, const char *name, const struct stage_options *o, struct error *e) {
    struct stage_options own = *o;
    *q = (struct upload_queue){0};
    int rc = gpu_stream_open(o->g, &q->link, name, false, o->stop, e);
    if (!rc) rc = gpu_timeline_open(o->g, &q->loaded, e);
    if (!rc) rc = gpu_timeline_open(o->g, &q->freed, e);
    own.stream = q->link, own.loaded = q->loaded, own.freed = q->freed;
    return rc ? rc : stage_open(&q->stage, &own, e);
}
void upload_close(struct upload_queue *q) {
    stage_close(&q->stage);
    if (q->link) gpu_stream_sync(q->link);
    gpu_stream_close(&q->link);
    gpu_timeline_close(&q->loaded);
    gpu_timeline_close(&q->freed);
    *q = (struct upload_queue){0};
}
void upload_abort(struct upload_queue *q) {
    if (q->loaded) gpu_timeline_abort(q->loaded);
    if (q->freed) gpu_timeline_abort(q->freed);
}

enum slot_state upload_slot_state(const struct upload_queue *q, const struct upload_slot *t) {
    const bool is_read = t->freed_value && !gpu_timeline_reached(q->freed, t->freed_value);
    if (!t->is_filled) return is_read ? SLOT_EVICTING : SLOT_EMPTY;
    return !gpu_timeline_reached(q->loaded, t->loaded_value) ? SLOT_UPLOADING : is_read ? SLOT_IN_USE : SLOT_RESIDENT;
}
bool upload_has_arrived(const struct upload_queue *q, const struct upload_slot *t) {
    const enum slot_state s = upload_slot_state(q, t);
    return s == SLOT_RESIDENT || s == SLOT_IN_USE;
}
bool upload_is_idle(const struct upload_queue *q) { return gpu_timeline_reached(q->loaded, q->n_loaded); }
bool upload_is_direct(size_t bytes) { return stage_is_small(bytes); }
int upload_flush(struct upload_queue *q) { return stage_flush(q->stage); }
int upload_finish(struct upload_queue *q) {
    const int rc = stage_flush(q->stage);
    return rc ? rc : gpu_timeline_wait_host(q->loaded, q->n_loaded, NULL);
}

int upload_copy(struct upload_queue *q, char *to, const struct copy_run *run) {
    const int rc = stage_send(q->stage, &(struct stage_unit){.runs = run, .n = 1, .to = to, .loaded = q->n_loaded + 1});
    q->n_loaded += !rc;
    return rc;
}
int upload_send(struct upload_queue *q, struct upload_slot *t, bool more, struct copy_range *ranges, int n, char *to,
                int layer, int item) {
    const struct stage_unit u = {
        .after = more ? 0 : t->freed_value, .loaded = q->n_loaded + 1, .layer = layer, .item = item};
    assert(n > 0 && t->is_filled == more);
    const int rc = stage_send_ranges(q->stage, ranges, n, to, u);
    /* else upload_finish() would wait for a signal that nothing sends */
    if (!rc) t->is_filled = true, t->loaded_value = ++q->n_loaded;
    return rc;
}
int upload_expert(struct upload_queue *q, struct expert_slot *t, const struct weights *w, int layer, int expert) {
    struct copy_range ranges[COPY_RANGES_MAX];
    upload_evict_expert(t);
    const int n = copy_ranges_list_expert(&q->expert_params, &w->config, layer, &w->layers[layer].experts[expert],
                                          &t->view, ranges);
    const int rc = upload_send(q, &t->upload, false, ranges, n, t->mem.at, layer, expert);
    if (!rc) t->layer = layer, t->expert = expert;
    return rc;
}
void upload_evict(struct upload_slot *t) {
    assert(t->is_filled);
    t->is_filled = false;
}
void upload_evict_expert(struct expert_slot *t) {
    if (t->upload.is_filled) upload_evict(&t->upload);
    t->layer = t->expert = -1;
}
int upload_wait(struct upload_queue *q, const struct upload_slot *t, struct gpu_stream *reader) {
    assert(t->is_filled);
    if (!upload_has_arrived(q, t) && ++q->n_waits >= test_limits_get(TEST_LIMIT_WAITS_AHEAD, UPLOAD_WAITS_AHEAD)) {
        q->n_waits = 0;
        TRY(stage_flush(q->stage));
    }
    return gpu_timeline_wait(q->loaded, t->loaded_value, reader);
}
int upload_signal(struct upload_queue *q, struct gpu_stream *reader) {
    return gpu_timeline_signal(q->freed, ++q->n_freed, reader);
}
void upload_release(const struct upload_queue *q, struct upload_slot *t) {
    assert(t->is_filled);
    t->freed_value = q->n_freed;
}
