/* Many prompts in paged decoding: the text of each equals its text alone and the CPU's answer; from the trace, weights
 * are uploaded while the card and the CPU compute, and these two overlap; a device that dies at any point loses
 * nothing, and one that fails once is used again; a cancel ends its turn and no other; all of it also on several
 * devices with alternating layers. usage: test_paged text|overlap|faults|cancel|policy DIR... */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "engine/layer/block.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "engine/session/engine_tasks.h"
#include "engine/session/throughput.h"
#include "engine/transfer/trace.h"
#include "test/env.h"

enum { PROMPTS = 30, LONGEST = 60, ANSWER = 6, VOCAB = 100 };

static int failures;
#define CHECK(c, ...) \
    do { \
        if (!(c)) failures++, printf("FAIL: " __VA_ARGS__), printf("\n"), fflush(stdout); \
    } while (0)
static void die(const char *what, const char *why) {
    printf("FAIL %s: %s\n", what, why);
    exit(1);
}

struct answer {
    int32_t token[ANSWER];
    int n;
    enum done_reason reason;
    const char *mode;
    int at_once;     /* answers that had begun and had not ended at this one's second token */
    uint64_t logits; /* checksum over all positions of the prompt, if requested */
    int positions;
};
static int32_t prompts[PROMPTS][LONGEST];
static int lengths[PROMPTS];

static void make_prompts(void) {
    uint32_t x = 12345;
    for (int i = 0; i < PROMPTS; i++) {
        lengths[i] = 1 + (int)((x = x * 1664525 + 1013904223) >> 8) % LONGEST;
        for (int k = 0; k < lengths[i]; k++) prompts[i][k] = (int32_t)((x = x * 1664525 + 1013904223) >> 8) % VOCAB;
    }
}

static double max_tpot_s; /* 0: no bound */
static struct engine *open_engine(const char *dir, const char *gpus, enum exec_mode decode, int level, enum dtype kv) {
    struct engine *eng;
    struct error e = {0};
    struct engine_params p = {.dir = dir,
                              .threads = 2,
                              .cpu_level = level,
                              .gpus = gpus,
                              .prefill = decode == DECODE_CPU ? PREFILL_CPU : MODE_AUTO,
                              .decode = decode,
                              .context = 128,
                              .kv = kv,
                              .max_tpot_s = max_tpot_s,
                              .trace = "/dev/null"};
    if (engine_open(&eng, &p, &e)) die(dir, e.text);
    return eng;
}

static int vocab;
static bool wants_logits, announces = true;
static int take_logits(void *ctx, int position, const float *logits) {
    struct answer *a = ctx;
    CHECK(position == a->positions, "position %d comes as the %d-th", position, a->positions);
    a->logits = hash64(logits, (size_t)vocab * sizeof *logits, a->logits);
    a->positions++;
    return 0;
}

/* Prompts [first, first + n), greedy or with a seed each. cancel_at > 0: all are cancelled after that many tokens. */
static void run(struct engine *eng, int first, int n, float temperature, int cancel_at, struct answer *out) {
    struct session *s[PROMPTS];
    struct error e = {0};
    struct event ev;
    int tokens = 0, left = n;
    vocab = engine_info(eng)->vocab;
    bool held = announces &&
                engine_announce(eng, &(struct announced_load){
                                         .n_prompts = n, .prompt_tokens = LONGEST / 2, .answer_tokens = ANSWER}) > 0;
    for (int i = 0; i < n; i++) {
        int k = first + i;
        out[k] = (struct answer){0};
        if (session_open(eng, &s[i], &e)) die("session", e.text);
        struct request r = {
            .tokens = prompts[k],
            .n = lengths[k],
            .max_tokens = ANSWER,
            .flags = REQ_IGNORE_EOS,
            .logits = wants_logits ? take_logits : NULL,
            .logits_ctx = &out[k],
            .sampling = {.temperature = temperature, .top_p = 0.95f, .repeat_penalty = 1, .seed = (uint64_t)k + 7}};
        if (session_submit(s[i], &r, &e)) die("submit", e.text);
    }
    if (held) engine_announce(eng, NULL);
    while (left) {
        /* a pass takes minutes on a busy machine; meson's timeout ends a hang */
        if (!engine_poll(eng, &ev, -1)) die("poll", "nothing");
        if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
        int i = 0;
        while (s[i] != ev.session) i++;
        struct answer *a = &out[first + i];
        if (ev.kind == EVENT_TOKEN) {
            a->token[a->n++] = ev.token;
            for (int k = 0; k < n && a->n == 2; k++) a->at_once += out[first + k].n > 1 && !out[first + k].mode;
            if (++tokens == cancel_at)
                for (int k = 0; k < n; k++) session_cancel(s[k]);
        }
        if (ev.kind == EVENT_DONE) a->reason = ev.reason, a->mode = ev.stats.decode_mode, left--;
    }
    for (int i = 0; i < n; i++) session_close(&s[i]);
}

