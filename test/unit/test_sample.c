/* Sampling: what each option keeps, ties, determinism, distribution. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdlib.h>

#include "base/argmax.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sample.h"

enum { V = 6 };
static const float base[V] = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};

static int32_t draw(struct sampling s, const int32_t *seen, int n_seen, uint64_t pos) {
    float logits[V];
    struct sample_item scratch[V];
    memcpy(logits, base, sizeof logits);
    return sample_token(logits, V, &s, seen, n_seen, pos, scratch);
}

static void greedy_takes_the_lower_of_a_tie(void **st) {
    assert_int_equal(draw((struct sampling){0}, NULL, 0, 0), 1);
    assert_int_equal(draw((struct sampling){.temperature = 5, .top_k = 1, .top_p = 1, .repeat_penalty = 1}, NULL, 0, 7),
                     1);
}

static void penalty_moves_the_choice(void **st) {
    int32_t seen[] = {1, 1, 3};
    assert_int_equal(draw((struct sampling){.repeat_penalty = 2}, seen, 3, 0), 2); /* 3/2 and 3/2 against 2 */
    int32_t one[] = {1};
    assert_int_equal(draw((struct sampling){.repeat_penalty = 1.1f}, one, 1, 0), 3);
}

static void penalty_lowers_negative_logits(void **st) {
    float logits[V] = {-1.0f, -1.5f, -9, -9, -9, -9};
    struct sample_item scratch[V];
    int32_t seen[] = {0};
    struct sampling s = {.repeat_penalty = 2};
    assert_int_equal(sample_token(logits, V, &s, seen, 1, 0, scratch), 1); /* -2 against -1.5 */
}

/* Tokens 0 and 1 are the prompt's, 1, 3, 3 and 4 the answer's: presence 0.5 and frequency 0.25 lower 1 by 0.75, 3 by 1
 * and 4 by 0.75. */
static void answer_penalties_count_the_answer_only(void **st) {
    static const float want[V] = {1.0f, 2.25f, 2.0f, 2.0f, -1.75f, 0.5f};
    float logits[V];
    struct sample_item scratch[V];
    int32_t seen[] = {0, 1, 1, 3, 3, 4, -1, V};
    struct sampling s = {.repeat_penalty = 1, .presence_penalty = 0.5f, .frequency_penalty = 0.25f, .answer_from = 2};
    memcpy(logits, base, sizeof logits);
    assert_int_equal(sample_token(logits, V, &s, seen, 8, 8, scratch), 1);
    for (int i = 0; i < V; i++) assert_true(logits[i] == want[i]);
    s.presence_penalty = 0, s.frequency_penalty = -1; /* negative: prefers what it wrote */
    memcpy(logits, base, sizeof logits);
    assert_int_equal(sample_token(logits, V, &s, seen, 8, 8, scratch), 3);
    assert_true(logits[1] == 4 && logits[3] == 5 && logits[4] == 0);
    s.answer_from = 8; /* no answer yet */
    assert_int_equal(draw(s, seen, 8, 8), 1);
}

static void bias_comes_before_the_penalty(void **st) {
    static const struct logit_bias bias[] = {{1, -100}, {5, 3.5f}, {-1, 50}, {V, 50}};
    float logits[V];
    struct sample_item scratch[V];
    int32_t seen[] = {5};
    struct sampling s = {.repeat_penalty = 2, .bias = bias, .n_bias = 4};
    memcpy(logits, base, sizeof logits);
    assert_int_equal(sample_token(logits, V, &s, seen, 1, 1, scratch), 3);
    assert_true(logits[1] == -97 && logits[5] == 2); /* (0.5 + 3.5) / 2 */
    s = sample_unmodified(&s);
    assert_int_equal(draw(s, seen, 1, 1), 1);
}

