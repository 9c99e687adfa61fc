/* Presets: known machines, and an assumed one. Rates are achieved ones, not data-sheet values; where a paper gives only
 * peaks they are the vendor's. test/bench/constants.md says of each number where it comes from; a test fails when one
 * changes without it. */
#include <string.h>

#include "engine/placement/numa_cost.h"

struct point {
    float rows, value;
};
struct figures { /* a domain in a few numbers; lists end with 0 rows */
    enum cost_class class;
    double memory, bw, elem_bw;
    struct point ffn[8], linear[8], attention[4]; /* FLOP/s by rows; FFN and linear weights in `format` */
    float fp8;                                    /* FLOP/s of products in FP8, where models are read so; 0: none */
    enum cost_format format;
    double latency[COST_KINDS];
    double h2d, d2h, peer, link_latency;
};

static void set_curve(struct cost_curve *c, const struct point *p, int most) {
    for (c->n = 0; c->n < most && p[c->n].rows > 0; c->n++)
        c->rows[c->n] = p[c->n].rows, c->value[c->n] = p[c->n].value;
}
static void fill_domain(struct cost_domain *d, const struct figures *s) {
    d->class = s->class;
    d->memory = s->memory;
    for (int k = 0; k < COST_KINDS; k++) {
        d->latency[k] = s->latency[k];
        d->bw[k] = (struct cost_curve){1, {1}, {(float)(k == COST_ELEM ? s->elem_bw : s->bw)}};
    }
    set_curve(&d->rate[COST_FFN][s->format], s->ffn, 8);
    set_curve(&d->rate[COST_LINEAR][s->format], s->linear, 8);
    set_curve(&d->rate[COST_ATTENTION][COST_16BIT], s->attention, 4);
    for (int k = COST_FFN; k <= COST_LINEAR && s->fp8 > 0; k++) d->rate_fp8[k] = (struct cost_curve){1, {1}, {s->fp8}};
    const double rates[COST_LINKS] = {[COST_H2D] = s->h2d, [COST_D2H] = s->d2h, [COST_PEER] = s->peer};
    for (int w = 0; w < COST_LINKS; w++)
        if (rates[w] > 0) d->link[w].rate = rates[w], d->link[w].latency = s->link_latency;
}

/* Two EPYC 9355: 64 cores, 24 channels of DDR5-6400. 947 GB/s by the paper's GEMV (table 1); products as measured on
 * one core of the same family (test/bench/NOTES.md) times 64, minus a fifth for the all-core clock. */
static const struct figures epyc_9355 = {
    .class = COST_CPU,
    .memory = 1.15e12,
    .bw = 947e9,
    .elem_bw = 300e9,
    .format = COST_8BIT,
    .ffn = {{1, 4e12f}, {4, 6e12f}, {9, 13e12f}, {16, 17e12f}, {64, 22e12f}, {512, 24e12f}},
    .linear = {{1, 4e12f}, {4, 6e12f}, {9, 13e12f}, {16, 17e12f}, {64, 22e12f}, {512, 24e12f}},
    .attention = {{1, 6e12f}, {64, 15e12f}},
    .latency = {15e-6, 8e-6, 8e-6, 3e-6}};
/* RTX 5090: the figures of virtual time (gpu/): products in BF16 at 0.7 of the vendor's peak, in FP8 (math=fp8, or the
 * prompts of models that were trained so) at 0.8 of the FP8 peak, 0.85 of the memory bandwidth, 57 GB/s over PCIe 5. */
#define RTX_5090(products, prompts) \
    { \
        .class = COST_GPU, .memory = 32e9, .bw = 1.52e12, .elem_bw = 1.52e12, .format = COST_8BIT, \
        .ffn = {{1, products}}, .linear = {{1, products}}, .fp8 = prompts, .attention = {{1, 147e12f}}, \
        .latency = {4e-6, 4e-6, 4e-6, 4e-6}, .h2d = 57e9, .d2h = 57e9, .link_latency = 8e-6 \
    }
static const struct figures rtx_5090 = RTX_5090(147e12f, 335e12f), rtx_5090_fp8 = RTX_5090(335e12f, 0);
/* Paper B: 100 GB/s and 1.6 TFLOP/s of a 24-core Xeon (section 6.3). T4 and L4 by the vendor: 65 and 121 TFLOP/s, 300
 * GB/s; PCIe 3 and 4. */
static const struct figures xeon_24 = {.class = COST_CPU,
                                       .memory = 192e9,
                                       .bw = 100e9,
                                       .elem_bw = 100e9,
                                       .format = COST_16BIT,
                                       .ffn = {{1, 1.6e12f}},
                                       .linear = {{1, 1.6e12f}},
                                       .attention = {{1, 1.6e12f}}};
static const struct figures t4 = {.class = COST_GPU,
                                  .memory = 16e9,
                                  .bw = 300e9,
                                  .elem_bw = 300e9,
                                  .format = COST_16BIT,
                                  .ffn = {{1, 65e12f}},
                                  .linear = {{1, 65e12f}},
                                  .attention = {{1, 65e12f}},
                                  .h2d = 16e9,
                                  .d2h = 16e9};
