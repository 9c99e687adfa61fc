#pragma once
/* Whether a product of many tokens is one of cuBLAS or one of hearth's own tiles. Pure: no card, no CUDA header. */
#include <stdbool.h>

/* A product that both can compute. */
struct cuda_path {
    int n, rows;    /* tokens, outputs */
    int n_sms;      /* multiprocessors of the card */
    bool is_routed; /* the group of a routed expert: own tiles compute many groups in one launch, cuBLAS only this one
                     */
    bool expands;   /* cuBLAS needs a BF16 copy of the weights */
};
bool cuda_path_is_blas(const struct cuda_path *p);
/* Tiles of 128 x 128 that the product has, and so the multiprocessors that it occupies. */
long cuda_path_tiles(int n, int rows);
