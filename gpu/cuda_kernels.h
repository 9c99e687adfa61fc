#pragma once
/* Launchers of the CUDA kernels. Each enqueues on the stream and returns cudaGetLastError() or why it cannot. All
 * pointers are device memory. Arguments have no defaults left: cuda_ops.c fills them in (cuda_fill_defaults()). */
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "gpu/op_args.h"

#define LAUNCHER_HOST(name)
#define LAUNCHER_KERNEL(name)     cudaError_t cuda_##name(cudaStream_t s, const struct op_##name *o);
#define LAUNCHER_SMALL(name)      LAUNCHER_KERNEL(name)
#define X(name, CODE, class, ...) LAUNCHER_##class(name)
OPS_ALL(X)
#undef X
size_t cuda_chain_space(const struct op_chain *c);                /* shared memory of its routers */
cudaError_t cuda_chain(cudaStream_t s, const struct op_chain *o); /* one thread block, with the bits of those kernels */

/* What follows the products of a join in their launch: nothing; the steps of a chain by the block that ends last; or
 * steps on heads, each by the block that ends last of those that compute the head. At most EPILOGUE_ROWS rows. */
enum epilogue_kind { EPILOGUE_NONE, EPILOGUE_LAST, EPILOGUE_HEADS };
enum { EPILOGUE_ROWS = 4 };
struct cuda_epilogue {
    int kind, rows; /* rows: of the products */
    int *tickets;   /* counters, 0 before and after */
    struct op_chain chain;
    /* of heads: the product of each step; of each product the numbers of a head, 0 without steps, and its first counter
     */
    int product[OP_CHAIN_MAX], dim[OP_JOIN_MAX], first[OP_JOIN_MAX];
};

/* Timelines (gpu.h): word [2] in pinned host memory. wait polls. */
cudaError_t cuda_timeline_launch_signal(cudaStream_t s, uint32_t *word, uint32_t value);
cudaError_t cuda_timeline_launch_wait(cudaStream_t s, const uint32_t *word, uint32_t value);

/* y (+)= W x in float32, weights of any supported type; grid z is the head. */
int cuda_mat_is_supported(int dtype); /* supported by cuda_gemv, cuda_gemm_f32 and cuda_embed */
/* Up to BATCH_INVARIANT_ROWS tokens: a token's result does not depend on the number of tokens. */
int cuda_skinny_fits(const struct mat *w);                                     /* cuda_skinny supports this type */
cudaError_t cuda_skinny(cudaStream_t s, const struct op_linear *l, int n_sms); /* not transposed */
cudaError_t cuda_skinny_transposed(cudaStream_t s, const struct op_linear *l); /* transposed */
cudaError_t cuda_gemv(cudaStream_t s, const struct op_linear *l); /* types that cuda_skinny does not support */
/* Each product as cuda_skinny or cuda_gemv computes it: neither transposed nor of several heads. */
cudaError_t cuda_skinny_join(cudaStream_t s, const struct op_join *j, int n_sms, const struct cuda_epilogue *e);
cudaError_t cuda_gemv_join(cudaStream_t s, const struct op_join *j, const struct cuda_epilogue *e);
int cuda_skinny_rows(const struct op_join *j, int n_sms); /* rows of W of a thread block */
int cuda_gemv_rows(void);
/* gate->y = glu(gate x, up x) of matrices of the same type and shape. The products are those of cuda_skinny and
 * cuda_gemv. */
cudaError_t cuda_skinny_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a);
cudaError_t cuda_gemv_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a);
/* Products of few tokens with quantized weights on tensor cores. _fits: the format and the alignment are supported. */
int cuda_few_fits(const struct mat *w);
int cuda_few_rows(const struct mat *w);  /* rows of W of a thread block */
int cuda_few_ahead(const struct mat *w); /* bytes of W that a thread block requests before it computes */
int cuda_few_bytes(int dtype, int n);    /* shared memory of a thread block, for n tokens */
cudaError_t cuda_few(cudaStream_t s, const struct op_linear *l);                                   /* not transposed */
cudaError_t cuda_few_join(cudaStream_t s, const struct op_join *j, const struct cuda_epilogue *e); /* e: or NULL, as
                                                                                                      below */
cudaError_t cuda_few_gated(cudaStream_t s, const struct op_linear *gate, const struct op_linear *up, struct glu a);
cudaError_t cuda_gemm_f32(cudaStream_t s, const struct op_linear *l); /* any type, no tensor cores */
int cuda_gemm_mma_fits(const struct op_linear *l);
/* tensor cores, weights exact, x as the sum of two BF16 */
cudaError_t cuda_gemm_mma(cudaStream_t s, const struct op_linear *l);
/* x sorted by w's order, out [n, cols] */
cudaError_t cuda_order_x(cudaStream_t s, float *out, const float *x, struct mat w, int n, int ldx);
cudaError_t cuda_bias(cudaStream_t s, float *y, const float *bias, int n, int m, int ldy);
/* out [n, inter] = glu(gate, up); a row holds gate, then up: [n, 2 * inter] */
cudaError_t cuda_glu(cudaStream_t s, float *out, const float *gate_up, int n, int inter, struct glu a);
/* Weights as BF16 for cuBLAS; out rows are contiguous. */
cudaError_t cuda_mat_to_bf16(cudaStream_t s, void *out, struct mat w);

