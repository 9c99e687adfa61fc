#include "engine/placement/read_times.h"

#include <math.h>

static bool counts(const struct read_times *t, int i) {
    enum { LIFE = 12 }; /* batches */
    return t->at[i].n && t->n_added - t->at[i].added <= LIFE;
}
static int index_of(int n) { return (int)lround(2 * log2(n)); }

void read_times_add(struct read_times *t, int n, double seconds) {
    const double weight = 0.3; /* of a new one: noise is averaged, another load is noticed soon */
    const int i = n > 0 ? index_of(n) : READ_TIMES;
    if (i >= READ_TIMES || !(seconds > 0)) return;
    const bool is_known = counts(t, i);
    t->at[i].added = ++t->n_added;
    if (!is_known) t->at[i].n = n, t->at[i].seconds = seconds;
    /* for the tokens of the first one, so that the point stays where it is */
    else t->at[i].seconds += weight * (seconds * t->at[i].n / n - t->at[i].seconds);
}

double read_times_expect(const struct read_times *t, int n, double (*expected)(const void *ctx, int n),
                         const void *ctx) {
    int below = -1, above = -1;
    for (int i = 0; i < READ_TIMES; i++) {
        if (!counts(t, i)) continue;
        if (t->at[i].n <= n) below = i;
        else if (above < 0) above = i;
    }
    if (below < 0 && above < 0) return expected(ctx, n);
    if (below >= 0 && above >= 0) {
        const double share = (double)(n - t->at[below].n) / (t->at[above].n - t->at[below].n);
        return t->at[below].seconds + share * (t->at[above].seconds - t->at[below].seconds);
    }
    const int near = below >= 0 ? below : above, known = t->at[near].n;
    const double was = expected(ctx, known), growth = was > 0 ? expected(ctx, n) / was : 1;
    if (n <= known) return t->at[near].seconds * growth;
    /* Hoped to take half as much more: what is never tried is never measured. */
    const double twice = fmin(growth, 2), hoped = 1 + (twice - 1) / 2;
    return t->at[near].seconds * hoped * growth / twice;
}
