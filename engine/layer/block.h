#pragma once
/* One transformer block, written once against the operations table. The execution mode decides where it runs: it passes the
 * executor, and weights, workspace and KV planes in that executor's memory. Sources: DeepSeek-V3, section 2.1 (MLA absorbed and expanded); the vendors'
 * modeling code.
 *
 * Parameters have the same names in this folder: x, the executor; c, the config; m, the model's weights; y, the weights of layer number `layer`; w, the
 * workspace; n, rows of the batch, which the spans cover in order. ld..: distance of rows in floats. Functions that run operations return 0 or an operation's
 * error code. A workspace has one user at a time; nothing else is written. */
#include "engine/kv/kv_cache.h"
#include "engine/weights/weights.h"

/* Rows of a batch that belong to one session: rows [row, row + n) are positions pos .. pos + n - 1 of its cache. */
struct span {
    const struct kv_layer *cache; /* [n_layers] */
    int row, n, pos;
    struct kv_state_step state_step; /* state transition in that cache */
    /* NULL, or addresses of planes and position in the executor's memory, [n_layers, CACHE_PLANES], for recorded graphs. pos is then only an upper
     * bound, and cache may be any cache of this shape, except that its states are this call's. Only for layers with block_is_recordable(). */
    const struct op_place *addresses;
};

/* Workspace for up to `rows` tokens. All pointers are in the executor's memory. */
struct work {
    const struct config *config;
    int rows;
    float *x;                          /* [rows, hidden] the residual stream; with several streams, the output of the current block */
    float *xn;                         /* [rows, hidden] normed input of the block */
    float *stream_norm, *stream_gates; /* gated streams: [rows, n, hidden] each */
    float *ngram;                      /* [rows, dim] embeddings of n-grams */
    int32_t *ngram_rows;               /* [rows, hashes] their rows of the table */
    float *streams, *post, *mix;       /* several streams: [rows, n, hidden], [rows, n] weight of x in each stream, [rows, (2 + n) * n] input of op_mix */
    float *q;                          /* [rows, n_heads * head_dim] */
    float *kv;                         /* [rows, cached floats of a layer]: latent and rope key, or k [rows, n_kv_heads * head_dim], then v */
    float *q_latent;                   /* [rows, q_lora]; with q_raw then [rows, 2 * q_lora], the same and the raw latent */
    float *norm_gates;                 /* [rows, norm_gate_rank], then [rows, hidden] */
    int absorb_rows;                   /* most rows that absorbed MLA processes at once */
    float *absorbed_q;                 /* [absorb_rows, n_heads * (kv_lora + rope)] absorbed queries */
    float *absorbed_out;               /* [absorb_rows, n_heads * kv_lora] */
    float *att;                        /* [rows, n_heads * v_dim] */
    float *fused;                      /* [rows, ..] gated attention: output of q_proj; DeltaNet: fused inputs, then convolution output; other mixers: inputs */
    float *mixed, *z;  /* short convolutions: keys, then values before them; mixers: [rows, channels] input of the convolution (Mamba: output; lightning: q, k,
                          v), [rows, v_heads * v_dim] gates */
    float *beta_alpha; /* [rows, b [v_heads], a [v_heads]]; KDA: [rows, b [heads], f [heads * dim]] */
    float *latent, *expanded_kv;           /* expanded prefill: [keys, kv_lora + rope]; [keys, G, head_dim] then [keys, G, v_dim]; grown on demand */
    size_t latent_floats, expanded_floats; /* sizes of these two buffers */
    float *lse, *piece_out,
        *piece_lse;      /* attention in pieces: [rows, n_heads], one piece's result, its lse [rows, n_heads]; owned by the caller, may be NULL */
    size_t piece_floats; /* size of piece_out */
    float *entries, *entry_cos, *entry_sin; /* multi-token keys: [rows, head_dim], [rows, rope.dim / 2] */
    float *part_lse;                        /* [2, rows, n_heads] log-sum-exp over the window, and over multi-token keys */
    float *index_q, *index_weights;         /* indexer: [rows, index_heads * index_dim] queries, [rows, index_heads] head weights */
    float *rel_bias;                        /* [rel_rows, n_heads, extent] biases by distance of the rows being attended */
    int rel_rows;
    int32_t *selected_keys;        /* [rows, config_index_entries()] selected cache rows; kept for layers that reuse the selection */
    float *ffn_in;                 /* [rows, hidden] input of shared experts where it is not xn (config_has_ffn_in), otherwise NULL */
    float *routed_in, *routed_sum; /* [rows, moe_latent] input and output of experts in a latent space; NULL: the model has none */
    float *kept;                   /* [rows, hidden] what a layer keeps for the next: its FFN input, or a dense FFN's output; NULL: no layer does */
    float *idle;                   /* [rows] weights of idle experts; NULL: the model has none */
    float *carried;       /* [rows, carried] what layers pass to later ones: a router's MLP to the next; the embedding, keys and values (config.carried) */
    float *router_mlp;    /* [2, rows, router_inter] scratch */
    float *token_vectors; /* [3, rows, token_dim] scratch */
    float *router;        /* [rows, n_experts + n_idle_experts] logits */
    int32_t *ids;         /* [rows, topk] selected experts */
    float *weights;       /* [rows, topk] factors of their outputs */
    int n_chosen;         /* entries of a row of ids and weights, if these are a part of the selection (block_split_selection); 0: topk */
    float *shared_weight; /* [rows] factor of the shared expert's output */
    /* With config.n_deferred, for decode batches: [rows, hidden] sum of the experts that the layer before deferred; [rows, hidden] a copy of xn; [rows, topk]
     * the parts of a selection. NULL otherwise. */
    float *deferred, *deferred_xn, *part_weights;
    int32_t *part_ids;
    const uint8_t *late_experts;    /* [n_experts] or NULL: as is_loading in op_experts; not owned */
    float computed_fraction;        /* as in op_experts */
    float *cos, *sin;               /* [rows, rope.dim / 2] */
    float *second_cos, *second_sin; /* [rows, second_rope.dim / 2], if the model has one */
    int32_t *pos, *tokens;          /* [rows] */
    int32_t *seq_length;            /* [rows] sequence length of a row; LongRoPE only, otherwise NULL */
    float *inv_freq;
    _Atomic int *first_bad;                 /* first non-finite value: 2 * layer before its attention, + 1 before its FFN */
    void *(*alloc)(void *ctx, size_t size); /* allocates executor memory; NULL: out of memory */
    void (*release)(void *ctx, void *p);
    void *ctx;
};