static void argmax_only_without_changes(void **st) {
    assert_true(sample_is_argmax(&(struct sampling){.repeat_penalty = 1}));
    assert_true(sample_is_argmax(&(struct sampling){.repeat_penalty = 1, .temperature = 1, .top_k = 1}));
    assert_false(sample_is_argmax(&(struct sampling){.repeat_penalty = 1, .presence_penalty = 1}));
    assert_false(sample_is_argmax(&(struct sampling){.repeat_penalty = 1, .frequency_penalty = 1}));
    assert_false(sample_is_argmax(&(struct sampling){.repeat_penalty = 1, .n_bias = 1}));
}

/* Probabilities 1/2, 1/4, 1/8 and 1/8; the other logits have none. */
static void logprobs_are_those_of_the_softmax(void **st) {
    const float one = 0.69314718f, logits[] = {NAN, 5 - 3 * one, 5 - one, -INFINITY, 5 - 3 * one, 5 - 2 * one};
    struct token_logprobs p;
    logprobs_compute(logits, V, 5, 3, &p);
    assert_true(fabsf(p.logprob + 2 * one) < 1e-6f);
    assert_int_equal(p.n_top, 3);
    assert_int_equal(p.top[0].id, 2);
    assert_int_equal(p.top[1].id, 5);
    assert_int_equal(p.top[2].id, 1); /* before 4, which is as likely */
    assert_true(fabsf(p.top[0].logprob + one) < 1e-6f && fabsf(p.top[2].logprob + 3 * one) < 1e-6f);
    logprobs_compute(logits, V, 3, 20, &p);
    assert_true(p.logprob == -INFINITY);
    assert_int_equal(p.n_top, 4);
    logprobs_compute(logits, V, 4, 0, &p);
    assert_int_equal(p.n_top, 0);
    assert_true(fabsf(p.logprob + 3 * one) < 1e-6f);
}

static void count(struct sampling s, int n, int *hits) {
    memset(hits, 0, V * sizeof *hits);
    for (int i = 0; i < n; i++) hits[draw(s, NULL, 0, (uint64_t)i)]++;
}

static void frequencies_follow_softmax(void **st) {
    int hits[V], n = 40000;
    count((struct sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 9}, n, hits);
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp(base[i]);
    for (int i = 0; i < V; i++) {
        double p = exp(base[i]) / sum, sd = sqrt(p * (1 - p) / n);
        assert_true(fabs((double)hits[i] / n - p) < 5 * sd);
    }
}

static void each_knob_cuts(void **st) {
    int hits[V];
    count((struct sampling){.temperature = 1, .top_k = 2, .top_p = 1, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[1] && hits[3] && hits[1] + hits[3] == 2000);
    count((struct sampling){.temperature = 1, .top_p = 0.5f, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[1] && hits[3] && hits[1] + hits[3] == 2000); /* .38 alone is less than .5 */
    count((struct sampling){.temperature = 1, .top_p = 0.3f, .repeat_penalty = 1}, 500, hits);
    assert_int_equal(hits[1], 500);
    count((struct sampling){.temperature = 1, .top_p = 1, .min_p = 0.3f, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[2] && hits[1] + hits[2] + hits[3] == 2000); /* e^-1 = .37 stays, e^-2 is dropped */
}

static void same_seed_same_token(void **st) {
    struct sampling s = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 4}, other = s;
    other.seed = 5;
    int differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(s, NULL, 0, i), draw(s, NULL, 0, i));
        differ += draw(s, NULL, 0, i) != draw(other, NULL, 0, i);
    }
    assert_true(differ > 10);
}

/* --- Against a full sort ---------------------------------------------------------------------- */

static int falling(const void *a, const void *b) {
    const struct sample_item *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}
static double uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9E3779B97F4A7C15u + position * 0xD1B54A32D192ED03u + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}
static int32_t by_sorting(const float *logits, int vocab, const struct sampling *s, uint64_t position) {
    struct sample_item *all = malloc((size_t)vocab * sizeof *all);
    int n = 0, top = 0, keep = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[top]) top = i;
    for (int i = 0; i < vocab; i++)
        if (((double)logits[i] - logits[top]) / s->temperature > -40) all[n++] = (struct sample_item){logits[i], i};
    qsort(all, (size_t)n, sizeof *all, falling);
    if (s->top_k > 0 && n > s->top_k) n = s->top_k;
    double sum = 0, part = 0;
