/* Conversion of ik_llama.cpp's formats to float32, without the scale of the row; included by formats_inner.h. */
#define EACH_iq4_ks(p, n, use) \
    EACH (int i_ = 0; i_ < 8; i_++) { \
        const int s_ = (p)[i_]; \
        struct look t_ = look_make(mat_iq4_ks[s_ & 1], (float)((s_ & 254) - 127)); \
        EACH_LOOK((p) + 8 + 16 * i_, t_, 32 * i_, use) \
    }
/* Parts of 32 columns in pairs, one in low nibbles; the fifth bit of part i is bit i of 32 bytes. */
#define EACH_iq5_ks(p, n, use) \
    EACH (int i_ = 0; i_ < 8; i_++) { \
        const int8_t *values_ = mat_iq5_ks[(p)[i_] & 1]; \
        const V s_ = vset1((float)(((p)[i_] & 254) - 127)); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) \
            use(32 * i_ + j_, \
                vmul(look5_v((p) + 8 + i_ / 2 * 32 + j_, (p) + 136 + j_, i_ % 2 == 0, i_, values_), s_)); \
    }
/* A code for two columns: 16 nibbles for a part, and bit i of 16 bytes. */
#define EACH_iq2_kl(p, n, use) \
    EACH (int i_ = 0; i_ < 8; i_++) { \
        const int high_ = ((p)[0] | (p)[1] << 8) >> (2 * i_) & 3; \
        const V s_ = vset1((float)((((p)[2 + i_ % 4] >> (i_ / 4 * 4) & 15) | high_ << 4) - 32)); \
        EACH (int j_ = 0; j_ < 16; j_ += LANES) { \
            const uint8_t *q_ = (p) + 6 + i_ / 2 * 16 + j_, *h_ = (p) + 70 + j_; \
            V a_, b_; \
            vjoin(look5_v(q_, h_, i_ % 2 == 0, i_, mat_iq2_kl[0]), look5_v(q_, h_, i_ % 2 == 0, i_, mat_iq2_kl[1]), \
                  &a_, &b_); \
            use(32 * i_ + 2 * j_, vmul(a_, s_)); \
            use(32 * i_ + 2 * j_ + LANES, vmul(b_, s_)); \
        } \
    }
