/* Conversion of each format to float32, in the SIMD wrappers of simd_<isa>.h. EACH_<name>(p, n, use) calls use(j, v)
 * for each vector v of LANES weights, columns j, j + LANES, ... starting at p, the start of a block. It covers a unit:
 * 64 columns, or a whole block if that is larger. n of the unit's columns exist: nothing after them is read, their
 * weights are arbitrary finite numbers, and vectors entirely past them are skipped. Scales inside blocks are applied,
 * so weights equal mat_at; E4M3 must still be multiplied by E4M3_X * E4M3_POST. */
#include <string.h>

#define EACH_PLAIN(name, bytes, p, n, use) \
    EACH (int u_ = 0; u_ < 64 / LANES; u_++) { \
        const int m_ = (n)-u_ * LANES; \
        const uint8_t *p_ = (p) + bytes * LANES * u_; \
        if (m_ >= LANES) use(u_ *LANES, load_##name(p_)); \
        else if (m_ > 0) use(u_ *LANES, load_##name##m(p_, m_)); \
    }
#define EACH_f32(p, n, use)  EACH_PLAIN(f32, 4, p, n, use)
#define EACH_bf16(p, n, use) EACH_PLAIN(bf16, 2, p, n, use)
#define EACH_f16(p, n, use)  EACH_PLAIN(f16, 2, p, n, use)
#define EACH_i8(p, n, use)   EACH_PLAIN(i8, 1, p, n, use)
#ifdef E4M3_LINE
#define EACH_e4m3(p, n, use) \
    do { \
        struct e4m3_line line_ = e4m3_line(p, n); \
        EACH (int u_ = 0; u_ < 64 / LANES; u_++) use(u_ *LANES, e4m3_part(line_, u_)); \
    } while (0)
#else
#define EACH_e4m3(p, n, use) EACH_PLAIN(e4m3, 1, p, n, use)
#endif

/* 2 * LANES columns in LANES bytes. */
#define EACH_PAIRS(load, p, n, use) \
    EACH (int u_ = 0; u_ < 32 / LANES; u_++) { \
        const int m_ = (n)-2 * u_ * LANES; \
        V even_, odd_, a_, b_; \
        if (m_ <= 0) continue; \
        if (m_ >= 2 * LANES) load((p) + u_ * LANES, &even_, &odd_); \
        else load##m((p) + u_ * LANES, (m_ + 1) / 2, &even_, &odd_); \
        vjoin(even_, odd_, &a_, &b_); \
        use(2 * u_ * LANES, a_); \
        if (m_ > LANES) use((2 * u_ + 1) * LANES, b_); \
    }
#define EACH_e2m1(p, n, use) EACH_PAIRS(load_e2m1, p, n, use)
#define EACH_nf4(p, n, use)  EACH_PAIRS(load_nf4, p, n, use)

/* Nibbles as integers, minus the zero point zero_ of the caller's columns. */
#define EACH_i4(p, n, use) \
    do { \
        const struct look t_ = look_minus(zero_); \
        EACH (int u_ = 0; u_ < 32 / LANES; u_++) { \
            const int m_ = (n)-2 * u_ * LANES; \
            V even_, odd_, a_, b_; \
            if (m_ <= 0) continue; \
            if (m_ >= 2 * LANES) look_v((p) + u_ * LANES, t_, &even_, &odd_); \
            else look_vm((p) + u_ * LANES, (m_ + 1) / 2, t_, &even_, &odd_); \
            vjoin(even_, odd_, &a_, &b_); \
            use(2 * u_ * LANES, a_); \
            if (m_ > LANES) use((2 * u_ + 1) * LANES, b_); \
        } \
    } while (0)

/* --- GGUF blocks ------------------------------------------------------------------------------ */

INLINE float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

#define EACH_q8_0(p, n, use) \
    EACH (int b_ = 0; b_ < 2; b_++) { \
        if (32 * b_ >= (n)) continue; \
        V s_ = vset1(half_at((p) + 34 * b_)); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) use(32 * b_ + j_, vmul(i8_v((p) + 34 * b_ + 2 + j_), s_)); \
    }

/* d * scale and dmin * min of the eight parts of a Q4_K block; each is exact in float32. */
INLINE void q4_k_scales(const uint8_t *b, float *scale, float *min) {
    uint32_t u[3];
    memcpy(u, b + 4, sizeof u);
    uint64_t sc = (u[0] & 0x3f3f3f3f) | (uint64_t)((u[2] & 0x0f0f0f0f) | (u[0] >> 2 & 0x30303030)) << 32;
    uint64_t mn = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    __m256 d = _mm256_set1_ps(half_at(b)), dmin = _mm256_set1_ps(half_at(b + 2));
    _mm256_storeu_ps(scale,
                     _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)sc)))));
    _mm256_storeu_ps(min,
                     _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)mn)))));
}
#define EACH_q4_k(p, n, use) \
    do { \
        float sc_[8], mn_[8]; \
        q4_k_scales(p, sc_, mn_); \
        EACH (int i_ = 0; i_ < 4; i_++) { \
            struct nibble lo_ = nibble_make(sc_[2 * i_], mn_[2 * i_]), \
                          hi_ = nibble_make(sc_[2 * i_ + 1], mn_[2 * i_ + 1]); \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                V v0_, v1_; \
                nibble_v((p) + 16 + 32 * i_ + j_, lo_, hi_, &v0_, &v1_); \
                use(64 * i_ + j_, v0_); \
                use(64 * i_ + 32 + j_, v1_); \
            } \
        } \
    } while (0)

