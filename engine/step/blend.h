#pragma once
/* What a blended prefill (prefill_blend.c) has on each device that takes part: a ring of slots that routed experts come to over the device's
 * own link, and where its part of a layer's experts is computed. Devices that hold layers have a workspace too; others take normed rows from
 * host memory and give sums back to it. All calls are for the owner of the processor. */
#include "engine/pipe/stage.h"
#include "engine/step/internal.h"

enum { BLEND_ROWS_LEAST = 64 }; /* that are read at a time, of a longer prompt */
struct blend_slot {             /* room for one expert's weights */
    char *mem;
    struct expert view;
    uint32_t on, off;  /* `loaded` when they are there; `freed` after their last use, 0: none so far */
    int layer, expert; /* whose they are; layer -1: nobody's */
};

struct blend_part { /* a device */
    struct step *s;
    struct step_device *d; /* what it holds of layers; NULL: none */
    struct gpu *g;
    int rank;
    struct gpu_stream *own; /* of a device without layers: part_stream */
    struct gpu_stream *link;
    _Atomic int own_stop, *stop; /* cancels both */
    struct stage *stage;         /* feeds the link */
    struct work work;            /* with layers; else empty */
    float *xn, *y;               /* device [rows, hidden]: of a layer that another device has, what experts take, and the sum that they give */
    int32_t *token;              /* device [rows * topk]: pairs in the order of their experts' work */
    float *weight;
    struct blend_slot *slots;
    int n_slots, next_slot;
    int32_t *pair_token; /* pinned, as token and weight */
    float *pair_weight, *sum;
    struct gpu_number *loaded, *freed; /* the link writes what the stream waits for, and the other way round */
    struct gpu_number *summed;         /* `sum` is in host memory */
    uint32_t n_loaded, n_freed, n_summed;
    struct cost_table table;
};

/* Bytes that a part takes at least, beside the weights of layers: d NULL where it holds none. */
size_t part_least(const struct machine *m, const struct step_device *d, int pos, int n);
size_t part_wants(const struct machine *m, const struct step_device *d, int pos, int n); /* and such as it makes good use of */
/* Streams and numbers; s, d, g and rank are set. */
int part_open(struct blend_part *p, struct error *e);
/* Whether its workspace for so many rows fits, beside all else that it needs (and then it is there). */
bool part_holds(struct blend_part *p, int rows, int end);
/* The rest, with as many slots as there is room for; alone: nobody else takes part. ERR_MEMORY. */
int part_fill(struct blend_part *p, int rows, int end, bool alone, struct error *e);
void part_close(struct blend_part *p);                      /* whatever is under way ends; safe on what is not open, or half */
struct gpu_stream *part_stream(const struct blend_part *p); /* NULL: steps have left the device in the meantime */

struct blend_slot *part_slot(struct blend_part *p, int layer, int expert); /* that has it, or is to have it; NULL */
/* Room that nothing enqueued from here on reads: nobody's, or of another layer, or (freed) computed in this one. NULL: none. */
struct blend_slot *part_free_slot(struct blend_part *p, int layer);
int part_fetch(struct blend_part *p, struct blend_slot *t, int layer, int expert);
/* Enqueues experts order[0..n) with rows_of[expert] pairs each, those that are there before `there`: y += their parts of x. Their pairs lie in
 * pair_token and pair_weight one after the other. Small ones go several at a time. */
int part_experts(struct blend_part *p, int layer, const int16_t *order, int there, int n, const int32_t *rows_of, const float *x, float *y);
