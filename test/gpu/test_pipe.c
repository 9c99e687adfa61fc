/* Stream-loading prefill inside the engine: a cached prefix, cancels, and faults of every kind at every point. After
 * each the engine must survive and give the CPU's answer. usage: test_pipe MODEL_DIR [sample|every [KIND] | cuda]
 * (every: each N; KIND: only alloc, copy, launch or die; cuda: the CUDA backend on cards 0 and 1, without the
 * faults) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu/cpu.h"
#include "engine/engine.h"
#include "test/env.h"

enum { PROMPT = 24, FEW = 2, ANSWER = 4 }; /* with FEW tokens only the experts that they chose are uploaded */
static const char *dir, *cpu;              /* level of CPU and emulated devices: float32, and the fastest available */
static int failures;
static double patience = 60;
static int32_t prompt[4 * PROMPT];

#define CHECK(ok, ...) \
    do { \
        if (!(ok)) { \
            printf("FAIL %s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__); \
            printf("\n"), failures++; \
        } \
    } while (0)

static struct engine *open_engine_as(const char *gpus, enum exec_mode mode, enum exec_mode decode) {
    struct engine_params p = {.dir = dir,
                              .threads = 1,
                              .cpu_level = strcmp(cpu, "avx2") ? CPU_SCALAR + 1 : CPU_AVX2 + 1,
                              .kv = DT_F32,
                              .gpus = gpus,
                              .prefill = mode,
                              .decode = decode,
                              .context = 128};
    struct engine *eng = NULL;
    struct error e = {0};
    if (engine_open(&eng, &p, &e)) {
        printf("open %s: %s\n", gpus ? gpus : "-", e.text);
        exit(1);
    }
    return eng;
}

static struct engine *open_engine(const char *gpus, enum exec_mode mode) {
    return open_engine_as(gpus, mode, MODE_AUTO);
}

struct turn {
    int32_t answer[ANSWER];
    int n;
    struct event end;
    double cancelled_after;
};
/* Runs one turn to its end; cancel_s >= 0 cancels after that many seconds. */
static void turn(struct engine *eng, struct session *s, int n, double cancel_s, struct turn *t) {
    struct error e = {0};
    double begin = clock_now(), cancelled = 0;
    *t = (struct turn){0};
    if (session_submit(s, &(struct request){.tokens = prompt, .n = n, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS},
                       &e)) {
        CHECK(false, "submit: %s", e.text);
        return;
    }
    for (struct event ev;;) {
        if (cancel_s >= 0 && !cancelled && clock_now() - begin >= cancel_s) session_cancel(s), cancelled = clock_now();
        if (!engine_poll(eng, &ev, 5)) {
            if (clock_now() - begin > patience) {
                printf("FAIL a turn hangs\n");
                abort();
            }
            continue;
        }
        if (ev.kind == EVENT_TOKEN && t->n < ANSWER) t->answer[t->n++] = ev.token;
        if (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR) continue;
        t->end = ev;
        t->cancelled_after = cancelled ? clock_now() - cancelled : 0;
        return;
    }
}
static bool same(const struct turn *a, const struct turn *b) {
    return a->n == b->n && !memcmp(a->answer, b->answer, sizeof a->answer);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

struct setup {
    const char *gpus, *rank;
    int prompt;
};
/* Returns whether failing the Nth call of a kind disturbs a turn. */
static bool disturbs(const char *kind, int n, const struct setup *p, const struct turn *want) {
    char gpus[160];
    struct turn t;
    struct session *s;
    struct error e = {0};
    snprintf(gpus, sizeof gpus, "%s,cpu=%s,fail=%s:%d%s", p->gpus, cpu, kind, n, p->rank);
    /* Short of memory a prefill evicts what decode keeps on the devices and succeeds; with decode on the CPU nothing is
     * kept. */
    struct engine *eng = open_engine_as(gpus, p->gpus[4] == '1' ? PREFILL_SLP : PREFILL_DSLP,
                                        strcmp(kind, "alloc") ? MODE_AUTO : DECODE_CPU);
    if (session_open(eng, &s, &e)) CHECK(false, "session: %s", e.text);
    turn(eng, s, p->prompt, -1, &t);
    CHECK(t.end.kind == EVENT_DONE, "%s: not the processor's, but %s", gpus, t.end.error.text);
    if (t.end.kind == EVENT_DONE) CHECK(same(&t, want), "%s: another answer (%s)", gpus, t.end.stats.prefill_why);
    bool disturbed = t.end.kind == EVENT_ERROR || !strcmp(t.end.stats.prefill_mode, "cpu");
    session_close(&s);
    if (session_open(eng, &s, &e)) CHECK(false, "session: %s", e.text);
    turn(eng, s, p->prompt, -1, &t);
    CHECK(t.end.kind == EVENT_DONE && same(&t, want), "%s: the next turn: %s", gpus, t.end.error.text);
    session_close(&s);
    engine_close(&eng);
    return disturbed;
}
/* N = 1, 2, ... until the turn is no longer disturbed. */
static void faults(const char *kind, const struct setup *p, bool every, const struct turn *want) {
    enum { LAST = 16 }; /* copies without a consumer, in flight after everything else is done */
    int n = 1, fell_back = 0;
    for (;; n += every ? 1 : 1 + n / 10) {
        const bool disturbed = disturbs(kind, n, p, want);
        fell_back += disturbed;
        /* what decoding takes of a device comes first, and may be missing */
        if ((!disturbed && n > 160) || failures > 10) break;
    }
    if (!every && !strcmp(kind, "copy")) {
        int last = n;
        while (last > n - n / 10 && !disturbs(kind, last - 1, p, want)) last--;
        for (int i = last - LAST; i < last; i++) disturbs(kind, i, p, want);
    }
    printf("%s,fail=%s:N%s, %d tokens: N up to %d, %d turns fell back\n", p->gpus, kind, p->rank, p->prompt, n,
           fell_back);
    fflush(stdout);
    CHECK(fell_back > 3, "%s: nothing was disturbed", kind);
}

int main(int argc, char **argv) {
    if (argc < 2 || access(argv[1], R_OK)) {
        printf("SKIPPED: no model in %s\n", argc > 1 ? argv[1] : "-");
        return 77;
    }
    dir = argv[1];
    cpu = cpu_level_has(CPU_AVX2) ? "avx2" : "scalar";
    bool every = argc > 2 && !strcmp(argv[2], "every"), cuda = argc > 2 && !strcmp(argv[2], "cuda");
    if (cuda) patience = 240; /* emulated kernels are slow */
    log_set(quiet, NULL, LOG_WARN);
    struct session *s;
    struct error e = {0};
    struct turn want, longer, few, got;
    struct engine *eng = open_engine(NULL, PREFILL_CPU);
    for (int i = 0; i < 4 * PROMPT; i++) prompt[i] = (i * 37 + 11) % engine_info(eng)->vocab;
    if (session_open(eng, &s, &e)) return 1;
    turn(eng, s, 3 * PROMPT, -1, &longer);
    session_close(&s);
    if (session_open(eng, &s, &e)) return 1;
    turn(eng, s, PROMPT, -1, &want);
    session_close(&s);
    if (session_open(eng, &s, &e)) return 1;
    turn(eng, s, FEW, -1, &few);
    session_close(&s);
    engine_close(&eng);

    /* the second turn finds the first one's rows in the cache */
    for (int i = 0; i < (cuda ? 4 : 8); i += cuda ? 3 : 1) {
        int ranks = i / 2 + 1;
        char gpus[64];
        snprintf(gpus, sizeof gpus, "emu:%d,cpu=%s,chunk=7%s", ranks, cpu, i % 2 ? ",nopeer" : "");
        if (cuda) snprintf(gpus, sizeof gpus, "%s,math=f32,chunk=7", ranks > 1 ? "0,1,nopeer" : "0");
        eng = open_engine(gpus, ranks > 1 ? PREFILL_DSLP : PREFILL_SLP);
        if (session_open(eng, &s, &e)) return 1;
        turn(eng, s, PROMPT, -1, &got);
        CHECK(got.end.kind == EVENT_DONE && same(&got, &want) && strcmp(got.end.stats.prefill_mode, "cpu"),
              "%s, first turn: %s", gpus, got.end.stats.prefill_why);
        turn(eng, s, 3 * PROMPT, -1, &got);
        CHECK(got.end.kind == EVENT_DONE && same(&got, &longer), "%s, second turn", gpus);
        CHECK(got.end.stats.cached_tokens == PROMPT && strcmp(got.end.stats.prefill_mode, "cpu"), "%s: %d cached, %s",
              gpus, got.end.stats.cached_tokens, got.end.stats.prefill_why);
        session_close(&s);
        engine_close(&eng);
    }

    /* A link so slow that the prompt would take seconds, and the copy that a cancel waits for a tenth of one. */
    eng = open_engine(cuda                  ? "0,1,math=f32"
                      : strcmp(cpu, "avx2") ? "emu:2,cpu=scalar,h2d=0.001"
                                            : "emu:2,cpu=avx2,h2d=0.001",
                      PREFILL_DSLP);
    if (session_open(eng, &s, &e)) return 1;
    const double most = cuda ? 60 : getenv("HEARTH_SLOW") ? 5 : 0.2;
    for (int i = 0; i < 3; i++) {
        double least = 1e9; /* other processes only ever make it longer */
        for (int k = 0; k < 12 && least > most; k++) {
            turn(eng, s, PROMPT, 0.15 * i, &got);
            CHECK(got.end.kind == EVENT_DONE && got.end.reason == DONE_CANCELLED, "cancel: event %d: %s", got.end.kind,
                  got.end.error.text);
            if (got.cancelled_after < least) least = got.cancelled_after;
        }
        CHECK(least < most, "cancel took %.3f s", least);
        printf("cancelled after %.0f ms\n", least * 1e3);
    }
    session_close(&s);
    engine_close(&eng);

    static const char *const kinds[] = {"alloc", "copy", "launch", "die"};
    static const struct setup setups[] = {
        {"emu:1", "", PROMPT}, {"emu:2", "@1", PROMPT}, {"emu:3,nopeer", "@2", PROMPT}, {"emu:2", "@0", FEW}};
    for (int k = 0; k < 4 && !cuda; k++)
        for (int i = 0; i < 4 && (argc < 4 || !strcmp(argv[3], kinds[k])); i++)
            faults(kinds[k], &setups[i], every, i < 3 ? &want : &few);
    printf("%d failed\n", failures);
    return failures != 0;
}
