#pragma once
/* Splits an expert by NUMA node. Pure: views in, views out. */
#include "base/ops.h"
#include "cpu/numa.h"

enum { NUMA_SHARD_UNIT = 32 }; /* parts begin at multiples of this, so no kernel tile is split */
/* Returns a view of part of an expert: rows `inter` of gate and up, rows `hidden` of down (columns if it is
 * transposed). */
struct expert numa_shard_view(const struct expert *e, struct numa_part inter, struct numa_part hidden);
/* Lays m out without gaps at base + *at and advances *at; numa_shard_copy fills it. base NULL: only counts. */
struct mat numa_shard_layout(const struct mat *m, uint8_t *base, size_t *at);
struct expert numa_shard_layout_expert(const struct expert *e, uint8_t *base, size_t *at);
/* Copies rows [first, first + count) of from to to; the first call (first 0) copies all scales. Returns false if an FP8
 * NaN code was copied. */
bool numa_shard_copy(const struct mat *to, const struct mat *from, int first, int count);
bool numa_shard_copy_expert(const struct expert *to, const struct expert *from);
