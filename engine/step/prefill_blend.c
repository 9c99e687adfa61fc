/* Blended prefill: attention halves, shared experts and part of the routed experts of a prompt on the device that decodes, the
 * other routed experts on the processor at the same time. Which expert goes where is asked anew in every layer (sched/split):
 * weights that a device lacks come over the link, one expert after the other, while it computes and while the processor has its
 * own; during the attention half, when nobody knows yet what will be chosen, the link brings what fits. The ends of this line are
 * prefill on the processor and stream-loading. Needs a device that holds all layers but their routed experts. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/pipe/stage.h"
#include "engine/sched/split.h"
#include "engine/step/internal.h"
#include "engine/step/processor.h"

enum { SLOTS_LEAST = 4, GROUP_ROWS = 256, GROUP_RESIDENT = 8, GROUP_MOVED = 4 };

struct blend_slot { /* room for one expert's weights */
    char *mem;
    struct expert view;
    uint32_t on, off;  /* blend.loaded when they are there; blend.freed after their last use, 0: none so far */
    int layer, expert; /* whose they are; layer -1: nobody's */
};

struct blend {
    struct step *s;
    struct step_device *d; /* d->main is NULL when steps have left the device in the meantime */
    struct gpu_stream *link;
    struct stage *stage;    /* feeds the link */
    struct kv_move move;    /* of the batch, in the session's cache */
    int at, n, rows, layer; /* the batch: tokens [at, at + n) of the job; at most `rows`; its next layer */
    struct work work;       /* on the device */
    int32_t *token;         /* device [rows * topk]: pairs in the order of their experts' work */
    float *weight;
    struct blend_slot *slots;
    int n_slots, next_slot;
    /* pinned */
    float *x, *xn, *weights, *pair_weight;
    int32_t *ids, *mine, *pair_token, *pos; /* pos: [rows], then the tokens [rows] */
    _Atomic int *bad;
    char *kv;                                               /* rows of all layers on their way to the session's cache */
    struct gpu_number *arrived, *answered, *loaded, *freed; /* the last two: the link writes what d->main waits for, and the other way round */
    uint32_t n_arrived, n_answered, n_loaded, n_freed;
    /* the split */
    struct cost_table table[2];
    struct split_expert *experts;
    int16_t *expert_of;       /* [n_experts] of experts[] */
    int32_t *rows_of, *place; /* [n_experts]: rows of each; where its pairs begin */
    struct split_plan plan;
    float *logits;
    uint64_t step; /* of the batch, where routing is traced; its lines */
    struct buf lines;
};

/* --- Memory ---------------------------------------------------------------------------------------------------------------------- */

static void *work_alloc(void *ctx, size_t size) {
    struct blend *b = ctx;
    void *p;
    return gpu_alloc(b->d->g, &p, size, NULL) ? NULL : p;
}
static void work_release(void *ctx, void *p) {
    struct blend *b = ctx;
    if (b->d->main) gpu_stream_sync(b->d->main);
    gpu_free(b->d->g, p);
}

enum { ROWS_LEAST = 64 };
static size_t slot_bytes(const struct machine *m) { return (m->expert_bytes + 4096) & ~(size_t)255; }
/* Beside the workspace of so many rows: a short ring, what attention grows by, what operations take for themselves. */
static size_t beside_bytes(const struct machine *m, int rows, int end) {
    const struct config *c = &m->w->config;
    return SLOTS_LEAST * slot_bytes(m) + block_grown_bytes(c, end) + work_bytes(c, rows) / 2;
}

static int open_slots(struct blend *b, int end, struct error *e) {
    int most = b->s->c->n_experts;
    size_t bytes = slot_bytes(b->s->m), keep = beside_bytes(b->s->m, b->rows, end) - SLOTS_LEAST * bytes;
    if (!(b->slots = mem_calloc((size_t)most, sizeof *b->slots))) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    if (keep < gpu_mem_free(b->d->g) / 16) keep = gpu_mem_free(b->d->g) / 16;
    while (b->n_slots < most && (b->n_slots < SLOTS_LEAST || gpu_mem_free(b->d->g) > keep + bytes)) {
        struct blend_slot *t = &b->slots[b->n_slots];
        int rc = gpu_alloc(b->d->g, (void **)&t->mem, bytes, e);
        t->layer = -1;
        b->n_slots++;
        if (rc) return rc;
    }
    return 0;
}

