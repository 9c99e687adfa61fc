/* Runs random schedules: requests of several sessions are submitted, cancelled and answered in one batch, their
 * sessions forked and closed midway, cached prefixes reused, devices lost. Each answer must equal the one that the same
 * request gets alone. Driven by test_schedules.py. usage: schedules MODEL_DIR REQUESTS SEED [cpu=LEVEL] [gpus=LIST]
 * [prefill=MODE] [decode=MODE] [split=POLICY] [draft=N] cpu: of the processor and the devices, a batch-invariant level,
 * scalar (default) or avx2. prefill: default slp or dslp. decode: default cpu; with a device decoding, a session's
 * cache may be on it or not, depending on room, and a turn that loses its device midway continues with the CPU's
 * numbers. split: with
 * --deterministic. draft: N tokens are drafted each time, some of them correctly. HEARTH_LIMITS as for the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/ops.h"
#include "base/test_env.h"
#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"
#include "engine/placement/policy.h"

enum { KINDS = 24, FAMILIES = 5, SHARED = 14, MOST = 48, ANSWER = 10, SESSIONS = 20 };

static const char *dir;
static uint64_t state;
static uint32_t rnd(uint32_t n) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint32_t)((state * 2685821657736338717ull) >> 33) % n;
}

/* The possible requests: prompts of one family share their start; prompts of two families differ in the first token. */
static struct kind {
    int32_t tokens[MOST], answer[2][ANSWER]; /* answers of the CPU and of devices */
    int n, max;
    float temperature;
} kinds[KINDS];

static struct request request_of(const struct kind *k) {
    return (struct request){
        .tokens = k->tokens,
        .n = k->n,
        .max_tokens = k->max,
        .flags = REQ_IGNORE_EOS,
        .sampling = {.temperature = k->temperature, .top_p = 0.95f, .seed = (uint64_t)(k - kinds) + 7}};
}
static void die(const char *what, const char *why) {
    printf("FAIL %s: %s\n", what, why);
    exit(1);
}
static enum exec_mode decode_mode;
static const char *split;
static int guesses;
/* Float32, because where devices and the CPU both read parts of a prompt they differ in the last bit, and BF16 would
 * turn that into another answer. */
static enum dtype kv = DT_BF16;
/* Drafts what the request with these tokens was answered alone; at every third position something else. */
static int guess(void *ctx, const int32_t *tokens, int n, int most, int32_t *out) {
    for (int k = 0; k < KINDS; k++) {
        const struct kind *q = &kinds[k];
        if (n <= q->n || n - q->n >= q->max || memcmp(tokens, q->tokens, (size_t)q->n * sizeof *tokens)) continue;
        if (memcmp(tokens + q->n, q->answer[0], (size_t)(n - q->n) * sizeof *tokens)) continue;
        int i = 0;
        for (; i < most && n - q->n + i < q->max; i++)
            out[i] = (n + i) % 3 ? q->answer[0][n - q->n + i] : tokens[i % n];
        return i;
    }
    return 0;
}

static enum cpu_level isa = CPU_SCALAR;
static struct engine *open_engine(const char *gpus, enum exec_mode mode) {
    struct engine *eng;
    struct error e = {0};
    if (engine_open(&eng,
                    &(struct engine_params){.dir = dir,
                                            .threads = 2,
                                            .cpu_level = (int)isa + 1,
                                            .gpus = gpus,
                                            .prefill = mode,
                                            .decode = gpus ? decode_mode : DECODE_CPU,
                                            .context = 128,
                                            .kv = kv,
                                            .split = split,
                                            .draft = guesses ? DRAFT_LOOKUP : DRAFT_NONE,
                                            .custom_draft = guesses ? guess : NULL,
                                            .max_drafted = guesses,
                                            .deterministic = split != NULL},
                    &e))
        die("open", e.text);
    return eng;
}
static struct event next(struct engine *eng) {
    struct event ev;
    if (!engine_poll(eng, &ev, 120000)) die("poll", "nothing for two minutes");
    if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
    return ev;
}