INLINE void q6_k_scales(const uint8_t *b, float *scale) {
    __m128i s = _mm_loadu_si128((const __m128i *)(const void *)(b + 192));
    __m256 d = _mm256_set1_ps(half_at(b + 208));
    _mm256_storeu_ps(scale, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s))));
    _mm256_storeu_ps(scale + 8, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(s, 8)))));
}
#define EACH_q6_k(p, n, use) \
    do { \
        float sc_[16]; \
        q6_k_scales(p, sc_); \
        EACH (int h_ = 0; h_ < 2; h_++) \
            EACH (int i_ = 0; i_ < 4; i_++) \
                EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                    V v_ = q6_v((p) + 64 * h_ + 32 * (i_ & 1) + j_, (p) + 128 + 32 * h_ + j_, i_ < 2, 2 * i_); \
                    use(128 * h_ + 32 * i_ + j_, vmul(v_, vset1(sc_[8 * h_ + 2 * i_ + j_ / 16]))); \
                } \
    } while (0)

/* Q5_K's fifth bits are in 32 separate bytes, bit i for part i. */
#define EACH_q5_k(p, n, use) \
    do { \
        float sc_[8], mn_[8]; \
        q4_k_scales(p, sc_, mn_); \
        EACH (int i_ = 0; i_ < 8; i_++) { \
            V s_ = vset1(sc_[i_]), m_ = vset1(-mn_[i_]); \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                V v_ = q5_v((p) + 48 + i_ / 2 * 32 + j_, (p) + 16 + j_, i_ % 2 == 0, i_); \
                use(32 * i_ + j_, vfma(v_, s_, m_)); \
            } \
        } \
    } while (0)

/* 32 columns in 16 bytes at q, low nibbles first. */
#define EACH_LOOK(q, table, at, use) \
    EACH (int j_ = 0; j_ < 16; j_ += LANES) { \
        V v0_, v1_; \
        look_v((q) + j_, table, &v0_, &v1_); \
        use((at) + j_, v0_); \
        use((at) + 16 + j_, v1_); \
    }
#define EACH_LOOK_PAIR(values, bytes, codes, scale, p, n, use) \
    EACH (int b_ = 0; b_ < 2; b_++) { \
        const uint8_t *q_ = (p) + (bytes)*b_; \
        if (32 * b_ >= (n)) continue; \
        struct look t_ = look_make(values, scale(q_)); \
        EACH_LOOK(q_ + (codes), t_, 32 * b_, use) \
    }
