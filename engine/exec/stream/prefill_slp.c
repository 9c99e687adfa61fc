/* Stream-loading prefill as a mode: all layers on one device (slp) or on several (dslp), driven by a thread of its own.
 * CPU work runs on the engine thread in pieces of some milliseconds: the embedding, the scan of weights before they are
 * sent, and the head. */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/exec/decode/decode.h"
#include "engine/exec/stream/slp.h"
#include "engine/transfer/trace.h"

struct slp_state {
    struct runtime *m;
    struct prefill_job *j;
    pthread_t thread;
    int ranks, result;
    struct kv_state_step state_step; /* in the session's cache */
    struct slp_stats stats;
    struct resident_set resident[GPU_MAX]; /* weights on the devices, locked during the run */
    uint32_t *expert_rows;                 /* [n_layers, n_experts] */
    float *logits;                         /* [HEAD_ROWS, vocab] */
    struct error error, cpu_error;         /* the run's error; the CPU part's, which is more specific */
};

/* --- CPU work, run by the engine thread in pieces --------------------------------------------- */

struct cpu_rows {
    struct slp_state *s;
    float *out;
    const float *x;
    int row, n;
};

static int embed_rows(void *arg) {
    struct cpu_rows *r = arg;
    r->s->m->cpu->cancel = r->s->j->cancel;
    return prefill_embed(r->s->m, r->s->j, r->out, r->row, r->n);
}
static int embed_prompt(void *ctx, float *out, int row, int n) {
    struct slp_state *s = ctx;
    return s->m->run_on_engine(s->m->owner, embed_rows, &(struct cpu_rows){.s = s, .out = out, .row = row, .n = n});
}

static int gather_rows(void *arg) {
    struct cpu_rows *r = arg;
    r->s->m->cpu->cancel = r->s->j->cancel;
    const struct text_rows text = prefill_text(r->s->j, r->row, r->n);
    return block_gather_ngrams(r->s->m->cpu, r->s->m->w, r->s->m->prefill_work, r->out, &text, 1);
}
static int gather_ngrams(void *ctx, float *out, int row, int n) {
    struct slp_state *s = ctx;
    return s->m->run_on_engine(s->m->owner, gather_rows, &(struct cpu_rows){.s = s, .out = out, .row = row, .n = n});
}

static int run_head_rows(void *arg) {
    struct cpu_rows *r = arg;
    return prefill_head(r->s->m, r->s->j, r->x, 0, r->row, r->n, r->s->logits, &r->s->cpu_error);
}
static int report_rows(void *ctx, const float *x, int row, int n) {
    struct slp_state *s = ctx;
    int most = s->m->prefill_work->rows < HEAD_ROWS ? s->m->prefill_work->rows : HEAD_ROWS, rc = 0;
    for (int i = 0; i < n && !rc; i += most)
        rc = s->m->run_on_engine(s->m->owner, run_head_rows,
                                 &(struct cpu_rows){.s = s,
                                                    .x = x + (size_t)i * (size_t)s->m->w->config.hidden,
                                                    .row = row + i,
                                                    .n = n - i < most ? n - i : most});
    return rc;
}

/* Scans weights before they go to a device: some milliseconds per layer from memory. Reads from disk are cut into
 * pieces. */
struct weight_scan {
    struct slp_state *s;
    int layer, n, at;   /* ids [at, n) are still to be scanned */
    const int32_t *ids; /* NULL: the layer's dense weights */
    struct error *e;
};
static int scan_piece(void *arg) {
    enum { TOGETHER = 5 };       /* experts per call: 15 matrices, one batch of nan_scan.c */
    const double piece_s = 0.03; /* after which the engine thread may do other work */
    struct weight_scan *k = arg;
    struct nan_scan *scan = &k->s->m->scan;
    if (!k->ids) return nan_scan_dense(scan, k->layer, k->e);
    int rc = 0;
    for (double until = clock_now() + piece_s; k->at < k->n && !rc && clock_now() < until; k->at += TOGETHER)
        rc = nan_scan_experts(scan, k->layer, k->ids + k->at, k->n - k->at < TOGETHER ? k->n - k->at : TOGETHER, k->e);
    return rc;
}
static int scan_weights(void *ctx, int layer, const int32_t *ids, int n, struct error *e) {
    struct slp_state *s = ctx;
    struct weight_scan k = {.s = s, .layer = layer, .ids = ids, .n = n, .e = e};
    int rc = 0;
    if (nan_scan_is_done(&s->m->scan, layer, ids, n)) return 0;
    do {
        if (atomic_load(s->j->cancel)) return error_set(e, ERR_CANCELLED, "stopped");
        rc = s->m->run_on_engine(s->m->owner, scan_piece, &k);
    } while (!rc && k.at < n);
    return rc;
}

/* --- The run ---------------------------------------------------------------------------------- */

