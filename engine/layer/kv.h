#pragma once
/* The KV cache of one session in host memory. Address space is reserved for the whole context, memory is committed as positions are reached:
 * a plane grows where it is, and nothing is ever copied for that. */
#include "engine/base/ops.h"
#include "engine/model/config.h"

/* A plane of a layer's cache: a row of heads * dim elements for each token, or each few tokens, or so many rows however many tokens there are. A layer
 * has as many planes as its kind of attention says.
 *
 * Some kinds keep no rows but a state, which is what all tokens up to a position have made of it: a plane of KV_STATES rows, each
 * the state at one position, in all layers at once. Who goes on reads one and writes another, so that whatever fails or is stopped
 * has lost nothing. Who goes back goes to the last position that still has its state, and from there on again: a few are kept for
 * that where one mostly goes back to, at the beginning of a turn and before the end of its prompt. */
struct cache_desc {
    int heads, dim;
    int rows;      /* 0: one a token, or one for every so many */
    int every;     /* tokens of a row, which is whole with the last of them; 0: 1 */
    uint8_t dtype; /* DT_NONE: the session's choice */
    bool fine;     /* which is to be BF16 where a session takes E4M3: what choices follow from */
};
enum { CACHE_PLANES = 4 };
int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]); /* returns how many */
size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype);              /* of a token in one layer, scales included, rounded up */
size_t kv_token_bytes(const struct config *c, enum dtype dtype);                       /* of a token in all layers */
/* The plane that such a description asks for, without memory. dtype: the session's. */
struct kv_plane kv_plane_of(const struct cache_desc *d, enum dtype dtype);
/* Rows [row, row + n) of a plane: offsets and bytes of data, offsets and numbers of scales. */
struct kv_rows {
    size_t at, bytes, scale_at, scales;
};
struct kv_rows kv_rows_of(const struct kv_plane *p, int row, int n);

/* Rows of a plane that are whole once tokens [0, pos) are there; those that tokens [pos, pos + n) complete lie between two of them. */
static inline int kv_row_at(const struct cache_desc *d, int pos) { return d->every ? pos / d->every : pos; }

struct kv_layer {
    struct kv_plane p[CACHE_PLANES];
};
enum { KV_STATES = 8 };
struct kv {
    struct kv_layer *layer; /* [n_layers] */
    const struct config *c;
    enum dtype dtype;
    int n_layers, capacity;
    int committed; /* positions that may be written */
    uint8_t *pages;
    size_t size;
    bool states; /* some layer has one; else what follows is not looked at */
    struct {
        int at;    /* the position after whose last token it is; -1: none */
        bool kept; /* to go back to; else it serves until the next one is written */
        bool held; /* kept, by kv_try alone */
    } state[KV_STATES];
};
/* From which rows of state planes a move over some tokens reads, and to which it writes; -1: none, at position 0 and where a model has
 * no states. The state after its first `mark` tokens goes to another row, mark 0: to none. */
struct kv_move {
    int from, to, mark, marked;
};
/* The last position up to pos from which one can go on. */
int kv_floor(const struct kv *kv, int pos);
/* Tokens from pos on are not what they were. */
void kv_rewind(struct kv *kv, int pos);
/* A move over n tokens from pos on, where kv_floor(pos) is pos; states behind pos are dropped. mark: how many of the tokens, 0: none. */
struct kv_move kv_begin(struct kv *kv, int pos, int n, int mark);
void kv_done(struct kv *kv, const struct kv_move *m, int pos, int n); /* it is made; only then are its states there */
void kv_keep(struct kv *kv, int pos);                                 /* the state at pos is kept, if there is one */
/* How many of the n tokens of a prompt from pos on to mark: back there one would come to ask once more, or to go on otherwise. */
int kv_mark(int pos, int n);
void kv_copy_states(struct kv *to, const struct kv *from); /* all of them */
size_t kv_state_bytes(const struct config *c);             /* of one position, all layers */

/* Where a plane's rows lie in the reserved range, from kv.pages on: whole pages of data, then of scales, room for all positions. */
struct kv_place {
    int layer, plane, rows, every; /* as cache_desc, every at least 1 */
    size_t data, scale, end;       /* scale == end: it has none */
};
/* Calls fn for each plane in order of place; stops at the first that is not 0 and returns that. */
int kv_each(const struct kv *kv, int (*fn)(void *ctx, const struct kv_plane *p, const struct kv_place *at), void *ctx);
/* Positions up to `end` may be written from here on. Whoever writes asks first. ERR_MEMORY, with all as it was. */
int kv_reach(struct kv *kv, int end, struct error *e);

/* The state at pos: the row of it in the planes of states; -1: it is not there. */
int kv_find(const struct kv *kv, int pos);
/* A row for the state at pos, which is kept; whoever asks fills it. */
int kv_put(struct kv *kv, int pos);

/* Somebody tries out what may follow pos, where one can go on from, and then it is to be as it was: kv_return drops what was made of it. What it
 * takes two rows of states for may cost the state that is dearest to keep. */
void kv_try(struct kv *kv, int pos);
void kv_return(struct kv *kv, int pos);

/* dtype: DT_F32, DT_BF16 or DT_E4M3. ERR_MEMORY names the size. */
int kv_open(struct kv *kv, const struct config *c, int capacity, enum dtype dtype, struct error *e);
void kv_close(struct kv *kv);
