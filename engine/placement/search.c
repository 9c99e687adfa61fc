#include "engine/placement/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double max_of(double a, double b) { return a > b ? a : b; }
static double min_of(double a, double b) { return a < b ? a : b; }

static const char *const placement_names[] = {"cpu", "hybrid", "paged"};
static const char *const limit_names[] = {
    "CPU", "card", "link", "rows to the CPU", "host memory", "one micro-batch after the other"};
static const char *const bound_names[] = {"more would not be faster",
                                          "host memory",
                                          "card memory",
                                          "there are no more prompts",
                                          "a batch takes no more rows",
                                          "the bound on time per token"};
const char *search_limit_name(enum search_limit l) { return limit_names[l]; }
const char *search_bound_name(enum search_bound b) { return bound_names[b]; }

static const int micro_row_grid[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 64, 96, 128, 192, 256, 384, 512, 0};
static const int micro_batch_grid[] = {1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14,  16,  20,  24,
                                       28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 0};
static const double ring_grid[] = {2, 1.875, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125, 1, 0};
double search_grid_ring(int i) { return ring_grid[i]; }
int search_grid_micro_rows(int i) { return micro_row_grid[i]; }
int search_grid_micro_batches(int i) { return micro_batch_grid[i]; }

static double device_count(const struct search_policy *p) { return p->n_devices > 1 ? p->n_devices : 1; }
static double n_micro_batches(const struct search_policy *p, double rows) {
    return ceil(rows / min_of(p->micro_rows, rows));
}
int search_stagger(int n, int n_devices) {
    int even = n_devices > 1 ? (n + n_devices - 1) / n_devices : n,
        least = n < SEARCH_MIN_STAGGER ? n : SEARCH_MIN_STAGGER;
    return even > least ? even : least;
}
static double ring_layers(const struct search_policy *p) { return p->ring_layers > 0 ? p->ring_layers : 2; }

/* --- Memory ----------------------------------------------------------------------------------- */

static double moe_layers(const struct cost_model *q) { return q->layers - q->dense_layers; }
/* A model without experts has its dense FFNs paged, each whole. */
static bool pages_ffns(const struct cost_model *q) { return !q->n_experts; }
static double paged_layers(const struct cost_model *q) { return pages_ffns(q) ? q->layers : moe_layers(q); }
/* Weights of a layer that can be paged: all of its routed experts, or its dense FFN. */
static double layer_pages(const struct cost_model *q) {
    return pages_ffns(q) ? q->ffn_bytes : q->n_experts * q->expert_bytes;
}
/* All other weights, which every row reads, all layers. */
static double dense_bytes(const struct cost_model *q) {
    return q->layers * q->attn_block_bytes + moe_layers(q) * q->shared_bytes +
           (pages_ffns(q) ? 0 : q->dense_layers * q->ffn_bytes);
}

static struct search_rows rows_of(const struct search_in *in) {
    const struct cost_model *q = in->model;
    if (in->rows) return *in->rows;
    return (struct search_rows){.passed = q->row_bytes,
                                /* buffers between the operations of a layer: normed, queries, results, keys and values;
                                 * doubled, as copies are in flight */
                                .work = 2 * (2 * q->row_bytes + 2 * q->query_bytes + 4 * q->kv_row_bytes),
                                .attended = q->query_bytes + q->kv_row_bytes,
                                .result = q->query_bytes};
}

static double read_rows(const struct search_policy *p) { return p->read_rows > 0 ? p->read_rows : SEARCH_PREFILL_ROWS; }
/* Each micro-batch reads the device's weights again. Prompt rows are many and not latency-sensitive, so their
 * micro-batches are larger. */
static int read_micro(const struct search_in *in, const struct search_policy *p) {
    int most = in->prefill_micro_rows > 0 ? in->prefill_micro_rows : SEARCH_PREFILL_MICRO_ROWS;
    return p->micro_rows > most ? p->micro_rows : most;
}

