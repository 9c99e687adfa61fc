#pragma once
/* gpu/cuda_mma.cuh in C++. */
#include <stdint.h>

extern "C" {
void cuda_emulate_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line);
void cuda_emulate_mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line);
void cuda_emulate_mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line);
void cuda_emulate_ldmatrix(uint32_t *out, int n, const void *row, bool transposed, int line);
uint32_t cuda_emulate_bf16x2_fma(uint32_t a, uint32_t b, uint32_t c);
uint32_t cuda_emulate_f16x2_pack(float x, float y);
uint32_t cuda_emulate_f16x2_mul(uint32_t a, uint32_t b);
uint32_t cuda_emulate_f16x2_add(uint32_t a, uint32_t b);
void cuda_emulate_cp_async(void *shared, const void *global, int piece, int bytes);
void cuda_emulate_cp_commit(void);
void cuda_emulate_cp_wait(int open);
}
#define mma_bf16(c, a, b0, b1)      cuda_emulate_mma_bf16(c, a, b0, b1, __LINE__)
#define mma_f16(c, a, b0, b1)       cuda_emulate_mma_f16(c, a, b0, b1, __LINE__)
#define mma_e4m3(c, a, b0, b1)      cuda_emulate_mma_e4m3(c, a, b0, b1, __LINE__)
#define ldmatrix_x4(out, row)       cuda_emulate_ldmatrix(out, 4, row, false, __LINE__)
#define ldmatrix_x4_trans(out, row) cuda_emulate_ldmatrix(out, 4, row, true, __LINE__)
static inline uint32_t bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) { return cuda_emulate_bf16x2_fma(a, b, c); }
static inline uint32_t f16x2_pack(float x, float y) { return cuda_emulate_f16x2_pack(x, y); }
static inline uint32_t f16x2_mul(uint32_t a, uint32_t b) { return cuda_emulate_f16x2_mul(a, b); }
static inline uint32_t f16x2_add(uint32_t a, uint32_t b) { return cuda_emulate_f16x2_add(a, b); }
static inline void cp_async16(void *to, const void *from, int bytes) { cuda_emulate_cp_async(to, from, 16, bytes); }
static inline void cp_async8(void *to, const void *from, int bytes) { cuda_emulate_cp_async(to, from, 8, bytes); }
static inline void cp_async4(void *to, const void *from, int bytes) { cuda_emulate_cp_async(to, from, 4, bytes); }
static inline void cp_commit() { cuda_emulate_cp_commit(); }
template <int N> static inline void cp_wait() { cuda_emulate_cp_wait(N); }
