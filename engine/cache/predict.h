#pragma once
/* What the next layers will choose, as their own routers say of the residual stream as it is now, which is mostly what they will get
 * (paper D, section 4.C): how often that was right, by distance, and whether an expert is worth bringing for it. Pure: no clock, no
 * allocation. One thread. */
#include "engine/sched/split.h"

enum { PREDICT_FAR = 3 }; /* layers ahead */
struct predict_said {     /* experts that were foreseen, and of these chosen */
    int all, right;
};
struct predict {
    int n_layers, n_experts;
    float skill[PREDICT_FAR]; /* share that was right of late, distance 1 first */
    bool judged[PREDICT_FAR]; /* it is known */
    float *rate;              /* [n_layers, n_experts] share of a layer's steps in which each had work, of late */
    uint8_t *mark;            /* [n_experts] scratch */
    unsigned idle, steps;
};
size_t predict_bytes(int n_layers, int n_experts);
/* mem: predict_bytes of it, zeroed, aligned for float; the caller's until p is done with. */
void predict_open(struct predict *p, int n_layers, int n_experts, void *mem);

/* Whether routers are worth asking in the step that begins: while something was brought for what they said of late, and now and
 * then to see whether something would be. */
bool predict_asks(struct predict *p);
/* A layer chose `chosen` [n], of which `said` [n] was foreseen that many layers before; in any order, twice is once, what is no expert is none. */
struct predict_said predict_judge(struct predict *p, int distance, const int32_t *said, const int32_t *chosen, int n);
/* rows [n_experts] that chose each in a step. */
void predict_seen(struct predict *p, int layer, const int32_t *rows);
static inline double predict_rate(const struct predict *p, int layer, int expert) {
    return (double)p->rate[(size_t)layer * (size_t)p->n_experts + (size_t)expert];
}

struct predict_ask {
    int layer, distance;
    const struct split_policy *split;
    /* The layer as it is foreseen, times from its beginning: domain 0 the processor, 1 the device. What lies there is as it is now. */
    const struct split_domain *domain;
    struct split_expert *expert; /* [n]; the same after as before */
    const int16_t *id;           /* [n] which each is */
    int n;
    double late; /* seconds after the layer's beginning at which an expert that is sent for now would be there; < 0: before it */
    int victim;  /* whose place it would take; -1: nobody's */
};
struct predict_answer {
    int expert;   /* index in `expert`; -1: nothing is missing */
    double saved; /* seconds of this layer when it is there, if it is chosen */
    double worth; /* seconds, with how likely that is and with what is lost; > 0: bring it */
};
struct predict_answer predict_worth(const struct predict *p, const struct predict_ask *a, struct split_plan *plan);
/* What was asked has come to this: brought or not. */
void predict_used(struct predict *p, bool brought);
