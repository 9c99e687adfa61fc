/* Blended prefill: attention blocks, shared experts and some routed experts of a prompt run on the devices that hold the layers, the
 * other routed experts on the CPU at the same time. Every layer is split anew (split.h). Missing expert weights are uploaded one by
 * one while the device and the CPU compute; during the attention block, before the selection is known, idle links upload what
 * fits. Every device with enough memory takes part in every layer: devices without the layer get its normed rows and return the
 * sum of their experts, both through host memory. Sums are added in a fixed order: the layer's device, other devices by rank, the
 * CPU. The extreme splits are CPU prefill and stream loading. Needs devices that hold all layers. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/test_limits.h"
#include "engine/exec/blend_device.h"
#include "engine/exec/cpu_layer.h"
#include "engine/experts/expert_pool.h"
#include "engine/model/rope.h"
#include "engine/placement/split.h"

struct blend {
    struct decode *s;
    struct blend_device dev[GPU_MAX]; /* by rank */
    int n_dev, owner;                 /* owner: index of the device that holds `layer`; until move_rows(), the one before it */
    struct kv_state_step move;        /* state rows of the batch in the session's cache */
    int at, n, rows, layer;           /* the batch: tokens [at, at + n) of the job, at most `rows`; its next layer */
    /* pinned */
    float *x, *xn, *weights;
    float *routed_in;             /* experts in a latent space: their input, for devices without the layer */
    int32_t *ids, *cpu_ids, *pos; /* pos: [rows], then the tokens [rows] */
    struct work carry;            /* x and what decode_carry moves with it between devices */
    _Atomic int *bad;
    char *kv;                                /* KV rows of all layers, downloaded for the session's cache */
    struct gpu_timeline *arrived, *cpu_done; /* cpu_done: virtual time only */
    uint32_t n_arrived, n_cpu_done;
    /* the split */
    struct cost_table table; /* costs on the CPU */
    struct split_expert *experts;
    int16_t *expert_ids;           /* [n_experts] ids of experts[] */
    int32_t *n_pairs, *first_pair; /* [n_experts]: (token, expert) pairs of each expert; index of its next pair in its device's pair_token */
    int8_t *device_of;             /* [n_experts]: index of the device that computes it; -1: the CPU */
    struct split_plan plan;
    float *logits;
    float *cpu_latent;      /* [2, rows, moe_latent] of the CPU's experts */
    uint64_t routing_batch; /* number and lines in the routing trace */
    struct buf routing_lines;
};

/* --- Memory ---------------------------------------------------------------------------------------------------------------------- */

static struct decode_device *decode_device_at(struct decode *s, int rank) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == rank) return &s->dev[i];
    return NULL;
}
size_t blend_min_bytes(const struct runtime *m, int device, int pos, int n) { return blend_device_min_bytes(m, decode_device_at(m->decode, device), pos, n); }
size_t blend_good_bytes(const struct runtime *m, int pos, int n, bool has_ring) {
    size_t most = 0;
    for (int i = 0; i < m->gpus->n; i++) {
        size_t one = blend_device_good_bytes(m, decode_device_at(m->decode, i), pos, n, has_ring);
        if (one > most) most = one;
    }
    return most;
}

static struct blend_device *add_device(struct blend *b, int rank) {
    struct blend_device *p = &b->dev[b->n_dev++];
    *p = (struct blend_device){
        .s = b->s, .d = decode_device_at(b->s, rank), .g = b->s->m->gpus->gpu[rank], .ledger = &b->s->m->gpus->ledger[rank], .rank = rank};
    return p;
}

/* Picks the largest batch that fits on all devices with layers; a device without layers takes part if such a batch fits. */
static int open_devices(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct gpu_set *set = b->s->m->gpus;
    const int end = j->pos + j->n, max_rows = (int)test_limits_get(TEST_LIMIT_PREFILL_ROWS, COST_BLEND_ROWS);
    int rc = 0;
    for (int i = 0; i < set->n; i++)
        if (decode_device_at(b->s, i)) add_device(b, i);
    for (b->rows = j->n < max_rows ? j->n : max_rows; b->rows > BLEND_MIN_ROWS; b->rows = (b->rows + 1) / 2) {
        bool fits = true;
        for (int i = 0; i < b->n_dev; i++) fits = fits && blend_device_try_rows(&b->dev[i], b->rows, end);
        if (fits) break;
        for (int i = 0; i < b->n_dev; i++) work_close(&b->dev[i].work);
    }
    for (int i = 0; i < set->n; i++)
        if (!decode_device_at(b->s, i) && !blend_device_try_rows(add_device(b, i), b->rows, end)) b->n_dev--;
    for (int i = 0; i < b->n_dev && !rc; i++) rc = blend_device_open(&b->dev[i], e);
    for (int i = 0; i < b->n_dev && !rc; i++) rc = blend_device_alloc(&b->dev[i], b->rows, end, b->n_dev == 1, e);
    return rc;
}

