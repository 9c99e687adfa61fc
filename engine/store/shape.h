#pragma once
/* A checkpoint that is not there: the weights of a config as addresses without memory behind them, for virtual time, where nothing is
 * read. Who reads them all the same stops the process. */
#include "engine/store/weights.h"

struct shape {
    struct weights w;
    void *mem; /* reserved addresses */
    size_t bytes;
};
/* The matrices of layers as `dense`, those of routed experts as `experts`: DT_BF16, DT_E4M3 (with float32 scales by the config's blocks),
 * or DT_E2M1 (with a power of two for 32 columns). Routers, embedding and head are BF16. ERR_MEMORY. */
int shape_open(struct shape *s, const struct config *c, enum dtype dense, enum dtype experts, struct error *e);
void shape_close(struct shape *s);
