#pragma once
/* The formats of weights that cuda_few.cuh multiplies: how a lane makes the codes and scales of 32 columns of a row from the bytes of the file. */
#include "gpu/cuda_device.cuh"
#include "gpu/cuda_mma.cuh"

/* A row's bytes of a step in shared memory: they begin `shift` bytes after an address that is a multiple of 16. */
struct few_row {
    const uint8_t *p;
    int shift;
    __device__ uint32_t byte(int at) const { return p[shift + at]; }
    __device__ uint32_t two(int at) const { return *(const uint16_t *)(p + shift + at); } /* bytes, at an even address */
    template <int ALIGN> __device__ uint32_t word(int at) const { /* four bytes, of a format of that ALIGN: its offsets are known when it is compiled */
        if (ALIGN >= 4 && at % 4 == 0) return *(const uint32_t *)(p + shift + at);
        const uint32_t *w = ALIGN >= 4 ? (const uint32_t *)(p + shift + at / 4 * 4) : (const uint32_t *)(p + ((shift + at) & ~3));
        return __funnelshift_r(w[0], w[1], (unsigned)(ALIGN >= 4 ? at : shift + at) * 8); /* the lower five bits count */
    }
};
/* -(1024 + offset) as FP16, twice. */
__host__ __device__ constexpr uint32_t few_minus(uint32_t offset) { return (0xe400u + offset) * 0x10001u; }
/* Pairs (0, 2) and (1, 3) of the bytes of a word, of which only the bits in `mask` count, minus an offset: 1024 and a byte are exact in FP16. */
__device__ inline void few_pairs(uint32_t pair[2], uint32_t w, uint32_t mask, uint32_t minus) {
    pair[0] = f16x2_add((w & mask) | 0x64006400u, minus);
    pair[1] = f16x2_add((w >> 8 & mask) | 0x64006400u, minus);
}
enum { FEW_BYTE = 0x00ff00ff, FEW_NIBBLE = 0x000f000f, FEW_HIGH_NIBBLE = 0x00f000f0 };
/* 2^23 and byte number i of a word. */
__device__ inline float few_byte(uint32_t w, int i) { return __uint_as_float(__byte_perm(w, 0x4b000000u, 0x7440u + (uint32_t)i)); }
static const float few_byte_0 = 8388608.0f;
/* Bits 0 to 3 as bit 4 of four bytes. */
__device__ inline uint32_t few_fifth(uint32_t bits) { return ((bits & 15) * 0x00204081u & 0x01010101u) << 4; }
/* The values of IQ4_NL of the codes in a word: pairs of the low nibbles, then of the high ones. */
__device__ inline void few_table(uint32_t pair[4], uint32_t w) {
    const uint32_t t0 = 0xbfad9881u, t1 = 0xf6eaddcfu, t2 = 0x26190d01u, t3 = 0x71594535u; /* mat_iq4, a byte each */
    uint32_t r[2]; /* values plus 128 of both nibbles of bytes 0 and 1, and of bytes 2 and 3 */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t n = w >> 16 * i & 0xffff;
        r[i] = __byte_perm(__byte_perm(t0, t1, n & 0x7777), __byte_perm(t2, t3, n & 0x7777), (n & 0x8888) >> 1 | 0x3210) ^ 0x80808080u;
    }
    few_pairs(pair, __byte_perm(r[0], r[1], 0x6420), FEW_BYTE, few_minus(128));
    few_pairs(pair + 2, __byte_perm(r[0], r[1], 0x7531), FEW_BYTE, few_minus(128));
}

/* A format: BYTES of COLUMNS columns are a step. ALIGN: rows and steps begin at multiples of so many bytes. HALVES: as in few_column(). SCALES: of a group
 * of 32 columns. ADDS: weights have an addend, of which there are as many. UNROLL: groups at a time. STAGES: steps in the ring. SCALED: scales are stored
 * apart, one for each half of a step if it is 2. A head is what a lane keeps of a row and step, filled by read(), or of SCALED formats by few_scales().
 * scale() gives the scales and addends of group k, codes() lane q's four pairs. */
