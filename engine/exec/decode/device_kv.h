#pragma once
/* Device copies of sessions' KV caches, and the blocks of device memory that they share. The host cache is
 * authoritative: a copy holds the positions that are equal, is updated before a batch, and can be dropped at any time.
 * Functions are the engine thread's. Downloads of new rows: kv_writeback.h. */
#include "engine/kv/kv_cache.h"
#include "engine/transfer/ledger.h"

struct decode;
struct decode_device;

/* --- Blocks (device_blocks.c) ----------------------------------------------------------------- */

/* Rows of all layers for decode.block_positions positions, on all devices. */
struct device_block {
    struct device_slab *slab;
    int n_readers; /* device KVs that use it; 0: free */
};
struct device_slab {
    struct device_slab *next;
    struct ledger_entry mem[GPU_MAX];
    int n_used;                   /* blocks in use */
    struct device_block blocks[]; /* [decode.slab_blocks] */
};
void device_blocks_open(struct decode *s);
/* Returns the bytes of a slab on a device. planes [n_layers], if not NULL, receives the planes of rows without their
 * block table. */
size_t device_slab_layout(const struct decode_device *d, struct kv_layer *planes);
struct device_block *device_block_acquire(struct decode *s); /* a block with one reader; NULL: no device memory */
struct device_block *device_block_ref(struct device_block *b);
void device_block_unref(struct decode *s, struct device_block *b);
struct kv_block device_block_address(const struct device_block *b, const struct decode_device *d);

/* --- Copies (device_kv.c) --------------------------------------------------------------------- */

enum { DEVICE_KV_MARK = 2, DEVICE_KV_STATES }; /* two alternating states and the one at a mark */
struct device_kv {                             /* device copy of a session's KV cache */
    struct device_kv *next;
    const struct kv *kv;     /* NULL: the session was closed */
    int valid_rows;          /* positions that equal the host's */
    struct kv_layer *layers; /* [n_layers]; with s->is_tensor_parallel [ranks, n_layers] */
    /* [n_blocks] of its rows; blocks shared with other sessions are full and below valid_rows */
    struct device_block **blocks;
    size_t cap_blocks;
    int n_blocks, n_uploaded; /* the first n_uploaded entries are in the devices' block tables */
    /* [max_blocks] host block table per device; the device's is at the start of mem */
    struct kv_block *host_table[GPU_MAX];
    int max_blocks;
    struct ledger_entry mem[GPU_MAX]; /* device block table and states */
    uint64_t last_used;               /* clock of the last batch that read it */
    bool is_locked;                   /* a prefill is writing it: not evictable */
    int state_pos[DEVICE_KV_STATES];  /* position of each state row; -1: none */
    struct kv_state_step state_step;  /* state rows of the batch; mark_row is DEVICE_KV_MARK */
};

/* A rank's heads of a plane, starting at some row; strided. */
struct kv_head_range {
    char *data;
    float *scale;
    /* bytes of a row's heads and between rows; of their scales and between rows of scales */
    size_t row, pitch, scales, scale_pitch;
};
struct kv_head_range device_kv_heads(const struct kv_plane *all, int head0, int heads, int row);
/* Copies rows [row, row + n) of a device KV plane to another plane, starting at to_row. */
int device_kv_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct device_kv *copy,
                   const struct decode_device *d, int layer, int plane, int row, int n, enum gpu_dir dir);
/* Returns the device KV of `kv` with room for rows up to `end`, with uploads of all rows before pos enqueued.
 * state_row: host row of the state at pos, -1: none. NULL: no device memory left. After a device's failure the rows are
 * incomplete; the batch that uses them fails too and reports it. */
struct device_kv *device_kv_acquire(struct decode *s, const struct kv *kv, int state_row, int pos, int end);
/* Waits until KV uploads have arrived; drops them after a failure or with d->stop set. d->main must be idle. */
void device_kv_uploads_settle(struct decode_device *d);
void device_kv_uploads_close(struct decode_device *d); /* d->main must not wait for any upload */
void device_kv_reap(struct decode *s);                 /* frees the device KV of closed sessions */
void device_kv_drop(struct decode *s, struct device_kv *copy);
/* sets its eviction lock, if it exists */
void device_kv_lock(struct decode *s, const struct kv *kv, bool is_locked);
/* device memory for that many positions */
size_t device_kv_bytes(const struct decode *s, const struct decode_device *d, int positions);
/* after a batch: rows below `rows` equal the host's */
void device_kv_set_valid(struct decode *s, const struct kv *kv, int rows);
/* rows from pos on do not */
void device_kv_invalidate(struct decode *s, const struct kv *kv, int pos);
