/* Chains: operations on few numbers, one after another in one block. */
#include "gpu/cuda_chain.cuh"

enum { CHAIN_THREADS = 1024 };

static __global__ void __launch_bounds__(CHAIN_THREADS) chain_kernel(const __grid_constant__ struct op_chain c) {
    __shared__ float sums[32];
    extern __shared__ char space[];
    chain_steps(c, sums, space);
}
size_t cuda_chain_space(const struct op_chain *c) {
    size_t space = 16;
    for (int k = 0; k < c->n; k++) {
        const struct op_route *r = &c->step[k].args.route;
        if (c->step[k].code != OP_ROUTE) continue;
        space = space > (size_t)r->n * route_bytes(*r) ? space : (size_t)r->n * route_bytes(*r);
    }
    return space;
}
cudaError_t cuda_chain(cudaStream_t s, const struct op_chain *c) {
    const size_t space = cuda_chain_space(c);
    for (int k = 0; k < c->n; k++)
        if (c->step[k].code == OP_ROUTE && c->step[k].args.route.n > OP_CHAIN_ROWS) return cudaErrorInvalidValue;
    if (space > 48 << 10) { /* more than a block gets without asking */
        const cudaError_t e = cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)space);
        if (e != cudaSuccess) return e;
    }
    chain_kernel<<<1, CHAIN_THREADS, space, s>>>(*c);
    return cudaGetLastError();
}
cudaError_t cuda_transfer(cudaStream_t s, const struct op_transfer *o) {
    struct op_chain c = {};
    c.n = 1, c.step[0].code = OP_TRANSFER, c.step[0].args.transfer = *o;
    return cuda_chain(s, &c);
}
