/* Assigns layers to devices, and opens what they and the host need for batches. */
#include "engine/exec/decode/decode_devices.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/decode_reserve.h"
#include "engine/exec/decode/decode_tensor.h"
#include "engine/exec/decode/decode_weights.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/exec/decode/pinned_experts.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/placement/layer_assign.h"
#include "engine/placement/policy.h"

static int open_device(struct decode_device *d, struct error *e) {
    const struct config *c = d->s->c;
    size_t hidden = (size_t)DECODE_MAX_ROWS * (size_t)c->hidden * 4;
    int rc = gpu_stream_open(d->g, &d->main, "step", true, &d->stop, e);
    d->layers = mem_calloc((size_t)c->n_layers, sizeof *d->layers);
    d->head_weights = mem_alloc(sizeof *d->head_weights);
    d->c = d->shard_config ? d->shard_config : c;
    d->layout = &d->s->layout;
    if (d->shard_config) {
        if ((d->layout = mem_calloc(1, sizeof *d->layout)))
            rc = rc ? rc : kv_writeback_layout_open(d->layout, d->c, d->s->kv, e);
        else if (!rc) rc = error_set(e, ERR_MEMORY, "no memory for the layers of a device");
        for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++) rc = gpu_alloc(d->g, (void **)&d->partial[i], hidden, e);
    }
    if (!rc && (!d->layers || !d->head_weights)) rc = error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    if (!rc) *d->head_weights = *d->s->m->w;
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++)
        rc = work_open_device(&d->work[i], c, DECODE_MAX_ROWS, d->g, &d->main, e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->kv_rows, kv_writeback_rows_bytes(d->layout, DECODE_MAX_ROWS), e);
    if (!rc) rc = gpu_alloc(d->g, (void **)&d->x, hidden, e);
    if (!rc) rc = decode_graph_open(d, e);
    if (!rc) rc = decode_experts_record_open(d, e);
    if (!rc && d->has_head) rc = gpu_alloc(d->g, (void **)&d->xn, hidden, e);
    if (!rc && d->has_head)
        rc = gpu_alloc(d->g, (void **)&d->logits, (size_t)DECODE_MAX_ROWS * (size_t)c->vocab * 4, e);
    if (!rc && d->has_head) rc = gpu_alloc(d->g, (void **)&d->top, DECODE_MAX_ROWS * sizeof *d->top, e);
    return rc;
}

/* Returns the number of ranks of tensor parallelism, with shards [ranks] and *out; 0: devices hold whole layers, as in
 * by_layers. why [cap]: the reason, or empty. */
static int choose_ranks(struct decode *s, const struct layer_assign_in *in, const struct layer_assign_out *by_layers,
                        struct tp_shard shards[GPU_MAX], struct layer_assign_out *out, char *why, size_t cap) {
    const struct weights *w = s->m->w;
    const enum gpu_parallel parallel = s->m->gpus->spec.parallel;
    const bool is_requested = parallel == GPU_PARALLEL_TENSOR;
    const int max_ranks = is_requested ? in->n_devices : by_layers->n;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct layer view;
    *why = 0;
    if (parallel == GPU_PARALLEL_LAYERS || in->n_devices < 2) return 0;
    if (!is_requested && (max_ranks < 2 || in->max_layers || by_layers->end_layer[max_ranks - 1] < in->n_layers))
        return 0; /* one device holds all layers, or the devices together do not */
    if (!is_requested && s->m->whole_layers) return snprintf(why, cap, "blended prefill needs whole layers"), 0;
    if (!is_requested && s->m->expert_cache.request > BUDGET_LAYERS && s->m->expert_cache.request != BUDGET_OFF)
        return snprintf(why, cap, "an expert pool needs whole layers"), 0;
    int ranks = max_ranks;
    for (bool fits = false; ranks > 1 && !fits; ranks -= !fits) {
        size_t bytes[GPU_MAX] = {0};
        if (!tp_shard_split(w, ranks, shards, why, cap)) continue;
        for (int r = 0; r < ranks; r++) {
            const struct config rank_config = tp_shard_config(&w->config, &shards[r]);
            for (int l = 0; l < in->n_layers; l++)
                bytes[r] += copy_ranges_bytes(
                    ranges, decode_weights_layer_ranges(w, &rank_config, &shards[r], l, &view, ranges));
        }
        fits = layer_assign_tensor(in, ranks, bytes, out);
        if (!fits) snprintf(why, cap, "a shard does not fit on its device");
    }
    if (ranks < 2) return 0;
    *why = 0;
    if (!s->m->cost || !s->m->cost_model)
        return is_requested ? ranks : (snprintf(why, cap, "the machine is not calibrated"), 0);
    struct policy_parallel_out times;
    int expert_layers = 0;
    for (int i = 0, first = 0; i < by_layers->n; first = by_layers->end_layer[i++]) {
        size_t weights = by_layers->head_device == i ? in->head_bytes : 0;
        for (int l = first; l < by_layers->end_layer[i]; l++) weights += in->layer_bytes[l];
        expert_layers += decode_experts_budget(s, i, first, by_layers->end_layer[i], weights, in).whole_layers;
    }
    policy_parallel(s->m->cost, s->m->cost_model, ranks, expert_layers, &times);
    snprintf(why, cap,
             "prefill of %d tokens in %.3g s, by layers %.3g s, decode of %d more in %.3g ms each, by layers %.3g ms",
             POLICY_QUESTION, times.question[1], times.question[0], POLICY_ANSWER, times.step[1] * 1e3,
             times.step[0] * 1e3);
    return is_requested || times.tensor ? ranks : 0;
}

