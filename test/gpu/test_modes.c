/* Every execution mode on the CUDA backend, or on its emulation, gives the CPU's tokens: a few sessions at once, two
 * turns each. In the emulation, under the rules by which a driver blocks its callers, no mode hangs. usage: test_modes
 * GPUS DIR MODE[@STREAM[:CARD],...]...    DIR: ember: or a checkpoint; MODE: a name of the table below, or all STREAM:
 * in the emulation, each command of streams with these names runs late, so that what does not wait for them comes
 * first; host: the host after each wait for a timeline */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/test_env.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"

int cuda_emulate_faults(char *text, size_t size) __attribute__((weak)); /* NULL: this is a card */

/* LONG: where two batches alternate, the first session's answer, which outlasts the other's prompt and answer on any
 * machine */
enum { SESSIONS = 4, PROMPT = 7, TURNS = 2, ANSWER = 6, LONG = 18, ATTEMPTS = 4, PATIENCE_MS = 120000 };

struct mode {
    const char *name, *gpus, *expert_cache; /* gpus: options added to GPUS; expert_cache NULL: off */
    enum exec_mode prefill, decode;
    int n;         /* sessions at once */
    bool measures; /* placement follows measurements: routers look ahead */
};
static const struct mode modes[] = {
    {"slp", ",ring=2,chunk=7", NULL, PREFILL_SLP, DECODE_CPU, 1},
    {"dslp", ",nopeer,chunk=7", NULL, PREFILL_DSLP, DECODE_CPU, 1},
    {"dslp-peer", ",ring=3", NULL, PREFILL_DSLP, DECODE_CPU, 1},
    /* as many slots as the memory holds: the ring orders little */
    {"dslp-wide", "", NULL, PREFILL_DSLP, DECODE_CPU, 1},
    {"blend", "", NULL, PREFILL_BLEND, DECODE_CPU, 1},
    {"hybrid", "", NULL, PREFILL_CPU, DECODE_HYBRID, 2},
    {"pool", "", "1", PREFILL_CPU, DECODE_HYBRID, 2, .measures = true},
    {"pinned", "", "pinned:2", PREFILL_CPU, DECODE_HYBRID, 2},
    {"sent", "", "sent:2", PREFILL_CPU, DECODE_HYBRID, 2},
    {"tensor", ",parallel=tensor", NULL, PREFILL_CPU, DECODE_HYBRID, 2},
    {"dual", "", NULL, PREFILL_CPU, DECODE_DUAL, 2},
    {"dual-pool", "", "1", PREFILL_BLEND, DECODE_DUAL, 2, .measures = true},
    {"dual-pinned", "", "pinned:1", PREFILL_BLEND, DECODE_DUAL, 2},
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
    int32_t token[SESSIONS][TURNS * LONG];
    int n[SESSIONS];
    bool fell_back, decoded; /* a prompt was not read in the mode; some answer was decoded in the mode */
};
static void note_modes(struct result *r, const struct mode *m, const struct event *ev) {
    static const char *const names[] = {
        [PREFILL_CPU] = "cpu", [PREFILL_SLP] = "slp",      [PREFILL_DSLP] = "dslp", [PREFILL_BLEND] = "blend",
        [DECODE_CPU] = "cpu",  [DECODE_HYBRID] = "hybrid", [DECODE_DUAL] = "dual",  [DECODE_PAGED] = "paged"};
    if (m->prefill != MODE_AUTO && strcmp(ev->stats.prefill_mode, names[m->prefill])) {
        r->fell_back = true;
        printf("a prompt was read by %s: %s\n", ev->stats.prefill_mode, ev->stats.prefill_why);
    }
    /* the last of two sessions may end in another mode */
    r->decoded |= !strcmp(ev->stats.decode_mode, names[m->decode]);
}
/* first: tokens of the first session's answer */
static void run_turn(struct engine *eng, struct session *const *s, const struct mode *m, int first, int turn,
                     struct result *r) {
    const int n = m->n;
    struct error e = {0};
    struct event ev;
    for (int i = 0; i < n; i++) {
        int32_t tokens[TURNS * (PROMPT + LONG)];
        const int32_t *had;
        const int have = session_tokens(s[i], &had);
        memcpy(tokens, had, (size_t)have * sizeof *had);
        for (int k = 0; k < PROMPT; k++)
            tokens[have + k] =
                ((have + k) * 37 + 11 + 5 * i + turn) % (engine_info(eng)->vocab < 500 ? engine_info(eng)->vocab : 500);
        if (session_submit(
                s[i],
                &(struct request){
                    .tokens = tokens, .n = have + PROMPT, .max_tokens = i ? ANSWER : first, .flags = REQ_IGNORE_EOS},
                &e))
            die("submit", e.text);
    }
    for (int left = n; left;) {
        if (!engine_poll(eng, &ev, PATIENCE_MS)) die("hangs", "no event for two minutes");
        if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
        for (int i = 0; i < n; i++)
            if (ev.kind == EVENT_TOKEN && ev.session == s[i]) r->token[i][r->n[i]++] = ev.token;
        if (ev.kind != EVENT_DONE) continue;
        note_modes(r, m, &ev);
        left--;
    }
}
/* gpus NULL: on the CPU. */
static void run(const char *dir, const char *gpus, const struct mode *asked, struct result *r) {
    struct mode on_cpu = *asked;
    on_cpu.prefill = PREFILL_CPU, on_cpu.decode = DECODE_CPU;
    const struct mode *m = gpus ? asked : &on_cpu;
    struct engine *eng;
    struct session *s[SESSIONS];
    struct error e = {0};
    const struct engine_params p = {.dir = dir,
                                    .threads = 1,
                                    .cpu_level = 1,
                                    .kv = DT_F32,
                                    .gpus = gpus,
                                    .prefill = m->prefill,
                                    .decode = m->decode,
                                    .expert_cache = m->expert_cache ? m->expert_cache : "off",
                                    .context = 128,
                                    .deterministic = !m->measures};
    *r = (struct result){0};
    if (engine_open(&eng, &p, &e)) die(gpus ? gpus : "CPU", e.text);
    for (int i = 0; i < m->n; i++)
        if (session_open(eng, &s[i], &e)) die("session", e.text);
    for (int t = 0; t < TURNS; t++) run_turn(eng, s, m, asked->decode == DECODE_DUAL ? LONG : ANSWER, t, r);
    for (int i = 0; i < m->n; i++) session_close(&s[i]);
    engine_close(&eng);
}

