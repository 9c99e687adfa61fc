#pragma once
/* How an expert is cut into parts for the memory nodes. Pure: views in, views out. */
#include "cpu/numa.h"
#include "engine/base/ops.h"

enum { SHARD_UNIT = 32 }; /* parts begin at multiples of this: no tile of the kernels is cut */
/* Part of an expert: rows `inter` of gate and up, rows `hidden` of down (columns where it is turned). A view of the same memory. */
struct expert shard_view(const struct expert *e, struct numa_part inter, struct numa_part hidden);
/* m laid out without gaps behind base + *at, which moves on; what shard_copy fills. base NULL: only counts. */
struct mat shard_lay(const struct mat *m, uint8_t *base, size_t *at);
struct expert shard_lay_expert(const struct expert *e, uint8_t *base, size_t *at);
/* Copies rows [first, first + count) of from to its like; all scales go with the first of them. Returns false when it met an
 * FP8 code that is not a number (the copy is made all the same). */
bool shard_copy(const struct mat *to, const struct mat *from, int first, int count);
bool shard_copy_expert(const struct expert *to, const struct expert *from);
