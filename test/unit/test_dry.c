/* DRY and top-n-sigma, against plain references. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdlib.h>

#include "engine/sampling/dry.h"
#include "engine/sampling/sample.h"

enum { V = 12, MOST = 80 };
/* Token 0 is ":", 1 ends in a line feed; 2 and 3 are the halves of "Tom:"; the others are no breakers. */
static const char *const words[V] = {":", "x\n", "To", "m:", "a", "b", "c", "d", "T", "o", "m", " "};
static const char *word(const void *ctx, int32_t id, size_t *n) {
    if (id < 0 || id >= V) return NULL;
    *n = strlen(words[id]);
    return words[id];
}

/* Tokens at the end of t that no breaker ends in, by the text of every beginning. */
static int tail_of(const struct dry *d, const int32_t *t, int n) {
    char text[8 * MOST];
    size_t ends[MOST + 1], len = 0;
    for (int i = 0; i < n; i++) {
        ends[i] = len;
        len += (size_t)sprintf(text + len, "%s", words[t[i]]);
    }
    ends[n] = len;
    for (int tail = 0; tail < n; tail++)
        for (const char *b = d->breakers; *b; b += strlen(b) + 1)
            for (size_t at = 0; at + strlen(b) <= len; at++) {
                const size_t last = at + strlen(b);
                if (!strncmp(text + at, b, strlen(b)) && last > ends[n - tail - 1] && last <= ends[n - tail])
                    return tail;
            }
    return n;
}

/* For every token: appends it and looks for the longest end of the text that stood before the same token earlier. */
static void penalize_plainly(const struct dry *d, const int32_t *seen, int n, double *logits) {
    const int window = d->last_n < 0 || d->last_n > n ? n : d->last_n;
    const int32_t *t = seen + n - window;
    const int tail = tail_of(d, t, window);
    for (int id = 0; id < V; id++) {
        int best = -1;
        for (int at = 1; at < window; at++) {
            int k = 0;
            if (t[at] != id) continue;
            while (k < tail && k < at && t[at - 1 - k] == t[window - 1 - k]) k++;
            if (k > best) best = k;
        }
        if (window > d->allowed_length && best >= d->allowed_length)
            logits[id] -= (double)d->multiplier * pow((double)d->base, best - d->allowed_length);
    }
}

static void penalties_are_the_references(void **st) {
    static const char lists[][DRY_BREAKER_BYTES] = {"", "\n\0:", "Tom:", "m:\0o", "x\n"};
    int n_penalized = 0, n_by_breaker[5] = {0};
    srand(5);
    for (int round = 0; round < 4000; round++) {
        int32_t seen[MOST];
        struct sample_item scratch[SAMPLE_SCRATCH(V, MOST)];
        float logits[V];
        double want[V], before[V];
        const int n = rand() % MOST + 1, n_words = rand() % (V - 1) + 2, list = rand() % 5;
        struct sampling s = {.repeat_penalty = 1, .texts = {word, NULL}};
        s.dry = (struct dry){.multiplier = (float)(rand() % 8 + 1) / 4,
                             .base = 1 + (float)(rand() % 8) / 8,
                             .allowed_length = rand() % 5,
                             .last_n = rand() % 3 ? -1 : rand() % MOST};
        memcpy(s.dry.breakers, lists[list], DRY_BREAKER_BYTES);
        for (int i = 0; i < n; i++) seen[i] = rand() % 4 && i > 6 ? seen[i - 6] : rand() % n_words;
        for (int i = 0; i < V; i++) before[i] = want[i] = logits[i] = (float)(rand() % 100) / 8;
        dry_apply(logits, V, &s, seen, n, scratch);
        penalize_plainly(&s.dry, seen, n, want);
        for (int i = 0; i < V; i++) {
            n_penalized += want[i] < before[i];
            assert_true(fabs(want[i] - (double)logits[i]) < 1e-3 * fabs(want[i]) + 1e-3);
        }
        n_by_breaker[list] += tail_of(&s.dry, seen, n) < n;
    }
    assert_true(n_penalized > 4000);
    for (int i = 1; i < 5; i++) assert_true(n_by_breaker[i] > 50); /* each list of breakers has cut matches */
}

