/* The engine on a real checkpoint, the built-in one: any split of the same tokens gives the same logits, any number of
 * threads the same bytes; sessions do not affect each other; turns can be stopped. Runs the scalar level, which is the
 * reference of the others elsewhere. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "cpu/gemm.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"

enum { N = 70 };
static int32_t prompt[N];

static struct engine *open_engine(int threads, enum dtype kv, enum cpu_level level) {
    struct engine *eng;
    struct error e = {0};
    struct engine_params p = {.dir = "ember:", .threads = threads, .kv = (uint8_t)kv, .cpu_level = (int)level + 1};
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < N; i++) prompt[i] = (i * 37 + 11) % (engine_info(eng)->vocab - 20);
    return eng;
}

struct sink {
    float *out;
    int vocab, next;
};
static int collect(void *ctx, int position, const float *logits) {
    struct sink *s = ctx;
    assert_int_equal(position, s->next++);
    memcpy(s->out + (size_t)position * (size_t)s->vocab, logits, (size_t)s->vocab * sizeof *logits);
    return 0;
}

static struct event wait_end(struct engine *eng) {
    struct event ev;
    do engine_poll(eng, &ev, -1);
    while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
    return ev;
}

static float *logits_of(struct engine *eng, int n) {
    int vocab = engine_info(eng)->vocab;
    struct sink s = {calloc((size_t)n * (size_t)vocab, sizeof(float)), vocab, 0};
    struct session *ses;
    struct error e = {0};
    assert_int_equal(session_open(eng, &ses, &e), 0);
    struct request r = {.tokens = prompt, .n = n, .logits = collect, .logits_ctx = &s};
    assert_int_equal(session_submit(ses, &r, &e), 0);
    assert_int_equal(wait_end(eng).kind, EVENT_DONE);
    assert_int_equal(s.next, n);
    session_close(&ses);
    return s.out;
}

static double difference(const float *a, const float *b, int n) {
    double top = 0, worst = 0;
    for (int i = 0; i < n; i++) {
        top = fmax(top, fabs(a[i]));
        if (isnan(a[i] - b[i]) || fabs(a[i] - b[i]) > worst) worst = fabs(a[i] - b[i]); /* NaN must propagate */
    }
    return worst / top;
}

static void one_by_one_equals_all_at_once(void **st) {
    struct engine *eng = open_engine(2, DT_F32, CPU_SCALAR);
    int vocab = engine_info(eng)->vocab;
    float *whole = logits_of(eng, N);
    /* The last position with the cache, after prefills of every kind of length; the rest came one by one. */
    struct session *s;
    struct error e = {0};
    assert_int_equal(session_open(eng, &s, &e), 0);
    for (int n = 1; n <= N; n += n < 4 ? 1 : 11) {
        struct sink one = {malloc((size_t)N * (size_t)vocab * sizeof(float)), vocab, 0};
        struct request r = {.tokens = prompt, .n = n, .logits = collect, .logits_ctx = &one};
        assert_int_equal(session_submit(s, &r, &e), 0);
        assert_int_equal(wait_end(eng).kind, EVENT_DONE);
        assert_true(difference(whole, one.out, n * vocab) < 3e-6);
        free(one.out);
    }
    /* Decodes known tokens by submitting one more token each time, which prefills exactly one row. */
    for (int n = 2; n <= N; n++) {
        struct request r = {.tokens = prompt, .n = n, .max_tokens = 1, .flags = REQ_IGNORE_EOS};
        assert_int_equal(session_submit(s, &r, &e), 0);
        struct event ev, tok = {0};
        do {
            engine_poll(eng, &ev, -1);
            if (ev.kind == EVENT_TOKEN) tok = ev;
        } while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
        assert_int_equal(ev.kind, EVENT_DONE);
        assert_true(n == 2 || ev.stats.cached_tokens == n - 1);
        const float *row = whole + (size_t)(n - 1) * (size_t)vocab;
        int best = 0;
        for (int i = 1; i < vocab; i++) best = row[i] > row[best] ? i : best;
        assert_true(tok.token == best || row[best] - row[tok.token] < 1e-5f * fabsf(row[best]));
    }
    session_close(&s);
    free(whole);
    engine_close(&eng);
}

