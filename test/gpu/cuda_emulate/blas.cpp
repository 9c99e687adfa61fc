/* The libraries that gpu/ opens by name. Each function does what its documentation says for the types that are used, and
 * refuses the rest. To add one: write it, and put its name into the table. */
#include <dlfcn.h>

#include <vector>

#include "internal.h"

struct handle {
    cudaStream_t stream;
};
static int create(handle **h) {
    *h = new handle{NULL};
    return 0;
}
static int destroy(handle *h) {
    delete h;
    return 0;
}
static int set_stream(handle *h, cudaStream_t s) {
    h->stream = s;
    return 0;
}

static float bf16(const uint16_t *p) { return cuda_emulate_bits<float>((uint32_t)*p << 16); }
/* Column-major C [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C; here A transposed and B not, both BF16, C float32. */
static int gemm(handle *h, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda, const void *b, int type_b,
                int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm) {
    enum { NOT_SUPPORTED = 15, INVALID_VALUE = 7 };
    (void)algorithm;
    if (op_a != 1 || op_b != 0 || type_a != 14 || type_b != 14 || type_c != 0 || compute != 68) return NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || lda < k || ldb < k || ldc < m) return INVALID_VALUE;
    int device = host_stream_device(h->stream);
    float al = *(const float *)alpha, be = *(const float *)beta;
    host_enqueue(h->stream, [=] {
        size_t size_a = ((size_t)(m - 1) * (size_t)lda + (size_t)k) * 2, size_b = ((size_t)(n - 1) * (size_t)ldb + (size_t)k) * 2;
        size_t size_c = ((size_t)(n - 1) * (size_t)ldc + (size_t)m) * 4;
        if (memory_check(a, size_a, device) || memory_check(b, size_b, device) || memory_check(c, size_c, device)) {
            host_fault("cublasGemmEx: a matrix lies outside device memory");
            return;
        }
        std::vector<float> x((size_t)k);
        for (int j = 0; j < n; j++) {
            for (int l = 0; l < k; l++) x[(size_t)l] = bf16((const uint16_t *)b + (size_t)j * (size_t)ldb + l);
            for (int i = 0; i < m; i++) {
                const uint16_t *w = (const uint16_t *)a + (size_t)i * (size_t)lda;
                float sum = 0, *y = (float *)c + (size_t)j * (size_t)ldc + i;
                for (int l = 0; l < k; l++) sum += bf16(w + l) * x[(size_t)l];
                *y = be != 0 ? al * sum + be * *y : al * sum;
            }
        }
    });
    return 0;
}

static const struct {
    const char *library, *name;
    void *function;
} functions[] = {
    {"libcublas.so.13", "cublasCreate_v2", (void *)create},
    {"libcublas.so.13", "cublasDestroy_v2", (void *)destroy},
    {"libcublas.so.13", "cublasSetStream_v2", (void *)set_stream},
    {"libcublas.so.13", "cublasGemmEx", (void *)gemm},
};
void *cuda_emulate_dlopen(const char *name, int) {
    if (!host_setting("BLAS", 1)) return NULL;
    for (const auto &f : functions)
        if (!strcmp(f.library, name)) return (void *)f.library;
    return NULL;
}
void *cuda_emulate_dlsym(void *so, const char *name) {
    for (const auto &f : functions)
        if (!strcmp(f.library, (const char *)so) && !strcmp(f.name, name)) return f.function;
    return NULL;
}
int cuda_emulate_dlclose(void *) { return 0; }
