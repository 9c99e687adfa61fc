#pragma once
/* Throughput decode on devices that hold only part of the model (CGOPipe, paper B section 4.1 and appendix A). Rows go
 * through each layer in micro-batches. The device computes queries, keys and values of one; the CPU, which has the KV
 * of all sessions, attends for the next; the device runs output projection and routed experts of another. Expert
 * weights are uploaded one layer ahead, two pages per expert, spread evenly over the micro-batches of a layer: once per
 * batch, however many rows it has. Unpinned weights go through the staging threads. In a model without experts each
 * layer's dense FFN takes the place of experts: two pages, uploaded one layer ahead.
 *
 * Everything but routed experts stays on the device, and so do as many routed experts per layer as requested or as fit.
 * So dense layers before layers of experts stay: a byte that stays saves one over the link, whatever weight it is of.
 * A row has the same bits in any batch: operations take at most BATCH_INVARIANT_ROWS rows of several sessions, and a
 * longer span runs alone, so callers must cut prompts at positions that depend on the prompt only.
 *
 * Any attention: the device makes what attention reads of the rows (block_apart.h): queries, keys and values; of MLA
 * queries and latents, whose products with W_k and W_v the CPU computes; of mixers with states the inputs of the step,
 * since states are with the sessions as keys are. Where keys are made of several tokens, or n-grams are added before a
 * layer, a device would need the session's state for that: there the CPU computes the whole attention block. The rows
 * that layers pass on (residual streams, kept rows) are on the devices, and go through host memory with the stream.
 * The start of a prompt, its first span if that is long, sees no other keys than its own: the device attends for it,
 * and its keys and states go to the session.
 *
 * Several devices hold the layers round-robin. A layer follows the one before it by some micro-batches, so that all
 * devices compute at once; rows move between devices through host memory. No sum is split, so results equal one
 * device's.
 *
 * Threads: all calls by the engine thread. During a batch each device has a feeding thread of its own. */
#include "engine/exec/prefill.h"
#include "engine/placement/search.h"

enum { PAGED_MAX_MICRO_BATCHES = 4096 };
struct paged;
struct paged_options {
    int devices; /* use the first `devices` of the set; 0: all */
    int micro;   /* rows per micro-batch, at most */
    int rows;    /* rows per batch, at most */
    /* fraction of each layer's routed experts (or of the dense FFNs) that stays on the device; < 0: as many as fit
     * beside pages for two layers */
    double resident_fraction;
};
/* Returns NULL if the model can be paged on these devices, else the reason. */
const char *paged_why_not(const struct runtime *m);
/* What rows of the model cost in paged batches, for search_in.rows. kv: the cache's dtype. */
void paged_search_rows(const struct config *c, enum dtype kv, struct search_rows *out);
/* Loads resident weights and scans all of them. ERR_MEMORY (with need and have), ERR_MODEL, ERR_RUNTIME,
 * ERR_CANCELLED. */
int paged_open(struct paged **p, struct runtime *m, enum dtype kv, const struct paged_options *o,
               const _Atomic int *cancel, struct error *e);
void paged_close(struct paged **p);
int paged_n_devices(const struct paged *p);
bool paged_pages_ffns(const struct paged *p);          /* dense FFNs instead of routed experts */
double paged_resident_fraction(const struct paged *p); /* fraction of those that is resident */
/* size of the page ring in percent of a layer's streamed experts, smallest of all devices */
int paged_ring_percent(const struct paged *p);

/* n tokens of a session at positions pos .. pos + n - 1; the cache holds all earlier positions except those of earlier
 * spans */
struct paged_span {
    struct kv *kv;
    const int32_t *tokens;
    int pos, n, total; /* total: known length of the whole sequence */
    int n_before;      /* tokens of it that precede these in memory: config_lookback_at(pos) */
    int micro;         /* micro-batch: 0, that of the previous span, or one more */
    bool want_logits;  /* return logits of its last token */
};
struct paged_calls {
    /* Receives each wanted span in order, after all layers, with its KV stored. logits [vocab] may be modified and are
     * valid until it returns. Not called in virtual time. */
    void (*on_logits)(void *ctx, int span, float *logits, int32_t top);
    /* NULL, or polled before each micro-batch of a layer: non-zero ends the batch with ERR_CANCELLED */
    int (*should_stop)(void *ctx);
    void *ctx;
};
/* Runs one batch. After an error, spans that were not reported must be run again elsewhere; KV rows beyond their old
 * ends are garbage. ERR_RUNTIME: the device failed, close p. */
int paged_run(struct paged *p, const struct paged_span *spans, int n_spans, const struct paged_calls *calls,
              const _Atomic int *cancel, struct error *e);
