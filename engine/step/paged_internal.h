#pragma once
/* What the files of paged steps share: weights (paged_weights.c) and the walk (paged.c). */
#include "engine/layer/attention.h"
#include "engine/pipe/stage.h"
#include "engine/pipe/trace.h"
#include "engine/step/paged.h"
#include "gpu/ops.h"

enum { PAGE_IN, PAGE_OUT, PAGES }; /* an expert's: gate and up, then down */

/* Where an expert lies: in kept memory, or in a slot of the ring. Experts [0, kept) of each layer stay; those behind come anew in each
 * step, in order, and are counted from 0 on over layers and steps. The count-th of them has slot count % ring. */
struct paged_weights {
    struct machine *m;
    struct gpu *g;
    struct gpu_stream *link;
    const _Atomic int *stop;
    struct stage *stage;
    struct gpu_number *loaded, *freed; /* 2 * count + 1 + page: it is there; 2 * count + 1: it has served */
    struct layer *view;                /* [n_layers] all but routed experts, on the device */
    char **mem;                        /* [n_layers] of these */
    struct expert *table;              /* [n_layers, kept], then [ring]: the page table */
    char **kept_mem;                   /* [n_layers, kept] */
    char *pages[PAGES];                /* [ring] slots each */
    size_t page_bytes[PAGES];
    int n_layers, n_experts, n_moe, kept, ring;
    struct weights head; /* final norm and head on the device */
    char *head_mem;
    uint64_t sent, freed_until, base; /* counts: sent so far; whose slots will be free; of the layer's first that is not kept */
    uint64_t freed_said;
};
int paged_weights_open(struct paged_weights *w, struct machine *m, struct gpu *g, struct gpu_stream *link, const _Atomic int *stop, double share,
                       const _Atomic int *cancel, struct error *e);
void paged_weights_close(struct paged_weights *w);
/* The stream, its stage and numbers anew: what was under way is gone. */
int paged_weights_reset(struct paged_weights *w, struct error *e);
/* By the feeding thread. Sends those before `until` as far as slots are free or will be, by what was said to be freed. */
int paged_weights_send(struct paged_weights *w, uint64_t until);
/* The expert's view; `stream` waits for its pages. */
int paged_weights_use(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream, struct expert *view);
/* Behind what the stream has so far, the layer's experts before this one are used no more. */
int paged_weights_free(struct paged_weights *w, int expert, struct gpu_stream *stream);
