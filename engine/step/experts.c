#include "engine/step/experts.h"

#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/cache/lookahead.h"
#include "engine/pipe/stage.h"
#include "engine/sched/split.h"
#include "engine/step/processor.h"

enum { USED_MOST = 256 }; /* experts of a layer that the device computes at most */
size_t step_experts_slot(const struct machine *m) { return (m->expert_bytes + 4096) & ~(size_t)255; }
static struct step_slot *slots_of(const struct step_experts *x, int layer) { return x->slots + (size_t)layer * (size_t)x->each; }
static int16_t *place_of(const struct step_experts *x, int layer, int expert) {
    return &x->slot_of[(size_t)layer * (size_t)x->d->s->c->n_experts + (size_t)expert];
}
static struct step_slot *find(const struct step_experts *x, int layer, int expert) {
    int i = *place_of(x, layer, expert);
    return i < 0 ? NULL : &slots_of(x, layer)[i];
}
static bool has_experts(const struct step_device *d, int layer) { return layer >= d->first && layer < d->last && d->s->c->layer[layer].moe; }
/* --- Open, close -------------------------------------------------------------------------------------------------------------- */

static void close_queues(struct step_experts *x) {
    atomic_store(&x->stop, 1);
    guess_break(&x->guess);
    struct gpu_number **numbers[] = {&x->loaded, &x->freed, &x->done[0], &x->done[1]};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (*numbers[i]) gpu_number_break(*numbers[i]);
    stage_close(&x->stage);
    guess_close_queue(&x->guess);
    if (x->link) gpu_stream_sync(x->link);
    if (x->compute) gpu_stream_sync(x->compute);
    gpu_stream_close(&x->link);
    gpu_stream_close(&x->compute);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) gpu_number_close(numbers[i]);
    for (int i = 0; i < 2 * STEP_MICROS; i++) gpu_event_close(&x->ready[i / 2][i % 2]);
    for (int i = 0; i < STEP_MICROS; i++) gpu_event_close(&x->begin[i]), gpu_event_close(&x->end[i]), x->timed[i] = false;
    atomic_store(&x->stop, 0);
    x->n_loaded = x->n_freed = 0;
    memset(x->n_done, 0, sizeof x->n_done);
    memset(x->n_wanted, 0, sizeof x->n_wanted);
}

static int open_queues(struct step_experts *x, struct error *e) {
    const struct machine *m = x->d->s->m;
    struct gpu *g = x->d->g;
    int rc = gpu_stream_open(g, &x->link, "experts' link", false, &x->stop, e);
    if (!rc) rc = gpu_stream_open(g, &x->compute, "experts", true, &x->stop, e);
    if (!rc) rc = gpu_number_open(g, &x->loaded, e);
    if (!rc) rc = gpu_number_open(g, &x->freed, e);
    if (!rc) rc = guess_open_queue(&x->guess, &x->stop, e);
    for (int i = 0; i < STEP_MICROS && !rc; i++) {
        rc = gpu_number_open(g, &x->done[i], e);
        for (int k = 0; k < 2 && !rc; k++) rc = gpu_event_open(g, &x->ready[i][k], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->begin[i], e);
        if (!rc) rc = gpu_event_open_timed(g, &x->end[i], e);
    }
    if (!rc)
        rc = stage_open(&x->stage,
                        &(struct stage_options){.set = m->gpus,
                                                .g = g,
                                                .stream = x->link,
                                                .stop = &x->stop,
                                                .loaded = x->loaded,
                                                .freed = x->freed,
                                                .threads = stage_threads(m->gpus, m->w),
                                                .trace = m->trace,
                                                .rank = x->d->rank},
                        e);
    return rc;
}

static int fill_fixed(struct step_experts *x, struct error *e);

