/* Blended prefill: attention blocks, shared experts and some routed experts of a prompt run on the devices that hold the layers, the
 * other routed experts on the CPU at the same time. Every layer is split anew (split.h). Missing expert weights are uploaded one by
 * one while the device and the CPU compute; during the attention block, before the selection is known, idle links upload what
 * fits. Every device with enough memory takes part in every layer: devices without the layer get its normed rows and return the
 * sum of their experts, both through host memory. Sums are added in a fixed order: the layer's device, other devices by rank, the
 * CPU. The extreme splits are CPU prefill and stream loading. Needs devices that hold all layers. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/limit.h"
#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/sched/split.h"
#include "engine/step/blend.h"
#include "engine/step/processor.h"

struct blend {
    struct step *s;
    struct blend_part part[GPU_MAX]; /* by rank */
    int n_parts, owner;              /* owner: index of the device that has the layer, or had the previous one */
    struct kv_move move;             /* states of the batch in the session's cache */
    int at, n, rows, layer;          /* the batch: tokens [at, at + n) of the job, at most `rows`; its next layer */
    /* pinned */
    float *x, *xn, *weights;
    int32_t *ids, *mine, *pos; /* pos: [rows], then the tokens [rows] */
    struct work hand;          /* x and what decode_carry moves with it between devices */
    _Atomic int *bad;
    char *kv;                              /* KV rows of all layers, downloaded for the session's cache */
    struct gpu_number *arrived, *answered; /* answered: virtual time only */
    uint32_t n_arrived, n_answered;
    /* the split */
    struct cost_table table; /* costs on the CPU */
    struct split_expert *experts;
    int16_t *expert_of;       /* [n_experts] ids of experts[] */
    int32_t *rows_of, *place; /* [n_experts]: pairs of each; where they start */
    int8_t *whose;            /* [n_experts]: index of the device that computes it; -1: the CPU */
    struct split_plan plan;
    float *logits;
    uint64_t step; /* number and lines in the routing trace */
    struct buf lines;
};

/* --- Memory ---------------------------------------------------------------------------------------------------------------------- */

static struct step_device *holder(struct step *s, int rank) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == rank) return &s->dev[i];
    return NULL;
}
size_t blend_least(const struct machine *m, int device, int pos, int n) { return part_least(m, holder(m->step, device), pos, n); }
size_t blend_wants(const struct machine *m, int pos, int n) {
    size_t most = 0;
    for (int i = 0; i < m->gpus->n; i++) {
        size_t one = part_wants(m, holder(m->step, i), pos, n);
        if (one > most) most = one;
    }
    return most;
}

static struct blend_part *add_part(struct blend *b, int rank) {
    struct blend_part *p = &b->part[b->n_parts++];
    *p = (struct blend_part){.s = b->s, .d = holder(b->s, rank), .g = b->s->m->gpus->gpu[rank], .rank = rank};
    return p;
}

/* Picks the largest batch that fits on all devices with layers; a device without layers takes part if such a batch fits. */
static int open_parts(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct gpu_set *set = b->s->m->gpus;
    const int end = j->pos + j->n, most = (int)limit_get(LIMIT_ROWS, COST_BLEND_ROWS);
    int rc = 0;
    for (int i = 0; i < set->n; i++)
        if (holder(b->s, i)) add_part(b, i);
    for (b->rows = j->n < most ? j->n : most; b->rows > BLEND_ROWS_LEAST; b->rows = (b->rows + 1) / 2) {
        bool all = true;
        for (int i = 0; i < b->n_parts; i++) all = all && part_holds(&b->part[i], b->rows, end);
        if (all) break;
        for (int i = 0; i < b->n_parts; i++)
            if (b->part[i].work.release) work_close(&b->part[i].work);
    }
    for (int i = 0; i < set->n; i++)
        if (!holder(b->s, i) && !part_holds(add_part(b, i), b->rows, end)) b->n_parts--;
    for (int i = 0; i < b->n_parts && !rc; i++) rc = part_open(&b->part[i], e);
    for (int i = 0; i < b->n_parts && !rc; i++) rc = part_fill(&b->part[i], b->rows, end, b->n_parts == 1, e);
    return rc;
}

