#pragma once
/* The table of inner kernels: single-threaded parts of operations. Scalar C implements all of it and remains the
 * reference; each ISA overrides kernels in its own files (suffix _avx2, _avx512, ...), the only ones
 * built with that ISA's flags. cpu/cpu_exec.c selects a level's table; operations (linear.c, experts.c,
 * attn.c, elem.c) split work into parts whose shape does not depend on the number of threads.
 * Every kernel sums an output element in one order, independent of the other rows of a tile and tokens of a
 * batch. So a row has the same bits alone and in a group. Activations are float32, at least 4-byte aligned. */
#include "cpu/cpu.h"

enum { KERNEL_TOKENS = 8 }; /* tokens that share one read of a weight in gemv and gevm */

/* y[t][r] = row r of w . x[t], for all rows of w, t < n <= KERNEL_TOKENS. Never reads outside the rows of w, its
 * scales, or x[t][0 .. cols). */
#define GEMV_FN(name) void name(float *const *y, const float *const *x, int n, const struct mat *w)
typedef GEMV_FN((*gemv_fn));
GEMV_FN(gemv_scalar); /* supports every format and shape */

/* y[t][c - c0] = sum over r of w[r][c] * x[t][r], c0 <= c < c1, summed in rising r. */
#define GEVM_FN(name) void name(float *const *y, const float *const *x, int n, const struct mat *w, int c0, int c1)
typedef GEVM_FN((*gevm_fn));
GEVM_FN(gevm_scalar); /* supports every format and shape */

/* out[c - c0] = w[r][c] scaled, c0 <= c < c1. Bit-identical to mat_at. */
#define DECODE_FN(name) void name(float *out, const struct mat *w, int r, int c0, int c1)
typedef DECODE_FN((*decode_fn));

/* out[i] = element i of in, unscaled: F32, BF16, F16, E4M3, E2M1. */
#define WIDEN_FN(name) void name(float *out, const void *in, int n)
typedef WIDEN_FN((*widen_fn));

/* Attention, one tile of keys. qk: s[i * lds + j] = scale * q[i] . k_j, where k_j = k + j * ldk. */
#define QK_FN(name) \
    void name(float *s, int lds, const float *const *q, int nq, const float *k, int ldk, int nk, int dim, float scale)
typedef QK_FN((*qk_fn));
/* s[j] becomes exp(s[j] - m) with m = max(*max, all s); updates *max and *sum; returns exp(old *max - m). At least one
 * s[j] or *max is finite. */
#define SOFTMAX_FN(name) float name(float *s, int n, float *max, float *sum)
typedef SOFTMAX_FN((*softmax_fn));
/* o[i * ldo + d] = o[...] * corr[i] + sum over j of p[i * ldp + j] * v[j * ldv + d], j rising. */
#define PV_FN(name) \
    void name(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const float *v, int ldv, int nk, \
              int dim)
typedef PV_FN((*pv_fn));

/* The same tiles, reading BF16 keys and values in place, rows ldk (ldv) elements apart; nk <= 64. NULL if the CPU lacks
 * a fast BF16 pair product. split: queries and probabilities are sums of two BF16
 * numbers; without it they are rounded to BF16. pack: stores row `row` of a block's queries, times scale, in qk16's
 * private layout, which needs rows of dim rounded up to 32 columns, per plane (there are always two with qk16_is_exact
 * or qk16_uses_tiles). s[i * lds + j] = q[i] . k_j for rows from q on, whose row number is a multiple of 16. ahead: the
 * data to prefetch meanwhile, `each` bytes of `rows` rows `stride` apart. */
struct ahead {
    const uint8_t *next;
    size_t stride;
    int rows, each;
};
#define QK16_PACK_FN(name) void name(uint16_t *out, int row, const float *q, int dim, float scale, bool split)
typedef QK16_PACK_FN((*qk16_pack_fn));
#define QK16_FN(name) \
    void name(float *s, int lds, const uint16_t *q, int nq, const uint16_t *k, int ldk, int nk, int dim, bool split, \
              const struct ahead *ahead)
typedef QK16_FN((*qk16_fn));
#define PV16_FN(name) \
    void name(float *o, int ldo, const float *corr, const float *p, int ldp, int nq, const uint16_t *v, int ldv, \
              int nk, int dim, bool split, const struct ahead *ahead)