/* Tabulates the cost model by rows, for use in every layer. */
static void fill_tables(struct step_experts *x) {
    const struct machine *m = x->d->s->m;
    const int device = 1 + x->d->rank;
    cost_table_fill(&x->table[0], m->cost, 0, m->model, OP_FEW);
    cost_table_fill(&x->table[1], m->cost, device, m->model, OP_FEW);
    x->move = cost_move(m->cost, device, COST_H2D, m->model->expert_bytes);
    for (int n = 0; n <= STEP_ROWS; n++) x->shared[n] = cost_shared(m->cost, device, m->model, n);
}

static int open_memory(struct step_experts *x, struct error *e) {
    const struct config *c = x->d->s->c;
    struct gpu *g = x->d->g;
    size_t rows = (size_t)STEP_ROWS * (size_t)c->hidden * 4, pairs = (size_t)STEP_ROWS * (size_t)c->topk * 4, n = (size_t)c->n_experts;
    int rc = gpu_alloc(g, (void **)&x->x, rows, e);
    if (!rc) rc = gpu_alloc(g, (void **)&x->part, rows, e);
    for (int i = 0; i < STEP_MICROS && !rc; i++) {
        rc = gpu_alloc(g, (void **)&x->y[i], rows, e);
        if (!rc) rc = gpu_alloc(g, (void **)&x->token[i], pairs, e);
        if (!rc) rc = gpu_alloc(g, (void **)&x->weight[i], pairs, e);
        if (!rc) rc = gpu_host_alloc(g, (void **)&x->host_token[i], pairs, e);
        if (!rc) rc = gpu_host_alloc(g, (void **)&x->host_weight[i], pairs, e);
    }
    if (rc) return rc;
    x->mine = mem_alloc(pairs);
    x->ids = mem_alloc(pairs);
    x->router = mem_alloc((size_t)STEP_ROWS * n * sizeof *x->router);
    x->near = mem_alloc(2 * pairs);
    x->chance = mem_alloc(2 * pairs);
    x->rows = mem_alloc(n * sizeof *x->rows);
    x->expert_of = mem_alloc(n * sizeof *x->expert_of);
    x->experts = mem_alloc(n * sizeof *x->experts);
    x->plan = mem_alloc(sizeof *x->plan);
    x->slots = mem_calloc((size_t)c->n_layers * (size_t)x->each, sizeof *x->slots);
    x->slot_of = mem_alloc((size_t)c->n_layers * n * sizeof *x->slot_of);
    if (!x->mine || !x->ids || !x->router || !x->near || !x->chance || !x->rows || !x->expert_of || !x->experts || !x->plan || !x->slots || !x->slot_of)
        return error_set(e, ERR_MEMORY, "no memory for an expert pool");
    memset(x->slot_of, 0xff, (size_t)c->n_layers * n * sizeof *x->slot_of);
    return 0;
}

/* Allocates slots, one per layer at a time, until memory runs out. */
static void open_slots(struct step_experts *x) {
    struct step_device *d = x->d;
    size_t bytes = step_experts_slot(d->s->m);
    for (int k = 0; k < x->each; k++)
        for (int l = d->first; l < d->last; l++) {
            struct step_slot *t = &slots_of(x, l)[k];
            t->expert = -1;
            if (!has_experts(d, l)) continue;
            if (gpu_alloc(d->g, (void **)&t->mem, bytes, NULL)) {
                log_say(LOG_INFO, "a device has room for %d experts per layer, %d were planned", k, x->each);
                while (x->each > k) step_experts_less(d);
                return;
            }
            d->held += bytes;
        }
}

/* Allocates scores and predictions, which outlive the slots. */
static int open_learnt(struct step_device *d, struct error *e) {
    const struct config *c = d->s->c;
    if (d->predict_mem) return 0;
    if (!d->score_mem) d->score_mem = mem_calloc(1, score_bytes(c->n_layers, c->n_experts));
    d->predict_mem = mem_calloc(1, predict_bytes(c->n_layers, c->n_experts));
    if (!d->score_mem || !d->predict_mem) return error_set(e, ERR_MEMORY, "no memory for expert scores");
    score_open(&d->score, d->s->m->evict, c->n_layers, c->n_experts, c->topk, d->score_mem);
    predict_open(&d->predict, c->n_layers, c->n_experts, d->predict_mem);
    return 0;
}

