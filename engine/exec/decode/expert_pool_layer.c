/* A layer's experts on a device with a pool: the split between CPU and device, the device's part, and what an idle link
 * uploads next. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/exec/decode/decode_transfer.h"
#include "engine/exec/decode/expert_pool_internal.h"
#include "engine/experts/lookahead.h"

enum { USED_MOST = EXPERT_POOL_USED_MOST }; /* others are left to the CPU */

int expert_pool_save_rows(struct decode_device *d, int micro, int layer, const float *x, int n) {
    return d->pool ? router_lookahead_save_rows(&d->pool->lookahead, micro, layer, x, n) : 0;
}
int expert_pool_rows_ready(struct decode_device *d, int micro, int layer) {
    return d->pool ? gpu_event_record(d->pool->ready[micro][layer % 2], d->main) : 0;
}

int expert_pool_join(struct decode_device *d, int micro, float *to, int n) {
    struct expert_pool *x = d->pool;
    struct exec *exec = gpu_stream_exec(d->main);
    if (!x) return 0;
    TRY(gpu_timeline_wait(x->done[micro], ++x->n_awaited[micro], d->main));
    return exec->ops->add(exec, &(struct op_add){.y = to, .x = x->y[micro], .n = n, .m = config_routed_width(d->s->c)});
}

/* Counts the device rows that selected each expert; 0 if a CPU row selected it too, since the CPU reads its weights
 * then anyway. */
static void count_expert_rows(struct expert_pool *x, const struct decode_micro_batch *m) {
    const struct decode *s = x->d->s;
    int topk = s->c->topk;
    memset(x->expert_rows, 0, (size_t)s->c->n_experts * sizeof *x->expert_rows);
    for (int i = 0; i < m->n_dev * topk; i++) x->expert_rows[m->host.ids[i]]++;
    for (int i = m->n_dev * topk; i < m->n * topk; i++)
        if (m->host.ids[i] >= 0) x->expert_rows[m->host.ids[i]] = 0;
}

/* Describes domain 0 (CPU), domain 1 (device) and the experts in x->expert_rows for the split. link_busy: seconds
 * before a new upload can start; its transfer_s is 0 if uploads are off. Returns the number of experts. */
static int describe_split(struct expert_pool *x, int layer, int n, double link_busy, struct split_domain *d) {
    struct decode *s = x->d->s;
    const struct runtime *v = s->m;
    int n_resident = 0, n_experts = 0;
    d[0] = (struct split_domain){.class = COST_CPU, .expert_cost = &x->cost[0]};
    d[1] = (struct split_domain){.class = COST_GPU,
                                 .expert_cost = &x->cost[1],
                                 .busy_s = x->shared_s[n],
                                 .link_busy_s = link_busy,
                                 .transfer_s = x->is_frozen ? 0 : x->upload_s};
    for (int i = 0; i < s->c->n_experts; i++) {
        if (!x->expert_rows[i]) continue;
        struct expert_slot *t = expert_pool_resident(x, layer, i);
        bool is_ready = t && upload_has_arrived(&x->uploads, &t->upload);
        n_resident += t != NULL;
        x->expert_ids[n_experts] = (int16_t)i;
        x->split_experts[n_experts++] =
            (struct split_expert){.rows = x->expert_rows[i], .resident = 1u | (is_ready ? 2u : 0)};
    }
    d[1].max_transfers = x->slots_per_layer > n_resident ? x->slots_per_layer - n_resident : 0;
    /* an upload needs a scan first, which costs more than it saves */
    for (int i = 0; i < n_experts && d[1].transfer_s > 0; i++)
        if (!weight_state_has(&v->weight_state, layer, x->expert_ids[i], WEIGHT_CHECKED)) d[1].transfer_s = 0;
    return n_experts;
}

/* Fills x->plan for a layer's rows; returns the number of experts. */
static int split_layer(struct expert_pool *x, const struct decode_micro_batch *m, int layer) {
    struct split_domain d[2];
    count_expert_rows(x, m);
    int n = describe_split(x, layer, m->n_dev, upload_is_idle(&x->uploads) ? 0 : x->upload_s, d);
    split_run(x->d->s->m->split_policy,
              &(struct split_in){.domain = d, .expert = x->split_experts, .n_domains = 2, .n = n}, x->plan);
    return n;
}

