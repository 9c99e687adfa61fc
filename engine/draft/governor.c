#include "engine/draft/governor.h"

#include <math.h>

/* It pays: what it must gain. A step with guesses may take so many times as long as one without, where others wait for it too. A cost is old after
 * so many steps; what was lost and saved is forgotten over so many. May be lost: of all time. A trial guesses so many tokens; a cost is known when it was
 * seen so often. */
static const double pays = 1.05, longest_beside = 2, longest_alone = 8, may_lose = 0.01;
enum { FRESH = 32, OLD = 256, FORGET = 512, TRIAL = 3, SURE = 4 };

double governor_cost(const struct governor *g, int way, int rows) {
    int below = 0, above = 0, first = 0;
    for (int r = 1; r <= GOVERNOR_ROWS; r++) {
        if (!g->cost[way][r].n) continue;
        if (!first) first = r;
        if (r <= rows) below = r;
        else if (!above) above = r;
    }
    if (!first) return 0;
    if (!below) return g->cost[way][above].seconds; /* at most */
    const double at = g->cost[way][below].seconds;
    if (above) return at + (g->cost[way][above].seconds - at) * (rows - below) / (above - below);
    const double slope = below > first ? (at - g->cost[way][first].seconds) / (below - first) : at / below;
    return at + (slope > 0 ? slope : 0) * (rows - below);
}

static double share(const struct governor *g, int level, int place) {
    static const double before[GOVERNOR_LEVELS] = {0.3, 0.4, 0.5, 0.7, 0.8, 0.85}; /* weighs as two that were seen */
    const double n = g->right[level][place].n < 16 ? g->right[level][place].n : 16;
    return (before[level] * 2 + g->right[level][place].share * n) / (2 + n);
}

double governor_choose(const struct governor *g, const struct governor_in *in, int *k) {
    int path[GOVERNOR_ROWS], n_path = 0; /* whose guess is the next row */
    double chance[GOVERNOR_ROWS], expected[GOVERNOR_ROWS + 1];
    double cost[GOVERNOR_ROWS + 1] = {0}; /* of guesses so far */
    int taken[GOVERNOR_ROWS];
    const double base = governor_cost(g, in->way, in->rows), longest = in->n > 1 ? longest_beside : longest_alone;
    for (int i = 0; i < in->n; i++) {
        k[i] = taken[i] = 0;
        chance[i] = in->most[i] ? share(g, in->level[i], 0) : 0;
    }
    if (!base || !in->n) return 1;
    expected[0] = in->n;
    while (in->rows + n_path < GOVERNOR_ROWS) { /* the likeliest next */
        int best = 0;
        for (int i = 1; i < in->n; i++)
            if (chance[i] > chance[best]) best = i;
        if (!(chance[best] > 0)) break;
        expected[n_path + 1] = expected[n_path] + chance[best];
        cost[n_path + 1] = cost[n_path] + in->dear[best] * g->guess_s;
        path[n_path++] = best;
        taken[best]++;
        chance[best] = taken[best] < in->most[best] && taken[best] < GOVERNOR_LENGTH ? chance[best] * share(g, in->level[best], taken[best]) : 0;
    }
    if (!n_path) return 1;
    int best = 0;
    double most = 1;
    for (int m = 1; m <= n_path; m++) {
        const double t = governor_cost(g, in->way, in->rows + m) + cost[m], gain = expected[m] / t * base / in->n;
        if (t <= longest * base && gain > most) most = gain, best = m;
    }
    const double room = g->saved + may_lose * g->spent;
    if (most < pays || room < 0) best = 0;
    else if (g->steps - g->cost[in->way][in->rows].at >= FRESH) best = 0; /* what is compared with must be known */
    if (!best) {                                                          /* what a step of more rows takes is found out, if that costs little */
        for (int m = n_path < TRIAL ? n_path : TRIAL; m && !best; m--) {
            const double t = governor_cost(g, in->way, in->rows + m) + cost[m], lost = t - expected[m] * base / in->n;
            const int r = in->rows + m;
            const int unknown = g->cost[in->way][r].n < SURE || g->steps - g->cost[in->way][r].at >= OLD;
            if (unknown && lost <= room && g->cost[in->way][in->rows].n) best = m, most = 1;
        }
    }
    for (int m = 0; m < best; m++) k[path[m]]++;
    return best ? most : 1;
}

double governor_ran(struct governor *g, int way, int n, int rows, int guesses, int right, double seconds, int dear, double guess_s) {
    const int r = rows + guesses;
    if (r > GOVERNOR_ROWS || !(seconds > 0)) return 0;
    g->steps++;
    const double base = governor_cost(g, way, rows), forget = 1 - 1.0 / FORGET;
    double x = seconds, saved = 0;
    if (g->cost[way][r].n < 3 && x < g->cost[way][r].seconds / 2) g->cost[way][r].n = 0;                     /* those before read weights for the first time */
    if (g->cost[way][r].n >= 3) x = fmin(fmax(x, g->cost[way][r].seconds / 2), g->cost[way][r].seconds * 2); /* something else ran */
    const double a = g->cost[way][r].n < 8 ? 1.0 / (g->cost[way][r].n + 1) : g->steps - g->cost[way][r].at > 2 * FRESH ? 0.5 : 0.125;
    g->cost[way][r].seconds += a * (x - g->cost[way][r].seconds);
    g->cost[way][r].n++;
    g->cost[way][r].at = g->steps;
    if (dear) g->guess_s += (g->guess_s > 0 ? 0.25 : 1) * (guess_s / dear - g->guess_s);
    if (guesses && base > 0) saved = (n + right) * base / n - x - guess_s;
    g->spent = g->spent * forget + x + guess_s;
    g->saved = fmin(g->saved * forget + saved, may_lose * g->spent); /* a good time is no licence for a bad one */
    return saved;
}

void governor_saw(struct governor *g, int level, int place, int right) {
    const double a = fmax(1.0 / (g->right[level][place].n + 1), 1.0 / 16);
    g->right[level][place].share += (float)(a * ((right != 0) - (double)g->right[level][place].share));
    g->right[level][place].n++;
}