INLINE float mxfp4_scale(const uint8_t *b) { return e8m0_half(b[0]); }
#define EACH_q4_0(p, n, use)   EACH_LOOK_PAIR(mat_q4_0, 18, 2, half_at, p, n, use)
#define EACH_iq4_nl(p, n, use) EACH_LOOK_PAIR(mat_iq4, 18, 2, half_at, p, n, use)
#define EACH_mxfp4(p, n, use)  EACH_LOOK_PAIR(mat_mxfp4, 17, 1, mxfp4_scale, p, n, use)

/* Sixteen columns in eight bytes, low nibbles first, with a scale of their own. */
#define EACH_nvfp4(p, n, use) \
    EACH (int j_ = 0; j_ < 64; j_ += 2 * LANES) { \
        V v0_, v1_, a_, b_; \
        look_v((p) + 4 + j_ / 2, look_make(mat_mxfp4, 1), &v0_, &v1_); \
        vjoin8(v0_, v1_, &a_, &b_); \
        use(j_, vmul(a_, vset1(nvfp4_scale((p)[j_ / 16])))); \
        use(j_ + LANES, vmul(b_, vset1(nvfp4_scale((p)[(j_ + LANES) / 16])))); \
    }
/* Bytes with a scale and an addend. */
#define EACH_q8_a(p, n, use) \
    EACH (int b_ = 0; b_ < 2; b_++) { \
        const uint8_t *q_ = (p) + 36 * b_; \
        if (32 * b_ >= (n)) continue; \
        const V s_ = vset1(half_at(q_)), m_ = vset1(half_at(q_ + 2)); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) use(32 * b_ + j_, vfma(u8_v(q_ + 4 + j_), s_, m_)); \
    }

INLINE void iq4_xs_scales(const uint8_t *b, float *scale) {
    float d = half_at(b);
    int high = b[2] | b[3] << 8;
    EACH (int k = 0; k < 8; k++)
        scale[k] = d * (float)(((b[4 + k / 2] >> (k % 2 * 4) & 15) | (high >> (2 * k) & 3) << 4) - 32);
}
#define EACH_iq4_xs(p, n, use) \
    do { \
        float sc_[8]; \
        iq4_xs_scales(p, sc_); \
        EACH (int i_ = 0; i_ < 8; i_++) { \
            struct look t_ = look_make(mat_iq4, sc_[i_]); \
            EACH_LOOK((p) + 8 + 16 * i_, t_, 32 * i_, use) \
        } \
    } while (0)

/* 32 columns in 16 bytes, low nibbles first, with a scale and an addend. */
#define EACH_q4_1(p, n, use) \
    EACH (int b_ = 0; b_ < 2; b_++) { \
        const uint8_t *q_ = (p) + 20 * b_; \
        if (32 * b_ >= (n)) continue; \
        struct nibble t_ = nibble_make(half_at(q_), -half_at(q_ + 2)); \
        EACH (int j_ = 0; j_ < 16; j_ += LANES) { \
            V v0_, v1_; \
            nibble_v(q_ + 4 + j_, t_, t_, &v0_, &v1_); \
            use(32 * b_ + j_, v0_); \
            use(32 * b_ + 16 + j_, v1_); \
        } \
    }
/* Nibbles with fifth bits, bit i for column i, in four bytes before the codes. */
#define EACH_Q5(bytes, head, addend, p, n, use) \
    EACH (int b_ = 0; b_ < 2; b_++) { \
        const uint8_t *q_ = (p) + (bytes)*b_; \
        uint32_t h_; \
        if (32 * b_ >= (n)) continue; \
        memcpy(&h_, q_ + (head), sizeof h_); \
        const float d_ = half_at(q_); \
        const V s_ = vset1(d_), m_ = vset1(addend); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) \
            use(32 * b_ + j_, vfma(q5_bits_v(q_ + (head) + 4 + j_ % 16, h_ >> j_, j_ < 16), s_, m_)); \
    }