/* --- Uploads on an idle link: for good, or for the next layers -------------------------------- */

struct upload_choice {
    int layer, slot, expert; /* slot -1: nothing */
    double saved_s;          /* seconds saved in later batches */
    bool is_prefetch;
};

/* Picks a swap: the missing expert with the highest score for the resident one with the lowest, if its score is higher.
 * saved_s: over the batches that predict_rate() averages. */
static struct upload_choice pick_swap(const struct expert_pool *x, int layer) {
    const struct decode *s = x->d->s;
    const struct predict *p = &x->d->predict;
    struct upload_choice swap = {.layer = layer, .slot = expert_pool_victim(x, layer, NULL), .expert = -1};
    double best = 0;
    if (swap.slot < 0) return swap;
    for (int i = 0; i < s->c->n_experts; i++) {
        double v = score_of(&x->d->score, layer, i);
        if (v > best && *expert_pool_slot_of(x, layer, i) < 0 &&
            weight_state_has(&s->m->weight_state, layer, i, WEIGHT_CHECKED))
            best = v, swap.expert = i;
    }
    int evicted = expert_pool_slots(x, layer)[swap.slot].expert;
    if (swap.expert < 0 || (evicted >= 0 && best <= score_of(&x->d->score, layer, evicted))) swap.slot = -1;
    else
        swap.saved_s = PREDICT_RATE_BATCHES * cost_table_at(&x->cost[0], 1) *
                       (predict_rate(p, layer, swap.expert) - (evicted >= 0 ? predict_rate(p, layer, evicted) : 0));
    return swap;
}

/* Picks the best prefetch for the next layers, from each layer's newest prediction. elapsed_s: since this layer's
 * experts began. */
static struct upload_choice pick_prefetch(struct expert_pool *x, int micro, int layer, int n, double elapsed_s) {
    struct decode_device *d = x->d;
    const struct config *c = d->s->c;
    struct upload_choice best = {.slot = -1};
    for (int l = layer + 1; l <= layer + PREDICT_LAYERS && l < d->last; l++) {
        const int32_t *predicted = NULL;
        int distance = 0;
        while (!predicted && ++distance <= PREDICT_LAYERS)
            predicted = router_lookahead_get(&x->lookahead, micro, l, distance, n);
        if (!predicted) continue;
        memset(x->expert_rows, 0, (size_t)c->n_experts * sizeof *x->expert_rows);
        for (int i = 0; i < n * c->topk; i++)
            if (predicted[i] >= 0 && predicted[i] < c->n_experts) x->expert_rows[predicted[i]]++;
        struct split_domain domain[2];
        int n_experts = describe_split(x, l, n, 0, domain), slot = expert_pool_victim(x, l, x->expert_rows);
        if (slot < 0 || !(domain[1].transfer_s > 0)) continue; /* no slot, or uploads are off */
        struct predict_in in = {.layer = l,
                                .distance = distance,
                                .split = d->s->m->split_policy,
                                .domain = domain,
                                .expert = x->split_experts,
                                .id = x->expert_ids,
                                .n = n_experts,
                                .arrival_s = domain[1].transfer_s - ((l - layer) * x->layer_period_s - elapsed_s),
                                .victim = expert_pool_slots(x, l)[slot].expert};
        struct predict_out out = predict_upload(&d->predict, &in, x->plan);
        if (out.expert >= 0 && out.worth_s > best.saved_s && *expert_pool_slot_of(x, l, x->expert_ids[out.expert]) < 0)
            best = (struct upload_choice){l, slot, x->expert_ids[out.expert], out.worth_s, true};
    }
    return best;
}

/* Uploads in flight, counted up to MANY. */
static int n_uploads_in_flight(const struct expert_pool *x) {
    enum { MANY = 256 };
    int n = 0;
    const struct upload_queue *q = &x->uploads;
    while (n < MANY && (uint32_t)n < q->n_loaded && !gpu_timeline_reached(q->loaded, q->n_loaded - (uint32_t)n)) n++;
    return n;
}