/* Runs each request alone, in a session of its own. */
static void answers_alone(const char *gpus, enum exec_mode mode, int which) {
    struct engine *eng = open_engine(gpus, mode);
    int vocab = engine_info(eng)->vocab;
    for (int k = 0; k < KINDS; k++) {
        struct kind *q = &kinds[k];
        int family = k % FAMILIES;
        q->n = 2 + k * 7 % (MOST - 2), q->max = 1 + k * 5 % ANSWER, q->temperature = k % 3 ? 1 : 0;
        for (int i = 0; i < q->n; i++)
            q->tokens[i] = (i < SHARED ? family * 31 + i * 37 + 5 : k * 41 + i * 29 + 3) % (vocab - 10) + 2;
        struct session *s;
        struct error e = {0};
        struct request r = request_of(q);
        if (session_open(eng, &s, &e) || session_submit(s, &r, &e)) die("alone", e.text);
        struct event ev;
        for (int n = 0; (ev = next(eng)).kind != EVENT_DONE;)
            if (ev.kind == EVENT_TOKEN) q->answer[which][n++] = ev.token;
        session_close(&s);
    }
    engine_close(&eng);
}

static struct slot {
    struct session *s;
    const struct kind *kind;
    int32_t got[ANSWER];
    int n, cut; /* family at which it was cancelled: what the cache holds of it depends on timing; -1: none */
    bool running, cancelled;
} slots[SESSIONS];
static int wholes, cancelled, closed, forked, reused, fell, on_devices, accepted;

static bool begins(const struct slot *t, int which) {
    return !memcmp(t->got, t->kind->answer[which], (size_t)t->n * sizeof *t->got);
}

static void take(struct engine *eng, const struct event *ev) {
    for (int i = 0; i < SESSIONS; i++) {
        struct slot *t = &slots[i];
        if (!t->running || t->s != ev->session) continue;
        if (ev->kind == EVENT_TOKEN) t->got[t->n++] = ev->token;
        if (ev->kind != EVENT_DONE) return;
        if (!begins(t, 0) && !begins(t, 1)) {
            printf("kind %d, %s, %s:", (int)(t->kind - kinds), ev->stats.prefill_why,
                   t->cancelled ? "cancelled" : "whole");
            for (int k = 0; k < t->n; k++) printf(" %d(%d)", t->got[k], t->kind->answer[0][k]);
            die("", "another answer in company");
        }
        if (ev->reason != DONE_CANCELLED && t->n != t->kind->max) die("a turn", "ended early");
        if (ev->reason == DONE_CANCELLED && !t->cancelled) die("a turn", "was cancelled by nobody");
        if (session_busy(t->s)) die("a turn", "is over, but its session busy");
        wholes += ev->reason != DONE_CANCELLED, cancelled += ev->reason == DONE_CANCELLED;
        reused += ev->stats.cached_tokens > 0;
        accepted += ev->stats.accepted;
        on_devices += strcmp(ev->stats.decode_mode, "cpu") != 0;
        fell += strstr(ev->stats.prefill_why, " failed: ") != NULL;
        t->running = false;
        return;
    }
    die("an event", "of a session that is gone");
}

/* Returns whether a session whose cache holds `last` may get request k. A prompt of more than BATCH_INVARIANT_ROWS
 * tokens uses other kernels than the remainder after a cached prefix. So last bits may differ, and with BF16 answers
 * too; and which session holds which prefix depends on timing. With float32 the differences are too small to matter. */
static bool may_follow(const struct slot *t, const struct kind *k) {
    int family = (int)(k - kinds) % FAMILIES;
    if (family == t->cut) return false;
    return kv == DT_F32 || !t->kind || (int)(t->kind - kinds) % FAMILIES != family ||
           (t->kind->n <= BATCH_INVARIANT_ROWS && k->n <= BATCH_INVARIANT_ROWS);
}

static void close_one(struct slot *t) {
    closed += t->running;
    session_close(&t->s);
    t->running = false, t->cut = -1;
}

/* Another session forks this one, once its turn is over. */
static void fork_one(struct engine *eng, struct slot *from) {
    struct error e = {0};
    struct slot *to = &slots[rnd(SESSIONS)];
    if (!from->s || !from->kind || to == from) return;
    while (from->running) {
        struct event ev = next(eng);
        take(eng, &ev);
    }
    if (to->s) close_one(to);
    if (session_open(eng, &to->s, &e) || session_fork(from->s, to->s, &e)) die("fork", e.text);
    to->kind = from->kind, to->cut = from->cut;
    forked++;
}

