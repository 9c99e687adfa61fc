#include "engine/sched/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

static const char *const places[] = {"cpu", "hybrid", "paged", "device"};
static const char *const limits[] = {"processor", "card", "link", "rows to the processor", "host memory", "one micro-batch after the other"};
static const char *const bounds[] = {"more would not be faster", "host memory", "card memory", "there are no more prompts", "a step takes no more"};
const char *search_place_name(enum search_place p) { return places[p]; }
const char *search_limit_name(enum search_limit l) { return limits[l]; }
const char *search_bound_name(enum search_bound b) { return bounds[b]; }

static const int micros[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 64, 96, 128, 192, 256, 384, 512, 0};
static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 0};
static const double rings[] = {2, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125, 1, 0};
double search_ring(int i) { return rings[i]; }
int search_micro(int i) { return micros[i]; }
int search_count(int i) { return counts[i]; }

static bool attends(enum search_place p) { return p == SEARCH_HYBRID || p == SEARCH_DEVICE; }
static bool computes(enum search_place p) { return p == SEARCH_PAGED || p == SEARCH_DEVICE; }

static double cards(const struct search_policy *p) { return p->cards > 1 ? p->cards : 1; }
static double micros_of(const struct search_policy *p, double rows) { return ceil(rows / smaller(p->micro, rows)); }
int search_behind(int n, int cards) {
    int even = cards > 1 ? (n + cards - 1) / cards : n, least = n < SEARCH_BEHIND ? n : SEARCH_BEHIND;
    return even > least ? even : least;
}
static double ring_of(const struct search_policy *p) { return p->ring > 0 ? p->ring : 2; }

/* --- Memory ------------------------------------------------------------------------------------------------------------------ */

static double moe_layers(const struct cost_model *q) { return q->layers - q->dense_layers; }
/* Weights that every row reads, all layers. */
static double dense_bytes(const struct cost_model *q) { return q->layers * q->half_bytes + moe_layers(q) * q->shared_bytes + q->dense_layers * q->ffn_bytes; }
static double layer_experts(const struct cost_model *q) { return q->n_experts * q->expert_bytes; }

/* Row buffers between the operations of a layer: normed, queries, results, keys and values; doubled, as copies are in flight. */
static double row_bytes(const struct cost_model *q) { return 2 * (2 * q->row_bytes + 2 * q->query_bytes + 4 * q->kv_bytes); }

static double read_rows(const struct search_in *in) { return in->read_rows > 0 ? in->read_rows : SEARCH_READ; }
/* Each micro-batch reads the device's weights again. Prompt rows are many and not latency-sensitive, so their micro-batches are larger. */
static int read_micro(const struct search_in *in, const struct search_policy *p) {
    int most = in->read_micro > 0 ? in->read_micro : SEARCH_READ_MICRO;
    return p->micro > most ? p->micro : most;
}

static void memory(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    const struct cost_model *q = in->model;
    double kv = p->n * (in->prompt + in->answer) * q->layers * q->kv_bytes,
           part = ceil(q->layers / cards(p)) / q->layers; /* share of the layers on one device */
    out->host = dense_bytes(q) + moe_layers(q) * layer_experts(q) + 2 * q->head_bytes + kv;
    if (p->place == SEARCH_PROCESSOR) return;
    double rows = larger(p->n, computes(p->place) ? smaller(p->n * in->prompt, read_rows(in)) : 0);
    out->device = part * dense_bytes(q) + q->head_bytes + rows * q->row_bytes + smaller(computes(p->place) ? read_micro(in, p) : p->micro, rows) * row_bytes(q);
    if (computes(p->place)) /* resident experts, and ring pages for the rest */
        out->device += (part * moe_layers(q) * p->weights + ring_of(p) * (1 - p->weights)) * layer_experts(q);
    if (attends(p->place)) /* and double-buffered KV of a micro-batch */
        out->device += p->kv * kv + (1 - p->kv) * 2 * p->micro * (in->prompt + in->answer) * q->kv_bytes;
}

