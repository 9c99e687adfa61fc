#pragma once
/* A machine from what stands on its box: sockets, memory channels, cores, cards by name. Pure. What such a machine reaches is taken from
 * what others like it reached: see describe.c. */
#include "engine/sched/cost.h"

struct describe {
    double sockets, channels, cores; /* channels and cores of a socket; sockets 0: 1 */
    double ddr;                      /* MT/s of a channel of 64 bits */
    double memory;                   /* bytes of all sockets; 0: not said, then nothing is too large */
    char isa[16], card[48], pcie[16];
    double cards;                                     /* all alike; 0 without a card: none */
    double card_memory, card_bw, card_fp8, card_bf16; /* as the vendor prints them; 0: by the card's name */
};
/* False: it cannot be told what machine that is, and why [cap] says which key is missing or wrong, and what to write. */
bool describe_machine(struct cost_machine *m, const struct describe *d, char *why, size_t cap);
/* NULL, or what is wrong with a value on its own. */
const char *describe_isa(const char *name);
const char *describe_pcie(const char *text, double *rate); /* "5", "4 x8", "25G": bytes/s as reached */
const char *describe_card(int i);                          /* names of cards known; NULL past the last */
