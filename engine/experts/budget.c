#include "engine/experts/budget.h"

#include <stdio.h>

static size_t room_beside(const struct budget_in *in, size_t reserve) {
    const size_t taken = in->weight_bytes + reserve;
    return in->free_bytes > taken ? in->free_bytes - taken : 0;
}

void budget_split(const struct budget_in *in, struct budget_out *out) {
    *out = (struct budget_out){0};
    const size_t row = in->layers > 0 ? in->row_bytes : 0, without_ring = room_beside(in, in->least_reserve);
    const bool wants_layers = in->request <= BUDGET_EACH;
    const bool all_fit = wants_layers && in->layer_bytes && without_ring / in->layer_bytes >= (size_t)in->layers;
    const size_t rest = all_fit ? without_ring : room_beside(in, in->reserve_bytes);
    if (in->request == BUDGET_OFF || !row) {
        snprintf(out->why, sizeof out->why, "no experts: %s",
                 in->request == BUDGET_OFF ? "requested" : "no layer with experts on the device");
        return;
    }
    const size_t whole = wants_layers && in->layer_bytes ? rest / in->layer_bytes : 0;
    if (whole && (all_fit || in->request != BUDGET_EACH)) {
        out->whole_layers = whole < (size_t)in->layers ? (int)whole : in->layers;
        out->bytes = (size_t)out->whole_layers * in->layer_bytes;
        snprintf(out->why, sizeof out->why, "all experts of %d of %d layers (%zu MB of the %zu MB beside weights%s)",
                 out->whole_layers, in->layers, out->bytes >> 20, rest >> 20,
                 all_fit ? " and KV caches" : ", KV caches and a prefill's ring");
        return;
    }
    if (in->request == BUDGET_LAYERS) {
        snprintf(out->why, sizeof out->why, "no experts: %s",
                 in->layer_bytes ? "those of a layer do not fit" : "the CPU is expected to be faster");
        return;
    }
    size_t want = in->request == BUDGET_EXPERTS ? in->requested
                  : in->request == BUDGET_BYTES ? in->requested / row
                                                : (size_t)in->n_experts,
           fit = rest / row;
    if (want > (size_t)in->n_experts) want = (size_t)in->n_experts;
    out->per_layer = (int)(fit < want ? fit : want);
    out->bytes = (size_t)out->per_layer * row;
    snprintf(out->why, sizeof out->why,
             "%d of %d experts of %d layers (%zu MB of the %zu MB beside weights, KV caches and a prefill's ring%s)",
             out->per_layer, in->n_experts, in->layers, out->bytes >> 20, rest >> 20,
             !wants_layers && fit < want ? "; more was requested" : "");
}