/* --- Time ---------------------------------------------------------------------------------------------------------------------- */

struct rows { /* rows of a pass: each sees `keys` keys, which are read once for `share` rows */
    double n, keys, share;
    double alone; /* rows of a prompt, processed separately whatever their number; 0: one row per session */
};

/* Number of calls in which `rows` rows of a micro-batch pass through a device matrix that `each` of them use: one prompt at a time, or `few`
 * rows of several sessions at a time. */
static double pieces(const struct search_in *in, const struct rows *r, double rows, double each) {
    return r->alone > 0 ? ceil(rows / r->alone) : in->few > 0 ? ceil(each / in->few) : 1;
}

static double projections(const struct search_in *in, int d, const struct rows *r, double rows) {
    const struct cost_model *q = in->model;
    double k = d ? pieces(in, r, rows, rows) : 1;
    return k * cost_time(in->cost, d, &(struct cost_piece){COST_LINEAR, q->dense, rows / k, q->half_bytes, rows / k * q->half_flops, q->linears}) +
           cost_time(in->cost, d, &(struct cost_piece){COST_ELEM, COST_F32, rows, rows * q->elem_bytes, 0, q->elems * k});
}
static double attention_bytes(const struct cost_model *q, const struct rows *r, double rows) {
    double keys = q->most_keys > 0 ? smaller(r->keys, q->most_keys) : r->keys;
    return rows / r->share * (keys * q->kv_bytes + r->keys * q->index_bytes);
}
static double attention(const struct search_in *in, int d, const struct rows *r, double rows) {
    const struct cost_model *q = in->model;
    double keys = q->most_keys > 0 ? smaller(r->keys, q->most_keys) : r->keys;
    return cost_time(in->cost, d,
                     &(struct cost_piece){COST_ATTENTION, q->kv, rows, attention_bytes(q, r, rows), rows * (keys * q->pair_flops + r->keys * q->index_flops),
                                          rows / r->share});
}
static double shared(const struct search_in *in, int d, const struct rows *r, double rows, bool moe) {
    const struct cost_model *q = in->model;
    double k = d ? pieces(in, r, rows, rows) : 1;
    if (moe) return k * cost_shared(in->cost, d, q, rows / k);
    return k * cost_time(in->cost, d, &(struct cost_piece){COST_FFN, q->dense, rows / k, q->ffn_bytes, rows / k * q->ffn_flops, 1});
}
/* Like cost_routed, but groups are computed in consecutive calls, so that an expert is read once. */
static double routed(const struct search_in *in, int d, const struct rows *r, double rows) {
    const struct cost_model *q = in->model;
    double chosen = cost_distinct(q, rows), each = chosen > 0 ? rows * q->topk / chosen : 0, k = d ? pieces(in, r, rows, each) : 1;
    struct cost_piece p = {COST_FFN, q->experts, each / k, q->expert_bytes, each * q->expert_flops, 0, rows};
    return chosen > 0 ? in->cost->domain[d].latency[COST_FFN] + chosen * cost_time(in->cost, d, &p) : 0;
}
static double over(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

/* A layer for all rows of a pass. *moved: bytes over the links to and from host memory. */
static double layer_time(const struct search_in *in, const struct search_policy *p, const struct rows *r, bool moe, double t[SEARCH_LIMITS], double *moved) {
    const struct cost_machine *m = in->cost;
    const struct cost_model *q = in->model;
    const struct cost_domain *g = p->place == SEARCH_PROCESSOR ? NULL : &m->domain[1];
    const double n = micros_of(p, r->n), u = r->n / n, turns = search_behind((int)n, (int)cards(p));
    double cpu = 0, gpu = 0, read = 0, h2d = 0, d2h = 0, small; /* per micro-batch; bytes the CPU reads; both directions */
    if (g) gpu += projections(in, 1, r, u);
    else cpu += projections(in, 0, r, u), read += q->half_bytes;
    if (attends(p->place)) gpu += attention(in, 1, r, u), h2d += (1 - p->kv) * attention_bytes(q, r, u);
    else cpu += attention(in, 0, r, u), read += attention_bytes(q, r, u);
    if (g && !attends(p->place)) d2h += u * (q->query_bytes + q->kv_bytes), h2d += u * q->query_bytes;
    if (attends(p->place)) d2h += u * q->kv_bytes; /* the host copy follows */
    if (g) gpu += shared(in, 1, r, u, moe);
    else cpu += shared(in, 0, r, u, moe), read += moe ? q->shared_bytes : q->ffn_bytes;
    if (moe && computes(p->place)) gpu += routed(in, 1, r, u);
    else if (moe) cpu += routed(in, 0, r, u), read += cost_distinct(q, u) * q->expert_bytes;
    if (moe && g && !computes(p->place)) d2h += u * q->row_bytes, h2d += u * q->row_bytes;
    if (cards(p) > 1) d2h += u * q->row_bytes, h2d += u * q->row_bytes; /* to the device with the next layer */
    small = h2d;
    const double copies = g ? over(small, g->link[COST_H2D].rate) + over(d2h, g->link[COST_D2H].rate) : 0;
    if (p->place == SEARCH_PAGED) gpu += copies; /* on its own stream */
    double weights = moe && computes(p->place) ? (1 - p->weights) * layer_experts(q) : 0;
    t[SEARCH_BY_PROCESSOR] = n * cpu;
    t[SEARCH_BY_CARD] = turns * gpu; /* devices work on their layers in parallel */
    t[SEARCH_BY_LINK] = g ? over(n * h2d + weights, g->link[COST_H2D].rate) / cards(p) : 0;
    if (g && ring_of(p) < 2) /* the rest of the next layer is loaded into pages that the last micro-batch of this one releases */
        t[SEARCH_BY_LINK] =
            larger(t[SEARCH_BY_LINK], (n - 1) * larger(gpu / cards(p), cpu) + over((2 - ring_of(p)) * weights, g->link[COST_H2D].rate) / cards(p));
    t[SEARCH_BY_ROWS] = g ? over(n * d2h, g->link[COST_D2H].rate) / cards(p) : 0;
    t[SEARCH_BY_MEMORY] = over(n * (read + h2d + d2h) + weights, m->dram);
    t[SEARCH_BY_CHAIN] = cpu + gpu + (p->place == SEARCH_PAGED ? 0 : copies) + (g ? 2 * m->join : 0);
    double most = 0;
    for (int i = 0; i < SEARCH_LIMITS; i++) most = larger(most, t[i]);
    *moved = g ? n * (h2d + d2h) + weights : 0;
    return most;
}

static double pass_time(const struct search_in *in, const struct search_policy *p, const struct rows *r, double t[SEARCH_LIMITS], double *rate) {
    const struct cost_model *q = in->model;
    double plain[SEARCH_LIMITS], sum = 0, moved, one;
    if (q->dense_layers) sum += q->dense_layers * layer_time(in, p, r, false, plain, &moved);
    one = layer_time(in, p, r, true, t, &moved);
    if (rate) *rate = over(moved, one);
    const double n = micros_of(p, r->n), turns = search_behind((int)n, (int)cards(p));
    return sum + moe_layers(q) * one + (n - turns) / turns * t[SEARCH_BY_CARD]; /* pipeline fill and drain over the devices */
}
static double head_time(const struct search_in *in, const struct search_policy *p, double rows) {
    int d = p->place == SEARCH_PROCESSOR ? 0 : 1;
    double k = d ? pieces(in, &(struct rows){0}, rows, rows) : 1;
    return k * cost_head(in->cost, d, in->model, rows / k);
}

/* Prefill of all prompts: in the same pass if experts are on the device, otherwise one prompt after the other. */
static double reading(const struct search_in *in, const struct search_policy *p) {
    double all = p->n * in->prompt, passes = ceil(all / read_rows(in)), t[SEARCH_LIMITS];
    if (computes(p->place)) {
        struct search_policy q = *p;
        q.micro = read_micro(in, p);
        double together = smaller(q.micro, larger(in->prompt, 1));
        struct rows r = {.n = all / passes, .keys = (in->prompt + 1) / 2, .share = together, .alone = together};
        return passes * pass_time(in, &q, &r, t, NULL) + head_time(in, p, p->n);
    }
    struct cost_prefill one = {.how = COST_PREFILL_CPU, .n = (int)larger(in->prompt, 1), .ranks = 1, .resident = true};
    double best = cost_prefill(in->cost, in->model, &one);
    for (one.how = COST_PREFILL_BLEND; one.how <= COST_PREFILL_SLP && p->place == SEARCH_HYBRID; one.how++)
        best = smaller(best, cost_prefill(in->cost, in->model, &one));
    return p->n * best;
}

void search_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    const struct cost_machine *m = in->cost;
    *out = (struct search_cost){0};
    memory(in, p, out);
    double host = in->host > 0 ? in->host : m->domain[0].memory, device = in->device > 0 ? in->device : m->domain[1].memory;
    if (in->prompts && p->n > in->prompts) out->lacks = SEARCH_PROMPTS;
    else if (in->most[p->place] && p->n > in->most[p->place]) out->lacks = SEARCH_ROWS;
    else if (host > 0 && out->host > host) out->lacks = SEARCH_HOST_MEMORY;
    else if (p->place != SEARCH_PROCESSOR && out->device > device) out->lacks = SEARCH_CARD_MEMORY;
    else out->fits = true;
    if (!out->fits) return;
    struct rows r = {.n = p->n, .keys = in->prompt + in->answer / 2 + 1, .share = 1};
    out->step = pass_time(in, p, &r, out->layer, &out->links) + head_time(in, p, p->n);
    for (int i = 0; i < SEARCH_LIMITS; i++)
        if (out->layer[i] > out->layer[out->limit]) out->limit = (enum search_limit)i;
    out->read = reading(in, p);
    out->tokens_per_s = p->n * in->answer / (out->read + in->answer * out->step);
}