static int open_host_buffers(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct decode *s = b->s;
    const struct config *c = s->c;
    const size_t n = (size_t)b->rows, hidden = n * (size_t)c->hidden * 4, pairs = n * (size_t)c->topk * 4, experts = (size_t)c->n_experts;
    const bool moves = s->n_dev > 1;
    struct {
        void *p;
        size_t bytes;
    } want[] = {{&b->x, hidden},
                {&b->xn, hidden},
                {&b->routed_in, b->n_dev > 1 ? n * (size_t)c->moe_latent * 4 : 0},
                {&b->ids, pairs},
                {&b->cpu_ids, pairs},
                {&b->weights, pairs},
                {&b->pos, 2 * n * 4},
                {&b->bad, 4},
                {&b->kv, kv_writeback_prefill_bytes(s, b->rows)},
                {&b->carry.streams, moves ? hidden * (size_t)c->streams.n : 0},
                {&b->carry.post, moves ? n * (size_t)c->streams.n * 4 : 0},
                {&b->carry.carried, moves ? n * (size_t)c->carried * 4 : 0},
                {&b->carry.kept, moves && config_keeps_rows(c) ? hidden : 0},
                {&b->carry.selected_keys, moves ? n * (size_t)c->index_topk * 4 : 0}};
    int rc = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want && !rc; i++)
        if (want[i].bytes) rc = gpu_host_alloc(b->dev[0].g, want[i].p, want[i].bytes, e);
    if (rc) return rc;
    b->carry.x = b->x;
    b->experts = mem_alloc(experts * sizeof *b->experts);
    b->expert_ids = mem_alloc(experts * sizeof *b->expert_ids);
    b->n_pairs = mem_alloc(2 * experts * sizeof *b->n_pairs);
    b->device_of = mem_alloc(experts);
    b->logits = mem_alloc((size_t)(j->on_logits ? HEAD_ROWS : 1) * (size_t)c->vocab * sizeof *b->logits);
    b->cpu_latent = mem_alloc(2 * n * (size_t)c->moe_latent * sizeof *b->cpu_latent + 1);
    if (!b->experts || !b->expert_ids || !b->n_pairs || !b->device_of || !b->logits || !b->cpu_latent)
        return error_set(e, ERR_MEMORY, "no memory for a prefill");
    b->first_pair = b->n_pairs + experts;
    return 0;
}

static void cancel_devices(struct blend *b) { /* cancels everything in flight; no decode batch is running */
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        if (p->stop) atomic_store(p->stop, 1);
        upload_abort(&p->uploads);
        if (p->summed) gpu_timeline_abort(p->summed);
    }
    cpu_settle(b->s->m, (struct gpu_timeline *[]){b->cpu_done, b->arrived}, 2);
}

static void blend_close(struct runtime *m, struct prefill_job *j) {
    struct blend *b = j->state;
    struct error device = {0};
    cancel_devices(b);
    for (int i = 0; i < m->decode->n_dev; i++) expert_pool_freeze(&m->decode->dev[i], false);
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        blend_device_close(p);
        if (p->d) device_kv_uploads_settle(p->d);
        else if (gpu_error(p->g, &device) && gpu_clear(p->g, &device)) m->gpus->is_lost = true;
    }
    trace_settle(m->trace);
    for (int i = 0; i < b->n_dev; i++)
        if (b->dev[i].d && b->dev[i].stop) atomic_store(b->dev[i].stop, 0);
    void *pinned[] = {b->x,           b->xn, b->ids,           b->cpu_ids,    b->weights,    b->pos,           b->routed_in,
                      (void *)b->bad, b->kv, b->carry.streams, b->carry.post, b->carry.kept, b->carry.carried, b->carry.selected_keys};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) gpu_host_free(m->gpus->gpu[0], pinned[i]);
    gpu_timeline_close(&b->cpu_done);
    gpu_timeline_close(&b->arrived);
    void *own[] = {b->experts, b->expert_ids, b->n_pairs, b->device_of, b->logits, b->cpu_latent, b};
    routing_trace_end(m->routing, &b->routing_lines, false);
    buf_free(&b->routing_lines);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    j->state = NULL;
    device_kv_lock(m->decode, j->kv, false);
    if (decode_device_error(m->decode, &device)) decode_fall_back(m->decode, device.text, &device);
}

