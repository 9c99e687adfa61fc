#pragma once
/* Sizes from which on work is cut into pieces, or that it has. The ordinary ones are so large that only long prompts on large
 * models are cut at all, or that they take seconds; a test lowers them, so that small models go the same way, and soon. Set
 * before the engine opens, read by any thread. */
#include <stddef.h>

enum limit {
    LIMIT_EXPAND,   /* float32 numbers of the keys and values that MLA expands at once: heads are done in groups that fit */
    LIMIT_ROWS,     /* rows of a prefill batch on the processor, or of a blended one */
    LIMIT_KEEP,     /* microseconds that reading a prompt takes, at least, for its rows to be kept on disk */
    LIMIT_WAIT,     /* milliseconds that an engine which closes waits for the KV cache on disk to be written */
    LIMIT_READ,     /* bytes that are read to see what memory gives: far more than caches hold, but with a test */
    LIMIT_PIN,      /* bytes of weights that are pinned, or copied to be, at most: what is free */
    LIMIT_PATIENCE, /* milliseconds that --serve takes for a second when it waits for the rest of a request */
    LIMIT_LAYERS,   /* layers that one device holds: as many as fit */
    LIMIT_LAG,      /* microseconds that one stream of four of emulated devices takes longer for each command: none; finds what is closed while in use */
    LIMITS
};

/* 0 gives a limit its ordinary size back. */
void limit_set(enum limit which, size_t size);
/* The size in force where `ordinary` is the one without a test. */
size_t limit_get(enum limit which, size_t ordinary);
/* Reads HEARTH_LIMITS, e.g. "expand=4096,rows=48"; for tests on the whole binary. Returns 0, or -1 on text it does not understand. */
int limit_from_env(void);