typedef PV16_FN((*pv16_fn));
/* Rows of n E4M3 numbers, `stride` bytes apart, to contiguous BF16 rows; exact. */
#define WIDEN16_FN(name) void name(uint16_t *out, const uint8_t *in, size_t stride, int rows, int n)
typedef WIDEN16_FN((*widen16_fn));

#define SUMSQ_FN(name) float name(const float *x, int n) /* sum of squares */
typedef SUMSQ_FN((*sumsq_fn));
#define SCALE_FN(name) \
    void name(float *out, const float *x, float s, const float *w, float add, int n) /* x * s * (w + add) */
typedef SCALE_FN((*scale_fn));
#define GLU_FN(name) \
    void name(float *h, const float *g, const float *u, int n, const struct glu *a) /* formula: struct glu */
typedef GLU_FN((*glu_fn));
#define AXPY_FN(name) void name(float *y, float a, const float *x, int n) /* y += a * x */
typedef AXPY_FN((*axpy_fn));
/* Rotates x[2*half]: (a, b) -> (a*cos - b*sin, b*cos + a*sin), pairs as in op_rope; sign is -1 for the inverse. */
#define ROPE_FN(name) void name(float *x, const float *cos, const float *sin, int half, bool interleaved, float sign)
typedef ROPE_FN((*rope_fn));

#define GATE_FN(name) void name(float *y, const float *g, int n) /* y / (1 + exp(-g)) */
typedef GATE_FN((*gate_fn));
/* out[c] = silu(sum over j < taps of w[j * ldw + c] * x[j][c]), j rising */
#define CONV_FN(name) \
    void name(float *out, const float *const *x, const float *w, int ldw, int taps, int n, const float *bias, \
              bool is_linear)
typedef CONV_FN((*conv_fn));
/* One row of the delta rule for n columns of a head's state, rows ld apart, from `from` (NULL: zeros) to `to` (may be
 * equal to `from`): with u = S^T k, d = beta * (v - decay * ks * u), S becomes decay * S + (ks * k) (x) d, o = qs * S^T
 * q + skip * v. Sums over rising rows of S. ignores_seen: u = 0. decays: a decay per row of S, which applies before u,
 * instead of one for all. */
enum { DELTA_COLUMNS = 64 }; /* maximum of n */
struct delta_row {
    const float *q, *k;        /* [k_dim] */
    float qs, ks, decay, beta; /* qs, ks normalise q and k */
    float skip;
    bool ignores_seen;
    const float *decays; /* [k_dim] or NULL; decay is 1 then */
};
#define DELTA_FN(name) \
    void name(float *o, float *to, const float *from, int ld, const struct delta_row *r, const float *v, int k_dim, \
              int n)
typedef DELTA_FN((*delta_fn));
/* One row of the selective scan for n channels: with S [state, n], rows ld apart, from `from` (NULL: zeros) to `to`
 * (may be equal to `from`), S[i] = exp(rate[i] * step) * S[i] + b[i] * step * x, o = sum of c[i] * S[i] + skip * x. */
enum { SCAN_COLUMNS = 64 }; /* maximum of n */
struct scan_row {
    const float *x, *step, *skip; /* [n] */
    const float *rate;            /* [state, n], rows ld apart */
    const float *b, *c;           /* [state] */
    int ld, state;
};
#define SCAN_FN(name) void name(float *o, float *to, const float *from, const struct scan_row *r, int n)
typedef SCAN_FN((*scan_fn));

/* Limits for kernel_bench.c: read returns a value that depends on every byte read; peak returns the number of float
 * operations. */
#define READ_FN(name) float name(const uint8_t *p, size_t bytes, int streams, int ahead)
typedef READ_FN((*read_fn));
#define PEAK_FN(name) double name(int64_t n, float *sink)
typedef PEAK_FN((*peak_fn));

struct kernels {
    gemv_fn gemv[DT_COUNT];  /* NULL: no kernel for this format */
    gemv_fn whole[DT_COUNT]; /* products with 16-bit integer activations, where that is faster; else NULL */
    gevm_fn gevm[DT_COUNT];
    decode_fn decode[DT_COUNT];
    widen_fn widen[DT_COUNT];
    qk_fn qk;
    softmax_fn soft;
    pv_fn pv;
    qk16_pack_fn qk16_pack;
    qk16_fn qk16;
    pv16_fn pv16;
    widen16_fn widen16;
    bool qk16_is_exact; /* qk16, pv16: queries and probabilities stay float32 */
    /* qk16, pv16 multiply 16 rows at a time, never round queries, and support heads of up to ATTN_AMX_DIM */
    bool qk16_uses_tiles;
    sumsq_fn sumsq;
    scale_fn scale;
    glu_fn glu;
    axpy_fn axpy;
    rope_fn rope;
    gate_fn gate;
    conv_fn conv;
    delta_fn delta;
    scan_fn scan;
    read_fn read;
    peak_fn peak;
};