#define EACH_q5_0(p, n, use) EACH_Q5(22, 2, -16 * d_, p, n, use)
#define EACH_q5_1(p, n, use) EACH_Q5(24, 4, half_at(q_ + 2), p, n, use)

/* Sixteen parts of 16 columns, two bits each: bits 2k and 2k + 1 of 32 bytes are part pair k of four. */
INLINE void q2_k_scales(const uint8_t *b, float *scale, float *min) {
    const __m128i all = _mm_loadu_si128((const __m128i *)(const void *)b), four = _mm_set1_epi8(15);
    const __m128i sc = _mm_and_si128(all, four), mn = _mm_and_si128(_mm_srli_epi16(all, 4), four);
    const __m256 d = _mm256_set1_ps(half_at(b + 80)), least = _mm256_set1_ps(-half_at(b + 82));
    EACH (int k = 0; k < 2; k++) {
        _mm256_storeu_ps(scale + 8 * k,
                         _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(k ? _mm_srli_si128(sc, 8) : sc))));
        _mm256_storeu_ps(min + 8 * k, _mm256_mul_ps(least, _mm256_cvtepi32_ps(
                                                               _mm256_cvtepu8_epi32(k ? _mm_srli_si128(mn, 8) : mn))));
    }
}
#define EACH_q2_k(p, n, use) \
    do { \
        float sc_[16], mn_[16]; \
        q2_k_scales(p, sc_, mn_); \
        EACH (int h_ = 0; h_ < 2; h_++) \
            EACH (int i_ = 0; i_ < 4; i_++) \
                EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                    const int k_ = 8 * h_ + 2 * i_ + j_ / 16; \
                    use(128 * h_ + 32 * i_ + j_, \
                        vfma(q2_v((p) + 16 + 32 * h_ + j_, 2 * i_), vset1(sc_[k_]), vset1(mn_[k_]))); \
                } \
    } while (0)

INLINE void q3_k_scales(const uint8_t *b, float *scale) {
    uint64_t low;
    uint32_t high;
    memcpy(&low, b + 96, sizeof low);
    memcpy(&high, b + 104, sizeof high);
    const uint64_t top = (high & 0x03030303) | (uint64_t)(high >> 2 & 0x03030303) << 32,
                   last = (high >> 4 & 0x03030303) | (uint64_t)(high >> 6 & 0x03030303) << 32;
    const uint64_t first = (low & 0x0f0f0f0f0f0f0f0f) | top << 4, second = (low >> 4 & 0x0f0f0f0f0f0f0f0f) | last << 4;
    const __m128i six = _mm_sub_epi8(_mm_set_epi64x((long long)second, (long long)first), _mm_set1_epi8(32));
    const __m256 d = _mm256_set1_ps(half_at(b + 108));
    EACH (int k = 0; k < 2; k++)
        _mm256_storeu_ps(scale + 8 * k,
                         _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(k ? _mm_srli_si128(six, 8) : six))));
}
/* The two bits of EACH_q2_k, and a third in 32 separate bytes, bit k of which belongs to part pair k of eight. */
#define EACH_q3_k(p, n, use) \
    do { \
        float sc_[16]; \
        q3_k_scales(p, sc_); \
        EACH (int i_ = 0; i_ < 8; i_++) \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) \
                use(32 * i_ + j_, \
                    vmul(q3_v((p) + 32 + i_ / 4 * 32 + j_, (p) + j_, i_ % 4 * 2, i_), vset1(sc_[2 * i_ + j_ / 16]))); \
    } while (0)

/* hearth's own format: a block may end before its 128 columns. */
#define EACH_int4(p, n, use) \
    do { \
        struct look t_ = look_make(mat_q4_0, 1); \
        EACH (int j_ = 0; j_ < 64; j_ += LANES) { \
            V v0_, v1_; \
            if (j_ >= (n)) continue; \
            look_v((p) + j_, t_, &v0_, &v1_); \
            use(j_, v0_); \
            if (64 + j_ < (n)) use(64 + j_, v1_); \
        } \
    } while (0)

#include "cpu/formats_grid.h"
#include "cpu/formats_ik.h"