int step_experts_open(struct step_device *d, struct error *e) {
    const struct machine *m = d->s->m;
    struct step_experts *x = d->experts;
    int rc = 0;
    if (!d->each || x) return 0;
    if (!(x = d->experts = mem_calloc(1, sizeof *x))) return error_set(e, ERR_MEMORY, "no memory for an expert pool");
    x->d = d;
    x->each = d->each;
    rc = open_memory(x, e);
    if (!rc) rc = open_queues(x, e);
    if (!rc) rc = guess_open(&x->guess, d, &x->stop, e);
    if (!rc) rc = open_learnt(d, e);
    if (!rc) open_slots(x);
    if (!rc && m->cost->deterministic) rc = fill_fixed(x, e);
    if (rc == ERR_MEMORY) { /* a pool is optional */
        log_say(LOG_INFO, "no expert pool on a device: %s", e->text);
        *e = (struct error){0};
        rc = 0;
        d->each = 0;
    }
    if (rc || !d->each) step_experts_close(d);
    if (!d->experts) return rc;
    fill_tables(x);
    return 0;
}

static void free_slot(struct step_experts *x, int layer, struct step_slot *t) {
    if (!t->mem) return;
    if (t->expert >= 0) *place_of(x, layer, t->expert) = -1;
    gpu_free(x->d->g, t->mem);
    x->d->held -= step_experts_slot(x->d->s->m);
    *t = (struct step_slot){.expert = -1};
}

void step_experts_close(struct step_device *d) {
    struct step_experts *x = d->experts;
    if (!x) return;
    if (d->main) gpu_stream_sync(d->main);
    close_queues(x);
    guess_close(&x->guess);
    for (int l = d->first; l < d->last && x->slots && x->slot_of; l++)
        for (int k = 0; k < x->each; k++) free_slot(x, l, &slots_of(x, l)[k]);
    for (int i = 0; i < STEP_MICROS; i++) {
        gpu_free(d->g, x->y[i]), gpu_free(d->g, x->token[i]), gpu_free(d->g, x->weight[i]);
        gpu_host_free(d->g, x->host_token[i]), gpu_host_free(d->g, x->host_weight[i]);
    }
    gpu_free(d->g, x->x), gpu_free(d->g, x->part);
    void *own[] = {x->mine, x->ids, x->router, x->near, x->chance, x->rows, x->expert_of, x->experts, x->plan, x->slots, x->slot_of, x};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    d->experts = NULL;
}

bool step_experts_less(struct step_device *d) {
    struct step_experts *x = d->experts;
    if (!x || !x->each) return false;
    stage_flush(x->stage);
    gpu_stream_sync(x->link);
    gpu_stream_sync(x->compute);
    for (int l = d->first; l < d->last; l++) free_slot(x, l, &slots_of(x, l)[x->each - 1]);
    struct step_slot *from = x->slots; /* shrinks the rows of the table in place */
    int was = x->each--;
    for (int l = 0; l < d->s->c->n_layers; l++)
        for (int k = 0; k < x->each; k++) x->slots[l * x->each + k] = from[l * was + k];
    return true;
}

void step_experts_where(const struct step_device *d, int8_t *where) {
    const struct step_experts *x = d->experts;
    size_t n = (size_t)d->s->c->n_experts;
    for (int l = d->first; l < d->last && x; l++)
        for (int k = 0; k < x->each; k++)
            if (slots_of(x, l)[k].expert >= 0) where[(size_t)l * n + (size_t)slots_of(x, l)[k].expert] = (int8_t)d->rank;
}

/* False when the device takes longer for one expert than the CPU for all of a token's. */
static bool pays(const struct step_experts *x) { return cost_table_at(&x->table[1], 1) < x->d->s->c->topk * cost_table_at(&x->table[0], 1); }

void step_experts_begin(struct step_device *d) {
    if (!d->experts) return;
    d->experts->begun = 0;
    guess_begin(&d->experts->guess, pays(d->experts));
}

