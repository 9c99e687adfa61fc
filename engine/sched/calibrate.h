#pragma once
/* Where a machine model (cost.h) comes from: measured here and kept, read from a file that describes another machine, or one of
 * the presets. The only part of it with a clock and files. Threads: each call by one at a time; nothing is shared. */
#include <stdatomic.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/sched/cost.h"

struct exec;
struct gpu;
struct numa;
struct pool;

struct calibrate_options {
    struct exec *cpu;         /* the processor's operations, idle meanwhile; called on this thread */
    int threads;              /* of it, for the fingerprint */
    struct pool *pool;        /* its threads */
    const struct numa *nodes; /* the memory nodes that these are on: weights lie by node, and each is measured by itself; NULL: one */
    struct gpu *const *gpu;   /* [n_gpus], idle */
    int n_gpus;
    const char *gpus; /* as --gpus: part of the fingerprint; NULL: none */
    double seconds;   /* to spend on the processor and on each device; 0: 1.5 */
    bool small_pages; /* weights lie in pages of 4 KB, as files may; else in 2 MB pages, as they are placed, or read anew (store/large.h) */
    size_t bytes;     /* of weights to read, several times the last-level cache; 0: 1 GiB, or an eighth of what is free */
    const char *dir;  /* cache directory, made by the caller; NULL: neither looked up nor kept */
    bool again;       /* measure even where the cache has it */
    const _Atomic int *cancel;
};
/* Fills *out from the cache where the fingerprint (this version, processor, level, threads, devices, driver) fits, else by
 * measuring, and keeps it: DIR/machine, replaced atomically. A file that is damaged or of another machine is passed over with a
 * note in the log; so is a failure to keep it. ERR_MEMORY, ERR_CANCELLED, or ERR_RUNTIME when a device fails. Devices are timed by their
 * own events, so an emulated one shows the speeds that it was given, and one in virtual time costs no time. Of a topology from text
 * nothing is bound; it may say the speeds that its nodes are to show (cpu/numa.h). */
int calibrate(struct cost_machine *out, const struct calibrate_options *o, struct error *e);

/* A preset by its name, else a machine file. ERR_USAGE names file, line and key. */
int calibrate_read(struct cost_machine *out, const char *name_or_path, struct error *e);

/* The text of a machine: `key = value` lines, # begins a comment. What stands on its box is enough (describe.h says what follows from it):
 *     sockets = 2   channels = 12   ddr = 6400   cores = 32   isa = avx512bf16   memory = 1152G   (channels and cores of a socket)
 *     cards = 2   card = RTX 5090   pcie = 5     or, of a card that is not known: card.memory, card.bandwidth, card.bf16, card.fp8
 * What follows goes before that, or stands alone, as calibrate writes it. Machine: name, devices, near (units near memory), dram, disk, join,
 * start, cpu_chunk, gpu_chunk, nodes (memory nodes), between (them). Of a node, node0, node1, .. (node: all): .memory, and its shares .bw and .rate. Then for a
 * domain, cpu, gpu0, gpu1, .. near0, .. (gpu, near: all of them):
 *     DOMAIN.name  .memory  .alloc  .bw.KIND  .latency.KIND  .rate.KIND.FORMAT  .few.FORMAT  .h2d  .d2h  .peer  .h2d.latency  .d2h.latency  .peer.latency
 * KIND is ffn, linear, attention, elem; FORMAT f32, 16bit, 8bit, 4bit; a key that ends before them means all of them. bw and rate are
 * curves over rows, `1:0.9T 16:12T`, or one number; numbers may end in T G M K m u n (powers of 1000); units are cost.h's. */
int calibrate_write(const struct cost_machine *m, const char *fingerprint, struct buf *out); /* fingerprint NULL: without. ERR_MEMORY */
enum { CALIBRATE_PRINT = 40 };
/* fingerprint [CALIBRATE_PRINT] or NULL: receives the text's own, "" where it has none. ERR_USAGE as above, `what` for the file. */
int calibrate_parse(struct cost_machine *out, const char *text, size_t n, const char *what, char *fingerprint, struct error *e);
