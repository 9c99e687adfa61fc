/* Standard expert parallelism, for comparison with SmallEP on emulated devices: every (token, expert) pair is sent to the rank of its
 * expert and its result returns. A link carries 2 N topk D / S floats per layer instead of 2 N D, for N tokens of width D and S ranks. */
#include "engine/exec/stream/all_to_all.h"

#include "base/mem.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp.h"
#include "engine/layer/block.h"

/* Returns the number of q's pairs for experts of rank r; *begin: the first of them in q's sorted list. */
static size_t pairs_for(const struct slp_rank *q, const struct slp_rank *r, size_t *begin) {
    const int32_t *offset = q->exchange->offset;
    *begin = (size_t)offset[r->first_expert];
    return (size_t)(offset[r->last_expert] - offset[r->first_expert]);
}

int all_to_all_open(struct slp_rank *r, struct error *e) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    size_t row_bytes = (size_t)config_routed_width(p->c) * 4, topk = (size_t)p->c->topk, experts = (size_t)p->c->n_experts;
    int rc = gpu_alloc(r->g, (void **)&x->pairs, (size_t)r->n * topk * row_bytes, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&x->received_pairs, (size_t)p->job->n * topk * row_bytes, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&x->offset_device, (experts + 1) * 4, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->offset, (experts + 1) * 4, e);
    if (p->job->set->spec.is_virtual) return rc;
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->pairs_host, (size_t)r->n * topk * row_bytes, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->received_pairs_host, (size_t)p->job->n * topk * row_bytes, e);
    return rc;
}

void all_to_all_close(struct slp_rank *r) {
    struct exchange *x = r->exchange;
    if (!x) return;
    gpu_free(r->g, x->pairs);
    gpu_free(r->g, x->received_pairs);
    gpu_free(r->g, x->offset_device);
    gpu_host_free(r->g, x->offset);
    gpu_host_free(r->g, x->pairs_host);
    gpu_host_free(r->g, x->received_pairs_host);
}