void step_experts_break(struct step_device *d) {
    if (d->experts) guess_break(&d->experts->guess);
    for (int i = 0; i < STEP_MICROS && d->experts; i++) gpu_number_break(d->experts->done[i]);
}

int step_experts_settle(struct step_device *d, struct error *e) {
    struct step_experts *x = d->experts;
    if (!x) return 0;
    for (int l = d->first; l < d->last; l++)
        for (int k = 0; k < x->each; k++) {
            struct step_slot *t = &slots_of(x, l)[k];
            if (t->expert >= 0 && !gpu_number_reached(x->loaded, t->on)) *place_of(x, l, t->expert) = -1, t->expert = -1;
        }
    struct error device;
    bool failed = gpu_error(d->g, &device);
    close_queues(x);
    if (failed) return 0; /* the caller drops the device */
    for (int l = d->first; l < d->last; l++)
        for (int k = 0; k < x->each; k++) slots_of(x, l)[k].on = slots_of(x, l)[k].off = 0;
    return open_queues(x, e);
}

/* --- Uploads --------------------------------------------------------------------------------------------------------------------  */

static int bring(struct step_experts *x, int layer, int k, int expert, bool ahead) {
    struct step *s = x->d->s;
    struct pipe_range ranges[MODULE_RANGES];
    struct pipe_run runs[MODULE_RANGES];
    struct step_slot *t = &slots_of(x, layer)[k];
    size_t bytes;
    int n = module_ranges(s->c, layer, MODULE_EXPERT, &s->m->w->layers[layer].experts[expert], &t->view, ranges), many = pipe_runs(ranges, n, runs, &bytes);
    if (t->expert >= 0) {
        *place_of(x, layer, t->expert) = -1;
        s->counts.in_vain += !t->used;
        s->counts.ahead_in_vain += !t->used && t->ahead;
    }
    t->expert = -1;
    TRY(stage_send(x->stage,
                   &(struct stage_unit){.runs = runs, .n = many, .to = t->mem, .after = t->off, .loaded = ++x->n_loaded, .layer = layer, .item = expert}));
    for (int i = 0; i < n; i++) *ranges[i].field = t->mem + ranges[i].at;
    t->on = x->n_loaded, t->expert = expert, t->used = false, t->ahead = ahead;
    *place_of(x, layer, expert) = (int16_t)k;
    s->counts.moved++, s->counts.ahead += ahead;
    s->counts.moved_bytes += s->m->expert_bytes;
    processor_read(s->m, s->m->expert_bytes);
    return 0;
}
static bool idle(const struct step_experts *x) { return gpu_number_reached(x->loaded, x->n_loaded); }

/* Picks the eviction victim: an empty slot, else the lowest score. Experts with rows in but [n_experts] (or NULL) are skipped. -1:
 * none. */
static int worst(const struct step_experts *x, int layer, const int32_t *but) {
    int at = -1;
    double least = 0;
    for (int k = 0; k < x->each; k++) {
        const struct step_slot *t = &slots_of(x, layer)[k];
        if (t->expert < 0) return k;
        if (but && but[t->expert]) continue;
        double v = score_of(&x->d->score, layer, t->expert);
        if (at < 0 || v < least) at = k, least = v;
    }
    return at;
}

/* --deterministic: loads the first experts of each layer for good. */
static int fill_fixed(struct step_experts *x, struct error *e) {
    struct step_device *d = x->d;
    for (int l = d->first; l < d->last; l++)
        for (int32_t k = 0; k < x->each && has_experts(d, l); k++) {
            TRY(scan_experts(&d->s->m->scan, l, &k, 1, e));
            TRY(bring(x, l, k, k, false));
        }
    TRY(stage_flush(x->stage));
    return gpu_stream_sync(x->link);
}

/* --- A layer ----------------------------------------------------------------------------------------------------------------------  */

