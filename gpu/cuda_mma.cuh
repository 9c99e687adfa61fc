#pragma once
/* Instructions that CUDA C cannot express: products on tensor cores, the loads that feed them, and asynchronous copies.
 * All other kernel code is plain C++, so a port replaces only this file.
 *
 * Fragments, lane = 4 g + q of a warp. A of m16n8k16 (bf16, k in pairs): a[0] row g, k 2q; a[1] row g + 8; a[2] row g, k 2q + 8;
 * a[3] row g + 8. b0: column g, k 2q; b1: k 2q + 8. c[0], c[1]: row g, columns 2q, 2q + 1; c[2], c[3]: row g + 8.
 * FP16 is the same. m16n8k32 (e4m3, k in fours) is the same with 4q and 16 + 4q. test/gpu/cuda_emulate/warp.cpp has each of them in C++. */
#include <cuda_bf16.h>
#include <stdint.h>

#ifdef CUDA_EMULATE
#include "cuda_emulate_mma.h"
#else

__device__ inline void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* sm_89 and later; a kernel for sm_80 that calls it traps. */
__device__ inline void mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();
#endif
}

/* a * b + c of two BF16 each; subnormals are kept. */
__device__ inline uint32_t bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* x and y rounded to FP16, x in the low half. */
__device__ inline uint32_t f16x2_pack(float x, float y) {
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(y), "f"(x));
    return d;
}
/* a * b of two FP16 each; subnormals are kept. */
__device__ inline uint32_t f16x2_mul(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* a + b of two FP16 each. */
__device__ inline uint32_t f16x2_add(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* Loads four matrices of 8 rows of 16 bytes: lane l gives the shared-memory address of row l % 8 of matrix l / 8 and receives, of
 * each matrix, bytes 4q .. 4q + 3 of row g; transposed: the elements in column g of rows 2q and 2q + 1. */
__device__ inline void ldmatrix_x4(uint32_t r[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at)
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Asynchronous copies from global to shared memory: `bytes` are read, the rest of the 16, 8 or 4 is zero-filled.
 * Both addresses are aligned to that size. cp_wait(n): all but the n latest groups of this thread have arrived. */
__device__ inline void cp_async16(void *dst, const void *src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ inline void cp_async8(void *dst, const void *src, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ inline void cp_async4(void *dst, const void *src, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ inline void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#endif

/* x and y rounded to BF16, x in the low half. */
__device__ inline uint32_t bf16x2_pack(float x, float y) {
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&v;
}
/* Decodes two E4M3 codes in the high bytes of the 16-bit halves. Exponent and mantissa move to BF16's positions, subnormal codes as
 * subnormals; multiplying by 2^120 then corrects the bias of both. 0x7f becomes NaN. */
__device__ inline uint32_t e4m3_pair(uint32_t w) {
    uint32_t mag = w >> 4 & 0x07f007f0, nan = (mag + 0x00100010) & 0x08000800;
    return bf16x2_fma((w & 0x80008000) | mag | nan * 15, 0x7b807b80, 0x80008000);
}
/* Decodes four E4M3 codes to BF16, the lowest byte first. */
__device__ inline void e4m3_four(uint32_t out[2], uint32_t codes) {
    out[0] = e4m3_pair((codes & 0xff) << 8 | (codes & 0xff00) << 16);
    out[1] = e4m3_pair((codes >> 8 & 0xff00) | (codes & 0xff000000));
}
/* Decodes the two E4M3 codes in the low 16 bits to FP16, which holds them exactly. Before sm_89 as above: 2^8 corrects the bias. */
__device__ inline uint32_t e4m3_halves(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t d;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"((uint16_t)codes));
    return d;
#else
    const uint32_t w = (codes & 0xff) << 8 | (codes & 0xff00) << 16, mag = w >> 1 & 0x3f803f80, nan = (mag + 0x00800080) & 0x40004000;
    return f16x2_mul((w & 0x80008000) | mag | nan, 0x5c005c00);
#endif
}
/* The same of the high 16 bits: ptxas converts the upper half of a register as it is, without a shift. */
__device__ inline uint32_t e4m3_high_halves(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(d) : "r"(codes));
    return d;
#else
    return e4m3_halves(codes >> 16);
#endif
}
/* Two E2M1 codes in the high nibbles of the 16-bit halves, in the same way with 2^126. */
__device__ inline uint32_t e2m1_pair(uint32_t w) { return bf16x2_fma((w & 0x80008000) | (w >> 6 & 0x01c001c0), 0x7e807e80, 0x80008000); }
