/* The draft length governor in virtual time: where drafting pays it comes close to the best fixed length, where it does
 * not it costs less than 2 %, and it adapts when either changes. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdlib.h>

#include "engine/draft/governor.h"

/* A machine: a batch of n rows takes first + (n - 1) * more, times a disturbance; drafting a token takes `guess`. */
struct world {
    double first, more, guess, noise;
    double right[2]; /* accuracy of the first session's drafts, of the others' */
    int most;        /* draft tokens available at most */
    int every;       /* batches between two that have any */
};
static uint32_t seed;
static double any(void) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) / 16777216.0;
}

/* Returns tokens per second over a number of batches of n sessions; fixed >= 0: always that draft length. */
static double run(struct governor *g, const struct world *w, int n, int steps, int fixed, double *guesses) {
    double t = 0, tokens = 0, all = 0;
    for (int s = 0; s < steps; s++) {
        struct governor_in in = {.mode = 1, .n = n, .rows = n};
        int k[GOVERNOR_ROWS], rows = n, right = 0;
        for (int i = 0; i < n; i++)
            in.max_drafted[i] = s % w->every ? 0 : w->most, in.confidence[i] = i ? 1 : 2,
            in.is_model_draft[i] = w->guess > 0, k[i] = 0;
        double gain = fixed < 0 ? governor_choose(g, &in, k) : 1;
        assert_true(gain >= 1);
        for (int i = 0; i < n; i++) {
            if (fixed >= 0) k[i] = in.max_drafted[i] ? fixed : 0;
            assert_true(k[i] >= 0 && k[i] <= in.max_drafted[i]);
            rows += k[i];
            /* free drafts are judged even if no batch verifies them */
            const int looked = w->guess > 0 || k[i] ? k[i] : in.max_drafted[i];
            int good = 0;
            while (good < looked && any() < w->right[i > 0]) good++;
            for (int p = 0; p < looked && p <= good; p++) governor_judge(g, in.confidence[i], p, p < good);
            if (k[i]) right += good;
        }
        assert_true(rows <= GOVERNOR_ROWS);
        double seconds = (w->first + (rows - 1) * w->more) * (1 + w->noise * (2 * any() - 1)),
               drafting = (rows - n) * w->guess;
        if (fixed < 0)
            governor_record(g, &(struct governor_sample){.mode = 1,
                                                         .n = n,
                                                         .rows = n,
                                                         .n_drafted = rows - n,
                                                         .n_accepted = right,
                                                         .seconds = seconds,
                                                         .n_model_drafted = w->guess > 0 ? rows - n : 0,
                                                         .draft_s = drafting});
        t += seconds + drafting, tokens += n + right, all += rows - n;
    }
    *guesses = all / steps;
    return tokens / t;
}

static void guesses_pay_or_are_left(void **st) {
    static const struct world worlds[] = {
        {1, 0.02, 0, 0, {0.9, 0.9}, 16, 1},    {1, 0.2, 0.05, 0.1, {0.8, 0.5}, 16, 1},
        {1, 0.5, 0, 0.1, {0.95, 0.2}, 16, 1},  {1, 0.9, 0, 0.1, {0.9, 0.9}, 16, 1},
        {1, 0.9, 0.1, 0.2, {0.3, 0.3}, 16, 1}, {1, 0.1, 0, 0.1, {0.02, 0.02}, 16, 1},
        {1, 0.3, 0.9, 0.1, {0.9, 0.9}, 8, 1},  {1, 0.1, 0, 0.3, {0.9, 0.05}, 16, 5},
        {1, 1.2, 0, 0.3, {0.99, 0.99}, 3, 1},  {1, 0.05, 0.06, 0.2, {0.7, 0.7}, 3, 1}};
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
            print_message("world %zu, %d sessions: %.3f of none, best fixed length %d %.3f; %.2f guesses a step\n", i,
                          n, x / none, length, best / none, guesses);
            if (x < none * 0.98) fail_msg("it loses: %.3f of what no draft gives", x / none);
            if (x < none * 0.99 + (best - none) * (worlds[i].noise > 0.15 ? 0.5 : 0.75))
                fail_msg("%.3f, a fixed length gives %.3f", x / none, best / none);
        }
}

/* An answer of 300 tokens by a model that is read for the first time, with no draft accepted: the first batches take
 * several times as long as later ones. */
