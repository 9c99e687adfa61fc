#include "cli/hub/hub_progress.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/test_limits.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/progress.h"

enum { LINE_S = 30 }; /* between lines without a terminal */

static uint64_t bytes_now(const struct hub_progress *p) {
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct hub_download *d = &p->downloads[i];
        sum += d->is_complete ? d->file->size : d->fd >= 0 ? d->have : hub_store_bytes(d->store, d->file);
    }
    return sum;
}

void hub_progress_begin(struct hub_progress *p) {
    char total[32], have[32];
    p->total = 0;
    for (size_t i = 0; i < p->n; i++) p->total += p->downloads[i].file->size;
    p->begun_with = p->last_bytes = bytes_now(p);
    p->begun = p->last = p->said = clock_now();
    if (p->shows && p->begun_with)
        report_note("continuing the download: %s of %s are there", amount_bytes(p->begun_with, have, sizeof have),
                    amount_bytes(p->total, total, sizeof total));
    else if (p->shows && !p->is_terminal)
        report_note("downloading %s in %zu file%s", amount_bytes(p->total, total, sizeof total), p->n,
                    p->n == 1 ? "" : "s");
    progress_begin("downloading");
}

/* Takes a sample of the rate every half second; a rewound file counts as no progress. */
static void sample(struct hub_progress *p, uint64_t bytes, double now) {
    const double since = now - p->last;
    if (since < 0.5) return;
    const double rate = bytes > p->last_bytes ? (double)(bytes - p->last_bytes) / since : 0;
    p->rate = p->rate > 0 ? 0.8 * p->rate + 0.2 * rate : rate;
    p->last = now;
    p->last_bytes = bytes;
}

void hub_progress_tick(void *progress) {
    struct hub_progress *p = progress;
    const uint64_t bytes = bytes_now(p);
    const double now = clock_now(), second = 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    char have[32], total[32], rate[32], left[32], what[64];
    sample(p, bytes, now);
    const double left_s = p->rate > 0 ? (double)(p->total - bytes) / p->rate : -1;
    amount_bytes(bytes, have, sizeof have);
    amount_bytes(p->total, total, sizeof total);
    amount_bytes((uint64_t)p->rate, rate, sizeof rate);
    snprintf(what, sizeof what, "%.14s of %.14s, %.14s/s", have, total, rate);
    progress_update(what, p->total ? (double)bytes / (double)p->total : 1, left_s);
    if (!p->shows || p->is_terminal || now - p->said < LINE_S * second || left_s < 0) return;
    p->said = now;
    report_note("%s of %s, %s/s, %s left", have, total, rate, amount_duration(left_s, left, sizeof left));
}