/* Fills e with the device's error if one failed, else with the operation's. */
static int fill_error(struct blend *b, int rc, struct error *e) {
    if (!e->code) decode_device_error(b->s, e);
    for (int i = 0; i < b->n_dev && !e->code; i++) gpu_error(b->dev[i].g, e);
    if (!e->code) exec_op_error(rc, e);
    return e->code;
}

/* Virtual time: no upload may start before the prompt arrives. */
static int start_virtual_clocks(struct blend *b) {
    TRY(gpu_timeline_signal(b->cpu_done, ++b->n_cpu_done, b->s->cpu_queue));
    for (int i = 0; i < b->n_dev; i++) {
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, b->dev[i].uploads.link));
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, blend_device_stream(&b->dev[i])));
    }
    return 0;
}

static int blend_open(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct decode *s = m->decode;
    struct blend *b = mem_calloc(1, sizeof *b);
    if (!b) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    j->state = b;
    b->s = s;
    for (int i = 0; i < s->n_dev; i++) /* makes room: other sessions' KV is uploaded again when they decode */
        while (s->device_kvs && gpu_mem_free(s->dev[i].g) + ledger_bytes(s->dev[i].ledger, LEDGER_WEIGHTS) <
                                    s->dev[i].weight_bytes + blend_device_min_bytes(m, &s->dev[i], j->pos, j->n))
            device_kv_drop(s, s->device_kvs);
    int rc = kv_commit(j->kv, j->pos + j->n, e);
    if (!rc) rc = decode_weights_load(s, e);
    for (int i = 0; i < s->n_dev; i++) expert_pool_freeze(&s->dev[i], true); /* the prefill reads the pool's experts */
    b->move = kv_state_begin(j->kv, j->pos, j->n, 0);
    if (!rc && !device_kv_acquire(s, j->kv, b->move.from_row, j->pos, j->pos + j->n))
        rc = error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    if (!rc) device_kv_lock(s, j->kv, true);
    if (!rc) rc = gpu_timeline_open(s->dev[0].g, &b->arrived, e);
    if (!rc) rc = gpu_timeline_open(s->dev[0].g, &b->cpu_done, e);
    if (!rc) rc = open_devices(b, j, e);
    if (!rc) rc = open_host_buffers(b, j, e);
    for (int i = 0; i < b->n_dev && !rc; i++)
        if (b->dev[i].d) rc = gpu_copy(blend_device_stream(&b->dev[i]), b->dev[i].work.inv_freq, m->w->inv_freq, (size_t)rope_floats(s->c) * 4, GPU_H2D);
    if (!rc && s->cpu_queue) rc = start_virtual_clocks(b);
    if (rc) {
        rc = fill_error(b, rc, e);
        blend_close(m, j);
        device_kv_invalidate(s, j->kv, 0); /* the devices have dropped uploads of this session's KV */
        return rc;
    }
    cost_table_fill(&b->table, m->cost, 0, m->cost_model, COST_MANY_ROWS);
    atomic_store(&j->total, j->n * s->c->n_layers);
    atomic_store(&j->is_ready, 1);
    return 0;
}

/* Uploads experts of a layer before its selection is known: as many as each link can carry while it is idle, during the layer's attention block and,
 * with is_beside_experts, until the experts of the layer before end; at most half a ring. Device i takes every n_dev-th expert, from i on. */
static int upload_ahead(struct blend *b, const struct prefill_job *j, int layer, bool is_beside_experts, struct error *e) {
    struct runtime *m = b->s->m;
    const struct split_plan *plan = &b->plan;
    const bool follows_split =
        is_beside_experts && plan->transfer_begin[b->n_dev + 1] > plan->transfer_begin[1]; /* a split that uploads nothing has no use for more */
    const double attention_s = cost_attention_block(m->cost, 1 + b->dev[b->owner].rank, m->cost_model, cost_prefill_rows(b->n, j->pos + b->at));
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        const double upload_s = cost_transfer(m->cost, 1 + p->rank, COST_H2D, m->cost_model->expert_bytes);
        const int n_uploads = follows_split ? plan->transfer_begin[i + 2] - plan->transfer_begin[i + 1] : 0; /* domain 1 + i is device i */
        double left = attention_s + (follows_split && plan->end_s > n_uploads * upload_s ? plan->end_s - n_uploads * upload_s : 0);
        int32_t x = i;
        for (int k = 0; x < b->s->c->n_experts && k < p->n_slots / 2 && upload_s <= left; k++, x += b->n_dev, left -= upload_s) {
            struct expert_slot *t = blend_device_expert(p, layer, x) ? NULL : blend_device_free_slot(p, layer);
            if (!t) continue;
            if (!b->s->cpu_queue) TRY(nan_scan_experts(&m->scan, layer, &x, 1, e));
            TRY(blend_device_upload(p, t, layer, x));
        }
    }
    return 0;
}

