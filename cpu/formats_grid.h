/* Conversion of GGUF's IQ1, IQ2 and IQ3, whose codes number entries of grids, and of its ternary formats; the
 * continuation of formats_inner.h. Signs and scales of 32 columns come from the reference, inlined per format. */
#include "base/grid_blocks.h"

/* A loop over the parts, because eight copies would take long to compile. */
#define EACH_GRID(dtype, p, n, use) \
    for (int i_ = 0; i_ < 8; i_++) { \
        const struct grid_part t_ = grid_part_of(dtype, p, i_); \
        const float bias_ = (float)-grid_bias(dtype); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
            const V s_ = vset1(t_.scale[j_ / 16]), \
                    v_ = signed_v(t_.bytes[j_ / 8], t_.bytes[(j_ / 8 + 1) % 4], t_.signs >> j_); \
            use(32 * i_ + j_, bias_ != 0 ? vfma(v_, s_, vset1(bias_ * t_.scale[j_ / 16])) : vmul(v_, s_)); \
        } \
    }
#define EACH_iq1_s(p, n, use)   EACH_GRID(DT_IQ1_S, p, n, use)
#define EACH_iq1_m(p, n, use)   EACH_GRID(DT_IQ1_M, p, n, use)
#define EACH_iq2_xxs(p, n, use) EACH_GRID(DT_IQ2_XXS, p, n, use)
#define EACH_iq2_xs(p, n, use)  EACH_GRID(DT_IQ2_XS, p, n, use)
#define EACH_iq2_s(p, n, use)   EACH_GRID(DT_IQ2_S, p, n, use)
#define EACH_iq3_xxs(p, n, use) EACH_GRID(DT_IQ3_XXS, p, n, use)
#define EACH_iq3_s(p, n, use)   EACH_GRID(DT_IQ3_S, p, n, use)

/* Five digits of 32 bytes, five of 16, and four of the last four bytes. */
#define EACH_tq1_0(p, n, use) \
    do { \
        static const uint8_t power_[5] = {1, 3, 9, 27, 81}; \
        const float d_ = half_at((p) + 52); \
        const V s_ = vset1(d_), m_ = vset1(-d_); \
        uint8_t last_[16]; \
        EACH (int k_ = 0; k_ < 16; k_++) last_[k_] = (uint8_t)((uint8_t)((p)[48 + k_ % 4] * power_[k_ / 4]) * 3 >> 8); \
        EACH (int i_ = 0; i_ < 5; i_++) { \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) use(32 * i_ + j_, vfma(tq1_v((p) + j_, power_[i_]), s_, m_)); \
            EACH (int j_ = 0; j_ < 16; j_ += LANES) \
                use(160 + 16 * i_ + j_, vfma(tq1_v((p) + 32 + j_, power_[i_]), s_, m_)); \
        } \
        EACH (int j_ = 0; j_ < 16; j_ += LANES) use(240 + j_, vfma(i8_v(last_ + j_), s_, m_)); \
    } while (0)
#define EACH_tq2_0(p, n, use) \
    do { \
        const float d_ = half_at((p) + 64); \
        const V s_ = vset1(d_), m_ = vset1(-d_); \
        EACH (int i_ = 0; i_ < 8; i_++) \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) \
                use(32 * i_ + j_, vfma(q2_v((p) + i_ / 4 * 32 + j_, i_ % 4 * 2), s_, m_)); \
    } while (0)

/* Codes of 1 and 2 bits, low bits first, after a scale: as bytes 1 and -1, or -1 to 2. */
INLINE void q1_bytes(uint8_t out[128], const uint8_t *q) {
    const uint64_t ones = 0x0101010101010101;
    for (int i = 0; i < 16; i++) {
        const uint64_t bits = ((q[i] * ones & 0x8040201008040201) + 127 * ones) >> 7 & ones,
                       v = bits | (bits ^ ones) * 255;
        memcpy(out + 8 * i, &v, 8);
    }
}
INLINE void q2_bytes(uint8_t out[64], const uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        const uint32_t b = q[i], v = (((b | b << 6 | b << 12 | b << 18) & 0x03030303) | 0x80808080) - 0x01010101;
        const uint32_t codes = v ^ 0x80808080;
        memcpy(out + 4 * i, &codes, 4);
    }
}
#define EACH_BYTES(columns, make, p, use) \
    do { \
        uint8_t t_[columns]; \
        const V s_ = vset1(half_at(p)); \
        make(t_, (p) + 2); \
        EACH (int j_ = 0; j_ < columns; j_ += LANES) use(j_, vmul(i8_v(t_ + j_), s_)); \
    } while (0)
#define EACH_q1_0(p, n, use) EACH_BYTES(128, q1_bytes, p, use)
#define EACH_q2_0(p, n, use) EACH_BYTES(64, q2_bytes, p, use)