static int open_stage(struct blend *b, struct error *e) {
    struct machine *m = b->s->m;
    return stage_open(&b->stage,
                      &(struct stage_options){.set = m->gpus,
                                              .g = b->d->g,
                                              .stream = b->link,
                                              .stop = &b->d->stop,
                                              .loaded = b->loaded,
                                              .freed = b->freed,
                                              .threads = stage_threads(m->gpus, m->w),
                                              .trace = m->trace,
                                              .rank = b->d->rank},
                      e);
}

size_t blend_least(const struct machine *m, int pos, int n) {
    const struct step *s = m->step;
    int rows = n < ROWS_LEAST ? n : ROWS_LEAST, end = pos + n;
    return s->dev[0].weights + step_mirror_bytes(s, &s->dev[0], end < 512 ? 512 : end + 64) + work_bytes(s->c, rows) + beside_bytes(m, rows, end) +
           2 * (size_t)rows * (size_t)s->c->topk * 4 + ((size_t)1 << 16); /* rounding */
}

size_t blend_wants(const struct machine *m, int pos, int n) {
    enum { RING = 32 };
    size_t least = blend_least(m, pos, n), held = m->step->dev[0].weights;
    return (least > held ? least - held : 0) + RING * slot_bytes(m);
}

static int open_memory(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct step *s = b->s;
    const struct config *c = s->c;
    struct gpu *g = b->d->g;
    for (b->rows = j->n < COST_BLEND_ROWS ? j->n : COST_BLEND_ROWS; b->rows > ROWS_LEAST; b->rows = (b->rows + 1) / 2) {
        if (!work_open(&b->work, c, b->rows, work_alloc, work_release, b, e) && gpu_mem_free(g) > beside_bytes(s->m, b->rows, j->pos + j->n)) break;
        if (b->work.release) work_close(&b->work);
    }
    if (!b->work.release && work_open(&b->work, c, b->rows, work_alloc, work_release, b, e)) return e->code;
    size_t n = (size_t)b->rows, hidden = n * (size_t)c->hidden * 4, pairs = n * (size_t)c->topk * 4;
    struct {
        void *p;
        size_t bytes;
        bool device;
    } want[] = {{&b->token, pairs, true},        {&b->weight, pairs, true},   {&b->x, hidden, false},      {&b->xn, hidden, false},
                {&b->ids, pairs, false},         {&b->mine, pairs, false},    {&b->weights, pairs, false}, {&b->pair_token, pairs, false},
                {&b->pair_weight, pairs, false}, {&b->pos, 2 * n * 4, false}, {&b->bad, 4, false},         {&b->kv, step_saved_bytes(s, b->rows), false}};
    int rc = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want && !rc; i++) rc = (want[i].device ? gpu_alloc : gpu_host_alloc)(g, want[i].p, want[i].bytes, e);
    if (!rc) rc = open_slots(b, j->pos + j->n, e);
    if (rc) return rc;
    size_t experts = (size_t)c->n_experts;
    b->experts = mem_alloc(experts * sizeof *b->experts);
    b->expert_of = mem_alloc(experts * sizeof *b->expert_of);
    b->rows_of = mem_alloc(2 * experts * sizeof *b->rows_of);
    b->logits = mem_alloc((size_t)(j->all ? 16 : 1) * (size_t)c->vocab * sizeof *b->logits);
    if (!b->experts || !b->expert_of || !b->rows_of || !b->logits) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    b->place = b->rows_of + experts;
    return 0;
}

static void blend_close(struct machine *m, struct prefill_job *j) {
    struct blend *b = j->state;
    struct gpu *g = b->d->g;
    atomic_store(&b->d->stop, 1); /* whatever is still under way ends: no step is */
    struct gpu_number **numbers[] = {&b->answered, &b->arrived, &b->loaded, &b->freed};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (*numbers[i]) gpu_number_break(*numbers[i]);
    stage_close(&b->stage);
    if (b->link) gpu_stream_sync(b->link);
    if (b->d->main) gpu_stream_sync(b->d->main);
    step_fill_settle(b->d);
    trace_settle(m->trace);
    gpu_stream_close(&b->link);
    atomic_store(&b->d->stop, 0);
    if (b->work.release) work_close(&b->work);
    for (int i = 0; i < b->n_slots; i++) gpu_free(g, b->slots[i].mem);
    gpu_free(g, b->token), gpu_free(g, b->weight);
    void *pinned[] = {b->x, b->xn, b->ids, b->mine, b->weights, b->pair_token, b->pair_weight, b->pos, (void *)b->bad, b->kv};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) gpu_host_free(g, pinned[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) gpu_number_close(numbers[i]);
    void *own[] = {b->slots, b->experts, b->expert_of, b->rows_of, b->logits, b};
    routing_end(m->routing, &b->lines, false);
    buf_free(&b->lines);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    j->state = NULL;
    step_mirror_keep(m->step, j->kv, false);
    struct error device = {0};
    if (m->step->n_dev && gpu_error(g, &device)) step_leave(m->step, device.text, &device);
}