int step_experts_keep(struct step_device *d, int micro, int layer, const float *x, int n) {
    return d->experts ? guess_keep(&d->experts->guess, micro, layer, x, n) : 0;
}
int step_experts_ready(struct step_device *d, int micro, int layer) { return d->experts ? gpu_event_record(d->experts->ready[micro][layer % 2], d->main) : 0; }

int step_experts_join(struct step_device *d, int micro, float *to, int n) {
    struct step_experts *x = d->experts;
    struct exec *exec = gpu_stream_exec(d->main);
    if (!x) return 0;
    TRY(gpu_number_wait(x->done[micro], ++x->n_wanted[micro], d->main));
    return exec->ops->add(exec, &(struct op_add){.y = to, .x = x->y[micro], .n = n, .m = d->s->c->hidden});
}

/* Counts the device rows that selected each expert; 0 if a CPU row selected it too: then the CPU reads it anyway. */
static void count_rows(struct step_experts *x, const struct step_micro *m) {
    const struct step *s = x->d->s;
    int topk = s->c->topk;
    memset(x->rows, 0, (size_t)s->c->n_experts * sizeof *x->rows);
    for (int i = 0; i < m->n_dev * topk; i++) x->rows[m->host.ids[i]]++;
    for (int i = m->n_dev * topk; i < m->n * topk; i++)
        if (m->host.ids[i] >= 0) x->rows[m->host.ids[i]] = 0;
}

/* Describes domain 0 (CPU), domain 1 (device) and the experts in x->expert_rows for the split. link_busy: seconds before a new upload can
 * start. Returns the number of experts. */
static int describe(struct step_experts *x, int layer, int n, double link_busy, struct split_domain *d) {
    struct step *s = x->d->s;
    const struct machine *v = s->m;
    int gone = 0, all = 0;
    d[0] = (struct split_domain){.class = COST_CPU, .expert = &x->table[0]};
    d[1] = (struct split_domain){
        .class = COST_GPU, .expert = &x->table[1], .busy = x->shared[n], .link_busy = link_busy, .move = v->cost->deterministic ? 0 : x->move};
    for (int i = 0; i < s->c->n_experts; i++) {
        if (!x->rows[i]) continue;
        struct step_slot *t = find(x, layer, i);
        bool here = t && (v->cost->deterministic || gpu_number_reached(x->loaded, t->on));
        gone += t != NULL;
        x->expert_of[all] = (int16_t)i;
        x->experts[all++] = (struct split_expert){.rows = x->rows[i], .resident = 1u | (here ? 2u : 0)};
    }
    d[1].room = x->each > gone ? x->each - gone : 0;
    for (int i = 0; i < all && d[1].move > 0; i++) /* an upload needs a scan first, which costs more than it saves */
        if (!residency_is(&v->known, layer, x->expert_of[i], RESIDENCY_GOOD)) d[1].move = 0;
    return all;
}
static const struct split_policy *policy_of(const struct step *s) { return s->m->cost->deterministic ? split_find("host") : s->m->split; }

/* Fills x->plan for a layer's rows; returns the number of experts. */
static int ask(struct step_experts *x, const struct step_micro *m, int layer) {
    struct split_domain d[2];
    count_rows(x, m);
    int n = describe(x, layer, m->n_dev, idle(x) ? 0 : x->move, d);
    split_run(policy_of(x->d->s), &(struct split_in){.domain = d, .expert = x->experts, .n_domains = 2, .n = n}, x->plan);
    return n;
}

/* --- Uploads on an idle link: for good, or for the next layers -------------------------------------------------------------------- */

struct wanted {
    int layer, slot, expert; /* slot -1: nothing */
    double worth;            /* seconds saved in later batches */
    bool ahead;
};

