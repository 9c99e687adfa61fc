#pragma once
/* Thresholds and sizes that tests lower so that small models take the code paths of large ones, and soon. Set before the engine opens, read by any thread. */
#include <stddef.h>

enum limit {
    LIMIT_EXPAND,   /* float32 numbers of keys and values that MLA expands at once; heads are processed in groups that fit */
    LIMIT_ROWS,     /* rows of a CPU or blended prefill batch */
    LIMIT_KEEP,     /* minimum prefill time in microseconds for its rows to be written to the KV disk cache */
    LIMIT_WAIT,     /* milliseconds that closing the engine waits for KV disk cache writes */
    LIMIT_READ,     /* bytes read by the bandwidth measurement: far more than the caches, except in tests */
    LIMIT_PIN,      /* maximum bytes of weights to pin, or to copy for pinning (default: free memory) */
    LIMIT_PATIENCE, /* milliseconds that --serve counts as one second of its request timeout */
    LIMIT_LAYERS,   /* maximum layers per device (default: as many as fit) */
    LIMIT_LAG,      /* microseconds that one of four streams of an emulated device is delayed per command (default 0); exposes objects closed while in use */
    LIMITS
};

/* Sets a limit; 0 restores the default. */
void limit_set(enum limit which, size_t size);
/* Returns the limit in force; `ordinary` is the default. */
size_t limit_get(enum limit which, size_t ordinary);
/* Reads HEARTH_LIMITS, e.g. "expand=4096,rows=48", for tests of the whole binary. Returns 0, or -1 for invalid text. */
int limit_from_env(void);
