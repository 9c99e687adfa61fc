#pragma once
/* The table of inner kernels: what one thread does with one piece of an operation. Scalar C fills all of it and is kept
 * for ever as the reference; each ISA overrides what it does better, in files of its own (suffix _avx2, _avx512, ...)
 * that alone are built with that ISA's flags. cpu/exec.c picks the table of a level; operations (linear.c, experts.c,
 * attention.c, elem.c) split work into pieces whose shape does not depend on the number of threads.
 * Every kernel sums an output element in one order, whatever else it computes beside it: rows of a tile, tokens of a
 * batch. So a row gives the same bits alone and in a group. Activations are float32, 4-byte aligned at least. */
#include "cpu/ops.h"

enum { KERNEL_TOKENS = 8 }; /* tokens that share one read of a weight in gemv and gevm */

/* y[t][r] = row r of w . x[t], for all rows of w, t < n <= KERNEL_TOKENS. Never reads outside the rows of w, of its
 * scales, or of x[t][0 .. cols). */
#define GEMV_FN(name) void name(float *const *y, const float *const *x, int n, const struct mat *w)
typedef GEMV_FN((*gemv_fn));
GEMV_FN(gemv_scalar); /* takes every format and shape */

/* y[t][c - c0] = sum over r of w[r][c] * x[t][r], c0 <= c < c1, summed in rising r. */
#define GEVM_FN(name) void name(float *const *y, const float *const *x, int n, const struct mat *w, int c0, int c1)
typedef GEVM_FN((*gevm_fn));

/* out[c - c0] = w[r][c] with its scale, c0 <= c < c1. Equals mat_at bit by bit. */
#define DECODE_FN(name) void name(float *out, const struct mat *w, int r, int c0, int c1)
typedef DECODE_FN((*decode_fn));

/* out[i] = the i-th element from the start of in, without scale: F32, BF16, F16, E4M3, E2M1. */
#define WIDEN_FN(name) void name(float *out, const void *in, int n)
typedef WIDEN_FN((*widen_fn));

/* Attention, one tile of keys. qk: s[i * lds + j] = scale * q[i] . k_j, where k_j = k + j * ldk. */
#define QK_FN(name) void name(float *s, int lds, const float *const *q, int nq, const float *k, int ldk, int nk, int dim, float scale)
typedef QK_FN((*qk_fn));
/* s[j] becomes exp(s[j] - m) with m = max(*max, all s); *sum follows; returns exp(old *max - m). At least one s[j], or
 * *max, is finite. */
#define SOFT_FN(name) float name(float *s, int n, float *max, float *sum)
typedef SOFT_FN((*soft_fn));
/* o[i * ldo + d] = o[...] * corr[i] + sum over j of p[i * ldp + j] * v[j * ldv + d], j rising. */
#define PV_FN(name) void name(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const float *v, int ldv, int nk, int dim)
typedef PV_FN((*pv_fn));

/* The same tiles over BF16 keys and values where they lie, rows ldk (ldv) numbers apart; nk <= 64. NULL where the processor has
 * no fast product of BF16 pairs. split: queries and probabilities as a number and the BF16 of what it leaves over, else
 * rounded to BF16. pack: row `row` of a block's queries, times scale, in the layout of qk16's own; planes of rows of dim rounded up to 32 columns are
 * room enough, where exact16 or tiles16 always two. s[i * lds + j] = q[i] . k_j for the rows from q on, which is a row whose number is a multiple of 16.
 * ahead: what will be read next, to be asked for on the way, `each` bytes of `rows` rows `stride` apart. */
struct ahead {
    const uint8_t *next;
    size_t stride;
    int rows, each;
};
#define QK16_PACK_FN(name) void name(uint16_t *out, int row, const float *q, int dim, float scale, bool split)
typedef QK16_PACK_FN((*qk16_pack_fn));
#define QK16_FN(name) \
    void name(float *s, int lds, const uint16_t *q, int nq, const uint16_t *k, int ldk, int nk, int dim, bool split, const struct ahead *ahead)
