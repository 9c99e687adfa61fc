/* A rate that is a fraction of the data-sheet value uses a fraction measured on a similar machine:
 * - memory: 0.77 of channels x rate, paper A's FP8 GEMV on two EPYC 9355 (our kernels reached 0.87 on Zen 5, 0.98 on a
 * Xeon: test/bench/NOTES.md);
 * - products per core: measured on one thread (NOTES.md), minus a fifth for the all-core clock;
 * - cards: 0.7 of BF16, 0.8 of FP8 (prompts of models that were trained so; all with card.math = fp8), 0.85 of the
 * memory bandwidth, as in virtual time for the RTX 5090; PCIe 5 at 57 GB/s (0.9 of its peak), PCIe 4 and 3 in
 * proportion. test/bench/constants.md says of each where it comes from. */
#include "engine/placement/datasheet.h"

#include <stdio.h>
#include <string.h>

#include "engine/placement/numa_cost.h"

static const double DRAM_FRACTION = 0.77, ELEM_FRACTION = 0.25, FP8_FRACTION = 0.8, BF16_FRACTION = 0.7,
                    CARD_MEMORY_FRACTION = 0.85;
static const double lane_rate[6] = {0, 0, 0, 57e9 / 64, 57e9 / 32, 57e9 / 16}; /* bytes/s per lane, by generation */

static const struct isa {
    const char *name;
    struct {
        float rows, value;
    } products[8];
    float attention;
} isas[] = {
    /* FLOP/s per core */
    {"scalar", {{1, 2e9f}}, 1e9f},
    {"avx2", {{1, 43e9f}, {4, 58e9f}, {16, 65e9f}, {64, 91e9f}, {512, 103e9f}}, 47e9f},
    {"avx512", {{1, 61e9f}, {4, 94e9f}, {16, 118e9f}, {64, 158e9f}, {512, 189e9f}}, 94e9f},
    {"avx512bf16", {{1, 62e9f}, {4, 94e9f}, {9, 203e9f}, {16, 266e9f}, {64, 344e9f}, {512, 375e9f}}, 235e9f},
    {"amx", {{1, 61e9f}, {4, 74e9f}, {8, 148e9f}, {16, 270e9f}, {32, 386e9f}, {64, 514e9f}, {512, 566e9f}}, 94e9f},
};
enum { ISAS = sizeof isas / sizeof *isas };

static const struct card {
    const char *name;
    double memory, bw, fp8, bf16; /* dense, float32 accumulation; fp8 0: computed as BF16 */
    int pcie, lanes;              /* lanes 0: 16 */
} cards[] = {
    {"RTX 5090", 32e9, 1792e9, 419e12, 209e12, 5, 16},    {"RTX 5080", 16e9, 960e9, 225e12, 112e12, 5, 16},
    {"RTX 5070 Ti", 16e9, 896e9, 176e12, 88e12, 5, 16},   {"RTX 5070", 12e9, 672e9, 123e12, 61e12, 5, 16},
    {"RTX 5060 Ti", 16e9, 448e9, 94e12, 47e12, 5, 8},     {"RTX 4090", 24e9, 1008e9, 330e12, 165e12, 4, 16},
    {"RTX 4080", 16e9, 717e9, 195e12, 97e12, 4, 16},      {"RTX 4070 Ti Super", 16e9, 672e9, 176e12, 88e12, 4, 16},
    {"RTX 4070", 12e9, 504e9, 116e12, 58e12, 4, 16},      {"RTX 4060 Ti", 16e9, 288e9, 88e12, 44e12, 4, 8},
    {"RTX 3090", 24e9, 936e9, 0, 71e12, 4, 16},           {"RTX 3080", 10e9, 760e9, 0, 59e12, 4, 16},
    {"RTX 3060", 12e9, 360e9, 0, 25e12, 4, 16},           {"RTX PRO 6000", 96e9, 1792e9, 1000e12, 500e12, 5, 16},
    {"RTX 6000 Ada", 48e9, 960e9, 728e12, 364e12, 4, 16}, {"RTX A6000", 48e9, 768e9, 0, 155e12, 4, 16},
    {"A100 40GB", 40e9, 1555e9, 0, 312e12, 4, 16},        {"A100 80GB", 80e9, 1935e9, 0, 312e12, 4, 16},
    {"H100 PCIe", 80e9, 2039e9, 1513e12, 756e12, 5, 16},  {"H100 SXM", 80e9, 3350e9, 1979e12, 989e12, 5, 16},
    {"H200", 141e9, 4800e9, 1979e12, 989e12, 5, 16},      {"L40S", 48e9, 864e9, 733e12, 362e12, 4, 16},
    {"L4", 24e9, 300e9, 242e12, 121e12, 4, 16},           {"T4", 16e9, 300e9, 0, 65e12, 3, 16},
};
enum { CARDS = sizeof cards / sizeof *cards };