/* --- A layer --------------------------------------------------------------------------------------------------------------------- */

/* Moves the residual stream to the device of the next layer. */
static int move_rows(struct blend *b) {
    struct blend_device *from = &b->dev[b->owner], *to = from;
    const struct decode_device *d = decode_device_of(b->s, b->layer);
    for (int i = 0; i < b->n_dev; i++)
        if (b->dev[i].d == d) to = &b->dev[b->owner = i];
    if (from == to) return 0;
    TRY(decode_carry(b->s->c, blend_device_stream(from), &b->carry, &from->work, b->n, b->layer, GPU_D2H));
    TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, blend_device_stream(from)));
    TRY(gpu_timeline_wait(b->arrived, b->n_arrived, blend_device_stream(to)));
    return decode_carry(b->s->c, blend_device_stream(to), &to->work, &b->carry, b->n, b->layer, GPU_H2D);
}

/* Returns the owner's copies of all of the layer's routed experts; NULL: they are split over devices and CPU. */
static const struct expert *resident_experts(const struct blend *b) { return b->dev[b->owner].d->layers[b->layer].experts.view; }
/* Whether the host needs what the router selects: to split it, or to record it. */
static bool host_reads_selection(const struct blend *b) { return b->s->c->layer[b->layer].moe && (b->s->m->routing || !resident_experts(b)); }

static int attention_block(struct blend *b, const struct prefill_job *j, const struct device_kv *copy) {
    const struct config *c = b->s->c;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    struct exec *x = gpu_stream_exec(main);
    const struct layer *y = &p->d->layers[b->layer].view;
    struct span t = {.cache = copy->layers, .n = b->n, .pos = j->pos + b->at, .state_step = copy->move};
    size_t pairs = (size_t)b->n * (size_t)c->topk * 4, hidden = (size_t)b->n * (size_t)c->hidden * 4;
    int span = trace_begin(b->s->m->trace, main, p->rank, LANE_COMPUTE, "attention", b->layer, -1);
    TRY(block_attention(x, c, y, b->layer, &p->work, &t, 1, b->n));
    TRY(kv_writeback_download_prefill(b->s, copy, main, b->layer, t.pos, b->n, b->kv));
    TRY(block_route(x, c, y, b->layer, &p->work, b->n));
    if (host_reads_selection(b)) {
        TRY(gpu_copy(main, b->xn, p->work.xn, hidden, GPU_D2H));
        TRY(gpu_copy(main, b->ids, p->work.ids, pairs, GPU_D2H));
        TRY(gpu_copy(main, b->weights, p->work.weights, pairs, GPU_D2H));
        TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.first_bad, 4, GPU_D2H));
        TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, main));
    }
    TRY(block_experts(x, c, y, b->layer, &p->work, PART_SHARED, p->work.x, b->n));
    trace_end(b->s->m->trace, span, main);
    return 0;
}

/* Prepares the owner's routed experts: *in and *sum, their input and where their outputs are added. With experts in a latent space both are buffers of
 * that width, and the input is also sent to host memory for the other devices. */
static int begin_routed(struct blend *b, const float **in, float **sum) {
    const struct config *c = b->s->c;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    const size_t latent = (size_t)b->n * (size_t)c->moe_latent * 4;
    *in = p->work.xn, *sum = p->work.x;
    if (!latent) return 0;
    *in = p->work.routed_in, *sum = p->work.routed_sum;
    TRY(block_routed_input(gpu_stream_exec(main), c, &p->d->layers[b->layer].view, p->work.xn, p->work.routed_in, b->n));
    TRY(gpu_fill(main, p->work.routed_sum, 0, latent));
    if (b->n_dev == 1) return 0;
    TRY(gpu_copy(main, b->routed_in, p->work.routed_in, latent, GPU_D2H));
    return gpu_timeline_signal(b->arrived, ++b->n_arrived, main);
}
/* Adds a sum in latent space to the residual stream. */
static int end_routed(struct blend *b) {
    const struct config *c = b->s->c;
    const struct blend_device *p = &b->dev[b->owner];
    struct exec *x = gpu_stream_exec(blend_device_stream(p));
    return c->moe_latent ? block_routed_output(x, c, &p->d->layers[b->layer].view, p->work.routed_sum, p->work.x, b->n) : 0;
}