/* "a b c d | a b c" goes on with d; with a base of 2 and an allowed length of 1 that costs 3 * 2^2. */
static void a_worked_example(void **st) {
    const int32_t seen[] = {4, 5, 6, 7, 0, 4, 5, 6};
    struct sampling s = {.repeat_penalty = 1, .texts = {word, NULL}, .dry = {3, 2, 1, -1, ""}};
    struct sample_item scratch[SAMPLE_SCRATCH(V, 8)];
    float logits[V] = {0};
    logits[7] = 5, logits[4] = 4;
    assert_false(sample_is_argmax(&s));
    assert_int_equal(sample_token(logits, V, &s, seen, 8, 0, scratch), 4);
    assert_true(logits[7] == 5 - 12 && logits[4] == 4);
    s = sample_unmodified(&s);
    assert_int_equal(sample_token(logits, V, &s, seen, 8, 0, scratch), 4);
    assert_true(logits[7] == 5 - 12);
    s.dry.multiplier = 3, s.dry.breakers[0] = 'c', s.dry.breakers[1] = 0;
    logits[7] = 5;
    assert_int_equal(sample_token(logits, V, &s, seen, 8, 0, scratch), 7);
}

/* A repetition as long as the context leaves finite logits. */
static void long_repetitions_stay_finite(void **st) {
    enum { LONG = 3000 };
    int32_t *seen = malloc(LONG * sizeof *seen);
    struct sample_item *scratch = malloc(SAMPLE_SCRATCH(V, LONG) * sizeof *scratch);
    struct sampling s = {.repeat_penalty = 1, .dry = {1, 100, 2, -1, "\n"}};
    float logits[V] = {0};
    for (int i = 0; i < LONG; i++) seen[i] = 4;
    assert_int_equal(sample_token(logits, V, &s, seen, LONG, 0, scratch), 0);
    for (int i = 0; i < V; i++) assert_true(isfinite(logits[i]));
    assert_true(logits[4] < -1e29f);
    free(seen);
    free(scratch);
}

/* Draws often and compares with the tokens within n deviations of the best, alone and with other cuts. */
static void sigma_keeps_what_is_near_the_best(void **st) {
    float base[V] = {1, 9, 8.5f, 3, 2, 4, 8, 1, 0, 2, 7, -INFINITY};
    double sum = 0, squares = 0;
    for (int i = 0; i < V - 1; i++) sum += (double)base[i];
    for (int i = 0; i < V - 1; i++) squares += pow((double)base[i] - sum / (V - 1), 2);
    for (int k = 0; k < 12; k++) {
        const float n = (float)(k % 6 + 1) * 0.4f;
        const double floor = 9 - (double)n * sqrt(squares / (V - 1));
        int hits[V] = {0};
        for (uint64_t at = 0; at < 3000; at++) {
            struct sampling s = {.temperature = 30, .top_p = 1, .repeat_penalty = 1, .top_n_sigma = n, .seed = 3};
            struct sample_item scratch[V];
            float logits[V];
            if (k >= 6) s.top_k = 3;
            memcpy(logits, base, sizeof logits);
            hits[sample_token(logits, V, &s, NULL, 0, at, scratch)]++;
            assert_memory_equal(logits, base, sizeof logits);
        }
        for (int i = 0; i < V; i++) {
            const bool kept = (double)base[i] >= floor && (k < 6 || i == 1 || i == 2 || i == 6);
            assert_int_equal(hits[i] > 0, kept);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_are_the_references), cmocka_unit_test(a_worked_example),
        cmocka_unit_test(long_repetitions_stay_finite), cmocka_unit_test(sigma_keeps_what_is_near_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
