/* Prefill on the CPU alone: all layers over a batch of rows, tokens grouped by expert. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/pipe/trace.h"
#include "engine/step/mode.h"
#include "engine/step/processor.h"

int op_error(int rc, struct error *e) {
    if (rc == ERR_MEMORY) return error_set(e, rc, "no memory for the workspace of a layer; set a smaller context with -c");
    if (rc == ERR_CANCELLED) return error_set(e, rc, "stopped");
    return error_set(e, rc, "an operation failed");
}

int check_finite(const struct weights *m, const struct work *w, struct error *e) {
    int at = *w->bad;
    if (at < 0) return 0;
    const char *hint = "the weights may be damaged; check them with --verify";
    if (at == 0) return error_set(e, ERR_MODEL, "the embedding produced a non-finite number; %s", hint);
    int layer = (at - 1) / 2;
    return error_set(e, ERR_MODEL, "the %s of layer %d produced a non-finite number; %s", at % 2 ? "attention" : "feed-forward", layer, hint);
}

static int layer_run(struct machine *m, struct work *w, int i, const struct span *spans, int n_spans, int n, const _Atomic int *cancel, struct error *e) {
    const struct layer *y = place_layer(m->place, m->w, i);
    double t = trace_now(m->trace);
    int rc = processor_half(m, w, spans, n_spans, i, n, cancel, e);
    trace_host(m->trace, t, "attention", i, -1);
    t = trace_now(m->trace);
    if (!rc && y->experts) rc = processor_weights(m, w, i, n, e);
    if (rc) return rc;
    if ((rc = block_experts(m->cpu, &m->w->config, y, i, w, PART_BOTH, w->x, n))) return op_error(rc, e);
    if (i + 1 == m->w->config.n_layers && (rc = block_close(m->cpu, m->w, w, n))) return op_error(rc, e);
    trace_host(m->trace, t, y->experts ? "experts" : "ffn", i, -1);
    return check_finite(m->w, w, e);
}

int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e) {
    int rc = check_finite(m, w, e);
    for (int i = 0; i < m->config.vocab && !rc; i++)
        if (!isfinite(logits[i]))
            rc = error_set(e, ERR_MODEL, "the LM head produced a non-finite logit (token %d); the weights may be damaged; check them with --verify", i);
    return rc;
}

int tell_logits(struct machine *m, struct prefill_job *j, const struct work *w, int at, int n, const float *logits, struct error *e) {
    size_t vocab = (size_t)m->w->config.vocab;
    int rc = 0;
    for (int i = 0; i < n && !rc; i++, logits += vocab) {
        rc = check_logits(m->w, w, logits, e);
        if (!rc && j->all && j->all(j->all_ctx, j->pos + at + i, logits)) rc = error_set(e, ERR_CANCELLED, "stopped");
        if (!rc) j->told = at + i + 1;
        if (!rc && j->told == j->n) memcpy(j->last, logits, vocab * sizeof *logits);
    }
    return rc;
}

int prefill_end(int rows, int cut, int pos) {
    int end = (pos / rows + 1) * rows;
    return cut > pos && cut < end ? cut : end;
}

/* Only in the last batch: earlier batches must depend on their tokens alone, and their ends are kept anyway. */
int prefill_mark(const struct prefill_job *j, int at, int n) {
    int mark = kv_mark(j->pos, j->n) - at;
    return mark > 0 && at + n == j->n ? mark : 0;
}

void prefill_complete(struct prefill_job *j, int at, int n, const struct kv_move *move) {
    j->complete = at + n;
    kv_done(j->kv, move, j->pos + at, n);
    if (j->complete < j->n) kv_keep(j->kv, j->pos + j->complete);
}

/* --- Prefill: batch by batch, one layer or the head of a few rows at a time ---------------------------------------------- */

enum { HEAD_ROWS = 16 };
struct walk {
    int at, n;      /* the batch: tokens [at, at + n) of the job; n 0: none started */
    int layer, row; /* next to do: layers, then rows of the head */
    struct span span;
    uint64_t step; /* number and lines in the routing trace */
    struct buf lines;
    float *logits; /* [HEAD_ROWS if all are wanted, else 1, vocab] */
};

