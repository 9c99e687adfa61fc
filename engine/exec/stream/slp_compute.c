/* Compute thread of a rank: runs the layers on its device as their weights arrive. The host runs a few units of work
 * ahead of the device, and waits once per layer for the sizes of the expert groups. */
#include <math.h>
#include <string.h>

#include "engine/exec/prefill.h"
#include "engine/exec/stream/exchange.h"
#include "engine/exec/stream/kvring.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp.h"
#include "engine/exec/stream/slp_fail.h"
#include "engine/exec/stream/slp_threads.h"
#include "engine/layer/expert_io.h"
#include "engine/layer/work_open.h"

static struct exec *exec_of(struct slp_rank *r) { return gpu_stream_exec(r->compute_stream); }
/* Returns the rows of the next chunk if `left` rows remain. */
static int next_chunk(const struct slp_rank *r, int left) {
    return left < r->plan.chunk_rows ? left : r->plan.chunk_rows;
}

/* Returns the workspace of a chunk that begins at row `row` of the rank; buffers that outlive a chunk are the
 * rank's. */
static struct work work_from_row(struct slp_rank *r, int row) {
    const int first = exchange_first_row(r);
    struct work w = r->work;
    for (const struct work_row *k = work_rows; k->width; k++)
        work_point(k, r->p->c, &w, &r->rows, (size_t)(k->life == WORK_EXPERTS ? first + row : row));
    return w;
}

/* Runs a chunk's attention over all visible keys. While blocks of other ranks are missing it goes range by range as
 * they arrive; else in one pass. *steps: ring steps waited for so far. */
static int ring_attention(struct slp_rank *r, const struct layer *y, int layer, struct work *w, const struct span *s,
                          int *steps) {
    struct exec *x = exec_of(r);
    const struct config *c = r->p->c;
    struct kvring_range pieces[KVRING_RANGES];
    int n = kvring_ranges(r, s->pos + s->n - r->p->job->pos, pieces),
        span = trace_begin(r->p->trace, r->compute_stream, r->id, LANE_COMPUTE, "attention", layer, *steps);
    TRY(block_query(x, c, y, layer, w, s->n));
    if (block_needs_all_keys(c, layer))
        for (; *steps < pieces[n - 1].step; ++*steps) TRY(kvring_wait_step(r, layer, *steps + 1));
    if (pieces[n - 1].step <= *steps) { /* ranges are sorted by step */
        pieces[0] = (struct kvring_range){.n = s->pos + s->n};
        n = 1;
    }
    for (int i = 0; i < n; i++) {
        int piece = (i ? 0 : PIECE_FIRST) | (i < n - 1 ? 0 : PIECE_LAST);
        if (*steps < pieces[i].step) {
            trace_end(r->p->trace, span, r->compute_stream);
            for (; *steps < pieces[i].step; ++*steps) TRY(kvring_wait_step(r, layer, *steps + 1));
            span = trace_begin(r->p->trace, r->compute_stream, r->id, LANE_COMPUTE, "attention", layer, *steps);
        }
        int rc = block_attend(x, c, y, layer, w, s, (struct key_range){pieces[i].first, pieces[i].n, piece});
        work_keep_grown(&r->work, w);
        if (rc) return rc;
    }
    TRY(block_output(x, c, y, w, s->n));
    trace_end(r->p->trace, span, r->compute_stream);
    return 0;
}

/* Parts of the attention block: all, keys and values only, or the rest. */
enum pass { PASS_ALL, PASS_KV, PASS_ATTEND };
/* Runs a pass over this rank's rows, in chunks within a stripe. *steps: ring steps waited for so far. */
static int attention_rows(struct slp_rank *r, const struct layer *y, int layer, enum pass pass, int *steps) {
    const struct slp_job *j = r->p->job;
    const struct config *c = r->p->c;
    struct exec *x = exec_of(r);
    const bool state = pass != PASS_ATTEND && kvring_has_state(r, layer);
    for (int i = 0; i < r->n_stripes; i++) {
        const struct stripe *s = &r->stripe[i];
        int from = -1;
        if (state) TRY(kvring_state_begin(r, layer, i, &from));
        for (int at = 0; at < s->n; at += r->plan.chunk_rows) {
            int n = next_chunk(r, s->n - at), rc;
            struct work w = work_from_row(r, s->row + at);
            struct span span = {.cache = r->cache,
                                .n = n,
                                .pos = j->pos + s->first + at,
                                .state_step = {.from_row = from, .to_row = STATE_STRIPE + i, .mark_row = STATE_MARK}};
            int mark = j->state_step.mark - s->first - at;
            if (mark > 0 && mark < n) span.state_step.mark = mark;
            from = span.state_step.to_row;
            if (pass == PASS_ALL) rc = block_attention(x, c, y, layer, &w, &span, 1, n);
            else if (pass == PASS_KV) rc = block_kv(x, c, y, layer, &w, &span, 1, n);
            else rc = ring_attention(r, y, layer, &w, &span, steps);
            work_keep_grown(&r->work, &w);
            if (rc) return rc;
            if (state && mark == n) TRY(kvring_state_mark(r, layer, i));
            TRY(ring_pace_unit(r, &r->pace_main, r->compute_stream));
        }
        if (state) TRY(kvring_state_publish(r, layer, i));
    }
    return 0;
}