/* Picks a swap: the best missing expert for the worst resident one, if worth more over about as many batches as scores look back. */
static struct wanted better(const struct step_experts *x, int layer) {
    enum { STEPS = 14 };
    const struct step *s = x->d->s;
    const struct predict *p = &x->d->predict;
    struct wanted w = {.layer = layer, .slot = worst(x, layer, NULL), .expert = -1};
    double most = 0;
    if (w.slot < 0) return w;
    for (int i = 0; i < s->c->n_experts; i++) {
        double v = score_of(&x->d->score, layer, i);
        if (v > most && *place_of(x, layer, i) < 0 && residency_is(&s->m->known, layer, i, RESIDENCY_GOOD)) most = v, w.expert = i;
    }
    int was = slots_of(x, layer)[w.slot].expert;
    if (w.expert < 0 || (was >= 0 && most <= score_of(&x->d->score, layer, was))) w.slot = -1;
    else w.worth = STEPS * cost_table_at(&x->table[0], 1) * (predict_rate(p, layer, w.expert) - (was >= 0 ? predict_rate(p, layer, was) : 0));
    return w;
}

/* Picks the best prefetch for the next layers, from each layer's newest prediction. now: seconds since this layer's experts began. */
static struct wanted foreseen(struct step_experts *x, int micro, int layer, int n, double now) {
    struct step_device *d = x->d;
    const struct config *c = d->s->c;
    struct wanted best = {.slot = -1};
    for (int l = layer + 1; l <= layer + PREDICT_FAR && l < d->last; l++) {
        const int32_t *said = NULL;
        int distance = 0;
        while (!said && ++distance <= PREDICT_FAR) said = guess_of(&x->guess, micro, l, distance, n);
        if (!said) continue;
        memset(x->rows, 0, (size_t)c->n_experts * sizeof *x->rows);
        for (int i = 0; i < n * c->topk; i++)
            if (said[i] >= 0 && said[i] < c->n_experts) x->rows[said[i]]++;
        struct split_domain domain[2];
        int all = describe(x, l, n, 0, domain), k = worst(x, l, x->rows);
        if (k < 0 || !(domain[1].move > 0)) continue; /* or one of them was never scanned */
        struct predict_ask ask = {.layer = l,
                                  .distance = distance,
                                  .split = policy_of(d->s),
                                  .domain = domain,
                                  .expert = x->experts,
                                  .id = x->expert_of,
                                  .n = all,
                                  .late = domain[1].move - ((l - layer) * x->beat - now),
                                  .victim = slots_of(x, l)[k].expert};
        struct predict_answer a = predict_worth(&d->predict, &ask, x->plan);
        if (a.expert >= 0 && a.worth > best.worth && *place_of(x, l, x->expert_of[a.expert]) < 0)
            best = (struct wanted){l, k, x->expert_of[a.expert], a.worth, true};
    }
    return best;
}

/* Uploads in flight, counted up to MANY. */
static int under_way(const struct step_experts *x) {
    enum { MANY = 256 };
    int n = 0;
    while (n < MANY && (uint32_t)n < x->n_loaded && !gpu_number_reached(x->loaded, x->n_loaded - (uint32_t)n)) n++;
    return n;
}

int step_experts_expect(struct step_device *d, const struct lookahead *a, enum step_phase phase, double before) {
    struct step_experts *x = d->experts;
    struct step *s = d->s;
    struct lookahead_want want[USED_MOST];
    if (!x || s->m->cost->deterministic) return 0;
    int queue = under_way(x);
    for (int l = d->first; l < d->last; l++) {
        if (!has_experts(d, l)) continue;
        const int n = lookahead_wants(a, l, want, USED_MOST);
        memset(x->rows, 0, (size_t)s->c->n_experts * sizeof *x->rows);
        for (int i = 0; i < n; i++) {
            score_announce(&d->score, l, &want[i].expert, 1, want[i].ahead + 1);
            x->rows[want[i].expert] = 1;
        }
        for (int i = 0; i < n && phase != STEP_PRIME; i++) {
            const int id = want[i].expert, k = worst(x, l, x->rows);
            if (*place_of(x, l, id) >= 0 || !residency_is(&s->m->known, l, id, RESIDENCY_GOOD)) continue;
            if (phase == STEP_LIKELY && want[i].confidence * (float)s->c->topk < 1) continue; /* below an equal share */
            if (k < 0 || (queue + 1) * x->move > before + (l - d->first) * x->beat) break;    /* no slot, or too late for this layer */
            TRY(bring(x, l, k, id, true));
            queue++;
        }
    }
    return 0;
}

