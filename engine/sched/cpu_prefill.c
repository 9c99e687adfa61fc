/* Prefill and decode on the processor alone: all layers over a batch of rows, tokens grouped by expert. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/sched/mode.h"

int op_error(int rc, struct error *e) {
    if (rc == ERR_MEMORY) return error_set(e, rc, "no memory for the workspace of a layer; take a smaller context with -c");
    if (rc == ERR_CANCELLED) return error_set(e, rc, "stopped");
    return error_set(e, rc, "an operation failed");
}

int check_finite(const struct weights *m, const struct work *w, struct error *e) {
    int at = *w->bad;
    if (at < 0) return 0;
    const char *hint = "the weights may be damaged: --verify reads them all";
    if (at == 0) return error_set(e, ERR_MODEL, "a number that is not finite came out of the embedding; %s", hint);
    int layer = (at - 1) / 2;
    return error_set(e, ERR_MODEL, "a number that is not finite came out of the %s of layer %d; %s", at % 2 ? "attention" : "feed-forward", layer, hint);
}

/* Which weights a batch reads: dense ones once, each routed expert once if any token chose it. */
static void count_bytes(struct machine *m, const struct work *w, const struct layer *y, int n) {
    const struct config *c = &m->w->config;
    if (!y->experts) return;
    memset(m->touched, 0, (size_t)c->n_experts);
    uint64_t used = 0;
    for (int i = 0; i < n * c->topk; i++) {
        int id = w->ids[i];
        used += !m->touched[id];
        m->touched[id] = 1;
    }
    atomic_fetch_add(&m->bytes_read, used * m->expert_bytes);
}

/* Weights that do not fit in memory: what the router chose is read at once, and beside the experts' work what the next
 * layer will probably choose. Its router says so of the residual stream as it is before these experts add to it, which is
 * mostly what they will leave; a batch in which every expert has work needs no guess. */
static void read_ahead(struct machine *m, struct work *w, int i, int n) {
    const struct config *c = &m->w->config;
    w->late = fetch_chosen(m->fetch, i, w->ids, n * c->topk);
    const struct layer *next = i + 1 < c->n_layers ? &m->w->layers[i + 1] : NULL;
    if (!next || !next->experts || !fetch_wants(m->fetch)) return;
    if (n <= m->guess->rows) {
        struct work guess = *m->guess;
        guess.x = w->x;
        *guess.bad = -1;
        if (!block_route(m->cpu, c, next, i + 1, &guess, n)) fetch_likely(m->fetch, i + 1, guess.ids, n * c->topk);
    } else if (n * c->topk >= 2 * c->n_experts) fetch_likely(m->fetch, i + 1, NULL, c->n_experts);
}

static int layers_begin(struct machine *m, struct work *w, int n, const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    m->cpu->cancel = cancel;
    *w->bad = -1;
    memcpy(w->inv_freq, m->w->inv_freq, (size_t)(c->rope.dim / 2) * sizeof(float));
    int rc = block_embed(m->cpu, m->w, w, n);
    if (!rc) rc = block_rope(m->cpu, c, w, m->w->rope_mscale, n);
    atomic_fetch_add(&m->bytes_read, m->w->bytes_dense);
    return rc ? op_error(rc, e) : 0;
}

static int layer_run(struct machine *m, struct work *w, int i, const struct span *spans, int n_spans, int n, const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    struct exec *x = m->cpu;
    const struct layer *y = place_layer(m->place, m->w, i);
    int rc = cancel && atomic_load(cancel) ? ERR_CANCELLED : 0;
    x->cancel = cancel;
    if (!rc && scan_dense(&m->scan, i, e)) return e->code;
    if (!rc) rc = block_attention(x, c, y, i, w, spans, n_spans, n);
    if (!rc) rc = block_route(x, c, y, i, w, n);
    if (!rc && y->experts && m->fetch) read_ahead(m, w, i, n);
    if (!rc && y->experts && scan_experts(&m->scan, i, w->ids, n * c->topk, e)) return e->code;
    if (!rc) rc = block_experts(x, c, y, i, w, PART_BOTH, w->x, n);
    if (!rc) count_bytes(m, w, y, n);
    if (!rc && *w->bad >= 0) return check_finite(m->w, w, e);
    return rc ? op_error(rc, e) : 0;
}

