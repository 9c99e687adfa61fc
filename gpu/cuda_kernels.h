#pragma once
/* Launchers of the CUDA kernels, one per operation, in a form that C and C++ both read (base/ops.h is C only).
 * Each enqueues on the stream and returns cudaGetLastError(). All pointers are device memory. */
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/mat.h"

struct cuda_plane { /* struct kv_plane */
    void *data;
    float *scale;
    int heads, dim;
    uint8_t dtype;
    int block_rows;
    /* with blocks: 2^32 / block_rows, rounded up, so that the device divides rows below 2^32 / block_rows by a product
     */
    unsigned inverse;
    const struct cuda_kv_block *blocks;
    size_t at, scale_at;
    int first; /* with blocks: index of the row that is row 0 here */
};
struct cuda_kv_block { /* struct kv_block */
    char *mem;
    int64_t mem_index;
};
static inline int cuda_planes_equal(const struct cuda_plane *a, const struct cuda_plane *b) {
    return a->data == b->data && a->blocks == b->blocks && a->at == b->at && a->dim == b->dim;
}
struct cuda_address { /* struct op_address */
    void *data;
    float *scale;
    void *after;
    const struct cuda_kv_block *blocks;
    int32_t pos;
};
struct cuda_attention { /* struct op_attention, and scratch for split keys */
    float *out;
    const float *q;
    struct cuda_plane k, v;
    const float *sinks;
    float *lse;
    const int32_t *q_pos, *chosen;
    /* k_step at least 1 */
    int n, n_heads, q_dim, v_dim, ldq, ldo, lse_ld, q_pos0, k_pos0, k_step, n_keys, window, chunk_keys, n_chosen;
    float scale, softcap;
    const float *bias;
    int extent, chosen_block, own_block, chosen_lists, temperature_len; /* lists at least 1 */
    /* few queries: keys are split at fixed boundaries (cuda_attention_chunks), independent of the number of queries and
     * keys */
    int chunked;
    int splits;      /* at least 1; > 1: partial results go to part, then are combined */
    float *part;     /* [splits, n, n_heads, v_dim] */
    float *part_lse; /* [splits, n, n_heads] */
    const struct cuda_address *at, *v_at;
    int first, all; /* with at: these are rows [first, first + n) of a call of `all` rows */
};
struct cuda_select { /* struct op_select, and scratch */
    int32_t *chosen;
    const float *q, *weight;
    struct cuda_plane k;
    int n, heads, topk, ldq, q_pos0, k_pos0, k_step, n_keys;
    float scale;
    int block, latest, lists, candidates; /* candidates: at most, of a query */
    float *score;                         /* [n, lists, candidates] */
    float *key_score;                     /* [n, keys], of blocks with weights; otherwise NULL */
    int keys;
    const int32_t *among;
    int n_among, among_block;
    const struct cuda_address *at; /* then these are rows [first, first + n) of a call of `all` rows */
    int first, all;
};
enum { CUDA_SOFTMAX, CUDA_SIGMOID, CUDA_MIXER, CUDA_SQRT_SOFTPLUS, CUDA_SIGMOID_BY_LOGIT }; /* enum score_fn */
struct cuda_route {                                                                         /* struct op_route */
    int32_t *ids;
    float *weights;
    const float *logits, *bias;
    const int32_t *table, *tokens; /* table NULL: select by score */
    int n, n_experts, topk, n_group, topk_group, score, group_top2, norm;
    float scale, jitter;
    int n_idle;
    float *idle;
    const float *expert_scale;
    int n_always;
    int group_zero;
    int group_each;
};

/* Timelines (gpu.h): word [2] in pinned host memory. wait polls. */
cudaError_t cuda_timeline_launch_signal(cudaStream_t s, uint32_t *word, uint32_t value);
cudaError_t cuda_timeline_launch_wait(cudaStream_t s, const uint32_t *word, uint32_t value);

