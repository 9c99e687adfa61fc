#pragma once
/* Router look-ahead: after a layer's attention block the routers of the next three layers run on the current residual stream, on
 * a stream of their own, and the selected experts are downloaded. A batch never waits: a prediction that is not ready, or whose
 * buffers are busy, is skipped. Not predicted: layers of another device, models with several residual streams (the mix for the
 * next layer is not known yet), and layers that select by a table. Engine thread only. */
#include "engine/cache/predict.h"
#include "engine/step/internal.h"

enum { GUESS_LAYERS = PREDICT_FAR + 1 };
struct step_guess {
    struct step_device *d;
    bool on; /* for the running batch */
    struct gpu_stream *stream;
    struct gpu_number *done; /* one layer's predictions are in host memory */
    uint32_t n_done;
    void *mem[10];               /* device */
    float *from[STEP_MICROS][2]; /* device [STEP_ROWS, hidden] by layer parity: the residual stream */
    uint32_t busy[STEP_MICROS][2];
    int at[STEP_MICROS][2]; /* layer whose stream is saved; -1: none */
    struct work work;       /* device, only what block_route needs; not opened by work_open */
    _Atomic int *bad;       /* device */
    int32_t *said;          /* pinned [STEP_MICROS, GUESS_LAYERS, PREDICT_FAR, STEP_ROWS * topk] */
    struct step_said {
        uint32_t done;
        int layer, n; /* n 0: none */
    } made[STEP_MICROS][GUESS_LAYERS][PREDICT_FAR];
};

int guess_open(struct step_guess *g, struct step_device *d, const _Atomic int *stop, struct error *e); /* close it after an error */
void guess_close(struct step_guess *g);
/* Opens a new stream and timeline; drops all predictions. */
int guess_open_queue(struct step_guess *g, const _Atomic int *stop, struct error *e);
void guess_close_queue(struct step_guess *g);
void guess_break(struct step_guess *g);

void guess_begin(struct step_guess *g, bool pays); /* at the start of a batch; pays: an upload could help */
/* Saves x; after a layer's attention block and before its shared expert (enqueued on d->main). */
int guess_keep(struct step_guess *g, int micro, int layer, const float *x, int n);
/* Runs the routers on the saved stream of `layer`, once `ready` has fired. */
int guess_ask(struct step_guess *g, int micro, int layer, struct gpu_event *ready, int n);
/* Returns the experts predicted for `layer` that many layers before, [n * topk] unchecked ids; NULL: none, or not ready. */
const int32_t *guess_of(const struct step_guess *g, int micro, int layer, int distance, int n);
/* Scores the predictions for `layer` against its selection, and drops them. */
void guess_chosen(struct step_guess *g, int micro, int layer, const int32_t *ids, int n);