static int open_memory(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct step *s = b->s;
    const struct config *c = s->c;
    const size_t n = (size_t)b->rows, hidden = n * (size_t)c->hidden * 4, pairs = n * (size_t)c->topk * 4, experts = (size_t)c->n_experts;
    const bool moves = s->n_dev > 1;
    struct {
        void *p;
        size_t bytes;
    } want[] = {{&b->x, hidden},
                {&b->xn, hidden},
                {&b->ids, pairs},
                {&b->mine, pairs},
                {&b->weights, pairs},
                {&b->pos, 2 * n * 4},
                {&b->bad, 4},
                {&b->kv, step_saved_bytes(s, b->rows)},
                {&b->hand.streams, moves ? hidden * (size_t)c->streams.n : 0},
                {&b->hand.post, moves ? n * (size_t)c->streams.n * 4 : 0},
                {&b->hand.chosen, moves ? n * (size_t)c->index_topk * 4 : 0}};
    int rc = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want && !rc; i++)
        if (want[i].bytes) rc = gpu_host_alloc(b->part[0].g, want[i].p, want[i].bytes, e);
    if (rc) return rc;
    b->hand.x = b->x;
    b->experts = mem_alloc(experts * sizeof *b->experts);
    b->expert_of = mem_alloc(experts * sizeof *b->expert_of);
    b->rows_of = mem_alloc(2 * experts * sizeof *b->rows_of);
    b->whose = mem_alloc(experts);
    b->logits = mem_alloc((size_t)(j->all ? 16 : 1) * (size_t)c->vocab * sizeof *b->logits);
    if (!b->experts || !b->expert_of || !b->rows_of || !b->whose || !b->logits) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    b->place = b->rows_of + experts;
    return 0;
}

static void stop_all(struct blend *b) { /* cancels everything in flight; no decode batch is running */
    for (int i = 0; i < b->n_parts; i++) {
        struct blend_part *p = &b->part[i];
        struct gpu_number *own[] = {p->loaded, p->freed, p->summed};
        if (p->stop) atomic_store(p->stop, 1);
        for (int k = 0; k < 3; k++)
            if (own[k]) gpu_number_break(own[k]);
    }
    processor_settle(b->s->m, (struct gpu_number *[]){b->answered, b->arrived}, 2);
}

static void blend_close(struct machine *m, struct prefill_job *j) {
    struct blend *b = j->state;
    struct error device = {0};
    stop_all(b);
    for (int i = 0; i < b->n_parts; i++) {
        struct blend_part *p = &b->part[i];
        part_close(p);
        if (p->d) step_fill_settle(p->d);
        else if (gpu_error(p->g, &device) && gpu_clear(p->g, &device)) m->gpus->lost = true;
    }
    trace_settle(m->trace);
    for (int i = 0; i < b->n_parts; i++)
        if (b->part[i].d && b->part[i].stop) atomic_store(b->part[i].stop, 0);
    void *pinned[] = {b->x, b->xn, b->ids, b->mine, b->weights, b->pos, (void *)b->bad, b->kv, b->hand.streams, b->hand.post, b->hand.chosen};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) gpu_host_free(m->gpus->gpu[0], pinned[i]);
    gpu_number_close(&b->answered);
    gpu_number_close(&b->arrived);
    void *own[] = {b->experts, b->expert_of, b->rows_of, b->whose, b->logits, b};
    routing_end(m->routing, &b->lines, false);
    buf_free(&b->lines);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    j->state = NULL;
    step_mirror_keep(m->step, j->kv, false);
    if (step_device_error(m->step, &device)) step_leave(m->step, device.text, &device);
}

/* Fills e with the device's error if one failed, else with the operation's. */
static int failed(struct blend *b, int rc, struct error *e) {
    if (!e->code) step_device_error(b->s, e);
    for (int i = 0; i < b->n_parts && !e->code; i++) gpu_error(b->part[i].g, e);
    if (!e->code) op_error(rc, e);
    return e->code;
}

/* Virtual time: no upload may start before the prompt arrives. */
static int begin_clocks(struct blend *b) {
    TRY(gpu_number_write(b->answered, ++b->n_answered, b->s->processor));
    for (int i = 0; i < b->n_parts; i++) {
        TRY(gpu_number_wait(b->answered, b->n_answered, b->part[i].link));
        TRY(gpu_number_wait(b->answered, b->n_answered, part_stream(&b->part[i])));
    }
    return 0;
}