static void same(const char *dir, const char *what, const struct answer *a, const struct answer *b, int n) {
    for (int i = 0; i < n; i++)
        if (a[i].n != b[i].n || memcmp(a[i].token, b[i].token, (size_t)a[i].n * sizeof a[i].token[0])) {
            CHECK(false, "%s: %s: prompt %d of %d tokens: another answer", dir, what, i, lengths[i]);
            return;
        }
}

/* Everything on one device; several devices, with alternating layers, must give the same. */
static void text_on(const char *dir, int devices, const struct answer *processor) {
    static struct answer together[PROMPTS], alone[PROMPTS];
    struct engine *eng = NULL;
    char gpus[64];
    bool paged = false;
    test_limits_set(TEST_LIMIT_PAGED_DEVICES, (size_t)devices);
    /* the minimum that works, so that experts are paged */
    for (int mem = 400; !paged && mem < 64000; mem += mem / 10) {
        snprintf(gpus, sizeof gpus, "emu:%d,cpu=scalar,mem=%dK", devices, mem);
        eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
        run(eng, 0, 1, 0, 0, alone);
        if ((paged = !strcmp(alone[0].mode, "paged"))) run(eng, 0, PROMPTS, 0, 0, together);
        if (paged) { /* a device with one FFN has no use for a page */
            const struct config *c = &eng->weights.config;
            int n_ffns = 0;
            for (int l = 0; l < c->n_layers; l++) n_ffns += !c->layer[l].no_ffn;
            CHECK(throughput_resident_share(eng) < 1 || (!c->n_experts && n_ffns <= devices),
                  "%s: all experts stay on a device with %d KB", dir, mem);
        }
        if (!paged) engine_close(&eng);
    }
    if (!paged) die(dir, "no paged batches with 64 MB");
    CHECK(throughput_devices(eng) == devices, "%s: on %d of %d devices", dir, throughput_devices(eng), devices);
    wants_logits = true; /* one row at a time: each must use the length of its own sequence */
    run(eng, 0, PROMPTS, 0, 0, alone);
    wants_logits = false;
    same(dir, "with all logits", processor, alone, PROMPTS);
    for (int i = 0; i < PROMPTS; i++)
        CHECK(together[i].n == ANSWER && !strcmp(together[i].mode, "paged"), "%s: prompt %d: %d tokens by %s", dir, i,
              together[i].n, together[i].mode);
    same(dir, gpus, processor, together, PROMPTS);
    engine_close(&eng);
    test_limits_set(TEST_LIMIT_PAGED_DEVICES, 0);
}

/* A prompt of which all rows but one are cached begins as others do; its batch holds it among the sessions that decode.
 * The first answer ends past the original length of a model with LongRoPE: the second prompt must not use its keys. Of
 * a model with states the prompts are longer, so that one is kept, from which the second begins. */