static void add_memory(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    const struct cost_model *q = in->model;
    const struct search_rows r = rows_of(in);
    double kv = p->n_rows *
                ((in->prompt_tokens + in->answer_tokens) * (q->layers - q->kv_taken_layers) * q->kv_row_bytes +
                 SEARCH_STATES * r.states),
           part = ceil(q->layers / device_count(p)) / q->layers; /* share of the layers on one device */
    out->host_bytes = dense_bytes(q) + paged_layers(q) * layer_pages(q) + 2 * q->head_bytes + kv;
    /* hybrid: devices give memory of experts to KV, and sessions without room run on the CPU */
    if (p->placement != SEARCH_PAGED) return;
    const double rows = max_of(p->n_rows, min_of(p->n_rows * in->prompt_tokens, read_rows(p)));
    out->host_bytes += rows * r.passed;
    out->device_bytes =
        part * dense_bytes(q) + q->head_bytes + rows * r.passed + min_of(read_micro(in, p), rows) * r.work;
    /* resident weights, and ring pages for the rest: of a layer's others, or whole FFNs */
    const double in_ring = pages_ffns(q) ? p->weight_share < 1 : 1 - p->weight_share;
    out->device_bytes += (part * paged_layers(q) * p->weight_share + ring_layers(p) * in_ring) * layer_pages(q);
}

/* --- Time ------------------------------------------------------------------------------------- */

struct rows { /* rows of a pass: each sees `keys` keys, which are read once for `share` rows */
    double n, keys, share;
    double alone; /* rows of a prompt, processed separately whatever their number; 0: one row per session */
    /* of prompts: share of the rows whose attention a device computes, since they see rows of the same call only; keys
     * that each of them sees */
    double start_share, start_keys;
};

/* Number of calls in which `rows` rows of a micro-batch pass through a device matrix that `each` of them use: one
 * prompt at a time, or `few` rows of several sessions at a time. */
static double n_calls(const struct search_in *in, const struct rows *r, double rows, double each) {
    return r->alone > 0 ? ceil(rows / r->alone) : in->max_matrix_rows > 0 ? ceil(each / in->max_matrix_rows) : 1;
}

/* Share of an attention block's matrices that project queries to latents and results back: MLA's W_k and W_v. They are
 * used beside the latents, on the CPU. */
static double absorbing_share(const struct cost_model *q) {
    return q->expand_flops > 0 ? q->expand_flops / q->attn_block_flops : 0;
}
enum { ABSORBING_OPS = 2 };

/* The attention block of `rows` rows without the attention itself, and the elementwise operations of a layer. part: of
 * its matrices. */
static double block_time(const struct search_in *in, int domain, const struct rows *r, double rows, double part) {
    const struct cost_model *q = in->model;
    const double k = n_calls(in, r, rows, rows);
    return k * cost_time(in->cost, domain,
                         &(struct cost_item){COST_LINEAR, q->dense, rows / k, part * q->attn_block_bytes,
                                             rows / k * part * q->attn_block_flops,
                                             q->n_linear_ops - ABSORBING_OPS * (part < 1)}) +
           cost_time(in->cost, domain,
                     &(struct cost_item){COST_ELEM, COST_F32, rows, rows * q->elem_bytes, 0, q->n_elem_ops * k});
}
static double projections_time(const struct search_in *in, const struct rows *r, double rows) {
    return (1 - rows_of(in).whole_share) * block_time(in, 1, r, rows, 1 - absorbing_share(in->model));
}
static double absorbing_bytes(const struct search_in *in, const struct rows *r, double rows) {
    return n_calls(in, r, rows, rows) * absorbing_share(in->model) * in->model->attn_block_bytes;
}
static double key_bytes(const struct cost_model *q, const struct rows *r, double rows) {
    double keys = q->max_keys > 0 ? min_of(r->keys, q->max_keys) : r->keys;
    return rows / r->share * (keys * q->kv_row_bytes + r->keys * q->index_bytes);
}
/* States that are read and written, which reads them, too: once for the rows of a session. */
static double states_bytes(const struct search_in *in, const struct rows *r, double rows) {
    return rows / r->share * 3 * rows_of(in).states / in->model->layers;
}
static double whole_bytes(const struct search_in *in, const struct rows *r, double rows) {
    return n_calls(in, r, rows, rows) * rows_of(in).whole_share * in->model->attn_block_bytes;
}
/* The rows whose attention a device computes, in layers where it is divided. */
static double start_rows(const struct search_in *in, const struct rows *r, double rows) {
    return (1 - rows_of(in).whole_share) * r->start_share * rows;
}
static double attention_bytes(const struct search_in *in, const struct rows *r, double rows) {
    const double cpu = rows - start_rows(in, r, rows);
    return key_bytes(in->model, r, cpu) + absorbing_bytes(in, r, cpu) + states_bytes(in, r, cpu) +
           whole_bytes(in, r, rows);
}
/* Each session's rows are an operation of their own. */
static double keys_time(const struct search_in *in, int domain, const struct rows *r, double rows, double flops) {
    const struct cost_model *q = in->model;
    return cost_time(
        in->cost, domain,
        &(struct cost_item){COST_ATTENTION, q->kv, r->share, key_bytes(q, r, rows), rows * flops, rows / r->share});
}
/* The rows of a session follow each other: a number of its state takes STATE_FLOPS for each, in two products and the
 * update. A convolution comes before, a norm and a gate after. */
