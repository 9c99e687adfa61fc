#pragma once
/* A device's memory given out: what steps cannot do without first, then room for routed experts. Pure. */
#include <stddef.h>

enum budget_ask { BUDGET_AUTO, BUDGET_OFF, BUDGET_EXPERTS, BUDGET_BYTES }; /* what there is; nothing; so many a layer; so much */
struct budget_in {
    size_t free;      /* bytes of the device that nobody has */
    size_t weights;   /* of these: attention halves, shared experts, dense parts, head that it is to hold */
    size_t keep;      /* for caches of sessions, workspaces, a prompt's ring */
    size_t slot;      /* one expert */
    int layers, each; /* of these layers with experts it holds the attention half; experts in each */
    enum budget_ask ask;
    size_t n; /* experts or bytes that were asked for */
};
struct budget_out {
    int each;      /* experts of a layer that there is room for, the same in all of them */
    size_t bytes;  /* which take so much */
    char why[160]; /* one sentence */
};
void budget_give(const struct budget_in *in, struct budget_out *out);
