#pragma once
/* Lists the host memory of a module as ranges, and merges them into runs, each of which one copy uploads to a slot.
 * Pure; stage.h performs the copies. */
#include "engine/weights/params.h"

struct copy_range {
    const char *host;
    size_t bytes;
    const void **field; /* the pointer field that the range belongs to */
    size_t at;          /* set by copy_runs_merge: offset in the slot, a multiple of 16 from 4 KiB */
    size_t row, pitch;  /* 0: contiguous; else rows of `row` bytes, `pitch` apart on the host: a run of its own */
};
struct copy_run { /* one copy */
    const char *host;
    size_t bytes, at;  /* at: offset in the slot, a multiple of 256, where rows are contiguous */
    size_t row, pitch; /* as in copy_range */
};
/* Merges n ranges into runs [n]; *bytes: their size in the slot. Ranges that touch or overlap become one run, unless a
 * range of 4 KiB or more would then not be aligned to 16 bytes on the device. Sorts the ranges in place, sets their
 * `at`, and returns the number of runs. */
int copy_runs_merge(struct copy_range *r, int n, struct copy_run *runs, size_t *bytes);
/* bytes that n <= COPY_RANGES_MAX ranges occupy, a multiple of 256 */
size_t copy_ranges_bytes(struct copy_range *r, int n);
/* Copies the fields of these modules from src to view, both struct layer (MODULE_EXPERT: struct expert), and lists
 * their host memory in out [COPY_RANGES_MAX], with the addresses of the pointers in view, which the caller then points
 * to device memory. Leaves out what stays on the host. Returns the number of ranges. */
enum { COPY_RANGES_MAX = 3 * PARAMS_MAX };
int copy_ranges_list(const struct config *c, int layer, unsigned modules, const void *src, void *view,
                     struct copy_range *out);
/* Copies and lists an expert of a layer, as copy_ranges_list() does a layer. The list of its parameters, which all
 * experts of a layer share, is kept in *p (zero at first), for one config. */
struct expert_params {
    int n, end_layer; /* of layer end_layer - 1; 0: none */
    struct param list[EXPERT_PARAMS];
};
int copy_ranges_list_expert(struct expert_params *p, const struct config *c, int layer, const struct expert *src,
                            struct expert *view, struct copy_range *out);