static double states_time(const struct search_in *in, int domain, const struct rows *r, double rows) {
    enum { STATE_FLOPS = 6, ELEM_OPS = 3 };
    const double numbers = rows_of(in).states / sizeof(float) / in->model->layers;
    if (!(numbers > 0)) return 0;
    return cost_time(in->cost, domain,
                     &(struct cost_item){COST_ATTENTION, COST_16BIT, 1, states_bytes(in, r, rows),
                                         rows * STATE_FLOPS * numbers, rows / r->share}) +
           rows / r->share * ELEM_OPS * in->cost->domain[domain].latency[COST_ELEM];
}
/* Attention over keys. Many rows of a prompt attend to expanded keys of MLA where that is faster, as
 * block_expands_mla() decides; the last of them sees twice the mean of keys. */
static double keys_attention_time(const struct search_in *in, int domain, const struct rows *r, double rows) {
    const struct cost_model *q = in->model;
    double keys = q->max_keys > 0 ? min_of(r->keys, q->max_keys) : r->keys, k = n_calls(in, r, rows, rows);
    double absorbed = keys_time(in, domain, r, rows, keys * q->pair_flops + r->keys * q->index_flops);
    if (!absorbing_share(q)) return absorbed;
    absorbed += k * cost_time(in->cost, domain,
                              &(struct cost_item){COST_LINEAR, q->dense, rows / k, absorbing_bytes(in, r, rows) / k,
                                                  rows / k * q->expand_flops, ABSORBING_OPS});
    if (r->alone <= BATCH_INVARIANT_ROWS || q->expanded_pair_flops <= 0) return absorbed;
    return min_of(absorbed, keys_time(in, domain, r, rows,
                                      keys * q->expanded_pair_flops + 2 * keys / r->share * q->expand_flops));
}
static double attend_time(const struct search_in *in, int domain, const struct rows *r, double rows) {
    return rows > 0 ? keys_attention_time(in, domain, r, rows) + states_time(in, domain, r, rows) : 0;
}
/* The CPU's part, whole attention blocks included, and the device's. */
static double attention_time(const struct search_in *in, const struct rows *r, double rows) {
    const double whole = rows_of(in).whole_share;
    return attend_time(in, 0, r, rows - start_rows(in, r, rows)) +
           (whole > 0 ? whole * block_time(in, 0, r, rows, 1) : 0);
}
static double start_time(const struct search_in *in, const struct rows *r, double rows) {
    struct rows s = *r;
    s.keys = r->start_keys;
    return attend_time(in, 1, &s, start_rows(in, r, rows));
}
static double shared_time(const struct search_in *in, const struct rows *r, double rows, bool moe) {
    const struct cost_model *q = in->model;
    const double k = n_calls(in, r, rows, rows);
    if (moe) return k * cost_shared(in->cost, 1, q, rows / k);
    return k * cost_time(in->cost, 1,
                         &(struct cost_item){COST_FFN, q->dense, rows / k, q->ffn_bytes, rows / k * q->ffn_flops, 1});
}
/* Like cost_routed, but groups are computed in consecutive calls, so that an expert is read once. */
static double routed_time(const struct search_in *in, const struct rows *r, double rows) {
    const struct cost_model *q = in->model;
    const double chosen = cost_distinct(q, rows), each = chosen > 0 ? rows * q->topk / chosen : 0,
                 k = n_calls(in, r, rows, each);
    struct cost_item p = {COST_FFN, q->experts, each / k, q->expert_bytes, each * q->expert_flops, 0, rows};
    return chosen > 0 ? in->cost->domain[1].latency[COST_FFN] + chosen * cost_time(in->cost, 1, &p) : 0;
}
static double transfer_time(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

/* A layer of a paged batch for all rows of a pass. *moved: bytes over the links to and from host memory. */
static double layer_time(const struct search_in *in, const struct search_policy *p, const struct rows *r, bool moe,
                         double t[SEARCH_LIMITS], double *moved) {
    const struct cost_machine *m = in->cost;
    const struct cost_model *q = in->model;
    const struct cost_domain *g = &m->domain[1];
    const double n = n_micro_batches(p, r->n), u = r->n / n, turns = search_stagger((int)n, (int)device_count(p));
    /* per micro-batch; bytes the CPU reads */
    const struct search_rows of = rows_of(in);
    const double cpu = attention_time(in, r, u), read = attention_bytes(in, r, u);
    const double there = start_rows(in, r, u), back = u - there; /* rows whose attention is on the device, on the CPU */
    double gpu = projections_time(in, r, u) + shared_time(in, r, u, moe) + start_time(in, r, u),
           d2h = back * of.attended + there * q->kv_row_bytes + there / r->share * 2 * of.states / q->layers,
           h2d = back * of.result;
    if (moe) gpu += routed_time(in, r, u);
    /* to the device with the next layer */
    if (device_count(p) > 1) d2h += u * of.passed, h2d += u * of.passed;
    /* on its own stream */
    gpu += transfer_time(h2d, g->link[COST_H2D].rate) + transfer_time(d2h, g->link[COST_D2H].rate);
    const double weights = moe || pages_ffns(q) ? (1 - p->weight_share) * layer_pages(q) : 0;
    t[SEARCH_BY_CPU] = n * cpu;
    t[SEARCH_BY_CARD] = turns * gpu; /* devices work on their layers in parallel */
    t[SEARCH_BY_LINK] = transfer_time(n * h2d + weights, g->link[COST_H2D].rate) / device_count(p);
    /* the rest of the next layer is loaded into pages that the last micro-batch of this one releases */
    if (ring_layers(p) < 2)
        t[SEARCH_BY_LINK] =
            max_of(t[SEARCH_BY_LINK],
                   (n - 1) * max_of(gpu / device_count(p), cpu) +
                       transfer_time((2 - ring_layers(p)) * weights, g->link[COST_H2D].rate) / device_count(p));
    t[SEARCH_BY_ROWS] = transfer_time(n * d2h, g->link[COST_D2H].rate) / device_count(p);
    t[SEARCH_BY_MEMORY] = transfer_time(n * (read + h2d + d2h) + weights, m->dram_bw);
    t[SEARCH_BY_CHAIN] = cpu + gpu + 2 * m->hand_off_s;
    double most = 0;
    for (int i = 0; i < SEARCH_LIMITS; i++) most = max_of(most, t[i]);
    *moved = n * (h2d + d2h) + weights;
    return most;
}

static double pass_time(const struct search_in *in, const struct search_policy *p, const struct rows *r,
                        double t[SEARCH_LIMITS], double *rate) {
    const struct cost_model *q = in->model;
    double plain[SEARCH_LIMITS], sum = 0, moved, one;
    if (q->dense_layers && !pages_ffns(q)) sum += q->dense_layers * layer_time(in, p, r, false, plain, &moved);
    one = layer_time(in, p, r, !pages_ffns(q), t, &moved);
    if (rate) *rate = transfer_time(moved, one);
    const double n = n_micro_batches(p, r->n), turns = search_stagger((int)n, (int)device_count(p));
    /* pipeline fill and drain over the devices */
    return sum + paged_layers(q) * one + (n - turns) / turns * t[SEARCH_BY_CARD];
}
static double head_time(const struct search_in *in, double rows) {
    const double k = n_calls(in, &(struct rows){0}, rows, rows);
    return k * cost_head(in->cost, 1, in->model, rows / k);
}

static void paged_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    const double all = p->n_rows * in->prompt_tokens, passes = ceil(all / read_rows(p));
    struct search_policy q = *p;
    double t[SEARCH_LIMITS];
    struct rows r = {.n = p->n_rows, .keys = in->prompt_tokens + in->answer_tokens / 2 + 1, .share = 1};
    out->decode_s = pass_time(in, p, &r, out->layer_s, &out->link_rate) + head_time(in, p->n_rows);
    for (int i = 0; i < SEARCH_LIMITS; i++)
        if (out->layer_s[i] > out->layer_s[out->limit]) out->limit = (enum search_limit)i;
    q.micro_rows = read_micro(in, p); /* prompts share passes */
    const double together = min_of(q.micro_rows, max_of(in->prompt_tokens, 1));
    r = (struct rows){.n = all / passes, .keys = (in->prompt_tokens + 1) / 2, .share = together, .alone = together};
    const double start = min_of(rows_of(in).start_rows, in->prompt_tokens), rest = in->prompt_tokens - start;
    if (start >= SEARCH_START_ROWS) { /* keys: all that the prompt's rows see, less those of its start */
        r.start_share = start / in->prompt_tokens, r.start_keys = (start + 1) / 2;
        r.keys = rest > 0 ? (r.keys * in->prompt_tokens - r.start_keys * start) / rest : 0;
    }
    out->prefill_s = passes * pass_time(in, &q, &r, t, NULL) + head_time(in, p->n_rows);
}