static void one_request(struct engine *eng) {
    struct slot *t;
    struct event ev;
    struct error e = {0};
    for (;;) {
        t = &slots[rnd(SESSIONS)];
        if (!t->running) break;
        if (rnd(3) == 0) ev = next(eng), take(eng, &ev);
    }
    if (!t->s) {
        if (session_open(eng, &t->s, &e)) die("open", e.text);
        t->kind = NULL;
    }
    const struct kind *k;
    bool again = t->kind && may_follow(t, t->kind) && rnd(2); /* something with the same start */
    do k = &kinds[rnd(KINDS)];
    while (!may_follow(t, k) || (again && (k - t->kind) % FAMILIES));
    t->kind = k;
    struct request r = request_of(t->kind);
    if (session_submit(t->s, &r, &e)) die("submit", e.text);
    t->n = 0, t->cut = -1, t->running = true, t->cancelled = false;
    for (uint32_t n = rnd(8); n > 0 && engine_poll(eng, &ev, 1); n--) {
        if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
        take(eng, &ev);
    }
    t = &slots[rnd(SESSIONS)];
    switch (rnd(12)) {
    case 0:
        if (!t->running) break;
        session_cancel(t->s);
        t->cancelled = true, t->cut = (int)(t->kind - kinds) % FAMILIES;
        break;
    case 1:
        if (t->s) close_one(t);
        break;
    case 2: usleep(rnd(5000)); break;
    case 3: fork_one(eng, t); break;
    default: break;
    }
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

static const char *value_of(const char *arg, const char *name) {
    return strncmp(arg, name, strlen(name)) ? NULL : arg + strlen(name);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    file_embed(ember_files);
    log_set(quiet, NULL, LOG_WARN);
    dir = argv[1];
    const char *gpus = NULL, *prefill = NULL, *value;
    for (int i = 4; i < argc; i++) {
        if ((value = value_of(argv[i], "gpus="))) gpus = value;
        else if ((value = value_of(argv[i], "cpu="))) isa = strcmp(value, "avx2") ? CPU_SCALAR : CPU_AVX2;
        else if ((value = value_of(argv[i], "prefill="))) prefill = value;
        else if ((value = value_of(argv[i], "decode="))) decode_mode = exec_mode_find(STAGE_DECODE, value);
        else if ((value = value_of(argv[i], "split="))) split = value;
        else if ((value = value_of(argv[i], "draft="))) guesses = atoi(value);
        else return 2;
    }
    const int guessed = guesses;
    if (test_env_read()) return 2;
    if (gpus) kv = DT_F32;
    int requests = atoi(argv[2]);
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252ull;
    enum exec_mode mode = !gpus ? PREFILL_CPU : gpus[4] == '1' ? PREFILL_SLP : PREFILL_DSLP;
    if (prefill) mode = exec_mode_find(STAGE_PREFILL, prefill);
    guesses = 0;
    answers_alone(NULL, PREFILL_CPU, 0);
    char healthy[32];
    snprintf(healthy, sizeof healthy, "emu:%c,cpu=%s", gpus ? gpus[4] : '0', cpu_level_name(isa));
    answers_alone(gpus ? healthy : NULL, mode, 1);
    guesses = guessed;
    for (int i = 0; i < SESSIONS; i++) slots[i].cut = -1;
    struct engine *eng = open_engine(gpus, mode);
    double begin = clock_now();
    for (int i = 0; i < requests; i++) one_request(eng);
    for (int i = 0; i < SESSIONS; i++)
        while (slots[i].running && i % 7) { /* closing the engine cuts off the rest */
            struct event ev = next(eng);
            take(eng, &ev);
        }
    engine_close(&eng);
    printf("%s: %d requests in %.1f s: %d whole, %d cancelled, %d closed, %d forked, %d with a prefix in the cache, %d "
           "fell back, %d on devices at their end, "
           "%d guesses right\n",
           gpus ? gpus : "processor", requests, clock_now() - begin, wholes, cancelled, closed, forked, reused, fell,
           on_devices, accepted);
    if (decode_mode > DECODE_CPU && !on_devices && requests >= 100) die("devices", "never took part");
    if (guesses && !accepted) die("guesses", "were never right");
    if (wholes <= requests / 4) die("turns", "too few came to their end");
    if (requests >= 100 && !(cancelled && closed && reused && forked))
        die("turns", "not every kind of schedule took part");
    return 0;
}
