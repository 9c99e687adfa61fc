/* Every execution mode on the CUDA backend, or on its emulation, gives the CPU's tokens: a few sessions at once, two turns each. In the
 * emulation, under the rules by which a driver blocks its callers, no mode hangs.
 * usage: test_modes GPUS DIR MODE...    DIR: ember: or a checkpoint; MODE: a name of the table below, or all */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"

enum { SESSIONS = 4, PROMPT = 7, TURNS = 2, ANSWER = 6, PATIENCE_MS = 120000 };

struct mode {
    const char *name, *gpus, *expert_cache; /* gpus: options added to GPUS; expert_cache NULL: off */
    enum exec_mode prefill, decode;
    int n; /* sessions at once */
};
static const struct mode modes[] = {
    {"slp", ",ring=2,chunk=7", NULL, PREFILL_SLP, DECODE_CPU, 1},
    {"dslp", ",nopeer,chunk=7", NULL, PREFILL_DSLP, DECODE_CPU, 1},
    {"dslp-peer", ",ring=3", NULL, PREFILL_DSLP, DECODE_CPU, 1},
    {"blend", "", NULL, PREFILL_BLEND, DECODE_CPU, 1},
    {"hybrid", "", NULL, PREFILL_CPU, DECODE_HYBRID, 2},
    {"pool", "", "1", PREFILL_CPU, DECODE_HYBRID, 2},
    {"dual", "", NULL, PREFILL_CPU, DECODE_DUAL, 2},
    {"dual-pool", "", "1", PREFILL_BLEND, DECODE_DUAL, 2},
    {"slp-hybrid", "", "1", PREFILL_SLP, DECODE_HYBRID, 2},
    {"paged", "", NULL, MODE_AUTO, DECODE_PAGED, 4},
};

static int failures;
static void die(const char *what, const char *why) {
    printf("FAIL %s: %s\n", what, why);
    fflush(stdout);
    _Exit(1); /* what hangs cannot be closed */
}
static void silent(void *ctx, enum log_level level, const char *text) {}

struct result {
    int32_t token[SESSIONS][TURNS * ANSWER];
    int n[SESSIONS];
    bool ran; /* some turn ran in the modes */
};
static bool is_as_asked(const struct mode *m, const struct event *ev) {
    static const char *const names[] = {[PREFILL_CPU] = "cpu", [PREFILL_SLP] = "slp",      [PREFILL_DSLP] = "dslp", [PREFILL_BLEND] = "blend",
                                        [DECODE_CPU] = "cpu",  [DECODE_HYBRID] = "hybrid", [DECODE_DUAL] = "dual",  [DECODE_PAGED] = "paged"};
    return (m->prefill == MODE_AUTO || !strcmp(ev->stats.prefill_mode, names[m->prefill])) && !strcmp(ev->stats.decode_mode, names[m->decode]);
}
static void run_turn(struct engine *e, struct session *const *s, const struct mode *m, int turn, struct result *r) {
    const int n = m->n;
    struct error err = {0};
    struct event ev;
    for (int i = 0; i < n; i++) {
        int32_t tokens[TURNS * (PROMPT + ANSWER)];
        const int32_t *had;
        const int have = session_tokens(s[i], &had);
        memcpy(tokens, had, (size_t)have * sizeof *had);
        for (int k = 0; k < PROMPT; k++) tokens[have + k] = ((have + k) * 37 + 11 + 5 * i + turn) % (engine_info(e)->vocab < 500 ? engine_info(e)->vocab : 500);
        if (session_submit(s[i], &(struct request){.tokens = tokens, .n = have + PROMPT, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS}, &err))
            die("submit", err.text);
    }
    for (int left = n; left;) {
        if (!engine_poll(e, &ev, PATIENCE_MS)) die("hangs", "no event for two minutes");
        if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
        for (int i = 0; i < n; i++)
            if (ev.kind == EVENT_TOKEN && ev.session == s[i]) r->token[i][r->n[i]++] = ev.token;
        if (ev.kind != EVENT_DONE) continue;
        r->ran |= is_as_asked(m, &ev); /* the last of two sessions may end in another mode */
        left--;
    }
}
static void run(const char *dir, const char *gpus, const struct mode *m, struct result *r) {
    struct engine *e;
    struct session *s[SESSIONS];
    struct error err = {0};
    const struct engine_params p = {.dir = dir,
                                    .threads = 1,
                                    .cpu_level = 1,
                                    .kv = DT_F32,
                                    .gpus = gpus,
                                    .prefill = gpus ? m->prefill : PREFILL_CPU,
                                    .decode = gpus ? m->decode : DECODE_CPU,
                                    .expert_cache = m->expert_cache ? m->expert_cache : "off",
                                    .context = 128,
                                    .deterministic = true};
    *r = (struct result){0};
    if (engine_open(&e, &p, &err)) die(gpus ? gpus : "CPU", err.text);
    for (int i = 0; i < m->n; i++)
        if (session_open(e, &s[i], &err)) die("session", err.text);
    for (int t = 0; t < TURNS; t++) run_turn(e, s, m, t, r);
    for (int i = 0; i < m->n; i++) session_close(&s[i]);
    engine_close(&e);
}

/* One mode on one model. */
static void check(const char *dir, const char *base, const struct mode *m) {
    static struct result want, got;
    char gpus[160];
    snprintf(gpus, sizeof gpus, "%s%s", base, m->gpus);
    run(dir, NULL, m, &want);
    run(dir, gpus, m, &got);
    const bool same = !memcmp(want.token, got.token, sizeof want.token);
    if (!same || !got.ran) failures++;
    printf("%s%s, %s: %s%s\n", same && got.ran ? "" : "FAIL ", dir, m->name, same ? "the CPU's tokens" : "other tokens", got.ran ? "" : ", in another mode");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage", "test_modes GPUS DIR MODE...");
    log_set(silent, NULL, LOG_WARN);
    file_embed(ember_files);
    for (int i = 3; i < argc; i++) {
        bool any = false;
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++)
            if (!strcmp(argv[i], "all") || !strcmp(argv[i], modes[k].name)) check(argv[2], argv[1], &modes[k]), any = true;
        if (!any) die("no such mode", argv[i]);
    }
    return failures != 0;
}
