/* Perplexity as llama.cpp measures it (tools/perplexity), so that figures compare: the text is cut into windows without
 * overlap, each begins with the model's first token (BOS) if it has one, and the second half of a window counts. With
 * --kl both models read a window one after the other, and the divergence is that of the model from the reference; or a
 * file has the reference's logits of the windows. */
#include "cli/modes/perplexity.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/open.h"
#include "cli/options/model_path.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/turn/engine_client_local.h"
#include "cli/turn/input.h"
#include "engine/engine.h"

enum { WINDOW = 512 }; /* tokens, as in published figures */

/* mean of n values, and its standard error */
struct mean {
    double sum, squares;
    size_t n;
};
static void mean_add(struct mean *m, double v) { m->sum += v, m->squares += v * v, m->n++; }
static double mean_of(const struct mean *m) { return m->sum / (double)m->n; }
static double mean_error(const struct mean *m) {
    const double mean = mean_of(m), variance = m->squares / (double)m->n - mean * mean;
    return m->n > 1 && variance > 0 ? sqrt(variance / (double)(m->n - 1)) : 0;
}

struct measured {
    char dir[PATHS_MAX], name[304];
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct session *session;
    struct mean loss; /* nats per token */
};

struct perplexity {
    struct app *app;
    struct measured model, reference; /* reference.engine NULL: none, or `rows` has its logits */
    FILE *rows;                       /* --kl of a file: float32 [windows][window][vocab] */
    struct ids ids;                   /* the text */
    int window, vocab;                /* tokens of a window; ids that all models have */
    const int32_t *tokens;            /* of the current window, as in the text */
    struct measured *reading;
    float *kept; /* [window - window / 2][vocab] logits of the reference; NULL: none */
    struct mean divergence, same_top;
    bool is_broken; /* logits are not finite */
};

static int first_scored(const struct perplexity *p) { return p->window / 2; }

/* Returns the logarithm of the sum of exponentials; *top: the largest. */
static double log_sum(const float *logits, int n, int *top) {
    double sum = 0;
    *top = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[*top]) *top = i;
    const double largest = (double)logits[*top];
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

/* next: the token that follows. */
static void compare(struct perplexity *p, const float *logits, double sum, int top, const float *reference, int next) {
    int reference_top;
    const double reference_sum = log_sum(reference, p->vocab, &reference_top);
    double divergence = 0;
    for (int i = 0; i < p->vocab; i++) {
        const double log_p = (double)reference[i] - reference_sum;
        if (log_p > -700) divergence += exp(log_p) * (log_p - ((double)logits[i] - sum));
    }
    mean_add(&p->divergence, divergence);
    mean_add(&p->same_top, top == reference_top);
    if (p->rows) mean_add(&p->reference.loss, reference_sum - (double)reference[next]);
}

/* Scores the token after this position. Engine thread. */
static int take_logits(void *ctx, int position, const float *logits) {
    struct perplexity *p = ctx;
    int top;
    if (position < first_scored(p) || position + 1 >= p->window) return 0;
    const double sum = log_sum(logits, p->vocab, &top);
    p->is_broken |= !isfinite(sum);
    mean_add(&p->reading->loss, sum - (double)logits[p->tokens[position + 1]]);
    float *kept = p->kept ? p->kept + (size_t)(position - first_scored(p)) * (size_t)p->vocab : NULL;
    if (p->reading == &p->reference) memcpy(kept, logits, (size_t)p->vocab * sizeof *kept);
    else if (kept) compare(p, logits, sum, top, kept, p->tokens[position + 1]);
    return p->is_broken;
}

/* Reads a window with one model. */
static int read_window(struct perplexity *p, struct measured *m, const int32_t *tokens, int32_t *copy,
                       struct error *e) {
    const int32_t bos = tokenizer_bos(m->tokenizer);
    struct event ev;
    memcpy(copy, tokens, (size_t)p->window * sizeof *copy);
    if (bos >= 0) copy[0] = bos;
    p->tokens = tokens;
    p->reading = m;
    const struct request r = {.tokens = copy,
                              .n = p->window,
                              .flags = REQ_NO_PREFIX_REUSE | REQ_NO_DISK_CACHE,
                              .logits = take_logits,
                              .logits_ctx = p};
    int rc = session_submit(m->session, &r, e);
    while (!rc) {
        if (!engine_poll(m->engine, &ev, -1)) continue;
        if (ev.kind == EVENT_DONE) break;
        if (ev.kind != EVENT_ERROR) continue;
        *e = ev.error;
        rc = e->code;
    }
    if (p->is_broken)
        rc = error_set(e, ERR_MODEL, "%s: logits are not finite; --verify looks for damaged weights", m->name);
    return rc;
}

