#pragma once
/* A machine as numbers: what a piece of work takes on each processor of it, and what moving bytes takes. All decisions of
 * engine/sched rest on it. Pure: no clock, no I/O, no allocation; who measures, reads or writes one is calibrate.h.
 *
 * A domain is who can compute: the processor with all its memory nodes (they share every expert, so they end at once; one by one they are
 * in nodes.h), a device, a unit near memory (virtual time only). Each is a queue in order; so is each direction of a device's link. Domain 0
 * is the processor, devices follow in order of rank. A piece of work takes the hierarchical roofline of paper B with measured corners:
 *
 *     calls * latency(kind) + max(bytes / bandwidth(kind, rows), flops / rate(kind, format, rows))
 *
 * Units: seconds, bytes, FLOP, bytes/s, FLOP/s. Threads: readers need no lock as long as nobody calls cost_observe. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/mat.h"
#include "engine/model/config.h"

enum cost_kind { COST_FFN, COST_LINEAR, COST_ATTENTION, COST_ELEM, COST_KINDS }; /* experts; matrices; over cached keys; norms and the like */
enum cost_format { COST_F32, COST_16BIT, COST_8BIT, COST_4BIT, COST_FORMATS };   /* of the weights, or of the keys and values */
enum cost_class { COST_CPU, COST_GPU, COST_NDP };
enum cost_way { COST_H2D, COST_D2H, COST_PEER, COST_WAYS };
enum { COST_DOMAINS = 20, COST_NODES = 8, COST_POINTS = 12, COST_ROWS = 16, COST_MANY = 1 << 20 };

/* A positive quantity over rows: straight lines between points on paper with both scales logarithmic, flat outside. n 0: no limit. */
struct cost_curve {
    int n;
    float rows[COST_POINTS], value[COST_POINTS]; /* rows rising */
};
/* What was learned in use: per octave of rows the mean of log(real / expected). */
struct cost_seen {
    float mean[COST_ROWS], weight[COST_ROWS], error; /* error: slow average of |log(real / expected)|; 0: nothing seen */
};
struct cost_domain {
    char name[48];
    enum cost_class class;
    double memory;                                    /* bytes that its work may take */
    double alloc;                                     /* bytes/s at which a device's memory is given out and taken back; 0: at once */
    double latency[COST_KINDS];                       /* of one operation */
    struct cost_curve bw[COST_KINDS];                 /* at which weights, or keys and values, are read */
    struct cost_curve rate[COST_KINDS][COST_FORMATS]; /* a format without points: as the next wider one, else as any */
    struct cost_curve few[COST_FORMATS];              /* of experts in a call of at most OP_FEW rows, where activations keep more bits; none: as in any call */
    struct {
        double rate, latency; /* rate 0: no such way */
    } link[COST_WAYS];        /* between it and host memory, or (PEER) the other devices */
    struct cost_seen seen[COST_KINDS], moved[COST_WAYS];
};
struct cost_node {   /* a memory node of the processor */
    double memory;   /* bytes; 0: not said */
    double bw, rate; /* its share of what domain 0 reads, of what it computes */
};
/* Whole things, beside the kinds, that are compared with what they really took. */
enum cost_whole { COST_PREFILL_CPU, COST_PREFILL_BLEND, COST_PREFILL_SLP, COST_PREFILL_DSLP, COST_STEP_CPU, COST_STEP_HYBRID, COST_STEP_DUAL, COST_WHOLES };
struct cost_machine {
    char name[96];
    int n_domains; /* domains 1 .. n_devices are the devices; near-data units follow */
    int n_devices;
    double dram, disk;        /* host memory and disk, all readers together; 0: no limit */
    double missing, absent;   /* of the routed experts that few rows choose, and of all, the share that is on the disk: cost_spill. 0: memory has all */
    int n_nodes;              /* memory nodes of domain 0; 0: one */
    double between;           /* bytes/s that a node's processors read from other nodes, and others from it; 0: no limit */
    double reach;             /* share of their bandwidth that domain 0 has for weights which do not lie by node; 0: all */
    double join;              /* telling the processor that a device's rows are there, or the other way round */
    double start;             /* what a stream-loaded or blended prefill takes to begin: buffers, threads */
    int cpu_chunk, gpu_chunk; /* rows that a prefill takes through a layer at once */
    bool deterministic;       /* decide by the table alone: cost_factor is 1 */
    struct cost_seen seen[COST_WHOLES];
    struct cost_node node[COST_NODES];
    struct cost_domain domain[COST_DOMAINS];
};

