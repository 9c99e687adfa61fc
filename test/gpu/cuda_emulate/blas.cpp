/* The libraries that gpu/ opens by name. Each function does what its documentation says for the types in use, and
 * refuses the rest. To add a function: write it, and add its name to the table. */
#include <dlfcn.h>

#include <atomic>
#include <vector>

#include "internal.h"

enum { NOT_SUPPORTED = 15, INVALID_VALUE = 7 };
struct handle {
    cudaStream_t stream;
    void *space; /* the caller's workspace; a stream that is set takes it away */
    size_t space_size;
    std::vector<std::vector<int64_t>> asked; /* cache of the heuristics' answers: they are expensive, and repeatable */
};
static int create(handle **h) {
    driver_alone alone(driver_setting("BLAS_WAITS", 1), "cublasCreate");
    *h = new handle{NULL, NULL, 0, {}};
    return 0;
}
static int destroy(handle *h) {
    driver_alone alone(driver_setting("BLAS_WAITS", 1), "cublasDestroy");
    delete h;
    return 0;
}
static int set_stream(handle *h, cudaStream_t s) {
    h->stream = s;
    h->space = NULL;
    return 0;
}
static int set_workspace(handle *h, void *space, size_t size) {
    if ((uintptr_t)space % 256 || memory_check(space, size, host_stream_device(h->stream))) return INVALID_VALUE;
    h->space = space;
    h->space_size = size;
    return 0;
}

/* CUDA_EMULATE_BLAS_STATUS=n: every _BLAS_EVERY-th product (1: all) fails with this status, before it enqueues anything.
 * As in a library that cannot load its kernels, the runtime then keeps an error that the caller has not seen. */
static int refusal() {
    static std::atomic<int> calls{0};
    static const int status = host_setting("BLAS_STATUS", 0), every = host_setting("BLAS_EVERY", 1);
    if (!status || ++calls % every) return 0;
    host_error(status == 3 ? cudaErrorMemoryAllocation : cudaErrorNotSupported);
    return status;
}

/* Whether an access of the running command lacks a wait; then that is a fault. */
struct access {
    const void *p;
    size_t size;
    bool write;
};
static bool is_unordered(std::initializer_list<access> all) {
    for (const access &a : all)
        if (const char *wrong = a.size ? memory_order(a.p, a.size, a.write) : NULL) return host_fault(wrong), true;
    return false;
}