static int read_text(struct perplexity *p, struct error *e) {
    const char *path = p->app->opts.v[OPT_PERPLEXITY].text;
    struct buf raw = {0}, text = {0};
    struct ids other = {0};
    int rc = input_file(path, &raw, e);
    if (!rc) rc = input_clean_text(path, &raw, &text, e);
    const char *s = text.data ? text.data : "";
    if (!rc) rc = tokenizer_encode(p->model.tokenizer, s, text.len, TEXT_VALUE, &p->ids, e);
    if (!rc && p->reference.tokenizer)
        rc = tokenizer_encode(p->reference.tokenizer, s, text.len, TEXT_VALUE, &other, e);
    if (!rc && p->reference.tokenizer &&
        (other.n != p->ids.n || memcmp(other.data, p->ids.data, other.n * sizeof *other.data)))
        rc = error_set(e, ERR_USAGE,
                       "--kl %s: its tokenizer gives other tokens than that of %s; only models with the "
                       "same vocabulary can be compared",
                       p->reference.name, p->model.name);
    const struct opt_value *context = &p->app->opts.v[OPT_CONTEXT];
    p->window = context->origin == ORIGIN_FLAG ? (int)context->integer : WINDOW;
    if ((size_t)p->window > p->ids.n && context->origin != ORIGIN_FLAG) p->window = (int)p->ids.n;
    char count[32];
    if (!rc && (p->ids.n < (size_t)p->window || p->window < 4))
        rc = error_set(e, ERR_USAGE, "%s: %s, fewer than a window of %d (-c)", path,
                       amount_count((long long)p->ids.n, "token", count, sizeof count), p->window < 4 ? 4 : p->window);
    ids_free(&other);
    buf_free(&raw);
    buf_free(&text);
    return rc;
}

/* Opens the tokenizer of the model that a->model_dir names. */
static int find_model(struct app *a, struct measured *m, struct error *e) {
    int rc = open_find_model(a, e);
    if (rc) return rc;
    memcpy(m->dir, a->model_dir, sizeof m->dir);
    memcpy(m->name, a->model_name, sizeof m->name);
    rc = tokenizer_open(&m->tokenizer, m->dir, e);
    return rc == ERR_RUNTIME ? (e->code = ERR_MODEL) : rc;
}

static int find_reference(struct app *a, struct measured *m, struct error *e) {
    const struct opt_value was = a->opts.v[OPT_MODEL];
    int rc = opt_set(&a->opts, OPT_MODEL, a->opts.v[OPT_KL].text, ORIGIN_FLAG, "--kl", e);
    if (!rc && (rc = find_model(a, m, e))) error_prefix(e, "--kl");
    a->opts.v[OPT_MODEL] = was;
    return rc;
}

/* Whether --kl names a file of logits: any that is no GGUF file. */
static bool is_logits_file(const char *path) {
    char magic[4] = "";
    struct stat st;
    FILE *file = stat(path, &st) || !S_ISREG(st.st_mode) ? NULL : fopen(path, "rb");
    const bool is_raw = file && (fread(magic, 1, 4, file) != 4 || memcmp(magic, "GGUF", 4) != 0);
    if (file) fclose(file);
    return is_raw;
}
static int open_rows(struct perplexity *p, size_t n_windows, struct error *e) {
    const char *path = p->app->opts.v[OPT_KL].text;
    const size_t want = n_windows * (size_t)p->window * (size_t)p->vocab * sizeof(float);
    struct stat st;
    snprintf(p->reference.name, sizeof p->reference.name, "%s", path);
    if (!(p->rows = fopen(path, "rb")) || fstat(fileno(p->rows), &st))
        return error_set(e, ERR_RUNTIME, "--kl %s: %s", path, strerror(errno));
    if ((size_t)st.st_size == want) return 0;
    return error_set(
        e, ERR_USAGE,
        "--kl %s: %lld bytes; float32 logits of %zu window%s of %d tokens and %d of vocabulary are %zu, as "
        "--tokens --logits-out writes them, window after window",
        path, (long long)st.st_size, n_windows, n_windows == 1 ? "" : "s", p->window, p->vocab, want);
}
static int read_rows(struct perplexity *p, size_t window, struct error *e) {
    const size_t row = (size_t)p->vocab * sizeof(float), n = (size_t)(p->window - first_scored(p));
    const off_t at = (off_t)((window * (size_t)p->window + (size_t)first_scored(p)) * row);
    if (!fseeko(p->rows, at, SEEK_SET) && fread(p->kept, row, n, p->rows) == n) return 0;
    return error_set(e, ERR_RUNTIME, "--kl %s: it could not be read", p->reference.name);
}

