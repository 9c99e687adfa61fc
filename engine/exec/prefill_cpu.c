/* Prefill on the CPU alone: all layers over a batch of rows, tokens grouped by expert. A batch has rows of one prompt,
 * or all rows of several short ones, which then read the weights once. */
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

/* The rows of a job in a batch. */
struct part {
    struct prefill_job *job;
    int at, n, row; /* its tokens [at, at + n), rows [row, row + n) of the workspace */
};
struct cpu_prefill {
    struct part part[PREFILL_JOINED_MOST];
    struct span span[PREFILL_JOINED_MOST]; /* of each part */
    int32_t end[PREFILL_JOINED_MOST];      /* row after each part's last */
    struct op_prompts prompts;             /* of several parts */
    int n_parts;
    int n;                  /* rows of the batch; 0: none started */
    int layer, row;         /* the next layer; after the last one, the next row of the head */
    uint64_t routing_batch; /* number of the batch in the routing trace, and its lines */
    struct buf routing_lines;
    float *logits; /* [HEAD_ROWS if all or those of several jobs are wanted, else 1, vocab] */
    void *saved;   /* what later layers read of the batch, while another prefill uses the workspace; else NULL */
};

static int open_cpu(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct cpu_prefill *p = mem_calloc(1, sizeof *p);
    int rows = 0, unknown = 0;
    for (struct prefill_job *k = j; k && p && !unknown; k = k->joined) {
        p->part[p->n_parts++] = (struct part){.job = k, .n = k->n, .row = rows};
        rows += k->n;
        unknown = m->cpu_queue ? 0 : exec_check_before(&m->w->config, k->pos, k->n_before, e);
    }
    if (p && !unknown)
        p->logits = mem_alloc((size_t)(j->on_logits || j->joined ? HEAD_ROWS : 1) * (size_t)m->w->config.vocab *
                              sizeof *p->logits);
    if (!p || unknown || !p->logits) {
        mem_free(p);
        return unknown ? unknown : error_set(e, ERR_MEMORY, "no memory for logits");
    }
    p->prompts = (struct op_prompts){p->end, p->n_parts, j->n <= BATCH_INVARIANT_ROWS};
    j->state = p;
    for (int i = 0; i < p->n_parts; i++)
        atomic_store(&p->part[i].job->total, p->part[i].job->n * m->w->config.n_layers);
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

/* What the operations of a batch watch: a prompt that is read with others does not stop them. */
static const _Atomic int *cancel_flag(const struct cpu_prefill *p) {
    return p->n_parts > 1 ? NULL : p->part->job->cancel;
}
static bool is_cancelled(const struct prefill_job *j) { return j->cancel && atomic_load(j->cancel); }
static bool are_cancelled(const struct cpu_prefill *p) {
    for (int i = 0; i < p->n_parts; i++)
        if (!is_cancelled(p->part[i].job)) return false;
    return true;
}

/* Chooses the next rows of a job that is read alone. */
static void choose_rows(const struct runtime *m, struct part *t) {
    const struct prefill_job *j = t->job;
    const int rows = m->prefill_work->rows, pos = j->pos + t->at,
              most = j->is_aligned ? prefill_batch_end(rows, j->cut, pos) - pos : rows;
    t->n = j->n - t->at < most ? j->n - t->at : most;
    if (m->w->config.sees_whole_images) t->n = image_batch_end(j->images.spans, j->images.n, pos, pos + t->n) - pos;
}
/* Fills the workspace's inputs of a part, and its span. */
static int begin_part(struct runtime *m, struct cpu_prefill *p, int i, struct error *e) {
    const struct part *t = &p->part[i];
    const struct prefill_job *j = t->job;
    struct work *w = m->prefill_work;
    const int pos = j->pos + t->at;
    p->end[i] = t->row + t->n;
    p->span[i] = (struct span){.cache = j->kv->layer, .row = t->row, .n = t->n, .pos = pos};
    int rc = kv_commit(j->kv, pos + t->n, e);
    if (rc) return rc;
    p->span[i].state_step = kv_state_begin(j->kv, pos, t->n, prefill_mark_row(j, t->at, t->n));
    image_rows_ids(&j->images, j->tokens + t->at, t->n, w->tokens + t->row);
    image_rows_turn(&j->images, &m->w->config, pos, t->n, w->pos + t->row, w->place);
    for (int r = 0; r < t->n && w->seq_length; r++) w->seq_length[t->row + r] = j->pos + j->n;
    return 0;
}
static int begin_batch(struct runtime *m, struct cpu_prefill *p, struct error *e) {
    struct work *w = m->prefill_work;
    const struct part *first = p->part;
    const struct prefill_job *j = first->job;
    struct text_rows texts[PREFILL_JOINED_MOST];
    if (p->n_parts == 1) choose_rows(m, p->part);
    p->layer = 0, p->n = 0;
    p->routing_batch = routing_trace_begin(m->routing);
    for (int i = 0; i < p->n_parts; i++) {
        int rc = begin_part(m, p, i, e);
        if (rc) return rc;
        texts[i] = prefill_text(p->part[i].job, p->part[i].at, p->part[i].n);
        p->n = p->end[i];
    }
    /* first row of the head: the first position not reported yet if all logits are wanted, else the prompt's last one
     */
    p->row = j->on_logits                   ? (j->n_reported > first->at ? j->n_reported - first->at : 0)
             : first->at + first->n == j->n ? p->n - 1
                                            : p->n;
    const int pos = j->pos + first->at;
    w->sees_ahead = m->w->config.sees_whole_images && j->images.features;
    if (w->sees_ahead) image_rows_seen(&j->images, pos, p->n, w->last_seen);
    w->has_places = image_rows_have_places(&j->images, &m->w->config);
    cpu_count_read(m, m->w->bytes_dense);
    const int rc =
        cpu_begin_batch(m, w, texts, p->n_parts, p->n, p->n_parts > 1 ? 0 : j->pos + j->n, cancel_flag(p), e);
    if (p->n_parts == 1) image_rows_put(&j->images, m->w->config.hidden, pos, p->n, 0, w->x);
    w->has_places = false;
    return rc;
}

static void trace_routing(struct runtime *m, struct cpu_prefill *p) {
    const struct work *w = m->prefill_work;
    const size_t topk = (size_t)m->w->config.topk, choices = (size_t)config_n_choices(&m->w->config);
    for (int i = 0; i < p->n_parts && m->routing; i++) {
        const struct part *t = &p->part[i];
        const size_t row = (size_t)t->row;
        routing_trace_add(m->routing, &p->routing_lines,
                          &(struct routing_trace_rows){.batch = p->routing_batch,
                                                       .chat = t->job->kv,
                                                       .is_prefill = true,
                                                       .layer = p->layer,
                                                       .n = t->n,
                                                       .pos = p->span[i].pos,
                                                       .tokens = w->tokens + row,
                                                       .ids = w->ids + row * topk,
                                                       .weights = w->weights + row * topk,
                                                       .router = w->router + row * choices});
    }
}

/* All layers have computed the batch. */
static void complete_batch(struct runtime *m, struct cpu_prefill *p) {
    for (int i = 0; i < p->n_parts; i++) {
        const struct part *t = &p->part[i];
        struct prefill_job *j = t->job;
        if (p->n_parts > 1 && is_cancelled(j)) continue;
        prefill_complete(j, t->at, t->n, &p->span[i].state_step);
        if (j->on_hidden && !m->cpu_queue)
            j->on_hidden(j->on_hidden_ctx, p->span[i].pos, t->n,
                         m->prefill_work->x + (size_t)t->row * (size_t)m->w->config.hidden);
    }
    routing_trace_end(m->routing, &p->routing_lines, true);
}
static int advance_layer(struct runtime *m, struct cpu_prefill *p, struct error *e) {
    const int layers = m->w->config.n_layers;
    const struct part *first = p->part;
    const struct image_rows *images = &first->job->images;
    m->cpu->prompts = p->n_parts > 1 ? &p->prompts : NULL;
    const int rc = run_layer(m, m->prefill_work, p->layer, p->span, p->n_parts, p->n, cancel_flag(p), e);
    m->cpu->prompts = NULL;
    if (rc) return rc;
    if (p->n_parts == 1 && p->layer < image_rows_deep(images, m->w->config.hidden))
        image_rows_put(images, m->w->config.hidden, p->span->pos, p->n, p->layer + 1, m->prefill_work->x);
    if (m->w->layers[p->layer].experts) {
        trace_routing(m, p);
        if (!m->cpu_queue) usage_profile_count(m->usage, p->layer, m->prefill_work->ids, p->n * m->w->config.topk);
    }
    if (++p->layer == layers) complete_batch(m, p);
    for (int i = 0; i < p->n_parts; i++)
        atomic_store(&p->part[i].job->done, p->part[i].at * layers + p->part[i].n * p->layer);
    return 0;
}

static int run_head(struct runtime *m, struct cpu_prefill *p, struct error *e) {
    const struct part *t = p->part;
    const size_t hidden = (size_t)m->w->config.hidden;
    cpu_count_read(m, mat_bytes(&m->w->head));
    if (p->n_parts > 1) { /* of the last row of each */
        struct prefill_job *jobs[PREFILL_JOINED_MOST];
        float *x = m->prefill_work->x;
        for (int i = 0; i < p->n_parts; i++) {
            jobs[i] = p->part[i].job;
            memmove(x + (size_t)i * hidden, x + (size_t)(p->end[i] - 1) * hidden, hidden * sizeof *x);
        }
        p->row = p->n;
        return prefill_head_of_last(m, jobs, p->n_parts, p->logits, e);
    }
    const int n = p->n - p->row < HEAD_ROWS ? p->n - p->row : HEAD_ROWS;
    const int rc = prefill_head(m, t->job, NULL, p->row, t->at + p->row, n, p->logits, e);
    p->row += n;
    return rc;
}

static int advance_cpu(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct cpu_prefill *p = j->state;
    struct part *first = p->part;
    int rc = are_cancelled(p) ? exec_op_error(ERR_CANCELLED, e) : 0;
    if (!rc && !p->n) rc = begin_batch(m, p, e);
    if (!rc) rc = p->layer < m->w->config.n_layers ? advance_layer(m, p, e) : run_head(m, p, e);
    if (rc) return rc;
    if (p->layer < m->w->config.n_layers || p->row < p->n) return PREFILL_MORE;
    first->at += first->n;
    p->n = 0;
    return first->at < j->n ? PREFILL_MORE : 0;
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