int expert_pool_prefetch(struct decode_device *d, const struct lookahead *a, enum decode_prefetch_phase phase,
                         double until_batch_s) {
    struct expert_pool *x = d->pool;
    struct decode *s = d->s;
    struct lookahead_need want[USED_MOST];
    if (!x || x->is_frozen) return 0;
    int n_queued = n_uploads_in_flight(x);
    for (int l = d->first; l < d->last; l++) {
        if (!expert_pool_has_layer(d, l)) continue;
        const int n = lookahead_needs(a, l, want, USED_MOST);
        memset(x->expert_rows, 0, (size_t)s->c->n_experts * sizeof *x->expert_rows);
        for (int i = 0; i < n; i++) {
            score_announce(&d->score, l, &want[i].expert, 1, want[i].distance + 1);
            x->expert_rows[want[i].expert] = 1;
        }
        for (int i = 0; i < n && phase != PREFETCH_NONE; i++) {
            const int id = want[i].expert, slot = expert_pool_victim(x, l, x->expert_rows);
            if (*expert_pool_slot_of(x, l, id) >= 0 || !weight_state_has(&s->m->weight_state, l, id, WEIGHT_CHECKED))
                continue;
            /* less likely than the average expert */
            if (phase == PREFETCH_LIKELY && want[i].confidence * (float)s->c->topk < 1) continue;
            /* no slot, or too late for this layer */
            if (slot < 0 || (n_queued + 1) * x->upload_s > until_batch_s + (l - d->first) * x->layer_period_s) break;
            TRY(expert_pool_upload(x, l, slot, id, true));
            n_queued++;
        }
    }
    return 0;
}

static struct upload_choice pick_upload(struct expert_pool *x, int micro, int layer, int n, double elapsed_s) {
    if (x->is_frozen || !upload_is_idle(&x->uploads) || !expert_pool_pays(x)) return (struct upload_choice){.slot = -1};
    struct upload_choice w = pick_swap(x, layer), ahead = {.slot = -1};
    if (x->lookahead.is_active) {
        ahead = pick_prefetch(x, micro, layer, n, elapsed_s);
        predict_report(&x->d->predict, ahead.slot >= 0);
    }
    return ahead.slot >= 0 && (w.slot < 0 || ahead.saved_s > w.saved_s) ? ahead : w;
}

/* --- Computing a layer ------------------------------------------------------------------------ */

/* Records the device's time for its previous layer, if that is complete. */
static void record_device_time(struct expert_pool *x, int micro) {
    struct decode *s = x->d->s;
    struct cost_machine *cost = s->m->cost;
    const int n = x->timed_rows[micro];
    if (n && gpu_event_is_done(x->end[micro])) {
        double took = gpu_event_elapsed(x->begin[micro], x->end[micro]);
        s->counts.device_s += took;
        cost_observe(cost, &cost->domain[1 + x->d->rank].observed[COST_FFN], n, x->expected_s[micro], took);
    }
    x->timed_rows[micro] = 0;
}

/* Takes the experts that the split gives to the device, uploading those without a slot: fills `part` and the pairs, and
 * removes them from x->cpu_ids. Adds the predicted seconds of the others to *cpu_s. */
static int take_device_part(struct expert_pool *x, const struct decode_micro_batch *m, int micro, int layer, int n,
                            struct device_part *part, double *cpu_s) {
    const struct split_plan *p = x->plan;
    part->n = part->first_pair = part->pairs = 0;
    for (int i = 0; i < n; i++) {
        int id = x->expert_ids[i], k;
        if (p->domain[i] != 1) {
            *cpu_s += cost_table_at(&x->cost[0], x->expert_rows[id]);
            continue;
        }
        struct expert_slot *t = expert_pool_resident(x, layer, id);
        if (!t && !x->is_frozen && (k = expert_pool_victim(x, layer, x->expert_rows)) >= 0) {
            TRY(expert_pool_upload(x, layer, k, id, false));
            t = &expert_pool_slots(x, layer)[k];
        }
        if (!t || part->n == USED_MOST) continue; /* left to the CPU */
        x->expected_s[micro] += upload_has_arrived(&x->uploads, &t->upload)
                                    ? cost_table_at(&x->cost[1], x->expert_rows[id])
                                    /* not measurable: it waits for an upload */
                                    : -INFINITY;
        expert_pool_add_to_part(x, m, part, t, id);
    }
    return 0;
}

