/* Measures a prompt that arrives during decoding, on the CPU: the sessions' time between tokens and its time to first
 * token, relative to each alone, measured alternately in every round; ratios are medians over rounds, for machines that
 * are never idle. bench_mixed <checkpoint | ember:> [prompt tokens] [sessions] [rounds] [threads] */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cpu/kernel_bench.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"

enum { SESSIONS = 15, ROUNDS = 99, PROMPT = 8192 };

static struct engine *eng;
static int32_t tokens[PROMPT];

static void die(const struct error *err) {
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}
static struct event next(void) {
    struct event ev;
    if (!engine_poll(e, &ev, -1)) exit(1);
    if (ev.kind == EVENT_ERROR) die(&ev.error);
    return ev;
}
static struct session *submit(int from, int n, int most) {
    struct session *s;
    struct error err = {0};
    if (session_open(e, &s, &err) ||
        session_submit(
            s, &(struct request){.tokens = tokens + from, .n = n, .max_tokens = most, .flags = REQ_IGNORE_EOS}, &err))
        die(&err);
    return s;
}
/* Returns the seconds until the turn of s ends; *count: tokens of the others in that time. */
static double until_over(const struct session *s, int *count) {
    double begin = clock_now();
    for (struct event ev; (ev = next()).session != s || ev.kind != EVENT_DONE;)
        *count += ev.kind == EVENT_TOKEN && ev.session != s;
    return clock_now() - begin;
}
static double tpot(int n, double seconds) { /* of n sessions */
    double begin = clock_now(), t;
    int count = 0;
    while ((t = clock_now() - begin) < seconds) count += next().kind == EVENT_TOKEN;
    return t * n / count;
}

int main(int argc, char **argv) {
    int arg[4] = {2000, 3, 9, 0};
    double alone[ROUNDS], beside[ROUNDS], usual[ROUNDS], slowed[ROUNDS], longer[ROUNDS], kept[ROUNDS];
    struct error err = {0};
    if (argc < 2)
        return fprintf(stderr,
                       "usage: bench_mixed <checkpoint | ember:> [prompt tokens] [sessions] [rounds] [threads]\n"),
               2;
    for (int i = 2; i < argc && i < 6; i++) arg[i - 2] = atoi(argv[i]);
    int n = arg[0] < PROMPT / 2 ? arg[0] : PROMPT / 2, k = arg[1] < SESSIONS ? arg[1] : SESSIONS,
        rounds = arg[2] < ROUNDS ? arg[2] : ROUNDS;
    file_embed(ember_files);
    if (engine_open(&e, &(struct engine_params){.dir = argv[1], .threads = arg[3]}, &err)) die(&err);
    for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + i / 7 + 11) % (engine_info(e)->vocab - 20);
    for (int r = -1; r < rounds; r++) { /* the first round reads weights into memory */
        struct session *s[SESSIONS], *p = submit(r + 2, n, 1);
        int at = r < 0 ? 0 : r, count = 0;
        alone[at] = until_over(p, &count);
        session_close(&p);
        for (int i = 0; i < k; i++) s[i] = submit(100 + i, 20, -1);
        for (int begun = 0; begun < 2 * k;) begun += next().kind == EVENT_TOKEN;
        usual[at] = tpot(k, 1.5);
        p = submit(r + 3, n, 1);
        count = 0;
        beside[at] = until_over(p, &count);
        slowed[at] = beside[at] * k / (count ? count : 1);
        usual[at] = (usual[at] + tpot(k, 1.5)) / 2;
        longer[at] = beside[at] / alone[at], kept[at] = usual[at] / slowed[at];
        for (int i = 0; i < k; i++) session_close(&s[i]);
        session_close(&p);
    }
    printf("%d tokens while %d answer, %d threads, medians of %d rounds: first token after %.2f s alone, %.2f s beside "
           "them (%.2f times); between their tokens "
           "%.1f ms "
           "alone, %.1f ms beside it (%.2f of their speed is left)\n",
           n, k, engine_info(e)->threads, rounds, kernel_bench_median(alone, rounds),
           kernel_bench_median(beside, rounds), kernel_bench_median(longer, rounds),
           kernel_bench_median(usual, rounds) * 1e3, kernel_bench_median(slowed, rounds) * 1e3,
           kernel_bench_median(kept, rounds));
    engine_close(&e);
    return 0;
}