static void one_row_left(const char *dir) {
    enum { MOST = 100, KEPT = 64 };
    struct engine *eng = open_engine(dir, "emu:1,mem=64M", DECODE_PAGED, 1, DT_F32);
    struct session *s[2];
    struct error e = {0};
    struct event ev;
    int32_t first[MOST], second[MOST], got[2][ANSWER];
    const struct config *c = &eng->weights.config;
    const bool has_states = kv_state_bytes(c);
    const int n_first = has_states ? MOST : 20, n_second = has_states ? MOST - 6 : 14;
    const int kept = config_long_rope(c, n_first + ANSWER) ? 0 : has_states ? KEPT : n_second - 1;
    for (int i = 0; i < n_first; i++) first[i] = (i * 37 + 5) % VOCAB;
    memcpy(second, first, sizeof second);
    second[n_second - 1] = 1;
    for (int i = 0; i < 3; i++) { /* the long prompt and the short one in one session; the short one alone */
        struct session **at = &s[i == 2];
        if (i != 1 && session_open(eng, at, &e)) die(dir, e.text);
        struct request r = {
            .tokens = i ? second : first, .n = i ? n_second : n_first, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS};
        if (session_submit(*at, &r, &e)) die(dir, e.text);
        for (int n = 0; engine_poll(eng, &ev, -1) && ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR;)
            if (ev.kind == EVENT_TOKEN && i) got[i - 1][n++] = ev.token;
        CHECK(ev.kind == EVENT_DONE && !strcmp(ev.stats.prefill_mode, "paged") &&
                  ev.stats.cached_tokens == (i == 1 ? kept : 0),
              "%s: prompt %d: %s, %d tokens cached", dir, i, ev.stats.prefill_mode, ev.stats.cached_tokens);
    }
    CHECK(!memcmp(got[0], got[1], sizeof got[0]), "%s: another answer after a cached prefix", dir);
    session_close(&s[0]);
    session_close(&s[1]);
    engine_close(&eng);
}

static void text(const char *dir, int at) {
    static struct answer processor[PROMPTS], together[PROMPTS], alone[PROMPTS], several[PROMPTS];
    enum { START_ROWS = 26 }; /* prompts of so many tokens attend on the device, except in every fourth model */
    test_limits_set(TEST_LIMIT_PAGED_START, at % 4 == 3 ? 0 : START_ROWS);
    struct engine *eng = open_engine(dir, "none", DECODE_CPU, 1, DT_F32);
    run(eng, 0, PROMPTS, 0, 0, processor);
    engine_close(&eng);
    text_on(dir, 1 + at % 3, processor);
    one_row_left(dir);
    static const enum dtype kinds[] = {DT_BF16, DT_E4M3};
    for (int k = 0; k < 2; k++) { /* at the best level, sampled, with every cache type: no bit depends on the batch */
        eng = open_engine(dir, "emu:1,mem=64M", DECODE_PAGED, 0, kinds[k]);
        run(eng, 0, PROMPTS, 0.9f, 0, together);
        for (int i = 0; i < PROMPTS; i += 17) run(eng, i, 1, 0.9f, 0, alone);
        for (int i = 0; i < PROMPTS; i += 17) same(dir, "alone", alone + i, together + i, 1);
        wants_logits = true; /* all bits of them */
        run(eng, 0, PROMPTS, 0, 0, together);
        for (int i = 0; i < PROMPTS; i += 7) {
            run(eng, i, 1, 0, 0, alone);
            CHECK(alone[i].positions == lengths[i] && together[i].positions == lengths[i],
                  "%s: logits of %d of %d positions", dir, together[i].positions, lengths[i]);
            CHECK(alone[i].logits == together[i].logits, "%s: prompt %d has other logits in company", dir, i);
        }
        engine_close(&eng);
        if (at % 5 || k) continue;
        eng = open_engine(dir, "emu:3,mem=64M", DECODE_PAGED, 0, kinds[k]); /* nor on the device of a layer */
        run(eng, 0, PROMPTS, 0, 0, several);
        for (int i = 0; i < PROMPTS; i++)
            CHECK(several[i].logits == together[i].logits, "%s: prompt %d has other logits on three devices", dir, i);
        engine_close(&eng);
    }
    wants_logits = false;
    printf("%s: as alone, and as the processor has it\n", dir);
}