/* Allocates through alloc/release (host memory: NULL, NULL, NULL). c must outlive w. ERR_MEMORY: nothing stays allocated. */
int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t), void (*release)(void *, void *), void *ctx, struct error *e);
void work_close(struct work *w); /* safe on a zeroed one */
/* Returns a view of w that begins at row `row`. Buffers that outlive a block advance; scratch (q, kv, att, ...) is shared. Not to be closed. */
struct work work_slice(const struct config *c, const struct work *w, int row);
/* Hands buffers that grew in a slice back to w; call after each use of a slice that attends. */
void work_keep_grown(struct work *w, const struct work *slice);
size_t work_bytes(const struct config *c, int rows); /* bytes that work_open allocates */

/* Whether MLA over n rows is cheaper with expanded keys and values than in absorbed form. False up to BATCH_INVARIANT_ROWS rows. Pure. */
bool block_expands_mla(const struct config *c, int n);
/* Most bytes that attention over `keys` keys allocates beyond the workspace. */
size_t block_grown_bytes(const struct config *c, int keys);

/* Fills cos and sin for the n rows of w->pos. total: sequence length of all rows, 0: that of each row in w->seq_length; only LongRoPE depends on it. */
int block_rope(struct exec *x, const struct weights *m, struct work *w, int n, int total);
bool block_is_recordable(const struct config *c, int layer); /* whether a layer's attention block can be recorded: what varies by token is read from memory */
int block_few_keys_limit(const struct config *c, int layer); /* rows that see at most this many keys are recorded separately; 0: no distinction */
/* Adds the attention block's result to w->x. With several residual streams w->x is the block's output, which the next block adds to the streams. cos and sin
 * are filled. */
int block_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
/* block_attention in parts, for keys that come in pieces: block_kv norms and stores keys and values; block_query; block_attend
 * for each span over keys [first, first + n) of its cache, piece by piece or all at once; block_output.
 * The pieces of a span must be consecutive. They need piece_out, piece_lse and lse in the workspace. */
enum { PIECE_FIRST = 1, PIECE_LAST = 2, PIECE_ALL = 3 };
struct key_range {
    int first, n, piece;
};
bool block_makes_queries_first(const struct config *c, int layer); /* block_kv fills w->q; block_query does nothing */
bool block_needs_all_keys(const struct config *c, int layer);      /* keys cannot come in pieces */
int block_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n);
int block_query(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
int block_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct key_range keys);
int block_output(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n);
/* Call after the last layer: merges several residual streams, if any, into w->x [rows, hidden]. */
int block_merge_streams(struct exec *x, const struct weights *m, struct work *w, int n);
/* Norms the FFN's input and routes it: fills w->xn, ids, weights, shared_weight. */
int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
/* Adds FFNs of w->xn to out [n, hidden] (w->x, or a partial sum that is added later): routed experts of w->ids,
 * shared expert or dense FFN, or both in one operation, which saves the CPU pool a barrier. */
enum { PART_ROUTED = 1, PART_SHARED = 2, PART_ROUTED_SHARED = 3 };
int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int parts, float *out, int n);
/* Makes now and later views of w: now with the n rows' selection without their last config.n_deferred experts, later with these only. Copies unless n is 1. */
int block_split_selection(struct exec *x, const struct config *c, const struct work *w, int n, struct work *now, struct work *later);
/* For modes that run single experts of a latent space (config.moe_latent): project xn [n, hidden] to their input in [n, moe_latent]; add the projection of
 * their sum [n, moe_latent] to out [n, hidden]. block_experts includes both. */
int block_routed_input(struct exec *x, const struct config *c, const struct layer *y, const float *xn, float *in, int n);
int block_routed_output(struct exec *x, const struct config *c, const struct layer *y, const float *sum, float *out, int n);
/* Final norm of rows [row, row + n) and their logits [n, vocab]. top: [n] argmax of each (op_linear), or NULL. */
int block_head(struct exec *x, const struct weights *m, struct work *w, int row, int n, float *logits, int32_t *top);
/* Embeds ids [n] into out [n, hidden]: the residual stream before the first layer. */
int block_embed(struct exec *x, const struct weights *m, float *out, const int32_t *ids, int n);
