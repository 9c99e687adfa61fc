#include "engine/draft/mtp.h"

#include <string.h>

#include "base/mem.h"
#include "engine/layer/attention.h" /* TRY */
#include "engine/layer/block.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/model/rope.h"

enum { ROWS = 64 }; /* rows per pass */

struct mtp {
    const struct weights *w;
    const struct mtp_weights *prediction;
    struct exec *exec;
    struct config c; /* config of a one-layer model */
    struct work work;
    float *pair;   /* [ROWS, 2 * hidden] */
    float *h;      /* [hidden] */
    float *logits; /* [vocab] */
    int context;
    enum dtype kv;
};

int mtp_open(struct mtp **out, const struct weights *w, struct exec *x, int context, enum dtype kv, struct error *e) {
    *out = NULL;
    if (!w->prediction.is_present) return 0;
    struct mtp *m = mem_calloc(1, sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory for the prediction layer");
    *m = (struct mtp){.w = w, .prediction = &w->prediction, .exec = x, .c = w->config, .context = context, .kv = kv};
    m->c.layer[0] = w->config.layer[w->config.n_layers];
    m->c.n_layers = 1;
    int rc = work_open(&m->work, &m->c, ROWS, NULL, NULL, NULL, e);
    m->pair = mem_alloc(2 * ROWS * (size_t)m->c.hidden * sizeof *m->pair);
    m->h = mem_alloc((size_t)m->c.hidden * sizeof *m->h);
    m->logits = mem_alloc((size_t)m->c.vocab * sizeof *m->logits);
    if (!rc && (!m->pair || !m->h || !m->logits)) rc = error_set(e, ERR_MEMORY, "no memory for the prediction layer");
    if (!rc) memcpy(m->work.inv_freq, w->inv_freq, (size_t)rope_floats(&w->config) * sizeof(float));
    *out = m;
    if (rc) mtp_close(out);
    return rc;
}

void mtp_close(struct mtp **mp) {
    struct mtp *m = *mp;
    if (!m) return;
    *mp = NULL;
    work_close(&m->work);
    mem_free(m->pair);
    mem_free(m->h);
    mem_free(m->logits);
    mem_free(m);
}

void mtp_session_close(struct mtp_session *c) {
    if (c->kv.pages) kv_close(&c->kv);
    mem_free(c->hidden);
    *c = (struct mtp_session){0};
}

/* Slot of the i-th waiting position: a ring, so feeding one more moves nothing. */
static int waiting_slot(const struct mtp_session *c, int i) { return (c->first + c->n_rows + i) % MTP_WAITING; }

void mtp_feed(struct mtp *m, struct mtp_session *c, int pos, int n, const float *h) {
    const size_t width = (size_t)m->c.hidden;
    if (!c->hidden && !(c->hidden = mem_alloc(MTP_WAITING * width * sizeof *c->hidden))) return;
    if (pos != c->first + c->n_rows + c->n_waiting) c->first = pos, c->n_rows = c->n_waiting = 0;
    if (n > MTP_WAITING) {
        h += (size_t)(n - MTP_WAITING) * width;
        c->first = pos + n - MTP_WAITING, c->n_rows = c->n_waiting = 0;
        n = MTP_WAITING;
    }
    if (c->n_waiting + n > MTP_WAITING) { /* not used for long: drop the oldest */
        const int drop = c->n_waiting + n - MTP_WAITING;
        c->first += c->n_rows + drop, c->n_rows = 0, c->n_waiting -= drop;
    }
    for (int i = 0; i < n; i++)
        memcpy(c->hidden + (size_t)waiting_slot(c, c->n_waiting++) * width, h + (size_t)i * width,
               width * sizeof *c->hidden);
}

void mtp_rewind(struct mtp_session *c, int pos) { /* a row depends on its position and on the next token */
    const int left = pos - 1 - c->first < 0 ? 0 : pos - 1 - c->first;
    if (c->n_rows > left) c->n_rows = left, c->n_waiting = 0;
    else if (c->n_rows + c->n_waiting > left) c->n_waiting = left - c->n_rows;
}

/* Computes cache rows [row, row + n) from h [n, hidden] and the next tokens. If out is not NULL, runs the whole layer
 * for the last row; its output is in out->x. final: h is the model's output, to which its final norm is applied
 * first. */
static int run_rows(struct mtp *m, struct mtp_session *chat, const int32_t *tokens, int row, int n, const float *h,
                    bool final, struct work *out) {
    const struct config *c = &m->c;
    const struct layer *y = &m->prediction->layer;
    struct work *w = &m->work;
    const int hidden = c->hidden;
    struct span span = {.cache = chat->kv.layer, .n = n, .pos = row, .state_step = {-1, -1, 0, -1}};
    for (int i = 0; i < n; i++) w->tokens[i] = tokens[i], w->pos[i] = chat->first + row + i;
    *w->first_bad = -1;
    TRY(kv_commit(&chat->kv, row + n, &(struct error){0}));
    TRY(block_embed(m->exec, m->w, w->x, w->tokens, n));
    TRY(block_norm(m->exec, c, m->pair, 2 * hidden, w->x, hidden, m->prediction->enorm, NULL, n, hidden));
    if (final) TRY(block_norm(m->exec, c, w->xn, hidden, h, hidden, m->w->norm, m->w->norm_bias, n, hidden));
    TRY(block_norm(m->exec, c, m->pair + hidden, 2 * hidden, final ? w->xn : h, hidden, m->prediction->hnorm, NULL, n,
                   hidden));
    TRY(block_linear(m->exec, c, w->x, hidden, m->pair, 2 * hidden, m->prediction->eh, NULL, n, false));
    TRY(block_rope(m->exec, m->w, w, n, 0));
    TRY(block_kv(m->exec, c, y, 0, w, &span, 1, n));
    if (!out) return 0;
    struct work v = work_slice(c, w, n - 1);
    span.pos += n - 1, span.n = 1;
    TRY(block_query(m->exec, c, y, 0, &v, 1));
    TRY(block_attend(m->exec, c, y, 0, &v, &span, (struct key_range){.n = span.pos + 1, .piece = PIECE_ALL}));
    TRY(block_output(m->exec, c, y, &v, 1));
    TRY(block_route(m->exec, c, y, 0, &v, 1));
    TRY(block_experts(m->exec, c, y, 0, &v, PART_ROUTED_SHARED, v.x, 1));
    *out = v;
    return 0;
}

/* Computes logits and argmax from the layer's output; *top < 0: a logit is NaN. */
static int compute_logits(struct mtp *m, const struct work *v, float *logits, int32_t *top) {
    const struct config *c = &m->c;
    TRY(block_norm(m->exec, c, v->xn, c->hidden, v->x, c->hidden, m->prediction->norm, NULL, 1, c->hidden));
    return m->exec->ops->linear(
        m->exec,
        &(struct op_linear){
            .y = logits, .x = v->xn, .w = m->prediction->head, .n = 1, .ldx = c->hidden, .ldy = c->vocab, .top = top});
}

/* Processes the first n waiting positions. out: as in go(), for the last one. */
static int run_waiting(struct mtp *m, struct mtp_session *c, const int32_t *tokens, int n, struct work *out) {
    const size_t width = (size_t)m->c.hidden;
    m->exec->cancel = NULL;
    if (!c->kv.pages) TRY(kv_open(&c->kv, &m->c, kv_planes, m->context, m->kv, &(struct error){0}));
    for (int at = 0, k; at < n; at += k) {
        const int left = n - at, row = c->n_rows + at, place = waiting_slot(c, at),
                  most = MTP_WAITING - place < ROWS ? MTP_WAITING - place : ROWS;
        k = left < most ? left : most;
        TRY(run_rows(m, c, tokens + c->first + row + 1, row, k, c->hidden + (size_t)place * width, true,
                     k == left ? out : NULL));
    }
    c->n_rows += n, c->n_waiting -= n;
    return 0;
}

void mtp_catch_up(struct mtp *m, struct mtp_session *c, const int32_t *tokens) {
    if (c->n_waiting > 1) run_waiting(m, c, tokens, c->n_waiting - 1, NULL);
}

int mtp_draft(struct mtp *m, struct mtp_session *c, const int32_t *tokens, int n, int most, int32_t *out,
              mtp_pick_fn pick, void *ctx) {
    struct work v = {0};
    if (most < 1 || !c->n_waiting || c->first + c->n_rows + c->n_waiting != n - 1) return 0;
    if (run_waiting(m, c, tokens, c->n_waiting, &v)) return 0;
    for (int i = 0;; i++) { /* rows of drafted tokens are not counted and are overwritten later */
        if (compute_logits(m, &v, m->logits, &out[i])) return i;
        if (out[i] >= 0 && pick) out[i] = pick(ctx, i, m->logits, out[i]);
        if (out[i] < 0) return i;
        if (i + 1 >= most || c->n_rows + i >= c->kv.capacity) return i + 1;
        memcpy(m->h, v.x, (size_t)m->c.hidden * sizeof *m->h);
        if (run_rows(m, c, &out[i], c->n_rows + i, 1, m->h, false, &v)) return i + 1;
    }
}