cudaError_t cuda_embed(cudaStream_t s, float *out, const int32_t *ids, struct mat table, int n, float scale);
struct cuda_norm { /* struct op_norm */
    float *out;
    const float *x;
    const void *w, *bias;
    int w_dtype, rows, dim, ldx, ldo;
    float eps, add, l2_limit;
    int layer_norm, tag;
    int *bad;
};
cudaError_t cuda_norm(cudaStream_t s, const struct cuda_norm *o);
struct cuda_rope_table { /* struct op_rope_table */
    float *cos, *sin;
    const int32_t *pos;
    const float *inv_freq;
    const int32_t *length;
    int n, half, longest, total, pos0, step;
    float mscale, long_mscale;
    const struct cuda_address *at;
};
cudaError_t cuda_rope_table(cudaStream_t s, const struct cuda_rope_table *t);
struct cuda_rope { /* struct op_rope */
    float *x;
    const float *cos, *sin;
    int n, heads, ld, head_ld, half, interleaved, inverse;
};
cudaError_t cuda_rope(cudaStream_t s, const struct cuda_rope *o);
struct cuda_kv_store { /* struct op_kv_store */
    struct cuda_plane plane;
    const float *x;
    int row0, n, ldx;
    const struct cuda_address *at;
    int every, tokens;
};
cudaError_t cuda_kv_store(cudaStream_t s, const struct cuda_kv_store *o);
cudaError_t cuda_kv_load(cudaStream_t s, struct cuda_plane p, float *out, int row0, int n, int ldo);
cudaError_t cuda_select_keys(cudaStream_t s, const struct cuda_select *a);
cudaError_t cuda_route_tokens(cudaStream_t s, const struct cuda_route *r);
struct cuda_copy { /* struct op_copy */
    float *y;
    const float *x;
    int n, heads, dim, ldx, ldy, head_ldx, head_ldy;
};
cudaError_t cuda_copy(cudaStream_t s, const struct cuda_copy *o);
struct cuda_add { /* struct op_add; ldx at least m */
    float *y;
    const float *x;
    int n, m, ldx;
};
cudaError_t cuda_add(cudaStream_t s, const struct cuda_add *o);
struct cuda_each { /* struct op_sigmoid, op_clip (value: limit), op_fill and op_softcap (value: cap) over n numbers */
    float *x;
    size_t n;
    float value;
};
cudaError_t cuda_sigmoid(cudaStream_t s, const struct cuda_each *o);
cudaError_t cuda_clip(cudaStream_t s, const struct cuda_each *o);
cudaError_t cuda_fill(cudaStream_t s, const struct cuda_each *o);
cudaError_t cuda_softcap(cudaStream_t s, const struct cuda_each *o);
enum { CUDA_GATE_SIGMOID, CUDA_GATE_SILU, CUDA_GATE_SOFTPLUS, CUDA_GATE_LINEAR, CUDA_GATE_NORMAL }; /* enum gate_kind */
struct cuda_gate {                                                                                  /* struct op_gate */
    float *y;
    const float *g;
    int n, heads, dim, ldy, ldg, head_ldy, head_ldg, kind, per_head;
};
cudaError_t cuda_gate(cudaStream_t s, const struct cuda_gate *o);
enum { CUDA_SCALE_STEPS, CUDA_SCALE_SMOOTH, CUDA_SCALE_POWER }; /* enum scale_kind */
struct cuda_scale {                                             /* struct op_scale */
    float *x;
    const int32_t *pos;
    int n, m, ld, every, shift;
    float by, slope;
    int kind;
    const float *slopes, *bases;
    int dim;
};
cudaError_t cuda_scale(cudaStream_t s, const struct cuda_scale *o);
struct cuda_conv { /* struct op_conv */
    float *out;
    const float *x, *w, *before;
    float *after;
    int n, channels, taps, ldx, ldo;
    const struct cuda_address *at;
    const float *bias;
    int is_linear, is_peek, delay, past, state_at;
};
cudaError_t cuda_conv_rows(cudaStream_t s, const struct cuda_conv *c);
/* struct op_chain: one block runs the steps in order, as the kernels above compute them. At most CUDA_CHAIN_ROWS tokens
 * to route. */
