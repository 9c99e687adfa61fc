/* Prefill on the CPU alone: all layers over a batch of rows, tokens grouped by expert. */
#include <string.h>

#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/prefill.h"
#include "engine/layer/work_open.h"
#include "engine/transfer/trace.h"

static int run_layer(struct runtime *m, struct work *w, int i, const struct span *spans, int n_spans, int n,
                     const _Atomic int *cancel, struct error *e) {
    const struct layer *y = numa_copy_layer(m->numa_copy, m->w, i);
    double t = trace_now(m->trace);
    int rc = cpu_attention_block(m, w, spans, n_spans, i, n, cancel, e);
    trace_cpu(m->trace, t, "attention", i, -1);
    t = trace_now(m->trace);
    if (!rc && y->experts) rc = cpu_prepare_experts(m, w, i, n, e);
    if (rc) return rc;
    if ((rc = block_experts(m->cpu, &m->w->config, y, i, w, PART_ROUTED_SHARED, w->x, n))) return exec_op_error(rc, e);
    if (i + 1 == m->w->config.n_layers && (rc = block_merge_streams(m->cpu, m->w, w, n))) return exec_op_error(rc, e);
    trace_cpu(m->trace, t, y->experts ? "experts" : "ffn", i, -1);
    return exec_check_finite(*w->first_bad, e);
}

/* --- Prefill: batch by batch, one layer or the head of a few rows at a time ------------------- */

struct cpu_prefill {
    int at, n;      /* the batch: tokens [at, at + n) of the job; n 0: none started */
    int layer, row; /* the next layer; after the last one, the next row of the head */
    struct span span;
    uint64_t routing_batch; /* number of the batch in the routing trace, and its lines */
    struct buf routing_lines;
    float *logits; /* [HEAD_ROWS if all are wanted, else 1, vocab] */
    void *saved;   /* what later layers read of the batch, while another prefill uses the workspace; else NULL */
};

static int open_cpu(struct runtime *m, struct prefill_job *j, struct error *e) {
    const int unknown = m->cpu_queue ? 0 : exec_check_before(&m->w->config, j->pos, j->n_before, e);
    if (unknown) return unknown;
    struct cpu_prefill *p = mem_calloc(1, sizeof *p);
    if (p)
        p->logits = mem_alloc((size_t)(j->on_logits ? HEAD_ROWS : 1) * (size_t)m->w->config.vocab * sizeof *p->logits);
    if (!p || !p->logits) {
        mem_free(p);
        return error_set(e, ERR_MEMORY, "no memory for logits");
    }
    j->state = p;
    atomic_store(&j->total, j->n * m->w->config.n_layers);
    atomic_store(&j->is_ready, 1);
    return 0;
}

static void close_cpu(struct runtime *m, struct prefill_job *j) {
    struct cpu_prefill *p = j->state;
    routing_trace_end(m->routing, &p->routing_lines, false);
    buf_free(&p->routing_lines);
    mem_free(p->logits);
    mem_free(p->saved);
    mem_free(p);
}

static int begin_batch(struct runtime *m, struct prefill_job *j, struct cpu_prefill *p, struct error *e) {
    struct work *w = m->prefill_work;
    int pos = j->pos + p->at, most = j->is_aligned ? prefill_batch_end(w->rows, j->cut, pos) - pos : w->rows;
    p->n = j->n - p->at < most ? j->n - p->at : most;
    if (m->w->config.sees_whole_images) p->n = image_batch_end(j->images.spans, j->images.n, pos, pos + p->n) - pos;
    p->layer = 0;
    p->routing_batch = routing_trace_begin(m->routing);
    p->span = (struct span){.cache = j->kv->layer, .n = p->n, .pos = pos};
    int rc = kv_commit(j->kv, p->span.pos + p->n, e);
    if (rc) return rc;
    p->span.state_step = kv_state_begin(j->kv, p->span.pos, p->n, prefill_mark_row(j, p->at, p->n));
    /* first row of the head: the first position not reported yet if all logits are wanted, else the prompt's last one
     */
    p->row = j->on_logits           ? (j->n_reported > p->at ? j->n_reported - p->at : 0)
             : p->at + p->n == j->n ? p->n - 1
                                    : p->n;
    image_rows_ids(&j->images, j->tokens + p->at, p->n, w->tokens);
    image_rows_turn(&j->images, &m->w->config, pos, p->n, w->pos, w->place);
    w->sees_ahead = m->w->config.sees_whole_images && j->images.features;
    if (w->sees_ahead) image_rows_seen(&j->images, pos, p->n, w->last_seen);
    w->has_places = image_rows_have_places(&j->images, &m->w->config);
    cpu_count_read(m, m->w->bytes_dense);
    const struct text_rows text = prefill_text(j, p->at, p->n);
    rc = cpu_begin_batch(m, w, &text, 1, p->n, j->pos + j->n, j->cancel, e);
    image_rows_put(&j->images, m->w->config.hidden, pos, p->n, 0, w->x);
    w->has_places = false;
    return rc;
}

