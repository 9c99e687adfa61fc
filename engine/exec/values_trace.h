#pragma once
/* --trace-values: what each stage of each layer computes on the CPU, for comparison with a reference implementation.
 * One line of JSON a stage:
 *
 *     {"layer":0,"stage":"q","shape":[4,128],"checksum":"7d0f3a2b91c4e655","sum":-12.5,"first":[0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8]}
 *
 * shape: rows of the batch, and columns. checksum: of the float32 bits (hash64). first: of the first row. Numbers that
 * are not finite are null. A batch begins with the stage "embedding"; that, "final_norm" and "logits" have layer -1.
 * op_show() names the stages. Engine thread only. */
#include "base/error.h"
#include "base/ops.h"

struct values_trace;
/* Opens a trace of what x computes (trace_file.h). ERR_MEMORY. */
int values_trace_open(struct values_trace **t, const char *path, struct exec *x, struct error *e);
void values_trace_close(struct values_trace **t); /* x runs no operation afterwards */