/* Counts the pairs of each expert and splits the experts into b->plan. Domain 0 is the CPU, domain 1 + i device i. */
static void split_layer(struct blend *b) {
    const struct config *c = b->s->c;
    struct runtime *m = b->s->m;
    const double bytes = (double)b->n * m->cost_model->row_bytes, upload_sum_s = cost_transfer(m->cost, 1 + b->dev[b->owner].rank, COST_H2D, bytes);
    struct split_domain d[1 + GPU_MAX] = {{.class = COST_CPU, .expert_cost = &b->table}}; /* the rows are in host memory already */
    struct split_in in = {.domain = d, .expert = b->experts, .n_domains = 1 + b->n_dev, .join_s = upload_sum_s};
    for (int i = 0; i < b->n_dev; i++) {
        const struct blend_device *p = &b->dev[i];
        const int rank = 1 + p->rank;
        d[1 + i] = (struct split_domain){.class = COST_GPU,
                                         .expert_cost = &p->table,
                                         .transfer_s = cost_transfer(m->cost, rank, COST_H2D, m->cost_model->expert_bytes),
                                         .max_transfers = c->n_experts};
        if (i == b->owner) d[1 + i].busy_s = cost_shared(m->cost, rank, m->cost_model, b->n);
        else d[1 + i].start_s = cost_transfer(m->cost, rank, COST_H2D, bytes) + cost_transfer(m->cost, rank, COST_D2H, bytes) + upload_sum_s;
    }
    memset(b->n_pairs, 0, (size_t)c->n_experts * sizeof *b->n_pairs);
    if (b->s->cpu_queue) /* nothing was computed: assume even groups */
        for (int x = 0; x < c->n_experts; x++)
            b->n_pairs[x] = (int)((int64_t)b->n * c->topk * (x + 1) / c->n_experts - (int64_t)b->n * c->topk * x / c->n_experts);
    for (int i = 0; i < b->n * c->topk && !b->s->cpu_queue; i++) b->n_pairs[b->ids[i]]++;
    for (int x = 0; x < c->n_experts; x++) {
        uint32_t resident = 1; /* bit d: domain d has the expert */
        if (!b->n_pairs[x]) continue;
        for (int i = 0; i < b->n_dev; i++) resident |= blend_device_expert(&b->dev[i], b->layer, x) ? 2u << i : 0;
        b->expert_ids[in.n] = (int16_t)x;
        b->experts[in.n++] = (struct split_expert){.rows = b->n_pairs[x], .resident = resident};
    }
    split_run(m->split_policy, &in, &b->plan);
}

/* Orders the experts of a device (by index): first *n_present that need no upload, then the uploads in the plan's order. Returns how many; *pairs: the
 * pairs of all of them. */
static int order_experts(struct blend *b, int device, int16_t *order, int *n_present, int32_t *pairs) {
    const struct split_plan *plan = &b->plan;
    const int domain = 1 + device;
    int n_ordered = 0;
    for (int i = plan->queue_begin[domain]; i < plan->queue_begin[domain + 1]; i++)
        if (blend_device_expert(&b->dev[device], b->layer, b->expert_ids[plan->queue[i]])) order[n_ordered++] = b->expert_ids[plan->queue[i]];
    *n_present = n_ordered;
    for (int i = plan->transfer_begin[domain]; i < plan->transfer_begin[domain + 1]; i++) order[n_ordered++] = b->expert_ids[plan->transfer[i]];
    *pairs = 0;
    for (int i = 0; i < n_ordered; i++) b->device_of[order[i]] = (int8_t)device, b->first_pair[order[i]] = *pairs, *pairs += b->n_pairs[order[i]];
    return n_ordered;
}

/* Sorts each device's pairs by expert; b->cpu_ids receives the CPU's selection, -1 for the rest. */
static void sort_pairs(struct blend *b) {
    const int topk = b->s->c->topk;
    for (int i = 0; i < b->n * topk && !b->s->cpu_queue; i++) {
        const int expert = b->ids[i], device = b->device_of[expert];
        b->cpu_ids[i] = device < 0 ? expert : -1;
        if (device < 0) continue;
        const int32_t to = b->first_pair[expert]++;
        b->dev[device].pair_token[to] = i / topk;
        b->dev[device].pair_weight[to] = b->weights[i];
    }
}

