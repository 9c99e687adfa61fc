/* cuBLAS and cuBLASLt, loaded by name at run time. Declares only the functions in use, with constants that the
 * libraries' ABI has kept since version 11 (12.9 for block scales). */
#include <stdatomic.h>
#include <string.h>

#include "base/dynlib.h"
#include "base/mem.h"
#include "gpu/cuda.h"

enum { OP_N, OP_T };                                   /* cublasOperation_t */
enum { TYPE_F32 = 0, TYPE_BF16 = 14, TYPE_E4M3 = 28 }; /* cudaDataType_t */
enum { COMPUTE_F32 = 68, ALGO_DEFAULT = -1 };          /* cublasComputeType_t, cublasGemmAlgo_t */
/* cublasLtMatmulDescAttributes_t, cublasLtMatmulMatrixScale_t, cublasLtMatmulPreferenceAttributes_t */
enum {
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_A_SCALE = 17,
    DESC_B_SCALE = 18,
    DESC_A_SCALE_MODE = 31,
    DESC_B_SCALE_MODE = 32
};
enum { SCALE_VEC128 = 4, SCALE_BLOCK128 = 5 };
enum { PREF_SPACE = 1, PREF_ALIGN_A = 5 }; /* 5 to 8: A, B, C, D */
struct heuristic {                         /* cublasLtMatmulHeuristicResult_t */
    uint64_t algo[8];
    size_t space;
    int state;
    float waves;
    int reserved[4];
};

static struct {
    pthread_once_t once;
    const char *name;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, cudaStream_t);
    int (*set_workspace)(void *, void *, size_t);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                const void *, void *, int, int, int, int);
    /* cuBLASLt; its handle may be a cuBLAS handle */
    bool has_fp8;
    int (*desc_create)(void **, int, int);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*desc_destroy)(void *);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*pref_create)(void **);
    int (*pref_set)(void *, int, const void *, size_t);
    int (*pref_destroy)(void *);
    int (*heuristics)(void *, void *, void *, void *, void *, void *, void *, int, struct heuristic *, int *);
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                  void *, void *, void *, const void *, void *, size_t, cudaStream_t);
} lib = {.once = PTHREAD_ONCE_INIT};

static void load(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL};
    static const char *const lt[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    const struct dynlib_symbol calls[] = {{"cublasCreate_v2", &lib.create},
                                          {"cublasDestroy_v2", &lib.destroy},
                                          {"cublasSetStream_v2", &lib.set_stream},
                                          {"cublasSetWorkspace_v2", &lib.set_workspace},
                                          {"cublasGemmEx", &lib.gemm}};
    const struct dynlib_symbol lt_calls[] = {
        {"cublasLtMatmulDescCreate", &lib.desc_create},          {"cublasLtMatmulDescSetAttribute", &lib.desc_set},
        {"cublasLtMatmulDescDestroy", &lib.desc_destroy},        {"cublasLtMatrixLayoutCreate", &lib.layout_create},
        {"cublasLtMatrixLayoutDestroy", &lib.layout_destroy},    {"cublasLtMatmulPreferenceCreate", &lib.pref_create},
        {"cublasLtMatmulPreferenceSetAttribute", &lib.pref_set}, {"cublasLtMatmulPreferenceDestroy", &lib.pref_destroy},
        {"cublasLtMatmulAlgoGetHeuristic", &lib.heuristics},     {"cublasLtMatmul", &lib.matmul}};
    lib.name = dynlib_load(names, calls, sizeof calls / sizeof *calls);
    for (int i = 0; lib.name && lt[i]; i++) /* same version */
        if (lib.name == names[i])
            lib.has_fp8 =
                dynlib_load((const char *const[]){lt[i], NULL}, lt_calls, sizeof lt_calls / sizeof *lt_calls) != NULL;
}

/* Cache of the plans that cuBLASLt found per shape: a query takes tens of microseconds, and a layer's experts repeat a
 * few shapes. */