static bool alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }
static bool equal_names(const char *a, const char *b) { /* ignores case and other characters than letters and digits */
    for (;; a++, b++) {
        while (*a && !alnum(*a)) a++;
        while (*b && !alnum(*b)) b++;
        if (lower(*a) != lower(*b)) return false;
        if (!*a) return true;
    }
}
static const struct card *find_card(const char *name) {
    static const char *const makes[] = {"", "NVIDIA ", "GeForce ", "NVIDIA GeForce "};
    for (int i = 0; i < CARDS; i++) {
        /* 5090, A6000 */
        if (!strncmp(cards[i].name, "RTX ", 4) && equal_names(cards[i].name + 4, name)) return &cards[i];
        for (int k = 0; k < 4; k++) {
            char full[64];
            snprintf(full, sizeof full, "%s%s", makes[k], cards[i].name);
            if (equal_names(full, name)) return &cards[i];
        }
    }
    return NULL;
}
const char *datasheet_find_card(const char *name) {
    const struct card *c = find_card(name);
    return c ? c->name : NULL;
}
void datasheet_similar_cards(const char *name, char *text, size_t cap) {
    size_t n = 0;
    *text = 0;
    for (int i = 0; i < CARDS; i++) {
        char start[64];
        const char *const last = strrchr(cards[i].name, ' ');
        snprintf(start, sizeof start, "%.*s", last ? (int)(last - cards[i].name) : 0, cards[i].name);
        if (*start && equal_names(start, name) && n < cap)
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n ? " and " : "", cards[i].name);
    }
}
const char *datasheet_card_name(int i) { return i >= 0 && i < CARDS ? cards[i].name : NULL; }

static const struct isa *find_isa(const char *name) {
    for (int i = 0; i < ISAS; i++)
        if (!strcmp(isas[i].name, name)) return &isas[i];
    return NULL;
}
const char *datasheet_check_isa(const char *name) {
    return find_isa(name) ? NULL : "is not one of scalar, avx2, avx512, avx512bf16 (AMD's since Zen 4), amx";
}

const char *datasheet_parse_pcie(const char *text, double *rate) {
    static const char bad[] = "is neither a generation (5, 4 x8) nor bytes/s (25G)";
    double g = 0;
    int n = 0, lanes = 16, generation;
    if (sscanf(text, "%lfG%n", &g, &n) == 1 && n && !text[n] && g > 0 && g < 1e4) return *rate = g * 1e9, NULL;
    n = 0;
    if (sscanf(text, "%d%n", &generation, &n) != 1 || !n || generation < 3 || generation > 5) return bad;
    if (text[n]) {
        int more = 0;
        if (sscanf(text + n, " x%d%n", &lanes, &more) != 1 || text[n + more]) return bad;
    }
    if (lanes != 1 && lanes != 2 && lanes != 4 && lanes != 8 && lanes != 16) return bad;
    return *rate = lane_rate[generation] * lanes, NULL;
}

static bool fail_with(char *why, size_t cap, const char *text) { return snprintf(why, cap, "%s", text), false; }

static struct cost_curve constant_curve(double value) { return (struct cost_curve){1, {1}, {(float)value}}; }

static void make_cpu_domain(struct cost_domain *p, const struct machine_datasheet *d, double dram,
                            const struct isa *isa) {
    double sockets = d->sockets > 0 ? d->sockets : 1, all = sockets * d->cores;
    *p = (struct cost_domain){.class = COST_CPU, .memory = d->memory, .latency = {15e-6, 8e-6, 8e-6, 3e-6}};
    snprintf(p->name, sizeof p->name, "%.0f x %.0f cores, %s", sockets, d->cores, isa->name);
    for (int k = 0; k < COST_KINDS; k++)
        p->bw[k] = constant_curve((k == COST_ELEM ? ELEM_FRACTION : DRAM_FRACTION) * dram);
    struct cost_curve *c = &p->rate[COST_FFN][COST_8BIT];
    for (; c->n < 8 && isa->products[c->n].rows > 0; c->n++)
        c->rows[c->n] = isa->products[c->n].rows, c->value[c->n] = isa->products[c->n].value * (float)all;
    p->rate[COST_LINEAR][COST_8BIT] = *c;
    p->rate[COST_ATTENTION][COST_16BIT] = constant_curve((double)isa->attention * all);
}

/* A launch without a framework. Of few rows an FFN takes two, and attention to more than some hundred keys does
 * (gpu/cuda_experts.c, cuda_ops.c). */
