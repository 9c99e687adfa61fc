/* The routed experts of a layer in a blended prefill: their split over devices and CPU, uploads of missing ones, and
 * the sums of their outputs. */
#include <string.h>

#include "base/clock.h"
#include "engine/exec/blend/blend_internal.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/layer/expert_io.h"

bool blend_experts_are_split(const struct blend *b, int layer) {
    return b->s->c->layer[layer].moe && !decode_device_of(b->s, layer)->layers[layer].experts.view;
}

/* Device i takes every n_dev-th expert, from i on. */
int blend_experts_upload_ahead(struct blend *b, const struct prefill_job *j, int layer, bool is_beside_experts,
                               struct error *e) {
    struct runtime *m = b->s->m;
    const struct split_plan *plan = &b->plan;
    const bool follows_split =
        /* a split that uploads nothing has no use for more */
        is_beside_experts && plan->transfer_begin[b->n_dev + 1] > plan->transfer_begin[1];
    const double attention_s = cost_attention_block(m->cost, 1 + b->dev[b->owner].rank, m->cost_model,
                                                    cost_prefill_rows(b->n, j->pos + b->at));
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        const double upload_s = cost_upload_beside(m->cost, 1 + p->rank, m->cost_model->expert_bytes);
        /* domain 1 + i is device i */
        const int n_uploads = follows_split ? plan->transfer_begin[i + 2] - plan->transfer_begin[i + 1] : 0;
        double left = attention_s +
                      (follows_split && plan->end_s > n_uploads * upload_s ? plan->end_s - n_uploads * upload_s : 0);
        int32_t x = i;
        for (int k = 0; x < b->s->c->n_experts && k < p->n_slots / 2 && upload_s <= left;
             k++, x += b->n_dev, left -= upload_s) {
            struct expert_slot *t = blend_device_expert(p, layer, x) ? NULL : blend_device_free_slot(p, layer);
            if (!t) continue;
            if (!b->s->cpu_queue) TRY(nan_scan_experts(&m->scan, layer, &x, 1, e));
            TRY(blend_device_upload(p, t, layer, x));
        }
    }
    return 0;
}

/* --- Experts on devices ----------------------------------------------------------------------- */

/* Prepares the owner's routed experts, and sends what they read to host memory for the other devices if it is not what
 * the host has already. */
static int begin_routed(struct blend *b) {
    const struct config *c = b->s->c;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    const struct expert_io io = expert_io_of(c, &p->work, p->work.x);
    TRY(expert_io_begin(gpu_stream_exec(main), c, &p->d->layers[b->layer].view, &p->work, b->n));
    if (!b->in) return 0;
    TRY(gpu_copy(main, b->in, io.in, (size_t)b->n * (size_t)io.width * 4, GPU_D2H));
    return gpu_timeline_signal(b->arrived, ++b->n_arrived, main);
}
/* Adds the sum of all executors to the residual stream. */
static int end_routed(struct blend *b) {
    const struct blend_device *p = &b->dev[b->owner];
    return expert_io_end(gpu_stream_exec(blend_device_stream(p)), b->s->c, &p->d->layers[b->layer].view, &p->work,
                         p->work.x, b->n);
}

/* Counts the pairs of each expert and splits the experts into b->plan. Domain 0 is the CPU, domain 1 + i device i. */
static void split_layer(struct blend *b) {
    const struct config *c = b->s->c;
    struct runtime *m = b->s->m;
    const double bytes = (double)b->n * m->cost_model->row_bytes,
                 upload_sum_s = cost_transfer(m->cost, 1 + b->dev[b->owner].rank, COST_H2D, bytes);
    /* the rows are in host memory already */
    struct split_domain d[1 + GPU_MAX] = {{.class = COST_CPU, .expert_cost = &b->table}};
    struct split_in in = {.domain = d, .expert = b->experts, .n_domains = 1 + b->n_dev, .join_s = upload_sum_s};
    for (int i = 0; i < b->n_dev; i++) {
        const struct blend_device *p = &b->dev[i];
        const int rank = 1 + p->rank;
        d[1 + i] = (struct split_domain){.class = COST_GPU,
                                         .expert_cost = &p->table,
                                         .transfer_s = cost_upload_beside(m->cost, rank, m->cost_model->expert_bytes),
                                         .max_transfers = c->n_experts};
        if (i == b->owner) d[1 + i].busy_s = cost_shared(m->cost, rank, m->cost_model, b->n);
        else
            d[1 + i].start_s = cost_transfer(m->cost, rank, COST_H2D, bytes) +
                               cost_transfer(m->cost, rank, COST_D2H, bytes) + upload_sum_s;
    }
    memset(b->n_pairs, 0, (size_t)c->n_experts * sizeof *b->n_pairs);
    if (b->s->cpu_queue) /* nothing was computed: assume even groups */
        for (int x = 0; x < c->n_experts; x++)
            b->n_pairs[x] =
                (int)((int64_t)b->n * c->topk * (x + 1) / c->n_experts - (int64_t)b->n * c->topk * x / c->n_experts);
    for (int i = 0; i < b->n * c->topk && !b->s->cpu_queue; i++) b->n_pairs[b->host.ids[i]]++;
    bool is_new = b->plan_rows != b->n || b->plan_owner != b->owner;
    for (int x = 0; x < c->n_experts; x++) {
        uint32_t resident = 1; /* bit d: domain d has the expert */
        if (!b->n_pairs[x]) continue;
        for (int i = 0; i < b->n_dev; i++) resident |= blend_device_expert(&b->dev[i], b->layer, x) ? 2u << i : 0;
        const struct split_expert *last = &b->experts[in.n];
        is_new |= in.n >= b->plan_experts || last->rows != b->n_pairs[x] || last->resident != resident;
        b->expert_ids[in.n] = (int16_t)x;
        b->experts[in.n++] = (struct split_expert){.rows = b->n_pairs[x], .resident = resident};
    }
    /* in virtual time many layers are alike, and costs are fixed */
    if (b->s->cpu_queue && !is_new && in.n == b->plan_experts) return;
    b->plan_rows = b->n, b->plan_owner = b->owner, b->plan_experts = in.n;
    split_run(m->split_policy, &in, &b->plan);
}