static int blend_open(struct machine *m, struct prefill_job *j, struct error *e) {
    struct step *s = m->step;
    struct blend *b = mem_calloc(1, sizeof *b);
    if (!b) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    j->state = b;
    b->s = s;
    b->d = &s->dev[0];
    struct gpu *g = b->d->g;
    if (gpu_mem_free(g) + b->d->loaded < blend_least(m, j->pos, j->n)) /* caches of others come back as there is room */
        while (s->mirrors) step_mirror_drop(s, s->mirrors);
    int rc = kv_reach(j->kv, j->pos + j->n, e);
    if (!rc && !s->loaded) rc = step_load(s, e);
    b->move = kv_begin(j->kv, j->pos, j->n, 0);
    if (!rc && !step_mirror_get(s, j->kv, b->move.from, j->pos, j->pos + j->n))
        rc = error_set(e, ERR_MEMORY, "no device memory for a cache of %d tokens", j->pos + j->n);
    if (!rc) step_mirror_keep(s, j->kv, true);
    if (!rc) rc = gpu_stream_open(g, &b->link, "link", false, &b->d->stop, e);
    if (!rc) rc = gpu_number_open(g, &b->arrived, e);
    if (!rc) rc = gpu_number_open(g, &b->answered, e);
    if (!rc) rc = gpu_number_open(g, &b->loaded, e);
    if (!rc) rc = gpu_number_open(g, &b->freed, e);
    if (!rc) rc = open_stage(b, e);
    if (!rc) rc = open_memory(b, j, e);
    if (!rc) rc = gpu_copy(b->d->main, b->work.inv_freq, m->w->inv_freq, (size_t)rope_floats(s->c) * 4, GPU_H2D);
    if (rc) {
        if (!e->code && !gpu_error(g, e)) op_error(rc, e);
        blend_close(m, j);
        return e->code;
    }
    cost_table_fill(&b->table[0], m->cost, 0, m->model, COST_MANY);
    cost_table_fill(&b->table[1], m->cost, 1 + b->d->rank, m->model, COST_MANY);
    atomic_store(&j->total, j->n * s->c->n_layers);
    atomic_store(&j->ready, 1);
    return 0;
}

/* --- The link -------------------------------------------------------------------------------------------------------------------- */

static struct blend_slot *slot_of(struct blend *b, int layer, int expert) {
    for (int i = 0; i < b->n_slots; i++)
        if (b->slots[i].layer == layer && b->slots[i].expert == expert) return &b->slots[i];
    return NULL;
}

/* Room that nothing enqueued from here on reads: nobody's, or of another layer, or (freed) computed in this one. */
static struct blend_slot *free_slot(struct blend *b, int layer) {
    for (int i = 0; i < b->n_slots; i++) {
        struct blend_slot *t = &b->slots[(b->next_slot + i) % b->n_slots];
        if (t->layer == layer) continue;
        b->next_slot = (b->next_slot + i + 1) % b->n_slots;
        return t;
    }
    return NULL;
}

static int fetch_expert(struct blend *b, struct blend_slot *t, int layer, int expert) {
    struct pipe_range ranges[MODULE_RANGES];
    struct pipe_run runs[MODULE_RANGES];
    size_t bytes;
    int n = module_ranges(b->s->c, layer, MODULE_EXPERT, &b->s->m->w->layers[layer].experts[expert], &t->view, ranges), k = pipe_runs(ranges, n, runs, &bytes);
    struct stage_unit u = {.runs = runs, .n = k, .to = t->mem, .after = t->off, .loaded = ++b->n_loaded, .layer = layer, .item = expert};
    TRY(stage_send(b->stage, &u));
    for (int i = 0; i < n; i++) *ranges[i].field = t->mem + ranges[i].at;
    t->on = u.loaded;
    t->layer = layer;
    t->expert = expert;
    processor_read(b->s->m, b->s->m->expert_bytes);
    return 0;
}