static int open_walk(struct machine *m, struct prefill_job *j, struct error *e) {
    struct walk *p = mem_calloc(1, sizeof *p);
    if (p) p->logits = mem_alloc((size_t)(j->all ? HEAD_ROWS : 1) * (size_t)m->w->config.vocab * sizeof *p->logits);
    if (!p || !p->logits) {
        mem_free(p);
        return error_set(e, ERR_MEMORY, "no memory for logits");
    }
    j->state = p;
    atomic_store(&j->total, j->n * m->w->config.n_layers);
    atomic_store(&j->ready, 1);
    return 0;
}

static void close_walk(struct machine *m, struct prefill_job *j) {
    struct walk *p = j->state;
    routing_end(m->routing, &p->lines, false);
    buf_free(&p->lines);
    mem_free(p->logits);
    mem_free(p);
}

static int begin_batch(struct machine *m, struct prefill_job *j, struct walk *p, struct error *e) {
    struct work *w = m->prefill;
    int pos = j->pos + p->at, most = j->aligned ? prefill_end(w->rows, j->cut, pos) - pos : w->rows;
    p->n = j->n - p->at < most ? j->n - p->at : most;
    p->layer = 0;
    p->step = routing_begin(m->routing);
    p->span = (struct span){.cache = j->kv->layer, .n = p->n, .pos = pos};
    int rc = kv_reach(j->kv, p->span.pos + p->n, e);
    if (rc) return rc;
    p->span.move = kv_begin(j->kv, p->span.pos, p->n, prefill_mark(j, p->at, p->n));
    /* all wanted: positions not reported yet; else the last one */
    p->row = j->all ? (j->told > p->at ? j->told - p->at : 0) : p->at + p->n == j->n ? p->n - 1 : p->n;
    for (int i = 0; i < p->n; i++) w->tokens[i] = j->tokens[p->at + i], w->pos[i] = p->span.pos + i;
    processor_read(m, m->w->bytes_dense);
    return processor_begin(m, w, p->n, j->pos + j->n, j->cancel, e);
}

static void tell_routing(struct machine *m, const struct prefill_job *j, struct walk *p) {
    const struct work *w = m->prefill;
    if (!m->w->layers[p->layer].experts) return;
    routing_add(m->routing, &p->lines,
                &(struct routing_rows){.step = p->step,
                                       .chat = j->kv,
                                       .prompt = true,
                                       .layer = p->layer,
                                       .n = p->n,
                                       .pos = p->span.pos,
                                       .tokens = w->tokens,
                                       .ids = w->ids,
                                       .weights = w->weights,
                                       .router = w->router});
}

static int head_rows(struct machine *m, struct prefill_job *j, struct walk *p, struct error *e) {
    int n = p->n - p->row < HEAD_ROWS ? p->n - p->row : HEAD_ROWS;
    m->cpu->cancel = j->cancel;
    double t = trace_now(m->trace);
    int rc = block_head(m->cpu, place_head(m->place, m->w), m->prefill, p->row, n, p->logits, NULL);
    trace_host(m->trace, t, "head", -1, -1);
    processor_read(m, mat_bytes(&m->w->head));
    if (rc) rc = op_error(rc, e);
    else if (!m->processor) rc = tell_logits(m, j, m->prefill, p->at + p->row, n, p->logits, e);
    p->row += n;
    return rc;
}

static int advance(struct machine *m, struct prefill_job *j, struct error *e) {
    struct walk *p = j->state;
    int layers = m->w->config.n_layers, rc = 0;
    if (j->cancel && atomic_load(j->cancel)) rc = op_error(ERR_CANCELLED, e);
    if (!rc && !p->n) rc = begin_batch(m, j, p, e);
    if (!rc && p->layer < layers) {
        rc = layer_run(m, m->prefill, p->layer, &p->span, 1, p->n, j->cancel, e);
        if (!rc) tell_routing(m, j, p);
        if (!rc && ++p->layer == layers) {
            prefill_complete(j, p->at, p->n, &p->span.move);
            routing_end(m->routing, &p->lines, true);
            if (j->hidden && !m->processor) j->hidden(j->hidden_ctx, p->span.pos, p->n, m->prefill->x);
        }
        atomic_store(&j->done, p->at * layers + p->n * p->layer);
    } else if (!rc) rc = head_rows(m, j, p, e);
    if (rc) return rc;
    if (p->layer < layers || p->row < p->n) return PREFILL_MORE;
    p->at += p->n;
    p->n = 0;
    return p->at < j->n ? PREFILL_MORE : 0;
}

const struct mode mode_cpu = {.name = "cpu", .unit = "prefill", .open = open_walk, .advance = advance, .close = close_walk};
