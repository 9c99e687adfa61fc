#pragma once
/* Moves a checkpoint's page-cache pages to 2 MB pages, in a thread that ends when everything is done. Weights that were
 * written since boot, e.g. by a download, or evicted in part and read again, are cached in 4 KB pages, and their TLB
 * misses cost up to a fifth of the read speed, in virtual machines half of it (test/bench/decode.md). Reading the
 * mappings from disk again replaces these pages (file_map_advise_huge); compute threads that need one of them
 * meanwhile wait for a millisecond. Ranges that are not in memory are left to their first access.
 *
 * It gives up where it does not pay: the disk is too slow, or the system has no large pages for these files. Kernels
 * before 6.7 do not tell which pages are large, and nothing is done. */
#include "engine/weights/checkpoint.h"

struct huge_pages;
/* Starts the thread. No other part may replace parts of the maps until huge_pages_close. *out is NULL if there is
 * nothing to do, or no thread: the weights stay where they are. */
void huge_pages_open(struct huge_pages **out, const struct checkpoint *files);
void huge_pages_close(struct huge_pages **l); /* ends within some milliseconds; before the files are closed */
