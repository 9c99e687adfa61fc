#pragma once
/* Checks FP8 weights for NaN codes (0x7F, 0xFF) before their first use; the fast kernels would read them as 480.
 * Checking everything at open would take minutes, so each weight is checked once, just before the first use. */
#include "engine/weights/weight_state.h"
#include "engine/weights/weights.h"

struct pool;
struct nan_scan {
    const struct weights *w;
    struct pool *pool;
    struct weight_state *known; /* weights marked good are not checked again */
    uint64_t n_experts_scanned; /* experts that scans have read so far, mostly for the first time */
};
/* Check the weights that a layer is about to use: its dense weights, or the experts in ids[0..n) that are not -1,
 * unless they have been checked. Run on the pool; called by its owner. ERR_MODEL names file, tensor, row and column;
 * the weights then stay unchecked, so that the next use fails too. */
int nan_scan_dense(struct nan_scan *s, int layer, struct error *e);
int nan_scan_experts(struct nan_scan *s, int layer, const int32_t *ids, int n, struct error *e);
/* Returns whether all of these weights have been checked and are good. ids NULL: the dense weights. Any thread. */
bool nan_scan_is_done(const struct nan_scan *s, int layer, const int32_t *ids, int n);
/* Returns the first NaN code among n bytes, or NULL. */
const uint8_t *nan_scan_e4m3(const uint8_t *p, size_t n);