enum cuda_step_kind {
    CUDA_STEP_NORM,
    CUDA_STEP_ROPE,
    CUDA_STEP_KV_STORE,
    CUDA_STEP_ROUTE,
    CUDA_STEP_ADD,
    CUDA_STEP_SIGMOID,
    CUDA_STEP_CLIP,
    CUDA_STEP_FILL,
    CUDA_STEP_SOFTCAP,
    CUDA_STEP_COPY,
    CUDA_STEP_GATE,
    CUDA_STEP_SCALE,
    CUDA_STEP_TRANSFER,
    CUDA_STEP_CONV
};
enum { CUDA_CHAIN_MAX = 8, CUDA_CHAIN_ROWS = 8 };
struct cuda_transfer { /* struct op_transfer */
    uint32_t *dst;
    const uint32_t *src;
    size_t n;
};
struct cuda_step {
    int kind;  /* enum cuda_step_kind */
    int waits; /* for earlier steps, whose results it reads or overwrites */
    union {
        struct cuda_norm norm;
        struct cuda_rope rope;
        struct cuda_kv_store kv_store;
        struct cuda_route route;
        struct cuda_add add;
        struct cuda_each each;
        struct cuda_copy copy;
        struct cuda_gate gate;
        struct cuda_scale scale;
        struct cuda_transfer transfer;
        struct cuda_conv conv;
    };
};
struct cuda_chain {
    int n;
    struct cuda_step step[CUDA_CHAIN_MAX];
};
cudaError_t cuda_chain_run(cudaStream_t s, const struct cuda_chain *c);
struct cuda_delta { /* struct op_delta */
    float *out;
    const float *q, *k, *v, *b, *a, *rate, *dt, *before;
    float *after;
    int n, k_heads, v_heads, k_dim, v_dim, ldx, ldg, ldo;
    const struct cuda_address *at;
    const float *skip;
    float slope, bound;
    int rule; /* as enum delta_rule */
    int is_tiled, doubles_beta;
};
enum { CUDA_DELTA_GATED, CUDA_DELTA_MAMBA2, CUDA_DELTA_LIGHTNING, CUDA_DELTA_CHANNELS };
enum { CUDA_DELTA_MAX_K_DIM = 1024 }; /* largest k_dim */
cudaError_t cuda_delta_rows(cudaStream_t s, const struct cuda_delta *d);
struct cuda_scan { /* struct op_scan */
    float *out;
    const float *x, *a, *b, *c, *rate, *dt, *skip, *before;
    float *after;
    int n, channels, state, ldx, lda, ldbc, ldo;
    const struct cuda_address *at;
};
cudaError_t cuda_scan_rows(cudaStream_t s, const struct cuda_scan *o);
enum { CUDA_MAX_RESIDUAL_STREAMS = 16 };
struct cuda_ngram { /* struct op_ngram */
    int32_t *rows;
    const int32_t *tokens, *before;
    int32_t *after;
    int n, size, per, end;
    const int32_t *ids;
    int passes_end;
    unsigned long long multiplier[8];
    uint32_t vocab[32], offset[32];
};
cudaError_t cuda_ngram_rows(cudaStream_t s, const struct cuda_ngram *o);
/* enum round_kind */
enum { CUDA_ROUND_E4M3, CUDA_ROUND_E2M1, CUDA_ROUND_E2M1_E4M3 };
/* struct op_round */
cudaError_t cuda_round_rows(cudaStream_t s, float *x, int n, int m, int ld, int block, int kind);
/* struct op_relate */
cudaError_t cuda_relate(cudaStream_t s, float *out, const float *x, const float *y, int rows, int dim, float scale);
/* struct op_spread */
cudaError_t cuda_spread(cudaStream_t s, float *streams, const float *x, const float *post, int n, int hidden,
                        int n_streams);
