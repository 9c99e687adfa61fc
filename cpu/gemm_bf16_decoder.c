/* Decodes weights with in-block scales, and FP4 with an E8M0 per 32 columns, to BF16 for gemm_amx.c: rounded, or as a
 * BF16 number and its BF16 remainder, 2^-17 of the weight.
 *
 * An AMX pair is two neighbouring columns, and gemm_amx.c expects 0-7, 16-23, 32-39 and 48-55 of 64 in the first of two
 * tiles. Every format is unpacked to bytes in column order, 64 at a time, in two to five instructions. Then:
 *
 * Four bits: the sixteen possible weights of a block are computed once per 32 columns, or 16, as BF16; two unpacks and
 * two word look-ups do the rest.
 *
 * Five, six and eight bits: a byte look-up moves the codes of two lanes to the upper ends of dwords, where a conversion
 * and a multiplication by the scale yield floats; two such vectors become one of BF16.
 *
 * Others: from the signed codes and the scales that gemm_int8_decoder.c unpacks. */
#include "cpu/gemm_codes.h"
#include "cpu/gemm_int8.h"

/* --- Four bits -------------------------------------------------------------------------------- */

INLINE __m512 values(const int8_t *table) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)table)));
}
INLINE __m512 widen(__m256i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)); }
/* BF16 remainders of a and b after rounding to head. */
INLINE __m512i over(__m512 a, __m512 b, __m512i head) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, widen(_mm512_extracti64x4_epi64(head, 1))),
                                        _mm512_sub_ps(a, widen(_mm512_castsi512_si256(head))));
}
INLINE void look(uint16_t *to, __m512i codes, __m512i table) {
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_unpacklo_epi8(codes, codes), table));
    _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_unpackhi_epi8(codes, codes), table));
}
/* 64 columns: a and b hold all possible weights of the first and the last 32; codes of the latter have 16 added. */
INLINE void put_four(uint16_t *head, uint16_t *rest, __m512i codes, __m512 a, __m512 b) {
    const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    look(head, codes, table);
    if (!rest) return;
    look(rest, codes, over(a, b, table));
}
/* Two variants each: with remainders, and without. */
#define PLANES_ARGS uint16_t *head, uint16_t *rest, const struct mat *w, int r, int c0, int n, ptrdiff_t ahead
#define PLANES(name) \
    INLINE void make_##name(PLANES_ARGS, const bool split); \
    static void planes_##name(uint16_t *head, uint16_t *rest, int pitch, const struct mat *w, int r, int rows, int c0, \
                              int n, ptrdiff_t ahead) { \
        if (rest) \
            for (int i = 0; i < rows; i++) \
                make_##name(head + i * pitch, rest + i * pitch, w, r + i, c0, n, ahead, true); \
        else \
            for (int i = 0; i < rows; i++) make_##name(head + i * pitch, NULL, w, r + i, c0, n, ahead, false); \
    } \
    INLINE void make_##name(PLANES_ARGS, const bool split)
#define REST(c) (split ? rest + (c) : NULL)

/* If the second block of 32 columns does not exist, the first is used again: activations are zero there. */
#define PLANES_32(name, bytes, codes, table, make_scales) \
    PLANES(name) { \
        const uint8_t *p = ROW_AT(name); \
        const __m512 all = values(table); \
        IN_MEMORY(s, make_scales(p, bytes, n)); \
        for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 2 * (bytes)) { \
            const int second = n - c > 32; \
            const uint8_t *q = second ? p + (bytes) : p; \
            ask(p, 2 * (bytes), ahead); \
            put_four(head + c, REST(c), codes_16(p + (codes), q + (codes)), _mm512_mul_ps(all, _mm512_set1_ps(s[i])), \
                     _mm512_mul_ps(all, _mm512_set1_ps(s[i + second]))); \
        } \
    }
PLANES_32(q4_0, 18, 2, mat_q4_0, half_scales)
PLANES_32(iq4_nl, 18, 2, mat_iq4, half_scales)
PLANES_32(mxfp4, 17, 1, mat_mxfp4, half_powers)

