/* One prompt and its answer on the CPU, then on the devices in every prefill mode: the logits of some positions, and
 * the log probabilities of the answer. */
#include "cli/modes/check_gpus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/test_limits.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/turn/engine_client_local.h"
#include "cli/turn/gpus.h"

enum { PROMPT = 200, EVERY = 40, ANSWER = 24 };
/* The largest difference of logits, in millionths of the largest logit. Products in BF16 make up to 20,000
 * (test/gpu/meson.build), wrong kernels about a million. */
enum { MOST_PPM = 60000 };

struct result {
    float *logits; /* [PROMPT / EVERY, vocab] of every EVERYth position */
    int vocab, n;  /* n: tokens of the answer */
    int32_t id[ANSWER];
    struct token_logprobs logprobs[ANSWER];
    struct turn_stats prefill, decode;
};

static size_t n_logits(const struct result *r) { return (size_t)(PROMPT / EVERY) * (size_t)r->vocab; }

static int keep_logits(void *ctx, int position, const float *logits) {
    struct result *r = ctx;
    if ((position + 1) % EVERY == 0)
        memcpy(r->logits + (size_t)(position / EVERY) * (size_t)r->vocab, logits, (size_t)r->vocab * sizeof *logits);
    return 0;
}

/* Runs one turn and takes its answer. */
static int run_turn(struct engine *engine, struct session *s, const struct request *request, struct result *r,
                    struct turn_stats *stats, struct error *e) {
    struct event ev;
    int rc = session_submit(s, request, e);
    while (!rc) {
        if (sig_interrupted() || sig_terminated()) session_cancel(s);
        if (!engine_poll(engine, &ev, 200)) continue;
        if (ev.kind == EVENT_TOKEN && r->n < ANSWER) {
            r->id[r->n] = ev.token;
            r->logprobs[r->n++] = ev.logprobs;
        } else if (ev.kind == EVENT_ERROR) {
            *e = ev.error;
            return e->code;
        } else if (ev.kind == EVENT_DONE) {
            *stats = ev.stats;
            return ev.reason == DONE_CANCELLED ? error_set(e, ERR_CANCELLED, "stopped") : 0;
        }
    }
    return rc;
}

/* Opens the engine and computes one result. The caller frees r->logits. */
static int compute(const struct engine_params *p, struct result *r, struct error *e) {
    struct engine *engine = NULL;
    struct session *s = NULL;
    int32_t ids[PROMPT];
    int rc = engine_open(&engine, p, e);
    if (rc) return rc;
    r->vocab = engine_info(engine)->vocab;
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((unsigned)(i + 1) * 7919u % (unsigned)r->vocab);
    r->logits = mem_calloc(n_logits(r), sizeof *r->logits);
    if (!r->logits) rc = error_set(e, ERR_MEMORY, "no memory");
    struct request request = {.tokens = ids,
                              .n = PROMPT,
                              .flags = REQ_IGNORE_EOS | REQ_NO_DISK_CACHE,
                              .logits = keep_logits,
                              .logits_ctx = r};
    request.sampling = (struct sampling){.top_p = 1, .repeat_penalty = 1};
    if (!rc) rc = session_open(engine, &s, e);
    if (!rc) rc = run_turn(engine, s, &request, r, &r->prefill, e);
    request.logits = NULL;
    request.max_tokens = ANSWER;
    request.wants_logprobs = true;
    request.n_top_logprobs = MAX_TOP_LOGPROBS;
    if (!rc) rc = run_turn(engine, s, &request, r, &r->decode, e);
    session_close(&s);
    engine_close(&engine);
    return rc;
}

static double largest(const struct result *r) {
    double x = 0;
    for (size_t i = 0; i < n_logits(r); i++) x = fmax(x, fabs((double)r->logits[i]));
    return x;
}

/* Returns the largest difference of logits; infinity if some are not finite. */
static double compare_logits(const struct result *cpu, const struct result *r) {
    double most = 0;
    for (size_t i = 0; i < n_logits(r); i++) {
        const double d = fabs((double)cpu->logits[i] - (double)r->logits[i]);
        if (!isfinite(d) && cpu->logits[i] != r->logits[i]) return INFINITY;
        most = isfinite(d) ? fmax(most, d) : most;
    }
    return most;
}

static double logprob_of(const struct token_logprobs *t, int32_t id) {
    for (int i = 0; i < t->n_top; i++)
        if (t->top[i].id == id) return t->top[i].logprob;
    return -INFINITY;
}

/* Returns the largest difference of the log probabilities of the answer's tokens. Stops at the first token that
 * differs, since the texts differ after it. */
static double compare_answers(const struct result *cpu, const struct result *r, int *n_equal) {
    double most = 0;
    for (*n_equal = 0; *n_equal < ANSWER; ++*n_equal) {
        const int i = *n_equal;
        if (i >= cpu->n || i >= r->n) return INFINITY;
        const double d = fabs(logprob_of(&cpu->logprobs[i], r->id[i]) - (double)r->logprobs[i].logprob);
        most = fmax(most, isnan(d) ? INFINITY : d);
        if (cpu->id[i] != r->id[i])
            return fmax(most, cpu->logprobs[i].logprob - logprob_of(&cpu->logprobs[i], r->id[i]));
    }
    return most;
}