struct start {
    /* share of all experts that a token chooses; factor for a batch that reads other experts for the first time */
    double chosen, longer;
    int untold; /* > 0: this many batches are slow without being reported as cold */
};
struct losing {
    double more, guess; /* time per additional row of a batch, per drafted token */
    int most, every;    /* draft tokens available; batches between two that have any */
};
static double lost_at_the_start(const struct start *start, const struct losing *draft, int *guesses) {
    enum { ANSWER = 300, FEW_COLD = 32 };
    struct governor g = {0};
    double total = 0, none = 0, unread = 1;
    *guesses = 0;
    for (int s = 0; s < ANSWER; s++) {
        const bool dear = draft->guess > 0;
        struct governor_in in = {.n = 1,
                                 .rows = 1,
                                 .max_drafted = {s % draft->every ? 0 : draft->most},
                                 .confidence = {1},
                                 .is_model_draft = {dear}};
        int k = 0;
        governor_choose(&g, &in, &k);
        if (k) governor_judge(&g, 1, 0, 0);
        const double base = (1 + unread * (start->longer - 1)) * (0.9 + 0.2 * any());
        const struct governor_sample step = {.n = 1,
                                             .rows = 1,
                                             .n_drafted = k,
                                             .n_model_drafted = dear ? k : 0,
                                             .is_cold = !start->untold && unread * FEW_COLD > 1,
                                             .seconds = base * (1 + k * draft->more),
                                             .draft_s = base * k * draft->guess};
        governor_record(&g, &step);
        total += step.seconds + step.draft_s, none += base, *guesses += k;
        unread = start->untold ? s + 1 < start->untold : unread * (1 - start->chosen);
    }
    return total / none - 1;
}
static void slow_first_steps_are_no_credit(void **st) {
    static const struct start starts[] = {{0.125, 5, 0}, {0.03, 5, 0}, {0.03, 100, 0}, {0, 3, 4}};
    static const struct losing drafts[] = {{0.9, 0, 1, 1},  {0.9, 0, 16, 1},   {0.9, 0, 16, 9},
                                           {0.3, 0, 16, 1}, {0.8, 0.8, 16, 1}, {0.05, 0.9, 16, 1}};
    double most = 0;
    seed = 3;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++) {
            int guesses;
            const double lost = lost_at_the_start(&starts[i], &drafts[d], &guesses);
            if (!guesses || lost > 0.02)
                fail_msg("start %zu, draft %zu: %d guesses, %.4f of the time is lost", i, d, guesses, lost);
            most = fmax(most, lost);
        }
    print_message("slow first steps: at most %.4f of the time is lost\n", most);
}

/* From a repetitive text to one that is not, and back. */
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

/* --- Adversaries ------------------------------------------------------------------------------ */

/* Sees the draft lengths and decides the accepted ones: all that a text can do to a governor. `step` counts batches of
 * the run, k is the session. */
struct foe {
    uint32_t seed;
    int step, guessed, since; /* batches so far; those with drafts; since the last one of these */
    int period, place;
};
static double chance(struct foe *f) {
    f->seed = f->seed * 1664525 + 1013904223;
    return (f->seed >> 8) / 16777216.0;
}
static int never(struct foe *f, int k) { return 0; }
static int by_chance(struct foe *f, int k) {
    int good = 0;
    while (good < k && chance(f) < f->place / 17.0) good++;
    return good;
}
static int first_ones(struct foe *f, int k) { return k < f->place ? k : f->place; }
static int few_only(struct foe *f, int k) { return k <= f->place ? k : 0; } /* until longer drafts come */
static int by_turns(struct foe *f, int k) { return f->step / f->period % 2 ? k : 0; }
/* accepted until it is trusted */
static int by_guesses(struct foe *f, int k) { return f->guessed / f->period % 2 ? 0 : k; }
/* trial drafts fail, later ones succeed */
static int after_a_rest(struct foe *f, int k) { return f->since > f->period ? k : 0; }
static int by_lots(struct foe *f, int k) { return (int)(chance(f) * (k + 1)); }
static int (*const foes[])(struct foe *, int) = {never,    by_chance,  first_ones,   few_only,
                                                 by_turns, by_guesses, after_a_rest, by_lots};
enum { FOES = sizeof foes / sizeof *foes };

/* A machine of which only this is known: more rows are not faster. Sometimes it jumps, and a batch may take longer than
 * its rows one by one. */
struct table {
    double seconds[GOVERNOR_ROWS + 1], guess, row, noise;
};
static double table_of(struct table *t, struct foe *f) {
    const double slope = chance(f) * chance(f) * 1.5, jump = chance(f) < 0.3 ? chance(f) * 2 : 0;
    double most = 0;
    t->seconds[1] = 1;
    for (int r = 2; r <= GOVERNOR_ROWS; r++) {
        const double more = slope * 2 * chance(f) + (chance(f) < 0.1 ? jump : 0);
        t->seconds[r] = t->seconds[r - 1] + more;
        most = fmax(most, more);
    }
    t->guess = chance(f) < 0.4 ? 0 : chance(f) * 1.2, t->row = chance(f) < 0.5 ? 0 : chance(f) * 0.02;
    t->noise = chance(f) < 0.5 ? 0 : 0.2 * chance(f);
    return most;
}