#define P(i) exp(((double)all[i].logit - logits[top]) / s->temperature)
    for (int i = 0; i < n; i++) sum += P(i);
    if (s->top_p > 0 && s->top_p < 1) {
        while (keep < n && part < s->top_p * sum) part += P(keep++);
        n = keep;
    }
    for (keep = n ? 1 : 0; keep < n && (s->min_p <= 0 || P(keep) >= s->min_p);) keep++;
    n = keep, sum = 0;
    for (int i = 0; i < n; i++) sum += P(i);
    double at = uniform(s->seed, position) * sum;
    int i = 0;
    while (i < n - 1 && (at -= P(i)) >= 0) i++;
    int32_t id = n ? all[i].id : top;
    free(all);
    return id;
}

/* Kinds of logits; each gives the same draws as the full sort. */
static float logit_of(int kind, int i, float normal) {
    switch (kind) {
    case 0: return normal;                           /* as a model's */
    case 1: return normal + (i % 997 == 5 ? 14 : 0); /* few stand out */
    case 2: return 1;                                /* all equal */
    case 3: return (float)(i % 3);                   /* few distinct */
    case 4: return i % 2 ? -INFINITY : normal;       /* half is masked */
    case 5: return i % 5 == 3 ? NAN : normal;        /* not the first, which would be the best */
    case 6: return (float)i * 1e-3f;                 /* rising */
    case 7: return (float)-i * 1e-6f;                /* falling, almost equal */
    case 8: return i == 77 ? 1e30f : -1e30f;         /* a single one */
    case 9: return i ? -INFINITY : 2;
    default: return 1e6f + (float)(i % 40) * 0.0625f; /* large numbers with many ties */
    }
}
static void selection_is_what_sorting_gives(void **st) {
    static const int sizes[] = {1, 2, 15, 16, 17, 33, 1000, 20011};
    static const struct sampling knobs[] = {
        {.temperature = 0.8f, .top_k = 20, .top_p = 1},
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.6f, .top_k = 40, .top_p = 0.9f},
        {.temperature = 1, .min_p = 0.05f},
        {.temperature = 30, .top_p = 0.5f},
        {.temperature = 0.01f, .top_p = 0.99f},
        {.temperature = 1.5f, .top_k = 5000, .top_p = 0.97f, .min_p = 0.001f},
        {.temperature = 1, .top_p = 1e-6f},
        {.temperature = 1, .top_k = 3, .min_p = 2},
    };
    uint64_t z = 1;
    for (int kind = 0; kind <= 10; kind++)
        for (size_t v = 0; v < sizeof sizes / sizeof *sizes; v++) {
            const int vocab = sizes[v];
            /* ends where ASan detects an overrun */
            float *logits = malloc((size_t)vocab * sizeof *logits), *copy = malloc((size_t)vocab * sizeof *copy);
            struct sample_item *scratch = malloc((size_t)vocab * sizeof *scratch);
            for (int i = 0; i < vocab; i++) {
                double sum = 0;
                for (int k = 0; k < 12; k++)
                    z = z * 6364136223846793005u + 1442695040888963407u, sum += (double)(z >> 40) * 0x1p-24;
                logits[i] = logit_of(kind, i, (float)(sum - 6) * 2.5f);
            }
            for (size_t k = 0; k < sizeof knobs / sizeof *knobs; k++)
                for (uint64_t pos = 0; pos < (vocab > 1000 ? 4 : 30); pos++) {
                    struct sampling s = knobs[k];
                    s.seed = 11 + k, s.repeat_penalty = 1;
                    memcpy(copy, logits, (size_t)vocab * sizeof *copy);
                    int32_t got = sample_token(copy, vocab, &s, NULL, 0, pos, scratch),
                            want = by_sorting(logits, vocab, &s, pos);
                    if (got != want)
                        fail_msg("kind %d, %d tokens, knobs %zu, position %llu: %d, by sorting %d", kind, vocab, k,
                                 (unsigned long long)pos, got, want);
                }
            free(logits), free(copy), free(scratch);
        }
}

