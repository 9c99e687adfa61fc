#pragma once
/* The cost model: a machine as numbers. Predicts how long an executor takes for an amount of work and how long
 * transfers take. All decisions in placement/ are based on it. Pure: no clock, no I/O, no allocation. calibrate.h
 * measures, reads and writes machines.
 *
 * A domain is something that computes: the CPU with all its NUMA nodes (they share every expert, so they finish
 * together; numa_cost.h models them separately), a device, or a near-memory unit (virtual time only). Each domain is an
 * in-order queue, and so is each direction of a device's link. Domain 0 is the CPU; devices follow by rank. Work costs
 * the hierarchical roofline of paper B with measured corners:
 *
 *     calls * latency(kind) + max(bytes / bandwidth(kind, rows), flops / rate(kind, format, rows))
 *
 * Units: seconds, bytes, FLOP, bytes/s, FLOP/s. Threads: readers need no lock while no thread calls cost_observe. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/exec_mode.h"
#include "base/mat.h"
#include "engine/model/config.h"

/* experts; matrices; attention over cached keys; norms etc. */
enum cost_kind { COST_FFN, COST_LINEAR, COST_ATTENTION, COST_ELEM, COST_KINDS };
/* format of the weights, or of keys and values */
enum cost_format { COST_F32, COST_16BIT, COST_8BIT, COST_4BIT, COST_FORMATS };
enum cost_class { COST_CPU, COST_GPU, COST_NDP };
enum cost_link { COST_H2D, COST_D2H, COST_PEER, COST_LINKS };
enum { COST_DOMAINS = 20, COST_NODES = 8, COST_POINTS = 12, COST_ROWS = 16, COST_MANY_ROWS = 1 << 20 };

/* A positive quantity over rows: linear interpolation on log-log axes, constant outside the points. n 0: unlimited. */
struct cost_curve {
    int n;
    float rows[COST_POINTS], value[COST_POINTS]; /* ascending rows */
};
/* Observations: per octave of rows the mean of log(measured / expected). */
struct cost_observed {
    float mean[COST_ROWS], weight[COST_ROWS];
};
struct cost_domain {
    char name[48];
    enum cost_class class;
    double memory;              /* usable bytes */
    double alloc;               /* bytes/s of device memory allocation and release; 0: free */
    double latency[COST_KINDS]; /* per operation */
    /* of attention with more than BATCH_INVARIANT_ROWS queries, by queries: launches, keys in parts and their sum;
     * empty: latency[COST_ATTENTION] */
    struct cost_curve prompt_latency;
    struct cost_curve bw[COST_KINDS];                 /* read bandwidth for weights, or keys and values */
    struct cost_curve rate[COST_KINDS][COST_FORMATS]; /* a format without points uses the next wider one, or else any */
    /* Experts in calls of up to BATCH_INVARIANT_ROWS rows, where activations keep more bits; empty: as in larger calls.
     */
    struct cost_curve rate_few_rows[COST_FORMATS];
    /* Products of 8-bit weights with activations in FP8, experts and matrices; empty: the domain has none. Not used
     * until cost_use_fp8(). */
    struct cost_curve rate_fp8[COST_LINEAR + 1];
    struct {
        double rate, latency; /* rate 0: no such link */
    } link[COST_LINKS];       /* to host memory, or (PEER) to the other devices */
    /* observed_beside: uploads of a blended prefill, while the CPU reads the same memory, over what observed_link says
     */
    struct cost_observed observed[COST_KINDS], observed_link[COST_LINKS], observed_beside;
};
struct cost_node {               /* a NUMA node of the CPU */
    double memory;               /* bytes; 0: unknown */
    double bw_share, rate_share; /* its shares of domain 0's read bandwidth and compute rate */
};
struct cost_machine {
    char name[96];
    int n_domains; /* domains 1 .. n_devices are the devices; near-memory units follow */
    int n_devices;
    double dram_bw, disk_bw; /* host memory and disk bandwidth for all readers together; 0: unlimited */
    /* share of routed experts on disk: of those that few rows choose, and of all; see cost_spill(). 0: all in memory */
    double disk_share_few_rows, disk_share;
    int n_nodes; /* NUMA nodes of domain 0; 0: one */
    /* bytes/s between a node's CPUs and the other nodes, per direction; 0: unlimited */
    double inter_node_bw;
    /* share of its bandwidth that domain 0 reaches for weights that are not placed by node; 0: follows from
     * inter_node_bw */
    double reach;
    double spread_bw_share;             /* reach, while weights are not placed by node; 0: they are */
    double hand_off_s;                  /* hand-off latency between a device and the CPU */
    double prefill_start_s;             /* start-up time of a stream-loaded or blended prefill: buffers, threads */
    int cpu_chunk_rows, gpu_chunk_rows; /* rows per pass of a prefill through a layer */
    bool is_deterministic;              /* use the table only: cost_factor is 1 */
    struct cost_observed observed[EXEC_MODES]; /* whole prefills and decode batches */
    struct cost_observed observed_tower;       /* by patches of an image */
    struct cost_node node[COST_NODES];
    struct cost_domain domain[COST_DOMAINS];
};