/* One mode on one model; late: names of streams, or "". */
static void check(const char *dir, const char *base, const struct mode *m, const char *late) {
    static struct result want, got;
    char gpus[160];
    snprintf(gpus, sizeof gpus, "%s%s", base, m->gpus);
    bool same = true, ran = false;
    run(dir, NULL, m, &want);
    setenv("CUDA_EMULATE_LATE", late, 1);
    for (int i = 0; i < ATTEMPTS && same && !ran; i++) { /* batches alternate only while two sessions decode */
        run(dir, gpus, m, &got);
        same = !memcmp(want.token, got.token, sizeof want.token), ran = got.decoded && !got.fell_back;
    }
    char fault[200] = "";
    const int faults = cuda_emulate_faults ? cuda_emulate_faults(fault, sizeof fault) : 0;
    if (!same || !ran || faults) failures++, printf("FAIL ");
    printf("%s, %s%s%s: %s%s%s%s\n", dir, m->name, *late ? ", late: " : "", late,
           same ? "the CPU's tokens" : "other tokens", ran ? "" : ", in another mode", faults ? "; a fault: " : "",
           fault);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 4) die("usage", "test_modes GPUS DIR MODE...");
    if (test_env_read()) die("HEARTH_LIMITS", "invalid");
    log_set(silent, NULL, LOG_WARN);
    file_embed(ember_files);
    for (int i = 3; i < argc; i++) {
        bool any = false;
        char *late = strchr(argv[i], '@');
        if (late) *late++ = 0;
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++)
            if (!strcmp(argv[i], "all") || !strcmp(argv[i], modes[k].name))
                check(argv[2], argv[1], &modes[k], late ? late : ""), any = true;
        if (!any) die("no such mode", argv[i]);
    }
    return failures != 0;
}
