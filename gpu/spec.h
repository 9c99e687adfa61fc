#pragma once
/* Which devices to open and what they are like: --gpus LIST as a struct. Plain data, pure. */
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { GPU_MAX = 8, GPU_HOST = -1, GPU_PIECE = 1 << 30 };
enum gpu_fault { GPU_FAULT_NONE, GPU_FAULT_ALLOC, GPU_FAULT_COPY, GPU_FAULT_LAUNCH, GPU_FAULT_DIE };

/* What --gpus LIST asks for: "none", "0", "0,1", "0,0" (two ranks on one card), "emu:2", each with options after it:
 * mem=32G (cap per device), h2d= d2h= peer= (GB/s); parallel=auto|layers|tensor; math=bf16|f32; for cuda also math=fp8, gemm=own|cublas; for emu: virtual,
 * flops= attn= (TFLOP/s), bw= (GB/s), launch= (us), threads=N, cpu=LEVEL, nopeer, nopin, nomap, piece=SIZE, alltoall, ring=N, chunk=N,
 * fail=alloc|copy|launch|die:N[@RANK].
 */
/* What products of many tokens compute with on cuda; the sums are float32 always. BF16: activations rounded to BF16, weights
 * exact. F32: agrees with float32 to about 1e-5. FP8: activations quantised to E4M3 for each token and 128 columns where the
 * weights are E4M3, to about 2^-4 of each, as the models were trained; from sm_89 on; elsewhere and for other weights as BF16. */
enum gpu_math { GPU_BF16, GPU_F32, GPU_FP8 };
/* Who computes them: our kernels read weights as they are stored; cuBLAS gets them expanded to BF16 first, which pays off for
 * many tokens (AUTO chooses by their number). */
enum gpu_gemm { GPU_GEMM_AUTO, GPU_GEMM_OWN, GPU_GEMM_CUBLAS };
/* How devices that are to hold a model's attention and dense parts share them: layers of its own for each, or a share of every layer;
 * AUTO: as the cost model has it. */
enum gpu_parallel { GPU_PARALLEL_AUTO, GPU_PARALLEL_LAYERS, GPU_PARALLEL_TENSOR };
/* A rate over the rows that each weight of a product meets: straight lines between points on paper with both scales
 * logarithmic, flat outside. n 0: the plain rate beside it, whatever the rows. */
enum { GPU_POINTS = 12 };
enum gpu_kind { GPU_EXPERTS, GPU_LINEAR, GPU_ATTENTION, GPU_ELEM, GPU_KINDS }; /* of operations: with many weights, one matrix, keys, none */
struct gpu_curve {
    int n;
    float rows[GPU_POINTS], value[GPU_POINTS]; /* rows rising; bytes/s or FLOP/s */
};
struct gpu_spec {
    int n; /* ranks; 0: none */
    bool emu, is_virtual, nopeer;
    bool nograph; /* each operation of a step is launched by itself */
    enum gpu_parallel parallel;
    /* emu: host memory that is not gpu_host_alloc's cannot be registered, or (nomap) only such that may be written can, as with drivers
     * that register no read-only mappings. Then a copy to the device from memory that is not registered holds its caller. */
    bool nopin, nomap;
    size_t piece; /* emu: registered at once, a power of two from 4 KiB on; 0: GPU_PIECE */
    /* Ranks pass each other float32 with GPU_F32, and MLA's keys and values are expanded to it; else BF16. Otherwise an emulated
     * device computes as its processor level does either way, and has GPU_F32 unless math=bf16. */
    enum gpu_math math;
    enum gpu_gemm gemm;
    int id[GPU_MAX];        /* card of each rank */
    size_t mem;             /* 0: what the card has; emu: 8 GiB, 32 GiB in virtual time */
    double h2d, d2h, peer;  /* bytes/s; 0: unlimited */
    double flops, attn, bw; /* FLOP/s of linear operations and attention, bytes/s of memory; 0: as fast as it goes */
    double launch;          /* seconds an operation costs by itself */
    /* emu, virtual: the processor of the machine, opened as rank GPU_HOST and no device of --gpus. Its memory is the host's: any
     * pointer will do and nothing is read, no ids either; copies cost bandwidth alone. Nothing is assumed: a rate of 0 takes no time. */
    bool host;
    struct gpu_curve bw_rows, flops_rows;        /* virtual, of products and experts, in place of bw and flops */
    struct gpu_curve few_flops;                  /* of routed experts of at most OP_FEW rows in all, by rows of one; no points: flops_rows */
    struct gpu_curve linear_bw, linear_flops[2]; /* of products by a single matrix, where they are others: of 8 bits and less, of more */
    struct gpu_curve attn_rows;                  /* virtual: of attention, by its rows, in place of attn */
    double attn_bw;                              /* virtual: bytes/s at which attention reads keys and values; 0: bw */
    double launch_of[GPU_KINDS];                 /* virtual: in place of launch; 0: that */
    double chosen;                               /* virtual: experts that the rows of a call choose in all; 0: as many as even choices */
    const float *shares;                         /* virtual: [n_experts] of what the rows of a prompt choose, each one's part; the caller's; NULL: alike */
    /* virtual: weights that are not in memory. The processor's: of routed experts that a call chooses, the share that is read from a disk first, at
     * so many bytes/s beside the work on the others; and the share where all are chosen. A device's: copies of streams that are not urgent
     * come at the disk's rate, where that is less than the link's (h2d of weights). 0: no such thing. */
    double disk, missing, absent;
    int threads, level; /* emu: threads of a stream; enum cpu_level + 1, 0 the best */
    int ring, chunk;    /* stream-loading's slots and rows at once, for tests; 0: chosen */
    bool all_to_all;    /* emu: standard expert parallelism in place of SmallEP, to measure the difference */
    enum gpu_fault fail;
    long fail_at;
    int fail_rank;
};
int gpu_parse(struct gpu_spec *s, const char *list, struct error *e); /* ERR_USAGE names the part that is wrong */