PLANES(q4_1) {
    const uint8_t *p = ROW_AT(q4_1);
    const __m512 all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    IN_MEMORY(s, half_scales(p, 20, n));
    IN_MEMORY(m, half_scales(p + 2, 20, n));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 40) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 20 : p;
        ask(p, 40, ahead);
        put_four(head + c, REST(c), codes_16(p + 4, q + 4),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i])),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second])));
    }
}

PLANES(e2m1) {
    const uint8_t *p = ROW_AT(e2m1);
    const __m512 all = _mm512_mul_ps(values(mat_mxfp4), _mm512_set1_ps(0.5f));
    IN_MEMORY(s, powers(exponents((const uint8_t *)w->scale + scale_row(w, r) + (size_t)c0 / 32, 1, n)));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 32) {
        ask(p, 32, ahead);
        put_four(head + c, REST(c), codes_pairs(p, n - c), _mm512_mul_ps(all, _mm512_set1_ps(s[i])),
                 _mm512_mul_ps(all, _mm512_set1_ps(s[i + (n - c > 32)])));
    }
}

PLANES(i4) {
    const uint8_t *p = ROW_AT(i4);
    const __m512 all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float s[8];
    int8_t zero[8] = {8, 8, 8, 8, 8, 8, 8, 8};
    if (has_halves_32(w)) _mm256_storeu_ps(s, halves_32(w, r, c0, n));
    else scales_beside(s, zero, w, r, c0, n);
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 32) {
        ask(p, 32, ahead);
        put_four(head + c, REST(c), codes_pairs(p, n - c),
                 _mm512_mul_ps(_mm512_sub_ps(all, _mm512_set1_ps(zero[i])), _mm512_set1_ps(s[i])),
                 _mm512_mul_ps(_mm512_sub_ps(all, _mm512_set1_ps(zero[i + 1])), _mm512_set1_ps(s[i + 1])));
    }
}

/* 64 columns of FP4 with a scale for each 16. */
INLINE void put_fp4_sixteens(uint16_t *head, uint16_t *rest, __m512i codes, const float *scale) {
    const __m512i group = _mm512_setr_epi64(0, 0, 0x1010101010101010, 0x1010101010101010, 0x2020202020202020,
                                            0x2020202020202020, 0x3030303030303030, 0x3030303030303030);
    const __m512 all = values(mat_mxfp4);
    const __m512i at = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi8(15), group, 0xea); /* (codes & 15) | group */
    const __m512i low = _mm512_unpacklo_epi8(at, at), high = _mm512_unpackhi_epi8(at, at);
    __m512 v[4];
    EACH (int i = 0; i < 4; i++) v[i] = _mm512_mul_ps(all, _mm512_set1_ps(scale[i]));
    const __m512i a = (__m512i)_mm512_cvtne2ps_pbh(v[1], v[0]), b = (__m512i)_mm512_cvtne2ps_pbh(v[3], v[2]);
    _mm512_store_si512(head, _mm512_permutex2var_epi16(a, low, b));
    _mm512_store_si512(head + 32, _mm512_permutex2var_epi16(a, high, b));
    if (!rest) return;
    const __m512i c = over(v[0], v[1], a), d = over(v[2], v[3], b);
    _mm512_store_si512(rest, _mm512_permutex2var_epi16(c, low, d));
    _mm512_store_si512(rest + 32, _mm512_permutex2var_epi16(c, high, d));
}
PLANES(fp4_beside) {
    const uint8_t *p = ROW_AT(e2m1);
    float s[16];
    _mm512_storeu_ps(s, sixteens_beside(w, r, c0, n));
    for (int c = 0; c < n; c += 64, p += 32)
        ask(p, 32, ahead), put_fp4_sixteens(head + c, REST(c), codes_pairs(p, n - c), s + c / 16);
}
PLANES(nvfp4) {
    const uint8_t *p = ROW_AT(nvfp4);
    float s[16];
    _mm512_storeu_ps(s, sixteens_before(p, w, r, n));
    for (int c = 0; c < n; c += 64, p += FORMAT_BYTES(nvfp4))
        ask(p, FORMAT_BYTES(nvfp4), ahead), put_fp4_sixteens(head + c, REST(c), codes_sixteens(p), s + c / 16);
}

