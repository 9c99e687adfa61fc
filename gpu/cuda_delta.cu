/* Causal convolutions along the rows, and recurrent states with the rules of enum delta_rule (gated DeltaNet, KDA, Mamba-2, lightning attention). Columns of
 * a state are independent, so a warp processes one for all rows, with the column in registers; no sum depends on the number of rows in a call. */
#include "gpu/cuda_small.cuh"

static __global__ void conv_kernel(struct op_conv called) {
    const struct op_conv o = conv_with_addresses(called);
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = (int)blockIdx.y; i < o.n && c < o.channels; i += (int)gridDim.y) conv_number(o, i, c);
}
static __global__ void conv_keep_kernel(struct op_conv called) {
    const struct op_conv o = conv_with_addresses(called);
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c < o.channels) conv_keep(o, c);
}
cudaError_t cuda_conv(cudaStream_t s, const struct op_conv *o) {
    unsigned blocks = blocks_of((size_t)o->channels, 256), rows = o->n < 1024 ? (unsigned)o->n : 1024;
    conv_kernel<<<dim3(blocks, rows), 256, 0, s>>>(*o);
    if (!o->is_peek && o->past > 0) conv_keep_kernel<<<blocks, 256, 0, s>>>(*o);
    return cudaGetLastError();
}

/* A block has several columns of a head's state, one per warp: a lane holds rows lane, lane + 32, ... */
enum { DELTA_COLUMNS = 8, DELTA_LANES = 32, DELTA_KEPT = DELTA_MAX_K_DIM / DELTA_LANES };

/* A row's decay of the state, and the factor of what it adds. */
struct delta_factors {
    float decay, beta;
};
__device__ inline delta_factors factors_of(const struct op_delta &o, int t, int h) {
    if (o.rule == DELTA_LIGHTNING) return {expf(-o.slope * exp2f(-8.0f * (float)(h + 1) / (float)o.v_heads)), 1.0f};
    const size_t gate = (size_t)t * (size_t)o.ldg + (size_t)h;
    if (o.rule == DELTA_CHANNELS) return {1.0f, (o.doubles_beta ? 2.0f : 1.0f) * sigmoid(o.b[gate])};
    const float plus = softplus(o.a[gate] + o.dt[h]);
    return {expf(o.rate[h] * plus), o.rule == DELTA_MAMBA2 ? plus : sigmoid(o.b[gate])};
}

/* Row t's decay of row i of head h's state. */
__device__ inline float channel_decay(const struct op_delta &o, int t, int h, int i) {
    const size_t at = (size_t)h * (size_t)o.k_dim + (size_t)i;
    const float f = o.a[(size_t)t * (size_t)o.ldg + at] + o.dt[at], rate = o.rate[h];
    return expf(o.bound < 0 ? o.bound / (1.0f + expf(rate * f)) : rate * softplus(f));
}

/* KEPT: state rows that a lane keeps in registers. */
template <int KEPT> static __global__ void delta_kernel(struct op_delta called) {
    const struct op_delta o = with_addresses(called);
    extern __shared__ float row[]; /* q [k_dim], k [k_dim]; by channel: decays [k_dim] */
    __shared__ float scale[2]; /* factors of q and k */
    int lane = threadIdx.x % DELTA_LANES, warp = threadIdx.x / DELTA_LANES;
    int h = (int)blockIdx.x, c = (int)blockIdx.y * DELTA_COLUMNS + warp;
    bool has_column = c < o.v_dim;
    size_t state = ((size_t)h * (size_t)o.k_dim) * (size_t)o.v_dim + (size_t)c;
    size_t key = (size_t)(o.is_tiled ? h % o.k_heads : h / (o.v_heads / o.k_heads)) * (size_t)o.k_dim;
    float s[KEPT];
    const bool by_channel = o.rule == DELTA_CHANNELS, gated = o.rule == DELTA_GATED || by_channel;
    const float skip = o.rule == DELTA_MAMBA2 ? o.skip[h] : 0;
    for (int r = 0; r < KEPT; r++) {
        int i = r * DELTA_LANES + lane;
        s[r] = has_column && o.before && i < o.k_dim ? o.before[state + (size_t)i * (size_t)o.v_dim] : 0;
    }
    for (int t = 0; t < o.n; t++) {
        const float *q = o.q + (size_t)t * (size_t)o.ldx + key, *k = o.k + (size_t)t * (size_t)o.ldx + key;
        __syncthreads(); /* all threads have read the previous row */
        for (int i = threadIdx.x; i < o.k_dim; i += blockDim.x) {
            row[i] = q[i], row[o.k_dim + i] = k[i];
            if (by_channel) row[2 * o.k_dim + i] = channel_decay(o, t, h, i);
        }
        __syncthreads();
        if (warp < 2) { /* one warp for q, one for k */
            float sum = 0;
            for (int i = lane; i < o.k_dim; i += DELTA_LANES) sum = fmaf(row[warp * o.k_dim + i], row[warp * o.k_dim + i], sum);
            sum = warp_sum(sum);
            if (!lane) scale[warp] = !gated ? 1.0f : (warp ? 1.0f : 1.0f / sqrtf((float)o.k_dim)) / sqrtf(sum + 1e-6f);
        }
        __syncthreads();
        const delta_factors f = factors_of(o, t, h);
        float recalled = 0, out = 0; /* recalled: the value that the state has for this key, S^T k */
        for (int r = 0; r < KEPT; r++) {
            int i = r * DELTA_LANES + lane;
            s[r] *= by_channel && i < o.k_dim ? row[2 * o.k_dim + i] : f.decay;
            if (i < o.k_dim) recalled = fmaf(s[r], row[o.k_dim + i], recalled);
        }
        recalled = gated ? warp_sum(recalled) * scale[1] : 0;
        float v = has_column ? o.v[(size_t)t * (size_t)o.ldx + (size_t)h * (size_t)o.v_dim + (size_t)c] : 0;
        float d = f.beta * (v - recalled) * scale[1];
        for (int r = 0; r < KEPT; r++) {
            int i = r * DELTA_LANES + lane;
            if (i < o.k_dim) {
                s[r] = fmaf(row[o.k_dim + i], d, s[r]);
                out = fmaf(s[r], row[i], out);
            }
        }
        out = warp_sum(out) * scale[0] + skip * v;
        if (has_column && !lane) o.out[(size_t)t * (size_t)o.ldo + (size_t)h * (size_t)o.v_dim + (size_t)c] = out;
    }
    for (int r = 0; r < KEPT; r++) {
        int i = r * DELTA_LANES + lane;
        if (has_column && i < o.k_dim) o.after[state + (size_t)i * (size_t)o.v_dim] = s[r];
    }
}
cudaError_t cuda_delta(cudaStream_t s, const struct op_delta *d) {
    if (d->k_dim > DELTA_MAX_K_DIM) return cudaErrorNotSupported;
    dim3 grid((unsigned)d->v_heads, blocks_of((size_t)d->v_dim, DELTA_COLUMNS));
    unsigned threads = DELTA_COLUMNS * DELTA_LANES;
    size_t shared = (size_t)d->k_dim * (d->rule == DELTA_CHANNELS ? 3 : 2) * sizeof(float);
    if (d->k_dim <= 4 * DELTA_LANES) delta_kernel<4><<<grid, threads, shared, s>>>(*d);
    else if (d->k_dim <= 8 * DELTA_LANES) delta_kernel<8><<<grid, threads, shared, s>>>(*d);
    else delta_kernel<DELTA_KEPT><<<grid, threads, shared, s>>>(*d);
    return cudaGetLastError();
}