/* struct op_mix */
struct cuda_mix {
    float *in, *out, *streams, *post;
    const float *mix, *base, *scale;
    int n, hidden, n_streams, iters;
    float eps, norm_eps, magnitude, post_eps;
    float *earlier;
    int ld_earlier;
};
cudaError_t cuda_mix_streams(cudaStream_t s, const struct cuda_mix *o);
enum { CUDA_POOL_SOURCES = 128, CUDA_POOL_QUERIES = 3 };
struct cuda_pool { /* struct op_pool */
    float *out[CUDA_POOL_QUERIES];
    const float *query[CUDA_POOL_QUERIES];
    float *streams, *x;
    int n, hidden, n_streams, n_sources, n_queries, into, skip_at, skip, begins, sums_raw;
    float eps;
};
cudaError_t cuda_pool_streams(cudaStream_t s, const struct cuda_pool *o);
struct cuda_compress { /* struct op_compress */
    float *out;
    const float *kv, *gate, *bias, *before;
    float *after;
    int n, pos0, ratio, dim, ldx, overlap;
    int n_entries; /* completed; with `at`, at most */
    const struct cuda_address *at;
    int state_at;
};
cudaError_t cuda_compress_rows(cudaStream_t s, const struct cuda_compress *o);
cudaError_t cuda_sort(cudaStream_t s, int32_t *offset, int32_t *token, float *weight, const int32_t *ids,
                      const float *weights, int n, int topk, int first, int last);
/* x sorted by w's order, out [n, cols] */
cudaError_t cuda_order_x(cudaStream_t s, float *out, const float *x, struct mat w, int n, int ldx);
cudaError_t cuda_gather(cudaStream_t s, float *out, const float *x, const int32_t *index, int n, int dim, int ldx);
/* y[index[i]] += weight[i] * x[i]; index NULL: i, weight NULL: 1 */
cudaError_t cuda_scatter_add(cudaStream_t s, float *y, const float *x, const int32_t *index, const float *weight, int n,
                             int dim, int ldy);
cudaError_t cuda_merge(cudaStream_t s, float *out, float *lse, const float *out2, const float *lse2, int n, int heads,
                       int dim, int ldo, int ldo2);
cudaError_t cuda_bias(cudaStream_t s, float *y, const float *bias, int n, int m, int ldy);
struct cuda_glu { /* struct glu */
    float limit, alpha, shift, cubic, gate_cap, up_cap;
    int clamp_after, is_relu;
};
/* out [n, inter] = glu(gate, up); a row holds gate, then up: [n, 2 * inter] */
cudaError_t cuda_glu(cudaStream_t s, float *out, const float *gate_up, int n, int inter, struct cuda_glu a);

/* Weights as BF16 for cuBLAS; out rows are contiguous. */
cudaError_t cuda_mat_to_bf16(cudaStream_t s, void *out, struct mat w);

/* y (+)= W x in float32, weights of any supported type; grid z is the head. */
struct cuda_linear {
    float *y;
    const float *x, *bias;
    struct mat w;
    int n, ldx, ldy, accumulate, transposed, batch, batch_rows, batch_x, batch_y, exact;
    /* NULL, or [n], with accumulate and at most CUDA_INVARIANT_ROWS tokens: a product is weighed before it is added */
    const float *row_weight;
};
int cuda_mat_is_supported(int dtype); /* supported by cuda_gemv, cuda_gemm_f32 and embed */
/* Up to CUDA_INVARIANT_ROWS tokens: a token's result does not depend on the number of tokens. */
/* BATCH_INVARIANT_ROWS of base/ops.h */
enum { CUDA_INVARIANT_ROWS = 24 };
int cuda_skinny_fits(const struct mat *w);                                       /* cuda_skinny supports this type */
cudaError_t cuda_skinny(cudaStream_t s, const struct cuda_linear *l, int n_sms); /* not transposed */
cudaError_t cuda_skinny_transposed(cudaStream_t s, const struct cuda_linear *l); /* transposed */
/* types that cuda_skinny does not support */
cudaError_t cuda_gemv(cudaStream_t s, const struct cuda_linear *l);
/* Products of the same tokens in one launch, each as cuda_skinny or cuda_gemv computes it: neither transposed nor of
 * several heads. */