static const double LAUNCH_S = 4e-6;
static bool make_card_domain(struct cost_domain *g, const struct machine_datasheet *d, char *why, size_t cap) {
    const struct card *known = *d->card ? find_card(d->card) : NULL;
    double memory = d->card_memory, bw = d->card_bw, fp8 = d->card_fp8, bf16 = d->card_bf16, link = 0;
    if (known && !(memory > 0)) memory = known->memory;
    if (known && !(bw > 0)) bw = known->bw;
    if (known && !(fp8 > 0)) fp8 = known->fp8;
    if (known && !(bf16 > 0)) bf16 = known->bf16;
    if (*d->card && !known && !(memory > 0)) {
        int n = snprintf(why, cap, "card = %.40s is not a known card (", d->card);
        for (int i = 0; i < CARDS && n > 0 && (size_t)n < cap; i++)
            n += snprintf(why + n, cap - (size_t)n, "%s%s", i ? ", " : "", cards[i].name);
        if (n > 0 && (size_t)n < cap)
            snprintf(why + n, cap - (size_t)n,
                     "); give its numbers: card.memory, card.bandwidth, card.bf16, card.fp8 and pcie");
        return false;
    }
    if (!(memory > 0))
        return fail_with(why, cap,
                         "card.memory is missing: the card's memory, such as card.memory = 24G; or name a known card, "
                         "such as card = RTX 5090");
    if (!(bw > 0))
        return fail_with(
            why, cap,
            "card.bandwidth is missing: the card's memory bandwidth in bytes/s, such as card.bandwidth = 1008G");
    if (!(bf16 > 0))
        return fail_with(why, cap, "card.bf16 is missing: FLOP/s of dense BF16 products, such as card.bf16 = 165T");
    if (*d->pcie) datasheet_parse_pcie(d->pcie, &link);
    else if (known) link = lane_rate[known->pcie] * known->lanes;
    if (!(link > 0))
        return fail_with(why, cap,
                         "pcie is missing: the generation and lanes of the card's slot, such as pcie = 4 x16, or "
                         "bytes/s, pcie = 25G");
    *g = (struct cost_domain){
        .class = COST_GPU, .memory = memory, .latency = {2 * LAUNCH_S, LAUNCH_S, 2 * LAUNCH_S, LAUNCH_S}};
    snprintf(g->name, sizeof g->name, "%s", *d->card ? d->card : "card");
    for (int k = 0; k < COST_KINDS; k++) g->bw[k] = constant_curve(CARD_MEMORY_FRACTION * bw);
    const bool is_fp8 = !strcmp(d->card_math, "fp8");
    if (is_fp8 && !(fp8 > 0))
        return fail_with(why, cap, "card.math = fp8, but the card has no FP8 products; leave it out, or give card.fp8");
    const double wide = BF16_FRACTION * bf16, narrow = is_fp8 ? FP8_FRACTION * fp8 : wide;
    for (int k = COST_FFN; k <= COST_LINEAR; k++)
        g->rate[k][COST_16BIT] = constant_curve(wide), g->rate[k][COST_8BIT] = constant_curve(narrow);
    for (int k = COST_FFN; k <= COST_LINEAR && fp8 > 0 && !*d->card_math; k++)
        g->rate_fp8[k] = constant_curve(FP8_FRACTION * fp8);
    g->rate[COST_ATTENTION][COST_16BIT] = constant_curve(wide);
    for (int w = COST_H2D; w <= COST_D2H; w++) g->link[w].rate = link, g->link[w].latency = 8e-6;
    return true;
}

bool datasheet_machine(struct cost_machine *m, const struct machine_datasheet *d, char *why, size_t cap) {
    if (!(d->channels > 0))
        return fail_with(why, cap, "channels is missing: memory channels of a socket, such as channels = 8");
    if (!(d->ddr > 0))
        return fail_with(why, cap,
                         "ddr is missing: transfers a second of the memory, such as ddr = 4800 for DDR5-4800");
    if (d->ddr < 200 || d->ddr > 50000)
        return fail_with(why, cap, "ddr is in millions of transfers a second, such as ddr = 4800");
    if (!(d->cores > 0)) return fail_with(why, cap, "cores is missing: cores of a socket, such as cores = 32");
    if (!*d->isa)
        return fail_with(why, cap, "isa is missing: isa = avx2, avx512, avx512bf16 (AMD's since Zen 4) or amx");
    if (!*d->card && d->cards > 0 && !(d->card_memory > 0))
        return fail_with(why, cap, "card is missing: card = RTX 5090, or its numbers as card.memory = 24G and so on");
    double dram = (d->sockets > 0 ? d->sockets : 1) * d->channels * 8 * d->ddr * 1e6;
    int n = *d->card || d->card_memory > 0 ? d->cards > 0 ? (int)d->cards : 1 : 0;
    m->n_devices = n, m->n_domains = 1 + n;
    m->dram_bw = dram, m->hand_off_s = COST_HAND_OFF_S, m->prefill_start_s = 50e-3;
    make_cpu_domain(&m->domain[0], d, dram, find_isa(d->isa));
    if (!m->n_nodes) numa_cost_even(m, (int)d->sockets, d->memory);
    for (int i = 0; i < n; i++)
        if (!make_card_domain(&m->domain[1 + i], d, why, cap)) return false;
    return true;
}