/* --- Search -------------------------------------------------------------------------------------------------------------------- */

/* Takes the largest resident share of weights that fits with a ring of two layers. Smaller rings only if no share is left. */
static void most_weights(const struct search_in *in, struct search_policy *p, struct search_cost *c) {
    for (int i = 0; search_ring(i) && (!i || p->place == SEARCH_PAGED); i++) {
        int k = computes(p->place) && !i ? SEARCH_SHARES : 0;
        p->ring = search_ring(i);
        do p->weights = (double)k / SEARCH_SHARES, search_cost(in, p, c);
        while (!c->fits && c->lacks == SEARCH_CARD_MEMORY && k-- > 0);
        if (c->fits || c->lacks != SEARCH_CARD_MEMORY) return;
    }
}

/* Tries each KV share for p->n rows. False: neither these nor more rows fit. */
static bool try(const struct search_in *in, struct search_policy *p, struct search_out *out) {
    const int shares = attends(p->place) && in->kv_moves ? SEARCH_SHARES : 0;
    struct search_cost c;
    for (int s = 0; s <= shares; s++) {
        p->kv = attends(p->place) ? shares ? (double)s / shares : 1 : 0;
        most_weights(in, p, &c);
        out->tried++;
        if (!c.fits) return s && c.lacks != SEARCH_HOST_MEMORY && c.lacks != SEARCH_ROWS;
        out->best[p->place] = larger(out->best[p->place], c.tokens_per_s);
        if (c.tokens_per_s > out->cost.tokens_per_s) out->found = true, out->policy = *p, out->cost = c;
    }
    return true;
}