static int close_many(void *engine) { /* by then its streams have ended */
    throughput_close(engine);
    return 0;
}

/* A link that takes about as long for a layer's weights as the card does for its rows. Returns false if something
 * waits, or if the machine was busy. */
static bool overlaps(const char *dir, const struct answer *processor) {
    static struct answer a[PROMPTS];
    struct engine *eng = open_engine(dir, "emu:1,cpu=scalar,mem=2300K,h2d=0.01,flops=0.002", DECODE_PAGED, 1, DT_F32);
    run(eng, 0, PROMPTS, 0, 0, a);
    same(dir, "with pages under way", processor, a, PROMPTS);
    engine_run_on_thread(eng, close_many, eng);
    struct trace *t = eng->machine.trace;
    double load = trace_busy(t, 0, LANE_LOAD), card = trace_busy(t, 0, LANE_COMPUTE),
           host = trace_busy(t, TRACE_CPU, LANE_COMPUTE);
    double load_card = trace_overlap(t, 0, LANE_LOAD, 0, LANE_COMPUTE),
           load_host = trace_overlap(t, 0, LANE_LOAD, TRACE_CPU, LANE_COMPUTE),
           both = trace_overlap(t, 0, LANE_COMPUTE, TRACE_CPU, LANE_COMPUTE);
    printf("%s: weights %.3f s, card %.3f s, processor %.3f s; weights beside the card %.3f s, beside the processor "
           "%.3f s; these two at once %.3f s\n",
           dir, load, card, host, load_card, load_host, both);
    CHECK(load > 0 && card > 0 && host > 0, "something did not run");
    engine_close(&eng);
    return load_card > 0.2 * (load < card ? load : card) && load_host > 0.1 * (load < host ? load : host) &&
           both > 0.1 * (card < host ? card : host);
}
static void overlap(const char *dir) {
    static struct answer processor[PROMPTS];
    struct engine *eng = open_engine(dir, "none", DECODE_CPU, 1, DT_F32);
    run(eng, 0, PROMPTS, 0, 0, processor);
    engine_close(&eng);
    enum { TRIES = 16 };
    int tries = 0;
    while (!overlaps(dir, processor) && ++tries < TRIES) {
    }
    CHECK(tries < TRIES,
          "weights do not come while the card and the processor work, or one of these waits for the other");
}

static void silent(void *ctx, enum log_level level, const char *text) {}
/* Clears failures of devices at once, as another task that shares them may. */
static _Atomic bool stops_clearing;
static void *clear_failures(void *arg) {
    const struct gpu_set *set = arg;
    for (; !atomic_load(&stops_clearing); usleep(20))
        for (int i = 0; i < set->n; i++)
            if (gpu_error(set->gpu[i], NULL)) gpu_clear(set->gpu[i], &(struct error){0});
    return NULL;
}
/* warnings with and without the device that failed; that decode drops its devices after paged batches have failed */
static int named, unnamed, dropped;
static bool has_paged_failed;
static void count_warnings(void *ctx, enum log_level level, const char *text) {
    if (level != LOG_WARN) return;
    dropped += has_paged_failed && strstr(text, "now decode on the CPU");
    if (strncmp(text, "paged batches failed: ", 22)) return;
    *(strstr(text, "device ") ? &named : &unnamed) += 1;
    has_paged_failed = true;
}
/* The failure of a copy is cleared before the batch looks at it, for many copies: it is known nonetheless. */
static void cleared_faults(const char *dir, const struct answer *want, int n) {
    static struct answer got[PROMPTS];
    for (int at = 2; at < 300; at += 14) {
        char gpus[96];
        pthread_t thread;
        snprintf(gpus, sizeof gpus, "emu:1,cpu=scalar,mem=64M,fail=copy:%d", at);
        struct engine *eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
        atomic_store(&stops_clearing, false);
        if (pthread_create(&thread, NULL, clear_failures, eng->machine.gpus)) die("thread", gpus);
        run(eng, 0, n, 0, 0, got);
        atomic_store(&stops_clearing, true);
        pthread_join(thread, NULL);
        same(dir, gpus, want, got, n);
        engine_close(&eng);
    }
    CHECK(named > 0 && !unnamed, "%s: %d warnings name the device, %d do not", dir, named, unnamed);
}
/* After a short prompt a longer one needs more memory for its expanded keys. Where that fails, what was given back for
 * it is not given back again, which the device would report. The last allocations fail, each in one run. */
