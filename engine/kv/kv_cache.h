#pragma once
/* The KV cache of one session in host memory. Address space is reserved for the whole context and memory is committed
 * as positions are reached, so planes grow in place without copies. One thread uses a cache at a time; others may read
 * complete rows. */
#include "base/ops.h"
#include "engine/model/config.h"

/* A plane of a layer's cache: a row of heads * dim elements per token or per few tokens, or a fixed number of rows. The
 * attention kind determines the planes of a layer (layer/kv_planes.h).
 *
 * Recurrent kinds store states instead of rows: the result of all tokens up to a position. Their planes have KV_STATES
 * rows, each the state at one position, the same in all layers. A batch reads one row and writes another (a state
 * step), so a failure or cancel loses nothing. A rewind restarts at the latest position with a saved state. States are
 * kept at likely rewind targets: the start of a turn and shortly before the end of its prompt. */
struct cache_desc {
    int heads, dim;
    int fixed_rows;     /* number of rows; 0: as many as tokens_per_row gives */
    int tokens_per_row; /* tokens per row, which is complete with its last token; 0: 1 */
    uint8_t dtype;      /* DT_NONE: the session's choice */
    bool is_fine;       /* BF16 where the session uses E4M3: expert or key selection depends on it */
    /* the rows are those of the same plane of layer layer_config.kv_source, which has their memory */
    bool is_taken;
};
enum { CACHE_PLANES = 5 }; /* most planes of a layer */
/* Describes the planes of a layer; returns their number. */
typedef int (*kv_planes_fn)(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]);
/* The described plane, without memory. dtype: the session's. */
struct kv_plane kv_plane_of(const struct cache_desc *d, enum dtype dtype);
/* Offsets and sizes of rows [row, row + n) of a plane: data in bytes, scales in elements. */
struct kv_row_range {
    size_t offset, bytes, scale_offset, n_scales;
};
struct kv_row_range kv_row_range_of(const struct kv_plane *p, int row, int n);

/* Number of complete rows after tokens [0, pos); tokens [pos, pos + n) complete the rows between two such numbers. */
static inline int kv_complete_rows(const struct cache_desc *d, int pos) {
    return d->tokens_per_row ? pos / d->tokens_per_row : pos;
}

struct kv_layer {
    struct kv_plane p[CACHE_PLANES];
};
enum { KV_STATES = 8 }; /* rows of a state plane */
struct kv {
    struct kv_layer *layer; /* [n_layers] */
    const struct config *c;
    kv_planes_fn planes;
    enum dtype dtype;
    int n_layers, capacity;  /* capacity: positions */
    int committed;           /* positions with committed memory */
    uint8_t *pages;          /* the reserved range, owned; planes point into it */
    size_t size;             /* its bytes */
    size_t n_large;          /* planes of 2 MB and more */
    size_t large_from;       /* of their layouts */
    bool is_early;           /* they become large pages long before they are full */
    size_t n_planes, *large; /* [n_planes] bytes in large pages, or asked for */
    int used, next_look;     /* positions that were asked for; and at which more may become large */
    bool has_states;         /* some layer has states; otherwise `state` is unused */
    struct {
        int pos;          /* its position, after the last token; -1: empty */
        bool is_kept;     /* a rewind target; otherwise overwritten next */
        bool kept_by_try; /* kept by kv_state_try only */
    } state[KV_STATES];
};
/* State step: the rows of state planes that a batch of tokens reads and writes; -1: none, at position 0 and in models
 * without states. The state after the first `mark` tokens goes to mark_row; mark 0: not saved. */
struct kv_state_step {
    int from_row, to_row, mark, mark_row;
    bool keeps_end;            /* the mark is at its end: the state in to_row is kept */
    unsigned in_use, reserved; /* bit r: this step and those that it continues use row r; need what it has afterwards */
};
/* Latest position <= pos from which processing can resume. */
int kv_resume_pos(const struct kv *kv, int pos);
/* Invalidates tokens from pos. */
void kv_rewind(struct kv *kv, int pos);
/* Begins a step over n tokens at pos, where kv_resume_pos(pos) == pos; drops later states. mark: number of tokens after
 * which a state is saved, 0 or more than n: none. */
struct kv_state_step kv_state_begin(struct kv *kv, int pos, int n, int mark);
/* Begins a step over the n tokens after another one that is not committed yet, in the same batch: layer by layer the
 * tokens of `before` go first. The state from which the first of such steps began stays. Commit them in order. */
struct kv_state_step kv_state_continue(struct kv *kv, const struct kv_state_step *before, int n, int mark);
/* the step succeeded: its states become valid */
void kv_state_commit(struct kv *kv, const struct kv_state_step *step, int pos, int n);
/* keeps the state at pos as a rewind target, if it exists */
void kv_state_keep(struct kv *kv, int pos);
/* Returns the best mark for an n-token prompt at pos: where a repeated or edited request would rewind to. */
int kv_state_mark(int pos, int n);
void kv_state_copy_all(struct kv *to, const struct kv *from); /* both have the same shape */
/* Layout of a plane in the reserved range, offsets from kv.pages: whole pages of data, then of scales, for all
 * positions; 2 MB and more of data take whole blocks of 2 MB. */
struct kv_plane_layout {
    int layer, plane, fixed_rows, tokens_per_row; /* as in cache_desc; tokens_per_row at least 1 */
    size_t data, scale, end;                      /* scale == end: no scales */
    size_t large_from; /* a block of 2 MB becomes a large page when so many of its bytes are in use; 0: never */
};
/* Calls fn for each plane in layout order, without the planes that layers take from others. Stops at the first non-zero
 * result and returns it. */
int kv_each_plane(const struct kv *kv, int (*fn)(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at),
                  void *ctx);
/* Commits memory for positions up to `end`. Must precede writes. ERR_MEMORY leaves the cache unchanged. */
int kv_commit(struct kv *kv, int end, struct error *e);
/* Replaces the committed rows by zeros, whatever was mapped there (kv_image_map). 0, or ERR_MEMORY. */
int kv_renew(struct kv *kv);

/* Row of the state at pos in the state planes; -1: not saved. */
int kv_state_find(const struct kv *kv, int pos);
/* Allocates a kept row for the state at pos; the caller fills it. */
int kv_state_add(struct kv *kv, int pos);

/* Speculation from pos, a resumable position: kv_state_undo drops what was computed since kv_state_try. Needs two rows
 * of states, which may evict the least useful kept state. */
void kv_state_try(struct kv *kv, int pos);
void kv_state_undo(struct kv *kv, int pos);

/* Reserves a cache of `capacity` positions for the planes that planes() describes (kv_planes of layer/kv_planes.h).
 * dtype: DT_F32, DT_BF16 or DT_E4M3. c must outlive kv. ERR_MEMORY names the size; nothing stays allocated. */
int kv_open(struct kv *kv, const struct config *c, kv_planes_fn planes, int capacity, enum dtype dtype,
            struct error *e);
void kv_close(struct kv *kv);
