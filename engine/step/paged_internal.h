#pragma once
/* What the files of paged steps share: weights (paged_weights.c), a device's part (paged_device.c) and the walk (paged.c). */
#include <pthread.h>

#include "engine/layer/attention.h"
#include "engine/pipe/stage.h"
#include "engine/pipe/trace.h"
#include "engine/sched/search.h"
#include "engine/step/paged.h"
#include "gpu/ops.h"

enum { PAGE_IN, PAGE_OUT, PAGES }; /* an expert's: gate and up, then down */

/* Where an expert of this device's layers lies: in kept memory, or in a slot of the ring. Experts [0, kept) of a layer stay; those behind come
 * anew in each step, in order, and are counted from 0 on over layers and steps. The count-th of them has slot count % ring. */
struct paged_weights {
    struct machine *m;
    struct gpu *g;
    struct gpu_stream *link;
    const _Atomic int *stop;
    struct stage *stage;
    int rank, ranks;                   /* layers l with l % ranks == rank are this device's, the head that of the last one's */
    struct gpu_number *loaded, *freed; /* 2 * count + 1 + page: it is there; 2 * count + 1: it has served */
    struct layer *view;                /* [n_layers] all but routed experts, on the device */
    char **mem;                        /* [n_layers] of these */
    int *kept, *kept_at;               /* [n_layers] experts that stay, and where they begin in the table */
    struct expert *table;              /* [n_kept], then [ring]: the page table */
    char **kept_mem;                   /* [n_kept] */
    char *pages[PAGES];                /* [ring] slots each */
    size_t page_bytes[PAGES];
    int n_layers, n_experts, n_moe, n_kept, ring; /* n_moe: of this device */
    struct weights head;                          /* final norm and head on the device that has it */
    char *head_mem;
    int next_layer, next_expert;      /* of the count-th, sent next */
    uint64_t sent, freed_until, base; /* counts: sent so far; whose slots will be free; of the layer's first that is not kept */
};
int paged_weights_open(struct paged_weights *w, struct machine *m, struct gpu *g, struct gpu_stream *link, const _Atomic int *stop, int rank, int ranks,
                       double share, const _Atomic int *cancel, struct error *e);
void paged_weights_close(struct paged_weights *w);
/* The stream, its stage and numbers anew: what was under way is gone. */
int paged_weights_reset(struct paged_weights *w, struct error *e);
bool paged_weights_last(const struct paged_weights *w); /* this device has the last layer, and the head */
/* By the feeding thread. The layer's experts that come anew, and those of the device's next layer with experts, maybe the next step's first. */
uint64_t paged_weights_rest(const struct paged_weights *w, int layer), paged_weights_next(const struct paged_weights *w, int layer);
/* Sends those before `until` as far as slots are free or will be, by what was said to be freed. */
int paged_weights_send(struct paged_weights *w, uint64_t until);
/* The expert's view; `stream` waits for its pages. */
int paged_weights_use(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream, struct expert *view);
/* Behind what the stream has so far, the layer's experts before this one are used no more. */
int paged_weights_free(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream);

/* The device makes queries of so many micro-batches ahead of the one whose results it goes on with; between them the processor has one
 * more under way. */
enum { PAGED_BUFFERS = SEARCH_BEHIND, PAGED_AHEAD = PAGED_BUFFERS - 1 };

struct micro_batch {
    int row, n; /* its rows among those of the step */
    int span, n_spans, piece, n_pieces;
};
/* Rows that go through a matrix together: spans of at most OP_FEW rows, as many as make no more, or one longer span alone, so that
 * no row's bits hang on another session's. */
struct piece {
    int at, n; /* of the micro-batch */
    bool alone;
};
struct rows_buffer { /* pinned host memory, of a micro-batch between device and processor */
    float *q, *att;  /* [micro, n_heads * head_dim], [micro, n_heads * v_dim] */
    char *kv;        /* its rows of the planes, one plane after the other */
};