/* Splits a layer's experts and enqueues the device's part. Adds the predicted seconds of the CPU's to *cpu_s. */
static int run_split(struct expert_pool *x, const struct decode_micro_batch *m, int layer, double *cpu_s) {
    struct decode *s = x->d->s;
    struct device_part part;
    const int micro = (int)(m - s->micro_batch);
    const double begin_s = clock_now();
    router_lookahead_judge(&x->lookahead, micro, layer, m->host.ids, m->n_dev);
    const int n = split_layer(x, m, layer);
    s->counts.decision_s += clock_now() - begin_s, s->counts.n_decisions++;
    TRY(take_device_part(x, m, micro, layer, n, &part, cpu_s));
    s->counts.selected += (uint64_t)n, s->counts.hits += (uint64_t)part.n;
    x->d->n_hits += (uint64_t)part.pairs;
    TRY(expert_pool_begin_parts(x, micro, layer, m->n_dev));
    TRY(expert_pool_run_part(x, micro, layer, &part));
    return expert_pool_end_parts(x, micro, m->n_dev, part.n > 0);
}

int expert_pool_run(struct decode_device *d, struct decode_micro_batch *m, int layer, int32_t **cpu_ids,
                    double *expected, struct error *e) {
    struct expert_pool *x = d->pool;
    const struct decode *s = d->s;
    const int micro = (int)(m - s->micro_batch), topk = s->c->topk;
    const double now = clock_now();
    if (x->layer_begin_s > 0)
        x->layer_period_s += (now - x->layer_begin_s - x->layer_period_s) / (x->layer_period_s > 0 ? 16 : 1);
    x->layer_begin_s = now;
    record_device_time(x, micro);
    x->expected_s[micro] = 0;
    *expected = 0;
    *cpu_ids = x->cpu_ids;
    memcpy(x->cpu_ids, m->host.ids, (size_t)(m->n * topk) * sizeof *x->cpu_ids);
    memcpy(x->ids, x->cpu_ids, (size_t)(m->n * topk) * sizeof *x->ids);
    memcpy(x->router, m->host.router, (size_t)m->n * (size_t)config_n_choices(s->c) * sizeof *x->router);
    return s->m->expert_cache.is_sent ? expert_pool_send(x, m, layer, e) : run_split(x, m, layer, expected);
}

int expert_pool_end_layer(struct decode_device *d, struct decode_micro_batch *m, int layer, double expected,
                          double took) {
    struct expert_pool *x = d->pool;
    const struct decode *s = d->s;
    const struct config *c = s->c;
    const struct layer *y = &s->m->w->layers[layer];
    struct cost_machine *cost = s->m->cost;
    bool has_scores = !y->router_table;
    size_t n_best = 2 * (size_t)c->topk;
    struct decode_counts *counts = &d->s->counts;
    double begin_s = clock_now(), decided_s;
    counts->cpu_s += took;
    if (expected > 0 && m->n == m->n_dev) cost_observe(cost, &cost->domain[0].observed[COST_FFN], m->n, expected, took);
    /* more often at first */
    if ((s->clock % 16 == 0 || !(s->clock & (s->clock - 1))) && layer == d->last - 1) expert_pool_fill_costs(x);
    for (int i = 0; i < m->n && has_scores; i++)
        score_best(c->score, y->router_bias, x->router + (size_t)i * (size_t)config_n_choices(c), c->n_experts,
                   (int)n_best, x->best + (size_t)i * n_best, x->best_score + (size_t)i * n_best);
    score_update(&d->score, layer, &(struct score_rows){m->n, x->ids, has_scores ? x->best : NULL, x->best_score});
    predict_update_rates(&d->predict, layer, x->expert_rows);
    int micro = (int)(m - s->micro_batch);
    counts->decision_s += (decided_s = clock_now()) - begin_s;
    if (s->m->expert_cache.is_sent) return 0; /* what is missing is sent when it is chosen */
    TRY(router_lookahead_run(&x->lookahead, micro, layer + 1, x->ready[micro][(layer + 1) % 2], m->n_dev));
    const double pick_begin_s = clock_now();
    struct upload_choice upload = pick_upload(x, micro, layer, m->n_dev, decided_s - x->layer_begin_s);
    counts->decision_s += clock_now() - pick_begin_s;
    return upload.slot >= 0 ? expert_pool_upload(x, upload.layer, upload.slot, upload.expert, upload.is_prefetch) : 0;
}
