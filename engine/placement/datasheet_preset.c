/* Machines that people own, by data sheet, each with an NVMe disk. A name may end in a card, and the card in its math:
 * desktop-ddr5-64+rtx4090, epyc-9004-12ch+2xrtx5090, desktop-ddr5-96+rtx5090,math=fp8, or its memory and bandwidth:
 * laptop-32+gpu:16G,448G. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/placement/datasheet.h"

enum { MAX_CARDS = 8 };
#define GIB 1073741824.0                /* memory is sold in powers of 2 */
static const double NVME_BYTES_S = 5e9; /* reads of a PCIe 4 disk */
/* BF16 products of a card of which only the memory is known, for each byte/s: those of an RTX 3060, the fewest of the
 * known cards */
static const double CARD_FLOP_PER_BYTE = 25e12 / 360e9;

static const struct preset {
    const char *name, *what;
    struct machine_datasheet sheet;
    const char *why_not; /* NULL, or why hearth cannot run on it and what can */
} presets[] = {
    {"laptop-32",
     "laptop, 8 cores, DDR5-5600, 32 GB",
     {.channels = 2, .ddr = 5600, .cores = 8, .isa = "avx2", .memory = 32 * GIB}},
    {"desktop-ddr5-64",
     "Ryzen 9 9950X, DDR5-6000, 64 GB",
     {.channels = 2, .ddr = 6000, .cores = 16, .isa = "avx512bf16", .memory = 64 * GIB}},
    {"desktop-ddr5-96",
     "Ryzen 9 9950X, DDR5-6000, 96 GB",
     {.channels = 2, .ddr = 6000, .cores = 16, .isa = "avx512bf16", .memory = 96 * GIB}},
    {"desktop-ddr5-192",
     "Ryzen 9 9950X, DDR5-5200, 192 GB",
     {.channels = 2, .ddr = 5200, .cores = 16, .isa = "avx512bf16", .memory = 192 * GIB}},
    {"strix-halo-128",
     "Ryzen AI Max+ 395, LPDDR5X-8000, 128 GB, CPU only",
     {.channels = 4, .ddr = 8000, .cores = 16, .isa = "avx512bf16", .memory = 128 * GIB}},
    {"threadripper-8ch",
     "Threadripper PRO 7975WX, 8 x DDR5-5200, 256 GB",
     {.channels = 8, .ddr = 5200, .cores = 32, .isa = "avx512bf16", .memory = 256 * GIB}},
    {"epyc-7002-2s",
     "two EPYC 7742, 16 x DDR4-3200, 512 GB",
     {.sockets = 2, .channels = 8, .ddr = 3200, .cores = 64, .isa = "avx2", .memory = 512 * GIB}},
    {"epyc-9004-12ch",
     "EPYC 9354, 12 x DDR5-4800, 768 GB",
     {.channels = 12, .ddr = 4800, .cores = 32, .isa = "avx512bf16", .memory = 768 * GIB}},
    {"epyc-9005-2s",
     "two EPYC 9355, 24 x DDR5-6400, 1.15 TB",
     {.sockets = 2, .channels = 12, .ddr = 6400, .cores = 32, .isa = "avx512bf16", .memory = 1152 * GIB}},
    {"xeon-6-2s",
     "two Xeon 6767P, 16 x DDR5-6400, 1 TB",
     {.sockets = 2, .channels = 8, .ddr = 6400, .cores = 64, .isa = "amx", .memory = 1024 * GIB}},
    {"dgx-spark", "", .why_not = "its CPU is an ARM, for which hearth has no kernels; llama.cpp and vLLM run on it"},
};

const char *datasheet_preset_name(int i) {
    return i >= 0 && i < (int)(sizeof presets / sizeof *presets) && !presets[i].why_not ? presets[i].name : NULL;
}

/* Reads MEMORY,BANDWIDTH, both in 10^9, behind gpu: */
static bool read_sizes(struct machine_datasheet *d, const char *text, char *why, size_t cap) {
    double memory = 0, bw = 0;
    int n = 0;
    if (sscanf(text, "%lfG,%lfG%n", &memory, &bw, &n) != 2 || !n || text[n] || !(memory >= 1 && memory < 1e4) ||
        !(bw >= 10 && bw < 1e5))
        return snprintf(why, cap,
                        "gpu:%.40s is not the memory and the bandwidth of a card, such as gpu:16G,448G for 16 GB and "
                        "448 GB/s",
                        text),
               false;
    d->card_memory = memory * 1e9, d->card_bw = bw * 1e9, d->card_bf16 = d->card_bw * CARD_FLOP_PER_BYTE;
    snprintf(d->card, sizeof d->card, "card with %g GB, %g GB/s", memory, bw);
    strcpy(d->pcie, "4");
    return true;
}
/* Reads [N x]CARD[,math=bf16|fp8] or [N x]gpu:MEMORY,BANDWIDTH after the +. */
static bool read_card(struct machine_datasheet *d, const char *whole, char *why, size_t cap) {
    char text[64], *end;
    snprintf(text, sizeof text, "%s", whole);
    char *const option = strchr(text, ',');
    if (option && (!strcmp(option, ",math=fp8") || !strcmp(option, ",math=bf16")))
        strcpy(d->card_math, option + strlen(",math=")), *option = 0;
    const long n = strtol(text, &end, 10);
    const bool is_counted = end > text && *end == 'x';
    const char *const name = is_counted ? end + 1 : text;
    if (is_counted && (n < 1 || n > MAX_CARDS))
        return snprintf(why, cap, "%.40s: 1 to %d cards are possible", text, MAX_CARDS), false;
    d->cards = is_counted ? (double)n : 1;
    if (!strncmp(name, "gpu:", 4)) return read_sizes(d, name + 4, why, cap);
    const char *const card = datasheet_find_card(name);
    char similar[120];
    datasheet_similar_cards(name, similar, sizeof similar);
    if (!card && *similar) return snprintf(why, cap, "%.40s is not one card: there are %s", text, similar), false;
    if (!card)
        return snprintf(
                   why, cap,
                   "%.40s is not a known card, such as +rtx5090 or +2xrtx4090 (--plan list shows them); of another "
                   "give memory and bandwidth, such as +gpu:16G,448G",
                   text),
               false;
    snprintf(d->card, sizeof d->card, "%s", card);
    return true;
}

enum datasheet_found datasheet_preset(struct cost_machine *m, const char *name, char *why, size_t cap) {
    const size_t base = strcspn(name, "+");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        const struct preset *const p = &presets[i];
        struct machine_datasheet d = p->sheet;
        if (strlen(p->name) != base || memcmp(p->name, name, base)) continue;
        if (p->why_not) return snprintf(why, cap, "%s", p->why_not), DATASHEET_REFUSED;
        if (name[base] && !read_card(&d, name + base + 1, why, cap)) return DATASHEET_REFUSED;
        memset(m, 0, sizeof *m);
        m->cpu_chunk_rows = 1024, m->gpu_chunk_rows = 8192;
        if (!datasheet_machine(m, &d, why, cap)) return DATASHEET_REFUSED;
        m->disk_bw = NVME_BYTES_S;
        if (d.cards > 1) snprintf(m->name, sizeof m->name, "%s, %.0f x %s", p->what, d.cards, d.card);
        else snprintf(m->name, sizeof m->name, "%s%s%s", p->what, d.cards > 0 ? ", " : "", d.card);
        return DATASHEET_FOUND;
    }
    return DATASHEET_UNKNOWN;
}
