#pragma once
/* One transformer block, written once against the operations table. A mode decides where it runs: it hands over the
 * executor, weights, workspace and KV planes in that executor's memory. Sources: models.md; DeepSeek-V3 section 2.1
 * (MLA absorbed and expanded), the vendors' modeling code. */
#include "engine/layer/kv.h"
#include "engine/store/weights.h"

/* Rows of a batch that belong to one session: rows [row, row + n) are positions pos .. pos + n - 1 of its cache. */
struct span {
    const struct kv_layer *cache; /* [n_layers] */
    int row, n, pos;
    struct kv_move move; /* in that cache */
    /* NULL, or where its planes and position stand in the executor's memory, [n_layers, CACHE_PLANES]; pos then is only the most that it may
     * be, and cache any of the same shape, but for its states, which are those of this call. Layers of which block_placed says so. */
    const struct op_place *at;
};

/* Workspace for up to `rows` tokens. All pointers are the executor's memory. */
struct work {
    int rows;
    float *x;                    /* [rows, hidden] the residual stream; of several, what the half of a block has given so far */
    float *xn;                   /* [rows, hidden] normed */
    float *streams, *post, *mix; /* several: [rows, n, hidden], [rows, n] how much of x goes to each, [rows, (2 + n) * n] before op_mix */
    float *q;                    /* [rows, n_heads * head_dim] */
    float *kv;                   /* [rows, what a layer caches]: latent and rope key, or k [rows, n_kv_heads * head_dim], then v */
    float *low;                  /* [rows, q_lora] */
    int absorb_rows;
    float *qc;          /* [absorb_rows, n_heads * (kv_lora + rope)] absorbed queries */
    float *oc;          /* [absorb_rows, n_heads * kv_lora] */
    float *att;         /* [rows, n_heads * v_dim] */
    float *wide;        /* [rows, ..] gated attention: what q_proj gives; DeltaNet: its fused inputs, then what leaves the convolution */
    float *mixed, *z;   /* DeltaNet: [rows, channels] what enters it, [rows, v_heads * v_dim] */
    float *ba;          /* [rows, b [v_heads], a [v_heads]] */
    float *latent, *ek; /* expanded prefill: [keys, kv_lora + rope]; [keys, G, head_dim] then [keys, G, v_dim]; grown on demand */
    size_t latent_floats, expanded_floats;
    float *lse, *part, *part_lse; /* attention in pieces: [rows, n_heads], a piece's own result, its lse [rows, n_heads]; the caller's, NULL without */
    size_t part_floats;
    float *entries, *entry_cos, *entry_sin; /* keys of several tokens: [rows, head_dim], [rows, rope.dim / 2] */
    float *own_lse;                         /* [2, rows, n_heads] of the window, of such keys */
    float *index_q, *index_weights;         /* [rows, index_heads * index_dim], [rows, index_heads] the indexer's queries and their heads' weights */
    int32_t *chosen;                        /* [rows, index_topk] rows of the cache; outlives a layer where the next one takes it over */
    float *router;                          /* [rows, n_experts] */
    int32_t *ids;                           /* [rows, topk] */
    float *weights;                         /* [rows, topk] */
    float *shared_weight;                   /* [rows] */
    const uint8_t *late;                    /* [n_experts] or NULL: as op_experts says; not owned */
    float share;                            /* as op_experts says */
    float *cos, *sin;                       /* [rows, rope.dim / 2] */
    float *far_cos, *far_sin;               /* the same by far_rope, where the model has it */
    int32_t *pos, *tokens;                  /* [rows] */
    int32_t *length;                        /* [rows] how long the sequence of a row is; LongRoPE alone, else NULL */
    float *inv_freq;
    _Atomic int *bad;                       /* first place where something was not finite: 2 * layer before its attention, + 1 before its FFN */
    void *(*alloc)(void *ctx, size_t size); /* of the executor's memory; NULL: none left */
    void (*release)(void *ctx, void *p);
    void *ctx;
};

/* Takes memory through alloc/release (host: NULL, NULL, NULL). */
int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t), void (*release)(void *, void *), void *ctx, struct error *e);
void work_close(struct work *w);
size_t work_bytes(const struct config *c, int rows); /* what work_open takes */

/* From n rows on, more than OP_FEW, attention over MLA is cheaper with keys and values expanded than in absorbed form. Pure. */
bool block_expands(const struct config *c, int n);
/* What attention over so many keys takes beside the workspace, at most. */
size_t block_grown_bytes(const struct config *c, int keys);

/* Each adds its result to w->x; with several residual streams it is what each half gives, and the next one begins by adding it to
 * the streams. n: rows of the batch, cos/sin filled for them. Return 0 or an operation's error code. */
/* total: how long the sequence of all these rows is; 0: as w->length says. It matters to LongRoPE alone. */
int block_rope(struct exec *x, const struct config *c, struct work *w, float mscale, int n, int total);
bool block_placed(const struct config *c, int layer); /* its attention half can be recorded: all that changes with the token is in memory */
int block_few_keys(const struct config *c,
                   int layer); /* spans whose rows see no more keys are recorded apart from those whose rows see more; 0: all are alike */
int block_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
/* The same step by step, for keys that come in pieces: norm, keys and values of the rows into the cache; queries; for each
 * span attention over keys [first, first + n) of its cache, a piece after the other or all at once; output.
 * Pieces of a span follow each other with no other span between; they need part, part_lse and lse in the workspace. */
enum { PIECE_FIRST = 1, PIECE_LAST = 2, PIECE_ALL = 3 };
struct block_keys {
    int first, n, piece;
};
bool block_whole(const struct config *c, int layer); /* keys cannot come in pieces */
int block_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
int block_query(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
int block_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys);
int block_output(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n);
/* After the last layer: w->x [rows, hidden] is the residual stream, made of several where the model has them. */
int block_close(struct exec *x, const struct weights *m, struct work *w, int n);
/* Norm and router: fills w->xn, ids, weights, shared_weight. */
int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
/* The feed-forwards over w->xn, added to out [n, hidden] (w->x, or a part that is joined later): the routed experts in w->ids,
 * the shared one or a dense layer's only one, or both in one operation, which the processor's threads meet once for. */
enum { PART_ROUTED = 1, PART_SHARED = 2, PART_BOTH = 3 };
int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int parts, float *out, int n);
/* Final norm of rows [row, row + n) and logits [n, vocab] of them; top [n] or NULL: the largest of each (op_linear). */
int block_head(struct exec *x, const struct weights *w, struct work *k, int row, int n, float *logits, int32_t *top);
/* Embeds w->tokens[0..n) into w->x. */
int block_embed(struct exec *x, const struct weights *m, struct work *w, int n);