/* Between two grid sizes: the same number of micro-batches, the largest that fit. */
static void fill(const struct search_in *in, struct search_policy *p, int count, int from, int to, struct search_out *out) {
    struct search_cost c;
    while (to - from > 1) {
        p->micro = (from + to) / 2, p->n = p->micro * count;
        most_weights(in, p, &c);
        *(c.fits ? &from : &to) = p->micro;
    }
    p->micro = from, p->n = from * count;
    try(in, p, out);
}

/* Tries all batch sizes of a placement on `cards` devices. */
static void search_place(const struct search_in *in, enum search_place place, int cards, struct search_out *out) {
    struct search_policy p = {.place = place, .cards = cards};
    int most = 0; /* micro-batches that fit with the previous size */
    for (int i = 0; search_micro(i); i++) {
        if (in->prompts && i && search_micro(i - 1) >= in->prompts) break; /* would repeat the last result */
        int fit = 0;
        for (int k = 0; search_count(k); k++) {
            p.micro = search_micro(i), p.n = p.micro * search_count(k);
            const bool last = in->prompts && p.n >= in->prompts;
            if (last) p.n = in->prompts;
            if (!try(in, &p, out)) break;
            fit = k + 1;
            if (last) break;
        }
        for (int k = fit; k < most && place == SEARCH_PAGED && !in->prompts; k++) fill(in, &p, search_count(k), search_micro(i - 1), search_micro(i), out);
        most = fit;
    }
}

