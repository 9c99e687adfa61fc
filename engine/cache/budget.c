#include "engine/cache/budget.h"

#include <stdio.h>

void budget_give(const struct budget_in *in, struct budget_out *out) {
    *out = (struct budget_out){0};
    size_t taken = in->weights + in->keep, rest = in->free > taken ? in->free - taken : 0, row = in->slot * (size_t)(in->layers > 0 ? in->layers : 0);
    if (in->ask == BUDGET_OFF || !row) {
        snprintf(out->why, sizeof out->why, "no experts: %s", in->ask == BUDGET_OFF ? "requested" : "no layer with experts on the device");
        return;
    }
    size_t want = in->ask == BUDGET_EXPERTS ? in->n : in->ask == BUDGET_BYTES ? in->n / row : (size_t)in->each, fit = rest / row;
    if (want > (size_t)in->each) want = (size_t)in->each;
    out->each = (int)(fit < want ? fit : want);
    out->bytes = (size_t)out->each * row;
    snprintf(out->why, sizeof out->why, "%d of %d experts of %d layers (%zu MB of the %zu MB beside weights, KV caches and a prefill's ring%s)", out->each,
             in->each, in->layers, out->bytes >> 20, rest >> 20, in->ask != BUDGET_AUTO && fit < want ? "; more was requested" : "");
}