struct shape {
    int n, rows, cols, ldx, ldw, ldy;
    uint32_t align[3]; /* of w, x, y: powers of two up to 256 */
};
struct plan {
    struct shape shape;
    bool none; /* no kernel for the shape */
    void *desc, *w, *x, *y;
    uint64_t algo[8];
};
enum { PLANS = 64 };
struct cuda_blas {
    void *handle;
    _Atomic bool has_failed;
    pthread_mutex_t lock;    /* the handle has one stream at a time; protects all below */
    struct plan plan[PLANS]; /* the oldest is replaced */
    uint64_t n_plans;
};

const char *cuda_blas_name(void) {
    pthread_once(&lib.once, load);
    return lib.name;
}

struct cuda_blas *cuda_blas_open(void) {
    if (!cuda_blas_name()) return NULL;
    struct cuda_blas *b = mem_calloc(1, sizeof *b);
    if (!b) return NULL;
    pthread_mutex_init(&b->lock, NULL);
    if (lib.create(&b->handle)) cuda_blas_close(&b);
    return b;
}
static void drop_plan(struct plan *p) {
    void *const layouts[] = {p->w, p->x, p->y};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) lib.layout_destroy(layouts[i]);
    if (p->desc) lib.desc_destroy(p->desc);
    *p = (struct plan){0};
}
void cuda_blas_close(struct cuda_blas **b) {
    if (!*b) return;
    for (uint64_t i = 0; i < (*b)->n_plans && i < PLANS; i++) drop_plan(&(*b)->plan[i]);
    if ((*b)->handle) lib.destroy((*b)->handle);
    pthread_mutex_destroy(&(*b)->lock);
    mem_free(*b);
    *b = NULL;
}

bool cuda_blas_is_usable(const struct cuda_blas *b) {
    return b && !atomic_load_explicit(&b->has_failed, memory_order_relaxed);
}
bool cuda_blas_has_fp8(const struct cuda_blas *b) { return cuda_blas_is_usable(b) && lib.has_fp8; }
bool cuda_blas_give_up(struct cuda_blas *b) { return !atomic_exchange(&b->has_failed, true); }

/* cublasStatus_t */
const char *cuda_blas_status(int status) {
    static const char *const names[] = {[1] = "NOT_INITIALIZED", [3] = "ALLOC_FAILED",   [7] = "INVALID_VALUE",
                                        [8] = "ARCH_MISMATCH",   [11] = "MAPPING_ERROR", [13] = "EXECUTION_FAILED",
                                        [14] = "INTERNAL_ERROR", [15] = "NOT_SUPPORTED", [16] = "LICENSE_ERROR"};
    const size_t i = (size_t)status;
    return status >= 0 && i < sizeof names / sizeof *names && names[i] ? names[i] : "unknown status";
}

/* cuBLAS is column-major: its y is our rows, [rows, n] with ldy, its w^T and x our row-major matrices. */
int cuda_blas_gemm(struct cuda_blas *b, const struct cuda_gemm *f, cudaStream_t s) {
    const float one = 1, beta = f->accumulate ? 1 : 0;
    pthread_mutex_lock(&b->lock);
    int r = lib.set_stream(b->handle, s); /* takes the last workspace away */
    if (!r) r = lib.set_workspace(b->handle, f->space, f->space_size);
    if (!r)
        r = lib.gemm(b->handle, OP_T, OP_N, f->rows, f->n, f->cols, &one, f->w, TYPE_BF16, f->cols, f->x, TYPE_BF16,
                     f->ldx, &beta, f->y, TYPE_F32, f->ldy, COMPUTE_F32, ALGO_DEFAULT);
    pthread_mutex_unlock(&b->lock);
    return r;
}

static uint32_t alignment(const void *p) {
    size_t bits = (size_t)p | 256;
    return (uint32_t)(bits & -bits);
}
/* The library assumes 256-byte alignment unless told otherwise; weights may have any alignment in the checkpoint. */
static int set_alignment(void *pref, const struct shape *s) {
    const uint32_t all[] = {s->align[0], s->align[1], s->align[2], s->align[2]};
    for (int i = 0; i < 4; i++)
        if (lib.pref_set(pref, PREF_ALIGN_A + i, &all[i], sizeof all[i])) return 1;
    return 0;
}