static void trace_routing(struct runtime *m, const struct prefill_job *j, struct cpu_prefill *p) {
    const struct work *w = m->prefill_work;
    if (!m->w->layers[p->layer].experts) return;
    routing_trace_add(m->routing, &p->routing_lines,
                      &(struct routing_trace_rows){.batch = p->routing_batch,
                                                   .chat = j->kv,
                                                   .is_prefill = true,
                                                   .layer = p->layer,
                                                   .n = p->n,
                                                   .pos = p->span.pos,
                                                   .tokens = w->tokens,
                                                   .ids = w->ids,
                                                   .weights = w->weights,
                                                   .router = w->router});
}

static int run_head(struct runtime *m, struct prefill_job *j, struct cpu_prefill *p, struct error *e) {
    int n = p->n - p->row < HEAD_ROWS ? p->n - p->row : HEAD_ROWS;
    cpu_count_read(m, mat_bytes(&m->w->head));
    int rc = prefill_head(m, j, NULL, p->row, p->at + p->row, n, p->logits, e);
    p->row += n;
    return rc;
}

static int advance_cpu(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct cpu_prefill *p = j->state;
    int layers = m->w->config.n_layers, rc = 0;
    if (j->cancel && atomic_load(j->cancel)) rc = exec_op_error(ERR_CANCELLED, e);
    if (!rc && !p->n) rc = begin_batch(m, j, p, e);
    if (!rc && p->layer < layers) {
        rc = run_layer(m, m->prefill_work, p->layer, &p->span, 1, p->n, j->cancel, e);
        if (p->layer < image_rows_deep(&j->images, m->w->config.hidden))
            image_rows_put(&j->images, m->w->config.hidden, p->span.pos, p->n, p->layer + 1, m->prefill_work->x);
        if (!rc) trace_routing(m, j, p);
        if (!rc && !m->cpu_queue && m->w->layers[p->layer].experts)
            usage_profile_count(m->usage, p->layer, m->prefill_work->ids, p->n * m->w->config.topk);
        if (!rc && ++p->layer == layers) {
            prefill_complete(j, p->at, p->n, &p->span.state_step);
            routing_trace_end(m->routing, &p->routing_lines, true);
            if (j->on_hidden && !m->cpu_queue) j->on_hidden(j->on_hidden_ctx, p->span.pos, p->n, m->prefill_work->x);
        }
        atomic_store(&j->done, p->at * layers + p->n * p->layer);
    } else if (!rc) rc = run_head(m, j, p, e);
    if (rc) return rc;
    if (p->layer < layers || p->row < p->n) return PREFILL_MORE;
    p->at += p->n;
    p->n = 0;
    return p->at < j->n ? PREFILL_MORE : 0;
}

static int pause_cpu(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct cpu_prefill *p = j->state;
    if (!p->n) return 0;
    if (!(p->saved = mem_alloc(work_saved_bytes(&m->w->config, p->n))))
        return error_set(e, ERR_MEMORY, "no memory for a second prefill");
    work_save(m->prefill_work, p->n, p->saved);
    return 0;
}
static void resume_cpu(struct runtime *m, struct prefill_job *j) {
    struct cpu_prefill *p = j->state;
    if (!p->saved) return;
    work_restore(m->prefill_work, p->n, p->saved);
    *m->prefill_work->first_bad = -1;
    mem_free(p->saved);
    p->saved = NULL;
}

const struct prefill_driver prefill_mode_cpu = {.mode = PREFILL_CPU,
                                                .open = open_cpu,
                                                .advance = advance_cpu,
                                                .close = close_cpu,
                                                .pause = pause_cpu,
                                                .resume = resume_cpu};
