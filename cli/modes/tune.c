/* One text, written by the model without drafts, with each placement of experts in turn: what stays (whole layers, or
 * pinned experts, as --expert-cache auto expects), a pool that moves, and a pool that sends. The speed is that of the
 * last two thirds of the text. Placements whose results do not depend on what was used before come first and stay
 * first unless another one is faster by MIN_GAIN. */
#include "cli/modes/tune.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/turn/engine_client_local.h"
#include "cli/turn/gpus.h"

enum { TOKENS = 192, LEAST_TOKENS = 6 };
static const double MIN_GAIN = 1.03;
static const char TEXT[] =
    "Write a long letter to a friend who has just moved to the coast. Describe a walk through the harbour in the "
    "morning, what the fishermen sell, how the weather changes in autumn, and which books to read on rainy days. Then "
    "explain step by step how to bake bread without a machine, and end with a small program in Python that counts the "
    "words of a text file.\n\nDear friend,\n";

struct placement {
    char choice[32];   /* as --expert-cache */
    char size[64];     /* what the devices held */
    double rate, hits; /* tokens per second; share of the choices that were on a device, or needed no upload */
    bool holds_all;    /* all routed experts are on devices */
};

/* --- One placement ---------------------------------------------------------------------------- */

/* Runs the turn; *rate: tokens per second after the first third. */
static int run_turn(struct engine *engine, struct session *s, const struct request *q, struct placement *p,
                    struct error *e) {
    struct event ev;
    double begin = 0;
    int rc = session_submit(s, q, e), n = 0;
    while (!rc) {
        if (sig_interrupted() || sig_terminated()) session_cancel(s);
        if (!engine_poll(engine, &ev, 200)) continue;
        if (ev.kind == EVENT_TOKEN) {
            if (++n == q->max_tokens / 3) begin = clock_now();
            if (n == q->max_tokens) p->rate = (n - n / 3) / (clock_now() - begin);
            progress_update("measuring", (double)n / q->max_tokens, -1);
        } else if (ev.kind == EVENT_ERROR) {
            *e = ev.error;
            return e->code;
        } else if (ev.kind == EVENT_DONE) {
            const struct expert_stats *x = &ev.stats.experts;
            if (ev.reason == DONE_CANCELLED) return error_set(e, ERR_CANCELLED, "stopped");
            p->hits = x->chosen ? (double)x->hits / (double)x->chosen : 0;
            return 0;
        }
    }
    return rc;
}

/* Says what the devices hold, and by which value of --expert-cache. */
static int describe(struct engine *engine, const char *asked, struct placement *p, struct error *e) {
    struct expert_map m;
    int rc = engine_expert_map(engine, &m, e), layers = 0, resident = 0, cached = 0, pinned = 0;
    uint64_t bytes = 0;
    char text[32];
    if (rc) return rc;
    for (int i = 0; i < m.n_devices; i++) {
        const struct expert_device *d = &m.device[i];
        layers += d->layers, resident += d->resident_layers, cached += d->cached, pinned += d->pinned;
        bytes += d->resident_bytes + d->cached_bytes + d->pinned_bytes;
    }
    p->holds_all = layers && resident == layers;
    snprintf(p->choice, sizeof p->choice, "%s",
             strcmp(asked, "auto") ? asked
             : resident            ? "layers"
             : pinned              ? "pinned"
                                   : "off");
    amount_bytes(bytes, text, sizeof text);
    if (resident) snprintf(p->size, sizeof p->size, "all experts of %d of %d layers, %s", resident, layers, text);
    else snprintf(p->size, sizeof p->size, "%d experts, %s", cached + pinned, text);
    if (strcmp(asked, "auto") != 0 && !cached) p->rate = 0; /* not even one of every layer fits */
    engine_expert_map_free(&m);
    return 0;
}

static int measure(const struct app *a, struct engine_params *params, const char *asked, struct placement *p,
                   uint64_t *fingerprint, struct error *e) {
    const struct opt_value *n = &a->opts.v[OPT_MAX_TOKENS];
    struct engine *engine = NULL;
    struct session *s = NULL;
    struct ids ids = {0};
    *p = (struct placement){0};
    params->expert_cache = asked;
    int rc = tokenizer_encode(a->tokenizer, TEXT, sizeof TEXT - 1, TEXT_VALUE, &ids, e);
    if (!rc) rc = engine_open(&engine, params, e);
    struct request q = {.tokens = ids.data,
                        .n = (int)ids.n,
                        .max_tokens = n->text ? (int)n->integer : TOKENS,
                        .flags = REQ_IGNORE_EOS | REQ_NO_DISK_CACHE | REQ_NO_PREFIX_REUSE,
                        .sampling = {.temperature = 0.7f, .top_p = 0.95f, .repeat_penalty = 1, .seed = 1}};
    if (!rc && !engine_info(engine)->n_experts)
        rc = error_set(e, ERR_USAGE, "--tune: %s has no routed experts, whose place could be chosen",
                       engine_info(engine)->name);
    if (!rc && q.max_tokens < LEAST_TOKENS)
        rc = error_set(e, ERR_USAGE, "--tune: a text of %d tokens is too short to measure; leave out -n", q.max_tokens);
    if (!rc) rc = session_open(engine, &s, e);
    if (!rc) rc = run_turn(engine, s, &q, p, e);
    if (!rc) rc = describe(engine, asked, p, e);
    if (!rc) *fingerprint = engine_info(engine)->fingerprint;
    session_close(&s);
    engine_close(&engine);
    ids_free(&ids);
    progress_clear();
    return rc;
}