static int blend_open(struct machine *m, struct prefill_job *j, struct error *e) {
    struct step *s = m->step;
    struct blend *b = mem_calloc(1, sizeof *b);
    if (!b) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    j->state = b;
    b->s = s;
    for (int i = 0; i < s->n_dev; i++) /* other sessions' KV returns when there is room */
        while (s->mirrors && gpu_mem_free(s->dev[i].g) + s->dev[i].loaded < s->dev[i].weights + part_least(m, &s->dev[i], j->pos, j->n))
            step_mirror_drop(s, s->mirrors);
    int rc = kv_reach(j->kv, j->pos + j->n, e);
    if (!rc && !s->loaded) rc = step_load(s, e);
    b->move = kv_begin(j->kv, j->pos, j->n, 0);
    if (!rc && !step_mirror_get(s, j->kv, b->move.from, j->pos, j->pos + j->n))
        rc = error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    if (!rc) step_mirror_keep(s, j->kv, true);
    if (!rc) rc = gpu_number_open(s->dev[0].g, &b->arrived, e);
    if (!rc) rc = gpu_number_open(s->dev[0].g, &b->answered, e);
    if (!rc) rc = open_parts(b, j, e);
    if (!rc) rc = open_memory(b, j, e);
    for (int i = 0; i < b->n_parts && !rc; i++)
        if (b->part[i].d) rc = gpu_copy(part_stream(&b->part[i]), b->part[i].work.inv_freq, m->w->inv_freq, (size_t)rope_floats(s->c) * 4, GPU_H2D);
    if (!rc && s->processor) rc = begin_clocks(b);
    if (rc) {
        rc = failed(b, rc, e);
        blend_close(m, j);
        return rc;
    }
    cost_table_fill(&b->table, m->cost, 0, m->model, COST_MANY);
    atomic_store(&j->total, j->n * s->c->n_layers);
    atomic_store(&j->ready, 1);
    return 0;
}

/* Uploads experts of a layer before its selection is known: as many as each link can carry while it is idle, until the previous layer
 * ends and during this one's attention block; at most half a ring. */
static int fetch_ahead(struct blend *b, const struct prefill_job *j, int layer, bool beside, struct error *e) {
    struct machine *m = b->s->m;
    const struct split_plan *plan = &b->plan;
    const bool moves = beside && plan->moves[b->n_parts + 1] > plan->moves[1]; /* a split without uploads gets no more */
    const double half = cost_half(m->cost, 1 + b->part[b->owner].rank, m->model, cost_prefill_rows(b->n, j->pos + b->at));
    for (int i = 0; i < b->n_parts; i++) {
        struct blend_part *p = &b->part[i];
        const double move = cost_move(m->cost, 1 + p->rank, COST_H2D, m->model->expert_bytes);
        const int sent = moves ? plan->moves[i + 2] - plan->moves[i + 1] : 0; /* domain 1 + i is device i */
        double left = half + (moves && plan->end > sent * move ? plan->end - sent * move : 0);
        int32_t x = i;
        for (int k = 0; x < b->s->c->n_experts && k < p->n_slots / 2 && move <= left; k++, x += b->n_parts, left -= move) {
            struct blend_slot *t = part_free_slot(p, layer);
            if (!b->s->processor) TRY(scan_experts(&m->scan, layer, &x, 1, e));
            TRY(part_fetch(p, t, layer, x));
        }
    }
    return 0;
}

/* --- A layer --------------------------------------------------------------------------------------------------------------------- */

/* Moves the residual stream to the device of the next layer. */
static int move_rows(struct blend *b) {
    struct blend_part *from = &b->part[b->owner], *to = from;
    const struct step_device *d = step_device_of(b->s, b->layer);
    for (int i = 0; i < b->n_parts; i++)
        if (b->part[i].d == d) to = &b->part[b->owner = i];
    if (from == to) return 0;
    TRY(step_carry(b->s->c, part_stream(from), &b->hand, &from->work, b->n, b->layer, GPU_D2H));
    TRY(gpu_number_write(b->arrived, ++b->n_arrived, part_stream(from)));
    TRY(gpu_number_wait(b->arrived, b->n_arrived, part_stream(to)));
    return step_carry(b->s->c, part_stream(to), &to->work, &b->hand, b->n, b->layer, GPU_H2D);
}

