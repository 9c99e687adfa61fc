#pragma once
/* Splits a device's memory: what decode requires first, the rest for routed experts. Pure.
 *
 * A prefill uploads through a ring, unless all experts are resident. It can evict layers, which are uploaded again
 * after it; the reserve spares short prompts that. Whole layers are better than some experts of every layer: rows of a
 * layer whose experts are all resident do not go through the CPU, and results do not depend on what was used before. */
#include <stdbool.h>
#include <stddef.h>

/* BUDGET_LAYERS: all experts of as many layers as fit, or none. BUDGET_AUTO: BUDGET_LAYERS, or if no layer fits as many
 * per layer as fit (decode_experts.c compares both). BUDGET_EACH: all experts of all layers, or as many per layer as
 * fit. The others: none; n per layer; n bytes. */
enum budget_request { BUDGET_AUTO, BUDGET_LAYERS, BUDGET_EACH, BUDGET_OFF, BUDGET_EXPERTS, BUDGET_BYTES };
enum { EXPERT_CACHE_WHY = 256 }; /* bytes of a sentence about where the choice of experts comes from */
/* What a user asks for. */
struct expert_cache {
    enum budget_request request;
    size_t n; /* experts or bytes */
    /* Of layers that do not have all experts. is_pinned: the experts are chosen once, by usage_profile_pin(). is_sent:
     * the device computes all that are chosen, and is sent what it lacks. Neither: experts move, and the CPU computes
     * what is missing. */
    bool is_pinned, is_sent;
};
struct budget_in {
    size_t free_bytes;     /* bytes free on the device */
    size_t weight_bytes;   /* attention blocks, shared experts, dense FFNs and head assigned to it */
    size_t reserve_bytes;  /* KV caches, workspaces, a prefill's ring */
    size_t least_reserve;  /* reserve_bytes without a ring: enough if the experts of all its layers are resident */
    size_t row_bytes;      /* one expert of each of the layers */
    size_t layer_bytes;    /* all experts of the largest layer; 0: whole layers cannot be resident */
    int layers, n_experts; /* MoE layers whose attention block it has; experts in each */
    enum budget_request request;
    size_t requested; /* requested experts or bytes */
};
struct budget_out {
    int whole_layers; /* layers whose experts are all resident; per_layer is 0 then */
    int per_layer;    /* experts per layer that fit, the same in each */
    size_t bytes;     /* their size */
    char why[160];    /* one sentence */
};
void budget_split(const struct budget_in *in, struct budget_out *out);