int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e) {
    int rc = check_finite(m, w, e);
    for (int i = 0; i < m->config.vocab && !rc; i++)
        if (!isfinite(logits[i]))
            rc = error_set(e, ERR_MODEL, "the output head gave a logit that is not finite (token %d); the weights may be damaged: --verify reads them all", i);
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

/* --- Prefill: a batch of rows after the other, a layer or the head of a few rows at a time -------------------------------- */

enum { HEAD_ROWS = 16 };
struct walk {
    int at, n;       /* the batch: tokens [at, at + n) of the job; n 0: none begun */
    int layer, row;  /* next to do: layers, then rows of the head */
    struct span span;
    float *logits;   /* [HEAD_ROWS where all are wanted, else 1, vocab] */
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
    mem_free(p->logits);
    mem_free(p);
}

static int begin_batch(struct machine *m, struct prefill_job *j, struct walk *p, struct error *e) {
    struct work *w = m->prefill;
    p->n = j->n - p->at < w->rows ? j->n - p->at : w->rows;
    p->layer = 0;
    p->span = (struct span){.k = j->kv->k, .v = j->kv->v, .n = p->n, .pos = j->pos + p->at};
    /* of all positions those that nobody was told of yet; else the last one */
    p->row = j->all ? (j->told > p->at ? j->told - p->at : 0) : p->at + p->n == j->n ? p->n - 1 : p->n;
    for (int i = 0; i < p->n; i++) w->tokens[i] = j->tokens[p->at + i], w->pos[i] = p->span.pos + i;
    return layers_begin(m, w, p->n, j->cancel, e);
}

static int head_rows(struct machine *m, struct prefill_job *j, struct walk *p, struct error *e) {
    int n = p->n - p->row < HEAD_ROWS ? p->n - p->row : HEAD_ROWS;
    m->cpu->cancel = j->cancel;
    int rc = block_head(m->cpu, place_head(m->place, m->w), m->prefill, p->row, n, p->logits, NULL);
    atomic_fetch_add(&m->bytes_read, mat_bytes(&m->w->head));
    if (!rc) rc = tell_logits(m, j, m->prefill, p->at + p->row, n, p->logits, e);
    else rc = op_error(rc, e);
    p->row += n;
    return rc;
}

static int advance(struct machine *m, struct prefill_job *j, struct error *e) {
    struct walk *p = j->state;
    int layers = m->w->config.n_layers, rc = 0;
    if (!p->n) rc = begin_batch(m, j, p, e);
    if (!rc && p->layer < layers) {
        rc = layer_run(m, m->prefill, p->layer, &p->span, 1, p->n, j->cancel, e);
        if (!rc && ++p->layer == layers) j->complete = p->at + p->n;
        atomic_store(&j->done, p->at * layers + p->n * p->layer);
    } else if (!rc) rc = head_rows(m, j, p, e);
    if (rc) return rc;
    if (p->layer < layers || p->row < p->n) return PREFILL_MORE;
    p->at += p->n;
    p->n = 0;
    return p->at < j->n ? PREFILL_MORE : 0;
}

const struct mode mode_cpu = {.name = "cpu", .unit = "prefill", .open = open_walk, .advance = advance, .close = close_walk};

/* --- Decode ---------------------------------------------------------------------------------------------------------------- */

int decode_step(struct machine *m, const struct span *spans, const int32_t *tokens, int n, float *logits, int32_t *top, const _Atomic int *cancel,
                struct error *e) {
    struct work *w = m->decode;
    for (int i = 0; i < n; i++) w->tokens[i] = tokens[i], w->pos[i] = spans[i].pos;
    int rc = layers_begin(m, w, n, cancel, e);
    for (int i = 0; i < m->w->config.n_layers && !rc; i++) rc = layer_run(m, w, i, spans, n, n, cancel, e);
    if (rc) return rc;
    if ((rc = block_head(m->cpu, place_head(m->place, m->w), w, 0, n, logits, top))) return op_error(rc, e);
    atomic_fetch_add(&m->bytes_read, mat_bytes(&m->w->head));
    if ((rc = check_finite(m->w, w, e))) return rc;
    for (int i = 0; i < n; i++)
        if (top[i] < 0) return error_set(e, ERR_MODEL, "the output head gave a logit that is not a number; the weights may be damaged: --verify reads them all");
    return 0;
}