/* Runs a layer's attention block: with several ranks first the keys and values, which travel around the ring, then the
 * rest. */
static int attention_block(struct slp_rank *r, uint64_t module, int layer) {
    struct slp_run *p = r->p;
    int steps = 0;
    TRY(ring_wait_loaded(&r->dense, module, r->compute_stream));
    if (layer >= 2) TRY(gpu_pair_wait(r->kv_downloaded[layer % 2], (uint64_t)layer / 2, r->compute_stream));
    kvring_planes(r, layer, r->cache[layer].p);
    int span = trace_begin(p->trace, r->compute_stream, r->id, LANE_COMPUTE, p->n_ranks == 1 ? "attention" : "keys",
                           layer, -1);
    const struct layer *y = &ring_at(&r->dense, module)->layer;
    /* layers with a state have no keys to wait for */
    bool state = kvring_has_state(r, layer), whole = p->c->layer[layer].mixer || p->n_ranks == 1;
    TRY(attention_rows(r, y, layer, whole ? PASS_ALL : PASS_KV, &steps));
    for (int i = 0; i < r->n_stripes && !state; i++)
        TRY(gpu_pair_record(r->state_computed[layer % 2][i], r->compute_stream));
    trace_end(p->trace, span, r->compute_stream);
    TRY(gpu_pair_record(r->kv_computed[layer % 2], r->compute_stream));
    if (p->n_ranks > 1) {
        TRY(kvring_receive(r, layer));
        if (!whole) TRY(attention_rows(r, y, layer, PASS_ATTEND, &steps));
        /* every block, on which the reuse of planes relies (kvring.c) */
        for (; steps < p->n_ranks - 1; steps++) TRY(kvring_wait_step(r, layer, steps + 1));
    }
    TRY(gpu_pair_record(r->kv_read[layer % 2], r->compute_stream));
    return ring_release(&r->dense, module, r->compute_stream);
}

static int run_router(struct slp_rank *r, const struct layer *y, int layer) {
    for (int at = 0; at < r->n; at += r->plan.chunk_rows) {
        struct work w = work_from_row(r, at);
        TRY(block_route(exec_of(r), r->p->c, y, layer, &w, next_chunk(r, r->n - at)));
    }
    return 0;
}

/* Runs the shared expert or the dense FFN on all rows of this rank. */
static int dense_ffn(struct slp_rank *r, const struct layer *y, int layer) {
    const struct config *c = r->p->c;
    for (int at = 0; at < r->n && y->dense.gate.data; at += r->plan.chunk_rows) {
        int n = next_chunk(r, r->n - at);
        struct work w = work_from_row(r, at);
        TRY(op_run(exec_of(r), OP_FFN,
                   &(struct op_ffn){.y = r->work.xn,
                                    .x = expert_io_shared_in(c, layer, &w),
                                    .expert = y->dense,
                                    .n = n,
                                    .hidden = c->hidden,
                                    .wide = config_needs_wide_activations(c)}));
        TRY(op_run(exec_of(r), OP_SCATTER_ADD,
                   &(struct op_scatter_add){.y = w.x,
                                            .x = r->work.xn,
                                            .weight = expert_io_shared_weight(c, layer, &w),
                                            .n = n,
                                            .dim = c->hidden,
                                            .ldy = c->hidden}));
        TRY(ring_pace_unit(r, &r->pace_main, r->compute_stream));
    }
    return 0;
}