/* Seconds for a prompt that the CPU reads with as many others as it joins. */
static double joined_prefill_s(const struct search_in *in, int n_prompts) {
    const int n = (int)max_of(in->prompt_tokens, 1), most = (int)max_of(POLICY_JOINED_TOKENS / n, 1),
              together = n_prompts < most ? n_prompts : most;
    const double alone_s = cost_prefill(in->cost, in->model, &(struct cost_prefill){.mode = PREFILL_CPU, .n = n}),
                 all_s =
                     cost_prefill(in->cost, in->model, &(struct cost_prefill){.mode = PREFILL_CPU, .n = n * together});
    return min_of(alone_s, all_s / together);
}
/* The CPU, and devices as they are: prompts are prefilled one after the other, short ones together on the CPU, then the
 * policy chooses the mode and who takes turns. */
static void session_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    struct policy_machine m = p->placement == SEARCH_HYBRID ? *in->machine : (struct policy_machine){0};
    struct policy_decode_out d;
    m.cost = in->cost, m.model = in->model, m.max_tpot_s = in->max_tpot_s;
    policy_decode_batch(&m,
                        &(struct policy_decode_in){.n_decoding = p->n_rows,
                                                   .max_rows = p->n_rows,
                                                   .keys = in->prompt_tokens + in->answer_tokens / 2 + 1,
                                                   .context_tokens = in->prompt_tokens + in->answer_tokens},
                        &d);
    out->decode_s = d.tpot_s;
    struct cost_prefill one = {.mode = PREFILL_CPU, .n = (int)max_of(in->prompt_tokens, 1)};
    double best = joined_prefill_s(in, p->n_rows);
    one.ranks = m.n_devices, one.is_resident = m.n_device_layers == in->model->layers,
    one.n_expert_layers = m.n_expert_layers;
    for (int mode = PREFILL_BLEND; mode <= PREFILL_DSLP; mode++) {
        one.mode = (enum exec_mode)mode;
        if (m.prefill_mask >> mode & 1 && m.n_devices >= exec_modes[mode].min_devices)
            best = min_of(best, cost_prefill(in->cost, in->model, &one));
    }
    out->prefill_s = p->n_rows * best;
}