/* Adds a sum in host memory, [n, width], to one of the owner's; reuses xn as scratch. */
static int add_sum(struct blend *b, float *to, const float *sum, int width) {
    struct blend_device *p = &b->dev[b->owner];
    struct exec *x = gpu_stream_exec(blend_device_stream(p));
    TRY(gpu_copy(blend_device_stream(p), p->work.xn, sum, (size_t)b->n * (size_t)width * 4, GPU_H2D));
    return x->ops->add(x, &(struct op_add){.y = to, .x = p->work.xn, .n = b->n, .m = width});
}

/* Enqueues the split's experts on all devices, and the sum of their outputs on the owner. */
static int device_experts(struct blend *b) {
    int16_t orders[SPLIT_EXPERTS], *order[GPU_MAX];
    int n[GPU_MAX], n_present[GPU_MAX], n_ordered = 0;
    int32_t pairs[GPU_MAX];
    const int width = config_routed_width(b->s->c);
    const size_t bytes = (size_t)b->n * (size_t)width * 4;
    const float *own_in;
    float *own_sum;
    memset(b->device_of, -1, (size_t)b->s->c->n_experts);
    for (int i = 0; i < b->n_dev; n_ordered += n[i++]) n[i] = order_experts(b, i, order[i] = orders + n_ordered, &n_present[i], &pairs[i]);
    sort_pairs(b);
    if (!n_ordered) return 0;
    TRY(begin_routed(b, &own_in, &own_sum));
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        struct gpu_stream *main = blend_device_stream(p);
        if (!n[i]) continue;
        TRY(gpu_copy(main, p->token, p->pair_token, (size_t)pairs[i] * 4, GPU_H2D));
        TRY(gpu_copy(main, p->weight, p->pair_weight, (size_t)pairs[i] * 4, GPU_H2D));
        if (i == b->owner) {
            TRY(blend_device_run_experts(p, b->layer, order[i], n_present[i], n[i], b->n_pairs, own_in, own_sum));
            continue;
        }
        TRY(gpu_timeline_wait(b->arrived, b->n_arrived, main)); /* the host has waited for xn, but not for routed_in */
        TRY(gpu_copy(main, p->xn, b->routed_in ? b->routed_in : b->xn, bytes, GPU_H2D));
        TRY(gpu_fill(main, p->y, 0, bytes));
        TRY(blend_device_run_experts(p, b->layer, order[i], n_present[i], n[i], b->n_pairs, p->xn, p->y));
        TRY(gpu_copy(main, p->sum, p->y, bytes, GPU_D2H));
        TRY(gpu_timeline_signal(p->summed, ++p->n_summed, main));
    }
    for (int i = 0; i < b->n_dev; i++) {
        if (i == b->owner || !n[i]) continue;
        TRY(gpu_timeline_wait(b->dev[i].summed, b->dev[i].n_summed, blend_device_stream(&b->dev[b->owner])));
        TRY(add_sum(b, own_sum, b->dev[i].sum, width));
    }
    return end_routed(b);
}

/* Counts the pairs of the experts in the plan's queue [from, to). */
static int count_pairs(const struct blend *b, int from, int to) {
    int sum = 0;
    for (int i = from; i < to; i++) sum += b->experts[b->plan.queue[i]].rows;
    return sum;
}

/* Corrects the cost model with the CPU's time, for the next layer's split. */
static void observe_cpu_time(struct blend *b, double seconds) {
    struct cost_machine *machine = b->s->m->cost;
    int n = b->plan.queue_begin[1] - b->plan.queue_begin[0];
    double rows = count_pairs(b, b->plan.queue_begin[0], b->plan.queue_begin[1]) / (double)n, expected = 0;
    for (int i = b->plan.queue_begin[0]; i < b->plan.queue_begin[1]; i++) expected += cost_table_at(&b->table, b->experts[b->plan.queue[i]].rows);
    cost_observe(machine, &machine->domain[0].observed[COST_FFN], rows, expected, seconds);
    if (!machine->is_deterministic) cost_table_fill(&b->table, machine, 0, b->s->m->cost_model, COST_MANY_ROWS);
}

