/* Measures the cost of sampling a token, in CPU time of the thread.
 *
 *     bench_sample [vocabulary] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/sampling/sample.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        struct sampling s;
    } rows[] = {
        {"top_k 20", {.temperature = 0.8f, .top_k = 20, .top_p = 1, .repeat_penalty = 1}},
        {"top_k 20, top_p 0.95", {.temperature = 0.8f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1}},
        {"top_p 0.95", {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1}},
        {"min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1}},
        {"temperature 1", {.temperature = 1, .top_p = 1, .repeat_penalty = 1}},
        {"temperature 100", {.temperature = 100, .top_p = 1, .repeat_penalty = 1}},
    };
    int vocab = argc > 1 ? atoi(argv[1]) : 129280;
    if (vocab < 1) return 2;
    float *logits = malloc((size_t)vocab * sizeof *logits), *copy = malloc((size_t)vocab * sizeof *copy);
    struct sample_item *scratch = malloc((size_t)vocab * sizeof *scratch);
    if (!logits || !copy || !scratch) return 2;
    uint64_t z = 1;
    for (int i = 0; i < vocab; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++)
            z = z * 6364136223846793005u + 1442695040888963407u, sum += (double)(z >> 40) * 0x1p-24;
        logits[i] = (float)(sum * 2.5);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double best = 1;
        for (uint64_t round = 0; round < 50; round++) {
            memcpy(copy, logits, (size_t)vocab * sizeof *copy);
            double a = now();
            sample_token(copy, vocab, &rows[i].s, NULL, 0, round, scratch);
            best = now() - a < best ? now() - a : best;
        }
        printf("%d tokens, %-20s %.3f ms\n", vocab, rows[i].name, best * 1e3);
    }
    free(logits), free(copy), free(scratch);
    return 0;
}