/* Returns by how many batches the loss between any two batches exceeds the given fraction of the time without drafts;
 * *over: by how many a batch with drafts took longer than known, at most. Free drafts are judged though no batch
 * verified them, as with lookup. */
static double lost_beside(struct foe *f, int (*foe)(struct foe *, int), const struct table *t, int n, int steps,
                          double share, double *over, double *whole) {
    struct governor g = {0};
    double total = 0, none = 0, low = 0, worst = 0;
    const double base = t->seconds[n];
    const bool kept = t->guess == 0;
    int behind = 0;
    *over = 0;
    for (f->step = f->guessed = f->since = 0; f->step < steps; f->step++) {
        struct governor_in in = {.n = n, .rows = n};
        int k[GOVERNOR_ROWS], rows = n, right = 0;
        for (int i = 0; i < n; i++)
            in.max_drafted[i] = 16, in.confidence[i] = (i + f->period) % GOVERNOR_LEVELS,
            in.is_model_draft[i] = t->guess > 0, in.catch_up_rows[i] = t->guess > 0 ? behind : 0;
        governor_choose(&g, &in, k);
        int caught = 0;
        for (int i = 0; i < n; i++) {
            const int looked = k[i] || !kept ? k[i] : 4;
            int good = foe(f, looked);
            good = good < 0 ? 0 : good > looked ? looked : good;
            for (int p = 0; p < looked && p <= good; p++) governor_judge(&g, in.confidence[i], p, p < good);
            if (k[i]) right += good, caught += in.catch_up_rows[i];
            rows += k[i];
        }
        assert_true(rows <= GOVERNOR_ROWS);
        const double noise = 1 + t->noise * (2 * chance(f) - 1);
        const struct governor_sample s = {.n = n,
                                          .rows = n,
                                          .n_drafted = rows - n,
                                          .n_accepted = right,
                                          .n_model_drafted = t->guess > 0 ? rows - n : 0,
                                          .n_caught_up = caught,
                                          .seconds = t->seconds[rows] * noise,
                                          .draft_s = t->guess * (rows - n),
                                          .catch_up_s = caught * t->row};
        const double known =
            governor_cost(&g, 0, rows) +
            (rows - n) *
                (g.draft_token_s > 0 || !kept ? (g.draft_token_s > 0 ? g.draft_token_s : governor_cost(&g, 0, n)) : 0) +
            caught * g.catch_up_row_s;
        if (rows > n) *over = fmax(*over, (s.seconds + s.draft_s + s.catch_up_s - known) / base);
        governor_record(&g, &s);
        total += t->seconds[rows] + s.draft_s + s.catch_up_s, none += (n + right) * base / n;
        if (rows > n) f->guessed++, f->since = 0, behind = 0;
        else f->since++, behind = behind < 256 ? behind + 1 : 256;
        const double beside = (total - (1 + share) * none) / base;
        worst = fmax(worst, beside - low);
        low = fmin(low, beside);
    }
    *whole = total / none;
    return worst;
}

static int worlds;
static void worst_case_loss_is_below_two_hundredths(void **st) {
    double most[2][FOES] = {0}, share[FOES] = {0};
    for (int world = 0; world < worlds; world++)
        for (int i = 0; i < FOES; i++) {
            struct foe f = {.seed = (uint32_t)(world * 977 + i)};
            struct table t;
            table_of(&t, &f);
            f.period = 1 + (int)(chance(&f) * chance(&f) * 400), f.place = 1 + (int)(chance(&f) * 16);
            double whole, over;
            const double lost = lost_beside(&f, foes[i], &t, 1 + world % 4, 3000, 0.02, &over, &whole);
            most[t.noise > 0][i] = fmax(most[t.noise > 0][i], lost - over), share[i] = fmax(share[i], whole);
            /* The loss may reach the savings, the credit, and 1 % of both, plus what the noise of batches hides from
             * the governor. */
            if (lost - 1.01 * over > 10.11 + 700 * t.noise)
                fail_msg("world %d, foe %d: %.2f steps are lost beside 2 %%, noise %g", world, i, lost - over, t.noise);
            if (!t.noise && whole > 1.02 + (10.1 + 1.01 * over) / 3000)
                fail_msg("world %d, foe %d: %.4f of what no draft takes", world, i, whole);
        }
    for (int i = 0; i < FOES; i++)
        print_message("foe %d: at most %.1f and %.1f steps beside 2 %%; over 3,000 steps at most %.4f of no draft\n", i,
                      most[0][i], most[1][i], share[i]);
}

