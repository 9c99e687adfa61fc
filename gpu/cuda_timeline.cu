/* Timelines in pinned host memory, signalled and waited for by a stream: one thread each. See GPU_TIMELINE_ABORT_STEP. */
#include "gpu/cuda_device.cuh"

enum { ABORT_STEP = 1 << 30 /* GPU_TIMELINE_ABORT_STEP */, POLL_NS = 200 /* between polls over the bus */ };

static __global__ void timeline_signal_kernel(volatile uint32_t *word, uint32_t value) {
    __threadfence_system(); /* earlier work of the stream is visible before the value */
    word[0] = value;
    __threadfence_system();
    if (word[1]) word[0] = value + ABORT_STEP;
}
static __global__ void timeline_wait_kernel(const volatile uint32_t *word, uint32_t value) {
    while ((int32_t)(word[0] - value) < 0) __nanosleep(POLL_NS);
    __threadfence_system(); /* later work is ordered after the wait */
}

cudaError_t cuda_timeline_launch_signal(cudaStream_t s, uint32_t *word, uint32_t value) {
    timeline_signal_kernel<<<1, 1, 0, s>>>(word, value);
    return cudaGetLastError();
}
cudaError_t cuda_timeline_launch_wait(cudaStream_t s, const uint32_t *word, uint32_t value) {
    timeline_wait_kernel<<<1, 1, 0, s>>>(word, value);
    return cudaGetLastError();
}