enum { CUDA_JOIN_MAX = 6 };
struct cuda_join {
    int n, begin[CUDA_JOIN_MAX + 1]; /* begin: first block of each product; set by the launcher */
    struct cuda_linear part[CUDA_JOIN_MAX];
};
cudaError_t cuda_skinny_join(cudaStream_t s, const struct cuda_join *j, int n_sms);
cudaError_t cuda_gemv_join(cudaStream_t s, const struct cuda_join *j);
/* gate->y = glu(gate x, up x) of matrices of the same type and shape. The products are those of cuda_skinny and
 * cuda_gemv. */
cudaError_t cuda_skinny_gated(cudaStream_t s, const struct cuda_linear *gate, const struct cuda_linear *up,
                              struct cuda_glu a);
cudaError_t cuda_gemv_gated(cudaStream_t s, const struct cuda_linear *gate, const struct cuda_linear *up,
                            struct cuda_glu a);
cudaError_t cuda_gemm_f32(cudaStream_t s, const struct cuda_linear *l); /* any type, no tensor cores */
int cuda_gemm_mma_fits(const struct cuda_linear *l);
/* tensor cores, weights exact, x as the sum of two BF16 */
cudaError_t cuda_gemm_mma(cudaStream_t s, const struct cuda_linear *l);

/* Several products in one launch, in tiles of tokens: part k multiplies rows [row, row + n) of x with w[part.w], so
 * that experts with few tokens each fill the GPU together. A launch has one tile size (16, 32, 64 or 128), chosen by
 * the caller. gated: y = glu(w x + bias, w2 x + bias2), BF16 where x is BF16, else float32. Otherwise float32, with
 * bias and accumulate. */
enum { CUDA_MAX_PARTS = 16 };
struct cuda_tiles {
    struct mat w[CUDA_MAX_PARTS], w2[CUDA_MAX_PARTS]; /* same type and shape */
    struct {
        int w, row, n, tile; /* tile: index of this part's first tile; set by the launcher */
    } part[CUDA_MAX_PARTS];
    int n_parts;
    const void *x;        /* BF16 [rows, ldx], ldx a multiple of 8; or E4M3, a multiple of 16 */
    const float *x_scale; /* E4M3: per 128 columns, [columns / 128, scale_ld] */
    void *y;
    const float *bias[CUDA_MAX_PARTS], *bias2[CUDA_MAX_PARTS]; /* of each matrix; NULL: none */
    struct cuda_glu glu;
    int ldx, scale_ld, ldy, accumulate, gated;
    /* Non-zero (BF16 x only, one part): W consists of heads of head_rows rows; the first `nope` rows give y [rows,
     * heads, ldy], the others v [rows, heads, head_rows - nope], both BF16; all three even. No bias, no
     * accumulation. */
    int head_rows, nope;
    void *v;
    int align; /* alignment of the weights' rows; set by the launcher */
};
int cuda_tiles_fit(const struct mat *w); /* BF16 x: E4M3, E2M1 and BF16 weights, exact; GGUF blocks, rounded to BF16 */
cudaError_t cuda_tiles_bf16(cudaStream_t s, const struct cuda_tiles *t, int tokens);
int cuda_tiles_blocks_fit(const struct mat *w); /* the subset with a kernel of its own */
cudaError_t cuda_tiles_blocks(cudaStream_t s, const struct cuda_tiles *t, int tokens);
int cuda_tiles_fp8_fit(const struct mat *w); /* E4M3 x: E4M3 in blocks of 128 columns; sm_89 */
cudaError_t cuda_tiles_fp8(cudaStream_t s, const struct cuda_tiles *t, int tokens);

/* The part of op_expand that the tiled kernels omit: copies each row's rope key to all heads; with y, also converts k
 * and v. */
