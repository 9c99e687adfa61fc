#include "engine/draft/governor.h"

#include <math.h>

/* MIN_GAIN: of a batch with drafts that pays. LONGEST_*: most time of one, relative to a batch without; shorter if
 * other sessions wait. MAX_LOSS: fraction of all time. MAX_ACCOUNT, CREDIT: limits of the account, in batches. */
static const double MIN_GAIN = 1.05, LONGEST_BESIDE = 2, LONGEST_ALONE = 8, MAX_LOSS = 0.005, MAX_ACCOUNT = 8,
                    CREDIT = 2;
/* A batch below this fraction of the known time shows that the earlier ones were disturbed: a batch cannot be faster
 * than its work. */
static const double DISTURBED_BELOW = 0.5;
/* In batches: the base cost expires after FRESH, other costs after OLD. In samples: a cost is known after SURE, usable
 * as the base after KNOWN. A trial drafts TRIAL tokens. Without expected gain it drafts one, after SOON batches, then
 * twice as many, up to SELDOM, reset by an accepted token. The first REST batches after drafts are ignored, since
 * drafts disturb the caches. */
enum { FRESH = 32, OLD = 256, SURE = 4, KNOWN = 8, TRIAL = 3, SOON = 256, SELDOM = 4096, REST = 2 };

double governor_cost(const struct governor *g, int way, int rows) {
    int below = 0, above = 0, first = 0;
    for (int r = 1; r <= GOVERNOR_ROWS; r++) {
        if (!g->cost[way][r].n_samples) continue;
        if (!first) first = r;
        if (r <= rows) below = r;
        else if (!above) above = r;
    }
    if (!first) return 0;
    if (!below) return g->cost[way][above].seconds; /* an upper bound */
    const double at = g->cost[way][below].seconds;
    if (above) return at + (g->cost[way][above].seconds - at) * (rows - below) / (above - below);
    const double slope = below > first ? (at - g->cost[way][first].seconds) / (below - first) : at / below;
    return at + (slope > 0 ? slope : 0) * (rows - below);
}

/* Acceptance rate at this position of a draft; a rarely seen position tends to the previous one's. */
static double acceptance(const struct governor *g, int level, int place) {
    static const double before[GOVERNOR_LEVELS] = {0.3, 0.4, 0.5, 0.7, 0.8, 0.85}; /* prior; weighs as two samples */
    double x = before[level];
    for (int i = 0; i <= place; i++) {
        const double n = g->accepted[level][i].n < 16 ? g->accepted[level][i].n : 16;
        x = (x * 2 + g->accepted[level][i].share * n) / (2 + n);
    }
    return x;
}

/* Unknown drafting cost is assumed to be that of a batch. */
double governor_choose(struct governor *g, const struct governor_in *in, int *k) {
    int path[GOVERNOR_ROWS], n_path = 0; /* path: session of each next row */
    double chance[GOVERNOR_ROWS], expected[GOVERNOR_ROWS + 1];
    double cost[GOVERNOR_ROWS + 1] = {0}, once[GOVERNOR_ROWS + 1] = {0}; /* cost: drafting so far; once: catching up */
    int taken[GOVERNOR_ROWS];
    const double base = governor_cost(g, in->mode, in->rows), longest = in->n > 1 ? LONGEST_BESIDE : LONGEST_ALONE;
    const double guess_s = g->draft_token_s > 0 ? g->draft_token_s : base;
    bool dear = false;
    for (int i = 0; i < in->n; i++) {
        k[i] = taken[i] = 0;
        chance[i] = in->max_drafted[i] ? acceptance(g, in->confidence[i], 0) : 0;
    }
    if (!base || !in->n) return 1;
    expected[0] = in->n;
    while (in->rows + n_path < GOVERNOR_ROWS) { /* the likeliest token next */
        int best = 0;
        for (int i = 1; i < in->n; i++)
            if (chance[i] > chance[best]) best = i;
        if (!(chance[best] > 0)) break;
        expected[n_path + 1] = expected[n_path] + chance[best];
        cost[n_path + 1] = cost[n_path] + in->is_model_draft[best] * guess_s;
        once[n_path + 1] = once[n_path] + (taken[best] ? 0 : in->catch_up_rows[best] * g->catch_up_row_s);
        dear |= in->is_model_draft[best];
        path[n_path++] = best;
        taken[best]++;
        chance[best] = taken[best] < in->max_drafted[best] && taken[best] < GOVERNOR_LENGTH
                           ? chance[best] * acceptance(g, in->confidence[best], taken[best])
                           : 0;
    }
    int best = 0, trial = 0;
    double most = MIN_GAIN;
    const double room = g->account_s + CREDIT * base;
    bool seen = false, one = false,
         /* seen: samples with more rows; one: a single draft is affordable; could: it would pay off if all were
            accepted */
        could = false;
    for (int r = in->rows + 1; r <= GOVERNOR_ROWS; r++) seen |= g->cost[in->mode][r].n_samples > 0;
    for (int m = 1; m <= n_path; m++) {
        const int r = in->rows + m;
        const double t = governor_cost(g, in->mode, r), all = t + cost[m], gain = expected[m] / all * base / in->n,
                     known = g->draft_token_s > 0 ? cost[m] : 0;
        could |= (in->n + m) * base > MIN_GAIN * in->n * ((seen ? t : base) + known);
        if (all + once[m] - base > room) continue; /* if all were rejected */
        if (base <= in->max_batch_s && all > in->max_batch_s) continue;
        one |= m == 1;
        if (all <= longest * base && gain > most) most = gain, best = m;
        const bool unknown =
            g->cost[in->mode][r].n_samples < SURE || g->n_batches - g->cost[in->mode][r].batch_no >= OLD;
        /* extra rows might be free */
        if (m <= TRIAL && unknown && expected[m] * base > MIN_GAIN * in->n * (base + known)) trial = m;
    }
    if (!trial && one && dear && g->n_batches - g->last_trial >= (could ? g->trial_wait : SELDOM)) trial = 1;
    const double old = best ? fmin(FRESH, 64 * (most - 1)) : 4; /* the base must be recent, more so for small gains */
    if (g->cost[in->mode][in->rows].n_samples < KNOWN ||
        (double)(g->n_batches - g->cost[in->mode][in->rows].batch_no) >= old)
        return 1;
    if (best) g->trial_wait = SOON;
    else if ((best = trial)) {
        most = 1;
        g->last_trial = g->n_batches;
        g->trial_wait = g->trial_wait < SOON ? SOON : g->trial_wait < SELDOM ? 2 * g->trial_wait : SELDOM;
    }
    for (int m = 0; m < best; m++) k[path[m]]++;
    return best ? most : 1;
}