static struct wanted most_wanted(struct step_experts *x, int micro, int layer, int n, double now) {
    if (!idle(x) || !pays(x)) return (struct wanted){.slot = -1};
    struct wanted w = better(x, layer), ahead = {.slot = -1};
    if (x->guess.on) {
        ahead = foreseen(x, micro, layer, n, now);
        predict_used(&x->d->predict, ahead.slot >= 0);
    }
    return ahead.slot >= 0 && (w.slot < 0 || ahead.worth > w.worth) ? ahead : w;
}

/* --- Computing a layer ----------------------------------------------------------------------------------------------------------------  */

/* Computes one expert: gathers its rows, runs it with the small-batch kernels, adds its output. */
static int compute(struct step_experts *x, const struct work *w, int micro, const struct step_slot *t, int at, int n) {
    struct exec *exec = gpu_stream_exec(x->compute);
    int hidden = x->d->s->c->hidden;
    TRY(op_run(exec, OP_GATHER, &(struct op_gather){.out = x->x, .x = w->xn, .index = x->token[micro] + at, .n = n, .dim = hidden, .ldx = hidden}));
    TRY(op_run(exec, OP_FFN, &(struct op_ffn){.y = x->part, .x = x->x, .expert = t->view, .n = n, .hidden = hidden}));
    return op_run(exec, OP_SCATTER_ADD,
                  &(struct op_scatter_add){
                      .y = x->y[micro], .x = x->part, .index = x->token[micro] + at, .weight = x->weight[micro] + at, .n = n, .dim = hidden, .ldy = hidden});
}

/* Records the device's time for the previous layer, which has ended since its rows have moved on. */
static void count_time(struct step_experts *x, int micro, int n) {
    struct step *s = x->d->s;
    struct cost_machine *cost = s->m->cost;
    if (x->timed[micro] && gpu_event_done(x->end[micro])) {
        double took = gpu_event_time(x->end[micro]) - gpu_event_time(x->begin[micro]);
        s->counts.device_s += took;
        if (!cost->deterministic) cost_observe(cost, &cost->domain[1 + x->d->rank].seen[COST_FFN], n, x->expected[micro], took);
    }
    x->timed[micro] = false;
}