void search_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out) {
    const struct cost_machine *m = in->cost;
    *out = (struct search_cost){0};
    add_memory(in, p, out);
    double host = in->host_bytes > 0 ? in->host_bytes : m->domain[0].memory,
           device = in->device_bytes > 0 ? in->device_bytes : m->domain[1].memory;
    if (in->n_prompts && p->n_rows > in->n_prompts) out->lacks = SEARCH_PROMPTS;
    else if ((in->max_rows[p->placement] && p->n_rows > in->max_rows[p->placement]) ||
             (p->placement != SEARCH_PAGED && p->n_rows > SEARCH_SESSIONS))
        out->lacks = SEARCH_ROWS;
    else if (host > 0 && out->host_bytes > host) out->lacks = SEARCH_HOST_MEMORY;
    else if (p->placement == SEARCH_PAGED && out->device_bytes > device) out->lacks = SEARCH_CARD_MEMORY;
    else out->fits = true;
    if (!out->fits) return;
    if (p->placement == SEARCH_PAGED) paged_cost(in, p, out);
    else session_cost(in, p, out);
    out->tokens_per_s = p->n_rows * in->answer_tokens / (out->prefill_s + in->answer_tokens * out->decode_s);
    if (in->max_tpot_s > 0 && out->decode_s > in->max_tpot_s) out->fits = false, out->lacks = SEARCH_TPOT;
}

