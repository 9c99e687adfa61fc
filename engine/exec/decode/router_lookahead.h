#pragma once
/* Router look-ahead: after a layer's attention block the routers of the next three layers run on the current residual
 * stream, on a stream of their own, and the selected experts are downloaded. A batch never waits: a prediction that is
 * not ready, or whose buffers are busy, is skipped. Not predicted: layers of another device, models with several
 * residual streams (the mix for the next layer is not known yet), and layers that select by a table. Engine thread
 * only. */
#include "engine/exec/decode/decode_state.h"
#include "engine/experts/predict.h"

enum { ROUTER_LOOKAHEAD_LAYERS = PREDICT_LAYERS + 1 };
struct router_lookahead {
    struct decode_device *d;
    bool is_active; /* for the running batch */
    struct gpu_stream *stream;
    struct gpu_timeline *done; /* one layer's predictions are in host memory */
    uint32_t n_done;
    float *saved[DECODE_MICRO_BATCHES][2]; /* device [DECODE_MAX_ROWS, hidden] by layer parity: the residual stream */
    uint32_t saved_busy[DECODE_MICRO_BATCHES][2];
    int saved_layer[DECODE_MICRO_BATCHES][2]; /* layer whose stream is saved; -1: none */
    struct work work;                         /* device; first_bad is ignored: the batch itself checks its rows */
    /* pinned [DECODE_MICRO_BATCHES, ROUTER_LOOKAHEAD_LAYERS, PREDICT_LAYERS, DECODE_MAX_ROWS * topk] */
    int32_t *predicted_ids;
    struct router_prediction {
        uint32_t done;
        int layer, n; /* n 0: none */
    } predictions[DECODE_MICRO_BATCHES][ROUTER_LOOKAHEAD_LAYERS][PREDICT_LAYERS];
};

/* close it after an error */
int router_lookahead_open(struct router_lookahead *g, struct decode_device *d, const _Atomic int *stop,
                          struct error *e);
void router_lookahead_close(struct router_lookahead *g);
/* Opens a new stream and timeline; drops all predictions. */
int router_lookahead_open_stream(struct router_lookahead *g, const _Atomic int *stop, struct error *e);
void router_lookahead_close_stream(struct router_lookahead *g);
void router_lookahead_abort(struct router_lookahead *g);

/* at the start of a batch; pays: an upload could help */
void router_lookahead_begin_batch(struct router_lookahead *g, bool pays);
/* Saves x; after a layer's attention block and before its shared expert (enqueued on d->main). */
int router_lookahead_save_rows(struct router_lookahead *g, int micro, int layer, const float *x, int n);
/* Runs the routers on the saved stream of `layer`, once `ready` has fired. */
int router_lookahead_run(struct router_lookahead *g, int micro, int layer, struct gpu_event *ready, int n);
/* Returns the experts predicted for `layer` when layer - distance was computed, [n * topk] unchecked ids; NULL: none,
 * or not ready. */
const int32_t *router_lookahead_get(const struct router_lookahead *g, int micro, int layer, int distance, int n);
/* Scores the predictions for `layer` against its selection, and drops them. */
void router_lookahead_judge(struct router_lookahead *g, int micro, int layer, const int32_t *ids, int n);
