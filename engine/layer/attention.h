#pragma once
/* Attention kinds and their shared helpers. A new kind is one file in this folder and one row in attention_kinds.c.
 * Parameters are named as in block.h. */
#include "engine/layer/block_linear.h"
#include "engine/layer/span.h"
#include "engine/layer/work.h"
#include "engine/weights/weights.h"

struct attention_kind {
    const char *name; /* as shown by --inspect */
    /* a query needs all its keys at once: pieces are not possible */
    bool needs_all_keys;
    /* store_kv fills w->q, which must last until attend */
    bool makes_queries_first;
    /* supports span.addresses, for spans without a mark */
    bool is_recordable;
    /* key count up to which rows take a different path; NULL: one path */
    int (*few_keys_limit)(const struct config *c);
    /* describes a layer's cache planes; returns their number */
    int (*cache_planes)(const struct config *c, int layer, struct cache_desc *out);
    /* Computes keys and values of all n rows from w->xn and stores them in their spans' caches. Mixers with a state
     * compute their inputs instead. */
    int (*store_kv)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                    const struct span *spans, int n_spans, int n);
    /* Fills w->q with the queries of n rows from w->xn. */
    int (*make_queries)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        int n);
    /* Computes a span's rows of w->att: attention over the keys, or the mixer's output and its next state. */
    int (*attend)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                  const struct span *s, struct key_range keys);
    /* Attends for several spans of consecutive rows, each over all its keys, with the bits of attend; NULL: attend()
     * for each does it. */
    int (*attend_spans)(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans);
    /* Buffers of the workspace that store_kv and make_queries fill for attend, which reads no others of these rows:
     * offsets in struct work, 0 after the last. NULL: keys have states, so that store_kv reads the caches, too. Of
     * kinds with queries `fused` counts with config.attn_gate only. */
    const size_t *attended;
    /* memory grown on demand beyond the workspace; NULL: none */
    size_t (*grown_bytes)(const struct config *c, int layer, int keys);
};
#define ATTENDED(...) ((const size_t[]){__VA_ARGS__, 0})
#define ROW_OF(field) offsetof(struct work, field)
extern const struct attention_kind attention_gqa, attention_mla, attention_dsa, attention_compressed,
    attention_group_blocks, attention_delta, attention_conv, attention_lightning, attention_mamba2, attention_kda,
    attention_mamba1, attention_blocks, attention_none, attention_cca;

/* --- Spans and planes ------------------------------------------------------------------------- */

/* rows [from, from + n) of a span */
struct span attention_sub_span(const struct span *s, int from, int n);
/* How many of the spans, the first one on, have at most BATCH_INVARIANT_ROWS rows together, *n, so that these go
 * through a matrix at once with the bits that each has alone; at least 1. */
int attention_together(const struct span *spans, int n_spans, int *n);
/* the plane starting at `row` */
struct kv_plane attention_plane(struct kv_plane p, int row);
/* where the operation reads addresses; NULL: from the call */
const struct op_address *attention_address(const struct span *s, int layer, int plane);
/* Stores a span's rows in a plane. rows: [work.rows, ld], in the order of the workspace. */
int attention_store_rows(struct exec *x, const struct span *s, int layer, int plane, const float *rows, int ld);

/* --- Queries and results ---------------------------------------------------------------------- */

/* Rotates `heads` heads of n rows, at v and head_ld floats apart, as the layer does: not at all in a layer without
 * rope. */
int attention_rotate(struct exec *x, const struct config *c, int layer, const struct work *w, float *v, int heads,
                     int ld, int head_ld, int n);
/* Scales n rows of queries (or of what is linear in them) at q, ld floats apart, by their positions, if the family does
 * that in this layer. */
int attention_scale_queries(struct exec *x, const struct config *c, int layer, const struct work *w, float *q, int ld,
                            int n);
/* Multiplies each head of n rows of queries at q, [n, heads * dim], by a function of the row's position (op_scale).
 * slopes NULL: not. */
int attention_scale_heads(struct exec *x, const struct work *w, float *q, const float *slopes, const float *bases,
                          int heads, int dim, int n);
/* Selects keys of n_keys in `plane`, one for every `step` tokens, for the queries of a span: w->index_q and
 * w->index_weights. With index_by_group it selects blocks of them for each head. chosen: [s->n,
 * config_index_entries()]. A key is visible from the position of its last token. */
int attention_select(struct exec *x, const struct config *c, int layer, const struct work *w, const struct span *s,
                     int plane, int step, int n_keys, float scale, int32_t *chosen);
/* Runs o over all keys of a span, or over one piece of them, which later calls continue. lse [o->n, o->n_heads]: the
 * log-sum-exp between pieces; not used with PIECE_ALL. */
int attention_by_pieces(struct exec *x, struct work *w, struct op_attention *o, int piece, float *lse);
/* Attends to a span of at most w->absorb_rows rows by absorbed MLA. chosen: NULL, or as in op_attention, index_topk per
 * row. */
int attention_absorbed(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, struct key_range keys, const int32_t *chosen);
/* For families that gate the attention's output: computes the gates of n rows in w->fused, unless q_proj has. */
int attention_project_gates(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n);
/* Norms a span's rows of attention output, if the family does so (head_out_norm), and multiplies them by these
 * gates. */
int attention_gate_output(struct exec *x, const struct config *c, int layer, struct work *w, const struct span *s,
                          float *out);

/* --- Multi-token keys (attention_compressed.c) ------------------------------------------------ */

/* How keys that represent `ratio` tokens each are made by op_compress. Input rows in w->fused are ld floats apart:
 * values, then gates, unless plain. */
struct attention_compressor {
    const float *bias, *norm; /* norm NULL: entries are neither normed nor rotated */
    const float *inv_freq;    /* of their rotation, in w->inv_freq; not read with turns_as_token */
    int dim, ld, ratio;       /* dim: of an entry */
    int plane, state_plane;   /* planes of the entries; of the sums of open groups */
    int state_at;             /* offset of these sums within a state, floats */
    int rotate_at;            /* first dimension that rotates */
    bool overlap, plain;      /* as in op_compress; plain: the mean, without gates */
    /* An entry turns as its first token does, which w->cos and w->sin have, so that entries of images turn by row and
     * column. A state then has that token's, rope.dim floats, behind the sums. Needs `norm`; not recorded. */
    bool turns_as_token;
};
/* Adds the rows of all spans to their entries, and stores the entries that they complete. */
int attention_make_entries(struct exec *x, const struct config *c, int layer, const struct attention_compressor *k,
                           struct work *w, const struct span *spans, int n_spans);

/* --- Mixers with states ----------------------------------------------------------------------- */

/* address of a plane's row; NULL for row -1 */
float *attention_state(const struct span *s, int layer, int plane, int row);
/* Processes rows [row, row + n) of the workspace, from one row of the state planes to another. */
typedef int (*attention_advance_fn)(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                    struct work *w, const struct span *s, int row, int n, int from, int to);
/* Calls advance() for all rows of a span, in two parts if a state is saved at the mark. */
int attention_advance_state(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *s, attention_advance_fn advance);
/* make_queries of mixers without queries. */
int attention_no_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         int n);