typedef QK16_FN((*qk16_fn));
#define PV16_FN(name) \
    void name(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const uint16_t *v, int ldv, int nk, int dim, bool split, \
              const struct ahead *ahead)
typedef PV16_FN((*pv16_fn));
/* Rows of n numbers of E4M3, `stride` bytes apart, as rows of BF16, which they are exactly, one behind the other. */
#define WIDEN16_FN(name) void name(uint16_t *out, const uint8_t *in, size_t stride, int rows, int n)
typedef WIDEN16_FN((*widen16_fn));

#define SUMSQ_FN(name) float name(const float *x, int n) /* sum of squares */
typedef SUMSQ_FN((*sumsq_fn));
#define SCALE_FN(name) void name(float *out, const float *x, float s, const float *w, float add, int n) /* x * s * (w + add) */
typedef SCALE_FN((*scale_fn));
#define GLU_FN(name) void name(float *h, const float *g, const float *u, int n, const struct glu *a) /* struct glu says what */
typedef GLU_FN((*glu_fn));
#define AXPY_FN(name) void name(float *y, float a, const float *x, int n) /* y += a * x */
typedef AXPY_FN((*axpy_fn));
/* x[2*half] rotated: (a, b) -> (a*cos - b*sin, b*cos + a*sin), pairs as op_rope says; sign is -1 for the inverse. */
#define ROPE_FN(name) void name(float *x, const float *cos, const float *sin, int half, bool interleaved, float sign)
typedef ROPE_FN((*rope_fn));

#define GATE_FN(name) void name(float *y, const float *g, int n) /* y / (1 + exp(-g)) */
typedef GATE_FN((*gate_fn));
/* out[c] = silu(sum over j < taps of w[j * ldw + c] * x[j][c]), j rising */
#define CONV_FN(name) void name(float *out, const float *const *x, const float *w, int ldw, int taps, int n)
typedef CONV_FN((*conv_fn));
/* One row of the delta rule for n columns of a head's state, rows ld apart, from `from` (NULL: zeros) to `to` (from, or other
 * memory): with u = S^T k, d = beta * (v - decay * ks * u), S becomes decay * S + (ks * k) (x) d, o = qs * S^T q. Sums over
 * rising rows of S. */
enum { DELTA_COLUMNS = 64 }; /* n at most */
struct delta_row {
    const float *q, *k;        /* [k_dim] */
    float qs, ks, decay, beta; /* what makes q and k of their length */
};
#define DELTA_FN(name) void name(float *o, float *to, const float *from, int ld, const struct delta_row *r, const float *v, int k_dim, int n)
typedef DELTA_FN((*delta_fn));

/* Limits for bench.c: read returns something that depends on every byte read; peak the float operations it did. */
#define READ_FN(name) float name(const uint8_t *p, size_t bytes, int streams, int ahead)
typedef READ_FN((*read_fn));
#define PEAK_FN(name) double name(int64_t n, float *sink)
typedef PEAK_FN((*peak_fn));

struct kernels {
    gemv_fn gemv[DT_COUNT];  /* NULL: this format has no kernel */
    gemv_fn whole[DT_COUNT]; /* the same with activations of 16 bits, where that is faster; else NULL */
    gevm_fn gevm[DT_COUNT];
    decode_fn decode[DT_COUNT];
    widen_fn widen[DT_COUNT];
    qk_fn qk;
    soft_fn soft;
    pv_fn pv;
    qk16_pack_fn qk16_pack;
    qk16_fn qk16;
    pv16_fn pv16;
    widen16_fn widen16;
    bool exact16; /* queries and probabilities stay float32 there */
    bool tiles16; /* these three multiply 16 rows at a time, queries never rounded, heads of up to ATTN_AMX_DIM numbers */
    sumsq_fn sumsq;
    scale_fn scale;
    glu_fn glu;
    axpy_fn axpy;
    rope_fn rope;
    gate_fn gate;
    conv_fn conv;
    delta_fn delta;
    read_fn read;
    peak_fn peak;
};

