#pragma once
/* Rates router predictions: the next layers' routers run on the current residual stream, which is close to their real
 * input (paper D, section 4.C). Tracks their accuracy by distance and estimates whether an upload pays. Pure: no clock,
 * no allocation. One thread. */
#include "engine/placement/split.h"

enum { PREDICT_LAYERS = 3, PREDICT_RATE_BATCHES = 14 }; /* layers ahead; batches that rates average over, as in MRS */
struct predict_accuracy {
    int predicted, selected; /* predicted experts; of these selected */
};
struct predict {
    int n_layers, n_experts;
    float skill[PREDICT_LAYERS];    /* recent accuracy by distance, 1 first */
    bool has_skill[PREDICT_LAYERS]; /* skill is valid */
    float *rate;                    /* [n_layers, n_experts] recent share of batches in which the expert had work */
    uint8_t *mark;                  /* [n_experts] scratch */
    unsigned n_unused, n_batches;   /* layers in a row whose predictions led to no upload; batches asked about */
};
size_t predict_bytes(int n_layers, int n_experts);
/* mem: predict_bytes, zeroed, aligned for float; in use until the caller is done with p. */
void predict_open(struct predict *p, int n_layers, int n_experts, void *mem);

/* Returns whether to run routers ahead in the next batch: while recent predictions led to uploads, and now and then as
 * a retry. */
bool predict_is_due(struct predict *p);
/* Compares a layer's selection `chosen` [n] with `predicted` [n] made `distance` layers before; any order, duplicates
 * and invalid ids are ignored. */
struct predict_accuracy predict_judge(struct predict *p, int distance, const int32_t *predicted, const int32_t *chosen,
                                      int n);
/* Updates rates; rows [n_experts]: rows that selected each expert in the batch. */
void predict_update_rates(struct predict *p, int layer, const int32_t *rows);
static inline double predict_rate(const struct predict *p, int layer, int expert) {
    return (double)p->rate[(size_t)layer * (size_t)p->n_experts + (size_t)expert];
}

struct predict_in {
    int layer, distance;
    const struct split_policy *split;
    /* The layer as predicted, times from its start: domain 0 the CPU, 1 the device, with its current residency. */
    const struct split_domain *domain;
    struct split_expert *expert; /* [n]; unchanged on return */
    const int16_t *id;           /* [n] expert ids */
    int n;
    double arrival_s; /* seconds after the layer's start at which an upload started now would arrive; < 0: before it */
    int victim;       /* expert it would evict; -1: empty slot */
};
struct predict_out {
    int expert;     /* index in `expert`; -1: all are resident */
    double saved_s; /* seconds saved in this layer if it is resident and selected */
    double worth_s; /* expected seconds, including the loss of the victim; > 0: upload it */
};
struct predict_out predict_upload(const struct predict *p, const struct predict_in *a, struct split_plan *plan);
/* Reports whether the predictions of a layer led to an upload. */
void predict_report(struct predict *p, bool led_to_upload);
