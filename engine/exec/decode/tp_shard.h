#pragma once
/* Tensor parallel: which shard of every layer each device (rank) holds. Attention is split by heads: rows of q, k, v
 * (MLA: of the matrices that expand queries and the latent; the latent is on all ranks), columns of o, and the KV
 * cache. A dense FFN or shared expert is split by inter: rows of gate and up, columns of down. Norms and routers are
 * replicated. A shard is thus a smaller model whose outputs are partial sums. Megatron-LM (Shoeybi et al. 2019),
 * section 3. Pure. */
#include "engine/transfer/copy_runs.h"
#include "engine/weights/weights.h"
#include "gpu/gpu.h"

struct tp_shard {
    int rank;
    int head0, heads;       /* query heads */
    int kv_head0, kv_heads; /* GQA: KV heads of the shard; MLA: all */
    int dense0, dense;      /* range of dense_inter; may be empty */
    int shared0, shared;    /* range of shared_inter */
};

/* Splits into `ranks` shards. Cuts respect scale and format blocks, and each rank has a KV head. Returns false with the
 * reason in `why` if a model of this kind or these shapes cannot be split. */
bool tp_shard_split(const struct weights *w, int ranks, struct tp_shard out[GPU_MAX], char *why, size_t cap);
/* Returns the config of the smaller model that a shard is. */
struct config tp_shard_config(const struct config *c, const struct tp_shard *s);
/* As copy_ranges_list of MODULE_LAYER, for a shard with its config; column shards are strided ranges. */
int tp_shard_ranges(const struct config *shard_config, const struct tp_shard *s, const struct weights *w, int layer,
                    struct layer *view, struct copy_range *out);