/* Exponential average, starting from the first value. */
static void update_average(double *average, double x, double weight) {
    *average += (*average > 0 ? weight : 1) * (x - *average);
}

/* Adds a sample. */
static void add_sample(struct governor_cost *c, double x, uint64_t at) {
    float v[GOVERNOR_LAST]; /* sorted */
    if (x < DISTURBED_BELOW * c->seconds) c->n_samples = 0;
    c->last[c->n_samples++ % GOVERNOR_LAST] = (float)x;
    const int n = c->n_samples < GOVERNOR_LAST ? c->n_samples : GOVERNOR_LAST;
    for (int i = 0, k; i < n; i++) {
        for (k = i; k > 0 && v[k - 1] > c->last[i]; k--) v[k] = v[k - 1];
        v[k] = c->last[i];
    }
    double sum = 0;
    for (int i = n / 4; i < n - n / 4; i++) sum += (double)v[i];
    c->seconds = sum / (n - n / 4 * 2), c->batch_no = at;
}

double governor_record(struct governor *g, const struct governor_sample *s) {
    const int r = s->rows + s->n_drafted;
    if (r > GOVERNOR_ROWS || !(s->seconds > 0)) return 0;
    g->n_batches++;
    const double base = governor_cost(g, s->mode, s->rows), known = g->cost[s->mode][r].seconds;
    double x = s->seconds, saved = 0;
    /* limit outliers: other load ran */
    if (g->cost[s->mode][r].n_samples >= SURE) x = fmin(fmax(x, known / 2), known * 2);
    g->n_since_draft = s->n_drafted ? 0 : g->n_since_draft + 1;
    if (!s->is_cold && (s->n_drafted || g->n_since_draft > REST || !g->cost[s->mode][r].n_samples))
        add_sample(&g->cost[s->mode][r], s->seconds, g->n_batches);
    if (s->n_model_drafted && s->n_accepted) g->trial_wait = 0;
    /* the first draft reads the model's weights for the first time, and tells nothing of the next one */
    if (s->n_model_drafted && g->has_drafted) {
        update_average(&g->draft_token_s, s->draft_s / s->n_model_drafted, 0.25);
        if (s->n_caught_up) update_average(&g->catch_up_row_s, s->catch_up_s / s->n_caught_up, 0.25);
    }
    g->has_drafted |= s->n_model_drafted > 0;
    if (s->n_drafted && base > 0) saved = (s->n + s->n_accepted) * base / s->n - x;
    saved -= s->draft_s + s->catch_up_s;
    g->account_s = fmin(g->account_s + MAX_LOSS * (x + s->draft_s + s->catch_up_s) + saved, MAX_ACCOUNT * base);
    return saved;
}

void governor_judge(struct governor *g, int level, int place, int right) {
    const double a = fmax(1.0 / (g->accepted[level][place].n + 1), 1.0 / 16);
    g->accepted[level][place].share += (float)(a * ((right != 0) - (double)g->accepted[level][place].share));
    g->accepted[level][place].n++;
}