/* Paper B's machines with two and four T4: 32 such cores, 416 GB; other figures assumed equal to the 24-core
 * machine's. */
static const struct figures xeon_32 = {.class = COST_CPU,
                                       .memory = 416e9,
                                       .bw = 100e9,
                                       .elem_bw = 100e9,
                                       .format = COST_16BIT,
                                       .ffn = {{1, 2.1e12f}},
                                       .linear = {{1, 2.1e12f}},
                                       .attention = {{1, 2.1e12f}}};
static const struct figures l4 = {.class = COST_GPU,
                                  .memory = 24e9,
                                  .bw = 300e9,
                                  .elem_bw = 300e9,
                                  .format = COST_16BIT,
                                  .ffn = {{1, 121e12f}},
                                  .linear = {{1, 121e12f}},
                                  .attention = {{1, 121e12f}},
                                  .h2d = 32e9,
                                  .d2h = 32e9};
/* Paper C, table 1: bandwidths and near-memory units as given. Rates by rows: an H100 reaches 30% at 256 rows
 * (section 3.1), AMX 10 to 40 TFLOP/s for tens to hundreds of rows (section 3.2). */
static const struct figures xeon_8470 = {.class = COST_CPU,
                                         .memory = 2e12,
                                         .bw = 307.2e9,
                                         .elem_bw = 300e9,
                                         .format = COST_16BIT,
                                         .ffn = {{1, 1e12f}, {16, 6e12f}, {32, 10e12f}, {128, 30e12f}, {512, 40e12f}},
                                         .linear = {{1, 1e12f}, {32, 10e12f}, {512, 40e12f}},
                                         .attention = {{1, 2e12f}},
                                         .latency = {10e-6, 5e-6, 5e-6, 3e-6}};
static const struct figures h100 = {.class = COST_GPU,
                                    .memory = 80e9,
                                    .bw = 2.04e12,
                                    .elem_bw = 2.04e12,
                                    .format = COST_16BIT,
                                    .ffn = {{1, 2e12f}, {16, 28e12f}, {256, 246e12f}, {2048, 650e12f}},
                                    .linear = {{1, 2e12f}, {256, 246e12f}, {2048, 650e12f}},
                                    .attention = {{1, 300e12f}},
                                    .latency = {4e-6, 4e-6, 4e-6, 4e-6},
                                    .h2d = 64e9,
                                    .d2h = 64e9,
                                    .link_latency = 8e-6};
static const struct figures near_data = {.class = COST_NDP,
                                         .memory = 128e9,
                                         .bw = 153.6e9,
                                         .elem_bw = 153.6e9,
                                         .format = COST_16BIT,
                                         .ffn = {{1, 256e9f}},
                                         .linear = {{1, 256e9f}},
                                         .attention = {{1, 256e9f}}};
/* Paper D: ten cores of a Xeon Gold 5220R with INT4 kernels; an RTX A6000 over PCIe 4, by the vendor. */
static const struct figures xeon_5220 = {.class = COST_CPU,
                                         .memory = 384e9,
                                         .bw = 90e9,
                                         .elem_bw = 60e9,
                                         .format = COST_4BIT,
                                         .ffn = {{1, 0.25e12f}, {16, 0.5e12f}},
                                         .linear = {{1, 0.25e12f}, {16, 0.5e12f}},
                                         .attention = {{1, 0.2e12f}},
                                         .latency = {10e-6, 5e-6, 5e-6, 3e-6}};
static const struct figures a6000 = {.class = COST_GPU,
                                     .memory = 48e9,
                                     .bw = 650e9,
                                     .elem_bw = 650e9,
                                     .format = COST_4BIT,
                                     .ffn = {{1, 10e12f}, {64, 110e12f}},
                                     .linear = {{1, 10e12f}, {64, 110e12f}},
                                     .attention = {{1, 80e12f}},
                                     .latency = {6e-6, 6e-6, 6e-6, 6e-6},
                                     .h2d = 25e9,
                                     .d2h = 25e9,
                                     .link_latency = 10e-6};

