/* Measures what overlaps on emulated devices of given speeds, in real time: a session's decoding beside a prompt that
 * is streamed to another device, and a blended prompt where the CPU alone and streaming alone would take equally long.
 * Overlap comes from the trace; time ratios are medians of rounds that contain both sides. The built-in model, scalar,
 * one thread. usage: beside [check | table] [rounds] [tokens of the blended prompt]    check: asserts overlap only, in
 * the best of a few tries, because other processes only ever reduce it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu/kernel_bench.h"
#include "engine/ember/ember.h"
#include "engine/session/engine_state.h"
#include "engine/transfer/trace.h"

enum { ROUNDS = 31, TRIES = 8 };

static struct engine *e;
static int32_t tokens[1024];
static int prompt = 96;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}
static void open_engine(const char *gpus, enum exec_mode prefill, enum exec_mode decode) {
    struct error err = {0};
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = gpus,
                              .prefill = prefill,
                              .decode = decode,
                              .context = 4096,
                              .trace = "/dev/null"};
    if (engine_open(&e, &p, &err)) die("open", &err);
}
static struct session *submit(int from, int n, int most) {
    struct session *s;
    struct error err = {0};
    if (session_open(e, &s, &err) ||
        session_submit(
            s, &(struct request){.tokens = tokens + from, .n = n, .max_tokens = most, .flags = REQ_IGNORE_EOS}, &err))
        die("submit", &err);
    return s;
}
static struct event next(void) {
    struct event ev;
    if (!engine_poll(e, &ev, 120000)) die("poll", &(struct error){.text = "nothing for two minutes"});
    if (ev.kind == EVENT_ERROR) die("a turn", &ev.error);
    return ev;
}
/* Returns the seconds to read a prompt, in an engine of its own. */
static double prompt_seconds(int from, enum exec_mode mode, const char *gpus, double *both) {
    open_engine(gpus, mode, DECODE_CPU);
    struct session *warm = submit(prompt + 7, 40, 1), *s; /* reads weights, opens caches */
    while (next().kind != EVENT_DONE) {
    }
    s = submit(from, prompt, 1);
    double begin = clock_now();
    while (next().kind != EVENT_DONE) {
    }
    double t = clock_now() - begin;
    const struct trace *r = e->machine.trace;
    double load = trace_busy(r, 0, LANE_LOAD), cpu = trace_busy(r, TRACE_CPU, LANE_COMPUTE);
    if (both) *both = trace_overlap(r, 0, LANE_LOAD, TRACE_CPU, LANE_COMPUTE) / (load < cpu ? load : cpu);
    session_close(&warm);
    session_close(&s);
    engine_close(&e);
    return t;
}

static double blended(int rounds) {
    double cpu[ROUNDS], slp[ROUNDS], blend[ROUNDS], gain[ROUNDS], share = 0;
    char gpus[80];
    double rate = 1;
    for (int i = 0; i < 3; i++) { /* the link speed at which streaming takes as long as the CPU */
        snprintf(gpus, sizeof gpus, "emu:1,h2d=%.6g", rate * 1e-2);
        rate *= prompt_seconds(0, PREFILL_SLP, gpus, NULL) / prompt_seconds(0, PREFILL_CPU, gpus, NULL);
    }
    snprintf(gpus, sizeof gpus, "emu:1,h2d=%.6g", rate * 1e-2);
    for (int r = 0; r < rounds; r++) {
        double both;
        cpu[r] = prompt_seconds(r, PREFILL_CPU, gpus, NULL), slp[r] = prompt_seconds(r, PREFILL_SLP, gpus, NULL),
        blend[r] = prompt_seconds(r, PREFILL_BLEND, gpus, &both);
        gain[r] = (cpu[r] < slp[r] ? cpu[r] : slp[r]) / blend[r];
        share = both > share ? both : share;
    }
    printf("a prompt of %d tokens, %s: processor %.2f s, streamed %.2f s, blended %.2f s: %.2f times the better; %.2f "
           "of the shorter of link and processor "
           "beside the other\n",
           prompt, gpus, kernel_bench_median(cpu, rounds), kernel_bench_median(slp, rounds),
           kernel_bench_median(blend, rounds), kernel_bench_median(gain, rounds), share);
    return share;
}

/* Returns the seconds between tokens of one session, alone and beside a prompt streamed to a device. */
static double beside(const char *gpus, int device, int rounds) {
    double alone[ROUNDS], with[ROUNDS], slower[ROUNDS], share = 0;
    for (int r = 0; r < rounds; r++) {
        open_engine(gpus, PREFILL_SLP, DECODE_HYBRID);
        struct session *a = submit(0, 20, -1), *b;
        for (int i = 0; i < 10; i++) next();
        double begin = clock_now(), t;
        int n = 0;
        while ((t = clock_now() - begin) < 1.5) n += next().kind == EVENT_TOKEN;
        alone[r] = t / n;
        b = submit(r, 60, 1);
        begin = clock_now(), n = 0;
        for (struct event ev; (ev = next()).session != b || ev.kind != EVENT_DONE;)
            n += ev.kind == EVENT_TOKEN && ev.session == a;
        with[r] = (clock_now() - begin) / (n ? n : 1), slower[r] = with[r] / alone[r];
        session_close(&a);
        session_close(&b);
        const struct trace *x = e->machine.trace;
        double load = trace_busy(x, device, LANE_LOAD),
               both = trace_overlap(x, device, LANE_LOAD, 0, LANE_COMPUTE) +
                      trace_overlap(x, device, LANE_LOAD, TRACE_CPU, LANE_COMPUTE);
        if (load > 0 && both / load > share) share = both / load;
        engine_close(&e);
    }
    printf("%s, a prompt streamed to device %d: %.1f ms between tokens alone, %.1f ms beside it: %.2f times; steps ran "
           "in %.2f of the stream's time\n",
           gpus, device, kernel_bench_median(alone, rounds) * 1e3, kernel_bench_median(with, rounds) * 1e3,
           kernel_bench_median(slower, rounds), share);
    return share;
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(int argc, char **argv) {
    bool check = argc > 1 && !strcmp(argv[1], "check");
    int rounds = argc > 2 ? atoi(argv[2]) : check ? 1 : 9;
    if (argc > 3) prompt = atoi(argv[3]);
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    for (int i = 0; i < 1024; i++) tokens[i] = (i * 37 + i / 7 + 11) % 900;
    /* all cases were seen: beside a stream to another device, to the same; within one prompt */
    bool other = false, same = false, both = false;
    for (int i = 0; i < (check ? TRIES : 1) && !(other && same && both); i++) {
        if (!other) other = beside("emu:2,launch=200,h2d=0.01", 1, rounds) >= 0.3;
        if (!same) same = beside("emu:1,launch=200,h2d=0.01", 0, rounds) >= 0.2;
        if (!both) both = blended(rounds) >= 0.5;
    }
    if (!other || !same) printf("FAIL: steps waited for the stream\n");
    if (!both) printf("FAIL: link and CPU took turns\n");
    return !other || !same || !both;
}