struct cuda_expand {
    void *k, *v;
    struct cuda_plane latent; /* rows 0 .. n */
    const float *y;           /* NULL, or float32 [n, heads, nope + v_dim] */
    int n, heads, nope, v_dim, lora;
};
cudaError_t cuda_expand_rest(cudaStream_t s, const struct cuda_expand *e);

/* Routed experts for few tokens, without the host: y[t] += sum over its choices of weight * expert(x[t]); invalid ids
 * are skipped. A token's result does not depend on the other tokens. */
struct cuda_routed {
    float *y;             /* [n, hidden]; by_choice [n, topk, hidden] */
    const float *x;       /* [n, hidden] */
    const int32_t *ids;   /* [n, topk] */
    const float *weights; /* [n, topk] */
    float *h;             /* scratch [n, topk, inter] */
    /* the first expert's; everything of expert i is i * expert_stride bytes further */
    struct mat gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* or NULL */
    size_t expert_stride;
    struct cuda_glu glu;
    int n, topk, n_experts, by_choice;
};
int cuda_int4_fits(const struct cuda_routed *a); /* cuda_int4_experts supports these arguments: INT4 drafts */
cudaError_t cuda_int4_experts(cudaStream_t s, const struct cuda_routed *a);
int cuda_routed_fits(const struct cuda_routed *a); /* cuda_routed_experts supports these arguments: any format */
cudaError_t cuda_routed_experts(cudaStream_t s, const struct cuda_routed *a);

/* Rows index[i] (NULL: i) of x as BF16, or as E4M3 with one scale per 128 columns: max(largest, 1e-4) / 448. */
cudaError_t cuda_gather_bf16(cudaStream_t s, void *out, const float *x, const int32_t *index, int n, int dim, int ldx,
                             int ldo);
cudaError_t cuda_gather_fp8(cudaStream_t s, void *out, float *scale, const float *x, const int32_t *index, int n,
                            int dim, int ldx, int ldo, int scale_ld);
/* Scales of w as float32 [row blocks, ld]. */
cudaError_t cuda_expand_scales(cudaStream_t s, float *out, struct mat w, int ld);
/* y[token[i]] += weight[i] * x[i] over the pairs of n groups; the pairs of a token are added in rising order of group.
 * Tokens rise within a group. */
struct cuda_combine {
    float *y;
    const float *x;
    const int32_t *token;
    const float *weight;
    int dim, ldy, n;
    int begin[CUDA_MAX_PARTS + 1];
};
cudaError_t cuda_combine(cudaStream_t s, const struct cuda_combine *c);

/* Tensor cores: BF16 products, float32 sums. They read BF16 planes whose rows are aligned to 16 bytes, and of few
 * queries also MLA's latents in E4M3: as they are (direct), or after cuda_plane_to_bf16. */
/* (query, head) pairs of a KV head per block; 0: shape not supported */
int cuda_attention_mma_rows(const struct cuda_attention *a);
int cuda_attention_mma_direct(const struct cuda_attention *a); /* whether the planes can be read as they are */
cudaError_t cuda_attention_mma(cudaStream_t s, const struct cuda_attention *a);
/* out [rows, heads, dim]: heads head0 .. of p as BF16, dim at least p's, padded with zeros */
cudaError_t cuda_plane_to_bf16(cudaStream_t s, void *out, struct cuda_plane p, int head0, int heads, int rows, int dim);
/* whether cuda_attention_few computes it, in cuda_attention_chunks parts */
int cuda_attention_few_ready(const struct cuda_attention *a);
cudaError_t cuda_attention_few(cudaStream_t s, const struct cuda_attention *a);
int cuda_attention_chunks(int keys);                                            /* number of splits */
int cuda_attention_f32_heads(const struct cuda_attention *a);                   /* heads per block */
cudaError_t cuda_attention_f32(cudaStream_t s, const struct cuda_attention *a); /* all other shapes */
/* out and lse from part and part_lse */
cudaError_t cuda_attention_combine(cudaStream_t s, const struct cuda_attention *a);

#ifdef __cplusplus
}
#endif