/* Sorts this rank's pairs by expert and publishes the counts. */
static int publish_counts(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    int experts = p->c->n_experts, topk = p->c->topk;
    size_t at = (size_t)x->first_row * (size_t)topk;
    TRY(op_run(gpu_stream_exec(r->compute_stream), OP_SORT,
               &(struct op_sort){.offset = x->offset_device,
                                 .token = r->token,
                                 .weight = r->weight,
                                 .ids = r->ids + at,
                                 .weights = r->weights + at,
                                 .n = r->n,
                                 .topk = topk,
                                 .first = 0,
                                 .last = experts}));
    if (gpu_info(r->g)->is_virtual) {
        for (int e = 0; e <= experts; e++) x->offset[e] = (int32_t)((double)r->n * topk / experts * e);
    } else {
        TRY(gpu_copy(r->compute_stream, x->offset, x->offset_device, ((size_t)experts + 1) * 4, GPU_D2H));
        TRY(gpu_copy(r->compute_stream, slp_first_bad(r), (const void *)r->work.first_bad, 4, GPU_D2H));
        TRY(gpu_stream_sync(r->compute_stream));
    }
    pthread_mutex_lock(&p->lock);
    x->n_counted_layers = layer + 1;
    pthread_cond_broadcast(&p->cond);
    for (int i = 0; i < p->n_ranks && !atomic_load(&p->stop); i++)
        while (p->rank[i].exchange->n_counted_layers < layer + 1 && !atomic_load(&p->stop)) pthread_cond_wait(&p->cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return atomic_load(&p->stop) ? ERR_CANCELLED : 0;
}

/* First row of rank q in this rank's buffer of received pairs. */
static size_t received_row(const struct slp_rank *r, const struct slp_rank *q) {
    size_t at = 0, begin;
    for (int i = 0; i < q->id; i++) at += pairs_for(&r->p->rank[i], r, &begin);
    return at;
}

/* Sends this rank's pairs to the ranks of their experts. */
static int dispatch_pairs(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    size_t width = (size_t)config_routed_width(p->c), begin, n = (size_t)x->offset[p->c->n_experts];
    const float *xn = p->c->moe_latent ? r->routed_in : r->xn + (size_t)x->first_row * width;
    if (n)
        TRY(op_run(gpu_stream_exec(r->compute_stream), OP_GATHER,
                   &(struct op_gather){.out = x->pairs, .x = xn, .index = r->token, .n = (int)n, .dim = (int)width, .ldx = (int)width}));
    TRY(exchange_announce(r));
    if (!exchange_all_are_peers(r)) TRY(gpu_copy(x->send, x->pairs_host, x->pairs, n * width * 4, GPU_D2H));
    TRY(exchange_sent(r, 0));
    /* Ranks' parts of the buffer move from layer to layer: all must have fetched their last results from it. The compute stream has waited for that:
     * attention_block() ends with a wait for every rank's keys, which a rank makes after it has fetched its results. */
    for (int i = 0; i < p->n_ranks; i++)
        if (i != r->id) TRY(exchange_wait(r, &p->rank[i], 0));
    int span = trace_begin(p->trace, x->recv, r->id, LANE_EXCHANGE, "dispatch", layer, -1);
    for (int i = 0; i < p->n_ranks; i++) {
        struct slp_rank *q = &p->rank[i];
        size_t floats = pairs_for(q, r, &begin) * width, at = begin * width;
        float *to = x->received_pairs + received_row(r, q) * width;
        if (q == r) TRY(gpu_copy(r->compute_stream, to, x->pairs + at, floats * 4, GPU_D2D));
        else TRY(exchange_fetch(r, q, to, q->exchange->pairs + at, q->exchange->pairs_host ? q->exchange->pairs_host + at : NULL, floats * 4));
    }
    trace_end(p->trace, span, x->recv);
    TRY(gpu_event_record(x->received, x->recv));
    return gpu_event_wait(x->received, r->compute_stream);
}

/* Runs an expert on the pairs from each rank; results replace their inputs. */
static int run_expert(struct slp_rank *r, const struct layer *y, const struct expert *e, int expert) {
    struct slp_run *p = r->p;
    size_t width = (size_t)config_routed_width(p->c);
    for (int i = 0; i < p->n_ranks; i++) {
        const int32_t *offset = p->rank[i].exchange->offset;
        float *rows = r->exchange->received_pairs + (received_row(r, &p->rank[i]) + (size_t)(offset[expert] - offset[r->first_expert])) * width;
        for (int at = 0, n = offset[expert + 1] - offset[expert]; at < n; at += r->plan.chunk_rows) {
            int m = n - at < r->plan.chunk_rows ? n - at : r->plan.chunk_rows;
            TRY(op_run(
                gpu_stream_exec(r->compute_stream), OP_FFN,
                &(struct op_ffn){
                    .y = r->work.xn, .x = rows + (size_t)at * width, .expert = *e, .n = m, .hidden = (int)width, .wide = config_needs_wide_activations(p->c)}));
            TRY(block_experts_norm(gpu_stream_exec(r->compute_stream), p->c, y, r->work.xn, m));
            TRY(gpu_copy(r->compute_stream, rows + (size_t)at * width, r->work.xn, (size_t)m * width * 4, GPU_D2D));
        }
    }
    return 0;
}

/* Returns results into pack at the places of their rows, then adds each to its token with its weight. */
static int combine_pairs(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    size_t width = (size_t)config_routed_width(p->c), begin, all = 0;
    for (int i = 0; i < p->n_ranks; i++) all += pairs_for(&p->rank[i], r, &begin);
    TRY(exchange_announce(r));
    if (!exchange_all_are_peers(r)) TRY(gpu_copy(x->send, x->received_pairs_host, x->received_pairs, all * width * 4, GPU_D2H));
    TRY(exchange_sent(r, 0));
    int span = trace_begin(p->trace, x->recv, r->id, LANE_EXCHANGE, "combine", layer, -1);
    for (int i = 0; i < p->n_ranks; i++) {
        struct slp_rank *q = &p->rank[i];
        size_t floats = pairs_for(r, q, &begin) * width, from = received_row(q, r) * width;
        float *to = x->pairs + begin * width;
        if (q == r) TRY(gpu_copy(r->compute_stream, to, x->received_pairs + from, floats * 4, GPU_D2D));
        else {
            TRY(exchange_wait(r, q, 0));
            TRY(exchange_fetch(r, q, to, q->exchange->received_pairs + from, q->exchange->received_pairs_host ? q->exchange->received_pairs_host + from : NULL,
                               floats * 4));
        }
    }
    trace_end(p->trace, span, x->recv);
    TRY(gpu_event_record(x->received, x->recv));
    TRY(gpu_event_wait(x->received, r->compute_stream));
    for (int e = 0; e < p->c->n_experts; e++) {
        int at = x->offset[e], n = x->offset[e + 1] - at;
        if (n)
            TRY(op_run(gpu_stream_exec(r->compute_stream), OP_SCATTER_ADD,
                       &(struct op_scatter_add){.y = p->c->moe_latent ? r->routed_sum : r->x,
                                                .x = x->pairs + (size_t)at * width,
                                                .index = r->token + at,
                                                .weight = r->weight + at,
                                                .n = n,
                                                .dim = (int)width,
                                                .ldy = (int)width}));
    }
    return 0;
}

int all_to_all_experts(struct slp_rank *r, const struct layer *y, uint64_t *module, int layer) {
    struct slp_run *p = r->p;
    int n = r->last_expert - r->first_expert;
    TRY(publish_counts(r, layer));
    if (gpu_info(r->g)->is_virtual) *slp_first_bad(r) = -1;
    if (*slp_first_bad(r) >= 0) return 0; /* the caller reports it */
    TRY(dispatch_pairs(r, layer));
    for (int e = 0; e < n; e++) {
        struct expert weights;
        TRY(ring_get_expert(r, layer, e, *module, &weights));
        int span = trace_begin(p->trace, r->compute_stream, r->id, LANE_COMPUTE, "expert", layer, r->first_expert + e);
        TRY(run_expert(r, y, &weights, r->first_expert + e));
        trace_end(p->trace, span, r->compute_stream);
        if (ring_takes_expert(r, layer, e)) TRY(ring_release(&r->experts, (*module)++, r->compute_stream));
        TRY(ring_pace_unit(r, &r->pace_main, r->compute_stream));
    }
    return combine_pairs(r, layer);
}