static void failed_growth(const char *dir) {
    enum { SHORT = 3, LONG = 4, LAST = 4, MOST = 256 };
    static struct answer want[PROMPTS], got[PROMPTS];
    struct engine *eng = open_engine(dir, "none", DECODE_CPU, 1, DT_F32);
    const bool grows = block_grown_bytes(&eng->weights.config, lengths[LONG]);
    int failed = 0, grown = 0, at = MOST;
    run(eng, SHORT, 2, 0, 0, want);
    engine_close(&eng);
    if (!grows) return;
    test_limits_set(TEST_LIMIT_PAGED_START, 26);
    announces = false; /* batches have room for the longer one */
    for (; at > 0 && failed < LAST; at--) {
        char gpus[96];
        snprintf(gpus, sizeof gpus, "emu:1,cpu=scalar,mem=64M,fail=alloc:%d", at);
        has_paged_failed = false;
        eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
        run(eng, SHORT, 1, 0, 0, got);
        grown += !has_paged_failed;
        run(eng, LONG, 1, 0, 0, got);
        same(dir, gpus, want + SHORT, got + SHORT, 2);
        failed += has_paged_failed, grown -= !has_paged_failed;
        CHECK(at < MOST || !failed, "%s: more allocations than %d", dir, MOST);
        CHECK(!gpu_n_cleared(eng->machine.gpus->gpu[0]), "%s: the device failed, too", gpus);
        engine_close(&eng);
    }
    CHECK(failed == LAST && grown == 2, "%s: %d allocations failed, %d of them for the longer prompt", dir, failed,
          grown);
    test_limits_set(TEST_LIMIT_PAGED_START, 0);
    announces = true;
}
/* The device dies at its n-th command, for many n. */
static void faults(const char *dir) {
    static struct answer want[PROMPTS], got[PROMPTS];
    enum { FEW = 6 };
    struct engine *eng = open_engine(dir, "none", DECODE_CPU, 1, DT_F32);
    run(eng, 0, FEW, 0, 0, want);
    engine_close(&eng);
    log_set(count_warnings, NULL, LOG_WARN);
    cleared_faults(dir, want, FEW);
    failed_growth(dir);
    int paged = 0, left = 0, kept = 0, at = 0;
    for (int kind = 0; kind < 2; kind++)
        for (long n = 1; n < 40000; n = n + 1 + n / 4) {
            char gpus[96];
            struct error e = {0};
            const int devices = 1 + (kind + at++) % 3; /* with several devices, any of them */
            snprintf(gpus, sizeof gpus, "emu:%d,cpu=scalar,mem=64M,fail=%s:%ld@%d", devices, kind ? "copy" : "die", n,
                     at % devices);
            struct engine_params p = {.dir = dir,
                                      .threads = 2,
                                      .cpu_level = 1,
                                      .gpus = gpus,
                                      .decode = DECODE_PAGED,
                                      .context = 128,
                                      .kv = DT_F32};
            dropped = has_paged_failed = 0;
            if (engine_open(&eng, &p, &e)) continue; /* dead before the engine opened */
            run(eng, 0, FEW, 0, 0, got);
            same(dir, gpus, want, got, FEW);
            bool all = true;
            for (int i = 0; i < FEW; i++) all &= !strcmp(got[i].mode, "paged");
            paged += all, left += !all;
            if (kind && !all) { /* paged batches are over, but other modes use the device */
                run(eng, 0, FEW, 0, 0, got);
                same(dir, gpus, want, got, FEW);
                kept += has_paged_failed;
                CHECK(!dropped, "%s: decode dropped its devices", gpus);
            }
            engine_close(&eng);
            if (all && n > 1000) break; /* n was never reached */
        }
    printf("%s: %d runs went on without paged batches, in %d decode kept its devices, %d to their end with them\n", dir,
           left, kept, paged);
    log_set(silent, NULL, LOG_WARN);
    CHECK(left > 12 && kept > 3 && paged > 1, "the faults were not where they were to be");
}

