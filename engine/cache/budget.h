#pragma once
/* Splits a device's memory: what decode requires first, the rest for routed experts. Pure. */
#include <stddef.h>

enum budget_ask { BUDGET_AUTO, BUDGET_OFF, BUDGET_EXPERTS, BUDGET_BYTES }; /* as many as fit; none; n per layer; n bytes */
struct budget_in {
    size_t free;      /* bytes free on the device */
    size_t weights;   /* attention blocks, shared experts, dense FFNs and head assigned to it */
    size_t keep;      /* KV caches, workspaces, a prefill's ring */
    size_t slot;      /* one expert */
    int layers, each; /* MoE layers whose attention block it has; experts in each */
    enum budget_ask ask;
    size_t n; /* requested experts or bytes */
};
struct budget_out {
    int each;      /* experts per layer that fit, the same in each */
    size_t bytes;  /* their size */
    char why[160]; /* one sentence */
};
void budget_give(const struct budget_in *in, struct budget_out *out);
