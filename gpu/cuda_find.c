/* Lists the machine's cards, or says why none can be used: the driver is missing or too old, or this build has no code
 * for the card. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu/cuda.h"

/* The release of NVIDIA's driver that first ran each version of CUDA, from the release notes of its toolkits. Within a
 * major version of CUDA a program runs with the driver of the first minor one. */
static const struct {
    int cuda, release; /* 12040: CUDA 12.4 */
} releases[] = {{11000, 450}, {12000, 525}, {12010, 530}, {12020, 535}, {12030, 545}, {12040, 550},
                {12050, 555}, {12060, 560}, {12080, 570}, {12090, 575}, {13000, 580}, {13010, 590}};

static int release_of(int cuda) {
    int release = 0;
    for (size_t i = 0; i < sizeof releases / sizeof *releases && releases[i].cuda <= cuda; i++)
        release = releases[i].release;
    return release;
}

enum { MAJOR = 1000, MINOR = 10 };
static int text_of_version(char *out, size_t size, int cuda) {
    return snprintf(out, size, "CUDA %d.%d", cuda / MAJOR, cuda % MAJOR / MINOR);
}

/* Whether the kernel's part of the driver is loaded: a card's module, or WSL2's device. */
static bool has_kernel_driver(void) {
    return !access("/proc/driver/nvidia/version", F_OK) || !access("/dev/dxg", F_OK);
}

/* Sets the error to why the runtime refuses the driver. *has_card: the machine seems to have a card, so the message is
 * worth showing. */
static int say_driver(bool *has_card, struct error *e) {
    int found = 0;
    char have[32], need[32];
    const int needed = CUDART_VERSION / MAJOR * MAJOR;
    if (cudaDriverGetVersion(&found)) found = 0;
    *has_card = found > 0 || has_kernel_driver();
    if (!*has_card) return error_set(e, ERR_RUNTIME, "no NVIDIA driver on this machine");
    if (!found)
        return error_set(e, ERR_RUNTIME,
                         "the NVIDIA driver's library libcuda.so.1 is missing, though its kernel module is here: start "
                         "a container with its GPUs (--gpus all, or --device nvidia.com/gpu=all), or else install the "
                         "driver's libraries");
    text_of_version(have, sizeof have, found);
    text_of_version(need, sizeof need, needed);
    return error_set(e, ERR_RUNTIME,
                     "the NVIDIA driver is too old: it is for %s (release %d), this build needs %s (release %d or "
                     "newer). Update the driver%s",
                     have, release_of(found), need, release_of(needed),
                     needed > 12000 ? ", or build hearth with CUDA 12.8, which runs from release 525 on" : "");
}

/* Streams that share a hardware queue wait for each other, and a stream may wait for the CPU. The driver reads this
 * variable when it starts. */
static void request_hardware_queues(void) { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

/* CUDA 11 on a driver without a card, and a missing driver, both end here with a readable message. */
static int count_cards(bool *has_card, struct error *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, request_hardware_queues);
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);
    *has_card = r == cudaSuccess && n > 0;
    if (*has_card) return n;
    cudaGetLastError();
    if (r == cudaErrorInsufficientDriver) return say_driver(has_card, e);
    return error_set(e, ERR_RUNTIME, "no NVIDIA device: %s", r ? cudaGetErrorString(r) : "the driver lists none");
}
int cuda_find_count(struct error *e) {
    bool has_card;
    return count_cards(&has_card, e);
}

static bool is_usable(int sm) { return sm >= CUDA_LEAST_SM && cuda_load_code(sm) != CUDA_CODE_NONE; }
static const char *why_unusable(int sm) {
    return is_usable(sm)        ? ""
           : sm < CUDA_LEAST_SM ? ", too old: sm_80 is needed"
                                : ", for which this build has no code";
}

void cuda_find_describe(char *out, size_t size) {
    struct error e = {0};
    const int n = cuda_find_count(&e);
    if (n < 0) snprintf(out, size, "%s", e.text);
    size_t len = 0;
    for (int i = 0; i < n && len < size; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i)) continue;
        int m = snprintf(out + len, size - len, "%s%d %s (sm_%d%d, %zu MiB%s)", i ? ", " : "", i, p.name, p.major,
                         p.minor, p.totalGlobalMem >> 20, why_unusable(p.major * 10 + p.minor));
        len += m > 0 ? (size_t)m : 0;
    }
    if (n > 0 && len < size)
        snprintf(out + len, size - len, "; %s", cuda_blas_name() ? cuda_blas_name() : "no cuBLAS, own kernels");
}

enum { TRIED_SM = 90 }; /* compute capability of the cards on which the kernels have run */

void cuda_find_list(struct gpu_found *found) {
    struct error e = {0};
    bool has_card;
    const int n = count_cards(&has_card, &e);
    size_t len = 0;
    if (n < 0 && has_card) snprintf(found->trouble, sizeof found->trouble, "%.399s", e.text);
    found->is_tried = true;
    for (int i = 0, used = 0; i < n && used < GPU_MAX && len < sizeof found->list; i++) {
        struct cudaDeviceProp p;
        const int sm = cudaGetDeviceProperties(&p, i) ? 0 : p.major * 10 + p.minor;
        if (!is_usable(sm)) continue;
        const int m = snprintf(found->list + len, sizeof found->list - len, "%s%d", used++ ? "," : "", i);
        len += m > 0 ? (size_t)m : 0;
        found->is_tried &= sm == TRIED_SM;
    }
}
