#pragma once
/* Times that the CPU took to read short prompts, by their tokens: what joining prompts gains depends on how the time
 * grows with the rows of a batch, which the cost model knows only roughly. Pure, not synchronized. */
#include <stdbool.h>

enum { READ_TIMES = 20 };
struct read_times {
    struct {
        int n;          /* tokens of the batch; 0: nothing measured */
        unsigned added; /* number of the last batch that was entered */
        double seconds;
    } at[READ_TIMES]; /* by half an octave of n; the mean of recent ones */
    unsigned n_added; /* batches entered */
};
/* Enters a batch of n tokens, 1 to 512; others are left out. */
void read_times_add(struct read_times *t, int n, double seconds);
/* Returns the time of a batch of n tokens: between two measured ones on the line between them; below all, the nearest
 * one times expected(ctx, n) / expected(ctx, that one's tokens); above all, the growth to twice the time is halved, so
 * that larger batches are tried, and then measured; without any, expected(ctx, n). What was not measured again while 12
 * others were does not count: it may have been a cold start, or another load, and would keep itself from being tried.
 */
double read_times_expect(const struct read_times *t, int n, double (*expected)(const void *ctx, int n),
                         const void *ctx);