/* Returns the bytes of routed experts that devices would hold with these layers. */
static size_t resident_expert_bytes(const struct decode *s, const struct layer_assign_in *in,
                                    const struct layer_assign_out *out) {
    size_t bytes = 0;
    for (int i = 0, first = 0; i < out->n; first = out->end_layer[i++]) {
        size_t weights = out->head_device == i ? in->head_bytes : 0;
        for (int l = first; l < out->end_layer[i]; l++) weights += in->layer_bytes[l];
        bytes += decode_experts_budget(s, i, first, out->end_layer[i], weights, in).bytes;
    }
    return bytes;
}

/* Divides the layers over all devices, although fewer could hold them, if the devices then hold more routed experts. */
static int spread_layers(const struct decode *s, const struct layer_assign_in *in, struct layer_assign_out *out,
                         struct error *e) {
    struct layer_assign_out spread;
    size_t room[GPU_MAX] = {0}, *experts;
    if (in->n_devices < 2 || !s->c->n_experts || s->m->expert_cache.request == BUDGET_OFF || out->n < 1 ||
        out->end_layer[out->n - 1] < in->n_layers)
        return 0;
    if (!(experts = mem_alloc((size_t)in->n_layers * sizeof *experts)))
        return error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    for (int l = 0; l < in->n_layers; l++) experts[l] = resident_experts_bytes(s->c, l, s->m->w->layers[l].experts);
    for (int i = 0; i < in->n_devices; i++) {
        const size_t reserve = decode_least_reserve_bytes(s, s->m->gpus->gpu[i], in->n_layers / in->n_devices);
        room[i] = in->free_bytes[i] > reserve ? in->free_bytes[i] - reserve : 0;
    }
    if (layer_assign_spread(in, experts, room, &spread) &&
        resident_expert_bytes(s, in, &spread) > resident_expert_bytes(s, in, out))
        *out = spread;
    mem_free(experts);
    return 0;
}