/* While the attention half runs: as many as the link brings meanwhile, half of the room at most. *busy: how long it takes. */
static int fetch_ahead(struct blend *b, int layer, double seconds, double *busy, struct error *e) {
    struct machine *m = b->s->m;
    double move = cost_move(m->cost, 1 + b->d->rank, COST_H2D, m->model->expert_bytes);
    *busy = 0;
    for (int32_t x = 0; x < b->s->c->n_experts && x < b->n_slots / 2 && *busy + move <= seconds; x++) {
        struct blend_slot *t = free_slot(b, layer);
        if (!b->s->processor) TRY(scan_experts(&m->scan, layer, &x, 1, e));
        TRY(fetch_expert(b, t, layer, x));
        *busy += move;
    }
    return 0;
}

/* --- A layer --------------------------------------------------------------------------------------------------------------------- */

static int attention(struct blend *b, const struct prefill_job *j, const struct step_mirror *copy) {
    const struct config *c = b->s->c;
    struct exec *x = gpu_stream_exec(b->d->main);
    const struct layer *y = &b->d->layer[b->layer].view;
    struct span t = {.cache = copy->layer, .n = b->n, .pos = j->pos + b->at, .move = copy->move};
    size_t pairs = (size_t)b->n * (size_t)c->topk * 4, hidden = (size_t)b->n * (size_t)c->hidden * 4;
    int span = trace_begin(b->s->m->trace, b->d->main, b->d->rank, LANE_COMPUTE, "attention", b->layer, -1);
    TRY(block_attention(x, c, y, b->layer, &b->work, &t, 1, b->n));
    TRY(step_mirror_save(b->s, copy, b->d->main, b->layer, t.pos, b->n, b->kv));
    TRY(block_route(x, c, y, b->layer, &b->work, b->n));
    if (c->layer[b->layer].moe) {
        TRY(gpu_copy(b->d->main, b->xn, b->work.xn, hidden, GPU_D2H));
        TRY(gpu_copy(b->d->main, b->ids, b->work.ids, pairs, GPU_D2H));
        TRY(gpu_copy(b->d->main, b->weights, b->work.weights, pairs, GPU_D2H));
        TRY(gpu_copy(b->d->main, (void *)b->bad, (const void *)b->work.bad, 4, GPU_D2H));
        TRY(gpu_number_write(b->arrived, ++b->n_arrived, b->d->main));
    }
    TRY(block_experts(x, c, y, b->layer, &b->work, PART_SHARED, b->work.x, b->n));
    trace_end(b->s->m->trace, span, b->d->main);
    return 0;
}

/* Counts what was chosen, and asks who computes it. */
static void ask(struct blend *b, double link_busy) {
    const struct config *c = b->s->c;
    struct machine *m = b->s->m;
    double sum = cost_move(m->cost, 1 + b->d->rank, COST_H2D, (double)b->n * m->model->row_bytes);
    struct split_domain d[2] = {
        {.class = COST_CPU, .expert = &b->table[0]}, /* the rows are here already */
        {.class = COST_GPU,
         .expert = &b->table[1],
         .busy = cost_shared(m->cost, 1 + b->d->rank, m->model, b->n),
         .link_busy = link_busy,
         .move = cost_move(m->cost, 1 + b->d->rank, COST_H2D, m->model->expert_bytes),
         .room = c->n_experts},
    };
    struct split_in in = {.domain = d, .expert = b->experts, .n_domains = 2, .join = sum};
    memset(b->rows_of, 0, (size_t)c->n_experts * sizeof *b->rows_of);
    if (b->s->processor) /* nothing was computed: even groups */
        for (int x = 0; x < c->n_experts; x++)
            b->rows_of[x] = (int)((int64_t)b->n * c->topk * (x + 1) / c->n_experts - (int64_t)b->n * c->topk * x / c->n_experts);
    for (int i = 0; i < b->n * c->topk && !b->s->processor; i++) b->rows_of[b->ids[i]]++;
    for (int x = 0; x < c->n_experts; x++) {
        if (!b->rows_of[x]) continue;
        b->expert_of[in.n] = (int16_t)x;
        b->experts[in.n++] = (struct split_expert){.rows = b->rows_of[x], .resident = 1u | (slot_of(b, b->layer, x) ? 2u : 0)};
    }
    split_run(m->split, &in, &b->plan);
}