int step_experts_run(struct step_device *d, struct step_micro *m, int layer, int32_t **mine, double *expected) {
    struct step_experts *x = d->experts;
    struct step *s = d->s;
    const struct split_plan *p = x->plan;
    int micro = (int)(m - s->micro), topk = s->c->topk, n, pairs = 0, many = 0, begin[USED_MOST];
    struct step_slot *use[USED_MOST];
    double now = clock_now();
    if (x->begun > 0) x->beat += (now - x->begun - x->beat) / (x->beat > 0 ? 16 : 1);
    x->begun = now;
    count_time(x, micro, m->n_dev);
    x->expected[micro] = 0;
    guess_chosen(&x->guess, micro, layer, m->host.ids, m->n_dev);
    n = ask(x, m, layer);
    s->counts.deciding_s += clock_now() - now, s->counts.decided++;
    *expected = 0;
    *mine = x->mine;
    memcpy(x->mine, m->host.ids, (size_t)(m->n * topk) * sizeof *x->mine);
    memcpy(x->ids, x->mine, (size_t)(m->n * topk) * sizeof *x->ids);
    memcpy(x->router, m->host.router, (size_t)m->n * (size_t)s->c->n_experts * sizeof *x->router);
    for (int i = 0; i < n; i++) {
        int id = x->expert_of[i], k;
        if (p->domain[i] != 1) {
            *expected += cost_table_at(&x->table[0], x->rows[id]);
            continue;
        }
        struct step_slot *t = find(x, layer, id);
        if (!t && (k = worst(x, layer, x->rows)) >= 0) {
            TRY(bring(x, layer, k, id, false));
            t = &slots_of(x, layer)[k];
        }
        if (!t || many == USED_MOST) continue; /* left to the CPU */
        use[many] = t, begin[many++] = pairs;
        x->expected[micro] +=
            gpu_number_reached(x->loaded, t->on) ? cost_table_at(&x->table[1], x->rows[id]) : -INFINITY; /* not measurable: it waits for an upload */
        t->used = true;
        for (int r = 0; r < m->n_dev * topk; r++)
            if (m->host.ids[r] == id) {
                x->host_token[micro][pairs] = r / topk, x->host_weight[micro][pairs++] = m->host.weights[r];
                x->mine[r] = -1;
            }
    }
    s->counts.chosen += (uint64_t)n, s->counts.here += (uint64_t)many;
    TRY(gpu_event_wait(x->ready[micro][layer % 2], x->compute));
    TRY(gpu_fill(x->compute, x->y[micro], 0, (size_t)m->n_dev * (size_t)s->c->hidden * 4));
    TRY(gpu_copy(x->compute, x->token[micro], x->host_token[micro], (size_t)pairs * 4, GPU_H2D)); /* 0 bytes: no copy */
    TRY(gpu_copy(x->compute, x->weight[micro], x->host_weight[micro], (size_t)pairs * 4, GPU_H2D));
    if (many) TRY(gpu_event_record(x->begin[micro], x->compute));
    int span = many ? trace_begin(s->m->trace, x->compute, d->rank, LANE_COMPUTE, "experts", layer, micro) : -1;
    for (int i = 0; i < many; i++) {
        TRY(gpu_number_wait(x->loaded, use[i]->on, x->compute));
        TRY(compute(x, &d->work[micro], micro, use[i], begin[i], (i + 1 < many ? begin[i + 1] : pairs) - begin[i]));
    }
    trace_end(s->m->trace, span, x->compute);
    if (many) {
        TRY(gpu_event_record(x->end[micro], x->compute));
        x->timed[micro] = true;
        TRY(gpu_number_write(x->freed, ++x->n_freed, x->compute));
        for (int i = 0; i < many; i++) use[i]->off = x->n_freed;
    }
    return gpu_number_write(x->done[micro], ++x->n_done[micro], x->compute);
}

int step_experts_after(struct step_device *d, struct step_micro *m, int layer, double expected, double took) {
    struct step_experts *x = d->experts;
    const struct step *s = d->s;
    const struct config *c = s->c;
    const struct layer *y = &s->m->w->layers[layer];
    struct cost_machine *cost = s->m->cost;
    bool known = !y->router_table;
    size_t p = 2 * (size_t)c->topk;
    struct step_counts *counts = &d->s->counts;
    double begun = clock_now(), now;
    counts->processor_s += took;
    if (cost->deterministic) return 0;
    if (expected > 0 && m->n == m->n_dev) {
        cost_observe(cost, &cost->domain[0].seen[COST_FFN], m->n, expected, took);
    }
    if ((s->clock % 16 == 0 || !(s->clock & (s->clock - 1))) && layer == d->last - 1) fill_tables(x); /* more often at first */
    for (int i = 0; i < m->n && known; i++)
        score_near(c->score, y->router_bias, x->router + (size_t)i * (size_t)c->n_experts, c->n_experts, (int)p, x->near + (size_t)i * p,
                   x->chance + (size_t)i * p);
    score_seen(&d->score, layer, &(struct score_step){m->n, x->ids, known ? x->near : NULL, x->chance});
    predict_seen(&d->predict, layer, x->rows);
    int micro = (int)(m - s->micro);
    counts->deciding_s += (now = clock_now()) - begun;
    TRY(guess_ask(&x->guess, micro, layer + 1, x->ready[micro][(layer + 1) % 2], m->n_dev));
    counts->deciding_s -= clock_now();
    struct wanted w = most_wanted(x, micro, layer, m->n_dev, now - x->begun);
    counts->deciding_s += clock_now();
    return w.slot >= 0 ? bring(x, w.layer, w.slot, w.expert, w.ahead) : 0;
}