static int attention(struct blend *b, const struct prefill_job *j, const struct step_mirror *copy) {
    const struct config *c = b->s->c;
    struct blend_part *p = &b->part[b->owner];
    struct gpu_stream *main = part_stream(p);
    struct exec *x = gpu_stream_exec(main);
    const struct layer *y = &p->d->layer[b->layer].view;
    struct span t = {.cache = copy->layer, .n = b->n, .pos = j->pos + b->at, .move = copy->move};
    size_t pairs = (size_t)b->n * (size_t)c->topk * 4, hidden = (size_t)b->n * (size_t)c->hidden * 4;
    int span = trace_begin(b->s->m->trace, main, p->rank, LANE_COMPUTE, "attention", b->layer, -1);
    TRY(block_attention(x, c, y, b->layer, &p->work, &t, 1, b->n));
    TRY(step_mirror_save(b->s, copy, main, b->layer, t.pos, b->n, b->kv));
    TRY(block_route(x, c, y, b->layer, &p->work, b->n));
    if (c->layer[b->layer].moe) {
        TRY(gpu_copy(main, b->xn, p->work.xn, hidden, GPU_D2H));
        TRY(gpu_copy(main, b->ids, p->work.ids, pairs, GPU_D2H));
        TRY(gpu_copy(main, b->weights, p->work.weights, pairs, GPU_D2H));
        TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.bad, 4, GPU_D2H));
        TRY(gpu_number_write(b->arrived, ++b->n_arrived, main));
    }
    TRY(block_experts(x, c, y, b->layer, &p->work, PART_SHARED, p->work.x, b->n));
    trace_end(b->s->m->trace, span, main);
    return 0;
}

/* Counts the pairs of each expert and splits them. Domain 1 + i is device i. */
static void ask(struct blend *b) {
    const struct config *c = b->s->c;
    struct machine *m = b->s->m;
    const double bytes = (double)b->n * m->model->row_bytes, back = cost_move(m->cost, 1 + b->part[b->owner].rank, COST_H2D, bytes);
    struct split_domain d[1 + GPU_MAX] = {{.class = COST_CPU, .expert = &b->table}}; /* the rows are in host memory already */
    struct split_in in = {.domain = d, .expert = b->experts, .n_domains = 1 + b->n_parts, .join = back};
    for (int i = 0; i < b->n_parts; i++) {
        const struct blend_part *p = &b->part[i];
        const int rank = 1 + p->rank;
        d[1 + i] = (struct split_domain){
            .class = COST_GPU, .expert = &p->table, .move = cost_move(m->cost, rank, COST_H2D, m->model->expert_bytes), .room = c->n_experts};
        if (i == b->owner) d[1 + i].busy = cost_shared(m->cost, rank, m->model, b->n);
        else d[1 + i].first = cost_move(m->cost, rank, COST_H2D, bytes) + cost_move(m->cost, rank, COST_D2H, bytes) + back;
    }
    memset(b->rows_of, 0, (size_t)c->n_experts * sizeof *b->rows_of);
    if (b->s->processor) /* nothing was computed: assume even groups */
        for (int x = 0; x < c->n_experts; x++)
            b->rows_of[x] = (int)((int64_t)b->n * c->topk * (x + 1) / c->n_experts - (int64_t)b->n * c->topk * x / c->n_experts);
    for (int i = 0; i < b->n * c->topk && !b->s->processor; i++) b->rows_of[b->ids[i]]++;
    for (int x = 0; x < c->n_experts; x++) {
        uint32_t there = 1;
        if (!b->rows_of[x]) continue;
        for (int i = 0; i < b->n_parts; i++) there |= part_slot(&b->part[i], b->layer, x) ? 2u << i : 0;
        b->expert_of[in.n] = (int16_t)x;
        b->experts[in.n++] = (struct split_expert){.rows = b->rows_of[x], .resident = there};
    }
    split_run(m->split, &in, &b->plan);
}

/* Orders a device's experts: those in slots first, then the uploads in order. Returns how many; *pairs: the pairs of all of them. */
static int order_of(struct blend *b, int part, int16_t *order, int *there, int32_t *pairs) {
    const struct split_plan *p = &b->plan;
    const int domain = 1 + part;
    int n = 0;
    for (int i = p->begin[domain]; i < p->begin[domain + 1]; i++)
        if (part_slot(&b->part[part], b->layer, b->expert_of[p->queue[i]])) order[n++] = b->expert_of[p->queue[i]];
    *there = n;
    for (int i = p->moves[domain]; i < p->moves[domain + 1]; i++) order[n++] = b->expert_of[p->move[i]];
    *pairs = 0;
    for (int i = 0; i < n; i++) b->whose[order[i]] = (int8_t)part, b->place[order[i]] = *pairs, *pairs += b->rows_of[order[i]];
    return n;
}

