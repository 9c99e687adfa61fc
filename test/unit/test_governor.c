/* How many tokens are guessed before a step, in virtual time: where guessing pays the governor comes close to the best fixed length,
 * where it loses it costs less than two hundredths, and it follows when either changes. */
#include "test/unit/unit.h"

#include <math.h>

#include "engine/draft/governor.h"

/* A machine: a step of so many rows takes first + (rows - 1) * more, times what else runs; a guessed token takes `guess`. */
struct world {
    double first, more, guess, noise;
    double right[2]; /* of guesses of the first session, of the others */
    int most;        /* tokens that a draft has */
    int every;       /* steps between two that it has any for */
};
static uint32_t seed;
static double any(void) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) / 16777216.0;
}

/* Tokens a second over so many steps of n sessions; fixed >= 0: always so many guesses. */
static double run(struct governor *g, const struct world *w, int n, int steps, int fixed, double *guesses) {
    double t = 0, tokens = 0, all = 0;
    for (int s = 0; s < steps; s++) {
        struct governor_in in = {.way = 1, .n = n, .rows = n};
        int k[GOVERNOR_ROWS], rows = n, right = 0;
        for (int i = 0; i < n; i++) in.most[i] = s % w->every ? 0 : w->most, in.level[i] = i ? 1 : 2, in.dear[i] = w->guess > 0, k[i] = 0;
        double gain = fixed < 0 ? governor_choose(g, &in, k) : 1;
        assert_true(gain >= 1);
        for (int i = 0; i < n; i++) {
            if (fixed >= 0) k[i] = in.most[i] ? fixed : 0;
            assert_true(k[i] >= 0 && k[i] <= in.most[i]);
            rows += k[i];
            int good = 0;
            while (good < k[i] && any() < w->right[i > 0]) good++;
            for (int p = 0; p < k[i] && p <= good; p++) governor_saw(g, in.level[i], p, p < good);
            right += good;
        }
        assert_true(rows <= GOVERNOR_ROWS);
        double seconds = (w->first + (rows - 1) * w->more) * (1 + w->noise * (2 * any() - 1)), drafting = (rows - n) * w->guess;
        if (fixed < 0) governor_ran(g, 1, n, n, rows - n, right, seconds, w->guess > 0 ? rows - n : 0, drafting);
        t += seconds + drafting, tokens += n + right, all += rows - n;
    }
    *guesses = all / steps;
    return tokens / t;
}

static void guesses_pay_or_are_left(void **st) {
    static const struct world worlds[] = {{1, 0.02, 0, 0, {0.9, 0.9}, 16, 1},    {1, 0.2, 0.05, 0.1, {0.8, 0.5}, 16, 1}, {1, 0.5, 0, 0.1, {0.95, 0.2}, 16, 1},
                                          {1, 0.9, 0, 0.1, {0.9, 0.9}, 16, 1},   {1, 0.9, 0.1, 0.2, {0.3, 0.3}, 16, 1},  {1, 0.1, 0, 0.1, {0.02, 0.02}, 16, 1},
                                          {1, 0.3, 0.9, 0.1, {0.9, 0.9}, 8, 1},  {1, 0.1, 0, 0.3, {0.9, 0.05}, 16, 5},   {1, 1.2, 0, 0.3, {0.99, 0.99}, 3, 1},
                                          {1, 0.05, 0.06, 0.2, {0.7, 0.7}, 3, 1}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        for (int n = 1; n <= 4; n += 3) {
            struct governor g = {0};
            double guesses, best = 0, none = 0;
            int length = 0;
            for (int k = 0; k <= worlds[i].most && n + n * k <= GOVERNOR_ROWS; k++) {
                seed = 5;
                double x = run(&g, &worlds[i], n, 4000, k, &guesses);
                if (!k) none = x;
                if (x > best) best = x, length = k;
            }
            seed = 7;
            g = (struct governor){0};
            double x = run(&g, &worlds[i], n, 4000, -1, &guesses);
            print_message("world %zu, %d sessions: %.3f of none, best fixed length %d %.3f; %.2f guesses a step\n", i, n, x / none, length, best / none,
                          guesses);
            if (x < none * 0.98) fail_msg("it loses: %.3f of what no draft gives", x / none);
            if (x < none * 0.99 + (best - none) * (worlds[i].noise > 0.15 ? 0.5 : 0.75)) fail_msg("%.3f, a fixed length gives %.3f", x / none, best / none);
        }
}

/* From a text that repeats itself to one that does not, and back. */
static void it_follows_the_text(void **st) {
    struct world good = {1, 0.1, 0, 0.1, {0.9, 0.9}, 16, 1}, bad = good;
    bad.right[0] = bad.right[1] = 0;
    struct governor g = {0};
    double guesses, x, last = 0;
    seed = 11;
    for (int turn = 0; turn < 4; turn++) {
        run(&g, &good, 1, 1500, -1, &guesses);
        x = run(&g, &good, 1, 300, -1, &guesses);
        assert_true(guesses > 3 && x > 2);
        x = run(&g, &bad, 1, 1500, -1, &guesses);
        if (x < 0.98) fail_msg("turn %d: %.3f", turn, x);
        run(&g, &bad, 1, 300, -1, &last);
        assert_true(last < 0.3);
    }
}

static void nothing_is_guessed_before_anything_is_known(void **st) {
    struct governor g = {0};
    struct governor_in in = {.way = 0, .n = 2, .rows = 2, .level = {4, 4}, .most = {16, 16}};
    int k[GOVERNOR_ROWS];
    assert_true(governor_choose(&g, &in, k) == 1 && !k[0] && !k[1] && governor_cost(&g, 0, 2) == 0);
    governor_ran(&g, 0, 2, 2, 0, 0, 1, 0, 0);
    assert_true(governor_cost(&g, 0, 2) == 1 && governor_cost(&g, 0, 4) == 2 && governor_cost(&g, 1, 2) == 0);
    governor_ran(&g, 0, 2, 2, 4, 4, 1.5, 0, 0);
    assert_true(fabs(governor_cost(&g, 0, 4) - 1.25) < 1e-9 && fabs(governor_cost(&g, 0, 10) - 2) < 1e-9);
    in.rows = GOVERNOR_ROWS;
    governor_choose(&g, &in, k);
    assert_true(!k[0] && !k[1]); /* no row is left */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_guessed_before_anything_is_known), cmocka_unit_test(guesses_pay_or_are_left),
                                       cmocka_unit_test(it_follows_the_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