/* --- The verdict ------------------------------------------------------------------------------ */

static void put_row(struct buf *out, const struct placement *p, bool json, bool is_first) {
    char rate[32];
    if (json) {
        buf_fmt(out, "%s{\"expert_cache\":\"%s\",\"tokens_per_s\":%.3f,\"hits\":%.3f,\"holds\":\"%s\"}",
                is_first ? "" : ",", p->choice, p->rate, p->hits, p->size);
        return;
    }
    buf_fmt(out, "%-8s %8s tokens/s", p->choice, amount_rate(p->rate, rate, sizeof rate));
    if (p->hits > 0) buf_fmt(out, ", %.0f%% of the choices on a device", 100 * p->hits);
    buf_fmt(out, "; %s\n", p->size);
}

static const struct placement *fastest(const struct placement *p, int n) {
    const struct placement *best = p;
    for (int i = 1; i < n; i++)
        if (p[i].rate > best->rate * MIN_GAIN) best = &p[i];
    return best;
}

static int store(const struct engine_params *params, uint64_t fingerprint, const struct placement *p, int n,
                 struct error *e) {
    const struct placement *best = fastest(p, n);
    char rate[32];
    struct buf why = {0};
    buf_fmt(&why, "%s tokens/s measured", amount_rate(best->rate, rate, sizeof rate));
    for (int i = 0; i < n; i++)
        if (&p[i] != best && p[i].rate > 0)
            buf_fmt(&why, ", %s %s", amount_rate(p[i].rate, rate, sizeof rate), p[i].choice);
    int rc = why.failed ? error_set(e, ERR_MEMORY, "no memory")
                        : engine_store_tuned(params, fingerprint, best->choice, why.data, e);
    buf_free(&why);
    if (!rc)
        report_note("stored: this model uses --expert-cache %s with these GPUs from now on, until another value is "
                    "given; --explain says so",
                    best->choice);
    return rc;
}

int tune_run(struct app *a, struct error *e) {
    static const char *const asked[] = {"auto", "sent", "moving"};
    enum { PLACEMENTS = sizeof asked / sizeof *asked };
    const bool json = a->opts.v[OPT_JSON].on;
    struct placement p[PLACEMENTS];
    struct engine_params params;
    char machine_dir[PATHS_MAX], tuned_dir[PATHS_MAX], usage_dir[PATHS_MAX], machine[MACHINE_LINE];
    uint64_t fingerprint = 0;
    struct buf out = {0};
    int n = 0, rc = open_find_model(a, e);
    if (rc) return rc;
    engine_client_local_params(a, &params);
    if (!params.gpus) params.gpus = gpus_by_default(a);
    if (!params.gpus || !strcmp(params.gpus, "none"))
        return error_set(e, ERR_USAGE, "--tune: no GPU is used, so there is no place of experts to choose%s",
                         a->has_unused_gpus ? " (one is there of a kind that no hearth has run on: --check-gpus)" : "");
    gpus_set_tuned(&params, tuned_dir, machine, sizeof machine);
    struct engine_params run = params; /* does not follow what was measured before */
    run.tuned_dir = NULL, run.draft = DRAFT_NONE;
    if (!paths_make(PATHS_CACHE, "machine", machine_dir, sizeof machine_dir, &(struct error){0}))
        *strrchr(machine_dir, '/') = 0, run.calibration_dir = machine_dir;
    if (!paths_make(PATHS_CACHE, "usage", usage_dir, sizeof usage_dir, &(struct error){0})) run.usage_dir = usage_dir;
    if ((rc = engine_client_local_tokenizer(a, e))) return rc;
    if (json) buf_str(&out, "{\"measured\":[");
    for (int i = 0; i < PLACEMENTS && !rc && !(n && p[0].holds_all); i++) {
        progress_begin("opening the model");
        rc = measure(a, &run, asked[i], &p[n], &fingerprint, e);
        if (!rc && p[n].rate > 0) put_row(&out, &p[n], json, !n), n++;
    }
    if (json) buf_str(&out, "],\"chosen\":");
    if (json && n > 1 && !rc) buf_fmt(&out, "\"%s\"}\n", fastest(p, n)->choice);
    else if (json) buf_str(&out, "null}\n");
    if (out.failed && !rc) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) out_write(out.data, out.len);
    buf_free(&out);
    if (rc) return rc;
    if (n > 1) return store(&params, fingerprint, p, n, e);
    report_note("nothing to choose: %s", p[0].holds_all ? "all routed experts are on devices" : "no experts fit there");
    return 0;
}