/* Sorts each device's pairs by expert; b->cpu_ids gets what is left to the CPU. */
static void sort_pairs(struct blend *b) {
    const int topk = b->s->c->topk;
    for (int i = 0; i < b->n * topk && !b->s->processor; i++) {
        const int x = b->ids[i], whose = b->whose[x];
        b->mine[i] = whose < 0 ? x : -1;
        if (whose < 0) continue;
        const int32_t to = b->place[x]++;
        b->part[whose].pair_token[to] = i / topk;
        b->part[whose].pair_weight[to] = b->weights[i];
    }
}

/* Adds a sum in host memory to the layer's own rows; reuses xn as scratch. */
static int join(struct blend *b, const float *sum) {
    struct blend_part *p = &b->part[b->owner];
    struct exec *x = gpu_stream_exec(part_stream(p));
    TRY(gpu_copy(part_stream(p), p->work.xn, sum, (size_t)b->n * (size_t)b->s->c->hidden * 4, GPU_H2D));
    return x->ops->add(x, &(struct op_add){.y = p->work.x, .x = p->work.xn, .n = b->n, .m = b->s->c->hidden});
}

static int device_experts(struct blend *b) {
    int16_t all[SPLIT_EXPERTS], *order[GPU_MAX];
    int n[GPU_MAX], there[GPU_MAX], sum = 0;
    int32_t pairs[GPU_MAX];
    const size_t hidden = (size_t)b->n * (size_t)b->s->c->hidden * 4;
    memset(b->whose, -1, (size_t)b->s->c->n_experts);
    for (int i = 0; i < b->n_parts; sum += n[i++]) n[i] = order_of(b, i, order[i] = all + sum, &there[i], &pairs[i]);
    sort_pairs(b);
    for (int i = 0; i < b->n_parts; i++) {
        struct blend_part *p = &b->part[i];
        struct gpu_stream *main = part_stream(p);
        if (!n[i]) continue;
        TRY(gpu_copy(main, p->token, p->pair_token, (size_t)pairs[i] * 4, GPU_H2D));
        TRY(gpu_copy(main, p->weight, p->pair_weight, (size_t)pairs[i] * 4, GPU_H2D));
        if (i == b->owner) {
            TRY(part_experts(p, b->layer, order[i], there[i], n[i], b->rows_of, p->work.xn, p->work.x));
            continue;
        }
        TRY(gpu_number_wait(b->arrived, b->n_arrived, main));
        TRY(gpu_copy(main, p->xn, b->xn, hidden, GPU_H2D));
        TRY(gpu_fill(main, p->y, 0, hidden));
        TRY(part_experts(p, b->layer, order[i], there[i], n[i], b->rows_of, p->xn, p->y));
        TRY(gpu_copy(main, p->sum, p->y, hidden, GPU_D2H));
        TRY(gpu_number_write(p->summed, ++p->n_summed, main));
    }
    for (int i = 0; i < b->n_parts; i++) {
        if (i == b->owner || !n[i]) continue;
        TRY(gpu_number_wait(b->part[i].summed, b->part[i].n_summed, part_stream(&b->part[b->owner])));
        TRY(join(b, b->part[i].sum));
    }
    return 0;
}

static int pairs_of(const struct blend *b, int from, int to) {
    int sum = 0;
    for (int i = from; i < to; i++) sum += b->experts[b->plan.queue[i]].rows;
    return sum;
}

/* Corrects the cost model with the CPU's time, for the next layer's split. */
static void learn(struct blend *b, double took) {
    struct cost_machine *c = b->s->m->cost;
    int n = b->plan.begin[1] - b->plan.begin[0];
    double rows = pairs_of(b, b->plan.begin[0], b->plan.begin[1]) / (double)n, expected = 0;
    for (int i = b->plan.begin[0]; i < b->plan.begin[1]; i++) expected += cost_table_at(&b->table, b->experts[b->plan.queue[i]].rows);
    cost_observe(c, &c->domain[0].seen[COST_FFN], rows, expected, took);
    if (!c->deterministic) cost_table_fill(&b->table, c, 0, b->s->m->model, COST_MANY);
}

