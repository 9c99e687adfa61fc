/* Times the token masks of a schema on a vocabulary: bench_grammar TOKENIZER_DIR SCHEMA DOCUMENT... follows the tokens of each document with a fresh matcher,
 * as an answer would, and prints percentiles of the time of a mask. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "tokenizer/grammar/matcher.h"
#include "tokenizer/grammar/source.h"

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void fail(const struct error *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

int main(int argc, char **argv) {
    struct tokenizer *t;
    struct token_trie *trie;
    struct grammar *g;
    struct error e = {0};
    char *text;
    size_t n, n_times = 0, cap = 0;
    double *times = NULL, compile_s = 0, open_s = 0;
    if (argc < 4) return fprintf(stderr, "usage: %s TOKENIZER_DIR SCHEMA DOCUMENT...\n", argv[0]), 2;
    if (tokenizer_open(&t, argv[1], &e)) fail(&e);
    double at = clock_now();
    if (token_trie_open(&trie, t, &e)) fail(&e);
    const double trie_s = clock_now() - at;
    if (file_read(argv[2], 4 << 20, &text, &n, &e)) fail(&e);
    const struct grammar_source source = {.kind = SOURCE_SCHEMA, .text = text, .n = n};
    for (int i = 3; i < argc; i++) {
        struct matcher *m;
        struct ids ids = {0};
        char *doc;
        size_t size;
        at = clock_now();
        if (source_compile(&source, &g, &e)) fail(&e);
        compile_s += clock_now() - at;
        at = clock_now();
        if (matcher_open(&m, g, trie, &e)) fail(&e);
        open_s += clock_now() - at;
        if (file_read(argv[i], 4 << 20, &doc, &size, &e) || tokenizer_encode(t, doc, size, TEXT_VALUE, &ids, &e)) fail(&e);
        for (size_t k = 0; k < ids.n; k++) {
            const uint64_t *bits;
            at = clock_now();
            if (matcher_mask(m, UINT32_MAX, &bits, &e)) fail(&e);
            const double took = clock_now() - at;
            if (mem_grow(&times, &cap, n_times + 1, sizeof *times)) return 1;
            times[n_times++] = took;
            if (!(bits[ids.data[k] >> 6] >> (ids.data[k] & 63) & 1)) return fprintf(stderr, "%s: token %zu is not allowed\n", argv[i], k), 1;
            if (matcher_accept(m, ids.data[k], &e)) fail(&e);
        }
        ids_free(&ids);
        mem_free(doc);
        matcher_close(&m);
        grammar_free(&g);
    }
    if (!n_times) return fprintf(stderr, "no tokens\n"), 1;
    qsort(times, n_times, sizeof *times, compare);
    double sum = 0;
    for (size_t i = 0; i < n_times; i++) sum += times[i];
    printf("{\"vocabulary\": %d, \"masks\": %zu, \"trie_ms\": %.1f, \"compile_ms\": %.3f, \"open_ms\": %.3f, \"mean_us\": %.1f, \"median_us\": %.2f, "
           "\"p99_us\": %.1f, "
           "\"most_us\": %.1f}\n",
           tokenizer_n_ids(t), n_times, trie_s * 1e3, compile_s / (argc - 3) * 1e3, open_s / (argc - 3) * 1e3, sum / (double)n_times * 1e6,
           times[n_times / 2] * 1e6, times[n_times * 99 / 100] * 1e6, times[n_times - 1] * 1e6);
    mem_free(times);
    mem_free(text);
    token_trie_close(&trie);
    tokenizer_close(&t);
    return 0;
}