/* The kernels of one format, NULL where the reference is to stay: one a format and ISA, made by gemv_inner.h. */
struct format_kernels {
    uint8_t dtype;
    gemv_fn gemv;
    gevm_fn gevm;
    widen_fn widen;
    decode_fn decode;
};
static inline void kernels_format(struct kernels *k, const struct format_kernels *f) {
    k->gemv[f->dtype] = f->gemv;
    if (f->gevm) k->gevm[f->dtype] = f->gevm;
    k->widen[f->dtype] = f->widen;
    k->decode[f->dtype] = f->decode;
}
/* Better kernels of E4M3: where subnormal operands cost nothing, where VBMI is, and where GFNI is as well. */
extern const struct format_kernels avx2sub_e4m3, avx512sub_e4m3, avx512vbmi_e4m3, avx512gfni_e4m3;

/* In whole numbers: x as the sum of two planes of eight bits and a scale for some columns together, 128 of INT4, 16 or 32 of GGUF's blocks and of FP4, so
 * about 16 bits of the largest of these (int4_inner.h, whole_inner.h). Scales beside the weights that they are not made for: as above. */
GEMV_FN(int4_gemv_avx2);
GEMV_FN(int4_gemv_avxvnni);
GEMV_FN(int4_gemv_avx512vnni);
#define FORMATS_WHOLE(X) X(e2m1) X(q4_0) X(q4_k) X(q5_k) X(q6_k) X(iq4_nl) X(iq4_xs) X(mxfp4)
#define WHOLE(name) \
    GEMV_FN(whole_avx2_##name); \
    GEMV_FN(whole_avxvnni_##name); /* the same bits */ \
    GEMV_FN(whole_avx512vnni_##name);
FORMATS_WHOLE(WHOLE)
#undef WHOLE
/* What a product takes whose activations may have 16 bits, or with `exact` must be float32. */
static inline gemv_fn kernels_gemv(const struct kernels *k, uint8_t dtype, bool exact) { return !exact && k->whole[dtype] ? k->whole[dtype] : k->gemv[dtype]; }

/* The table of a level: scalar, then each level up to it overrides. */
void kernels_fill(struct kernels *k, enum cpu_level level);
/* One per ISA; call only where cpu_level_has. */
void kernels_scalar(struct kernels *k);
void kernels_avx2(struct kernels *k);
void attn_avx2(struct kernels *k); /* attention over planes of BF16 and E4M3 */
void kernels_avx512(struct kernels *k);
void kernels_avx512bf16(struct kernels *k); /* attention over planes of BF16 and E4M3 */
void kernels_amx(struct kernels *k);        /* the same in tiles, for prompts */
enum { ATTN_AMX_DIM = 1024 };
void delta_avx2(struct kernels *k); /* delta.c's */
void delta_avx512(struct kernels *k);

/* Features beyond the levels, read once (flags.c). */
enum cpu_flag {
    CPU_F_AVX2 = 1 << 0,
    CPU_F_AVX512 = 1 << 1,
    CPU_F_VBMI = 1 << 2,
    CPU_F_BF16 = 1 << 3,
    CPU_F_VNNI = 1 << 4,
    CPU_F_AVXVNNI = 1 << 5,
    CPU_F_AMX_BF16 = 1 << 6,
    CPU_F_AMX_INT8 = 1 << 7,
    CPU_F_SUBNORMAL = 1 << 8, /* FMA takes subnormal operands at full speed: probe.h, and the next */
    /* vdpbf16ps does twice the work of a float32 FMA an instruction. Zen 5 issues it at the same rate (575 against 288 GFLOP/s a
     * core), Granite Rapids at a quarter of it (120 against 240), so there float32 is faster. */
    CPU_F_BF16_FAST = 1 << 9,
    CPU_F_GFNI = 1 << 10,
};
unsigned cpu_flags(void);