/* A checkpoint as plain numbers. Bytes are of stored weights, FLOP are per row. */
struct cost_model {
    int layers, dense_layers, n_experts, topk; /* dense_layers of the layers have no experts */
    enum cost_format experts, dense, kv;       /* storage formats */
    double expert_bytes, expert_flops;         /* one routed expert */
    double attn_block_bytes, attn_block_flops; /* matrices of one layer's attention block, including its router */
    double shared_bytes, shared_flops;         /* shared experts, per layer */
    double ffn_bytes, ffn_flops;               /* dense FFN of a layer without experts */
    double head_bytes, head_flops;
    double kv_row_bytes;             /* per position and layer */
    double kv_taken_layers;          /* layers that read another layer's rows and have none of their own */
    double query_bytes;              /* a row of queries of all heads, or of attention output; float32 */
    double index_bytes, index_flops; /* DSA indexer: per position, and per (query, key) pair */
    double max_keys;                 /* most keys that a query attends to; 0: all */
    double pair_flops;               /* per (query, key) pair, all heads, keys as cached */
    /* MLA with expanded keys: per pair, and per expanded key; 0: not available */
    double expanded_pair_flops, expand_flops;
    double row_bytes;                           /* a row of the residual stream, float32 */
    int n_linear_ops, n_elem_ops;               /* operations per attention block */
    int n_joined_linear_ops, n_joined_elem_ops; /* operations on a device that joins those of few rows (gpu/fuse.h) */
    double row_numbers;                         /* most numbers of a row in an elementwise operation */
    double elem_bytes;                          /* per row, in elementwise operations */
    double skew;                                /* expert choice falls as 1 / rank^skew; 0: uniform */
};
enum { COST_CHAIN_NUMBERS = 16384 }; /* most numbers of an elementwise operation that is joined (gpu/fuse.h) */
/* dense, experts, kv: enum dtype of the matrices, the experts and the cache. */
enum cost_format cost_format_of(enum dtype t);
void cost_model_of(struct cost_model *q, const struct config *c, enum dtype dense, enum dtype experts, enum dtype kv);

/* --- Pieces ----------------------------------------------------------------------------------- */
struct cost_item {
    enum cost_kind kind;
    enum cost_format format;
    double rows, bytes, flops, calls;
    double call_rows; /* COST_FFN: rows of the whole call, of which the expert has `rows`; 0: the same */
};
double cost_at(const struct cost_curve *c, double rows); /* INFINITY without points */
const struct cost_curve *cost_rate(const struct cost_domain *d, enum cost_kind kind,
                                   /* the curve of that format, or the nearest substitute: another format, experts for
                                      matrices */
                                   enum cost_format f);
