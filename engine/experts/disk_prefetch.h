#pragma once
/* Prefetches experts from disk when weights do not fit in memory. Weights stay mapped and the kernel drops the least
 * recently used pages. The experts that a router selects are requested all at once, so that the disk sees many reads
 * instead of one page fault after another, and experts in memory run before those being read. While a layer computes,
 * the next layer's likely experts are read ahead.
 *
 * Memory is managed like a device's expert pool: slots per layer, kept by score (score.h). An evicted expert's pages
 * are the first that the kernel reclaims; until then nothing is lost. Several rows may need more experts at once than
 * there are slots. Everything here is advice to the kernel: results are the same without it. */
#include "engine/experts/lookahead.h"
#include "engine/experts/score.h"
#include "engine/weights/weight_state.h"
#include "engine/weights/weights.h"

struct disk_prefetch;
/* Returns whether the weights exceed the memory that this process may use. */
bool disk_prefetch_is_needed(const struct weights *w);
/* Starts the prefetch thread. w and known must outlive it. ERR_MEMORY, ERR_RUNTIME. */
int disk_prefetch_open(struct disk_prefetch **f, const struct weights *w, struct weight_state *known,
                       const struct score_policy *keep, struct error *e);
void disk_prefetch_close(struct disk_prefetch **f);
/* Requests the experts ids[0..n) (-1: skip), with which the layer is about to compute. Returns [n_experts] flags of
 * those not in memory yet, valid until the next call, or NULL if all are. */
const uint8_t *disk_prefetch_selected(struct disk_prefetch *f, int layer, const int32_t *ids, int n);
/* Updates scores with the routers' selections and tells the kernel which experts lost their slots. router [n,
 * n_experts] or NULL. */
void disk_prefetch_score(struct disk_prefetch *f, int layer, const int32_t *ids, const float *router, int n);
/* Returns whether predictions are worth a read: at least half of the recent ones were right, or a retry is due. */
bool disk_prefetch_is_useful(struct disk_prefetch *f);
/* Reads these experts ahead (ids NULL: the first n) at low priority, limited to a part of memory. */
void disk_prefetch_likely(struct disk_prefetch *f, int layer, const int32_t *ids, int n);
/* Reads ahead what a draft's tokens will need in all layers (paper E, section 3.3, one level down), first layers first,
 * at the lowest priority, limited to a part of memory. unlikely: also experts with less than an equal share of router
 * weight. Replaces the previous announcement. */
void disk_prefetch_announce(struct disk_prefetch *f, const struct lookahead *a, bool unlikely);
/* Reserves bytes of memory for others. */
void disk_prefetch_reserve(struct disk_prefetch *f, size_t bytes);
struct disk_prefetch_counts {
    /* experts: selected; not in memory then; read ahead; read ahead and then selected */
    uint64_t selected, missing, read_ahead, read_ahead_hits;
    /* read because a draft announced them; and then selected */
    uint64_t announced, announced_hits;
    uint64_t evicted;    /* lost their slots */
    int slots_per_layer; /* slots per layer */
};
void disk_prefetch_counts(struct disk_prefetch *f, struct disk_prefetch_counts *out);
