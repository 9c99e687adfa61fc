#pragma once
/* The progress of downloads: a bar with rate and time left on a terminal, otherwise a line now and then. */
#include "cli/hub/hub_store.h"

struct hub_progress {
    const struct hub_download *downloads; /* [n] */
    size_t n;
    bool is_terminal, shows; /* shows: also lines without a terminal */
    uint64_t total, begun_with, last_bytes;
    double begun, last, said; /* clock: the beginning, the last sample of the rate, the last line */
    double rate;              /* bytes per second, smoothed */
};
void hub_progress_begin(struct hub_progress *p);
void hub_progress_tick(void *progress);
