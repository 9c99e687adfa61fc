#pragma once
/* Owns device copies of routed experts of a layer, all or some, a model's or a draft's. They are loaded once and stay
 * until the device's weights are freed, so the rows of such a layer need nothing from the CPU. Does not choose the
 * layers (budget.h) and computes nothing.
 *
 * Layout: one allocation; expert i starts at i * stride, and a field has the same 256-byte aligned offset in every
 * expert, so that a kernel can find a selected expert without a table. */
#include "engine/transfer/stage.h"

struct resident_experts {
    struct ledger_entry mem; /* free: not loaded */
    struct expert *view;     /* [n] with device pointers; host memory */
    int n;
};

/* Device bytes for the experts of a layer, from [n_experts]; 0: from NULL, a dense layer. Pure. */
size_t resident_experts_bytes(const struct config *c, int layer, const struct expert *from);
/* Allocates memory of a class and sends the n experts ids [n] of an MoE layer, NULL: all; they have arrived after
 * stage_flush and a synchronization of the stage's stream. ERR_MEMORY, or the stream's first error: the view is NULL
 * then; free the memory after a synchronization. */
int resident_experts_load(struct resident_experts *x, enum ledger_class class, const struct config *c, int layer,
                          const struct expert *from, const int32_t *ids, int n, struct ledger *l, struct stage *stage,
                          struct error *e);
/* Frees the copies; no queued operation may read them. Safe on a zeroed struct. */
void resident_experts_free(struct resident_experts *x, struct ledger *l);