#define PAPER_A       "2 x EPYC 9355", "RTX 5090", &epyc_9355
#define PAPER_A_LINKS 0, 1228e9, COST_HAND_OFF_S, 2, NUMA_COST_INTER_NODE_BW
static const struct preset {
    const char *name, *what, *cpu_name, *gpu_name;
    const struct figures *cpu_figures, *gpu_figures;
    int n_devices, n_near;
    double dram_bw, hand_off_s;
    int n_nodes;
    double inter_node_bw;
} presets[] = {
    /* Columns: name, description, names of CPU and GPU, their figures, devices, units near memory, DRAM bandwidth,
     * hand-off, NUMA nodes, bandwidth between nodes. */
    {"paper-a-1", "two EPYC 9355, one RTX 5090", PAPER_A, &rtx_5090, 1, PAPER_A_LINKS},
    {"paper-a-2", "two EPYC 9355, two RTX 5090", PAPER_A, &rtx_5090, 2, PAPER_A_LINKS},
    {"paper-a-1-fp8", "two EPYC 9355, one RTX 5090 with math=fp8", PAPER_A, &rtx_5090_fp8, 1, PAPER_A_LINKS},
    {"paper-a-2-fp8", "two EPYC 9355, two RTX 5090 with math=fp8", PAPER_A, &rtx_5090_fp8, 2, PAPER_A_LINKS},
    {"paper-b-t4", "Xeon with 24 cores, T4", "Xeon, 24 cores", "T4", &xeon_24, &t4, 1, 0, 100e9, 0},
    {"paper-b-2t4", "Xeon with 32 cores, two T4", "Xeon, 32 cores", "T4", &xeon_32, &t4, 2, 0, 100e9, 0},
    {"paper-b-4t4", "Xeon with 32 cores, four T4", "Xeon, 32 cores", "T4", &xeon_32, &t4, 4, 0, 100e9, 0},
    {"paper-b-l4", "Xeon with 24 cores, L4", "Xeon, 24 cores", "L4", &xeon_24, &l4, 1, 0, 100e9, 0},
    {"paper-c", "Xeon Platinum 8470, H100, 16 units near memory", "Xeon Platinum 8470", "H100", &xeon_8470, &h100, 1,
     16, 307.2e9, COST_HAND_OFF_S},
    {"paper-d", "Xeon Gold 5220R with 10 cores, RTX A6000", "Xeon Gold 5220R, 10 cores", "RTX A6000", &xeon_5220,
     &a6000, 1, 0, 128e9, COST_HAND_OFF_S},
};
const char *cost_preset_name(int i) {
    return i >= 0 && i < (int)(sizeof presets / sizeof *presets) ? presets[i].name : NULL;
}

static void domain_name(struct cost_domain *d, const char *name) { strncpy(d->name, name, sizeof d->name - 1); }

bool cost_preset(struct cost_machine *m, const char *name) {
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        const struct preset *p = &presets[i];
        if (strcmp(p->name, name)) continue;
        memset(m, 0, sizeof *m);
        strncpy(m->name, p->what, sizeof m->name - 1);
        m->n_devices = p->n_devices, m->n_domains = 1 + p->n_devices + p->n_near;
        m->dram_bw = p->dram_bw, m->hand_off_s = p->hand_off_s;
        m->cpu_chunk_rows = 1024, m->gpu_chunk_rows = 8192;
        numa_cost_even(m, p->n_nodes, p->cpu_figures->memory);
        if (p->n_nodes) m->inter_node_bw = p->inter_node_bw;
        for (int d = 0; d < m->n_domains; d++) {
            fill_domain(&m->domain[d], !d ? p->cpu_figures : d <= p->n_devices ? p->gpu_figures : &near_data);
            domain_name(&m->domain[d], !d ? p->cpu_name : d <= p->n_devices ? p->gpu_name : "near memory");
        }
        return true;
    }
    return false;
}

void cost_assumed(struct cost_machine *m, int threads, int level, int n_devices, double h2d, double d2h, double peer) {
    static const float thread[4] = {2e9f, 100e9f, 200e9f, 800e9f}; /* FLOP/s of products with many rows */
    float rate = thread[level < 0 ? 0 : level > 3 ? 3 : level] * (float)(threads > 0 ? threads : 1);
    double bw = 15e9 * (threads > 0 ? threads : 1);
    if (bw > 200e9) bw = 200e9;
    struct figures cpu = {.class = COST_CPU,
                          .bw = bw,
                          .elem_bw = bw,
                          .format = COST_8BIT,
                          .ffn = {{1, rate / 3}, {64, rate}},
                          .linear = {{1, rate / 3}, {64, rate}},
                          .attention = {{1, rate / 3}},
                          .latency = {10e-6, 5e-6, 5e-6, 2e-6}};
    struct figures gpu = {.class = COST_GPU,
                          .memory = 16e9,
                          .bw = 600e9,
                          .elem_bw = 600e9,
                          .format = COST_8BIT,
                          .ffn = {{1, 5e12f}, {128, 100e12f}},
                          .linear = {{1, 5e12f}, {128, 100e12f}},
                          .attention = {{1, 50e12f}},
                          .latency = {5e-6, 5e-6, 5e-6, 5e-6},
                          .h2d = h2d > 0 ? h2d : 25e9,
                          .d2h = d2h > 0 ? d2h : 25e9,
                          .peer = peer,
                          .link_latency = 10e-6};
    memset(m, 0, sizeof *m);
    strncpy(m->name, "this machine, not measured", sizeof m->name - 1);
    m->n_devices = n_devices < COST_DOMAINS - 1 ? n_devices : COST_DOMAINS - 1, m->n_domains = 1 + m->n_devices;
    m->dram_bw = bw, m->hand_off_s = 10e-6, m->prefill_start_s = 50e-3;
    m->cpu_chunk_rows = 1024, m->gpu_chunk_rows = 8192;
    for (int d = 0; d < m->n_domains; d++) {
        fill_domain(&m->domain[d], d ? &gpu : &cpu);
        domain_name(&m->domain[d], d ? "device" : "CPU");
    }
}
