#pragma once
/* The devices to open and their properties: --gpus LIST as a struct. Plain data, pure. */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { GPU_MAX = 8, GPU_HOST = -1, GPU_REGISTER_CHUNK = 1 << 30 };
enum gpu_fault { GPU_FAULT_NONE, GPU_FAULT_ALLOC, GPU_FAULT_COPY, GPU_FAULT_LAUNCH, GPU_FAULT_DIE };

/* Arithmetic of products of many tokens on cuda; sums are always float32. BF16: activations rounded to BF16, weights
 * exact. F32: agrees with float32 to about 1e-5. FP8: activations quantised to E4M3 per token and 128 columns where the
 * weights are E4M3, to about 2^-4 each, as the models were trained; needs sm_89, otherwise and for other weights as
 * BF16. */
enum gpu_math { GPU_MATH_BF16, GPU_MATH_F32, GPU_MATH_FP8 };
/* The library that computes them. Our kernels read weights in their stored format; cuBLAS needs them expanded to BF16
 * first, which pays off for many tokens (AUTO decides by their number). */
enum gpu_gemm { GPU_GEMM_AUTO, GPU_GEMM_OWN, GPU_GEMM_CUBLAS };
/* How several devices divide attention and dense weights: whole layers each, or tensor parallel; AUTO: as the cost
 * model decides. */
enum gpu_parallel { GPU_PARALLEL_AUTO, GPU_PARALLEL_LAYERS, GPU_PARALLEL_TENSOR };
/* A rate as a function of the rows per weight of a product: linear interpolation in log-log scale, constant outside. n
 * 0: use the plain rate for any number of rows. */
enum { GPU_CURVE_POINTS = 12 };
enum gpu_op_kind {
    GPU_OP_EXPERTS,
    GPU_OP_LINEAR,
    GPU_OP_ATTENTION,
    GPU_OP_ELEM,
    GPU_OP_KINDS
}; /* of operations: expert FFNs, one matrix, attention, no weights */
struct gpu_curve {
    int n;
    float rows[GPU_CURVE_POINTS], value[GPU_CURVE_POINTS]; /* rows rising; bytes/s or FLOP/s */
};
struct gpu_spec {
    int n; /* ranks; 0: none */
    bool is_emulated, is_virtual, nopeer;
    bool nograph;    /* decode launches each operation separately */
    bool nojoin;     /* operations are not joined (fuse.h) */
    bool noepilogue; /* products are not joined with the operations on few numbers after them */
    enum gpu_parallel parallel;
    /* emu: host memory not from gpu_host_alloc() cannot be registered (nopin), or only writable memory can (nomap),
     * like drivers that register no read-only mappings. Copies to the device from unregistered memory then block the
     * caller. */
    bool nopin, nomap;
    size_t register_chunk; /* emu: registration chunk, a power of two of at least 4 KiB; 0: GPU_REGISTER_CHUNK */
    /* GPU_MATH_F32: ranks exchange float32, and MLA expands keys and values to float32; else BF16. Otherwise an
     * emulated device computes like its CPU level in either case, and has GPU_MATH_F32 unless math=bf16. */
    enum gpu_math math;
    bool has_math; /* LIST says which */
    enum gpu_gemm gemm;
    int id[GPU_MAX];        /* card of each rank */
    size_t mem;             /* 0: all of the card's memory; emu: 8 GiB, 32 GiB in virtual time */
    double h2d, d2h, peer;  /* bytes/s; 0: unlimited */
    double flops, attn, bw; /* FLOP/s of linear operations, of attention, bytes/s of memory; 0: unlimited */
    double launch;          /* seconds of overhead per operation */
    /* emu, virtual: the machine's CPU, opened as rank GPU_HOST; --gpus does not list it. It accepts any pointer and
     * reads nothing, not even ids; copies cost bandwidth only. Rates have no defaults: with a rate of 0 an operation
     * takes no time. */
    bool has_cpu_rank;
    struct gpu_curve bw_rows, flops_rows; /* virtual: replace bw and flops in matrix products and experts */
    /* of routed experts with at most BATCH_INVARIANT_ROWS rows in all, by rows per expert; no points: flops_rows */
    struct gpu_curve flops_few_rows;
    /* of OP_LINEAR if different; flops: weights of at most 8 bits, of more */
    struct gpu_curve linear_bw, linear_flops[2];
    struct gpu_curve attn_rows;          /* virtual: replaces attn, by rows */
    double attn_bw;                      /* virtual: bytes/s at which attention reads keys and values; 0: bw */
    double launch_by_kind[GPU_OP_KINDS]; /* virtual: replaces launch per kind; 0: launch */
    /* virtual: distinct experts selected by the rows of a call; 0: assume uniform routing */
    double n_selected;
    /* virtual: [n_experts] each expert's share of a prompt's selections; borrowed; NULL: uniform */
    const float *expert_shares;
    /* virtual: weights not in memory. CPU: disk_share_few_rows is the share of the selected routed experts that is
     * first read from disk at disk_bw bytes/s, overlapped with work on the others; disk_share is the share when all
     * experts are selected. GPU: copies of non-urgent streams run at disk_bw where that is below h2d (uploads of
     * weights). 0: everything is in memory. */
    double disk_bw, disk_share_few_rows, disk_share;
    /* virtual: share of every bandwidth but disk and links that is left, read at each operation; borrowed; NULL: 1 */
    const double *bw_share;
    double link_latency; /* virtual: seconds until a bulk copy over an idle link begins to move bytes */
    /* virtual: seconds from another device's signal until a stream here sees it, including the small copies of a
     * hand-off */
    double signal;
    int threads, level;                 /* emu: threads per stream; enum cpu_level + 1, 0: the best */
    int slp_ring_slots, slp_chunk_rows; /* SLP's ring slots and rows per chunk, for tests; 0: automatic */
    enum gpu_fault fail;
    long fail_at; /* emu: the fail_at-th event of this kind fails, counted from 1 */
    int fail_rank;
};
/* --gpus LIST: "none", "0", "0,1", "0,0" (two ranks on one card), "emu:2", each followed by options:
 * mem=32G (cap per device), h2d= d2h= peer= (GB/s); parallel=auto|layers|tensor; nograph; nojoin; noepilogue; nopeer;
 * ring=N; chunk=N; math=bf16|f32, for cuda and virtual devices also fp8; for cuda gemm=auto|own|cublas; for emu:
 * virtual, flops= attn= (TFLOP/s), bw= (GB/s), launch= (us), threads=N, cpu=LEVEL, nopin, nomap, piece=SIZE
 * (register_chunk), fail=alloc|copy|launch|die:N[@RANK]. */
/* list NULL, "" or "none": no devices. ERR_USAGE names the invalid part */
int gpu_spec_parse(struct gpu_spec *s, const char *list, struct error *e);
