#include "engine/weights/nan_scan.h"

#include <emmintrin.h>
#include <string.h>

#include "cpu/pool.h"

const uint8_t *nan_scan_e4m3(const uint8_t *p, size_t n) {
    const __m128i nan = _mm_set1_epi8(0x7f);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) { /* SSE2 is in every x86-64; three instructions per 16 codes keep up with memory */
        __m128i hit = _mm_setzero_si128();
        for (int k = 0; k < 64; k += 16)
            hit = _mm_or_si128(hit,
                               _mm_cmpeq_epi8(_mm_and_si128(_mm_loadu_si128((const __m128i *)(p + i + k)), nan), nan));
        if (_mm_movemask_epi8(hit)) break;
    }
    for (; i < n; i++)
        if ((p[i] & 0x7f) == 0x7f) return p + i;
    return NULL;
}

enum { MAX_MATS = 16 }; /* matrices per call of the pool */
struct batch {
    const struct mat *m[MAX_MATS];
    int n;
    _Atomic(const uint8_t *) bad; /* lowest address of a NaN code found by any thread; NULL: none */
};

static void scan_matrices_task(void *arg, int thread, int n_threads) {
    struct batch *b = arg;
    for (int i = 0; i < b->n; i++) {
        const uint8_t *data = b->m[i]->data;
        size_t size = mat_span(b->m[i]), from = size * (size_t)thread / (size_t)n_threads,
               to = size * (size_t)(thread + 1) / (size_t)n_threads;
        const uint8_t *bad = nan_scan_e4m3(data + from, to - from), *old = NULL;
        while (bad && (!(old = atomic_load(&b->bad)) || bad < old) &&
               !atomic_compare_exchange_weak(&b->bad, &old, bad)) {
        }
    }
}

static int report_nan(const struct weights *w, const uint8_t *bad, struct error *e) {
    const struct checkpoint *f = &w->files;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        if (bad < t->data || bad >= t->data + t->size) continue;
        size_t at = (size_t)(bad - t->data), cols = (size_t)t->shape[t->ndim - 1];
        return error_set(e, ERR_MODEL,
                         "%s/%s: tensor %s: %s that is not a number at row %zu, column %zu: the file is damaged",
                         f->dir, f->shards[t->shard].name, t->name, dtype_name(t->dtype), at / cols, at % cols);
    }
    return error_set(e, ERR_MODEL, "%s: a weight is not a number: the file is damaged", f->dir);
}

static int flush_batch(struct nan_scan *s, struct batch *b, struct error *e) {
    if (b->n) pool_run(s->pool, scan_matrices_task, b);
    b->n = 0;
    const uint8_t *bad = atomic_load(&b->bad);
    return bad ? report_nan(s->w, bad, e) : 0;
}
static int add_tensors(struct nan_scan *s, struct batch *b, int layer, unsigned modules, const void *base,
                       struct error *e) {
    struct param list[PARAMS_MAX];
    int rc = 0;
    for (int i = 0, n = params_list(&s->w->config, layer, modules, list); i < n && !rc; i++) {
        /* of a table of n-grams a token reads a few rows: whatever they hold shows in the layer */
        if (!list[i].cols || list[i].stays_on_host || params_mat(base, &list[i])->dtype != DT_E4M3) continue;
        b->m[b->n++] = params_mat(base, &list[i]);
        if (b->n == MAX_MATS) rc = flush_batch(s, b, e);
    }
    return rc;
}

int nan_scan_dense(struct nan_scan *s, int layer, struct error *e) {
    int rest = s->known->n_experts;
    if (weight_state_has(s->known, layer, rest, WEIGHT_CHECKED)) return 0;
    struct batch b = {.n = 0};
    int rc = add_tensors(s, &b, layer, MODULE_LAYER, &s->w->layers[layer], e);
    if (!rc && layer == 0) rc = add_tensors(s, &b, layer, MODULE_MODEL, s->w, e);
    if (!rc) rc = flush_batch(s, &b, e);
    if (!rc) weight_state_set(s->known, layer, rest, WEIGHT_CHECKED);
    return rc;
}

int nan_scan_experts(struct nan_scan *s, int layer, const int32_t *ids, int n, struct error *e) {
    struct batch b = {.n = 0};
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        if (ids[i] < 0 || weight_state_has(s->known, layer, ids[i], WEIGHT_CHECKED | WEIGHT_SCANNING)) continue;
        weight_state_set(s->known, layer, ids[i], WEIGHT_SCANNING); /* ids may repeat */
        s->n_experts_scanned++;
        rc = add_tensors(s, &b, layer, MODULE_EXPERT, &s->w->layers[layer].experts[ids[i]], e);
    }
    if (!rc) rc = flush_batch(s, &b, e);
    for (int i = 0; i < n; i++) { /* checked only now: loader threads send what is checked */
        if (ids[i] < 0 || !weight_state_has(s->known, layer, ids[i], WEIGHT_SCANNING)) continue;
        if (!rc) weight_state_set(s->known, layer, ids[i], WEIGHT_CHECKED);
        weight_state_clear(s->known, layer, ids[i], WEIGHT_SCANNING);
    }
    return rc;
}

bool nan_scan_is_done(const struct nan_scan *s, int layer, const int32_t *ids, int n) {
    if (!ids) return weight_state_has(s->known, layer, s->known->n_experts, WEIGHT_CHECKED);
    for (int i = 0; i < n; i++)
        if (!weight_state_has(s->known, layer, ids[i], WEIGHT_CHECKED)) return false;
    return true;
}
