#pragma once
/* Throughput batches: prompts and answers of many sessions go through the layers together in paged batches
 * (exec/throughput/paged.h, CGOPipe). The policy search decides whether that pays off, how many sessions and which
 * micro-batches; --decode paged forces it. A decoding session has one row, a session in prefill as many rows as fit.
 * Decoding sessions are assigned to micro-batches by KV length (placement/batching.h). Sessions without room wait for
 * the next batch.
 *
 * All functions but throughput_open() and throughput_close() run on the engine thread. */
#include <stdbool.h>

#include "base/error.h"

struct engine;
struct announced_load;
struct throughput;
int throughput_open(struct engine *eng, struct error *e); /* eng->throughput stays NULL without a device */
void throughput_close(struct engine *eng);
/* Under the lock: whether queued or decoding sessions should run in a paged batch. HOLD: wait for announced prompts. */
enum throughput_next { THROUGHPUT_NONE, THROUGHPUT_HOLD, THROUGHPUT_RUN };
enum throughput_next throughput_ready(struct engine *eng);
void throughput_run(struct engine *eng); /* runs one batch; without the lock */
/* devices that the layers are distributed over; 0: paged batches are not open */
int throughput_devices(const struct engine *eng);
int throughput_micro_rows(const struct engine *eng); /* most decoding rows per micro-batch */
/* share of the experts that stays on the device; -1: paged batches are not open */
double throughput_resident_share(const struct engine *eng);
/* engine_announce() on the engine thread: returns how many to submit at once. NULL: all announced prompts are
 * submitted. */
int throughput_announce(struct engine *eng, const struct announced_load *load);