/* Orders the experts of a device (by index): first *n_present that need no upload, then the uploads in the plan's
 * order. Returns how many; *pairs: the pairs of all of them. */
static int order_experts(struct blend *b, int device, int16_t *order, int *n_present, int32_t *pairs) {
    const struct split_plan *plan = &b->plan;
    const int domain = 1 + device;
    int n_ordered = 0;
    for (int i = plan->queue_begin[domain]; i < plan->queue_begin[domain + 1]; i++)
        if (blend_device_expert(&b->dev[device], b->layer, b->expert_ids[plan->queue[i]]))
            order[n_ordered++] = b->expert_ids[plan->queue[i]];
    *n_present = n_ordered;
    for (int i = plan->transfer_begin[domain]; i < plan->transfer_begin[domain + 1]; i++)
        order[n_ordered++] = b->expert_ids[plan->transfer[i]];
    *pairs = 0;
    for (int i = 0; i < n_ordered; i++)
        b->device_of[order[i]] = (int8_t)device, b->first_pair[order[i]] = *pairs, *pairs += b->n_pairs[order[i]];
    return n_ordered;
}

/* Sorts each device's pairs by expert; b->cpu_ids receives the CPU's selection, -1 for the rest. */
static void sort_pairs(struct blend *b) {
    const int topk = b->s->c->topk;
    for (int i = 0; i < b->n * topk && !b->s->cpu_queue; i++) {
        const int expert = b->host.ids[i], device = b->device_of[expert];
        b->cpu_ids[i] = device < 0 ? expert : -1;
        if (device < 0) continue;
        const int32_t to = b->first_pair[expert]++;
        b->dev[device].pair_token[to] = i / topk;
        b->dev[device].pair_weight[to] = b->host.weights[i];
    }
}

/* Adds a sum in host memory, [n, expert_io.width], to the owner's; reuses xn as scratch. */
static int add_sum(struct blend *b, const float *sum) {
    struct blend_device *p = &b->dev[b->owner];
    const struct expert_io io = expert_io_of(b->s->c, &p->work, p->work.x);
    struct exec *x = gpu_stream_exec(blend_device_stream(p));
    TRY(gpu_copy(blend_device_stream(p), p->work.xn, sum, (size_t)b->n * (size_t)io.width * 4, GPU_H2D));
    return x->ops->add(x, &(struct op_add){.y = io.sum, .x = p->work.xn, .n = b->n, .m = io.width});
}

/* Enqueues the split's experts on all devices, and the sum of their outputs on the owner, which end_routed() adds. */
static int device_experts(struct blend *b) {
    int16_t orders[SPLIT_EXPERTS], *order[GPU_MAX];
    int n[GPU_MAX], n_present[GPU_MAX], n_ordered = 0;
    int32_t pairs[GPU_MAX];
    const struct work *w = &b->dev[b->owner].work;
    const struct expert_io own = expert_io_of(b->s->c, w, w->x);
    const size_t bytes = (size_t)b->n * (size_t)own.width * 4;
    memset(b->device_of, -1, (size_t)b->s->c->n_experts);
    for (int i = 0; i < b->n_dev; n_ordered += n[i++])
        n[i] = order_experts(b, i, order[i] = orders + n_ordered, &n_present[i], &pairs[i]);
    sort_pairs(b);
    TRY(begin_routed(b));
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        struct gpu_stream *main = blend_device_stream(p);
        if (!n[i]) continue;
        TRY(gpu_copy(main, p->token, p->pair_token, (size_t)pairs[i] * 4, GPU_H2D));
        TRY(gpu_copy(main, p->weight, p->pair_weight, (size_t)pairs[i] * 4, GPU_H2D));
        if (i == b->owner) {
            TRY(blend_device_run_experts(p, b->layer, order[i], n_present[i], n[i], b->n_pairs, own.in, own.sum));
            continue;
        }
        TRY(gpu_timeline_wait(b->arrived, b->n_arrived, main)); /* the host has waited for xn, but not for b->in */
        TRY(gpu_copy(main, p->xn, b->in ? b->in : b->host.xn, bytes, GPU_H2D));
        TRY(gpu_fill(main, p->y, 0, bytes));
        TRY(blend_device_run_experts(p, b->layer, order[i], n_present[i], n[i], b->n_pairs, p->xn, p->y));
        TRY(gpu_copy(main, p->sum, p->y, bytes, GPU_D2H));
        TRY(gpu_timeline_signal(p->summed, ++p->n_summed, main));
    }
    for (int i = 0; i < b->n_dev; i++) {
        if (i == b->owner || !n[i]) continue;
        TRY(gpu_timeline_wait(b->dev[i].summed, b->dev[i].n_summed, blend_device_stream(&b->dev[b->owner])));
        TRY(add_sum(b, b->dev[i].sum));
    }
    return 0;
}