/* Several products in one launch, in tiles of tokens: part k multiplies rows [row, row + n) of x with w[part.w], so
 * that experts with few tokens each fill the GPU together. A launch has one tile size (16, 32, 64 or 128), chosen by
 * the caller. gated: y = glu(w x + bias, w2 x + bias2), BF16 where x is BF16, else float32. Otherwise float32, with
 * bias and accumulate. */
struct cuda_tiles {
    struct mat w[OP_GROUP_MAX], w2[OP_GROUP_MAX]; /* same type and shape */
    struct {
        int w, row, n, tile; /* tile: index of this part's first tile; set by the launcher */
    } part[OP_GROUP_MAX];
    int n_parts;
    const void *x;        /* BF16 [rows, ldx], ldx a multiple of 8; or E4M3, a multiple of 16 */
    const float *x_scale; /* E4M3: per 128 columns, [columns / 128, scale_ld] */
    void *y;
    const float *bias[OP_GROUP_MAX], *bias2[OP_GROUP_MAX]; /* of each matrix; NULL: none */
    struct glu glu;
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

/* The part of op_expand that the tiled kernels omit: copies each row's rope key to all heads; with y, float32 [n,
 * heads, nope + v_dim], also converts k and v. Row 0 of the plane is the first; row0 is not read. */
cudaError_t cuda_expand_rest(cudaStream_t s, const struct op_expand *o, const float *y);

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
    struct glu glu;
    int n, topk, n_experts, by_choice;
};
int cuda_int4_fits(const struct cuda_routed *a); /* cuda_int4_experts supports these arguments: INT4 drafts */
cudaError_t cuda_int4_experts(cudaStream_t s, const struct cuda_routed *a);
cudaError_t cuda_probe_read(cudaStream_t s, const void *from, size_t bytes, int n_sms); /* from: aligned to 16 bytes */

int cuda_routed_fits(const struct cuda_routed *a); /* the following support these arguments: any format */
/* Routed experts in two launches. e: NULL, or an epilogue of EPILOGUE_LAST, which cuda_routed_has_epilogue() must
 * allow. */
cudaError_t cuda_routed_up(cudaStream_t s, const struct cuda_routed *a);
cudaError_t cuda_routed_down(cudaStream_t s, const struct cuda_routed *a, const struct cuda_epilogue *e);
int cuda_routed_has_epilogue(const struct cuda_routed *a);
/* The same for weights that cuda_few_fits(). _fits: two matrices of the same experts. */
int cuda_few_routed_fits(const struct mat *a, const struct mat *b, size_t expert_stride);
cudaError_t cuda_few_up(cudaStream_t s, const struct cuda_routed *a);
cudaError_t cuda_few_down(cudaStream_t s, const struct cuda_routed *a, const struct cuda_epilogue *e);

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
    int begin[OP_GROUP_MAX + 1];
};
cudaError_t cuda_combine(cudaStream_t s, const struct cuda_combine *c);

struct cuda_select { /* queries [first, first + o.n) of a call of `all` queries, and scratch */
    struct op_select o;
    int first, all, lists, candidates; /* candidates: at most, of a query */
    float *score;                      /* [n, lists, candidates] */
    float *key_score;                  /* [n, keys], of blocks with weights; otherwise NULL */
    int keys;
};
cudaError_t cuda_select_keys(cudaStream_t s, const struct cuda_select *a);

enum { CUDA_TICKETS = 1024 }; /* counters of a stream, for the blocks of one launch after another */
struct cuda_attention {       /* queries [first, first + o.n) of a call of `all` queries, and scratch for split keys */
    struct op_attention o;
    int first, all, lse_ld;
    int q_dim; /* k.dim before the planes were converted */
    /* few queries: keys are split at fixed boundaries (cuda_attention_chunks), independent of the number of queries and
     * keys */
    int chunked;
    int splits;      /* at least 1; > 1: partial results go to part, then are combined */
    float *part;     /* [splits, n, n_heads, v_dim] */
    float *part_lse; /* [splits, n, n_heads] */
    int *tickets; /* NULL, or counters: the last block of some rows combines their parts, instead of another launch */
};
/* Tensor cores: BF16 products, float32 sums. They read BF16 planes whose rows are aligned to 16 bytes, and of few
 * queries also MLA's latents in E4M3: as they are (direct), or after cuda_plane_to_bf16. _rows: (query, head) pairs of
 * a KV head per block; 0: shape not supported. */
int cuda_attention_mma_rows(const struct cuda_attention *a);
int cuda_attention_mma_direct(const struct cuda_attention *a); /* whether the planes can be read as they are */
cudaError_t cuda_attention_mma(cudaStream_t s, const struct cuda_attention *a);
/* out [rows, heads, dim]: heads head0 .. of p as BF16, dim at least p's, padded with zeros */
cudaError_t cuda_plane_to_bf16(cudaStream_t s, void *out, struct kv_plane p, int head0, int heads, int rows, int dim);
int cuda_attention_few_ready(const struct cuda_attention *a); /* fits cuda_attention_few, in cuda_attention_chunks parts
                                                               */
cudaError_t cuda_attention_few(cudaStream_t s, const struct cuda_attention *a);
int cuda_attention_chunks(int keys);                                                /* number of splits */
int cuda_attention_f32_heads(const struct cuda_attention *a);                       /* heads per block */
cudaError_t cuda_attention_f32(cudaStream_t s, const struct cuda_attention *a);     /* all other shapes */
cudaError_t cuda_attention_combine(cudaStream_t s, const struct cuda_attention *a); /* out and lse from the parts */
#ifdef __cplusplus
}
#endif
