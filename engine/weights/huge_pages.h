#pragma once
/* Moves a checkpoint's page-cache pages to 2 MB pages while the engine is idle. A checkpoint written since boot, e.g.
 * by a download, is cached in 4 KB pages, and their TLB misses cost up to a fifth of the read speed
 * (test/bench/NOTES.md). Re-reading the mappings from disk replaces these pages (file_map_advise_huge). Engine thread
 * only, so no kernel reads a page that is being replaced. */
#include "engine/weights/checkpoint.h"

struct huge_pages {
    const struct checkpoint *files;                   /* NULL: disabled */
    int shard, n_slow;                                /* next chunk; consecutive chunks that took too long */
    size_t next_byte, done_bytes, large_bytes_before; /* bytes; before: bytes in 2 MB pages at the start */
    double seconds;
    bool is_started;
};
/* Processes one chunk of 8 MB in some milliseconds. Returns false, permanently, when everything is done or it does not
 * pay: the disk is too slow, the kernel has no large pages for files, or few bytes are in small pages. */
bool huge_pages_advance(struct huge_pages *l);
