/* Measures what --defer costs in quality: the perplexity of a text when every token passes through decode batches, for each number of deferred experts.
 *
 *   bench_defer DIR IDS [MOST [GPUS]]     IDS: a file with token ids between any other characters, as --tokenize prints them; MOST: deferred experts
 *
 * Windows of 512 tokens, each from an empty context, in batches of 16 rows of one session. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/session/engine_state.h"

enum { WINDOW = 512, ROWS = 16, MOST = 1 << 20 };
static int32_t ids[MOST];

static int read_ids(const char *path) {
    FILE *f = fopen(path, "r");
    int n = 0, c = f ? 0 : EOF;
    while (c != EOF && n < MOST) {
        for (c = fgetc(f); c != EOF && !isdigit(c);) c = fgetc(f);
        if (c == EOF) break;
        for (ids[n] = 0; isdigit(c); c = fgetc(f)) ids[n] = ids[n] * 10 + (c - '0');
        n++;
    }
    if (f) fclose(f);
    return n;
}

/* Returns the sum over a window of -log(probability of the next token); NAN: an error. */
static double window_loss(struct engine *e, const int32_t *tokens, enum exec_mode mode, double *seconds) {
    static _Atomic int never;
    struct session *s;
    struct error err = {0};
    const int vocab = engine_info(e)->vocab;
    double sum = 0;
    if (session_open(e, &s, &err)) return NAN;
    for (int at = 0; at < WINDOW; at += ROWS) {
        struct decode_span span = {.kv = &s->kv, .tokens = (int32_t *)tokens + at, .pos = at, .n = ROWS};
        const double begin = clock_now();
        if (decode_run(e->machine.decode, mode, &span, 1, &never, &err)) return fprintf(stderr, "%s\n", err.text), NAN;
        *seconds += clock_now() - begin;
        for (int i = 0; i < ROWS && at + i + 1 < WINDOW; i++) {
            const float *l = span.logits + (size_t)i * (size_t)vocab;
            double most = -INFINITY, all = 0;
            for (int k = 0; k < vocab; k++) most = fmax(most, (double)l[k]);
            for (int k = 0; k < vocab; k++) all += exp((double)l[k] - most);
            sum += most + log(all) - (double)l[tokens[at + i + 1]];
        }
    }
    session_close(&s);
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: bench_defer DIR IDS [MOST [GPUS]]\n"), 2;
    const int windows = read_ids(argv[2]) / WINDOW;
    const int most = argc > 3 ? atoi(argv[3]) : MOST;
    const char *gpus = argc > 4 ? argv[4] : NULL;
    double first = 0;
    for (int n = 0, topk = 1; n < topk && n <= most; n++) {
        struct engine *e;
        struct error err = {0};
        double sum = 0, seconds = 0;
        if (engine_open(&e, &(struct engine_params){.dir = argv[1], .gpus = gpus, .defer = n}, &err)) return fprintf(stderr, "%s\n", err.text), 1;
        topk = engine_info(e)->topk;
        for (int i = 0; i < windows; i++) sum += window_loss(e, ids + (size_t)i * WINDOW, gpus ? DECODE_HYBRID : DECODE_CPU, &seconds);
        const double perplexity = exp(sum / (windows * (WINDOW - 1.0)));
        if (!n) first = perplexity;
        printf("defer %d of %d: perplexity %.4f over %d tokens, %+.2f %%, %.3g ms per batch of %d rows\n", n, topk, perplexity, windows * WINDOW,
               100 * (perplexity / first - 1), 1e3 * seconds / (windows * (WINDOW / ROWS)), ROWS);
        fflush(stdout);
        engine_close(&e);
    }
    return 0;
}
