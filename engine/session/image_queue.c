#include "engine/session/image_queue.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/exec/prefill.h"
#include "engine/session/engine_state.h"

struct image_queue {
    uint64_t turn_id;
    int n, next; /* images of the turn; the next one to compute */
    bool is_running;
    struct tower_run run;
    double expected_s;   /* of all images; 0: unknown */
    double began, own_s; /* of all images; seconds of the units of the current one */
    int done, total;     /* steps of all images, weighted by tokens */
    float **features;    /* [n] */
};

void image_queue_drop(struct session *s) {
    struct image_queue *q = s->image_queue;
    if (!q) return;
    if (q->is_running) tower_run_close(&q->run);
    for (int i = 0; i < q->n && q->features; i++) mem_free(q->features[i]);
    mem_free(q->features);
    mem_free(q);
    s->image_queue = NULL;
}

static bool is_cached(const struct session *s, int i) {
    return s->images[i].at + image_tokens(s->images[i].image) <= s->n_kv;
}

static double expected(const struct engine *eng, const struct engine_image *image) {
    const int n = image->grid_h * image->grid_w;
    const struct tower_work w = tower_work(eng->tower, n);
    return cost_tower(&eng->cost,
                      &(struct cost_tower){.weights = cost_format_of((enum dtype)eng->tower->layers[0].proj.dtype),
                                           .patches = n,
                                           .bytes = w.bytes,
                                           .flops = w.flops,
                                           .products = w.products,
                                           .attention_flops = w.attention_flops,
                                           .attention_calls = w.attention_calls});
}

double image_queue_expected(const struct session *s) {
    double sum = 0;
    for (int i = 0; i < s->n_images; i++)
        if (!is_cached(s, i)) sum += expected(s->engine, s->images[i].image);
    return sum;
}

static int begin(struct session *s, struct error *e) {
    image_queue_drop(s);
    struct image_queue *q = s->image_queue = mem_calloc(1, sizeof *q);
    if (q) q->turn_id = s->turn_id, q->n = s->n_images, q->features = mem_calloc((size_t)q->n, sizeof *q->features);
    if (!q || !q->features) {
        image_queue_drop(s);
        return error_set(e, ERR_MEMORY, "no memory for %d images", s->n_images);
    }
    q->began = clock_now();
    if (s->engine->is_calibrated) q->expected_s = image_queue_expected(s);
    for (int i = 0; i < q->n; i++)
        if (!is_cached(s, i)) q->total += image_tokens(s->images[i].image) * tower_run_steps(s->engine->tower);
    return 0;
}

static int check_finite(const float *rows, size_t n, struct error *e) {
    for (size_t i = 0; i < n; i++)
        if (!(rows[i] - rows[i] == 0))
            return error_set(
                e, ERR_MODEL,
                "the vision tower gives a value that is not finite: the model's weights are damaged (--verify)");
    return 0;
}

static int step(struct session *s, struct error *e) {
    struct engine *eng = s->engine;
    struct image_queue *q = s->image_queue;
    const struct engine_image *image = s->images[q->next].image;
    const size_t floats = (size_t)image_tokens(image) * (size_t)tower_row_floats(eng->tower);
    if (!q->is_running) {
        mem_free(q->features[q->next]);
        if (!(q->features[q->next] = mem_aligned(64, floats * sizeof(float))))
            return error_set(e, ERR_MEMORY, "no memory for an image of %d tokens", image_tokens(image));
        TRY(tower_run_open(&q->run, eng->tower, image->rgb, image->grid_h, image->grid_w, e));
        q->is_running = true;
        q->own_s = 0;
    }
    eng->machine.cpu->cancel = session_cancel_flag(s);
    const double begin = clock_now();
    const int rc = tower_run_step(&q->run, eng->machine.cpu, q->features[q->next]);
    if (rc >= 0) q->done += image_tokens(image);
    q->own_s += clock_now() - begin;
    if (rc > 0) return PREFILL_MORE;
    tower_run_close(&q->run);
    q->is_running = false;
    if (rc) return exec_op_error(rc, e);
    TRY(check_finite(q->features[q->next], floats, e));
    if (eng->is_calibrated)
        cost_observe(&eng->cost, &eng->cost.observed_tower, image->grid_h * image->grid_w, expected(eng, image),
                     q->own_s);
    if (++q->next == q->n) s->stats.image_s = clock_now() - q->began;
    return PREFILL_MORE;
}