/* experts in a call of at most BATCH_INVARIANT_ROWS rows */
const struct cost_curve *cost_rate_few_rows(const struct cost_domain *d, enum cost_format f);
double cost_time(const struct cost_machine *m, int domain, const struct cost_item *p);
/* Share of its bandwidth that the CPU keeps while others read `taken` bytes/s of host memory, so that both together
 * stay below dram_bw. */
double cost_cpu_share(const struct cost_machine *m, double taken);
/* bytes/s that uploads to the first `ranks` devices take at most: what their links carry, or seven eighths of host
 * memory. */
double cost_upload_rate(const struct cost_machine *m, int ranks);
/* INFINITY without a link */
double cost_transfer(const struct cost_machine *m, int domain, enum cost_link way, double bytes);
/* an upload while the CPU computes experts, as in a blended prefill */
double cost_upload_beside(const struct cost_machine *m, int domain, double bytes);

/* Rows of one attention block: (query, key) pairs and cached positions that are read. */
struct cost_rows {
    double rows, pairs, keys;
    double sessions; /* that the rows belong to, each with an attention of its own; 0: 1 */
};
struct cost_rows cost_decode_rows(int rows, double keys); /* one row per session, each with `keys` positions */
struct cost_rows cost_prefill_rows(double n, double pos); /* n causal rows of one session from pos */
/* attention block of a layer */
double cost_attention_block(const struct cost_machine *m, int domain, const struct cost_model *q, struct cost_rows r);
double cost_shared(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);
/* One resident expert with `rows` rows, without call latency. of: rows of the call, e.g. COST_MANY_ROWS, or
 * BATCH_INVARIANT_ROWS when decoding. */
double cost_expert(const struct cost_machine *m, int domain, const struct cost_model *q, double rows, double of);
/* One expert that is not resident, with `rows` rows: paper C's max(compute, link, host memory). INFINITY without a
 * link. The CPU has every expert. */
double cost_expert_miss(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);
/* expected number of distinct experts that the rows choose */
double cost_distinct(const struct cost_model *q, double rows);
/* all resident experts that they choose */
double cost_routed(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);
double cost_head(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);

/* Paper B's turning points, in rows of one expert: from P1 rows, fetching it to a device beats computing it on the CPU;
 * from P2 rows, the device computes longer than the link transfers. Binary search up to COST_NEVER_ROWS, which means
 * never. */
enum { COST_NEVER_ROWS = 1 << 20 };
double cost_fetch_break_even(const struct cost_machine *m, int domain, const struct cost_model *q);
double cost_compute_bound_rows(const struct cost_machine *m, int domain, const struct cost_model *q);

/* --- Decode batches and prefills -------------------------------------------------------------- */
struct cost_decode {
    enum exec_mode mode;   /* DECODE_CPU, DECODE_HYBRID or DECODE_DUAL */
    int rows;              /* one token per session */
    double keys;           /* mean cached positions */
    int first_rows;        /* DUAL: rows of the first micro-batch */
    int device;            /* rank with the attention blocks */
    int n_device_layers;   /* layers whose attention block is on the device; the CPU has the rest */
    int n_expert_layers;   /* how many of the device's layers have all their experts there too */
    double resident_share; /* share of the chosen experts that the device computes, in its other layers */
    /* The device's experts of those layers are in a pool that moves: the host launches each of them once it knows what
     * was chosen. */
    bool moves_experts;
    /* The link sends some of the pinned layers' missing experts while the CPU computes the others, as finely divided as
     * can be: a bound, which no executor reaches. */
    bool divides_missing;
    bool sends_experts;  /* the device computes all experts of those layers, and is sent those that it lacks */
    bool is_one_session; /* all rows are of one session, as of drafted tokens */
    bool beside_prefill; /* a concurrent prefill streams weights, which takes host memory bandwidth */
    int ranks;           /* devices that share each of these layers (tensor parallel); 0, 1: not shared */
};
double cost_decode(const struct cost_machine *m, const struct cost_model *q, const struct cost_decode *s);
/* the best size of DUAL's first micro-batch */
int cost_best_cut(const struct cost_machine *m, const struct cost_model *q, const struct cost_decode *s);
/* most rows per pass of a blended prefill */
enum { COST_BLEND_ROWS = 4096 };
struct cost_prefill {
    enum exec_mode mode; /* PREFILL_* */
    int n, pos;          /* new rows; cached positions */
    int ranks;           /* DSLP, BLEND: devices */
    int n_decoding;      /* rows of a concurrent decode batch */
    double keys;         /* mean cached positions of those */
    bool is_resident;    /* BLEND: all weights but routed experts are already on the device */
    int n_expert_layers; /* number of layers whose routed experts are already on the device */
    /* SLP, DSLP: number of layers whose other weights are; with several ranks both count layers that all of them keep
     */
    int n_dense_layers;
};
double cost_prefill(const struct cost_machine *m, const struct cost_model *q, const struct cost_prefill *p);
/* Charges products of 8-bit weights with more than BATCH_INVARIANT_ROWS rows with rate_fp8, on devices that have it:
 * for models whose prompts they read in FP8. */