static int assign_layers(struct decode *s, struct error *e) {
    const struct weights *w = s->m->w;
    const struct gpu_set *set = s->m->gpus;
    size_t *layer_bytes = mem_alloc((size_t)s->c->n_layers * sizeof *layer_bytes);
    if (!layer_bytes) return error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    struct layer_assign_in in = {.n_layers = s->c->n_layers,
                                 .layer_bytes = layer_bytes,
                                 .n_devices = set->n,
                                 .max_layers = (int)test_limits_get(TEST_LIMIT_DEVICE_LAYERS, 0)};
    struct layer_assign_out out;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct layer view;
    struct weights head;
    for (int l = 0; l < s->c->n_layers; l++)
        layer_bytes[l] = copy_ranges_bytes(ranges, decode_weights_layer_ranges(w, s->c, NULL, l, &view, ranges));
    layer_bytes[s->c->n_layers - 1] +=
        copy_ranges_bytes(ranges, decode_weights_end_ranges(w, MODULE_STREAM_MERGE, &head, ranges));
    in.head_bytes = copy_ranges_bytes(ranges, decode_weights_end_ranges(w, MODULE_HEAD, &head, ranges));
    for (int i = 0; i < set->n; i++) {
        in.free_bytes[i] = gpu_mem_free(set->gpu[i]);
        in.reserve_bytes[i] = decode_reserve_bytes(s, set->gpu[i]);
    }
    layer_assign_whole(&in, &out);
    struct tp_shard shards[GPU_MAX];
    struct layer_assign_out by_ranks;
    char why[160];
    const int ranks = choose_ranks(s, &in, &out, shards, &by_ranks, why, sizeof why);
    if (ranks) out = by_ranks;
    else if (spread_layers(s, &in, &out, e)) {
        mem_free(layer_bytes);
        return e->code;
    }
    s->is_tensor_parallel = ranks > 0;
    char layers_why[320];
    snprintf(layers_why, sizeof layers_why, "%s%s%s", out.why,
             !*why   ? ""
             : ranks ? "; "
                     : "; not tensor parallel: ",
             why);
    for (int i = 0; i < out.n; i++)
        if (s->is_tensor_parallel)
            s->dev[s->n_dev++] = (struct decode_device){
                .s = s, .rank = i, .last = out.end_layer[i], .has_head = out.head_device == i, .shard = shards[i]};
        else if (out.end_layer[i] > (i ? out.end_layer[i - 1] : 0)) /* a device too small for any layer is skipped */
            s->dev[s->n_dev++] = (struct decode_device){.s = s,
                                                        .rank = i,
                                                        .first = i ? out.end_layer[i - 1] : 0,
                                                        .last = out.end_layer[i],
                                                        .has_head = out.head_device == i};
    s->n_resident = out.n ? out.end_layer[out.n - 1] : 0;
    for (int i = 0; i < s->n_dev; i++)
        s->dev[i].g = set->gpu[s->dev[i].rank], s->dev[i].ledger = &s->m->gpus->ledger[s->dev[i].rank];
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        if (s->is_tensor_parallel && !(d->shard_config = mem_alloc(sizeof *d->shard_config))) {
            mem_free(layer_bytes);
            return error_set(e, ERR_MEMORY, "no memory for the layers of a device");
        }
        if (s->is_tensor_parallel) *d->shard_config = tp_shard_config(s->c, &d->shard);
        for (int l = d->first; l < d->last; l++)
            d->weight_bytes += s->is_tensor_parallel
                                   ? copy_ranges_bytes(ranges, decode_weights_layer_ranges(w, d->shard_config,
                                                                                           &d->shard, l, &view, ranges))
                                   : layer_bytes[l];
        if (s->dev[i].has_head) s->dev[i].weight_bytes += in.head_bytes;
        d->draft_full = s->is_tensor_parallel; /* no draft experts: one device would need all of a layer */
        if (s->is_tensor_parallel) continue;
        const struct budget_out experts = decode_experts_budget(s, d->rank, d->first, d->last, d->weight_bytes, &in);
        d->planned_expert_layers = d->n_expert_layers = experts.whole_layers, d->expert_bytes = experts.bytes;
        if (pinned_experts_are_used(s->m)) d->pinned_per_layer = experts.per_layer;
        else d->pool_per_layer = experts.per_layer;
        int n_moe = 0;
        for (int l = d->first; l < d->last && d->pinned_per_layer; l++)
            if (s->c->layer[l].moe) d->pinned_share += pinned_experts_share(s->m, l, d->pinned_per_layer), n_moe++;
        d->pinned_share /= n_moe ? n_moe : 1;
        snprintf(d->pool_why, sizeof d->pool_why, "%s", experts.why);
        if (!gpu_info(d->g)->is_virtual) log_say(LOG_INFO, "routed experts on device %d: %s", d->rank, d->pool_why);
    }
    mem_free(layer_bytes);
    decode_set_placement_why(s, layers_why);
    if (s->n_resident < s->c->n_layers) log_say(LOG_INFO, "%s", s->placement_why);
    return 0;
}

