#pragma once
/* A device's routers asked ahead: after a layer's attention half the routers of the next three are tried on the residual stream as it
 * is then, on a stream of its own beside everything else, and what they say comes to host memory. A step never waits for that: a
 * guess that is not there yet, or whose buffers are still in use, is none. Layers of another device are not guessed, nor models with
 * several residual streams, whose next half is mixed in a way that is not known yet, nor layers that choose by a table.
 *
 * The engine's thread alone. */
#include "engine/cache/predict.h"
#include "engine/step/internal.h"

enum { GUESS_LAYERS = PREDICT_FAR + 1 };
struct step_guess {
    struct step_device *d;
    bool on; /* in the step that runs */
    struct gpu_stream *stream;
    struct gpu_number *done; /* what one layer's asking gave is in host memory */
    uint32_t n_done;
    void *mem[10];               /* device */
    float *from[STEP_MICROS][2]; /* device [STEP_ROWS, hidden] by the layer's parity: the residual stream */
    uint32_t busy[STEP_MICROS][2];
    int at[STEP_MICROS][2]; /* whose that is; -1: nobody's */
    struct work work;       /* device, what block_route needs; not work_open's */
    _Atomic int *bad;       /* device */
    int32_t *said;          /* pinned [STEP_MICROS, GUESS_LAYERS, PREDICT_FAR, STEP_ROWS * topk] */
    struct step_said {
        uint32_t done;
        int layer, n; /* n 0: none */
    } made[STEP_MICROS][GUESS_LAYERS][PREDICT_FAR];
};

int guess_open(struct step_guess *g, struct step_device *d, const _Atomic int *stop, struct error *e); /* after an error close it */
void guess_close(struct step_guess *g);
/* Its stream anew; what was guessed is forgotten. */
int guess_open_queue(struct step_guess *g, const _Atomic int *stop, struct error *e);
void guess_close_queue(struct step_guess *g);
void guess_break(struct step_guess *g);

void guess_begin(struct step_guess *g, bool pays); /* a step; whether anything that comes can be of use */
/* A layer's attention half was enqueued on d->main: keeps x. Before its shared expert is. */
int guess_keep(struct step_guess *g, int micro, int layer, const float *x, int n);
/* Asks, of what was kept for that layer; `ready`: it is there. */
int guess_ask(struct step_guess *g, int micro, int layer, struct gpu_event *ready, int n);
/* What was said for a layer so many before it: [n * topk], anything may stand there; NULL: nothing, or not yet. */
const int32_t *guess_of(const struct step_guess *g, int micro, int layer, int distance, int n);
/* The layer chose: judges what was said for it, and forgets that. */
void guess_chosen(struct step_guess *g, int micro, int layer, const int32_t *ids, int n);