struct verdict {
    int n_prompts, n_answers, n_wrong, n_failed; /* compared; with other results; modes that failed on the devices */
};

static void print_comparison(const char *what, const char *mode, double difference, const char *more,
                             struct verdict *v) {
    struct buf b = {0};
    const bool right = difference <= 1e-6 * (double)test_limits_get(TEST_LIMIT_DIFFERENCE_PPM, MOST_PPM);
    v->n_wrong += !right;
    buf_fmt(&b, "%-7s %-6s  %s: differs by %.1e of the largest logit%s\n", what, mode, right ? "right" : "WRONG",
            difference, more);
    if (!b.failed) out_write(b.data, b.len);
    buf_free(&b);
}

/* Computes on the devices in one prefill mode and compares the results. Only ERR_CANCELLED ends the check. */
static int check_mode(struct engine_params *p, enum exec_mode prefill, const struct result *cpu, struct verdict *v,
                      struct error *e) {
    const char *mode = exec_mode_name(prefill), *hybrid = exec_mode_name(DECODE_HYBRID);
    struct result r = {0};
    char more[64];
    int n_equal;
    p->prefill = prefill;
    const int rc = compute(p, &r, e);
    if (rc == ERR_USAGE) { /* needs more devices */
    } else if (rc && rc != ERR_CANCELLED) {
        v->n_failed += rc != ERR_MEMORY;
        report_note("prefill %s did not run: %s", mode, e->text);
    } else if (!rc && strcmp(r.prefill.prefill_mode, mode) != 0) {
        v->n_failed += strstr(r.prefill.prefill_why, " failed: ") != NULL;
        report_note("prefill %s did not run: %s", mode, r.prefill.prefill_why);
    } else if (!rc) {
        const double scale = largest(cpu);
        v->n_prompts++;
        print_comparison("prefill", mode, compare_logits(cpu, &r) / scale, "", v);
        if (r.decode.decode_mode && !strcmp(r.decode.decode_mode, hybrid)) {
            const double difference = compare_answers(cpu, &r, &n_equal) / scale;
            v->n_answers++;
            snprintf(more, sizeof more, ", %d of %d tokens are the same", n_equal, ANSWER);
            print_comparison("decode", hybrid, difference, more, v);
        } else {
            report_note("decode %s did not run: %s", hybrid, r.decode.decode_why);
        }
    }
    mem_free(r.logits);
    return rc == ERR_CANCELLED ? rc : 0;
}

int check_gpus_run(struct app *a, struct error *e) {
    static const enum exec_mode modes[] = {PREFILL_BLEND, PREFILL_SLP, PREFILL_DSLP};
    struct engine_gpus found;
    struct engine_params p;
    struct result cpu = {0};
    struct verdict v = {0};
    int rc = open_find_model(a, e);
    if (rc) return rc;
    engine_find_gpus(&found);
    engine_client_local_params(a, &p);
    const char *gpus = p.gpus ? p.gpus : found.list;
    if (!*gpus || !strcmp(gpus, "none"))
        return error_set(e, ERR_USAGE, "--check-gpus: there is no GPU that hearth can use (%s)", found.text);
    p.draft = DRAFT_NONE;
    p.deterministic = true;
    p.decode = DECODE_CPU;
    p.prefill = PREFILL_CPU;
    p.gpus = NULL;
    progress_begin("computing on the CPU");
    rc = compute(&p, &cpu, e);
    progress_clear();
    /* a prompt in FP8 differs by more than an error in a kernel would */
    char list[512];
    const bool adds = strncmp(gpus, "emu", 3) != 0 && !strstr(gpus, "math=") && strlen(gpus) + 16 < sizeof list;
    snprintf(list, sizeof list, "%s,math=bf16", gpus);
    p.gpus = adds ? list : gpus;
    p.decode = DECODE_HYBRID;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && !rc; i++) rc = check_mode(&p, modes[i], &cpu, &v, e);
    mem_free(cpu.logits);
    if (rc) return rc;
    const bool wrong = v.n_wrong || v.n_failed;
    if (wrong)
        rc = error_set(e, ERR_RUNTIME,
                       "the devices %s do not compute what the CPU does: do not use them with this version of hearth",
                       gpus);
    else if (!v.n_prompts || !v.n_answers)
        rc =
            error_set(e, ERR_RUNTIME, "--check-gpus: no prompt or no answer could be computed on the devices %s", gpus);
    if ((rc && !wrong) || !gpus_are_automatic(a)) return rc;
    struct error unsaved;
    if (gpus_store_check(found.text, !rc, &unsaved)) report_note("the result is not stored: %s", unsaved.text);
    else if (!rc) report_note("these GPUs are used from now on; --gpus none leaves them out");
    return rc;
}
