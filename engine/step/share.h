#pragma once
/* Tensor parallel: what each of several devices (ranks) has of every layer. Heads are parted with the rows of q, k and v (of MLA: of
 * what expands queries and the latent, which all ranks keep whole) and the columns of o, and with them keys and values; a dense or shared
 * feed-forward by its inter, rows of gate and up, columns of down. Norms and routers are everybody's. So a rank is a smaller model: what
 * its attention and its feed-forward give are parts of sums. Megatron-LM (Shoeybi et al. 2019), section 3. Pure. */
#include "engine/pipe/pipe.h"

struct share {
    int rank;
    int head0, heads;       /* of queries */
    int kv_head0, kv_heads; /* GQA: of the cache; MLA: all */
    int dense0, dense;      /* of dense_inter; none: another rank has them */
    int shared0, shared;    /* of shared_inter */
};

/* For so many ranks; cuts lie between blocks of scales and of formats, and each rank has a KV head. False, and why: a model of that
 * kind, or of these shapes, cannot be parted so. */
bool share_cut(const struct weights *w, int ranks, struct share out[GPU_MAX], char *why, size_t cap);
struct config share_config(const struct config *c, const struct share *s);
/* As module_ranges of MODULE_LAYER, c being the share's; columns are rows that lie apart there. */
int share_ranges(const struct config *c, const struct share *s, const struct weights *w, int layer, struct layer *view, struct pipe_range *out);
