#pragma once
/* Shared by the files that load weights: finds a tensor by the family's name, checks its shape, keeps the first
 * error. */
#include "engine/weights/weights.h"

struct loader {
    struct weights *w;
    struct error *e;
    int rc;               /* code of the first error; e has its text */
    int n_stacked;        /* experts in a tensor that holds several; 0: all of the model's */
    const int32_t *order; /* [order_cols] order of columns of the last matrix that had one (column_order.h) */
    int order_cols;
    bool is_optional_part; /* loading the MTP layer: its tensors stay unclaimed, and so do not count as the model's */
};

static inline int loader_stacked(const struct loader *l) {
    return l->n_stacked ? l->n_stacked : l->w->config.n_experts;
}
/* Fails with ERR_MODEL, naming file, tensor, dtype and shape, unless loading has failed before. Returns l->rc. */
int loader_fail(struct loader *l, const struct tensor *t, const char *what);
/* Fails with ERR_MODEL, naming a tensor that is absent, unless loading has failed before. */
void loader_missing(struct loader *l, const char *pattern, int layer, int expert, const char *ending);
/* Writes a tensor's name: the pattern with the numbers of layer and expert, and the ending. */
__attribute__((nonnull)) void loader_name(char *buf, size_t cap, const char *pattern, int layer, int expert,
                                          const char *ending);
/* Finds a tensor and marks it as claimed. NULL: absent. */
struct tensor *loader_find(struct loader *l, const char *pattern, int layer, int expert, const char *ending);
/* Returns whether t has the shape that the config requires: rows x cols (cols 0: a vector), once or per expert,
 * followed by the `inner` dimensions that the format adds to a row. llama.cpp and MLX store the number of heads as a
 * dimension; llama.cpp drops the dimension of a single row. */
bool loader_shape_fits(const struct loader *l, const struct tensor *t, const struct param *p, int rows, int cols,
                       int inner);
/* Fails unless the shape fits. */
bool loader_has_shape(struct loader *l, const struct tensor *t, const struct param *p, int rows, int cols, int inner);
/* Returns memory for repacked weights, and counts it. NULL: loading has failed. */
void *loader_alloc_repacked(struct loader *l, size_t size);
