#pragma once
/* Weights of the INT4 draft: the model's routed experts, or in a model without experts its dense FFNs, in INT4,
 * symmetric, with one scale per 128 columns (paper E, section 3.4.2). Everything else, including KV caches, is the
 * model's own.
 *
 * A background thread converts them from the checkpoint, or reads the file of an earlier run; no expert is usable
 * before all are. The file is named by the checkpoint's fingerprint, linked when complete and never changed; several
 * processes may write the same one. A damaged file is replaced. Without disk space the draft is converted again in the
 * next run. */
#include "cpu/cpu.h"
#include "engine/weights/weights.h"

enum { INT4_GROUP = 128, INT4_VERSION = 3 };
struct int4;

/* Starts the background thread. w must outlive it. dir: cache directory, NULL: none. ERR_MEMORY names needed and free
 * memory, unless `force`. */
int int4_open(struct int4 **out, const struct weights *w, enum cpu_level level, const char *dir, bool force,
              struct error *e);
void int4_close(struct int4 **d); /* stops the thread */
bool int4_ready(const struct int4 *d);
/* Tells whether the CPU is otherwise busy: the thread then uses 1/200 of the time, otherwise all of it. Callable from
 * any thread. */
void int4_set_cpu_busy(struct int4 *d, bool busy);
/* [n_layers] of [n_experts], or of one in a model without experts; NULL for layers without. Valid until close; use once
 * ready. */
struct expert *const *int4_experts(const struct int4 *d);
uint64_t int4_bytes(const struct int4 *d);        /* all experts */
uint64_t int4_expert_bytes(const struct int4 *d); /* one expert */

/* Whether experts of `size` bytes fit beside the weights into `have` bytes (0: unknown). ERR_MEMORY names needed and
 * free memory. Pure. */
int int4_fits(uint64_t size, uint64_t weights, uint64_t have, struct error *e);
/* Quantizes a row of n numbers: codes [(n + 127) / 128 * 64], one BF16 scale per 128, which may be negative. Pure. */
void int4_row(const float *x, int n, uint8_t *codes, uint16_t *scales);