PLANES(q4_k) {
    const uint8_t *p = ROW_AT(q4_k);
    const __m512 all = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m256 scale, off;
    ask(p, FORMAT_BYTES(q4_k), ahead);
    k_scales(p, &scale, &off);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, off);
    EACH (int i = 0; i < 4; i++)
        put_four(head + 64 * i, REST(64 * i), codes_32(p + 16 + 32 * i),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[2 * i]), _mm512_set1_ps(m[2 * i])),
                 _mm512_fmadd_ps(all, _mm512_set1_ps(s[2 * i + 1]), _mm512_set1_ps(m[2 * i + 1])));
}

PLANES(iq4_xs) {
    const uint8_t *p = ROW_AT(iq4_xs);
    const __m512 all = values(mat_iq4);
    ask(p, FORMAT_BYTES(iq4_xs), ahead);
    IN_MEMORY(s, iq4_xs_scales(p));
    EACH (int i = 0; i < 4; i++)
        put_four(head + 64 * i, REST(64 * i), codes_16(p + 8 + 32 * i, p + 24 + 32 * i),
                 _mm512_mul_ps(all, _mm512_set1_ps(s[2 * i])), _mm512_mul_ps(all, _mm512_set1_ps(s[2 * i + 1])));
}

/* --- Five, six and eight bits ----------------------------------------------------------------- */

/* 32 columns of a tile. */
INLINE void put_tile(uint16_t *head, uint16_t *rest, __m512 a, __m512 b) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    _mm512_store_si512(head, both);
    if (rest) _mm512_store_si512(rest, over(a, b, both));
}
/* Converts codes by inserting them as a byte of a float whose last place there is 1: 128 + a seven-bit code, 32,768 +
 * an eight-bit code. The addend of the FMA subtracts the offset, so the result is rounded once. */
enum { SEVEN_BITS = 128, EIGHT_BITS = 32768 };
#define LANES(byte, from) \
    _mm512_slli_epi32(_mm512_setr_epi32(from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6, from + 7, \
                                        from + 16, from + 17, from + 18, from + 19, from + 20, from + 21, from + 22, \
                                        from + 23), \
                      8 * (byte))
INLINE __m512 floats(__m512i codes, const int from, const int lift) {
    if (lift == SEVEN_BITS)
        return _mm512_castsi512_ps(
            _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x43000000), 0x4444444444444444, LANES(2, from), codes));
    return _mm512_castsi512_ps(
        _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x47000000), 0x2222222222222222, LANES(1, from), codes));
}
/* 64 columns: codes times a, plus x, for the first 32, times b, plus y, for the others. */
INLINE void put_codes(uint16_t *head, uint16_t *rest, __m512i codes, const int lift, __m512 a, __m512 x, __m512 b,
                      __m512 y) {
    put_tile(head, rest, _mm512_fmadd_ps(floats(codes, 0, lift), a, x), _mm512_fmadd_ps(floats(codes, 32, lift), b, y));
    put_tile(head + 32, rest ? rest + 32 : NULL, _mm512_fmadd_ps(floats(codes, 8, lift), a, x),
             _mm512_fmadd_ps(floats(codes, 40, lift), b, y));
}

PLANES(q8_0) {
    const uint8_t *p = ROW_AT(q8_0);
    const __m256 scale = half_scales(p, 34, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_mul_ps(scale, _mm256_set1_ps(-(EIGHT_BITS + 128)))); /* exact: an fp16 times nine bits */
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 68) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 34 : p;
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(p + 2)),
                      high = _mm256_loadu_si256((const __m256i *)(const void *)(q + 2));
        /* biased by 128 */
        const __m512i codes =
            _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_set1_epi8((char)0x80));
        ask(p, 68, ahead);
        put_codes(head + c, REST(c), codes, EIGHT_BITS, _mm512_set1_ps(s[i]), _mm512_set1_ps(m[i]),
                  _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second]));
    }
}