static void threads_give_identical_bytes(void **st) {
    for (int level = CPU_SCALAR; level <= (int)cpu_level_best(); level++) {
        float *first = NULL;
        static const int threads[] = {1, 2, 5};
        for (int i = 0; i < 3; i++) {
            struct engine *eng = open_engine(threads[i], DT_BF16, (enum cpu_level)level);
            size_t size = (size_t)N * (size_t)engine_info(eng)->vocab * sizeof(float);
            float *l = logits_of(eng, N);
            if (first) assert_memory_equal(first, l, size);
            else first = l;
            if (first != l) free(l);
            engine_close(&eng);
        }
        free(first);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return isnan(y) ? -isnan(x) : isnan(x) ? 1 : (x > y) - (x < y);
}

/* Computes each position's error relative to the largest logit, in ascending order. */
static void distances(const float *a, const float *b, int vocab, double off[N]) {
    double top = 0;
    for (int i = 0; i < N * vocab; i++) top = fmax(top, fabs((double)a[i]));
    for (int p = 0; p < N; p++) {
        double worst = 0;
        for (int i = 0; i < vocab; i++) {
            double d = fabs((double)a[p * vocab + i] - (double)b[p * vocab + i]);
            if (isnan(d) || d > worst) worst = d; /* NaN must propagate */
        }
        off[p] = worst / top;
    }
    qsort(off, N, sizeof *off, by_size);
}

/* Float32 throughout differs by the order of sums only. Where activations, keys or values are rounded, random tokens
 * cause close router choices that flip, so that some positions may be far off. */
static void levels_and_caches_agree(void **st) {
    struct engine *eng = open_engine(0, DT_F32, CPU_SCALAR);
    int vocab = engine_info(eng)->vocab;
    float *ref = logits_of(eng, N);
    engine_close(&eng);
    static const struct {
        uint8_t kv;
        /* bound on the median, three times the observed error, where something is rounded; otherwise float_bound holds
         * for all */
        double most;
    } kinds[] = {{DT_F32, 4.5e-3}, {DT_BF16, 5.5e-3}, {DT_E4M3, 8.5e-2}};
    const double float_bound = 2.5e-6;
    for (int level = CPU_SCALAR; level <= (int)cpu_level_best(); level++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            double off[N];
            bool exact = kinds[i].kv == DT_F32 && !gemm_for((enum cpu_level)level, false)->bf16;
            eng = open_engine(0, kinds[i].kv, (enum cpu_level)level);
            float *l = logits_of(eng, N);
            distances(ref, l, vocab, off);
            print_message("%s, kv %s: half of the positions within %.1e, nine in ten %.1e, all %.1e\n",
                          cpu_level_name((enum cpu_level)level), dtype_name(kinds[i].kv), off[N / 2],
                          off[N * 9 / 10 - 1], off[N - 1]);
            assert_true(exact ? off[N - 1] <= float_bound : off[N / 2] <= kinds[i].most);
            free(l);
            engine_close(&eng);
        }
    free(ref);
}

/* Text of a greedy or sampled answer as ids. */
static int answer(struct engine *eng, struct session *s, int n, int max, uint64_t seed, float temperature,
                  int32_t *out) {
    struct error e = {0};
    struct request r = {.tokens = prompt,
                        .n = n,
                        .max_tokens = max,
                        .flags = REQ_IGNORE_EOS,
                        .sampling = {.temperature = temperature, .top_p = 0.95f, .seed = seed}};
    assert_int_equal(session_submit(s, &r, &e), 0);
    struct event ev;
    int k = 0;
    do {
        engine_poll(eng, &ev, -1);
        if (ev.kind == EVENT_TOKEN) out[k++] = ev.token;
    } while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
    if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
    return k;
}

static void sessions_answer_side_by_side(void **st) {
    struct engine *eng = open_engine(2, DT_BF16, cpu_level_best());
    enum { S = 5, LEN = 24 };
    int32_t alone[S][LEN], together[S][LEN];
    struct session *s[S];
    struct error e = {0};
    int got[S] = {0}, done = 0;
    for (int i = 0; i < S; i++) {
        assert_int_equal(session_open(eng, &s[i], &e), 0);
        assert_int_equal(answer(eng, s[i], 10 + 9 * i, LEN, 3, 1, alone[i]), LEN);
        session_close(&s[i]);
        assert_int_equal(session_open(eng, &s[i], &e), 0);
    }
    for (int i = 0; i < S; i++) {
        struct request r = {.tokens = prompt,
                            .n = 10 + 9 * i,
                            .max_tokens = LEN,
                            .flags = REQ_IGNORE_EOS,
                            .sampling = {.temperature = 1, .top_p = 0.95f, .seed = 3}};
        assert_int_equal(session_submit(s[i], &r, &e), 0);
        assert_int_equal(session_submit(s[i], &r, &e), ERR_RUNTIME); /* busy */
    }
    while (done < S) {
        struct event ev;
        engine_poll(eng, &ev, -1);
        assert_true(ev.kind != EVENT_ERROR);
        for (int i = 0; i < S; i++)
            if (ev.session == s[i] && ev.kind == EVENT_TOKEN) together[i][got[i]++] = ev.token;
        done += ev.kind == EVENT_DONE;
    }
    assert_memory_equal(alone, together, sizeof alone);
    for (int i = 0; i < S; i++) session_close(&s[i]);
    engine_close(&eng);
}

static void a_turn_can_be_stopped(void **st) {
    struct engine *eng = open_engine(2, DT_BF16, cpu_level_best());
    struct session *s;
    struct error e = {0};
    assert_int_equal(session_open(eng, &s, &e), 0);
    struct request r = {.tokens = prompt, .n = 20, .max_tokens = -1, .flags = REQ_IGNORE_EOS};
    assert_int_equal(session_submit(s, &r, &e), 0);
    struct event ev;
    double least = 1e9; /* other processes only ever make it longer */
    for (int times = 0; times < 12 && least > 0.2; times++) {
        int tokens = 0;
        if (times) assert_int_equal(session_submit(s, &r, &e), 0);
        while (tokens < 3) {
            engine_poll(eng, &ev, -1);
            if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
            assert_int_not_equal(ev.kind, EVENT_DONE);
            tokens += ev.kind == EVENT_TOKEN;
        }
        session_cancel(s);
        double t = clock_now();
        ev = wait_end(eng);
        if (clock_now() - t < least) least = clock_now() - t;
        assert_int_equal(ev.reason, DONE_CANCELLED);
    }
    assert_true(least < 0.2);
    assert_false(session_busy(s));
    const int32_t *held;
    assert_true(session_tokens(s, &held) >= 20 && !memcmp(held, prompt, 20 * sizeof *held));
    int32_t out[4];
    assert_int_equal(answer(eng, s, 20, 4, 1, 0, out), 4); /* and remains usable */
    struct request over = {.tokens = prompt, .n = N, .max_tokens = 1};
    int32_t many[9000] = {0};
    over.tokens = many, over.n = 9000;
    assert_int_equal(session_submit(s, &over, &e), ERR_CONTEXT);
    assert_non_null(strstr(e.text, "9000"));
    over.n = 3, many[1] = -5;
    assert_int_equal(session_submit(s, &over, &e), ERR_USAGE);
    assert_int_equal(session_submit(s, &r, &e), 0);
    session_close(&s); /* in the middle of a turn */
    engine_close(&eng);
}

static void no_memory_is_an_error(void **st) {
    int n = 0, rc = ERR_MEMORY;
    for (; rc; n += n < 40 ? 1 : n / 10) {
        struct engine *eng = NULL;
        struct error e = {0};
        struct engine_params p = {.dir = "ember:", .threads = 1};
        fault_set(FAULT_ALLOC, n + 1, false, false);
        rc = engine_open(&eng, &p, &e);
        fault_set(FAULT_ALLOC, 0, false, false);
        if (rc) assert_true(e.code == ERR_MEMORY && e.text[0] && !eng);
        else engine_close(&eng);
    }
    assert_true(n > 10);
}

int main(void) {
    file_embed(ember_files);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_by_one_equals_all_at_once), cmocka_unit_test(threads_give_identical_bytes),
        cmocka_unit_test(levels_and_caches_agree),       cmocka_unit_test(sessions_answer_side_by_side),
        cmocka_unit_test(a_turn_can_be_stopped),         cmocka_unit_test(no_memory_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