static void cancel_on(const char *dir, const char *gpus) {
    static struct answer want[PROMPTS], got[PROMPTS];
    struct engine *eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
    run(eng, 0, PROMPTS, 0, 0, want);
    for (int at = 1; at < 4 * PROMPTS; at += 97) {
        run(eng, 0, PROMPTS, 0, at, got);
        int stopped = 0;
        for (int i = 0; i < PROMPTS; i++) {
            stopped += got[i].reason == DONE_CANCELLED;
            CHECK(got[i].n <= want[i].n &&
                      !memcmp(got[i].token, want[i].token, (size_t)got[i].n * sizeof got[i].token[0]),
                  "%s: cancelled: another answer", dir);
        }
        CHECK(stopped > PROMPTS / 2, "%s: %d of %d were cancelled after %d tokens", dir, stopped, PROMPTS, at);
    }
    run(eng, 0, PROMPTS, 0, 0, got);
    same(dir, "after cancels", want, got, PROMPTS);
    engine_close(&eng);
    printf("%s, %s: cancelled and answered again\n", dir, gpus);
}
static void cancel(const char *dir) {
    cancel_on(dir, "emu:1,cpu=scalar,mem=64M");
    cancel_on(dir, "emu:3,cpu=scalar,mem=64M");
}

/* Without an explicit mode: many prompts run paged where the model does not fit the device, a few do not, nor do the
 * last few of many. */
static void policy_on(const char *dir, const char *gpus, struct answer *want) {
    static struct answer got[PROMPTS];
    enum { SOME = 14 };
    struct engine *eng = open_engine(dir, gpus, MODE_AUTO, 1, DT_F32);
    run(eng, 0, 1, 0, 0, got);
    CHECK(strcmp(got[0].mode, "paged") && throughput_resident_share(eng) < 0,
          "%s: one prompt was answered in paged steps", dir);
    run(eng, 0, SOME, 0, 0, got);
    int paged = 0;
    for (int i = 0; i < SOME; i++) paged += !strcmp(got[i].mode, "paged") && got[i].n == ANSWER;
    CHECK(paged > SOME / 2 && throughput_resident_share(eng) < 1,
          "%s: %s: %d of %d prompts were answered in paged steps", dir, gpus, paged, SOME);
    printf("%s: %s: %d of %d prompts in paged steps, layers in turn on %d devices\n", dir, gpus, paged, SOME,
           throughput_devices(eng));
    const bool first = !want[0].n; /* four links upload weights fast enough for one row too */
    if (first) memcpy(want, got, sizeof got);
    else {
        same(dir, gpus, want, got, SOME);
        CHECK(throughput_devices(eng) > 1, "%s: %s: on one device", dir, gpus);
    }
    announces = false; /* the end of the batch is not announced */
    run(eng, 0, 1, 0, 0, got);
    if (first)
        CHECK(strcmp(got[0].mode, "paged") && throughput_resident_share(eng) < 0, "%s: paged steps stay for one prompt",
              dir);
    announces = true;
    engine_close(&eng);
}
static void told(void *ctx, enum log_level level, const char *text) { printf("%s\n", text), fflush(stdout); }

/* With an explicit mode any number may be announced: the search uses the device memory that paged decoding already
 * has. */
