#pragma once
/* What a draft by the same model computes with: its routed experts in INT4, symmetric, with a scale for each 128 columns (paper E, section 3.4.2).
 * All else, caches too, is the model's own.
 *
 * A thread of its own makes them from the checkpoint, or reads them where an earlier run of the same checkpoint has left them; until all are there
 * none is. The file is named by the checkpoint's fingerprint, gets its name when it is whole, and is never changed: several processes may make the
 * same. One that is damaged goes and is made again; what the disk has no room for is made again next time. */
#include "cpu/ops.h"
#include "engine/store/weights.h"

enum { INT4_GROUP = 128, INT4_VERSION = 2 };
struct int4;

/* Begins. w must outlive it. dir: where it is kept, NULL: nowhere. ERR_MEMORY with what it needs and what there is, unless `force`; ERR_USAGE where there
 * is nothing to make: no routed experts. */
int int4_open(struct int4 **out, const struct weights *w, enum cpu_level level, const char *dir, bool force, struct error *e);
void int4_close(struct int4 **d); /* stops it */
bool int4_ready(const struct int4 *d);
/* Whether the processor has something else to do from now on: then the thread works for a two hundredth of the time, else all of it. Any thread. */
void int4_beside(struct int4 *d, bool busy);
/* [n_layers] of [n_experts], NULL for layers without. Valid until close; to be computed with once it is ready. */
struct expert *const *int4_experts(const struct int4 *d);
uint64_t int4_bytes(const struct int4 *d);        /* of all of them */
uint64_t int4_expert_bytes(const struct int4 *d); /* of one */

/* Whether these experts of `size` bytes fit beside the weights into `have` (0: not known). ERR_MEMORY says what they need and what there is. Pure. */
int int4_fits(uint64_t size, uint64_t weights, uint64_t have, struct error *e);
/* A row of n numbers: codes [(n + 127) / 128 * 64], a BF16 scale for each 128. Pure. */
void int4_row(const float *x, int n, uint8_t *codes, uint16_t *scales);