static void report_progress(void *ctx, int done, int total) {
    struct slp_state *s = ctx;
    atomic_store(&s->j->total, total);
    atomic_store(&s->j->done, done);
    s->m->wake_engine(s->m->owner);
}

static void *slp_thread(void *arg) {
    struct slp_state *s = arg;
    struct slp_job job = {.w = s->m->w,
                          .set = s->m->gpus,
                          .ranks = s->ranks,
                          .device = s->ranks == 1 ? s->j->device : 0,
                          .cache = s->j->kv->layer,
                          .state_step = s->state_step,
                          .pos = s->j->pos,
                          .images = s->j->images,
                          .n = s->j->n,
                          .tokens = s->j->tokens,
                          .embed = embed_prompt,
                          .gather_ngrams = gather_ngrams,
                          .on_rows = report_rows,
                          .check_weights = scan_weights,
                          .is_fp8 = prefill_is_fp8(s->m, s->j),
                          .first_row = s->j->on_logits ? s->j->n_reported : s->j->n - 1,
                          .ctx = s,
                          .cancel = s->j->cancel,
                          .progress = report_progress,
                          .progress_ctx = s,
                          .resident = s->resident,
                          .expert_rows = s->expert_rows,
                          .merge_into = s->m->trace};
    s->result = slp_prefill(&job, &s->stats, &s->error);
    if (s->result && s->cpu_error.code) s->error = s->cpu_error;
    atomic_store(&s->j->is_ready, 1);
    s->m->wake_engine(s->m->owner);
    return NULL;
}

static size_t n_counts(const struct runtime *m) {
    return (size_t)m->w->config.n_layers * (size_t)m->w->config.n_experts;
}
static void free_run(struct slp_state *s) {
    for (int i = 0; i < GPU_MAX; i++) resident_set_close(&s->resident[i]);
    mem_free(s->expert_rows);
    mem_free(s->logits);
    mem_free(s);
}

static int open_run(struct runtime *m, struct prefill_job *j, int ranks, struct error *e) {
    struct slp_state *s = mem_calloc(1, sizeof *s);
    if (s) s->logits = mem_alloc((size_t)HEAD_ROWS * (size_t)m->w->config.vocab * sizeof *s->logits);
    if (s) s->expert_rows = mem_calloc(n_counts(m) + 1, sizeof *s->expert_rows);
    int rc = s && s->logits && s->expert_rows ? kv_commit(j->kv, j->pos + j->n, e)
                                              : error_set(e, ERR_MEMORY, "no memory for a prefill");
    if (!rc) rc = exec_check_before(&m->w->config, j->pos, j->n_before, e);
    if (!rc) rc = decode_lock_weights(m->decode, s->resident, e);
    if (!rc) {
        s->m = m, s->j = j, s->ranks = ranks;
        s->state_step = kv_state_begin(j->kv, j->pos, j->n, prefill_mark_row(j, 0, j->n));
        j->state = s;
        if (pthread_create(&s->thread, NULL, slp_thread, s))
            rc = error_set(e, ERR_RUNTIME, "cannot start a thread for a stream-loaded prefill");
        if (rc) decode_unlock_weights(m->decode);
    }
    if (rc && s) free_run(s);
    return rc;
}
static int open_slp(struct runtime *m, struct prefill_job *j, struct error *e) { return open_run(m, j, 1, e); }
static int open_dslp(struct runtime *m, struct prefill_job *j, struct error *e) {
    const char *why = slp_why_unsplittable(&m->w->config);
    return why ? error_set(e, ERR_RUNTIME, "no prefill on several devices: %s", why) : open_run(m, j, m->gpus->n, e);
}

/* The one advance of a run: its thread has set is_ready and ends. */
static int finish_run(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct slp_state *s = j->state;
    pthread_join(s->thread, NULL);
    atomic_fetch_add(&m->bytes_read, s->stats.h2d);
    if (s->result) *e = s->error;
    else if (j->cancel && atomic_load(j->cancel)) return exec_op_error(ERR_CANCELLED, e);
    else prefill_complete(j, 0, j->n, &s->state_step);
    if (!s->result) {
        prefill_count_experts(m, s->expert_rows);
        prefill_observe_upload(m, j->device, s->stats.upload_bytes, s->stats.upload_s);
    }
    return s->result;
}

static void close_run(struct runtime *m, struct prefill_job *j) {
    decode_unlock_weights(m->decode);
    free_run(j->state);
}

const struct prefill_driver prefill_mode_slp = {
    .mode = PREFILL_SLP, .open = open_slp, .advance = finish_run, .close = close_run, .has_thread = true};
const struct prefill_driver prefill_mode_dslp = {
    .mode = PREFILL_DSLP, .open = open_dslp, .advance = finish_run, .close = close_run, .has_thread = true};