static int set_scales(const struct plan *p, const struct cuda_fp8_gemm *f) {
    const int r = lib.desc_set(p->desc, DESC_A_SCALE, &f->w_scale, sizeof f->w_scale);
    return r ? r : lib.desc_set(p->desc, DESC_B_SCALE, &f->x_scale, sizeof f->x_scale);
}

/* A library that does not support a scale mode rejects the attribute; one without a kernel for the shape finds no
 * algorithm. */
static void make_plan(struct cuda_blas *b, struct plan *p, const struct cuda_fp8_gemm *f) {
    const int32_t trans = OP_T, no_trans = OP_N, blocks = SCALE_BLOCK128, vectors = SCALE_VEC128;
    void *pref = NULL;
    struct heuristic found;
    int n = 0;
    p->none =
        lib.desc_create(&p->desc, COMPUTE_F32, TYPE_F32) || lib.desc_set(p->desc, DESC_TRANSA, &trans, sizeof trans) ||
        lib.desc_set(p->desc, DESC_TRANSB, &no_trans, sizeof no_trans) ||
        lib.desc_set(p->desc, DESC_A_SCALE_MODE, &blocks, sizeof blocks) ||
        lib.desc_set(p->desc, DESC_B_SCALE_MODE, &vectors, sizeof vectors) || set_scales(p, f) ||
        lib.layout_create(&p->w, TYPE_E4M3, (uint64_t)f->gemm.cols, (uint64_t)f->gemm.rows, f->ldw) ||
        lib.layout_create(&p->x, TYPE_E4M3, (uint64_t)f->gemm.cols, (uint64_t)f->gemm.n, f->gemm.ldx) ||
        lib.layout_create(&p->y, TYPE_F32, (uint64_t)f->gemm.rows, (uint64_t)f->gemm.n, f->gemm.ldy) ||
        lib.pref_create(&pref) || lib.pref_set(pref, PREF_SPACE, &f->gemm.space_size, sizeof f->gemm.space_size) ||
        set_alignment(pref, &p->shape) ||
        lib.heuristics(b->handle, p->desc, p->w, p->x, p->y, p->y, pref, 1, &found, &n) || n < 1 || found.state;
    if (!p->none) memcpy(p->algo, found.algo, sizeof p->algo);
    if (pref) lib.pref_destroy(pref);
}
static struct plan *find_plan(struct cuda_blas *b, const struct cuda_fp8_gemm *f) {
    const struct shape shape = {f->gemm.n,
                                f->gemm.rows,
                                f->gemm.cols,
                                f->gemm.ldx,
                                f->ldw,
                                f->gemm.ldy,
                                {alignment(f->gemm.w), alignment(f->gemm.x), alignment(f->gemm.y)}};
    for (uint64_t i = 0; i < b->n_plans && i < PLANS; i++)
        if (!memcmp(&b->plan[i].shape, &shape, sizeof shape)) return &b->plan[i];
    struct plan *p = &b->plan[b->n_plans++ % PLANS];
    drop_plan(p);
    p->shape = shape;
    make_plan(b, p, f);
    return p;
}

int cuda_blas_fp8(struct cuda_blas *b, const struct cuda_fp8_gemm *f, cudaStream_t s) {
    const struct cuda_gemm *g = &f->gemm;
    const float one = 1, beta = g->accumulate ? 1 : 0;
    int r = CUDA_BLAS_NO_KERNEL;
    pthread_mutex_lock(&b->lock);
    const struct plan *p = find_plan(b, f);
    if (!p->none) r = set_scales(p, f);
    if (!p->none && !r)
        r = lib.matmul(b->handle, p->desc, &one, g->w, p->w, g->x, p->x, &beta, g->y, p->y, g->y, p->y, p->algo,
                       g->space, g->space_size, s);
    pthread_mutex_unlock(&b->lock);
    return r;
}
