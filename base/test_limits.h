#pragma once
/* Thresholds and sizes that tests lower so that small models take the code paths of large ones, and soon. Set before
 * the engine opens, read by any thread. */
#include <stddef.h>

enum test_limit {
    /* float32 numbers of keys and values that MLA expands at once; heads are processed in groups that fit */
    TEST_LIMIT_MLA_EXPAND,
    TEST_LIMIT_PREFILL_ROWS, /* rows of a CPU or blended prefill batch */
    /* minimum prefill time in microseconds for its rows to be written to the KV disk cache */
    TEST_LIMIT_KV_DISK_MIN_US,
    TEST_LIMIT_KV_DISK_CLOSE_MS, /* milliseconds that closing the engine waits for KV disk cache writes */
    /* bytes read by the bandwidth measurement: far more than the caches, except in tests */
    TEST_LIMIT_BANDWIDTH_BYTES,
    TEST_LIMIT_PIN_BYTES, /* maximum bytes of weights to pin, or to copy for pinning (default: free memory) */
    /* milliseconds that --serve and the client of MCP servers count as one second of a timeout */
    TEST_LIMIT_SERVE_SECOND_MS,
    TEST_LIMIT_DEVICE_LAYERS, /* maximum layers per device (default: as many as fit) */
    /* microseconds that streams of emulated devices are delayed per command (default 0); exposes objects closed while
       in use */
    TEST_LIMIT_STREAM_LAG_US,
    TEST_LIMIT_STREAM_LAG_OF, /* every Nth stream is delayed, chosen by its address (default 4) */
    TEST_LIMIT_STAGE_BYTES,   /* largest upload of unpinned memory that goes without staging threads */
    TEST_LIMIT_WAITS_AHEAD,   /* waits for uploads before a reader lets the staging threads finish */
    /* of partial results of attention on a CUDA device; calls with more run in groups of rows */
    TEST_LIMIT_ATTENTION_PARTS_BYTES,
    TEST_LIMIT_SPIN_POLLS,   /* polls of a waiting thread before it sleeps */
    TEST_LIMIT_COPY_BYTES,   /* bytes of weights that are copied at once, so that they can be pinned */
    TEST_LIMIT_DEVICE_CHATS, /* maximum chats whose KV cache is on devices (default: as many as fit) */
    /* batches of a time slice of sessions whose caches do not fit devices together (default: by the cost model) */
    TEST_LIMIT_SLICE_BATCHES,
    TEST_LIMIT_FOUND_DEVICES, /* emulated devices that --gpus auto finds (default 0) */
    /* largest difference that --check-gpus accepts, in millionths of the largest logit */
    TEST_LIMIT_DIFFERENCE_PPM,
    TEST_LIMIT_PROBE_BYTES,   /* smallest allocation on a device whose reads are timed */
    TEST_LIMIT_METER_BYTES,   /* smallest upload whose time says how fast the link is */
    TEST_LIMIT_AGENT_WALKS,   /* not 0: --agent opens paths as on kernels without openat2 (default 0) */
    TEST_LIMIT_PAGED_DEVICES, /* devices that paged batches use (default: as the search says) */
    /* rows of a prompt's start that devices attend for in paged batches (default SEARCH_START_ROWS) */
    TEST_LIMIT_PAGED_START,
    TEST_LIMITS
};

/* Sets a limit; 0 restores the default. */
void test_limits_set(enum test_limit which, size_t size);
/* Returns the limit in force; `ordinary` is the default. */
size_t test_limits_get(enum test_limit which, size_t ordinary);
