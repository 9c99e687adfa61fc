/* Kernels that each break a rule of test_sass.py. */
#include <stdint.h>

/* A tile without tensor cores. */
__global__ void tile_bf16_kernel(float *y, const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[n + i + threadIdx.x];
    y[threadIdx.x] = sum;
}
/* An array that does not fit the registers. */
__global__ void __launch_bounds__(1024, 2) attention_f32_kernel(float *y, const float *x, int n) {
    float sum[48] = {0};
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 48; k++) sum[k] += x[i * 48 + k] * x[k];
#pragma unroll
    for (int k = 0; k < 48; k++) y[threadIdx.x * 48 + k] = sum[k];
}
/* Weights loaded byte by byte. */
__global__ void skinny_kernel(float *y, const uint8_t *w, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += w[i];
    y[threadIdx.x] = sum;
}
/* A stack that the driver has to enlarge. */
__global__ void some_kernel(float *y, const float *x, int n) {
    float a[512];
    for (int i = 0; i < n; i++) a[i * 37 % 512] = x[i % 64] * i;
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[(i * 11 + (int)x[0]) % 512];
    y[threadIdx.x] = sum;
}