PLANES(q5_0) {
    const uint8_t *p = ROW_AT(q5_0);
    const __m256 scale = half_scales(p, 22, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_mul_ps(scale, _mm256_set1_ps(-(SEVEN_BITS + 16)))); /* exact */
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 44) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 22 : p;
        ask(p, 44, ahead);
        put_codes(head + c, REST(c), fifth_bits(codes_16(p + 6, q + 6), p + 2, q + 2), SEVEN_BITS, _mm512_set1_ps(s[i]),
                  _mm512_set1_ps(m[i]), _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second]));
    }
}
PLANES(q5_1) {
    const uint8_t *p = ROW_AT(q5_1);
    const __m256 scale = half_scales(p, 24, n);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_fmadd_ps(scale, _mm256_set1_ps(-SEVEN_BITS), half_scales(p + 2, 24, n)));
    for (int c = 0, i = 0; c < n; c += 64, i += 2, p += 48) {
        const int second = n - c > 32;
        const uint8_t *q = second ? p + 24 : p;
        ask(p, 48, ahead);
        put_codes(head + c, REST(c), fifth_bits(codes_16(p + 8, q + 8), p + 4, q + 4), SEVEN_BITS, _mm512_set1_ps(s[i]),
                  _mm512_set1_ps(m[i]), _mm512_set1_ps(s[i + second]), _mm512_set1_ps(m[i + second]));
    }
}

/* 64 columns with a factor and an addend for each 16; they have the order of put_codes. */
INLINE void put_sixteens(uint16_t *head, uint16_t *rest, __m512i codes, __m512 scale, __m512 off, const int i) {
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i a = _mm512_add_epi32(first, _mm512_set1_epi32(4 * i)),
                  b = _mm512_add_epi32(first, _mm512_set1_epi32(4 * i + 2));
    put_codes(head, rest, codes, SEVEN_BITS, _mm512_permutexvar_ps(a, scale), _mm512_permutexvar_ps(a, off),
              _mm512_permutexvar_ps(b, scale), _mm512_permutexvar_ps(b, off));
}
PLANES(q2_k) {
    const uint8_t *p = ROW_AT(q2_k);
    __m512 scale, min;
    q2_k_scales(p, &scale, &min);
    const __m512 off = _mm512_fmadd_ps(scale, _mm512_set1_ps(-SEVEN_BITS), min);
    ask(p, FORMAT_BYTES(q2_k), ahead);
    EACH (int i = 0; i < 4; i++) put_sixteens(head + 64 * i, REST(64 * i), two_bits(p + 16, i), scale, off, i);
}
PLANES(q3_k) {
    const uint8_t *p = ROW_AT(q3_k);
    /* exact: an fp16 by six bits by six */
    const __m512 scale = q3_k_scales(p), off = _mm512_mul_ps(scale, _mm512_set1_ps(-(SEVEN_BITS + 4)));
    ask(p, FORMAT_BYTES(q3_k), ahead);
    EACH (int i = 0; i < 4; i++) put_sixteens(head + 64 * i, REST(64 * i), q3_k_codes(p, i), scale, off, i);
}
PLANES(tq2_0) {
    const uint8_t *p = ROW_AT(tq2_0);
    const __m512 scale = _mm512_set1_ps(half_at(p + 64)), off = _mm512_mul_ps(scale, _mm512_set1_ps(-(SEVEN_BITS + 1)));
    ask(p, FORMAT_BYTES(tq2_0), ahead);
    EACH (int i = 0; i < 4; i++)
        put_codes(head + 64 * i, REST(64 * i), two_bits(p, i), SEVEN_BITS, scale, off, scale, off);
}

PLANES(q5_k) {
    const uint8_t *p = ROW_AT(q5_k);
    __m256 scale, off;
    ask(p, FORMAT_BYTES(q5_k), ahead);
    k_scales(p, &scale, &off);
    IN_MEMORY(s, scale);
    IN_MEMORY(m, _mm256_fmadd_ps(scale, _mm256_set1_ps(-SEVEN_BITS), off));
    EACH (int i = 0; i < 4; i++)
        put_codes(head + 64 * i, REST(64 * i), q5_k_codes(p, i), SEVEN_BITS, _mm512_set1_ps(s[2 * i]),
                  _mm512_set1_ps(m[2 * i]), _mm512_set1_ps(s[2 * i + 1]), _mm512_set1_ps(m[2 * i + 1]));
}
PLANES(q6_k) {
    const uint8_t *p = ROW_AT(q6_k);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512 scale = q6_k_scales(p), off = _mm512_set1_ps(-(SEVEN_BITS + 32));
    ask(p, FORMAT_BYTES(q6_k), ahead);
    EACH (int i = 0; i < 4; i++) {
        const __m512 x = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4 * i)), scale);
        const __m512 y = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4 * i + 2)), scale);
        put_codes(head + 64 * i, REST(64 * i), q6_k_codes(p, i), SEVEN_BITS, x, _mm512_mul_ps(x, off), y,
                  _mm512_mul_ps(y, off)); /* exact: an fp16 by eight bits by three */
    }
}

