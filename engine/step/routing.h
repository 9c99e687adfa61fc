#pragma once
/* --trace-routing: what routers chose, as lines of JSON that a replayer reads. The first says whose they are,
 *
 *     {"model":"ember","layers":5,"experts":16,"topk":4}
 *
 * the others one token in one layer each:
 *
 *     {"step":7,"chat":1,"prompt":false,"pos":41,"token":310,"layer":2,"ids":[3,0,9,12],"weights":[0.9,0.8,0.5,0.3],
 *      "near":[3,0,9,12,5,1,7,2],"chances":[0.2,0.2,0.15,0.1,0.1,0.1,0.1,0.05]}
 *
 * step: rows of one number went through the layers together; ids in falling order of choice, with what each is weighted by; near and
 * chances: the best 2 * topk by the router's score and their shares of it (score_near), where these are in host memory. A chat's number
 * may be used again when it is closed. What stream-loading prefills choose stays on the devices and is not there.
 *
 * The engine's thread alone. Lines of a step or batch that fails are dropped with it: each is gathered in a buffer of its own. */
#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/store/weights.h"

struct routing;
/* ERR_MEMORY. name: the model's. The file is an output as all are (file_out): a regular one is replaced at the end; what is none is
 * written to then. One that cannot be written is a warning, once. */
int routing_open(struct routing **r, const char *path, const struct weights *w, const char *name, struct error *e);
void routing_close(struct routing **r);

uint64_t routing_begin(struct routing *r); /* the number of a new step */
struct routing_rows {
    uint64_t step;
    const void *chat; /* its cache */
    bool prompt;
    int layer, n, pos; /* at positions pos .. pos + n - 1 */
    const int32_t *tokens, *ids;
    const float *weights, *router; /* router's logits [n, n_experts], NULL: not here */
};
void routing_add(struct routing *r, struct buf *lines, const struct routing_rows *rows);
void routing_end(struct routing *r, struct buf *lines, bool keep); /* empties it */