static void announced_again(const char *dir, const char *gpus) {
    static struct answer got[PROMPTS];
    const struct announced_load load = {.n_prompts = 4, .prompt_tokens = LONGEST / 2, .answer_tokens = ANSWER};
    struct engine *eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
    int before = engine_announce(eng, &load);
    run(eng, 0, 1, 0, 0, got);
    int after = engine_announce(eng, &load);
    CHECK(before > 0 && after == before && !strcmp(got[0].mode, "paged"),
          "%s: %s: %d prompts at once, %d once paged steps are open", dir, gpus, before, after);
    engine_close(&eng);
}
/* A bound on time per token: one that is never reached changes nothing; one that nothing meets leaves paged batches to
 * those who ask for them by name, for one prompt at a time, and is said once. */
static int n_missed;
static void count_missed(void *ctx, enum log_level level, const char *text) {
    n_missed += strstr(text, "cannot be met by paged batches") != NULL;
}
static void bounded(const char *dir, const char *gpus) {
    enum { SOME = 6 };
    static struct answer free[PROMPTS], loose[PROMPTS], tight[PROMPTS];
    const struct announced_load load = {.n_prompts = SOME, .prompt_tokens = LONGEST / 2, .answer_tokens = ANSWER};
    struct answer *const all[] = {free, loose, tight};
    int at_once[3], most[3] = {0};
    log_set(count_missed, NULL, LOG_WARN);
    for (int i = 0; i < 3; i++) {
        max_tpot_s = (double[]){0, 1000, 1e-9}[i];
        struct engine *eng = open_engine(dir, gpus, DECODE_PAGED, 1, DT_F32);
        at_once[i] = engine_announce(eng, &load);
        engine_announce(eng, NULL);
        announces = false; /* all are submitted, whatever the engine prefers */
        run(eng, 0, SOME, 0, 0, all[i]);
        announces = true;
        engine_close(&eng);
        for (int k = 0; k < SOME; k++) most[i] = all[i][k].at_once > most[i] ? all[i][k].at_once : most[i];
        CHECK(n_missed == (i == 2), "%s: %d misses reported", dir, n_missed);
    }
    CHECK(at_once[0] > 1 && at_once[1] == at_once[0] && at_once[2] == 1, "%s: %d, %d and %d at once preferred", dir,
          at_once[0], at_once[1], at_once[2]);
    CHECK(most[0] > 1 && most[1] > 1 && most[2] == 1, "%s: %d, %d and %d at once", dir, most[0], most[1], most[2]);
    same(dir, "a bound that is never reached", free, loose, SOME);
    same(dir, "one at a time", free, tight, SOME);
    struct engine *eng = open_engine(dir, gpus, MODE_AUTO, 1, DT_F32);
    CHECK(!engine_announce(
              eng, &(struct announced_load){.n_prompts = 14, .prompt_tokens = LONGEST / 2, .answer_tokens = ANSWER}),
          "%s: paged above the bound", dir);
    engine_close(&eng);
    max_tpot_s = 0;
    log_set(told, NULL, LOG_WARN);
}
static void policy(const char *dir) {
    static struct answer one[PROMPTS];
    bounded(dir, "emu:1,cpu=scalar,mem=14M,h2d=0.5,d2h=0.5");
    announced_again(dir, "emu:1,cpu=scalar,mem=14M,h2d=0.5,d2h=0.5");
    policy_on(dir, "emu:1,cpu=scalar,mem=14M,h2d=0.5,d2h=0.5", one);
    policy_on(dir, "emu:4,cpu=scalar,mem=6M,h2d=0.5,d2h=0.5", one);
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage", "text|overlap|faults|cancel|policy DIR...");
    make_prompts();
    log_set(!strcmp(argv[1], "faults") || !strcmp(argv[1], "text") ? silent : told, NULL, LOG_WARN);
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[1], "text")) text(argv[i], i - 2);
        else if (!strcmp(argv[1], "overlap")) overlap(argv[i]);
        else if (!strcmp(argv[1], "faults")) faults(argv[i]);
        else if (!strcmp(argv[1], "policy")) policy(argv[i]);
        else cancel(argv[i]);
        fflush(stdout);
    }
    return failures != 0;
}