static void nothing_is_guessed_before_anything_is_known(void **st) {
    struct governor g = {0};
    struct governor_in in = {.mode = 0, .n = 2, .rows = 2, .confidence = {4, 4}, .max_drafted = {16, 16}};
    int k[GOVERNOR_ROWS];
    assert_true(governor_choose(&g, &in, k) == 1 && !k[0] && !k[1] && governor_cost(&g, 0, 2) == 0);
    governor_record(&g, &(struct governor_sample){.n = 2, .rows = 2, .seconds = 1});
    assert_true(governor_cost(&g, 0, 2) == 1 && governor_cost(&g, 0, 4) == 2 && governor_cost(&g, 1, 2) == 0);
    governor_record(&g, &(struct governor_sample){.n = 2, .rows = 2, .n_drafted = 4, .n_accepted = 4, .seconds = 1.5});
    assert_true(fabs(governor_cost(&g, 0, 4) - 1.25) < 1e-9 && fabs(governor_cost(&g, 0, 10) - 2) < 1e-9);
    in.rows = GOVERNOR_ROWS;
    governor_choose(&g, &in, k);
    assert_true(!k[0] && !k[1]); /* no row is left */
}

/* Of two sessions only the first has drafts: they pay, but the other one would wait for their rows longer than the
 * bound permits. */
static void a_bound_limits_drafts_of(int n) {
    struct governor g = {0};
    struct governor_in in = {.mode = 0, .n = n, .rows = n, .confidence = {5, 5}, .max_drafted = {2, 0}};
    int k[GOVERNOR_ROWS];
    for (int i = 0; i < 100; i++) {
        for (int at = 0; at < 2; at++) governor_judge(&g, 5, at, 1);
        governor_choose(&g, &in, k);
        governor_record(&g, &(struct governor_sample){
                                .n = n, .rows = n, .n_drafted = k[0], .n_accepted = k[0], .seconds = 1 + 0.2 * k[0]});
    }
    assert_true(governor_choose(&g, &in, k) > 1 && k[0] == 2);
    in.max_batch_s = 1.3;
    assert_true(governor_choose(&g, &in, k) > 1 && k[0] == 1);
    in.max_batch_s = 1.1;
    assert_true(governor_choose(&g, &in, k) == 1 && !k[0]);
    in.max_batch_s = 0.9; /* missed anyway */
    assert_true(governor_choose(&g, &in, k) > 1 && k[0] == 2);
}
/* One session's drafts delay others, or only its own next token. */
static void a_bound_limits_drafts(void **st) {
    a_bound_limits_drafts_of(2);
    a_bound_limits_drafts_of(1);
}

/* A draft model reads its weights for the first time, which takes long and tells nothing of the next draft. */
static void the_first_draft_is_no_measure(void **state) {
    struct governor g = {0};
    struct governor_in in = {.n = 1, .rows = 1, .confidence = {3}, .max_drafted = {3}, .is_model_draft = {true}};
    int k[GOVERNOR_ROWS] = {0}, drafted = 0;
    for (int i = 0; i < 40; i++) {
        governor_choose(&g, &in, k);
        const bool first = k[0] && !drafted;
        drafted += k[0];
        governor_record(&g, &(struct governor_sample){.n = 1,
                                                      .rows = 1,
                                                      .n_drafted = k[0],
                                                      .n_accepted = k[0],
                                                      .n_model_drafted = k[0],
                                                      .n_caught_up = first ? 40 : k[0],
                                                      .seconds = 0.030 + 0.002 * k[0],
                                                      .draft_s = first ? 0.04 : 0.010 * k[0],
                                                      .catch_up_s = first ? 0.02 : 0.001 * k[0]});
        for (int j = 0; j < k[0]; j++) governor_judge(&g, 3, j, true);
    }
    assert_true(drafted >= 20); /* each saves 18 of 30 ms */
}

int main(int argc, char **argv) {
    worlds = argc > 1 ? atoi(argv[1]) : 40;
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_guessed_before_anything_is_known),
                                       cmocka_unit_test(guesses_pay_or_are_left),
                                       cmocka_unit_test(slow_first_steps_are_no_credit),
                                       cmocka_unit_test(it_follows_the_text),
                                       cmocka_unit_test(worst_case_loss_is_below_two_hundredths),
                                       cmocka_unit_test(a_bound_limits_drafts),
                                       cmocka_unit_test(the_first_draft_is_no_measure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