/* Runs the CPU's experts into b->x and uploads their sum. */
static int processor_share(struct blend *b, struct error *e) {
    struct step *s = b->s;
    struct work w = {.x = b->x, .xn = b->xn, .ids = b->mine, .weights = b->weights, .bad = s->head.bad};
    size_t hidden = (size_t)b->n * (size_t)s->c->hidden * 4;
    struct gpu_stream *main = part_stream(&b->part[b->owner]);
    if (b->plan.begin[1] == b->plan.begin[0]) return 0;
    if (!s->processor) {
        memset(b->x, 0, hidden);
        TRY(processor_weights(s->m, &w, b->layer, b->n, e));
    }
    s->m->cpu->cancel = s->cancel;
    w.share = (float)pairs_of(b, b->plan.begin[0], b->plan.begin[1]) / (float)(b->n * s->c->topk);
    double t = trace_now(s->m->trace), begin = clock_now();
    TRY(block_experts(s->m->cpu, s->c, place_layer(s->m->place, s->m->w, b->layer), b->layer, &w, PART_ROUTED, b->x, b->n));
    trace_host(s->m->trace, t, "experts", b->layer, -1);
    if (!s->processor) learn(b, clock_now() - begin);
    if (s->processor) {
        TRY(gpu_number_write(b->answered, ++b->n_answered, s->processor));
        TRY(gpu_number_wait(b->answered, b->n_answered, main));
    }
    return join(b, b->x);
}

static int not_finite(struct blend *b, int at, struct error *e) {
    atomic_store(b->s->head.bad, at);
    return check_finite(b->s->m->w, &b->s->head, e);
}

static int run_layer(struct blend *b, const struct prefill_job *j, struct error *e) {
    struct step *s = b->s;
    struct machine *m = s->m;
    bool moe = s->c->layer[b->layer].moe;
    struct step_mirror *copy = step_mirror_get(s, j->kv, b->move.from, j->pos + b->at, j->pos + j->n);
    if (!copy) return error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    copy->move.mark = b->move.mark;
    TRY(move_rows(b));
    if (moe && (!b->layer || !s->c->layer[b->layer - 1].moe)) TRY(fetch_ahead(b, j, b->layer, false, e));
    TRY(attention(b, j, copy));
    if (!moe) return 0;
    if (s->processor) TRY(gpu_number_wait(b->arrived, b->n_arrived, s->processor));
    else {
        TRY(gpu_number_await(b->arrived, b->n_arrived, s->cancel));
        if (*b->bad >= 0) return not_finite(b, *b->bad, e);
        TRY(scan_experts(&m->scan, b->layer, b->ids, b->n * s->c->topk, e));
    }
    if (!s->processor)
        routing_add(m->routing, &b->lines,
                    &(struct routing_rows){.step = b->step,
                                           .chat = j->kv,
                                           .prompt = true,
                                           .layer = b->layer,
                                           .n = b->n,
                                           .pos = j->pos + b->at,
                                           .tokens = j->tokens + b->at,
                                           .ids = b->ids,
                                           .weights = b->weights});
    ask(b);
    TRY(device_experts(b));
    const int next = b->layer + 1;
    if (next < s->c->n_layers && s->c->layer[next].moe) TRY(fetch_ahead(b, j, next, true, e)); /* links do not wait for the CPU's part */
    return processor_share(b, e);
}

/* --- The mode -------------------------------------------------------------------------------------------------------------------- */

static int begin_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    struct step *s = b->s;
    struct machine *m = s->m;
    b->n = j->n - b->at < b->rows ? j->n - b->at : b->rows;
    b->layer = 0;
    b->step = routing_begin(m->routing);
    b->move = kv_begin(j->kv, j->pos + b->at, b->n, prefill_mark(j, b->at, b->n));
    m->cpu->cancel = j->cancel;
    int32_t *tokens = b->pos + b->rows;
    for (int i = 0; i < b->n; i++) b->pos[i] = j->pos + b->at + i, tokens[i] = s->processor ? 0 : j->tokens[b->at + i];
    if (!s->processor) TRY(m->cpu->ops->embed(m->cpu, &(struct op_embed){.out = b->x, .ids = j->tokens + b->at, .table = m->w->embed, .n = b->n}));
    for (int i = 0; i < b->n_parts; i++) {
        struct blend_part *p = &b->part[i];
        struct gpu_stream *main = part_stream(p);
        if (!p->d) continue;
        TRY(gpu_fill(main, (void *)p->work.bad, 0xff, 4));
        TRY(gpu_copy(main, p->work.pos, b->pos, (size_t)b->n * 4, GPU_H2D));
        TRY(gpu_copy(main, p->work.tokens, tokens, (size_t)b->n * 4, GPU_H2D));
        TRY(block_rope(gpu_stream_exec(main), s->c, &p->work, m->w->rope_mscale, b->n, j->pos + j->n));
        if (p->d != step_device_of(s, 0)) continue;
        TRY(gpu_copy(main, p->work.x, b->x, (size_t)b->n * (size_t)s->c->hidden * 4, GPU_H2D));
        b->owner = i;
    }
    return 0;
}

