#pragma once
/* Steps of many rows on devices that hold a part of the model (CGOPipe, paper B section 4.1 and appendix A). The rows go through each
 * layer in micro-batches. The device makes queries, keys and values of one; the processor, beside the keys and values of all sessions,
 * attends for the next; the device goes on behind attention with another, and has the routed experts of all. Their weights come
 * over the link meanwhile, a layer ahead of their use, two pages an expert, so many with each micro-batch as end with the layer: once a step,
 * however many rows there are. What is in no pinned memory goes there first, by threads of the stage's.
 *
 * Halves of all layers (norms, projections, routers, shared experts, dense feed-forwards) lie on the device for good, and as many
 * routed experts of each layer as are asked for or fit. A row has the same bits in any company: no operation takes more than OP_FEW of
 * several sessions, and a span that is longer goes by itself, so what is read of a prompt is to be cut where the prompt alone says. Only attention whose keys
 * and values are rows of heads (GQA) is built: paged_cannot says what is not.
 *
 * Several devices have layers in turn, each its share of memory and of links; a layer follows the one before it by some micro-batches, so that all
 * compute at once, and rows go from one to the next through host memory. No sum is parted, so the bits are one device's.
 *
 * Threads: all calls by the processor's owner. Each device is fed by a thread of its own while a step runs. */
#include "engine/step/mode.h"

enum { PAGED_MICROS = 4096 };
struct paged;
struct paged_options {
    int devices;  /* the first so many of the set have the layers in turn; 0: all */
    int micro;    /* rows of a micro-batch, at most */
    int rows;     /* of a step, at most */
    double share; /* of each layer's routed experts that stay on the device; < 0: as many as fit beside pages for two layers of the others */
};
/* NULL: such a model can be paged on these devices; else why not. */
const char *paged_cannot(const struct machine *m);
/* Weights that stay are read now, and all of them looked at. ERR_MEMORY says need and have; ERR_MODEL, ERR_RUNTIME, ERR_CANCELLED. */
int paged_open(struct paged **p, struct machine *m, enum dtype kv, const struct paged_options *o, const _Atomic int *cancel, struct error *e);
void paged_close(struct paged **p);
int paged_devices(const struct paged *p);
double paged_share(const struct paged *p); /* of the routed experts: what stays */
int paged_layers(const struct paged *p);   /* hundredths of a layer's other experts that the ring of pages holds at once, on the device that has least */

struct paged_span { /* n tokens of a session at positions pos .. pos + n - 1; the cache holds all before, but for those of spans before this */
    struct kv *kv;
    const int32_t *tokens;
    int pos, n, total; /* total: tokens of the whole sequence, as far as they are known */
    int micro;         /* which micro-batch: 0 or as the span before, or one more */
    bool tell;         /* logits of its last token are wanted */
};
struct paged_calls {
    /* Each wanted span in order, once all layers are done and its keys and values in its cache: the caller's from here on. logits: [vocab],
     * until it returns. Not in virtual time. */
    void (*tell)(void *ctx, int span, float *logits, int32_t top);
    int (*stop)(void *ctx); /* NULL, or asked before each micro-batch of a layer: non-zero ends the step with ERR_CANCELLED */
    void *ctx;
};
/* 0, or an error: what was not told by then is to be done again, by whoever can; caches have garbage behind their old ends. ERR_RUNTIME: the
 * device failed, and it is of no more use. */
int paged_run(struct paged *p, const struct paged_span *spans, int n_spans, const struct paged_calls *calls, const _Atomic int *cancel, struct error *e);
