#pragma once
/* How many prompts are answered soonest: paper B's policy (N, micro-batch, attention where, experts where, shares of weights and of keys
 * and values on the device), found by trying all that is left of a grid. Pure; a few milliseconds.
 *
 * A layer takes the longest of what its queues take (paper B, equation 12, by the machine model's corners): the processor, a device,
 * each way of the link, host memory, which the processor and the link share, and the chain of one micro-batch, which is itself in the
 * next layer. Weights come to the device once a layer and step, whatever the rows; each micro-batch reads them there. A better share of
 * weights never takes longer, so of those only the largest that fits is tried; more rows than memory holds are not. Several cards have the
 * layers in turn (step/paged.h): each its share of what links take, and the chain, which goes through all of them, is as long. A card's turn with its
 * next layer comes when the layers between have begun, search_behind micro-batches each: with fewer than that for every card it has nothing to do
 * in between. Rows' copies of a paged step go on the stream that computes. */
#include <stdbool.h>

#include "engine/sched/cost.h"

/* Bit of a placement: attention on a device or beside the keys, experts on a device or where they lie. */
enum search_place { SEARCH_PROCESSOR, SEARCH_HYBRID, SEARCH_PAGED, SEARCH_DEVICE, SEARCH_PLACES }; /* neither; attention; experts; both */
const char *search_place_name(enum search_place p);                                                /* "cpu", "hybrid", "paged", "device" */

struct search_in {
    const struct cost_machine *cost;
    const struct cost_model *model;
    double prompt, answer;   /* tokens of each, means */
    int prompts;             /* 0: no end of them */
    unsigned can;            /* bit of each placement; 0: all */
    int most[SEARCH_PLACES]; /* rows of a step; 0: no limit */
    bool kv_moves;           /* keys and values may come over the link; else attention on a device needs all of them there */
    int few;                 /* rows that go through a matrix at once on a device, so that they have the same bits in any company; 0: all */
    int read_rows;           /* of prompts that are read in one pass over the layers; 0: SEARCH_READ */
    int read_micro;          /* rows of a micro-batch of these, if those of a step have not more; 0: SEARCH_READ_MICRO */
    double host, device;     /* bytes that may be taken of each; 0: all that the machine has */
};
struct search_policy {
    int n, micro; /* rows of a step, and of each of its micro-batches but the last */
    enum search_place place;
    int cards;          /* that have layers in turn; 0: as 1 */
    double ring;        /* paged: layers of the experts that do not stay for which there are pages, one of search_ring; 0: two */
    double weights, kv; /* shares of the routed experts, and of keys and values, that stay on the device; in steps of SEARCH_SHARES */
};
enum { SEARCH_SHARES = 16, SEARCH_READ = 8192, SEARCH_READ_MICRO = 512 };
/* What takes longest; of the chain nobody is busy all the time. */
enum search_limit { SEARCH_BY_PROCESSOR, SEARCH_BY_CARD, SEARCH_BY_LINK, SEARCH_BY_ROWS, SEARCH_BY_MEMORY, SEARCH_BY_CHAIN, SEARCH_LIMITS };
const char *search_limit_name(enum search_limit l);
/* Why no more rows go together. */
enum search_bound { SEARCH_NO_GAIN, SEARCH_HOST_MEMORY, SEARCH_CARD_MEMORY, SEARCH_PROMPTS, SEARCH_ROWS };
const char *search_bound_name(enum search_bound b);
struct search_cost {
    bool fits;
    enum search_bound lacks;     /* where it does not */
    double layer[SEARCH_LIMITS]; /* seconds of a layer with experts: BY_ROWS from the device to the host */
    double step, read;           /* seconds of a step; of all n prompts, before the first one */
    double tokens_per_s;         /* of answers, reading included */
    double host, device;         /* bytes taken; device: on each */
    double links;                /* bytes/s of host memory that links take during a step */
    enum search_limit limit;     /* of a step */
};
/* So many of n micro-batches is a layer behind the one before it: with several cards a part, so that all compute at once, but not fewer than
 * lie between a micro-batch's queries and its way on. */
enum { SEARCH_BEHIND = 3 };
int search_behind(int n, int cards);
/* One policy: what it takes, or what it lacks. */
void search_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out);

struct search_out {
    bool found;
    struct search_policy policy;
    struct search_cost cost;
    enum search_bound bound; /* of n */
    int tried;
    double best[SEARCH_PLACES]; /* tokens/s of each placement's best; 0: none fits, or it was not asked for */
};
void search_run(const struct search_in *in, struct search_out *out);
int search_cards(const struct search_in *in, enum search_place place); /* so many are tried at most */
/* The grid: rows of a micro-batch, micro-batches of a step, and layers of pages; 0 past the last. */
int search_micro(int i);
int search_count(int i);
double search_ring(int i); /* paged; others have none */
/* "paged: 1,152 prompts at once, 12 x 96, attention on the processor, experts on the card, 25% of them stay there; limited by ..." */
void search_why(const struct search_in *in, const struct search_out *out, char *why, size_t cap);
