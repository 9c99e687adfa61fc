#pragma once
/* Splits a device's memory: what decode requires first, the rest for routed experts. Pure. */
#include <stddef.h>

enum budget_request { BUDGET_AUTO, BUDGET_OFF, BUDGET_EXPERTS, BUDGET_BYTES }; /* as many as fit; none; n per layer; n bytes */
struct budget_in {
    size_t free_bytes;     /* bytes free on the device */
    size_t weight_bytes;   /* attention blocks, shared experts, dense FFNs and head assigned to it */
    size_t reserve_bytes;  /* KV caches, workspaces, a prefill's ring */
    size_t slot_bytes;     /* one expert */
    int layers, n_experts; /* MoE layers whose attention block it has; experts in each */
    enum budget_request request;
    size_t requested; /* requested experts or bytes */
};
struct budget_out {
    int per_layer; /* experts per layer that fit, the same in each */
    size_t bytes;  /* their size */
    char why[160]; /* one sentence */
};
void budget_split(const struct budget_in *in, struct budget_out *out);
