#pragma once
/* A checkpoint without data, for virtual time: the weights of a config as reserved addresses without memory. A read of
 * them faults. */
#include "engine/model/known.h"
#include "engine/weights/weights.h"

struct shape_only {
    struct weights w;
    void *mem; /* reserved addresses */
    size_t bytes;
};
/* Builds the weights: layer matrices as `dense`, routed experts as `experts`: DT_BF16, DT_E4M3 (float32 scales by the
 * config's blocks), DT_E2M1 (a power-of-two scale per 32 columns), DT_I4 (a BF16 scale per 32 columns), or a format of
 * GGUF. Routers, embedding and head are BF16. ERR_MEMORY. */
int shape_only_open(struct shape_only *s, const struct config *c, enum dtype dense, enum dtype experts,
                    struct error *e);
int shape_only_open_as(struct shape_only *s, const struct config *c, const struct known_format *f, struct error *e);
void shape_only_close(struct shape_only *s);