int search_cards(const struct search_in *in, enum search_place place) {
    return place == SEARCH_PROCESSOR ? 0 : place == SEARCH_PAGED && in->cost->n_devices > 1 ? in->cost->n_devices : 1;
}
void search_run(const struct search_in *in, struct search_out *out) {
    *out = (struct search_out){0};
    for (int place = 0; place < SEARCH_PLACES; place++) {
        if ((in->can && !(in->can >> place & 1)) || (place && !in->cost->n_devices)) continue;
        const int most = search_cards(in, (enum search_place)place);
        for (int cards = place ? 1 : 0; cards <= most; cards++) search_place(in, (enum search_place)place, cards, out);
    }
    if (!out->found) return;
    struct search_policy more = out->policy;
    struct search_cost c;
    more.n += more.micro;
    if (in->prompts && out->policy.n == in->prompts) out->bound = SEARCH_PROMPTS;
    else if (most_weights(in, &more, &c), !c.fits) out->bound = c.lacks;
}

void search_why(const struct search_in *in, const struct search_out *out, char *why, size_t cap) {
    const struct search_policy *p = &out->policy;
    int n = 0;
    *why = 0;
    if (!out->found) {
        snprintf(why, cap, "no configuration fits this machine");
        return;
    }
    n += snprintf(why, cap, "%s: %d prompts at once in micro-batches of %d, attention on the %s, experts on the %s", places[p->place], p->n, p->micro,
                  attends(p->place) ? "card" : "CPU", computes(p->place) ? p->cards > 1 ? "cards" : "card" : "CPU");
    if (p->cards > 1 && (size_t)n < cap) n += snprintf(why + n, cap - (size_t)n, " (layers alternate over %d)", p->cards);
    if (computes(p->place) && (size_t)n < cap) n += snprintf(why + n, cap - (size_t)n, ", of which %.0f%% stay there", 100 * p->weights);
    if ((size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, "; %.3g s per batch, %.3g tok/s; bottleneck: %s; batch limit: %s", out->cost.step, out->cost.tokens_per_s,
                      limits[out->cost.limit], bounds[out->bound]);
    for (int i = 0; i < SEARCH_PLACES; i++)
        if (i != (int)p->place && out->best[i] > 0 && (size_t)n < cap) n += snprintf(why + n, cap - (size_t)n, "; %s %.3g tok/s", places[i], out->best[i]);
}
