#pragma once
/* Sources of a machine model (cost.h): calibration of this machine with a cache file, a file that describes another
 * machine, or a preset. The only part of placement with a clock and files. Calls must not overlap; the functions share
 * no state. */
#include <stdatomic.h>

#include "base/buf.h"
#include "base/error.h"
#include "engine/placement/cost.h"

struct exec;
struct gpu;
struct numa;
struct pool;

struct calibrate_options {
    struct exec *cpu;  /* CPU operations, idle during the call; called on this thread */
    int threads;       /* CPU threads, for the fingerprint */
    struct pool *pool; /* the executor's pool */
    /* NUMA nodes of the pool: weights are split by node and each node is measured; NULL: one node */
    const struct numa *nodes;
    struct gpu *const *gpu; /* [n_gpus], idle */
    int n_gpus;
    const char *gpus; /* the --gpus option, for the fingerprint; NULL: none */
    double seconds;   /* time budget for the CPU and for each device; 0: 1.5 */
    /* weights are in 4 KB pages, as in mapped files; otherwise in 2 MB pages, as node copies are (weights/huge_pages.h)
     */
    bool small_pages;
    /* bytes of weights to read, several times the last-level cache; 0: 1 GiB or an eighth of free memory */
    size_t bytes;
    const char *dir; /* cache directory, must exist; NULL: no cache */
    bool force;      /* measure even if cached */
    const _Atomic int *cancel;
};
/* Fills *out from DIR/machine if its fingerprint matches (version, CPU, level, threads, devices, driver). Otherwise
 * measures and atomically replaces the file. Logs and ignores a damaged or foreign file, and a failed write.
 * ERR_MEMORY, ERR_CANCELLED; ERR_RUNTIME when a device fails. Devices are timed by their own events, so an emulated
 * device shows the speeds it was given and virtual time costs nothing. With a topology from text no memory is bound;
 * the text may define the speeds that its nodes show (cpu/numa.h). */
int calibrate(struct cost_machine *out, const struct calibrate_options *o, struct error *e);

/* Reads a preset by name, or else a machine file. ERR_USAGE names file, line and key. */
int calibrate_read(struct cost_machine *out, const char *name_or_path, struct error *e);

/* Writes a machine as text: `key = value` lines, # starts a comment. Data-sheet keys are sufficient (datasheet.h
 * derives the rest): sockets = 2   channels = 12   ddr = 6400   cores = 32   isa = avx512bf16   memory = 1152G
 * (channels and cores per socket) cards = 2   card = RTX 5090   pcie = 5     or, for an unknown card: card.memory,
 * card.bandwidth, card.bf16, card.fp8 The keys below override derived values, or describe the machine alone, as
 * calibrate writes it. Machine: name, devices, near (near-memory units), dram, disk, join, start, cpu_chunk, gpu_chunk,
 * nodes (NUMA nodes), between (bandwidth between nodes). Per node, node0, node1, .. (node: all): .memory, and its
 * shares .bw and .rate. Per domain, cpu, gpu0, gpu1, .. near0, .. (gpu, near: all of them): DOMAIN.name  .memory .alloc
 * .bw.KIND  .latency.KIND  .prompt_latency  .rate.KIND.FORMAT  .few.FORMAT  .fp8.KIND  .h2d  .d2h  .peer  .h2d.latency
 * .d2h.latency  .peer.latency KIND is ffn, linear, attention, elem; FORMAT f32, 16bit, 8bit, 4bit; a key without them
 * sets all of them. bw and rate are curves over rows, `1:0.9T 16:12T`, or one number; numbers may end in T G M K m u n
 * (powers of 1000); units as in cost.h. */
/* fingerprint NULL: omitted. ERR_MEMORY */
int calibrate_write(const struct cost_machine *m, const char *fingerprint, struct buf *out);
enum { CALIBRATE_FINGERPRINT_LEN = 40 };
/* Parses a machine. fingerprint [CALIBRATE_FINGERPRINT_LEN] or NULL: receives the text's fingerprint, "" if it has
 * none. ERR_USAGE as above; `what` names the file. */
int calibrate_parse(struct cost_machine *out, const char *text, size_t n, const char *what, char *fingerprint,
                    struct error *e);