/* --- Signed codes ----------------------------------------------------------------------------- */

/* 64 columns; each product is rounded once. */
INLINE void put_signed(uint16_t *head, uint16_t *rest, const int8_t *code, __m512 a, __m512 b) {
    const __m512i tiles = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_load_si512(code));
#define PRODUCTS(lane, scale) \
    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(tiles, lane))), scale)
    put_tile(head, rest, PRODUCTS(0, a), PRODUCTS(1, b));
    put_tile(head + 32, rest ? rest + 32 : NULL, PRODUCTS(2, a), PRODUCTS(3, b));
#undef PRODUCTS
}
INLINE void signed_row(uint16_t *head, uint16_t *rest, const int8_t *code, const float *scale, int n,
                       const int segment) {
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (int c = 0; c < n; c += 64) {
        const float *s = scale + c / segment;
        const __m512 four = _mm512_castps128_ps512(_mm_loadu_ps(s)),
                     a = segment == 32 ? _mm512_set1_ps(s[0]) : _mm512_permutexvar_ps(first, four),
                     b = segment == 32 ? _mm512_set1_ps(s[1])
                                       : _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2)), four);
        put_signed(head + c, rest ? rest + c : NULL, code + c, a, b);
    }
}
static void planes_of_codes(uint16_t *head, uint16_t *rest, int pitch, const struct mat *w, int r, int rows, int c0,
                            int n, ptrdiff_t ahead) {
    enum { ROWS = sizeof((struct int8_rows *)NULL)->code / INT8_PITCH };
    struct int8_rows codes;
    const struct int8_decoder d = gemm_int8_decoder_for(w);
    for (int i = 0, have; i < rows; i += have) {
        have = rows - i < ROWS ? rows - i : ROWS;
        d.rows(&codes, w, r + i, have, c0, n, ahead);
        for (int k = 0; k < have; k++) {
            uint16_t *to = head + (i + k) * pitch, *over = rest ? rest + (i + k) * pitch : NULL;
            if (d.segment == 32) signed_row(to, over, codes.code[k], codes.scale[k], n, 32);
            else signed_row(to, over, codes.code[k], codes.scale[k], n, 16);
        }
    }
}

struct gemm_bf16_decoder gemm_bf16_decoder_for(const struct mat *w) {
#define ROW(name) [FORMAT_DTYPE(name)] = planes_##name
    static const bf16_decode_fn rows[DT_COUNT] = {ROW(q8_0), ROW(q4_0), ROW(iq4_nl), ROW(mxfp4),  ROW(e2m1),
                                                  ROW(q4_k), ROW(q5_k), ROW(q6_k),   ROW(iq4_xs), ROW(q4_1),
                                                  ROW(q5_0), ROW(q5_1), ROW(q2_k),   ROW(q3_k),   ROW(tq2_0)};
#undef ROW
    static const bf16_decode_fn beside[DT_COUNT] = {
        [DT_I4] = planes_i4, [DT_E2M1] = planes_fp4_beside, [DT_NVFP4] = planes_nvfp4};
    const struct int8_decoder codes = gemm_int8_decoder_for(w);
    if (!codes.rows) return (struct gemm_bf16_decoder){0};
    const bool powers = w->dtype == DT_MXFP4 || (w->dtype == DT_E2M1 && w->scale_dtype == DT_E8M0);
    if (beside[w->dtype] && !powers) return (struct gemm_bf16_decoder){beside[w->dtype], false};
    if (rows[w->dtype] && (!w->scale || powers)) return (struct gemm_bf16_decoder){rows[w->dtype], powers};
    return (struct gemm_bf16_decoder){codes.has_off ? NULL : planes_of_codes, false};
}
