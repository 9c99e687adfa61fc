#pragma once
/* Weights that do not fit in memory stay mapped, and the kernel drops what was not used for longest. What a layer's router
 * chose is then asked for all at once, so that the disk sees many reads together instead of one fault after the other, and
 * experts that are there are begun before those that are still being read. While a layer computes, what the next one will
 * probably choose is read ahead.
 *
 * Memory is a cache of experts here, as a device's is: so many slots of each layer, kept by a score (cache/score.h). An expert that has to
 * leave them is the first that the kernel takes when it needs pages; as long as it needs none nothing is lost. What several rows ask for at
 * once may be more than there are slots. Everything here is advice: without it the text is the same. */
#include "engine/cache/lookahead.h"
#include "engine/cache/score.h"
#include "engine/store/residency.h"
#include "engine/store/weights.h"

struct fetch;
/* Whether the weights are more than this process may keep in memory. */
bool fetch_needed(const struct weights *w);
/* One thread of its own that asks and waits for reads. w and known must outlive it. ERR_MEMORY, ERR_RUNTIME. */
int fetch_open(struct fetch **f, const struct weights *w, struct residency *known, const struct score_policy *keep, struct error *e);
void fetch_close(struct fetch **f);
/* Layer `layer` is about to compute with the experts ids[0..n), -1: somebody else does. Returns [n_experts] flags of those that are not in memory
 * yet, valid until the next call, or NULL when all are. */
const uint8_t *fetch_chosen(struct fetch *f, int layer, const int32_t *ids, int n);
/* What the layer's routers said of these rows; whose slots are taken is told to the kernel. router [n, n_experts] or NULL. */
void fetch_seen(struct fetch *f, int layer, const int32_t *ids, const float *router, int n);
/* Whether guesses are worth a read: more than half of the last ones were right, or it is time to see whether they are. */
bool fetch_wants(struct fetch *f);
/* It will probably want these soon (ids NULL: the first n): read when nothing more urgent is to be, within a part of the memory. */
void fetch_likely(struct fetch *f, int layer, const int32_t *ids, int n);
/* A draft announces what its tokens will want of all layers (paper E, section 3.3, one level down): those that are not in memory are read when nothing more
 * urgent is to be, the first layer's first, within a part of the memory. unlikely: also those that a router gives less than their share. Each word takes the
 * place of the one before. */
void fetch_announced(struct fetch *f, const struct lookahead *a, bool unlikely);
/* So many bytes of memory are somebody else's. */
void fetch_reserve(struct fetch *f, size_t bytes);
struct fetch_counts {
    uint64_t chosen, missing, likely, guessed; /* experts: asked for, not in memory then; read ahead, and then chosen */
    uint64_t announced, foretold;              /* read since a draft announced them, and then chosen */
    uint64_t left;                             /* had to leave their slots */
    int room;                                  /* slots of each layer */
};
void fetch_count(struct fetch *f, struct fetch_counts *out);