/* What a checkpoint asks for, as plain numbers; bytes are of weights as stored, FLOP are of one row. */
struct cost_model {
    int layers, dense_layers, n_experts, topk; /* dense_layers of them have no experts */
    enum cost_format experts, dense, kv;       /* how they are stored */
    double expert_bytes, expert_flops;         /* one routed expert */
    double half_bytes, half_flops;             /* matrices of one layer's attention half, its router included */
    double shared_bytes, shared_flops;         /* shared experts of a layer */
    double ffn_bytes, ffn_flops;               /* of a layer without experts */
    double head_bytes, head_flops;
    double kv_bytes;                 /* a position in a layer */
    double query_bytes;              /* a row of queries of all heads, or of what attention gives, float32 */
    double index_bytes, index_flops; /* DSA: the indexer's part of a position, and of a query with a key */
    double most_keys;                /* that a query attends to; 0: all */
    double pair_flops;               /* a query with a key, all heads, keys as they lie in the cache */
    double wide_flops, widen_flops;  /* MLA with keys expanded: such a pair, and expanding a key; 0: there is no such way */
    double row_bytes;                /* a row of the residual stream, float32 */
    int linears, elems;              /* operations of an attention half */
    double elem_bytes;               /* of a row in those that are no products */
    double skew;                     /* experts are chosen as 1 / rank^skew; 0: all alike */
};
/* dense, experts, kv: enum dtype of the checkpoint's matrices, of its experts, and of the cache. */
void cost_model_of(struct cost_model *q, const struct config *c, enum dtype dense, enum dtype experts, enum dtype kv);

/* --- Pieces --- */
struct cost_piece {
    enum cost_kind kind;
    enum cost_format format;
    double rows, bytes, flops, calls;
    double of; /* COST_FFN: rows of the whole call, of which an expert has `rows`; 0: these are all */
};
double cost_at(const struct cost_curve *c, double rows); /* INFINITY without points */
const struct cost_curve *cost_rate(const struct cost_domain *d, enum cost_kind kind,
                                   enum cost_format f); /* of that format, or what stands for it: another one, experts for matrices */
const struct cost_curve *cost_few(const struct cost_domain *d, enum cost_format f); /* of experts in a call of at most OP_FEW rows */
double cost_time(const struct cost_machine *m, int domain, const struct cost_piece *p);
double cost_move(const struct cost_machine *m, int domain, enum cost_way way, double bytes); /* INFINITY where there is no way */

/* Rows of one attention half: (query, key) pairs in it, and cached positions that are read. */
struct cost_rows {
    double rows, pairs, keys;
};
struct cost_rows cost_decode_rows(int rows, double keys);                                                   /* one row each of sessions with so many keys */
struct cost_rows cost_prefill_rows(double n, double pos);                                                   /* n rows of one session, causal, from pos on */
double cost_half(const struct cost_machine *m, int domain, const struct cost_model *q, struct cost_rows r); /* attention half of a layer */
double cost_shared(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);
/* One expert that has so many of the rows of a call, its weights are there; without latency. of: COST_MANY, or OP_FEW in steps. */
double cost_expert(const struct cost_machine *m, int domain, const struct cost_model *q, double rows, double of);
/* The same where they are not: paper C's max(compute, link, host memory). INFINITY without a link; the processor always has them. */
double cost_miss(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);
double cost_distinct(const struct cost_model *q, double rows);                                         /* experts that so many rows choose, expected */
double cost_routed(const struct cost_machine *m, int domain, const struct cost_model *q, double rows); /* all experts that they choose, there */
double cost_head(const struct cost_machine *m, int domain, const struct cost_model *q, double rows);