/* A device and its layers. Its units are micro-batches of these, layer after layer, counted from 0 on in a step. */
struct paged_device {
    struct paged *p;
    int rank, n_layers; /* layers rank, rank + n_dev, ..., so many */
    struct gpu *g;
    struct gpu_stream *main, *link;
    struct paged_weights w;
    struct work work;                     /* of a micro-batch */
    float *x, *head_x, *head_xn, *logits; /* [rows, hidden], [OP_FEW, hidden] twice, [OP_FEW, vocab]: these three where the head is */
    int32_t *pos, *tokens, *length;       /* [rows] */
    char *planes;                         /* a micro-batch's rows of the planes of a layer */
    struct kv_layer *cache;               /* [n_layers of the model] these, as each layer has them */
    int32_t *offset, *token;              /* [n_experts + 1], [micro * topk] */
    float *weight;                        /* [micro * topk] */
    struct rows_buffer buffer[PAGED_BUFFERS];
    float *host_logits;                                      /* pinned: [OP_FEW, vocab] */
    int32_t *host_ids, *host_bad;                            /* pinned: [micro, topk], and the mark of what is not finite */
    struct gpu_number *arrived, *answered, *routed, *passed; /* units, counted over steps: asked, attended, whose choices are there, handed on */
    uint32_t n_routed;                                       /* written */
    struct piece *run;                                       /* [paged_runs(micro)] of the micro-batch whose experts are under way */
    int32_t *count;                                          /* [paged_runs(micro), n_experts] */
    int n_runs;
    pthread_t thread;
    int rc; /* the feeding thread's */
};
struct paged {
    struct machine *m;
    const struct config *c;
    struct paged_options o;
    enum dtype kv;
    struct paged_device dev[GPU_MAX];
    int n_dev;
    _Atomic int stop;                              /* cancel of all streams */
    float *host_x;                                 /* pinned: [rows, hidden], embedded, then from device to device */
    int32_t *host_pos, *host_tokens, *host_length; /* pinned: [rows] */
    size_t plane_at[CACHE_PLANES + 1];             /* of a plane's rows in rows_buffer.kv and planes */
    uint32_t at;                                   /* numbers before this step */
    /* Of the step: */
    struct micro_batch *micro; /* [PAGED_MICROS] */
    struct piece *piece;       /* [rows] */
    int n_micros, n, stagger;  /* stagger: so many micro-batches is a layer behind the one before it */
    const struct paged_span *spans;
    int n_spans;
    const struct paged_calls *calls;
    const _Atomic int *cancel;
};

static inline int paged_layer(const struct paged_device *d, int unit) { return d->rank + unit / d->p->n_micros * d->p->n_dev; }
static inline struct micro_batch *paged_micro(const struct paged_device *d, int unit) { return &d->p->micro[unit % d->p->n_micros]; }
static inline uint32_t paged_number(const struct paged_device *d, int unit) { return d->p->at + (uint32_t)unit + 1; }
/* When it is its turn. Each queue, the processor's too, has its units in this order, so that nobody waits for who comes behind him. */
static inline int paged_turn(const struct paged_device *d, int unit) { return paged_layer(d, unit) * d->p->stagger + unit % d->p->n_micros; }
static inline uint32_t paged_end(const struct paged *p) { return p->at + (uint32_t)(p->c->n_layers * p->n_micros) + 1; } /* of a step's numbers */
size_t paged_runs(int micro);                                                                                            /* that so many rows may have */
/* The planes of a layer for a micro-batch's rows, in memory that begins at `mem`; returns how many. */
int paged_planes(const struct paged *p, int layer, char *mem, struct kv_plane out[CACHE_PLANES]);

/* d->p, rank and g are set. After an error the caller closes it. */
int paged_device_open(struct paged_device *d, const _Atomic int *cancel, struct error *e);
void paged_device_close(struct paged_device *d);
int paged_device_numbers(struct paged_device *d, struct error *e); /* other ones */
void paged_device_break(struct paged_device *d);
int paged_device_feed(struct paged_device *d); /* a step's work, by a thread of its own */
int paged_device_head(struct paged_device *d, const int *which, const int *row, int n, struct error *e);