/* In virtual time: sets the sizes of the rank's expert groups for n tokens, as configured, or even. */
static void model_groups(struct slp_rank *r, int n) {
    const struct gpu_spec *spec = &r->p->job->set->spec;
    const int experts = r->last_expert - r->first_expert;
    double n_experts = r->p->c->n_experts, part = spec->n_selected > 0 ? spec->n_selected / n_experts : 1,
           pairs = (double)n * r->p->c->topk, at = 0;
    for (int e = 0; e <= experts; e++) {
        r->host_offset[e] = (int32_t)(at + 1e-3);
        if (e < experts)
            at += pairs * (spec->expert_shares ? (double)spec->expert_shares[r->first_expert + e]
                                               : fmax(0, fmin(1, part * experts - e)) / (part * n_experts));
    }
    *slp_first_bad(r) = -1;
}
/* Downloads the sizes of the rank's expert groups for n tokens, and first_bad: the one wait of a layer. */
static int read_groups(struct slp_rank *r, int n) {
    if (gpu_info(r->g)->is_virtual) {
        model_groups(r, n);
        return 0;
    }
    TRY(gpu_copy(r->compute_stream, r->host_offset, r->offset, ((size_t)(r->last_expert - r->first_expert) + 1) * 4,
                 GPU_D2H));
    TRY(gpu_copy(r->compute_stream, slp_first_bad(r), (const void *)r->work.first_bad, 4, GPU_D2H));
    return gpu_stream_sync(r->compute_stream);
}

/* Adds the outputs of g's only expert for all its pairs, weighted, to the rows of their tokens. */
static int run_expert(struct slp_rank *r, const struct layer *y, const struct op_group *g) {
    const int hidden = g->hidden;
    for (int at = g->begin[0]; at < g->begin[1]; at += r->plan.chunk_rows) {
        int n = next_chunk(r, g->begin[1] - at);
        TRY(op_run(exec_of(r), OP_GATHER,
                   &(struct op_gather){
                       .out = r->work.x, .x = g->x, .index = g->token + at, .n = n, .dim = hidden, .ldx = hidden}));
        TRY(op_run(
            exec_of(r), OP_FFN,
            &(struct op_ffn){
                .y = r->work.xn, .x = r->work.x, .expert = g->expert[0], .n = n, .hidden = hidden, .wide = g->wide}));
        TRY(expert_io_norm(exec_of(r), r->p->c, y, r->work.xn, n));
        TRY(op_run(exec_of(r), OP_SCATTER_ADD,
                   &(struct op_scatter_add){.y = g->y,
                                            .x = r->work.xn,
                                            .index = g->token + at,
                                            .weight = g->weight + at,
                                            .n = n,
                                            .dim = hidden,
                                            .ldy = hidden}));
    }
    return 0;
}

/* most rows of a grouped expert: 8,192 tokens give DeepSeek-V3 256 on average, and some experts several times that */
enum { SMALL_GROUP = 1024 };
/* Groups experts with few rows into one operation to fill the device, as many as ring_quarter() allows. Fills g and the
 * ids of its experts from expert e on, with a single expert if it is large; returns the next expert. */
static int group_experts(const struct slp_rank *r, int layer, int e, int n, struct op_group *g, int ids[OP_GROUP_MAX]) {
    const int quarter = ring_quarter(r->plan.ring_slots), most = quarter < OP_GROUP_MAX ? quarter : OP_GROUP_MAX;
    int small = r->plan.chunk_rows < SMALL_GROUP ? r->plan.chunk_rows : SMALL_GROUP;
    for (; e < n && (!g->n || g->n < most); e++) {
        if (!ring_computes_expert(r, layer, e)) continue;
        bool is_small = r->host_offset[e + 1] - r->host_offset[e] <= small;
        if (g->n && !is_small) break;
        ids[g->n] = e;
        g->begin[g->n] = r->host_offset[e];
        g->begin[++g->n] = r->host_offset[e + 1];
        if (!is_small) return e + 1;
    }
    return e;
}

/* Before the experts, or after them: prepares the inputs and sums of n tokens, or adds the sums to the residual stream,
 * in chunks. */
static int frame_experts(struct slp_rank *r, const struct layer *y, bool begins, int n) {
    for (int at = 0; at < n; at += r->plan.chunk_rows) {
        const struct work w = work_slice(r->p->c, &r->rows, at);
        const int k = next_chunk(r, n - at);
        TRY(begins ? expert_io_begin(exec_of(r), r->p->c, y, &w, k)
                   : expert_io_end(exec_of(r), r->p->c, y, &w, w.x, k));
    }
    return 0;
}

