/* Shared by all prefill modes and decode: errors of operations, non-finite numbers, the LM head on the CPU, and the
 * progress of a job. */
#include <math.h>
#include <string.h>

#include "engine/exec/prefill.h"
#include "engine/placement/cost.h"
#include "engine/transfer/gpu_set.h"
#include "engine/transfer/trace.h"

int exec_op_error(int rc, struct error *e) {
    if (rc == ERR_MEMORY)
        return error_set(e, rc, "no memory for the workspace of a layer; a smaller context needs less (--context)");
    if (rc == ERR_CANCELLED) return error_set(e, rc, "stopped");
    return error_set(e, rc, "an operation failed");
}

int exec_check_finite(int first_bad, struct error *e) {
    const char *hint = "the weights may be damaged; verify them (--verify)";
    if (first_bad < 0) return 0;
    if (first_bad == 0) return error_set(e, ERR_MODEL, "the embedding produced a non-finite number; %s", hint);
    return error_set(e, ERR_MODEL, "the %s of layer %d produced a non-finite number; %s",
                     first_bad % 2 ? "attention" : "feed-forward", (first_bad - 1) / 2, hint);
}

int exec_check_logits(const float *logits, int vocab, struct error *e) {
    for (int i = 0; i < vocab; i++)
        if (!isfinite(logits[i]))
            return error_set(e, ERR_MODEL,
                             "the LM head produced a non-finite logit (token %d); the weights may be damaged; verify "
                             "them (--verify)",
                             i);
    return 0;
}

int exec_check_before(const struct config *c, int pos, int n_before, struct error *e) {
    if (n_before >= config_lookback_at(c, pos)) return 0;
    return error_set(e, ERR_RUNTIME, "a text from position %d on without the tokens before it, on which n-grams depend",
                     pos);
}

int prefill_embed(struct runtime *m, const struct prefill_job *j, float *x, int at, int n) {
    const struct text_rows text = prefill_text(j, at, n);
    const size_t hidden = (size_t)m->w->config.hidden;
    for (int i = 0, end; i < n; i = end + (end == i)) { /* runs of text: rows of images have no embedding */
        for (end = i; end < n && text.ids[end] >= 0; end++) {
        }
        if (end > i) TRY(block_embed(m->cpu, m->w, x + (size_t)i * hidden, text.ids + i, end - i));
    }
    TRY(block_embed_ngrams(m->cpu, m->w, m->prefill_work, x, &text, 1));
    image_rows_put(&j->images, m->w->config.hidden, j->pos + at, n, 0, x);
    return 0;
}

/* Logits [n, vocab] of rows [row, row + n) of the workspace. */
static int run_head(struct runtime *m, int row, int n, float *logits, struct error *e) {
    struct work *w = m->prefill_work;
    double t = trace_now(m->trace);
    int rc = block_head(m->cpu, numa_copy_head(m->numa_copy, m->w), w, row, n, logits, NULL);
    trace_cpu(m->trace, t, "head", -1, -1);
    if (rc) return exec_op_error(rc, e);
    return m->cpu_queue ? 0 : exec_check_finite(*w->first_bad, e);
}
/* Passes the logits of a job's token `at` on. */
static int report_logits(const struct runtime *m, struct prefill_job *j, int at, const float *logits, struct error *e) {
    const int vocab = m->w->config.vocab;
    TRY(exec_check_logits(logits, vocab, e));
    if (j->on_logits && j->on_logits(j->on_logits_ctx, j->pos + at, logits))
        return error_set(e, ERR_CANCELLED, "stopped");
    j->n_reported = at + 1;
    if (j->n_reported == j->n) memcpy(j->last_logits, logits, (size_t)vocab * sizeof *logits);
    return 0;
}

int prefill_head(struct runtime *m, struct prefill_job *j, const float *x, int row, int at, int n, float *logits,
                 struct error *e) {
    struct work *w = m->prefill_work;
    m->cpu->cancel = j->cancel;
    if (x) {
        *w->first_bad = -1;
        memcpy(w->x, x, (size_t)n * (size_t)m->w->config.hidden * sizeof *x);
    }
    TRY(run_head(m, row, n, logits, e));
    for (int i = 0; i < n && !m->cpu_queue; i++)
        TRY(report_logits(m, j, at + i, logits + (size_t)i * (size_t)m->w->config.vocab, e));
    return 0;
}
int prefill_head_of_last(struct runtime *m, struct prefill_job *const *jobs, int n, float *logits, struct error *e) {
    m->cpu->cancel = NULL;
    TRY(run_head(m, 0, n, logits, e));
    for (int i = 0; i < n && !m->cpu_queue; i++)
        TRY(report_logits(m, jobs[i], jobs[i]->n - 1, logits + (size_t)i * (size_t)m->w->config.vocab, e));
    return 0;
}

int prefill_batch_end(int rows, int cut, int pos) {
    int end = (pos / rows + 1) * rows;
    return cut > pos && cut < end ? cut : end;
}

/* Only in the last batch: earlier batches must depend on their tokens alone, and their ends are kept anyway. */
int prefill_mark_row(const struct prefill_job *j, int at, int n) {
    int mark = kv_state_mark(j->pos, j->n) - at;
    return mark > 0 && at + n == j->n ? mark : 0;
}

void prefill_complete(struct prefill_job *j, int at, int n, const struct kv_state_step *state_step) {
    j->n_complete = at + n;
    kv_state_commit(j->kv, state_step, j->pos + at, n);
    if (j->n_complete < j->n) kv_state_keep(j->kv, j->pos + j->n_complete);
}

void prefill_count_experts(struct runtime *m, const uint32_t *rows) {
    const struct config *c = &m->w->config;
    for (int l = 0; l < c->n_layers; l++)
        for (int x = 0; x < c->n_experts; x++) usage_profile_add(m->usage, l, x, rows[l * c->n_experts + x]);
}

bool prefill_is_fp8(const struct runtime *m, const struct prefill_job *j) {
    return m->gpus && m->gpus->reads_in_fp8 && !j->on_logits;
}
void prefill_observe_upload(struct runtime *m, int rank, double bytes, double seconds) {
    struct cost_domain *d = &m->cost->domain[1 + rank];
    if (seconds > 0)
        cost_observe(m->cost, &d->observed_link[COST_H2D], 1, cost_transfer(m->cost, 1 + rank, COST_H2D, bytes),
                     seconds);
}