/* --- Search ----------------------------------------------------------------------------------- */

/* Takes the largest resident share of weights that fits with a ring of two layers. Smaller rings only if no share is
 * left. */
static void maximize_weights(const struct search_in *in, struct search_policy *p, struct search_cost *c) {
    for (int i = 0; search_grid_ring(i) && (!i || p->placement == SEARCH_PAGED); i++) {
        int k = p->placement == SEARCH_PAGED && !i ? SEARCH_SHARES : 0;
        p->ring_layers = search_grid_ring(i);
        if (pages_ffns(in->model) && p->ring_layers > 1 && p->ring_layers < 2) continue;
        do p->weight_share = (double)k / SEARCH_SHARES, search_cost(in, p, c);
        while (!c->fits && c->lacks == SEARCH_CARD_MEMORY && k-- > 0);
        if (c->fits || c->lacks != SEARCH_CARD_MEMORY) return;
    }
}

/* Tries p->n_rows rows. False: neither these nor more rows fit. */
static bool try_rows(const struct search_in *in, struct search_policy *p, struct search_out *out) {
    struct search_cost c;
    maximize_weights(in, p, &c);
    out->n_tried++;
    if (!c.fits) {
        if (c.lacks != SEARCH_TPOT) return false;
        out->misses_tpot |= !out->is_found; /* a policy within the bound replaces it */
        if (!out->is_found || (out->misses_tpot && c.decode_s < out->cost.decode_s))
            out->is_found = true, out->policy = *p, out->cost = c;
        return false;
    }
    out->best_tokens_per_s[p->placement] = max_of(out->best_tokens_per_s[p->placement], c.tokens_per_s);
    if (out->misses_tpot || c.tokens_per_s > out->cost.tokens_per_s)
        out->is_found = true, out->misses_tpot = false, out->policy = *p, out->cost = c;
    return true;
}

/* Between two grid sizes: the same number of micro-batches, the largest that fit. */
static void try_between(const struct search_in *in, struct search_policy *p, int count, int from, int to,
                        struct search_out *out) {
    struct search_cost c;
    while (to - from > 1) {
        p->micro_rows = (from + to) / 2, p->n_rows = p->micro_rows * count;
        maximize_weights(in, p, &c);
        *(c.fits ? &from : &to) = p->micro_rows;
    }
    p->micro_rows = from, p->n_rows = from * count;
    try_rows(in, p, out);
}

/* Tries all batch sizes on the first n_devices devices. */
static void search_paged(const struct search_in *in, int n_devices, struct search_out *out) {
    struct search_policy p = {.placement = SEARCH_PAGED, .n_devices = n_devices};
    int most = 0; /* micro-batches that fit with the previous size */
    for (int i = 0; search_grid_micro_rows(i); i++) {
        /* would repeat the last result */
        if (in->n_prompts && i && search_grid_micro_rows(i - 1) >= in->n_prompts) break;
        int fit = 0;
        for (int k = 0; search_grid_micro_batches(k); k++) {
            p.micro_rows = search_grid_micro_rows(i), p.n_rows = p.micro_rows * search_grid_micro_batches(k);
            const bool last = in->n_prompts && p.n_rows >= in->n_prompts;
            if (last) p.n_rows = in->n_prompts;
            if (!try_rows(in, &p, out)) break;
            fit = k + 1;
            if (last) break;
        }
        for (int k = fit; k < most && !in->n_prompts; k++)
            try_between(in, &p, search_grid_micro_batches(k), search_grid_micro_rows(i - 1), search_grid_micro_rows(i),
                        out);
        most = fit;
    }
}

