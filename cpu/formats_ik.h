/* Conversion of ik_llama.cpp's formats to float32, without the scale of the row; included by formats_inner.h. */
#define EACH_iq4_ks(p, n, use) \
    EACH (int i_ = 0; i_ < 8; i_++) { \
        const int s_ = (p)[i_]; \
        struct look t_ = look_make(mat_iq4_ks[s_ & 1], (float)((s_ & 254) - 127)); \
        EACH_LOOK((p) + 8 + 16 * i_, t_, 32 * i_, use) \
    }
/* Parts of 32 columns whose values come from tables of more than 16 entries. */
#define EACH_PARTS(fill, p, n, use) \
    for (int i_ = 0; i_ < 8; i_++) { \
        float part_[32] __attribute__((aligned(64))); \
        fill(part_, p, i_); \
        EACH (int j_ = 0; j_ < 32; j_ += LANES) use(32 * i_ + j_, vload(part_ + j_)); \
    }
INLINE void iq5_ks_part(float *out, const uint8_t *b, int k) {
    const int8_t *values = mat_iq5_ks[b[k] & 1];
    const float scale = (float)((b[k] & 254) - 127);
    const uint8_t *four = b + 8 + k / 2 * 32, *fifth = b + 136;
    for (int j = 0; j < 32; j++)
        out[j] = scale * (float)values[(four[j] >> (k % 2 * 4) & 15) | (fifth[j] >> k & 1) << 4];
}
INLINE void iq2_kl_part(float *out, const uint8_t *b, int k) {
    const float scale = (float)(((b[2 + k % 4] >> (k / 4 * 4) & 15) | ((b[0] | b[1] << 8) >> (2 * k) & 3) << 4) - 32);
    const uint8_t *four = b + 6 + k / 2 * 16, *fifth = b + 70;
    for (int j = 0; j < 16; j++) {
        const int8_t *pair = mat_iq2_kl[(four[j] >> (k % 2 * 4) & 15) | (fifth[j] >> k & 1) << 4];
        out[2 * j] = scale * (float)pair[0], out[2 * j + 1] = scale * (float)pair[1];
    }
}
#define EACH_iq5_ks(p, n, use) EACH_PARTS(iq5_ks_part, p, n, use)
#define EACH_iq2_kl(p, n, use) EACH_PARTS(iq2_kl_part, p, n, use)
