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
    if (at == 0) return error_set(e, ERR_RUNTIME, "a number that is not finite came out of the embedding; %s", hint);
    int layer = (at - 1) / 2;
    return error_set(e, ERR_RUNTIME, "a number that is not finite came out of the %s of layer %d; %s", at % 2 ? "attention" : "feed-forward", layer, hint);
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

int layers_cpu(struct machine *m, struct work *w, const struct span *spans, int n_spans, int n, const _Atomic int *cancel,
               void (*layer_done)(void *ctx, int layer), void *ctx, struct error *e) {
    const struct config *c = &m->w->config;
    struct exec *x = m->cpu;
    x->cancel = cancel;
    *w->bad = -1;
    memcpy(w->inv_freq, m->w->inv_freq, (size_t)(c->rope.dim / 2) * sizeof(float));
    int rc = block_embed(x, m->w, w, n);
    if (!rc) rc = block_rope(x, c, w, m->w->rope_mscale, n);
    for (int i = 0; i < c->n_layers && !rc; i++) {
        const struct layer *y = place_layer(m->place, m->w, i);
        if (cancel && atomic_load(cancel)) rc = ERR_CANCELLED;
        if (!rc && scan_dense(&m->scan, i, e)) return e->code;
        if (!rc) rc = block_attention(x, c, y, i, w, spans, n_spans, n);
        if (!rc) rc = block_route(x, c, y, i, w, n);
        if (!rc && y->experts && m->fetch) read_ahead(m, w, i, n);
        if (!rc && y->experts && scan_experts(&m->scan, i, w->ids, n * c->topk, e)) return e->code;
        if (!rc) rc = block_experts(x, c, y, i, w, PART_BOTH, w->x, n);
        if (!rc) count_bytes(m, w, y, n);
        if (!rc && *w->bad >= 0) return check_finite(m->w, w, e);
        if (!rc && layer_done) layer_done(ctx, i), x->cancel = cancel;
    }
    atomic_fetch_add(&m->bytes_read, m->w->bytes_dense);
    return rc ? op_error(rc, e) : 0;
}

int check_logits(const struct weights *m, const struct work *w, const float *logits, struct error *e) {
    int rc = check_finite(m, w, e);
    for (int i = 0; i < m->config.vocab && !rc; i++)
        if (!isfinite(logits[i]))
            rc = error_set(e, ERR_RUNTIME, "the output head gave a logit that is not finite (token %d); the weights may be damaged: --verify reads them all", i);
    return rc;
}

struct layers_done {
    const struct prefill_job *j;
    int begin, n, n_layers;
};
static void on_layer(void *ctx, int layer) {
    struct layers_done *d = ctx;
    if (d->j->progress) d->j->progress(d->j->progress_ctx, "prefill", d->begin + (double)d->n * (layer + 1) / d->n_layers, d->j->n);
}

static int prefill(struct machine *m, const struct prefill_job *j, struct error *e) {
    const struct config *c = &m->w->config;
    struct work *w = m->prefill;
    float *logits = NULL;
    int rc = 0, wanted = j->all ? 16 : 1; /* positions whose logits are made at once */
    if (!(logits = mem_alloc((size_t)wanted * (size_t)c->vocab * sizeof *logits))) return error_set(e, ERR_MEMORY, "no memory for logits");
    for (int at = 0; at < j->n && !rc;) {
        int n = j->n - at < w->rows ? j->n - at : w->rows;
        struct layers_done d = {j, at, n, c->n_layers};
        struct span s = {.k = j->kv->k, .v = j->kv->v, .n = n, .pos = j->pos + at};
        for (int i = 0; i < n; i++) w->tokens[i] = j->tokens[at + i], w->pos[i] = s.pos + i;
        if ((rc = layers_cpu(m, w, &s, 1, n, j->cancel, on_layer, &d, e))) break;
        at += n;
        for (int i = 0; j->all && i < n && !rc; i += wanted) {
            int k = n - i < wanted ? n - i : wanted;
            if ((rc = block_head(m->cpu, place_head(m->place, m->w), w, i, k, logits, NULL))) rc = op_error(rc, e);
            for (int t = 0; t < k && !rc; t++) {
                const float *row = logits + (size_t)t * (size_t)c->vocab;
                rc = check_logits(m->w, w, row, e);
                if (!rc && j->all(j->all_ctx, s.pos + i + t, row)) rc = error_set(e, ERR_CANCELLED, "stopped");
                if (!rc && j->last && at == j->n && i + t == n - 1) memcpy(j->last, row, (size_t)c->vocab * sizeof *row);
            }
        }
        if (!j->all && j->last && at == j->n && !rc) {
            if ((rc = block_head(m->cpu, place_head(m->place, m->w), w, n - 1, 1, j->last, NULL))) rc = op_error(rc, e);
            else rc = check_logits(m->w, w, j->last, e);
            atomic_fetch_add(&m->bytes_read, mat_bytes(&m->w->head));
        }
    }
    mem_free(logits);
    return rc;
}

const struct mode mode_cpu = {.name = "cpu", .prefill = prefill};

int decode_step(struct machine *m, const struct span *spans, const int32_t *tokens, int n, float *logits, int32_t *top, const _Atomic int *cancel,
                struct error *e) {
    struct work *w = m->decode;
    for (int i = 0; i < n; i++) w->tokens[i] = tokens[i], w->pos[i] = spans[i].pos;
    int rc = layers_cpu(m, w, spans, n, n, cancel, NULL, NULL, e);
    if (rc) return rc;
    if ((rc = block_head(m->cpu, place_head(m->place, m->w), w, 0, n, logits, top))) return op_error(rc, e);
    atomic_fetch_add(&m->bytes_read, mat_bytes(&m->w->head));
    if ((rc = check_finite(m->w, w, e))) return rc;
    for (int i = 0; i < n; i++)
        if (top[i] < 0) return error_set(e, ERR_RUNTIME, "the output head gave a logit that is not a number; the weights may be damaged: --verify reads them all");
    return 0;
}