/* Pairs of the device's experts in the order of their work; what the processor is left with in b->mine. */
static int sort_pairs(struct blend *b, const int16_t *order, int n) {
    const struct config *c = b->s->c;
    int32_t at = 0;
    for (int x = 0; x < c->n_experts; x++) b->place[x] = -1;
    for (int i = 0; i < n; i++) b->place[order[i]] = at, at += b->rows_of[order[i]];
    for (int i = 0; i < b->n * c->topk && !b->s->processor; i++) {
        int32_t *to = &b->place[b->ids[i]];
        b->mine[i] = *to < 0 ? b->ids[i] : -1;
        if (*to < 0) continue;
        b->pair_token[*to] = i / c->topk;
        b->pair_weight[(*to)++] = b->weights[i];
    }
    TRY(gpu_copy(b->d->main, b->token, b->pair_token, (size_t)at * 4, GPU_H2D)); /* none: no copy */
    return gpu_copy(b->d->main, b->weight, b->pair_weight, (size_t)at * 4, GPU_H2D);
}

/* The device's experts: those that are there first, then the others as they come. Small ones go several at a time. */
static int device_experts(struct blend *b) {
    const struct config *c = b->s->c;
    const struct split_plan *p = &b->plan;
    int16_t order[SPLIT_EXPERTS];
    int n = 0, there, next, at = 0;
    for (int i = p->begin[1]; i < p->begin[2]; i++)
        if (slot_of(b, b->layer, b->expert_of[p->queue[i]])) order[n++] = b->expert_of[p->queue[i]];
    there = next = n;
    for (int i = p->moves[1]; i < p->moves[2]; i++) order[n++] = b->expert_of[p->move[i]];
    TRY(sort_pairs(b, order, n));
    for (int i = 0; i < n;) {
        struct blend_slot *slots[GROUP_MOST], *t;
        uint32_t on = 0;
        for (; next < n && (t = free_slot(b, b->layer)); next++) TRY(fetch_expert(b, t, b->layer, order[next]));
        struct op_group g = {.y = b->work.x, .x = b->work.xn, .token = b->token, .weight = b->weight, .hidden = c->hidden, .wide = config_wide(c)};
        for (int most = i < there ? GROUP_RESIDENT : GROUP_MOVED; i < n && g.n < most && (i < there || i < next); i++) {
            if (g.n && b->rows_of[order[i]] > GROUP_ROWS) break;
            slots[g.n] = slot_of(b, b->layer, order[i]);
            g.expert[g.n] = slots[g.n]->view;
            g.begin[g.n] = at;
            at += b->rows_of[order[i]];
            g.begin[++g.n] = at;
            if (slots[g.n - 1]->on > on) on = slots[g.n - 1]->on;
            if (b->rows_of[order[i]] > GROUP_ROWS) {
                i++;
                break;
            }
        }
        TRY(gpu_number_wait(b->loaded, on, b->d->main)); /* they come in order */
        int span = trace_begin(b->s->m->trace, b->d->main, b->d->rank, LANE_COMPUTE, "experts", b->layer, -1);
        TRY(op_run(gpu_stream_exec(b->d->main), OP_GROUP, &g));
        trace_end(b->s->m->trace, span, b->d->main);
        TRY(gpu_number_write(b->freed, ++b->n_freed, b->d->main));
        for (int k = 0; k < g.n; k++) slots[k]->off = b->n_freed, slots[k]->layer = -1;
    }
    return 0;
}

static int pairs_of(const struct blend *b, int from, int to) {
    int sum = 0;
    for (int i = from; i < to; i++) sum += b->experts[b->plan.queue[i]].rows;
    return sum;
}