/* Tries all numbers of sessions at once. */
static void search_sessions(const struct search_in *in, enum search_placement place, struct search_out *out) {
    struct search_policy p = {.placement = place, .n_devices = place == SEARCH_HYBRID};
    do p.micro_rows = ++p.n_rows;
    while (try_rows(in, &p, out));
}

/* Tries longer passes over the layers for prompts, which upload weights less often but take memory. Answers wait for
 * them, so not where these are bounded. */
static void read_more(const struct search_in *in, struct search_out *out) {
    struct search_policy p = out->policy;
    struct search_cost c;
    const double all = p.n_rows * in->prompt_tokens;
    for (int rows = SEARCH_PREFILL_ROWS; rows < SEARCH_PREFILL_ROWS_MOST && rows < all; rows *= 2) {
        if (p.placement != SEARCH_PAGED || in->max_tpot_s > 0) return;
        p.read_rows = 2 * rows;
        maximize_weights(in, &p, &c);
        if (!c.fits || c.tokens_per_s <= out->cost.tokens_per_s) return;
        out->policy = p, out->cost = c;
        out->best_tokens_per_s[SEARCH_PAGED] = c.tokens_per_s;
    }
}

void search_run(const struct search_in *in, struct search_out *out) {
    const unsigned allowed = in->allowed_mask ? in->allowed_mask : ~0u;
    *out = (struct search_out){0};
    if (allowed >> SEARCH_CPU & 1) search_sessions(in, SEARCH_CPU, out);
    if (allowed >> SEARCH_HYBRID & 1 && in->machine && in->machine->n_device_layers)
        search_sessions(in, SEARCH_HYBRID, out);
    for (int n = 1; allowed >> SEARCH_PAGED & 1 && n <= in->cost->n_devices; n++) search_paged(in, n, out);
    if (!out->is_found) return;
    read_more(in, out);
    struct search_policy more = out->policy;
    struct search_cost c;
    more.n_rows += more.placement == SEARCH_PAGED ? more.micro_rows : 1;
    if (in->n_prompts && out->policy.n_rows == in->n_prompts) out->bound = SEARCH_PROMPTS;
    else if (maximize_weights(in, &more, &c), !c.fits) out->bound = c.lacks;
}

void search_why(const struct search_in *in, const struct search_out *out, char *why, size_t cap) {
    const struct search_policy *p = &out->policy;
    const bool paged = p->placement == SEARCH_PAGED;
    int n = 0;
    *why = 0;
    if (!out->is_found) {
        snprintf(why, cap, "no configuration fits this machine");
        return;
    }
    n += snprintf(why, cap, "%s: %d prompts at once", placement_names[p->placement], p->n_rows);
    if (paged)
        n += snprintf(why + n, cap - (size_t)n, " in micro-batches of %d, attention on the CPU, %s on the %s",
                      p->micro_rows, pages_ffns(in->model) ? "FFNs" : "experts", p->n_devices > 1 ? "cards" : "card");
    if (p->n_devices > 1 && (size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, " (layers alternate over %d)", p->n_devices);
    if (paged && (size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, ", of which %.0f%% stay there", 100 * p->weight_share);
    if ((size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, "; %.3g s per batch, %.3g tok/s", out->cost.decode_s,
                      out->cost.tokens_per_s);
    if (out->misses_tpot && (size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, ", the least time per token, above the limit of %.4g ms (--max-tpot)",
                      in->max_tpot_s * 1e3);
    if (paged && (size_t)n < cap)
        n += snprintf(why + n, cap - (size_t)n, "; bottleneck: %s", limit_names[out->cost.limit]);
    if ((size_t)n < cap) n += snprintf(why + n, cap - (size_t)n, "; batch limit: %s", bound_names[out->bound]);
    for (int i = 0; i < SEARCH_PLACEMENTS; i++)
        if (i != (int)p->placement && out->best_tokens_per_s[i] > 0 && (size_t)n < cap)
            n += snprintf(why + n, cap - (size_t)n, "; %s %.3g tok/s", placement_names[i], out->best_tokens_per_s[i]);
}