void cost_use_fp8(struct cost_machine *m);
/* An image in a vision tower, on the CPU: products over `patches` rows, and attention of each patch to all. */
struct cost_tower {
    enum cost_format weights;
    double patches, bytes, flops, products; /* bytes of weights; FLOP and calls of products */
    double attention_flops, attention_calls;
};
double cost_tower(const struct cost_machine *m, const struct cost_tower *t);
/* Number of layers whose attention block, shared expert and KV cache of `positions` fit into `bytes`. */
int cost_layers_fit(const struct cost_model *q, double bytes, double positions);

/* Models host memory of `memory` bytes as a cache of routed experts that are on disk (experts/disk_prefetch.h): sets
 * disk_share_few_rows and disk_share. An eighth of the memory is reserved for temporary data. The hit rate of few rows
 * is paper D's for score-based eviction (MRS). Returns false if the other weights do not fit. */
bool cost_spill(struct cost_machine *m, const struct cost_model *q, double memory);
/* seconds to read the missing experts of all layers for these rows; 0: none */
double cost_disk_reads(const struct cost_machine *m, const struct cost_model *q, double rows);

/* --- Feedback --------------------------------------------------------------------------------- */
/* Records an expected time (from the functions above) and the measured one, for `rows` rows. */
/* s belongs to m */
void cost_observe(const struct cost_machine *m, struct cost_observed *s, double rows, double expected, double real);
/* within 1/8 .. 8 */
double cost_factor(const struct cost_machine *m, const struct cost_observed *s, double rows);

/* --- Lookup table: seconds of an expert by rows, within 3% of cost_expert, monotonic ---------- */
enum { COST_TABLE = 8 + 8 * 16 };
struct cost_table {
    float t[COST_TABLE + 1]; /* 0 .. 7 rows, then eight entries per octave */
};
/* of: rows of the call */
void cost_table_fill(struct cost_table *t, const struct cost_machine *m, int domain, const struct cost_model *q,
                     double of);
double cost_table_at(const struct cost_table *t, int rows);

/* --- Presets ---------------------------------------------------------------------------------- */
/* "paper-a-1", "paper-a-2" (both also with "-fp8": math=fp8), "paper-b-t4", "paper-b-2t4", "paper-b-4t4", "paper-b-l4",
 * "paper-c", "paper-d". False: unknown name. */
bool cost_preset(struct cost_machine *m, const char *name);
const char *cost_preset_name(int i); /* NULL past the last */
/* Seconds of a hand-off between a card and the CPU, each way, on machines that were not measured: an upper bound. It
 * was four to five small copies and two signals of 3 us each (assumed); the copies are now accesses over the bus in
 * launches that are counted anyway. */
#define COST_HAND_OFF_S 15e-6
/* An uncalibrated machine: threads at a level (0 scalar .. 3 amx), devices with these link rates (0: typical ones). */
void cost_assumed(struct cost_machine *m, int threads, int level, int n_devices, double h2d, double d2h, double peer);