/* Waits for the weights of a group of experts, runs it, and frees its slots of the ring. *module: the next module of
 * the ring. */
static int run_group(struct slp_rank *r, const struct layer *y, int layer, struct op_group *g,
                     const int ids[OP_GROUP_MAX], uint64_t *module) {
    struct slp_run *p = r->p;
    const uint64_t first = *module;
    for (int k = 0; k < g->n; k++) {
        TRY(ring_get_expert(r, layer, ids[k], *module, &g->expert[k]));
        *module += ring_takes_expert(r, layer, ids[k]);
    }
    int span = trace_begin(p->trace, r->compute_stream, r->id, LANE_COMPUTE, g->n > 1 ? "experts" : "expert", layer,
                           r->first_expert + ids[0]);
    if (g->n > 1) TRY(op_run(exec_of(r), OP_GROUP, g));
    else TRY(run_expert(r, y, g));
    TRY(ring_pace_unit(r, &r->pace_main, r->compute_stream));
    trace_end(p->trace, span, r->compute_stream);
    for (uint64_t k = first; k < *module; k++) TRY(ring_release(&r->experts, k, r->compute_stream));
    return 0;
}

/* Sorts the (token, expert) pairs of n tokens by expert, for this rank's experts. */
static int sort_pairs(struct slp_rank *r, int n) {
    return op_run(exec_of(r), OP_SORT,
                  &(struct op_sort){.offset = r->offset,
                                    .token = r->token,
                                    .weight = r->weight,
                                    .ids = r->rows.ids,
                                    .weights = r->rows.weights,
                                    .n = n,
                                    .topk = r->p->c->topk,
                                    .first = r->first_expert,
                                    .last = r->last_expert});
}

/* Adds the rows of this rank's experts to job->expert_rows, if the caller counts them. Ranks have different experts. */
static void count_expert_rows(struct slp_rank *r, int layer) {
    const struct slp_job *j = r->p->job;
    const size_t first = (size_t)layer * (size_t)r->p->c->n_experts + (size_t)r->first_expert;
    for (int e = 0; e < r->last_expert - r->first_expert && j->expert_rows; e++)
        j->expert_rows[first + (size_t)e] += (uint32_t)(r->host_offset[e + 1] - r->host_offset[e]);
}

/* Runs all of this rank's experts on the sorted pairs of rows `in` and adds their outputs to `out`, [.., width]. */
static int run_groups(struct slp_rank *r, const struct layer *y, int layer, const float *in, float *out, int width,
                      uint64_t *module) {
    const struct config *c = r->p->c;
    const int n = r->last_expert - r->first_expert;
    uint64_t known = *module, n_modules = *module;
    for (int e = 0; e < n; e++) n_modules += ring_takes_expert(r, layer, e);
    for (int e = 0, end; e < n; e = end) {
        struct op_group g = {.y = out,
                             .x = in,
                             .token = r->token,
                             .weight = r->weight,
                             .norm = y->expert_out_norm,
                             .eps = config_output_eps(c),
                             .hidden = width,
                             .wide = config_needs_wide_activations(c)};
        int ids[OP_GROUP_MAX];
        end = group_experts(r, layer, e, n, &g, ids);
        if (gpu_info(r->g)->is_virtual) TRY(ring_wait_quarter(r, *module, n_modules, &known));
        if (g.n) TRY(run_group(r, y, layer, &g, ids, module));
    }
    return 0;
}

/* Runs the routed experts in order as their weights arrive. One rank adds to its sums directly; several compute partial
 * sums of all tokens and exchange them. y: the layer's FFN weights. *module: next module of the expert ring,
 * advanced. */
static int run_experts(struct slp_rank *r, const struct layer *y, uint64_t *module, int layer) {
    const struct slp_run *p = r->p;
    const struct expert_io io = expert_io_of(p->c, &r->rows, r->rows.x);
    const bool is_shared = p->n_ranks > 1;
    const int all = p->job->n;
    if (is_shared) {
        TRY(exchange_tokens(r, layer));
        TRY(gpu_fill(r->compute_stream, r->sum, 0, (size_t)all * (size_t)io.width * 4));
    }
    TRY(sort_pairs(r, all));
    TRY(read_groups(r, all));
    if (*slp_first_bad(r) >= 0) return 0; /* the selection may be garbage; run_layer() reports it */
    ring_publish_selected(r, layer);
    count_expert_rows(r, layer);
    TRY(frame_experts(r, y, true, all));
    TRY(run_groups(r, y, layer, io.in, is_shared ? r->sum : io.sum, io.width, module));
    if (is_shared) TRY(exchange_sums(r, io.sum, layer));
    return frame_experts(r, y, false, r->n);
}

