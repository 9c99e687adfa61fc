#pragma once
/* FP8 has NaN codes (0x7F, 0xFF) that the fast kernels read as 480: a damaged file must not be computed with. Reading all
 * of it at opening would cost minutes, so each weight is looked at once, when it is first about to be used. */
#include "engine/store/residency.h"
#include "engine/store/weights.h"

struct pool;
struct scan {
    const struct weights *w;
    struct pool *pool;
    struct residency *known; /* what is good needs no second look */
    uint64_t experts;        /* looked at so far: each was read for the first time */
};
/* Looks at what layer i is about to use: its dense weights (ids NULL), or the experts in ids[0..n) that are not -1. ERR_MODEL names file,
 * tensor, row and column. */
int scan_dense(struct scan *s, int layer, struct error *e);
int scan_experts(struct scan *s, int layer, const int32_t *ids, int n, struct error *e);
/* Whether what the two above would look at was looked at before. Any thread. */
bool scan_seen(const struct scan *s, int layer, const int32_t *ids, int n);
/* The first NaN code among n bytes, or NULL. */
const uint8_t *scan_e4m3(const uint8_t *p, size_t n);