static void selection_is_faster_than_sorting(void **st) {
    enum { MANY = 60000 };
    float *logits = malloc(MANY * sizeof *logits);
    struct sample_item *scratch = malloc(MANY * sizeof *scratch);
    for (int i = 0; i < MANY; i++) logits[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-20f;
    for (int k = 0; k < 2; k++) {
        struct sampling s = {.temperature = 1, .top_k = k ? 20 : 0, .top_p = 0.95f, .repeat_penalty = 1};
        double select = 1e9, sort = 1e9;
        for (uint64_t i = 0; i < 5; i++) {
            double a = cpu_time();
            int32_t want = by_sorting(logits, MANY, &s, i);
            double b = cpu_time();
            assert_int_equal(sample_token(logits, MANY, &s, NULL, 0, i, scratch), want);
            double c = cpu_time();
            sort = b - a < sort ? b - a : sort, select = c - b < select ? c - b : select;
        }
        /* 30 times as fast in practice */
        if (select * 2 >= sort) fail_msg("selected in %.3f ms, sorted in %.3f ms", select * 1e3, sort * 1e3);
    }
    free(logits), free(scratch);
}

static void logits_that_are_not_numbers_give_the_first_token(void **st) {
    float logits[40];
    struct sample_item scratch[40];
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 40; i++) logits[i] = kind == 0 ? NAN : kind == 1 ? -INFINITY : i == 9 ? INFINITY : 0;
        for (int k = 0; k < 2; k++)
            assert_int_equal(
                sample_token(logits, 40,
                             &(struct sampling){.temperature = 1, .top_k = k * 5, .top_p = 0.9f, .repeat_penalty = 1},
                             NULL, 0, 1, scratch),
                kind == 2 ? 9 : 0);
    }
}

static void the_largest_is_the_first_of_equals(void **st) {
    enum { MOST = 70 };
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f};
    srand(1);
    for (int run = 0; run < 20000; run++) {
        float x[MOST];
        const int n = 1 + rand() % MOST;
        int32_t want = 0;
        bool any = false, has_nan;
        for (int i = 0; i < n; i++) x[i] = rand() % 8 ? (float)(rand() % 20 - 10) : odd[rand() % 4];
        for (int i = 0; i < n && run % 3; i++) x[i] = x[i] != x[i] ? 3 : x[i];
        for (int i = 0; i < n; i++) {
            any |= x[i] != x[i];
            if (x[i] > x[want]) want = i;
        }
        assert_int_equal(argmax(x, n, &has_nan), want);
        assert_int_equal(has_nan, any);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_takes_the_lower_of_a_tie),
                                       cmocka_unit_test(penalty_moves_the_choice),
                                       cmocka_unit_test(penalty_lowers_negative_logits),
                                       cmocka_unit_test(answer_penalties_count_the_answer_only),
                                       cmocka_unit_test(bias_comes_before_the_penalty),
                                       cmocka_unit_test(argmax_only_without_changes),
                                       cmocka_unit_test(logprobs_are_those_of_the_softmax),
                                       cmocka_unit_test(frequencies_follow_softmax),
                                       cmocka_unit_test(each_knob_cuts),
                                       cmocka_unit_test(same_seed_same_token),
                                       cmocka_unit_test(selection_is_what_sorting_gives),
                                       cmocka_unit_test(selection_is_faster_than_sorting),
                                       cmocka_unit_test(logits_that_are_not_numbers_give_the_first_token),
                                       cmocka_unit_test(the_largest_is_the_first_of_equals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