/* --- Experts on the CPU ----------------------------------------------------------------------- */

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
    for (int i = b->plan.queue_begin[0]; i < b->plan.queue_begin[1]; i++)
        expected += cost_table_at(&b->table, b->experts[b->plan.queue[i]].rows);
    cost_observe(machine, &machine->domain[0].observed[COST_FFN], rows, expected, seconds);
    if (!machine->is_deterministic) cost_table_fill(&b->table, machine, 0, b->s->m->cost_model, COST_MANY_ROWS);
}

/* Corrects it with the links' times. */
static void observe_uploads(const struct blend *b) {
    struct cost_machine *machine = b->s->m->cost;
    double bytes, seconds;
    for (int i = 0; i < b->n_dev; i++) {
        const int domain = 1 + b->dev[i].rank;
        if (!stage_take_speed(b->dev[i].uploads.stage, &bytes, &seconds)) continue;
        cost_observe(machine, &machine->domain[domain].observed_beside, 1, cost_upload_beside(machine, domain, bytes),
                     seconds);
    }
}

/* Computes the CPU's experts, and enqueues the upload of their sum and its addition to the owner's. */
static int cpu_experts(struct blend *b, struct error *e) {
    struct decode *s = b->s;
    struct work w = b->host;
    const struct expert_io io = expert_io_of(s->c, &w, w.x);
    w.ids = b->cpu_ids, w.first_bad = s->head.first_bad;
    const struct layer *y = numa_copy_layer(s->m->numa_copy, s->m->w, b->layer);
    struct gpu_stream *main = blend_device_stream(&b->dev[b->owner]);
    if (b->plan.queue_begin[1] == b->plan.queue_begin[0]) return 0;
    if (!s->cpu_queue) {
        memset(io.sum, 0, (size_t)b->n * (size_t)io.width * 4);
        TRY(cpu_prepare_experts(s->m, &w, b->layer, b->n, e));
    }
    s->m->cpu->cancel = s->cancel;
    w.computed_fraction =
        (float)count_pairs(b, b->plan.queue_begin[0], b->plan.queue_begin[1]) / (float)(b->n * s->c->topk);
    double t = trace_now(s->m->trace), begin = clock_now();
    TRY(expert_io_begin(s->m->cpu, s->c, y, &w, b->n));
    TRY(expert_io_add(s->m->cpu, s->c, y, &w, w.x, b->n));
    trace_cpu(s->m->trace, t, "experts", b->layer, -1);
    if (!s->cpu_queue) observe_cpu_time(b, clock_now() - begin);
    if (s->cpu_queue) {
        TRY(gpu_timeline_signal(b->cpu_done, ++b->n_cpu_done, s->cpu_queue));
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, main));
    }
    return add_sum(b, io.sum);
}

int blend_experts_run_split(struct blend *b, const struct prefill_job *j, struct error *e) {
    const int next = b->layer + 1;
    split_layer(b);
    TRY(device_experts(b));
    if (next < b->s->c->n_layers && blend_experts_are_split(b, next))
        TRY(blend_experts_upload_ahead(b, j, next, true, e)); /* links are busy during the CPU's part */
    TRY(cpu_experts(b, e));
    observe_uploads(b);
    return end_routed(b);
}

int blend_experts_run_resident(struct blend *b) {
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    struct layer y = p->d->layers[b->layer].view;
    y.experts = (struct expert *)blend_resident_experts(b);
    const int span = trace_begin(b->s->m->trace, main, p->rank, LANE_COMPUTE, "experts", b->layer, -1);
    TRY(block_experts(gpu_stream_exec(main), b->s->c, &y, b->layer, &p->work, PART_ROUTED, p->work.x, b->n));
    trace_end(b->s->m->trace, span, main);
    return 0;
}
