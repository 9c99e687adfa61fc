#pragma once
/* --trace-routing: the routers' selections as lines of JSON, which a replayer reads. The first line describes the
 * model:
 *
 *     {"model":"ember","layers":5,"experts":16,"topk":4}
 *
 * Each other line is one token in one layer:
 *
 *     {"step":7,"chat":1,"prompt":false,"pos":41,"token":310,"layer":2,"ids":[3,0,9,12],"weights":[0.9,0.8,0.5,0.3],
 *      "near":[3,0,9,12,5,1,7,2],"chances":[0.2,0.2,0.15,0.1,0.1,0.1,0.1,0.05]}
 *
 * step: rows with the same number went through the layers together. ids: in falling order of preference, with their
 * weights. near and chances: the best 2 * topk by router score and their normalized scores (score_best), if the logits
 * are in host memory. A chat's number may be reused after it is closed. Stream-loading prefills keep their selections
 * on the devices and are not traced.
 *
 * Engine thread only. Lines are collected per batch, and dropped if the batch fails. */
#include "base/buf.h"
#include "base/error.h"
#include "engine/weights/weights.h"

struct routing_trace;
/* Opens a trace of the model `name`. A regular file is replaced on close (file_out); anything else is written to on
 * close. A file that cannot be written is one warning. ERR_MEMORY. */
int routing_trace_open(struct routing_trace **r, const char *path, const struct weights *w, const char *name,
                       struct error *e);
void routing_trace_close(struct routing_trace **r);

/* r may be NULL in all of these: then they do nothing. A failure is one warning; later lines are dropped. */
/* returns the number of a new batch, `step` in the file; 0 without a trace */
uint64_t routing_trace_begin(struct routing_trace *r);
struct routing_trace_rows {
    uint64_t batch;
    const void *chat; /* its KV cache: identifies the chat */
    bool is_prefill;
    int layer, n, pos;             /* positions pos .. pos + n - 1 */
    const int32_t *tokens, *ids;   /* [n], [n, topk]; weights [n, topk] */
    const float *weights, *router; /* router: logits [n, config_n_choices()]; NULL: not in host memory */
};
/* Appends a line per row to the batch's lines, owned by the caller. */
void routing_trace_add(struct routing_trace *r, struct buf *lines, const struct routing_trace_rows *rows);
/* appends the lines if keep; empties them */
void routing_trace_end(struct routing_trace *r, struct buf *lines, bool keep);
