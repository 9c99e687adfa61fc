#pragma once
/* The source of a matrix, for all loaders: the parameter that is being loaded, its tensors, and the layout of its
 * scales. */
#include "engine/weights/loader.h"

/* A parameter whose matrix is being loaded. */
struct matrix_source {
    struct loader *l;
    const struct param *p;
    const char *pattern; /* pattern of the tensors' names */
    int layer, expert;
    int rows; /* rows of the stored tensor, which may hold more matrices */
};
/* loader_find with this parameter's name */
struct tensor *matrix_find(const struct matrix_source *s, const char *ending);

/* Returns the rows and columns that the parameter has of its stored matrix. */
struct mat matrix_part(const struct param *p, struct mat stored);
/* Derives the scale layout of m, a whole matrix, from the shape of the scale tensor: per tensor, per row, per block, or
 * per group of a row's columns. */
void matrix_attach_scale(const struct matrix_source *src, struct mat *m, struct tensor *s);
/* Views two E2M1 codes per byte with scales of 32 columns (E8M0) or of 16 (E4M3). t: [rows, cols / 2]. */
struct mat matrix_view_fp4(const struct matrix_source *src, const struct tensor *t, struct tensor *s);
/* Views codes as matrix_view_fp4() does, after the shape of t has been checked. */
struct mat matrix_view_codes(const struct matrix_source *src, const struct tensor *t, struct tensor *s);