/* Stores the batch in the host KV and computes the wanted logits. */
static int end_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    enum { HEAD_ROWS = 16 };
    struct step *s = b->s;
    struct machine *m = s->m;
    size_t hidden = (size_t)s->c->hidden;
    int first = j->all ? (j->told > b->at ? j->told - b->at : 0) : b->at + b->n == j->n ? b->n - 1 : b->n;
    struct blend_part *p = &b->part[b->owner];
    struct gpu_stream *main = part_stream(p);
    TRY(block_close(gpu_stream_exec(main), p->d->head_weights, &p->work, b->n));
    TRY(gpu_copy(main, b->x, p->work.x, (size_t)b->n * hidden * 4, GPU_D2H));
    TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.bad, 4, GPU_D2H));
    for (int i = 0; i < b->n_parts; i++) TRY(gpu_stream_sync(part_stream(&b->part[i])));
    if (s->processor) { /* order what follows after the device's clock */
        TRY(gpu_number_write(b->arrived, ++b->n_arrived, main));
        TRY(gpu_number_wait(b->arrived, b->n_arrived, s->processor));
        return gpu_stream_sync(s->processor);
    }
    if (*b->bad >= 0) return not_finite(b, *b->bad, e);
    step_mirror_store(s, j->kv, &b->move, j->pos + b->at, b->n, b->kv);
    step_mirror_filled(s, j->kv, j->pos + b->at + b->n);
    prefill_complete(j, b->at, b->n, &b->move);
    routing_end(m->routing, &b->lines, true);
    for (int i = first; i < b->n; i += HEAD_ROWS) {
        struct work *w = m->prefill;
        int n = b->n - i < HEAD_ROWS ? b->n - i : HEAD_ROWS;
        *w->bad = -1;
        memcpy(w->x, b->x + (size_t)i * hidden, (size_t)n * hidden * 4);
        processor_read(m, mat_bytes(&m->w->head));
        double t = trace_now(m->trace);
        TRY(block_head(m->cpu, place_head(m->place, m->w), w, 0, n, b->logits, NULL));
        trace_host(m->trace, t, "head", -1, -1);
        TRY(tell_logits(m, j, w, b->at + i, n, b->logits, e));
    }
    return 0;
}

static int blend_advance(struct machine *m, struct prefill_job *j, struct error *e) {
    struct blend *b = j->state;
    int layers = b->s->c->n_layers, rc = 0;
    b->s->cancel = m->cpu->cancel = j->cancel; /* a decode batch in between has set its own */
    b->s->clock++;
    if (j->cancel && atomic_load(j->cancel)) rc = ERR_CANCELLED;
    for (int i = 0; i < b->n_parts && !rc; i++)
        if (!part_stream(&b->part[i])) rc = error_set(e, ERR_RUNTIME, "the device failed during decode");
    if (!rc && !b->n) rc = begin_batch(b, j, e);
    if (!rc) rc = run_layer(b, j, e);
    if (!rc && ++b->layer == layers) rc = end_batch(b, j, e);
    if (rc) {
        step_mirror_stale(b->s, j->kv, 0);
        return failed(b, rc, e);
    }
    if (b->layer == layers) trace_settle(m->trace);
    atomic_store(&j->done, b->at * layers + b->n * b->layer);
    if (b->layer < layers) return PREFILL_MORE;
    b->at += b->n;
    b->n = 0;
    return b->at < j->n ? PREFILL_MORE : 0;
}

const struct mode mode_blend = {.name = "blend", .unit = "prefill", .open = blend_open, .advance = blend_advance, .close = blend_close};
