/* Stream-loading prefill as a mode: the layers on one device (slp) or on all (dslp), embedding and head on the processor. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/pipe/pipe.h"
#include "engine/sched/mode.h"

struct slp {
    struct machine *m;
    const struct prefill_job *j;
    float *logits; /* [HEAD_ROWS, vocab] */
    struct error error;
};
enum { HEAD_ROWS = 16 };

static int embed(void *ctx, float *out, int row, int n) {
    struct slp *s = ctx;
    struct exec *x = s->m->cpu;
    x->cancel = s->j->cancel;
    return x->ops->embed(x, &(struct op_embed){.out = out, .ids = s->j->tokens + row, .table = s->m->w->embed, .n = n});
}

static int result(void *ctx, const float *x, int row, int n) {
    struct slp *s = ctx;
    const struct prefill_job *j = s->j;
    struct work *w = s->m->prefill;
    const struct weights *m = s->m->w;
    size_t vocab = (size_t)m->config.vocab, hidden = (size_t)m->config.hidden;
    int most = w->rows < HEAD_ROWS ? w->rows : HEAD_ROWS, rc = 0;
    s->m->cpu->cancel = j->cancel;
    for (int i = 0; i < n && !rc; i += most) {
        int k = n - i < most ? n - i : most;
        *w->bad = -1;
        memcpy(w->x, x + (size_t)i * hidden, (size_t)k * hidden * sizeof *x);
        if ((rc = block_head(s->m->cpu, m, w, 0, k, s->logits, NULL))) return op_error(rc, &s->error);
        for (int t = 0; t < k && !rc; t++) {
            const float *logits = s->logits + (size_t)t * vocab;
            rc = check_logits(m, w, logits, &s->error);
            if (!rc && j->all && j->all(j->all_ctx, j->pos + row + i + t, logits)) rc = error_set(&s->error, ERR_CANCELLED, "stopped");
            if (!rc && j->last && row + i + t == j->n - 1) memcpy(j->last, logits, vocab * sizeof *logits);
        }
    }
    return rc;
}

static int run(struct machine *m, const struct prefill_job *j, int ranks, struct error *e) {
    struct slp s = {.m = m, .j = j};
    struct pipe_stats stats = {0};
    if (!(s.logits = mem_alloc((size_t)HEAD_ROWS * (size_t)m->w->config.vocab * sizeof *s.logits)))
        return error_set(e, ERR_MEMORY, "no memory for logits");
    struct pipe_job job = {.w = m->w,
                           .set = m->gpus,
                           .ranks = ranks,
                           .k = j->kv->k,
                           .v = j->kv->v,
                           .pos = j->pos,
                           .n = j->n,
                           .embed = embed,
                           .result = result,
                           .first = j->all ? 0 : j->n - 1,
                           .ctx = &s,
                           .cancel = j->cancel,
                           .progress = j->progress,
                           .progress_ctx = j->progress_ctx,
                           .trace = m->trace};
    int rc = pipe_prefill(&job, &stats, e);
    if (rc && s.error.code) *e = s.error;
    atomic_fetch_add(&m->bytes_read, stats.h2d);
    mem_free(s.logits);
    return rc;
}
static int slp(struct machine *m, const struct prefill_job *j, struct error *e) { return run(m, j, 1, e); }
static int dslp(struct machine *m, const struct prefill_job *j, struct error *e) { return run(m, j, m->gpus->n, e); }

const struct mode mode_slp = {.name = "slp", .prefill = slp}, mode_dslp = {.name = "dslp", .prefill = dslp};
