#pragma once
/* A checkpoint that was written since the machine started, as by a download, lies in the page cache in small pages, and walking these costs up to a
 * fifth of the speed at which weights are read (test/bench/NOTES.md). While the engine has nothing to do its maps are read from the disk anew, which brings
 * pages of 2 MB (file_map_large). The engine's thread alone, so nobody computes with what is on its way. */
#include "engine/store/safetensors.h"

struct large {
    const struct checkpoint *files; /* NULL: nothing is done */
    int shard, slow;                /* the next piece; pieces that took too long, one after the other */
    size_t at, done, before;        /* bytes; before: in large pages when it began */
    double seconds;
    bool begun;
};
/* A piece of 8 MB, milliseconds. False: nothing is left, or it does not pay: too slow a disk, a system without such pages, too little in
 * small ones; once false, always. */
bool large_one(struct large *l);
