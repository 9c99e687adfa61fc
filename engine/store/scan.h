#pragma once
/* Checks FP8 weights for NaN codes (0x7F, 0xFF) before their first use; the fast kernels would read them as 480. Checking everything at open would take
 * minutes, so each weight is checked once, just before the first use. */
#include "engine/store/residency.h"
#include "engine/store/weights.h"

struct pool;
struct scan {
    const struct weights *w;
    struct pool *pool;
    struct residency *known; /* weights marked good are not checked again */
    uint64_t experts;        /* experts checked so far, i.e. read for the first time */
};
/* Check the weights that layer i is about to use: its dense weights, or the experts in ids[0..n) that are not -1. ERR_MODEL names file, tensor, row and
 * column. */
int scan_dense(struct scan *s, int layer, struct error *e);
int scan_experts(struct scan *s, int layer, const int32_t *ids, int n, struct error *e);
/* Returns whether all of these weights have been checked. ids NULL: the dense weights. Any thread. */
bool scan_seen(const struct scan *s, int layer, const int32_t *ids, int n);
/* Returns the first NaN code among n bytes, or NULL. */
const uint8_t *scan_e4m3(const uint8_t *p, size_t n);