static float bf16(const uint16_t *p) { return cuda_emulate_bits<float>((uint32_t)*p << 16); }
/* Column-major C [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C; here A transposed and B not, both BF16, C float32. */
static int gemm(handle *h, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda, const void *b,
                int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm) {
    (void)algorithm;
    if (op_a != 1 || op_b != 0 || type_a != 14 || type_b != 14 || type_c != 0 || compute != 68) return NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || lda < k || ldb < k || ldc < m) return INVALID_VALUE;
    if (const int status = refusal()) return status;
    int device = host_stream_device(h->stream);
    float al = *(const float *)alpha, be = *(const float *)beta;
    void *space = h->space;
    size_t space_size = h->space_size;
    if (!space || space_size < 4 << 20) host_fault("cublasGemmEx: without a workspace the library allocates one");
    host_enqueue(h->stream, "cublasGemmEx", [=] {
        if (space && !memory_check(space, space_size, device)) memset(space, 0xff, space_size); /* it may hold anything */
        size_t size_a = ((size_t)(m - 1) * (size_t)lda + (size_t)k) * 2, size_b = ((size_t)(n - 1) * (size_t)ldb + (size_t)k) * 2;
        size_t size_c = ((size_t)(n - 1) * (size_t)ldc + (size_t)m) * 4;
        if (memory_check(a, size_a, device) || memory_check(b, size_b, device) || memory_check(c, size_c, device)) {
            host_fault("cublasGemmEx: a matrix lies outside device memory");
            return;
        }
        if (is_unordered({{a, size_a, false}, {b, size_b, false}, {c, size_c, true}, {space, space ? space_size : 0, true}})) return;
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

/* cublasLtMatmul for one case: A transposed and B not, both E4M3, A with a float32 scale for 128 x 128
 * (K-major, the rows of blocks rounded up to fours), B with one for 128 of K (N-major); C and D the same float32 matrix. As on sm_90. */
struct lt_desc {
    int32_t op[2], mode[2];
    const float *scale[2];
};
struct lt_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
static int lt_desc_create(lt_desc **d, int compute, int scale) {
    if (compute != 68 || scale != 0) return NOT_SUPPORTED;
    *d = new lt_desc();
    return 0;
}
static int lt_desc_set(lt_desc *d, int attribute, const void *value, size_t size) {
    int b = attribute == 4 || attribute == 18 || attribute == 32;
    void *to = attribute == 3 || attribute == 4     ? (void *)&d->op[b]
               : attribute == 17 || attribute == 18 ? (void *)&d->scale[b]
               : attribute == 31 || attribute == 32 ? (void *)&d->mode[b]
                                                    : NULL;
    if (!to || size != (attribute == 17 || attribute == 18 ? sizeof(void *) : 4)) return INVALID_VALUE;
    memcpy(to, value, size);
    return 0;
}
static int lt_desc_destroy(lt_desc *d) {
    delete d;
    return 0;
}
static int lt_layout_create(lt_layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new lt_layout{type, rows, cols, ld};
    return 0;
}
static int lt_layout_destroy(lt_layout *l) {
    delete l;
    return 0;
}
struct lt_pref {
    size_t space;
    uint32_t align[4];
};
static int lt_pref_create(lt_pref **p) {
    *p = new lt_pref{0, {256, 256, 256, 256}};
    return 0;
}
static int lt_pref_set(lt_pref *p, int attribute, const void *value, size_t size) {
    if (size != (attribute == 1 ? sizeof p->space : 4)) return INVALID_VALUE;
    if (attribute == 1) memcpy(&p->space, value, size);
    else if (attribute >= 5 && attribute <= 8) memcpy(&p->align[attribute - 5], value, size);
    else return INVALID_VALUE;
    return 0;
}
static int lt_pref_destroy(lt_pref *p) {
    delete p;
    return 0;
}
static bool lt_takes(const lt_desc *d, const lt_layout *a, const lt_layout *b, const lt_layout *c) {
    bool shapes =
        a->rows == b->rows && a->cols == c->rows && b->cols == c->cols && c->rows % 4 == 0 && c->cols % 4 == 0 && a->rows % 16 == 0;
    bool lds = a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows && c->ld >= (int64_t)c->rows && a->ld % 16 == 0 && b->ld % 16 == 0 &&
               c->ld % 4 == 0;
    return shapes && lds && d->op[0] == 1 && d->op[1] == 0 && d->mode[0] == 5 && d->mode[1] == 4 && a->type == 28 && b->type == 28 &&
           c->type == 0 && host_setting("SM", 90) == 90;
}
static int lt_heuristics(handle *h, lt_desc *d, lt_layout *a, lt_layout *b, lt_layout *c, lt_layout *, lt_pref *p, int wanted, void *result,
                         int *found) {
    struct { /* cublasLtMatmulHeuristicResult_t, with the alignment that the algorithm counts on in it */
        uint32_t align[16];
        size_t space;
        int state;
        float waves;
        int reserved[4];
    } r = {};
    memcpy(r.align, p->align, sizeof p->align);
    std::vector<int64_t> key = {(int64_t)a->rows, (int64_t)a->cols, (int64_t)b->cols, a->ld, b->ld, c->ld, p->align[0], p->align[1], p->align[3]};
    for (const auto &k : h->asked)
        if (k == key) host_fault("cublasLtMatmulAlgoGetHeuristic: asked a second time for one shape");
    h->asked.push_back(key);
    *found = wanted > 0 && lt_takes(d, a, b, c) && p->align[0] >= 16 && p->align[1] >= 16 && p->align[3] >= 16;
    if (*found) memcpy(result, &r, sizeof r);
    return *found ? 0 : NOT_SUPPORTED;
}
static float e4m3(uint8_t c) {
    int mag = c & 0x7f;
    float v = mag == 0x7f ? NAN : mag >= 8 ? ldexpf((float)(8 + (mag & 7)), (mag >> 3) - 10) : ldexpf((float)mag, -9);
    return c & 0x80 ? -v : v;
}
static int lt_matmul(handle *, lt_desc *desc, const float *alpha, const uint8_t *a, lt_layout *la, const uint8_t *b, lt_layout *lb,
                     const float *beta, const float *c, lt_layout *lc, float *d, lt_layout *, const uint32_t *align, void *space,
                     size_t space_size, cudaStream_t s) {
    const float *sa = desc->scale[0], *sb = desc->scale[1];
    if (!lt_takes(desc, la, lb, lc) || c != d || (uintptr_t)a % align[0] || (uintptr_t)b % align[1] || (uintptr_t)d % align[3] ||
        (uintptr_t)sa % 16 || (uintptr_t)sb % 16)
        return INVALID_VALUE;
    if (const int status = refusal()) return status;
    int device = host_stream_device(s), m = (int)lc->rows, n = (int)lc->cols, k = (int)la->rows, blocks = (k + 127) / 128,
        across = (blocks + 3) / 4 * 4;
    size_t lda = (size_t)la->ld, ldb = (size_t)lb->ld, ldc = (size_t)lc->ld;
    float al = *alpha, be = *beta;
    host_enqueue(s, "cublasLtMatmul", [=] {
        if (memory_check(a, (size_t)(m - 1) * lda + (size_t)k, device) || memory_check(b, (size_t)(n - 1) * ldb + (size_t)k, device) ||
            memory_check(d, ((size_t)(n - 1) * ldc + (size_t)m) * 4, device) ||
            memory_check(sa, (size_t)((m + 127) / 128 * across) * 4, device) || memory_check(sb, (size_t)(n * blocks) * 4, device) ||
            memory_check(space, space_size, device)) {
            host_fault("cublasLtMatmul: a matrix lies outside device memory");
            return;
        }
        if (is_unordered({{a, (size_t)(m - 1) * lda + (size_t)k, false},
                          {b, (size_t)(n - 1) * ldb + (size_t)k, false},
                          {d, ((size_t)(n - 1) * ldc + (size_t)m) * 4, true},
                          {sa, (size_t)((m + 127) / 128 * across) * 4, false},
                          {sb, (size_t)(n * blocks) * 4, false},
                          {space, space_size, true}}))
            return;
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                float sum = 0;
                for (int q = 0; q < blocks; q++) {
                    float part = 0;
                    for (int l = q * 128; l < k && l < q * 128 + 128; l++)
                        part += e4m3(a[(size_t)i * lda + (size_t)l]) * e4m3(b[(size_t)j * ldb + (size_t)l]);
                    sum += part * sa[i / 128 * across + q] * sb[q * n + j];
                }
                float *y = d + (size_t)j * ldc + i;
                *y = be != 0 ? al * sum + be * *y : al * sum;
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
    {"libcublas.so.13", "cublasSetWorkspace_v2", (void *)set_workspace},
    {"libcublas.so.13", "cublasGemmEx", (void *)gemm},
    {"libcublasLt.so.13", "cublasLtMatmulDescCreate", (void *)lt_desc_create},
    {"libcublasLt.so.13", "cublasLtMatmulDescSetAttribute", (void *)lt_desc_set},
    {"libcublasLt.so.13", "cublasLtMatmulDescDestroy", (void *)lt_desc_destroy},
    {"libcublasLt.so.13", "cublasLtMatrixLayoutCreate", (void *)lt_layout_create},
    {"libcublasLt.so.13", "cublasLtMatrixLayoutDestroy", (void *)lt_layout_destroy},
    {"libcublasLt.so.13", "cublasLtMatmulPreferenceCreate", (void *)lt_pref_create},
    {"libcublasLt.so.13", "cublasLtMatmulPreferenceSetAttribute", (void *)lt_pref_set},
    {"libcublasLt.so.13", "cublasLtMatmulPreferenceDestroy", (void *)lt_pref_destroy},
    {"libcublasLt.so.13", "cublasLtMatmulAlgoGetHeuristic", (void *)lt_heuristics},
    {"libcublasLt.so.13", "cublasLtMatmul", (void *)lt_matmul},
};
static int libraries;
int cuda_emulate_libraries(void) { return libraries; }
void *cuda_emulate_dlopen(const char *name, int) {
    libraries++;
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