/* Paper B's points, in rows of one expert: from which on fetching it to a device beats computing it where it lies (P1), and from
 * which on the device computes longer than the link brings (P2). Rising search up to 2^20, which stands for never. */
double cost_turning(const struct cost_machine *m, int domain, const struct cost_model *q);
double cost_balance(const struct cost_machine *m, int domain, const struct cost_model *q);

/* --- Steps and prefills --- */
struct cost_step {
    enum cost_whole how; /* COST_STEP_* */
    int rows;            /* sessions, one token each */
    double keys;         /* mean positions before them */
    int cut;             /* DUAL: rows of the first micro-batch */
    int device;          /* rank that has the attention halves */
    int on_device;       /* layers whose halves are there; the rest are on the processor */
    double cached;       /* share of the chosen experts that lie on the device */
    bool beside;         /* a prefill streams weights meanwhile: the link's bytes leave host memory too */
    int ranks;           /* devices that share each of these layers (tensor parallel); 0, 1: none does */
};
double cost_step(const struct cost_machine *m, const struct cost_model *q, const struct cost_step *s);
int cost_cut(const struct cost_machine *m, const struct cost_model *q, const struct cost_step *s); /* the best cut of a dual step */
enum { COST_BLEND_ROWS = 4096 }; /* a blended prefill takes through the layers at once, at most */
struct cost_prefill {
    enum cost_whole how; /* COST_PREFILL_* */
    int n, pos;          /* new rows; positions before them */
    int ranks;           /* DSLP, BLEND: devices */
    int decoding;        /* rows of a step that goes on beside it */
    double keys;         /* of those */
    bool resident;       /* what is not routed experts lies on the device already */
};
double cost_prefill(const struct cost_machine *m, const struct cost_model *q, const struct cost_prefill *p);
/* Layers whose attention half, shared expert and cache of so many positions fit into so many bytes. */
int cost_layers_fit(const struct cost_model *q, double bytes, double positions);

/* Memory of so many bytes as a cache of routed experts that lie on a disk (cache/fetch.h): sets missing and absent. An eighth of it is left for what
 * comes and goes. Few rows find what memory has by score (MRS) as often as paper D printed it. False: not even the rest fits. */
bool cost_spill(struct cost_machine *m, const struct cost_model *q, double memory);
double cost_disk(const struct cost_machine *m, const struct cost_model *q, double rows); /* of the experts of all layers that so many rows choose; 0: none */

/* --- Learning --- */
/* After use: what was expected (as the functions above said it) and what it took, of so many rows. */
void cost_observe(const struct cost_machine *m, struct cost_seen *s, double rows, double expected, double real); /* s is one of m's */
double cost_factor(const struct cost_machine *m, const struct cost_seen *s, double rows);                        /* within 1/8 .. 8 */
double cost_error(const struct cost_seen *s); /* how far off it was of late: 0.1 is ten percent; 0: never used */

/* --- A table for many questions: an expert by rows, within 3% of cost_expert, never falling --- */
enum { COST_TABLE = 8 + 8 * 16 };
struct cost_table {
    float t[COST_TABLE + 1]; /* 0 .. 7 rows, then eight steps an octave */
};
void cost_table_fill(struct cost_table *t, const struct cost_machine *m, int domain, const struct cost_model *q, double of); /* in a call of so many rows */
double cost_table_at(const struct cost_table *t, int rows);

/* --- Machines that are known by heart --- */
/* "paper-a-1", "paper-a-2", "paper-b-t4", "paper-b-2t4", "paper-b-4t4", "paper-b-l4", "paper-c", "paper-d"; false: there is none of that name. */
bool cost_preset(struct cost_machine *m, const char *name);
const char *cost_preset_name(int i); /* NULL past the last */
/* A machine that nobody measured: so many threads at a level (0 scalar .. 3 amx), devices with these rates (0: usual ones). */
void cost_guess(struct cost_machine *m, int threads, int level, int n_devices, double h2d, double d2h, double peer);