void decode_placement(const struct decode *s, struct placement_report *out) {
    const struct weights *w = s->m->w;
    const int n_layers = s->c->n_layers;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct weights ends = *w;
    struct layer view;
    const size_t head = copy_ranges_bytes(ranges, decode_weights_end_ranges(w, MODULE_HEAD, &ends, ranges));
    size_t cpu_bytes = 0;
    bool any_head = false;
    out->n = 0;
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        const struct placement_row row = {.device = d->rank, .first = d->first, .last = d->last};
        struct placement_row layers = row, experts = row,
                             ends_row = {.item = PLACED_HEAD, .device = d->rank, .bytes = head},
                             room = {.item = PLACED_RESERVE, .device = d->rank, .bytes = decode_reserve_bytes(s, d->g)};
        layers.item = PLACED_LAYERS, layers.bytes = d->weight_bytes - (d->has_head ? head : 0);
        placement_report_add(out, layers, s->layers_why);
        any_head |= d->has_head;
        if (d->has_head) placement_report_add(out, ends_row, "after the last layer");
        experts.item = PLACED_EXPERTS,
        experts.per_layer = d->n_expert_layers ? s->c->n_experts : d->pool_per_layer + d->pinned_per_layer,
        experts.bytes = d->expert_bytes;
        for (int l = d->first, n = 0; n < d->n_expert_layers; l++) n += s->c->layer[l].moe, experts.last = l + 1;
        experts.is_sent = decode_sends_experts(s) && !d->n_expert_layers;
        experts.is_cached = !d->n_expert_layers && !d->pinned_per_layer, experts.is_pinned = d->pinned_per_layer > 0;
        experts.choices = experts.per_layer ? decode_experts_choices(d) : 0;
        if (experts.per_layer) placement_report_add(out, experts, d->pool_why);
        placement_report_add(out, room, "kept free of weights");
    }
    for (int l = s->n_resident; l < n_layers; l++)
        cpu_bytes += copy_ranges_bytes(ranges, decode_weights_layer_ranges(w, s->c, NULL, l, &view, ranges));
    placement_report_add(out, (struct placement_row){.item = PLACED_EMBEDDING, .device = -1, .bytes = w->bytes_embed},
                         "one row is read per token");
    if (s->n_resident < n_layers)
        placement_report_add(
            out,
            (struct placement_row){
                .item = PLACED_LAYERS, .device = -1, .first = s->n_resident, .last = n_layers, .bytes = cpu_bytes},
            s->layers_why);
    if (!any_head)
        placement_report_add(out, (struct placement_row){.item = PLACED_HEAD, .device = -1, .bytes = head},
                             s->n_dev ? "no device has room for it" : "after the last layer");
    if (s->c->n_experts)
        placement_report_add(out,
                             (struct placement_row){.item = PLACED_EXPERTS,
                                                    .device = -1,
                                                    .last = n_layers,
                                                    .per_layer = s->c->n_experts,
                                                    .bytes = w->bytes_routed},
                             "computed by the CPU, except those resident on or uploaded to devices");
}

void decode_set_placement_why(struct decode *s, const char *layers_why) {
    struct placement_report list;
    snprintf(s->layers_why, sizeof s->layers_why, "%s", layers_why);
    decode_placement(s, &list);
    decode_experts_summary(s, s->placement_why, sizeof s->placement_why);
    size_t at = strlen(s->placement_why);
    if (at) at += (size_t)snprintf(s->placement_why + at, sizeof s->placement_why - at, "; ");
    placement_report_reasons(&list, s->placement_why + at, sizeof s->placement_why - at);
    at = strlen(s->placement_why);
    if (*s->m->expert_cache_why && s->n_dev)
        snprintf(s->placement_why + at, sizeof s->placement_why - at, "; %s", s->m->expert_cache_why);
}

int decode_devices_open(struct decode *s, struct error *e) {
    int rc = assign_layers(s, e);
    for (int i = 0; i < s->n_dev; i++)
        s->dev[i].n_cleared = gpu_n_cleared(s->dev[i].g), decode_experts_register(&s->dev[i], true);
    for (int i = 0; i < s->n_dev && !rc; i++) rc = open_device(&s->dev[i], e);
    if (!rc) device_blocks_open(s);
    return rc || !s->n_dev ? rc : decode_timelines_open(s, e);
}

static void close_timelines(struct decode *s) {
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) {
        struct decode_micro_batch *m = &s->micro_batch[i];
        cpu_settle(s->m, (struct gpu_timeline *[]){m->arrived, m->cpu_done}, 2);
        gpu_timeline_close(&m->arrived);
        gpu_timeline_close(&m->cpu_done);
        for (int k = 0; k < GPU_MAX; k++) gpu_timeline_close(&m->part_done[k]);
        m->n_arrived = m->n_awaited = m->n_cpu_done = m->n_parts = 0;
    }
}

int decode_timelines_open(struct decode *s, struct error *e) {
    int rc = 0;
    close_timelines(s);
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++) {
        struct decode_micro_batch *m = &s->micro_batch[i];
        rc = gpu_timeline_open(s->dev[0].g, &m->arrived, e);
        if (!rc) rc = gpu_timeline_open(s->dev[0].g, &m->cpu_done, e);
        for (int k = 0; k < s->n_dev && s->is_tensor_parallel && !rc; k++)
            rc = gpu_timeline_open(s->dev[k].g, &m->part_done[k], e);
    }
    return rc;
}