static int open_measured(struct perplexity *p, struct measured *m, struct error *e) {
    struct engine_params params;
    engine_client_local_params(p->app, &params);
    params.dir = m->dir;
    params.name = m->name;
    params.context = p->window;
    params.draft = DRAFT_NONE;
    progress_begin("opening");
    int rc = engine_open(&m->engine, &params, e);
    progress_clear();
    if (!rc) rc = session_open(m->engine, &m->session, e);
    if (!rc && (!p->vocab || engine_info(m->engine)->vocab < p->vocab)) p->vocab = engine_info(m->engine)->vocab;
    for (size_t i = 0; i < p->ids.n && !rc; i++)
        if (p->ids.data[i] >= p->vocab)
            rc = error_set(e, ERR_MODEL, "%s: its tokenizer has token %d, its weights have %d", m->name, p->ids.data[i],
                           p->vocab);
    return rc;
}

static void close_measured(struct measured *m) {
    session_close(&m->session);
    engine_close(&m->engine);
    tokenizer_close(&m->tokenizer);
}

static void print_result(const struct perplexity *p, size_t n_windows) {
    const struct mean *loss = &p->model.loss, *other = &p->reference.loss;
    const double value = exp(mean_of(loss)), error = value * mean_error(loss);
    struct buf b = {0};
    if (p->app->opts.v[OPT_JSON].on) {
        buf_str(&b, "{\"model\": ");
        out_json_string(&b, p->model.name, strlen(p->model.name));
        buf_fmt(&b,
                ", \"perplexity\": %.9g, \"error\": %.9g, \"tokens\": %zu, \"scored\": %zu, \"windows\": %zu, "
                "\"window\": %d",
                value, error, p->ids.n, loss->n, n_windows, p->window);
        if (p->kept) {
            buf_str(&b, ", \"reference\": {\"model\": ");
            out_json_string(&b, p->reference.name, strlen(p->reference.name));
            buf_fmt(&b,
                    ", \"perplexity\": %.9g, \"error\": %.9g}, \"kl\": %.9g, \"kl_error\": %.9g, \"same_top\": %.9g, "
                    "\"same_top_error\": %.9g",
                    exp(mean_of(other)), exp(mean_of(other)) * mean_error(other), mean_of(&p->divergence),
                    mean_error(&p->divergence), mean_of(&p->same_top), mean_error(&p->same_top));
        }
        buf_str(&b, "}\n");
    } else {
        buf_fmt(&b, "%s: perplexity %.4f +- %.4f (%zu of %zu tokens, %zu window%s of %d)\n", p->model.name, value,
                error, loss->n, p->ids.n, n_windows, n_windows == 1 ? "" : "s", p->window);
        if (p->kept)
            buf_fmt(&b,
                    "%s: perplexity %.4f +- %.4f\nKL divergence %.6f +- %.6f nats; the same most likely token at %.2f "
                    "+- %.2f %% of the positions\n",
                    p->reference.name, exp(mean_of(other)), exp(mean_of(other)) * mean_error(other),
                    mean_of(&p->divergence), mean_error(&p->divergence), 100 * mean_of(&p->same_top),
                    100 * mean_error(&p->same_top));
    }
    out_write(b.data ? b.data : "", b.len);
    buf_free(&b);
}

int perplexity_run(struct app *a, struct error *e) {
    struct perplexity p = {.app = a};
    int32_t *copy = NULL;
    const bool compares = a->opts.v[OPT_KL].text != NULL,
               from_rows = compares && is_logits_file(a->opts.v[OPT_KL].text);
    int rc = find_model(a, &p.model, e);
    if (!rc && compares && !from_rows) rc = find_reference(a, &p.reference, e);
    if (!rc) rc = read_text(&p, e);
    if (!rc) rc = open_measured(&p, &p.model, e);
    if (!rc && compares && !from_rows) rc = open_measured(&p, &p.reference, e);
    if (!rc && from_rows) rc = open_rows(&p, p.ids.n / (size_t)p.window, e);
    if (rc) goto out;
    const size_t n_windows = p.ids.n / (size_t)p.window,
                 kept = (size_t)(p.window - first_scored(&p)) * (size_t)p.vocab * sizeof *p.kept;
    copy = mem_alloc((size_t)p.window * sizeof *copy);
    if (compares) p.kept = mem_alloc(kept);
    if (!copy || (compares && !p.kept))
        rc = error_set(e, ERR_MEMORY, "no memory for %zu MB of logits; a smaller window needs less (-c)", kept >> 20);
    progress_begin("reading");
    for (size_t i = 0; i < n_windows && !rc; i++) {
        const int32_t *tokens = p.ids.data + i * (size_t)p.window;
        if (from_rows) rc = read_rows(&p, i, e);
        else if (compares) rc = read_window(&p, &p.reference, tokens, copy, e);
        if (!rc) rc = read_window(&p, &p.model, tokens, copy, e);
        progress_update("reading", (double)(i + 1) / (double)n_windows, -1);
    }
    progress_clear();
    if (!rc) print_result(&p, n_windows);
    if (!rc) rc = out_check(e);
out:
    if (p.rows) fclose(p.rows);
    mem_free(copy);
    mem_free(p.kept);
    close_measured(&p.model);
    close_measured(&p.reference);
    ids_free(&p.ids);
    return rc;
}