int image_queue_advance(struct session *s, struct error *e) {
    if (!s->n_images || is_cached(s, s->n_images - 1)) {
        image_queue_drop(s);
        return 0;
    }
    if (!s->image_queue || s->image_queue->turn_id != s->turn_id) TRY(begin(s, e));
    struct image_queue *q = s->image_queue;
    if (atomic_load(session_cancel_flag(s))) return exec_op_error(ERR_CANCELLED, e);
    while (q->next < q->n && is_cached(s, q->next)) q->next++;
    return q->next < q->n ? step(s, e) : 0;
}

bool image_queue_progress(const struct session *s, int *done, int *total, double *began) {
    const struct image_queue *q = s->image_queue;
    if (!q || q->turn_id != s->turn_id || q->next == q->n) return false;
    *done = q->done, *total = q->total, *began = q->began;
    return q->total > 0;
}

void image_queue_explain(const struct session *s, char *out, size_t cap) {
    const struct image_queue *q = s->image_queue;
    *out = 0;
    if (!q || q->turn_id != s->turn_id || !(s->stats.image_s > 0)) return;
    if (q->expected_s > 0) snprintf(out, cap, "; images in %.3g s, %.3g s expected", s->stats.image_s, q->expected_s);
    else snprintf(out, cap, "; images in %.3g s", s->stats.image_s);
}

const float *const *image_queue_features(const struct session *s) {
    return s->image_queue ? (const float *const *)s->image_queue->features : NULL;
}

/* --- Requests --------------------------------------------------------------------------------- */

int image_queue_check(const struct engine *eng, const struct request *r, struct error *e) {
    int end = 0, n_ids = 0;
    if (r->n_images && !eng->tower)
        return error_set(e, ERR_USAGE, "%s cannot read images: %s", eng->info.name, eng->info.no_images);
    if (r->n_images && eng->params.decode == DECODE_PAGED)
        return error_set(e, ERR_USAGE, "images cannot be combined with paged batches (--decode paged)");
    for (int k = 0; k < r->n_images; k++) {
        const struct request_image *i = &r->images[k];
        const int n = image_tokens(i->image);
        if (i->at < end || i->at > r->n - n) return error_set(e, ERR_RUNTIME, "image %d is not in the prompt", k);
        for (int at = 0; at < n; at++)
            if (r->tokens[i->at + at] != image_id(i->image, at))
                return error_set(e, ERR_RUNTIME, "token %d is not that of image %d", i->at + at, k);
        end = i->at + n;
        n_ids += n;
    }
    for (int i = 0; i < r->n; i++) n_ids -= r->tokens[i] < 0;
    return n_ids ? error_set(e, ERR_USAGE, "the prompt has tokens below 0 that belong to no image") : 0;
}

void image_queue_forget(struct session *s) {
    for (int i = 0; i < s->n_images; i++) image_unref(&s->images[i].image);
    mem_free(s->images);
    s->images = NULL;
    s->n_images = s->turn_shift = 0;
}

int image_queue_keep(struct session *s, const struct request *r) {
    struct image_span *kept = r->n_images ? mem_alloc((size_t)r->n_images * sizeof *kept) : NULL;
    if (r->n_images && !kept) return ERR_MEMORY;
    for (int i = 0; i < r->n_images; i++)
        kept[i] = (struct image_span){.image = image_ref(r->images[i].image), .at = r->images[i].at};
    image_queue_forget(s);
    s->images = kept;
    s->n_images = r->n_images;
    s->turn_shift = image_shift(kept, r->n_images, r->n);
    return 0;
}