/* Computes the CPU's experts, and enqueues the upload of their sum and its addition on the owner. */
static int cpu_experts(struct blend *b, struct error *e) {
    struct decode *s = b->s;
    struct work w = {.x = b->x,
                     .xn = b->xn,
                     .ids = b->cpu_ids,
                     .weights = b->weights,
                     .first_bad = s->head.first_bad,
                     .routed_in = b->cpu_latent,
                     .routed_sum = b->cpu_latent + (size_t)b->rows * (size_t)s->c->moe_latent};
    size_t hidden = (size_t)b->n * (size_t)s->c->hidden * 4;
    const struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    if (b->plan.queue_begin[1] == b->plan.queue_begin[0]) return 0;
    if (!s->cpu_queue) {
        memset(b->x, 0, hidden);
        TRY(cpu_prepare_experts(s->m, &w, b->layer, b->n, e));
    }
    s->m->cpu->cancel = s->cancel;
    w.computed_fraction = (float)count_pairs(b, b->plan.queue_begin[0], b->plan.queue_begin[1]) / (float)(b->n * s->c->topk);
    double t = trace_now(s->m->trace), begin = clock_now();
    TRY(block_experts(s->m->cpu, s->c, numa_copy_layer(s->m->numa_copy, s->m->w, b->layer), b->layer, &w, PART_ROUTED, b->x, b->n));
    trace_cpu(s->m->trace, t, "experts", b->layer, -1);
    if (!s->cpu_queue) observe_cpu_time(b, clock_now() - begin);
    if (s->cpu_queue) {
        TRY(gpu_timeline_signal(b->cpu_done, ++b->n_cpu_done, s->cpu_queue));
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, main));
    }
    return add_sum(b, p->work.x, b->x, s->c->hidden);
}

/* Enqueues all routed experts of a layer, resident on the owner. */
static int device_all_experts(struct blend *b) {
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    struct layer y = p->d->layers[b->layer].view;
    y.experts = (struct expert *)resident_experts(b);
    const int span = trace_begin(b->s->m->trace, main, p->rank, LANE_COMPUTE, "experts", b->layer, -1);
    TRY(block_experts(gpu_stream_exec(main), b->s->c, &y, b->layer, &p->work, PART_ROUTED, p->work.x, b->n));
    trace_end(b->s->m->trace, span, main);
    return 0;
}
/* Whether the experts of a layer are split over devices and CPU. */
static bool is_split(const struct blend *b, int layer) { return b->s->c->layer[layer].moe && !decode_device_of(b->s, layer)->layers[layer].experts.view; }

static int run_layer(struct blend *b, const struct prefill_job *j, struct error *e) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    bool moe = s->c->layer[b->layer].moe;
    struct device_kv *copy = device_kv_acquire(s, j->kv, b->move.from_row, j->pos + b->at, j->pos + j->n);
    if (!copy) return error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    copy->move.mark = b->move.mark;
    TRY(move_rows(b));
    if (moe && !resident_experts(b) && (!b->layer || !is_split(b, b->layer - 1))) TRY(upload_ahead(b, j, b->layer, false, e));
    TRY(attention_block(b, j, copy));
    if (!host_reads_selection(b)) return moe ? device_all_experts(b) : 0;
    if (s->cpu_queue) TRY(gpu_timeline_wait(b->arrived, b->n_arrived, s->cpu_queue));
    else {
        TRY(gpu_timeline_wait_host(b->arrived, b->n_arrived, s->cancel));
        if (*b->bad >= 0) return exec_check_finite(*b->bad, e);
        TRY(nan_scan_experts(&m->scan, b->layer, b->ids, b->n * s->c->topk, e));
        usage_profile_count(m->usage, b->layer, b->ids, b->n * s->c->topk);
    }
    if (!s->cpu_queue)
        routing_trace_add(m->routing, &b->routing_lines,
                          &(struct routing_trace_rows){.batch = b->routing_batch,
                                                       .chat = j->kv,
                                                       .is_prefill = true,
                                                       .layer = b->layer,
                                                       .n = b->n,
                                                       .pos = j->pos + b->at,
                                                       .tokens = j->tokens + b->at,
                                                       .ids = b->ids,
                                                       .weights = b->weights});
    if (resident_experts(b)) return device_all_experts(b);
    split_layer(b);
    TRY(device_experts(b));
    const int next = b->layer + 1;
    if (next < s->c->n_layers && is_split(b, next)) TRY(upload_ahead(b, j, next, true, e)); /* before the CPU's part, so that links are busy during it */
    return cpu_experts(b, e);
}

/* --- The mode -------------------------------------------------------------------------------------------------------------------- */