/* The next layer's split knows how long the processor took for this one's. */
static void learn(struct blend *b, double took) {
    struct cost_machine *c = b->s->m->cost;
    int n = b->plan.begin[1] - b->plan.begin[0];
    double rows = pairs_of(b, b->plan.begin[0], b->plan.begin[1]) / (double)n, expected = 0;
    for (int i = b->plan.begin[0]; i < b->plan.begin[1]; i++) expected += cost_table_at(&b->table[0], b->experts[b->plan.queue[i]].rows);
    cost_observe(c, &c->domain[0].seen[COST_FFN], rows, expected, took);
    if (!c->deterministic) cost_table_fill(&b->table[0], c, 0, b->s->m->model, COST_MANY);
}

/* The processor's share: their sum goes to b->x, and from there to the device. */
static int processor_share(struct blend *b, struct error *e) {
    struct step *s = b->s;
    struct work w = {.x = b->x, .xn = b->xn, .ids = b->mine, .weights = b->weights, .bad = s->head.bad};
    size_t hidden = (size_t)b->n * (size_t)s->c->hidden * 4;
    struct exec *x = gpu_stream_exec(b->d->main);
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
        TRY(gpu_number_wait(b->answered, b->n_answered, b->d->main));
    }
    TRY(gpu_copy(b->d->main, b->work.xn, b->x, hidden, GPU_H2D));
    return x->ops->add(x, &(struct op_add){.y = b->work.x, .x = b->work.xn, .n = b->n, .m = s->c->hidden});
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
    if (!copy) return error_set(e, ERR_MEMORY, "no device memory for a cache of %d tokens", j->pos + j->n);
    copy->move.mark = b->move.mark;
    double half = cost_half(m->cost, 1 + b->d->rank, m->model, cost_prefill_rows(b->n, j->pos + b->at)), ahead = 0;
    if (moe) TRY(fetch_ahead(b, b->layer, half, &ahead, e));
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
    ask(b, ahead > half ? ahead - half : 0);
    TRY(device_experts(b));
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
    TRY(gpu_fill(b->d->main, (void *)b->work.bad, 0xff, 4));
    TRY(gpu_copy(b->d->main, b->work.x, b->x, (size_t)b->n * (size_t)s->c->hidden * 4, GPU_H2D));
    TRY(gpu_copy(b->d->main, b->work.pos, b->pos, (size_t)b->n * 4, GPU_H2D));
    TRY(gpu_copy(b->d->main, b->work.tokens, tokens, (size_t)b->n * 4, GPU_H2D));
    return block_rope(gpu_stream_exec(b->d->main), s->c, &b->work, m->w->rope_mscale, b->n, j->pos + j->n);
}

/* Caches in host memory are filled, and the logits that are wanted made. */
static int end_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    enum { HEAD_ROWS = 16 };
    struct step *s = b->s;
    struct machine *m = s->m;
    size_t hidden = (size_t)s->c->hidden;
    int first = j->all ? (j->told > b->at ? j->told - b->at : 0) : b->at + b->n == j->n ? b->n - 1 : b->n;
    TRY(block_close(gpu_stream_exec(b->d->main), b->d->head_weights, &b->work, b->n));
    TRY(gpu_copy(b->d->main, b->x, b->work.x, (size_t)b->n * hidden * 4, GPU_D2H));
    TRY(gpu_copy(b->d->main, (void *)b->bad, (const void *)b->work.bad, 4, GPU_D2H));
    TRY(gpu_stream_sync(b->d->main));
    if (s->processor) return 0;
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
    b->s->cancel = m->cpu->cancel = j->cancel; /* a step since the last piece left its own there */
    b->s->clock++;
    if (j->cancel && atomic_load(j->cancel)) rc = ERR_CANCELLED;
    if (!rc && !b->d->main) rc = error_set(e, ERR_RUNTIME, "the device failed in a step");
    if (!rc && !b->n) rc = begin_batch(b, j, e);
    if (!rc) rc = run_layer(b, j, e);
    if (!rc && ++b->layer == layers) rc = end_batch(b, j, e);
    if (rc) {
        if (!e->code && !gpu_error(b->d->g, e)) op_error(rc, e);
        step_mirror_stale(b->s, j->kv, 0);
        return e->code;
    }
    if (b->layer == layers) trace_settle(m->trace);
    atomic_store(&j->done, b->at * layers + b->n * b->layer);
    if (b->layer < layers) return PREFILL_MORE;
    b->at += b->n;
    b->n = 0;
    return b->at < j->n ? PREFILL_MORE : 0;
}

const struct mode mode_blend = {.name = "blend", .unit = "prefill", .open = blend_open, .advance = blend_advance, .close = blend_close};