/* The kernels of one format, NULL: keep the reference. One per format and ISA, generated by gemv_inner.h. */
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
/* Faster E4M3 kernels: for CPUs with fast subnormals, with VBMI, and with VBMI and GFNI. */
extern const struct format_kernels avx2sub_e4m3, avx512sub_e4m3, avx512vbmi_e4m3, avx512gfni_e4m3;

/* Integer dot products: x is the sum of two 8-bit planes with one scale per 128 columns for INT4, per 16 or 32 for GGUF
 * blocks and FP4, or one for a block: about 16 bits of the largest element (int4_inner.h, intdot_inner.h). Weights with
 * unsupported separate scales use the kernels above. With AVX2, formats of gemm_int8_avx2.c use these for wide products
 * alone. */
GEMV_FN(int4_gemv_avx2);
GEMV_FN(int4_gemv_avxvnni);
GEMV_FN(int4_gemv_avx512vnni);
#define FORMATS_INTDOT_GRID(X) X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s)
#define FORMATS_INTDOT_32(X)   X(e2m1) X(i4) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(iq4_nl) X(iq4_xs) X(mxfp4)
#define FORMATS_INTDOT_K(X)    X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(tq1_0) X(tq2_0)
#define FORMATS_INTDOT_BITS(X) X(q1_0) X(q2_0)
#define FORMATS_INTDOT_16(X)   X(nvfp4) /* not with AVX-512 instructions of its own */
#define FORMATS_INTDOT(X)      FORMATS_INTDOT_32(X) FORMATS_INTDOT_K(X) FORMATS_INTDOT_GRID(X) FORMATS_INTDOT_BITS(X)
#define WHOLE(name) \
    GEMV_FN(intdot_avx2_##name); \
    GEMV_FN(intdot_avxvnni_##name); /* the same bits */ \
    GEMV_FN(intdot_avx512vnni_##name);
FORMATS_INTDOT(WHOLE)
FORMATS_INTDOT_16(WHOLE)
#undef WHOLE
/* The kernel of a product whose activations may have 16 bits, or with `exact` must be float32. */
static inline gemv_fn kernels_gemv(const struct kernels *k, uint8_t dtype, bool exact) {
    return !exact && k->whole[dtype] ? k->whole[dtype] : k->gemv[dtype];
}

/* Fills the table of a level: scalar, overridden by each level up to it. */
void kernels_fill(struct kernels *k, enum cpu_level level);
/* One per ISA; call only if cpu_level_has. */
void kernels_scalar(struct kernels *k);
void kernels_avx2(struct kernels *k);
void attn_avx2(struct kernels *k); /* attention over BF16 and E4M3 planes */
void kernels_avx512(struct kernels *k);
void kernels_avx512bf16(struct kernels *k); /* attention over BF16 and E4M3 planes */
void kernels_amx(struct kernels *k);        /* attention in AMX tiles, for prompts */
enum { ATTN_AMX_DIM = 1024 };
void delta_avx2(struct kernels *k); /* kernels of delta.c */
void delta_avx512(struct kernels *k);

/* Features beyond the levels, read once (cpu_flags.c). */
enum cpu_flag {
    CPU_F_AVX2 = 1 << 0,
    CPU_F_AVX512 = 1 << 1,
    CPU_F_VBMI = 1 << 2,
    CPU_F_BF16 = 1 << 3,
    CPU_F_VNNI = 1 << 4,
    CPU_F_AVXVNNI = 1 << 5,
    CPU_F_AMX_BF16 = 1 << 6,
    CPU_F_AMX_INT8 = 1 << 7,
    CPU_F_SUBNORMAL = 1 << 8, /* FMA takes subnormal operands at full speed (probe.h) */
    /* Fast vdpbf16ps, which does twice the work of a float32 FMA (probe.h). Zen 5 issues it at the same rate (575
     * against 288 GFLOP/s per core), Granite Rapids at a quarter of it (120 against 240), where float32 is faster. */
    CPU_F_BF16_FAST = 1 << 9,
    CPU_F_GFNI = 1 << 10,
};
unsigned cpu_flags(void);