/* Fails the run with the layer of first_bad `at`; or, if a rank's device failed and sent garbage, with that failure. */
static int report_non_finite(struct slp_rank *r, int at) {
    struct error e = {0};
    for (int i = 0; i < r->p->n_ranks; i++)
        if (gpu_error_since(r->p->rank[i].g, r->p->rank[i].n_cleared, &e)) return slp_fail(r->p, e.code, &e);
    exec_check_finite(at, &e);
    return slp_fail(r->p, ERR_MODEL, &e);
}

/* Adds what images add after a layer. */
static int add_deep_rows(struct slp_rank *r, int layer) {
    const struct slp_job *j = r->p->job;
    const int hidden = r->p->c->hidden;
    if (layer >= image_rows_deep(&j->images, hidden)) return 0;
    for (int i = 0; i < r->n_stripes; i++) {
        const struct stripe *s = &r->stripe[i];
        for (int at = 0, n; at < s->n; at += n) {
            n = next_chunk(r, s->n - at);
            TRY(image_rows_add(&j->images, hidden, j->pos + s->first + at, n, layer, r->compute_stream,
                               r->rows.x + (size_t)(s->row + at) * (size_t)hidden, r->work.xn, r->deep));
            TRY(gpu_stream_sync(r->compute_stream)); /* it has read r->deep */
        }
    }
    return 0;
}

/* Runs a layer. *dense, *module: next modules of the ring of dense modules and of that of experts, advanced. */
static int run_layer(struct slp_rank *r, int layer, uint64_t *dense, uint64_t *module) {
    struct slp_run *p = r->p;
    const struct layer *y = &ring_at(&r->dense, *dense + 1)->layer;
    TRY(attention_block(r, *dense, layer));
    TRY(ring_wait_loaded(&r->dense, *dense + 1, r->compute_stream));
    int span = trace_begin(p->trace, r->compute_stream, r->id, LANE_COMPUTE, "route", layer, -1);
    TRY(run_router(r, y, layer));
    trace_end(p->trace, span, r->compute_stream);
    bool moe = p->c->layer[layer].moe;
    if (moe) {
        TRY(run_experts(r, y, module, layer));
        if (*slp_first_bad(r) >= 0) return report_non_finite(r, *slp_first_bad(r));
    }
    span = trace_begin(p->trace, r->compute_stream, r->id, LANE_COMPUTE, moe ? "shared" : "ffn", layer, -1);
    TRY(dense_ffn(r, y, layer));
    TRY(add_deep_rows(r, layer));
    trace_end(p->trace, span, r->compute_stream);
    TRY(ring_release(&r->dense, *dense + 1, r->compute_stream));
    *dense += 2;
    return 0;
}

static int run_layers(struct slp_rank *r) {
    uint64_t dense = 0, module = 0;
    const struct slp_job *j = r->p->job;
    const struct config *c = r->p->c;
    struct work all = work_from_row(r, 0);
    all.has_places = image_rows_have_places(&j->images, c);
    if (r->n) TRY(block_rope(exec_of(r), j->w, &all, r->n, j->pos + j->n));
    for (int l = 0; l < c->n_layers; l++) TRY(run_layer(r, l, &dense, &module));
    for (int at = 0; at < r->n; at += r->plan.chunk_rows) {
        struct work w = work_from_row(r, at);
        TRY(block_merge_streams(exec_of(r), r->merge_weights, &w, next_chunk(r, r->n - at)));
    }
    if (!gpu_info(r->g)->is_virtual)
        TRY(gpu_copy(r->compute_stream, slp_first_bad(r), (const void *)r->work.first_bad, 4, GPU_D2H));
    TRY(gpu_stream_sync(r->compute_stream));
    const int bad = gpu_info(r->g)->is_virtual ? -1 : *slp_first_bad(r);
    return bad >= 0 ? report_non_finite(r, bad) : 0;
}

void *slp_compute_thread(void *arg) {
    struct slp_rank *r = arg;
    slp_check(r, run_layers(r));
    return NULL;
}
