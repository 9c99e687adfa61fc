#include "engine/experts/budget.h"

#include <stdio.h>

void budget_split(const struct budget_in *in, struct budget_out *out) {
    *out = (struct budget_out){0};
    size_t taken = in->weight_bytes + in->reserve_bytes, rest = in->free_bytes > taken ? in->free_bytes - taken : 0, row = in->layers > 0 ? in->row_bytes : 0;
    if (in->request == BUDGET_OFF || !row) {
        snprintf(out->why, sizeof out->why, "no experts: %s", in->request == BUDGET_OFF ? "requested" : "no layer with experts on the device");
        return;
    }
    const size_t whole = (in->request == BUDGET_AUTO || in->request == BUDGET_LAYERS) && in->layer_bytes ? rest / in->layer_bytes : 0;
    if (whole) {
        out->whole_layers = whole < (size_t)in->layers ? (int)whole : in->layers;
        out->bytes = (size_t)out->whole_layers * in->layer_bytes;
        snprintf(out->why, sizeof out->why, "all experts of %d of %d layers (%zu MB of the %zu MB beside weights, KV caches and a prefill's ring)",
                 out->whole_layers, in->layers, out->bytes >> 20, rest >> 20);
        return;
    }
    if (in->request == BUDGET_LAYERS) {
        snprintf(out->why, sizeof out->why, "no experts: %s", in->layer_bytes ? "those of a layer do not fit" : "the CPU is expected to be faster");
        return;
    }
    size_t want = in->request == BUDGET_EXPERTS ? in->requested : in->request == BUDGET_BYTES ? in->requested / row : (size_t)in->n_experts, fit = rest / row;
    if (want > (size_t)in->n_experts) want = (size_t)in->n_experts;
    out->per_layer = (int)(fit < want ? fit : want);
    out->bytes = (size_t)out->per_layer * row;
    snprintf(out->why, sizeof out->why, "%d of %d experts of %d layers (%zu MB of the %zu MB beside weights, KV caches and a prefill's ring%s)", out->per_layer,
             in->n_experts, in->layers, out->bytes >> 20, rest >> 20, in->request != BUDGET_AUTO && fit < want ? "; more was requested" : "");
}
