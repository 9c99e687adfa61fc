#pragma once
/* The queries of a plan: prefills, decode batches and throughput batches of described machines, each simulated in
 * virtual time (virtual.h) and distributed over this machine's cores. */
#include "engine/plan/virtual.h"

struct plan_query {
    const struct cost_machine *cost; /* must outlive the query */
    enum exec_mode mode;
    int n;              /* tokens, or sessions */
    double stream_rate; /* virtual_options */
    /* throughput: seconds of a decode batch for which stream_rate is that of the uploads; 0: it is as given */
    double expected_s;
    bool is_uneven;                       /* prefill: the layers cost different times, so all of them are simulated */
    struct virtual_throughput throughput; /* n_prompts > 0: paged batches; mode, n and is_uneven are unused */
    double seconds, prefill_s;            /* result; prefill_s: of all the prompts of paged batches */
    struct virtual_used used;
    bool is_infeasible; /* does not fit, or the machine lacks the devices; seconds is INFINITY */
};

struct plan_queries {
    const struct weights *w; /* each query simulates this model */
    enum dtype kv;
    struct expert_cache experts; /* as in virtual_options, and usage */
    struct usage_profile *usage;
    struct plan_query *query; /* [n]; owned */
    int n;
    size_t cap;
};

/* Number of cached positions of each session of a decode batch. */
enum { PLAN_KEYS = 1024 };

/* Returns the index of the query in the list, added if new; ERR_MEMORY (< 0). */
int plan_query_add(struct plan_queries *r, const struct plan_query *q, struct error *e);
/* Simulates all queries. progress: NULL, or called on the caller's thread with the share of finished queries; non-zero
 * cancels. A query that does not fit into memory is marked infeasible. ERR_CANCELLED, ERR_RUNTIME. */
int plan_query_run(struct plan_queries *r, int (*progress)(void *ctx, double share), void *ctx, struct error *e);
void plan_query_free(struct plan_queries *r);
