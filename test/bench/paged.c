/* 64 prompts of mixed length on an emulated device with given speeds and memory for a quarter of the checkpoint: by
 * paged decoding, and one prompt after the other stream-loaded with hybrid decoding, six at a time. Prints seconds of
 * both, and the prediction of virtual time for the first on this machine as measured just before. Other programs take
 * CPU time from the device's threads, which then misses its speed: their CPU time is printed. usage: paged DIR GPUS
 * [LEVEL [THREADS]]      LEVEL of the CPU: 1 scalar .. 4 amx; 0 the best. Run it on an idle machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/placement/calibrate.h"
#include "engine/plan/virtual.h"
#include "engine/session/engine_state.h"
#include "engine/session/throughput.h"

enum { PROMPTS = 64, LEAST = 16, MOST = 112, ANSWER = 16 };

static void die(const char *what, const char *why) {
    fprintf(stderr, "paged: %s: %s\n", what, why);
    exit(1);
}

static int length_of(int i) { return LEAST + i * 37 % (MOST - LEAST); }

/* Returns the seconds until all have their answers, with a limit of sessions at a time; *paged: answers by paged
 * decoding. */
static double run(struct engine *eng, int prompts, int sessions, int vocab, int *paged) {
    static int32_t tokens[MOST];
    struct session *s[PROMPTS];
    struct error e = {0};
    struct event ev;
    int next = 0, done = 0;
    *paged = 0;
    for (int i = 0; i < sessions; i++)
        if (session_open(eng, &s[i], &e)) die("session", e.text);
    double begin = clock_now();
    for (int i = 0; done < prompts;) {
        for (; i < sessions && next < prompts; i++, next++) {
            for (int k = 0; k < length_of(next); k++)
                tokens[k] = (int32_t)((k * 7919u + (unsigned)next * 104729u) % (unsigned)vocab);
            struct request r = {.tokens = tokens,
                                .n = length_of(next),
                                .max_tokens = ANSWER,
                                .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE,
                                .sampling = {.top_p = 1, .repeat_penalty = 1}};
            if (session_submit(s[i], &r, &e)) die("submit", e.text);
        }
        if (next == sessions) engine_announce(eng, NULL);
        if (!engine_poll(eng, &ev, 60000)) die("poll", "nothing for a minute");
        if (ev.kind == EVENT_ERROR) die("a turn", ev.error.text);
        i = sessions;
        if (ev.kind != EVENT_DONE) continue;
        done++, *paged += !strcmp(ev.stats.decode_mode, "paged");
        for (int k = 0; k < sessions; k++)
            if (s[k] == ev.session && next < prompts) { /* its slot goes to the next prompt */
                struct session *t = s[k];
                s[k] = s[sessions - 1], s[sessions - 1] = t;
                i = sessions - 1;
            }
    }
    double t = clock_now() - begin;
    for (int i = 0; i < sessions; i++) session_close(&s[i]);
    return t;
}

/* CPU seconds used by all processes since boot, and by this one. */
struct busy {
    double all, own;
};
static struct busy busy_now(void) {
    struct busy b = {0};
    struct rusage r;
    double user, nice, system, idle, waiting, irq, soft;
    FILE *f = fopen("/proc/stat", "r");
    if (f && fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &waiting, &irq, &soft) == 7)
        b.all = (user + nice + system + irq + soft) / (double)sysconf(_SC_CLK_TCK);
    if (f) fclose(f);
    getrusage(RUSAGE_SELF, &r);
    b.own = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
    return b;
}

/* The machine as it is now, its device including the overhead of its commands: another one of the kind, with memory
 * for measuring. */
static void measure(struct cost_machine *m, struct engine *engine, const char *gpus) {
    struct gpu_spec s;
    struct gpu_set *set;
    struct error e = {0};
    if (gpu_spec_parse(&s, gpus, &e)) die("device", e.text);
    const double memory = (double)s.mem;
    s.mem = (size_t)1 << 30;
    if (gpu_set_open_spec(&set, &s, &e)) die("device", e.text);
    struct calibrate_options o = {.cpu = engine->machine.cpu,
                                  .threads = pool_threads(engine->pool),
                                  .gpu = set->gpu,
                                  .n_gpus = 1,
                                  .gpus = gpus,
                                  .seconds = 1,
                                  .bytes = (size_t)256 << 20};
    if (calibrate(m, &o, &e)) die("calibrate", e.text);
    gpu_set_close(&set);
    m->domain[1].memory = memory;
}

int main(int argc, char **argv) {
    static struct cost_machine m;
    struct error e = {0};
    struct engine *engine;
    struct announced_load load = {.n_prompts = PROMPTS, .answer_tokens = ANSWER};
    int paged, none;
    if (argc < 3) die("usage", "DIR GPUS [LEVEL [THREADS]]");
    for (int i = 0; i < PROMPTS; i++) load.prompt_tokens += length_of(i) / (double)PROMPTS;
    struct engine_params p = {.dir = argv[1],
                              .gpus = argv[2],
                              .cpu_level = argc > 3 ? atoi(argv[3]) : 0,
                              .threads = argc > 4 ? atoi(argv[4]) : 0,
                              .context = MOST + ANSWER + 8,
                              .decode = DECODE_PAGED};
    if (engine_open(&engine, &p, &e)) die("open", e.text);
    int n = engine_announce(engine, &load), vocab = engine_info(engine)->vocab;
    if (!n) die("policy", "no paged steps");
    run(engine, 6, 6, vocab, &none); /* opens them, and reads weights into memory */
    measure(&m, engine, p.gpus);
    n = engine_announce(engine, &load); /* none starts before all are submitted */
    if (!n) die("policy", "no more paged steps");
    struct busy before = busy_now();
    double fast = run(engine, PROMPTS, n < PROMPTS ? n : PROMPTS, vocab, &paged), read, step;
    struct busy after = busy_now();
    struct virtual_throughput q = {n < PROMPTS ? n : PROMPTS,       throughput_micro_rows(engine),
                                   (int)(load.prompt_tokens + 0.5), ANSWER,
                                   throughput_devices(engine),      throughput_resident_share(engine)};
    struct virtual *v;
    if (virtual_open(&v, &(struct virtual_options){.cost = &m, .w = &engine->weights, .kv = DT_BF16}, &e))
        die("virtual", e.text);
    if (virtual_paged(v, &q, &read, &step, &e)) die("virtual", e.text);
    virtual_close(&v);
    double said = (read + ANSWER * step) * PROMPTS / q.n_prompts;
    printf("%d prompts of %.0f tokens in the mean, %d for each: paged %.3f s (%d of them; %d at once in micro-batches "
           "of %d, %.0f %% of the experts stay), "
           "virtual time %.3f s: %.2f; other programs had %.2f of %ld processors meanwhile\n",
           PROMPTS, load.prompt_tokens, ANSWER, fast, paged, q.n_prompts, q.micro_rows, 100 * q.resident_share, said,
           fast / said, (after.all - before.all - (after.own - before.own)) / fast, sysconf(_SC_NPROCESSORS_ONLN));
    engine_close(&engine);
    p.prefill = PREFILL_SLP, p.decode = DECODE_HYBRID;
    if (engine_open(&engine, &p, &e)) die("open", e.text);
    fflush(stdout);
    double slow = run(engine, PROMPTS, 6, vocab, &none);
    printf("one after the other by slp, hybrid: %.3f s: %.2f times as long\n", slow, slow / fast);
    engine_close(&engine);
    return 0;
}