static int begin_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    b->n = j->n - b->at < b->rows ? j->n - b->at : b->rows;
    b->layer = 0;
    b->routing_batch = routing_trace_begin(m->routing);
    b->move = kv_state_begin(j->kv, j->pos + b->at, b->n, prefill_mark_row(j, b->at, b->n));
    m->cpu->cancel = j->cancel;
    int32_t *tokens = b->pos + b->rows;
    for (int i = 0; i < b->n; i++) b->pos[i] = j->pos + b->at + i, tokens[i] = s->cpu_queue ? 0 : j->tokens[b->at + i];
    if (!s->cpu_queue) TRY(block_embed(m->cpu, m->w, b->x, j->tokens + b->at, b->n));
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        struct gpu_stream *main = blend_device_stream(p);
        if (!p->d) continue;
        TRY(gpu_fill(main, (void *)p->work.first_bad, 0xff, 4));
        TRY(gpu_copy(main, p->work.pos, b->pos, (size_t)b->n * 4, GPU_H2D));
        TRY(gpu_copy(main, p->work.tokens, tokens, (size_t)b->n * 4, GPU_H2D));
        TRY(block_rope(gpu_stream_exec(main), m->w, &p->work, b->n, j->pos + j->n));
        if (p->d != decode_device_of(s, 0)) continue;
        TRY(gpu_copy(main, p->work.x, b->x, (size_t)b->n * (size_t)s->c->hidden * 4, GPU_H2D));
        b->owner = i;
    }
    return 0;
}

/* Stores the batch in the host KV and computes the wanted logits. */
static int end_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    size_t hidden = (size_t)s->c->hidden;
    int first = j->on_logits ? (j->n_reported > b->at ? j->n_reported - b->at : 0) : b->at + b->n == j->n ? b->n - 1 : b->n;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    TRY(block_merge_streams(gpu_stream_exec(main), p->d->head_weights, &p->work, b->n));
    TRY(gpu_copy(main, b->x, p->work.x, (size_t)b->n * hidden * 4, GPU_D2H));
    TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.first_bad, 4, GPU_D2H));
    for (int i = 0; i < b->n_dev; i++) TRY(gpu_stream_sync(blend_device_stream(&b->dev[i])));
    if (s->cpu_queue) { /* order what follows after the device's clock */
        TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, main));
        TRY(gpu_timeline_wait(b->arrived, b->n_arrived, s->cpu_queue));
        return gpu_stream_sync(s->cpu_queue);
    }
    if (*b->bad >= 0) return exec_check_finite(*b->bad, e);
    kv_writeback_store_prefill(s, j->kv, &b->move, j->pos + b->at, b->n, b->kv);
    device_kv_set_valid(s, j->kv, j->pos + b->at + b->n);
    prefill_complete(j, b->at, b->n, &b->move);
    routing_trace_end(m->routing, &b->routing_lines, true);
    for (int i = first; i < b->n; i += HEAD_ROWS) {
        cpu_count_read(m, mat_bytes(&m->w->head));
        TRY(prefill_head(m, j, b->x + (size_t)i * hidden, 0, b->at + i, b->n - i < HEAD_ROWS ? b->n - i : HEAD_ROWS, b->logits, e));
    }
    return 0;
}

static int blend_advance(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct blend *b = j->state;
    int layers = b->s->c->n_layers, rc = 0;
    b->s->cancel = m->cpu->cancel = j->cancel; /* a decode batch in between has set its own */
    b->s->clock++;
    if (j->cancel && atomic_load(j->cancel)) rc = ERR_CANCELLED;
    for (int i = 0; i < b->n_dev && !rc; i++)
        if (!blend_device_stream(&b->dev[i])) rc = error_set(e, ERR_RUNTIME, "the device failed during decode");
    if (!rc && !b->n) rc = begin_batch(b, j, e);
    if (!rc) rc = run_layer(b, j, e);
    if (!rc && ++b->layer == layers) rc = end_batch(b, j, e);
    if (rc) {
        device_kv_invalidate(b->s, j->kv, 0);
        return fill_error(b, rc, e);
    }
    if (b->layer == layers) trace_settle(m->trace);
    atomic_store(&j->done, b->at * layers + b->n * b->layer);
    if (b->layer < layers) return PREFILL_MORE;
    b->at += b->n;
    b->n = 0;
    return b->at < j->n ? PREFILL_MORE : 0;
}

const struct prefill_driver prefill_mode_blend = {.mode = PREFILL_BLEND, .unit = "prefill", .open = blend_open, .advance = blend_advance, .close = blend_close};