void decode_devices_close(struct decode *s) {
    while (s->device_kvs) device_kv_drop(s, s->device_kvs);
    decode_weights_unload(s);
    close_timelines(s);
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        decode_experts_record_close(d);
        decode_experts_register(d, false);
        for (int k = 0; k < DECODE_MICRO_BATCHES; k++) work_close(&d->work[k]);
        void *all[] = {d->kv_rows, d->x, d->xn, d->logits, d->top, d->partial[0], d->partial[1]};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) gpu_free(d->g, all[k]);
        device_kv_uploads_close(d);
        decode_graph_close(d);
        mem_free(d->score_mem), mem_free(d->predict_mem);
        mem_free(d->layers);
        mem_free(d->head_weights);
        if (d->shard_config && d->layout) kv_writeback_layout_close(d->layout), mem_free(d->layout);
        mem_free(d->shard_config);
        gpu_stream_close(&d->main);
    }
    s->n_dev = s->n_resident = 0;
    s->is_tensor_parallel = false;
}

/* --- Host memory ------------------------------------------------------------------------------ */

static void *host_alloc(struct decode *s, size_t size, struct error *e) {
    void *p;
    if (s->n_dev) return gpu_host_alloc(s->dev[0].g, &p, size, e) ? NULL : p;
    if (!(p = mem_aligned(64, size))) error_set(e, ERR_MEMORY, "no memory for decode");
    return p;
}
static void host_free(struct decode *s, void *p) {
    if (s->n_dev) gpu_host_free(s->dev[0].g, p);
    else mem_free(p);
}
static void *host_work_alloc(void *s, size_t size) { return host_alloc(s, size, &(struct error){0}); }
static void host_work_free(void *s, void *p) { host_free(s, p); }

int decode_host_open(struct decode *s, struct error *e) {
    int rc = 0;
    for (int i = 0; i < DECODE_MICRO_BATCHES && !rc; i++)
        rc = work_open(&s->micro_batch[i].host, s->c, DECODE_MAX_ROWS, host_work_alloc, host_work_free, s, e);
    if (!rc) rc = work_open(&s->head, s->c, DECODE_MAX_ROWS, host_work_alloc, host_work_free, s, e);
    if (!rc && !(s->logits = host_alloc(s, (size_t)DECODE_MAX_ROWS * (size_t)s->c->vocab * 4, e))) rc = e->code;
    size_t kv_rows_bytes = 0;
    for (int i = 0; i < s->n_dev; i++)
        kv_rows_bytes = s->is_tensor_parallel
                            ? kv_rows_bytes + kv_writeback_rows_bytes(s->dev[i].layout, DECODE_MAX_ROWS)
                            : kv_writeback_rows_bytes(&s->layout, DECODE_MAX_ROWS);
    if (!rc && s->n_dev && !(s->host_rows = host_alloc(s, kv_rows_bytes, e))) rc = e->code;
    char *at = s->host_rows;
    for (int i = 0; i < s->n_dev && !rc; i++)
        s->dev[i].host_kv_rows = at,
        at += s->is_tensor_parallel ? kv_writeback_rows_bytes(s->dev[i].layout, DECODE_MAX_ROWS) : 0;
    if (!rc && s->is_tensor_parallel && !(s->tp_parts = host_alloc(s, decode_tensor_parts_bytes(s), e))) rc = e->code;
    if (!rc && s->n_dev) rc = kv_writeback_states_open(s, e);
    const size_t picks = (size_t)DECODE_MICRO_BATCHES * (size_t)s->c->n_layers * DECODE_MAX_ROWS * (size_t)s->c->topk;
    if (!rc && decode_expert_layers(s) && !(s->layer_ids = host_alloc(s, picks * sizeof *s->layer_ids, e)))
        rc = e->code;
    if (!rc && s->n_dev && !(s->bad = host_alloc(s, GPU_MAX * DECODE_MICRO_BATCHES * sizeof *s->bad, e))) rc = e->code;
    if (!rc && s->n_dev && !(s->device_top = host_alloc(s, DECODE_MAX_ROWS * sizeof *s->device_top, e))) rc = e->code;
    if (rc) decode_host_close(s);
    return rc;
}

void decode_host_close(struct decode *s) {
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) work_close(&s->micro_batch[i].host);
    work_close(&s->head);
    host_free(s, s->logits);
    host_free(s, s->host_rows);
    host_free(s, s->host_states);
    host_free(s, s->tp_parts);
    host_free(s, s->layer_ids);
    s->layer_ids = NULL;
    host_free(s, (void *)s->bad);
    host_free(s, s->device_top);
    s->logits = s->tp_parts = NULL;
    s->host_rows = s->host_states = NULL;
    s->n_host_states = 0;
    s->bad = NULL;
    s->device_top = NULL;
}
