#pragma once
/* Loads a weight matrix in any published layout: plain, FP8 and INT8 with scales, FP4 (MXFP4, NVFP4), packed integers (packed.h). The tensors' names, dtypes
 * and shapes decide; config.json supplies what they leave open. */
#include "engine/weights/loader.h"

/* A parameter whose matrix is being loaded. */
struct matrix_source {
    struct loader *l;
    const struct param *p;
    const char *pattern; /* pattern of the tensors' names */
    int layer, expert;
    int rows; /* rows of the stored tensor, which may hold more matrices */
};
struct tensor *matrix_find(const struct matrix_source *s, const char *ending); /* loader_find with this parameter's name */

/* Returns a view of the parameter's matrix, all zero if it is absent and optional. On failure l->rc is set. */
struct mat matrix_load(struct loader *l, const struct param *p, const char *pattern, int layer, int expert);

/* Derives the scale layout of m, a whole matrix, from the shape of the scale tensor: per tensor, per row, per block, or per group of a row's columns. */
void matrix_attach_scale(const struct matrix_source *src, struct mat *m, struct tensor *s);
/* Views two E2M1 codes per byte with scales of 32 columns (E8M0) or of 16 (E4M3). t: [rows, cols / 2]. */
struct mat matrix_view_fp4(const struct matrix_source *src, const struct tensor *t, struct tensor *s);
