/* Mamba's selective scan (struct op_scan). Channels are independent, so a thread processes one for all rows, with its column of the state in registers, or in
 * memory where the state is larger; no sum depends on the number of rows in a call. */
#include "gpu/cuda_device.cuh"

enum { SCAN_THREADS = 64, SCAN_KEPT = 16 };

/* KEPT: rows of the state in registers; 0: the state stays in `after`. */
template <int KEPT> static __global__ void scan_kernel(struct op_scan o) {
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (o.at) o.before = (const float *)o.at->data, o.after = (float *)o.at->after;
    if (c >= o.channels) return;
    const size_t ld = (size_t)o.channels;
    float kept[KEPT ? KEPT : 1];
    for (int i = 0; i < o.state; i++) {
        const float s = o.before ? o.before[(size_t)i * ld + (size_t)c] : 0.0f;
        if (KEPT) {
#pragma unroll
            for (int k = 0; k < KEPT; k++) kept[k] = k == i ? s : kept[k];
        } else o.after[(size_t)i * ld + (size_t)c] = s;
    }
    for (int t = 0; t < o.n; t++) {
        const size_t row = (size_t)t;
        const float *b = o.b + row * (size_t)o.ldbc, *e = o.c + row * (size_t)o.ldbc;
        const float x = o.x[row * (size_t)o.ldx + (size_t)c], a = o.a[row * (size_t)o.lda + (size_t)c] + o.dt[c];
        const float step = softplus(a), in = step * x;
        float sum = o.skip[c] * x;
        if (KEPT) {
#pragma unroll
            for (int i = 0; i < KEPT; i++)
                if (i < o.state) {
                    kept[i] = fmaf(expf(o.rate[(size_t)i * ld + (size_t)c] * step), kept[i], b[i] * in);
                    sum = fmaf(e[i], kept[i], sum);
                }
        } else {
            for (int i = 0; i < o.state; i++) {
                float *s = o.after + (size_t)i * ld + (size_t)c;
                *s = fmaf(expf(o.rate[(size_t)i * ld + (size_t)c] * step), *s, b[i] * in);
                sum = fmaf(e[i], *s, sum);
            }
        }
        o.out[row * (size_t)o.ldo + (size_t)c] = sum;
    }
    if (KEPT) {
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (i < o.state) o.after[(size_t)i * ld + (size_t)c] = kept[i];
    }
}
cudaError_t cuda_scan(cudaStream_t s, const struct op_scan *o) {
    const unsigned blocks = blocks_of((size_t)o->channels, SCAN_THREADS);
    if (o->state <= SCAN_KEPT) scan_kernel<SCAN_KEPT><<<blocks, SCAN_THREADS, 0, s>>>(*o);
    else scan_kernel<0><<<blocks, SCAN_THREADS, 0, s>>>(*o);
    return cudaGetLastError();
}