struct few_q8_0 {
    static const int DTYPE = DT_Q8_0, COLUMNS = 256, BYTES = 8 * BYTES_Q8_0, ALIGN = 4, HALVES = 0, SCALES = 1, ADDS = 0, SCALED = 0, UNROLL = 8, STAGES = 2;
    struct head {};
    __device__ static void read(head *, const struct few_row &) {}
    __device__ static void scale(float d[2], float *, const head &, const struct few_row &p, int k) { d[0] = block_half_bits(p.template word<ALIGN>(k * BYTES_Q8_0)); }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
#pragma unroll
        for (int i = 0; i < 2; i++) few_pairs(pair + 2 * i, p.template word<ALIGN>(k * BYTES_Q8_0 + 2 + 8 * q + 4 * i) ^ 0x80808080u, FEW_BYTE, few_minus(128));
    }
};
template <int TYPE, int BLOCK, bool ADDEND, bool FIVE> struct few_legacy { /* Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: blocks of 32 columns */
    static const int DTYPE = TYPE, COLUMNS = 256, BYTES = 8 * BLOCK, ALIGN = 4, HALVES = 1, SCALES = 1, ADDS = ADDEND, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {};
    __device__ static void read(head *, const struct few_row &) {}
    __device__ static void scale(float d[2], float *add, const head &, const struct few_row &p, int k) {
        const uint32_t w = p.template word<ALIGN>(k * BLOCK);
        d[0] = block_half_bits(w);
        if (ADDEND) add[0] = block_half_bits(w >> 16);
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
        const int at = k * BLOCK + (ADDEND ? 4 : 2);
        const uint32_t w = p.template word<ALIGN>(at + (FIVE ? 4 : 0) + 4 * q);
        if (TYPE == DT_IQ4_NL) few_table(pair, w);
        else if (FIVE) {
            const uint32_t fifth = p.template word<ALIGN>(at) >> 4 * q;
            few_pairs(pair, (w & 0x0f0f0f0fu) | few_fifth(fifth), FEW_BYTE, few_minus(ADDEND ? 0 : 16));
            few_pairs(pair + 2, (w >> 4 & 0x0f0f0f0fu) | few_fifth(fifth >> 16), FEW_BYTE, few_minus(ADDEND ? 0 : 16));
        } else {
            few_pairs(pair, w, FEW_NIBBLE, few_minus(ADDEND ? 0 : 8));
            few_pairs(pair + 2, w >> 4, FEW_NIBBLE, few_minus(ADDEND ? 0 : 8));
        }
    }
};
struct few_mxfp4 { /* a code's bits are those of FP16, times 2^-14 */
    static const int DTYPE = DT_MXFP4, COLUMNS = 256, BYTES = 8 * BYTES_MXFP4, ALIGN = 1, HALVES = 1, SCALES = 1, ADDS = 0, SCALED = 0, UNROLL = 2, STAGES = 3;
    struct head {};
    __device__ static void read(head *, const struct few_row &) {}
    __device__ static void scale(float d[2], float *, const head &, const struct few_row &p, int k) { d[0] = e8m0_decode(p.byte(k * BYTES_MXFP4)) * 16384.0f; }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
        const uint32_t w = p.template word<ALIGN>(k * BYTES_MXFP4 + 1 + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t n = w >> (i % 2 * 8 + i / 2 * 4);
            pair[i] = (n & 0x00080008u) << 12 | (n & 0x00070007u) << 9;
        }
    }
};
template <int TYPE> struct few_q45_k { /* scales and addends have six bits */
    static const int FIVE = TYPE == DT_Q5_K, DTYPE = TYPE, COLUMNS = 256, BYTES = FIVE ? BYTES_Q5_K : BYTES_Q4_K, ALIGN = 16, HALVES = 0, SCALES = 1, ADDS = 1, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {
        float d[2], add;       /* d: of even groups, and of odd ones, whose codes are 16 times their number */
        float d_0[2], add_0;   /* the same times -2^23 */
        uint32_t scales[2], adds[2]; /* four bytes each */
    };
    __device__ static void read(head *h, const struct few_row &p) {
        const uint4 w = *(const uint4 *)p.p;
        h->d[0] = block_half_bits(w.x), h->d[1] = FIVE ? h->d[0] : h->d[0] / 16, h->add = -block_half_bits(w.x >> 16);
        h->d_0[0] = -h->d[0] * few_byte_0, h->d_0[1] = -h->d[1] * few_byte_0, h->add_0 = -h->add * few_byte_0;
        h->scales[0] = w.y & 0x3f3f3f3fu, h->scales[1] = (w.w & 0x0f0f0f0fu) | (w.y >> 2 & 0x30303030u);
        h->adds[0] = w.z & 0x3f3f3f3fu, h->adds[1] = (w.w >> 4 & 0x0f0f0f0fu) | (w.z >> 2 & 0x30303030u);
    }
    __device__ static void scale(float d[2], float *add, const head &h, const struct few_row &, int k) {
        d[0] = fmaf(few_byte(h.scales[k / 4], k % 4), h.d[k % 2], h.d_0[k % 2]); /* exact, as d has eleven bits */
        add[0] = fmaf(few_byte(h.adds[k / 4], k % 4), h.add, h.add_0);
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
        const uint2 w = *(const uint2 *)(p.p + (FIVE ? 48 : 16) + k / 2 * 32 + 8 * q);
        if (!FIVE) {
            const uint32_t mask = k % 2 ? FEW_HIGH_NIBBLE : FEW_NIBBLE;
            few_pairs(pair, w.x, mask, few_minus(0)), few_pairs(pair + 2, w.y, mask, few_minus(0));
            return;
        }
        const uint2 fifth = *(const uint2 *)(p.p + 16 + 8 * q);
        few_pairs(pair, (w.x >> k % 2 * 4 & 0x0f0f0f0fu) | (fifth.x >> k & 0x01010101u) << 4, FEW_BYTE, few_minus(0));
        few_pairs(pair + 2, (w.y >> k % 2 * 4 & 0x0f0f0f0fu) | (fifth.y >> k & 0x01010101u) << 4, FEW_BYTE, few_minus(0));
    }
};
struct few_q6_k {
    static const int DTYPE = DT_Q6_K, COLUMNS = 256, BYTES = BYTES_Q6_K, ALIGN = 1, HALVES = 1, SCALES = 2, ADDS = 0, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {
        float d;
    };
    __device__ static void read(head *h, const struct few_row &p) { h->d = block_half_bits(p.template word<ALIGN>(208)); }
    __device__ static void scale(float d[2], float *, const head &h, const struct few_row &p, int k) {
        const uint32_t both = p.template word<ALIGN>(192 + 2 * k) ^ 0x8080u;
#pragma unroll
        for (int half = 0; half < 2; half++) d[half] = h.d * (few_byte(both, half) - (few_byte_0 + 128));
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
        const int part = k % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t low = p.template word<ALIGN>(k / 4 * 64 + part % 2 * 32 + 16 * half + 4 * q) >> part / 2 * 4;
            const uint32_t high = p.template word<ALIGN>(128 + k / 4 * 32 + 16 * half + 4 * q) >> 2 * part;
            few_pairs(pair + 2 * half, (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4, FEW_BYTE, few_minus(32));
        }
    }
};
struct few_iq4_xs {
    static const int DTYPE = DT_IQ4_XS, COLUMNS = 256, BYTES = BYTES_IQ4_XS, ALIGN = 4, HALVES = 1, SCALES = 1, ADDS = 0, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {
        float d;
        uint32_t low, high; /* of the scales' six bits: four of each, two of each */
    };
    __device__ static void read(head *h, const struct few_row &p) {
        const uint32_t w = p.template word<ALIGN>(0);
        h->d = block_half_bits(w), h->high = w >> 16, h->low = p.template word<ALIGN>(4);
    }
    __device__ static void scale(float d[2], float *, const head &h, const struct few_row &, int k) {
        d[0] = h.d * (few_byte((h.low >> 4 * k & 15) | (h.high >> 2 * k & 3) << 4, 0) - (few_byte_0 + 32));
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) { few_table(pair, p.template word<ALIGN>(8 + 16 * k + 4 * q)); }
};
struct few_q2_k {
    static const int DTYPE = DT_Q2_K, COLUMNS = 256, BYTES = BYTES_Q2_K, ALIGN = 4, HALVES = 1, SCALES = 2, ADDS = 1, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {
        float d, add;
    };
    __device__ static void read(head *h, const struct few_row &p) {
        const uint32_t w = p.template word<ALIGN>(80);
        h->d = block_half_bits(w), h->add = -block_half_bits(w >> 16);
    }
    __device__ static void scale(float d[2], float *add, const head &h, const struct few_row &p, int k) {
        const uint32_t both = p.template word<ALIGN>(2 * k); /* two bytes of a scale and an addend */
#pragma unroll
        for (int half = 0; half < 2; half++)
            d[half] = h.d * (few_byte(both & 0x0f0f, half) - few_byte_0), add[half] = h.add * (few_byte(both >> 4 & 0x0f0f, half) - few_byte_0);
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
#pragma unroll
        for (int half = 0; half < 2; half++) few_pairs(pair + 2 * half, p.template word<ALIGN>(16 + k / 4 * 32 + 16 * half + 4 * q) >> k % 4 * 2, 0x00030003u, few_minus(0));
    }
};
struct few_q3_k {
    static const int DTYPE = DT_Q3_K, COLUMNS = 256, BYTES = BYTES_Q3_K, ALIGN = 1, HALVES = 1, SCALES = 2, ADDS = 0, SCALED = 0, UNROLL = 8, STAGES = 3;
    struct head {
        float d;
    };
    __device__ static void read(head *h, const struct few_row &p) { h->d = block_half_bits(p.template word<ALIGN>(108)); }
    __device__ static void scale(float d[2], float *, const head &h, const struct few_row &p, int k) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 2 * k + half; /* of 16 scales of six bits */
            const uint32_t low = p.byte(96 + i % 8) >> i / 8 * 4 & 15, high = p.byte(104 + i % 4) >> i / 4 * 2 & 3;
            d[half] = h.d * (few_byte(low | high << 4, 0) - (few_byte_0 + 32));
        }
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t low = p.template word<ALIGN>(32 + k / 4 * 32 + 16 * half + 4 * q) >> k % 4 * 2, high = p.template word<ALIGN>(16 * half + 4 * q) >> k;
            few_pairs(pair + 2 * half, (low & 0x03030303u) | (high & 0x01010101u) << 2, FEW_BYTE, few_minus(4));
        }
    }
};
/* Formats whose scales are stored apart. Lane q's head has those of groups q and q + 4, or of both halves of the step; a zero point becomes an addend. */
struct few_scale {
    float d[4], add[2]; /* d: SCALES of each group */
};
template <class F> __device__ inline void few_scale_of(float d[2], float add[2], const struct few_scale &h, int k) {
    const int from = ((int)threadIdx.x % 32 & ~3) | k % 4;
#pragma unroll
    for (int half = 0; half < F::SCALES; half++)
        d[half] = F::SCALED == 2 ? h.d[k / 4] : __shfl_sync(0xffffffffu, h.d[k / 4 * F::SCALES + half], from);
    if (F::ADDS) add[0] = __shfl_sync(0xffffffffu, h.add[k / 4], from);
}
struct few_e4m3 {
    static const int DTYPE = DT_E4M3, COLUMNS = 256, BYTES = 256, ALIGN = 16, HALVES = 0, SCALES = 1, ADDS = 0, SCALED = 2, UNROLL = 8, STAGES = 2;
    static constexpr float gain = 1;
    typedef struct few_scale head;
    __device__ static void scale(float d[2], float *add, const head &h, const struct few_row &, int k) { few_scale_of<few_e4m3>(d, add, h, k); }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
        const uint2 w = *(const uint2 *)(p.p + 32 * k + 8 * q);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pairs = __byte_perm(i ? w.y : w.x, 0, 0x3120); /* bytes 0, 2, 1, 3 */
            pair[2 * i] = e4m3_halves(pairs), pair[2 * i + 1] = e4m3_high_halves(pairs);
        }
    }
};
/* Two codes in a byte, the even column's in the low nibble. */
template <int TYPE, int N_SCALES> struct few_apart4 {
    static const int DTYPE = TYPE, COLUMNS = 256, BYTES = 128, ALIGN = 4, HALVES = N_SCALES > 1, SCALES = N_SCALES, ADDS = TYPE == DT_I4, SCALED = 1, UNROLL = 8, STAGES = 3;
    static constexpr float gain = TYPE == DT_E2M1 ? 16384 : 1; /* few_mxfp4 */
    typedef struct few_scale head;
    __device__ static void scale(float d[2], float *add, const head &h, const struct few_row &, int k) { few_scale_of<few_apart4>(d, add, h, k); }
    __device__ static void pairs(uint32_t *first, uint32_t *second, uint32_t two) { /* of bytes 0 and 2, all else 0 */
        *first = f16x2_add((two & FEW_NIBBLE) | 0x64006400u, few_minus(0)), *second = f16x2_add((two >> 4 & FEW_NIBBLE) | 0x64006400u, few_minus(0));
        if (TYPE != DT_E2M1) return;
        *first = (two & 0x00080008u) << 12 | (two & 0x00070007u) << 9, *second = (two & 0x00800080u) << 8 | (two & 0x00700070u) << 5;
    }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t w = HALVES ? p.two(16 * k + 8 * half + 2 * q) : p.template word<ALIGN>(16 * k + 4 * q);
            pairs(&pair[2 * half], &pair[2 * half + 1], __byte_perm(w, 0, HALVES || !half ? 0x4140 : 0x4342));
        }
    }
};
struct few_i8 {
    static const int DTYPE = DT_I8, COLUMNS = 256, BYTES = 256, ALIGN = 4, HALVES = 0, SCALES = 1, ADDS = 1, SCALED = 1, UNROLL = 8, STAGES = 2;
    static constexpr float gain = 1;
    typedef struct few_scale head;
    __device__ static void scale(float d[2], float *add, const head &h, const struct few_row &, int k) { few_scale_of<few_i8>(d, add, h, k); }
    __device__ static void codes(uint32_t pair[4], const struct few_row &p, int k, int q) {
#pragma unroll
        for (int i = 0; i < 2; i++) few_pairs(pair + 2 * i, p.template word<ALIGN>(32 * k + 8 * q + 4 * i) ^ 0x80808080u, FEW_BYTE, few_minus(0));
    }
};
/* The formats, for RUN(struct). */
typedef few_q45_k<DT_Q4_K> few_q4_k;
typedef few_q45_k<DT_Q5_K> few_q5_k;
typedef few_legacy<DT_Q4_0, BYTES_Q4_0, false, false> few_q4_0;
typedef few_legacy<DT_Q4_1, BYTES_Q4_1, true, false> few_q4_1;
typedef few_legacy<DT_Q5_0, BYTES_Q5_0, false, true> few_q5_0;
typedef few_legacy<DT_Q5_1, BYTES_Q5_1, true, true> few_q5_1;
typedef few_legacy<DT_IQ4_NL, BYTES_IQ4_NL, false, false> few_iq4_nl;
typedef few_apart4<DT_I4, 1> few_i4;
typedef few_apart4<DT_E2M1, 2> few_e2m1; /* NVFP4's scales are of 16 columns */
#define FEW_FORMATS(RUN) \
    RUN(few_q4_k) \
    RUN(few_q5_k) \
    RUN(few_q6_k) \
    RUN(few_q8_0) \
    RUN(few_q4_0) \
    RUN(few_q4_1) \
    RUN(few_q5_0) \
    RUN(few_q5_1) \
    RUN(few_iq4_nl) \
    RUN(few_iq4_xs) \
    RUN(few_mxfp4) \
    RUN(few_q2_k) \
    RUN(few_q3_k) \
    RUN(few_e4m3) \
    RUN(few_i4) \
    RUN(few_e2m1) \
    RUN(few_i8)
