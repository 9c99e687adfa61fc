#pragma once
/* Derives a machine model from its data sheet: sockets, memory channels, cores, cards by name. Pure. Rates are scaled
 * from similar machines that were measured; see datasheet.c. */
#include "engine/placement/cost.h"

struct machine_datasheet {
    double sockets, channels, cores; /* channels and cores per socket; sockets 0: 1 */
    double ddr;                      /* MT/s of a 64-bit channel */
    double memory;                   /* bytes of all sockets; 0: unknown, no limit */
    char isa[16], card[48], pcie[16];
    /* "fp8": products with 8-bit weights run in FP8; otherwise, as by default, in BF16 */
    char card_math[8];
    double cards;                                     /* identical cards; 0 without a card: none */
    double card_memory, card_bw, card_fp8, card_bf16; /* vendor figures; 0: looked up by the card's name */
};
/* Returns false if the description is incomplete or wrong; why [cap] names the key and the remedy. */
bool datasheet_machine(struct cost_machine *m, const struct machine_datasheet *d, char *why, size_t cap);
/* Checks a single value. Returns NULL or the error. */
const char *datasheet_check_isa(const char *name);
const char *datasheet_parse_pcie(const char *text, double *rate); /* "5", "4 x8", "25G"; *rate: achievable bytes/s */
/* Returns the known card's own name for "rtx5090", "5090" or "NVIDIA GeForce RTX 5090"; NULL: unknown. */
const char *datasheet_find_card(const char *name);
/* Writes the known cards of which `name` is all but the last word: "H100 PCIe and H100 SXM" for "h100"; or "". */
void datasheet_similar_cards(const char *name, char *text, size_t cap);
const char *datasheet_card_name(int i); /* names of known cards; NULL past the last */

/* Machines known by name (datasheet_preset.c). A card may be added to a name: "desktop-ddr5-64+rtx4090",
 * "epyc-9004-12ch+2xrtx5090". */
enum datasheet_found { DATASHEET_UNKNOWN, DATASHEET_FOUND, DATASHEET_REFUSED /* why [cap] says the reason */ };
enum datasheet_found datasheet_preset(struct cost_machine *m, const char *name, char *why, size_t cap);
const char *datasheet_preset_name(int i); /* names of those that hearth can run on; NULL past the last */
