#include "engine/placement/cost.h"

#include <math.h>
#include <string.h>

#include "base/ops.h"

static double max_of(double a, double b) { return a > b ? a : b; }
static double min_of(double a, double b) { return a < b ? a : b; }

/* --- Pieces ----------------------------------------------------------------------------------- */

double cost_at(const struct cost_curve *c, double rows) {
    if (c->n < 1) return INFINITY;
    if (rows <= (double)c->rows[0]) return (double)c->value[0];
    for (int i = 1; i < c->n; i++)
        if (rows < (double)c->rows[i]) {
            double x0 = log((double)c->rows[i - 1]), x1 = log((double)c->rows[i]), y0 = log((double)c->value[i - 1]),
                   y1 = log((double)c->value[i]);
            return exp(y0 + (y1 - y0) * (log(rows) - x0) / (x1 - x0));
        }
    return (double)c->value[c->n - 1];
}

const struct cost_curve *cost_rate(const struct cost_domain *d, enum cost_kind kind, enum cost_format f) {
    for (int i = (int)f; i >= 0; i--)
        if (d->rate[kind][i].n) return &d->rate[kind][i];
    for (int i = (int)f + 1; i < COST_FORMATS; i++)
        if (d->rate[kind][i].n) return &d->rate[kind][i];
    return kind == COST_LINEAR ? cost_rate(d, COST_FFN, f) : &d->rate[kind][f];
}

const struct cost_curve *cost_rate_few_rows(const struct cost_domain *d, enum cost_format f) {
    for (int i = (int)f; i >= 0; i--)
        if (d->rate_few_rows[i].n) return &d->rate_few_rows[i];
    for (int i = (int)f + 1; i < COST_FORMATS; i++)
        if (d->rate_few_rows[i].n) return &d->rate_few_rows[i];
    return cost_rate(d, COST_FFN, f);
}

static const double CPU_LEAST = 0.125; /* uploads take at most the rest of host memory's bandwidth */
/* The CPU keeps its usual share of the remaining bandwidth. */
double cost_cpu_share(const struct cost_machine *m, double taken) {
    return taken > 0 && m->dram_bw > 0 ? max_of(1 - taken / m->dram_bw, CPU_LEAST) : 1;
}
double cost_upload_rate(const struct cost_machine *m, int ranks) {
    double sum = 0;
    for (int d = 1; d <= ranks && d <= m->n_devices; d++) sum += m->domain[d].link[COST_H2D].rate;
    return m->dram_bw > 0 ? min_of(sum, (1 - CPU_LEAST) * m->dram_bw) : sum;
}
/* taken: bytes/s of host memory used by other readers. */
static double item_time(const struct cost_machine *m, int domain, const struct cost_item *p, double taken) {
    const struct cost_domain *d = &m->domain[domain];
    double bw = cost_at(&d->bw[p->kind], p->rows);
    if (!domain && m->spread_bw_share > 0 && p->kind <= COST_LINEAR) bw *= m->spread_bw_share;
    if (d->class == COST_CPU) bw *= cost_cpu_share(m, taken);
    const struct cost_curve *rate = p->kind == COST_FFN && max_of(p->rows, p->call_rows) <= BATCH_INVARIANT_ROWS
                                        ? cost_rate_few_rows(d, p->format)
                                        : cost_rate(d, p->kind, p->format);
    const bool is_prompt = p->kind == COST_ATTENTION && p->rows > BATCH_INVARIANT_ROWS && d->prompt_latency.n;
    const double latency = is_prompt ? cost_at(&d->prompt_latency, p->rows) : d->latency[p->kind];
    double read = p->bytes > 0 ? p->bytes / bw : 0, work = p->flops > 0 ? p->flops / cost_at(rate, p->rows) : 0;
    return (p->calls * latency + max_of(read, work)) * cost_factor(m, &d->observed[p->kind], p->rows);
}
double cost_time(const struct cost_machine *m, int domain, const struct cost_item *p) {
    return item_time(m, domain, p, 0);
}

double cost_transfer(const struct cost_machine *m, int domain, enum cost_link way, double bytes) {
    const struct cost_domain *d = &m->domain[domain];
    if (!(d->link[way].rate > 0)) return INFINITY;
    return (d->link[way].latency + bytes / d->link[way].rate) * cost_factor(m, &d->observed_link[way], 1);
}
double cost_upload_beside(const struct cost_machine *m, int domain, double bytes) {
    return cost_transfer(m, domain, COST_H2D, bytes) * cost_factor(m, &m->domain[domain].observed_beside, 1);
}

struct cost_rows cost_decode_rows(int rows, double keys) {
    return (struct cost_rows){rows, rows * (keys + 1), rows * (keys + 1), rows};
}
struct cost_rows cost_prefill_rows(double n, double pos) {
    return (struct cost_rows){n, n * pos + n * (n + 1) / 2, pos + n, 1};
}

/* Whether a device joins the small operations of that many rows. */
static bool joins_small(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    /* an average of layers */
    return m->domain[d].class == COST_GPU && rows * q->row_numbers < COST_CHAIN_NUMBERS + 0.5;
}
static double attention_block_time(const struct cost_machine *m, int d, const struct cost_model *q, struct cost_rows r,
                                   double taken) {
    const double sessions = max_of(r.sessions, 1);
    double pairs = r.pairs, keys = r.keys, bytes = q->attn_block_bytes, products = q->n_linear_ops;
    if (q->max_keys > 0) pairs = min_of(pairs, r.rows * q->max_keys), keys = min_of(keys, pairs);
    double flops = pairs * q->pair_flops, wide = pairs * q->expanded_pair_flops + keys * q->expand_flops;
    if (q->expanded_pair_flops > 0) flops = min_of(flops, wide);
    flops += r.pairs * q->index_flops;
    if (m->domain[d].class == COST_GPU && r.rows <= BATCH_INVARIANT_ROWS) products = q->n_joined_linear_ops;
    /* MLA: kv_b, per session */
    if (q->expand_flops > 0)
        bytes *= 1 + (sessions - 1) * q->expand_flops / q->attn_block_flops, products += 2 * (sessions - 1);
    /* KV rows are stored per session */
    const double small = (joins_small(m, d, q, r.rows) ? q->n_joined_elem_ops : q->n_elem_ops) + sessions - 1;
    return item_time(m, d,
                     &(struct cost_item){COST_LINEAR, q->dense, r.rows, bytes, r.rows * q->attn_block_flops, products},
                     taken) +
           item_time(m, d,
                     &(struct cost_item){COST_ATTENTION, q->kv, r.rows / sessions,
                                         keys * q->kv_row_bytes + r.keys * q->index_bytes, flops, sessions},
                     taken) +
           item_time(m, d, &(struct cost_item){COST_ELEM, COST_F32, r.rows, r.rows * q->elem_bytes, 0, small}, taken);
}
double cost_attention_block(const struct cost_machine *m, int d, const struct cost_model *q, struct cost_rows r) {
    return attention_block_time(m, d, q, r, 0);
}

static double ffn_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double bytes,
                       double flops, double calls, double taken) {
    return bytes > 0 ? item_time(m, d, &(struct cost_item){COST_FFN, q->dense, rows, bytes, rows * flops, calls}, taken)
                     : 0;
}
double cost_shared(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    return ffn_time(m, d, q, rows, q->shared_bytes, q->shared_flops, 1, 0);
}
double cost_head(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    return cost_time(m, d, &(struct cost_item){COST_LINEAR, COST_16BIT, rows, q->head_bytes, rows * q->head_flops, 1});
}

static double expert_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double of,
                          double taken) {
    return item_time(
        m, d, &(struct cost_item){COST_FFN, q->experts, rows, q->expert_bytes, rows * q->expert_flops, 0, of}, taken);
}
double cost_expert(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double of) {
    return expert_time(m, d, q, rows, of, 0);
}

double cost_expert_miss(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    double work = cost_expert(m, d, q, rows, COST_MANY_ROWS), read = m->dram_bw > 0 ? q->expert_bytes / m->dram_bw : 0;
    if (m->domain[d].class == COST_CPU) return max_of(work, read);
    return max_of(max_of(work, read), cost_transfer(m, d, COST_H2D, q->expert_bytes));
}

/* Expert i of E is chosen by a row with probability p_i <= 1, proportional to 1 / rank^skew, with sum topk. */
double cost_distinct(const struct cost_model *q, double rows) {
    double n = q->n_experts, k = q->topk, sum = 0, left = k;
    if (n < 1 || rows <= 0) return 0;
    if (q->skew <= 0) return n * (1 - pow(1 - k / n, rows));
    int sure = 0; /* experts whose probability would exceed 1: every row chooses them */
    for (int i = 0; i < q->n_experts; i++) sum += pow(i + 1, -q->skew);
    while (sure < q->topk && left * pow(sure + 1, -q->skew) > sum) sum -= pow(sure + 1, -q->skew), left--, sure++;
    double found = sure;
    for (int i = sure; i < q->n_experts && sum > 0; i++)
        found += 1 - pow(1 - min_of(1, left * pow(i + 1, -q->skew) / sum), rows);
    return found;
}

/* Seconds to read the missing ones of `experts` experts from disk, if a layer's rows choose `chosen`. */
static double disk_time(const struct cost_machine *m, const struct cost_model *q, double experts, double chosen) {
    if (!(m->disk_bw > 0) || !(m->disk_share > 0)) return 0;
    return experts * q->expert_bytes *
           (m->disk_share_few_rows + (m->disk_share - m->disk_share_few_rows) * chosen / q->n_experts) / m->disk_bw;
}

bool cost_spill(struct cost_machine *m, const struct cost_model *q, double memory) {
    /* paper D, figure 9: MRS, averaged over its models */
    static const struct cost_curve hits = {3, {0.25f, 0.75f, 1}, {0.472f, 0.833f, 1}};
    const double moe = q->layers - q->dense_layers, routed = moe * q->n_experts * q->expert_bytes,
                 rest = q->layers * q->attn_block_bytes + moe * q->shared_bytes + q->dense_layers * q->ffn_bytes +
                        2 * q->head_bytes,
                 share = (memory * 7 / 8 - rest) / routed;
    m->disk_share_few_rows = m->disk_share = 0;
    if (!(memory > 0) || routed + rest < memory) return true;
    if (!(share * q->n_experts >= q->topk)) return false;
    m->disk_share = max_of(1 - share, 0),
    m->disk_share_few_rows = 1 - (share < 0.25 ? share * 0.472 / 0.25 : cost_at(&hits, share));
    return true;
}

double cost_disk_reads(const struct cost_machine *m, const struct cost_model *q, double rows) {
    double n = cost_distinct(q, rows);
    return (q->layers - q->dense_layers) * disk_time(m, q, n, n);
}

static double routed_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double share,
                          double taken) {
    double n = cost_distinct(q, rows);
    if (!(n * share > 0)) return 0;
    double work = n * share * expert_time(m, d, q, rows * q->topk / n, rows, taken),
           read = m->domain[d].class == COST_CPU ? disk_time(m, q, n * share, n) : 0;
    return m->domain[d].latency[COST_FFN] + max_of(work, read);
}
double cost_routed(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    return routed_time(m, d, q, rows, 1, 0);
}

/* Smallest number of rows in 1 .. COST_NEVER_ROWS for which a monotonic predicate holds. */
static double first_rows_where(bool (*holds)(const struct cost_machine *, int, const struct cost_model *, double),
                               const struct cost_machine *m, int d, const struct cost_model *q) {
    int lo = 1, hi = COST_NEVER_ROWS;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (holds(m, d, q, mid)) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}
static bool fetch_is_faster(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    return cost_expert_miss(m, d, q, rows) < cost_expert_miss(m, 0, q, rows);
}
static bool computes_longer(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    return cost_expert(m, d, q, rows, COST_MANY_ROWS) >= cost_transfer(m, d, COST_H2D, q->expert_bytes);
}
double cost_fetch_break_even(const struct cost_machine *m, int d, const struct cost_model *q) {
    return first_rows_where(fetch_is_faster, m, d, q);
}
double cost_compute_bound_rows(const struct cost_machine *m, int d, const struct cost_model *q) {
    return first_rows_where(computes_longer, m, d, q);
}

/* --- Feedback --------------------------------------------------------------------------------- */

static int octave(double rows) {
    int b = rows > 1 ? (int)floor(log2(rows) + 0.5) : 0;
    return b < COST_ROWS ? b : COST_ROWS - 1;
}
/* Observations at other row counts are halved per octave of distance; the table itself weighs a quarter observation. */
static double learned_log_factor(const struct cost_observed *s, double rows) {
    double sum = 0, weight = 0.25;
    int at = octave(rows);
    for (int i = 0; i < COST_ROWS; i++)
        if (s->weight[i] > 0) {
            double w = (double)s->weight[i] * exp2(-fabs((double)(i - at)));
            sum += w * (double)s->mean[i], weight += w;
        }
    return sum / weight;
}
static double clamp_log_factor(double x) { return x < -log(8) ? -log(8) : x > log(8) ? log(8) : x; }

double cost_factor(const struct cost_machine *m, const struct cost_observed *s, double rows) {
    return m->is_deterministic ? 1 : exp(clamp_log_factor(learned_log_factor(s, rows)));
}

void cost_observe(const struct cost_machine *m, struct cost_observed *s, double rows, double expected, double real) {
    if (!(expected > 0) || !(real > 0) || !isfinite(expected) || !isfinite(real)) return;
    double of_table = clamp_log_factor(log(real / expected) + log(cost_factor(m, s, rows)));
    int at = octave(rows);
    float rest = s->weight[at] < 7 ? s->weight[at] : 7; /* the newest weighs at least an eighth */
    s->mean[at] = (s->mean[at] * rest + (float)of_table) / (rest + 1);
    s->weight[at] = rest + 1;
}

/* --- Decode batches --------------------------------------------------------------------------- */

/* Transfers rows to the CPU and their sum back. */
static double hand_off_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows) {
    const struct cost_domain *g = &m->domain[d];
    return 2 * m->hand_off_s + rows * q->row_bytes * (1 / g->link[COST_D2H].rate + 1 / g->link[COST_H2D].rate);
}

/* One rank's share of attention blocks and dense parts: heads, and with them KV except MLA's single latent. */
static struct cost_model rank_model(const struct cost_model *q, int ranks) {
    struct cost_model r = *q;
    double *parts[] = {&r.attn_block_bytes, &r.attn_block_flops, &r.pair_flops,  &r.expanded_pair_flops,
                       &r.expand_flops,     &r.query_bytes,      &r.ffn_bytes,   &r.ffn_flops,
                       &r.shared_bytes,     &r.shared_flops,     &r.kv_row_bytes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts - (q->expanded_pair_flops > 0); i++) *parts[i] /= ranks;
    return r;
}
/* All-reduce of a layer's output over the ranks: download, upload the others', add. */
static double all_reduce_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, int ranks) {
    if (ranks < 2) return 0;
    const double bytes = rows * q->row_bytes;
    return m->hand_off_s + cost_transfer(m, d, COST_D2H, bytes) + (ranks - 1) * cost_transfer(m, d, COST_H2D, bytes) +
           ranks * m->domain[d].latency[COST_ELEM];
}

/* One layer for the rows of a micro-batch: busy time of CPU and device, and latency from start to end. */
struct layer_time {
    double cpu, gpu, chain;
};
/* Operations that count where the device alone limits a layer, unless they are joined: KV rows staged for the host, and
 * the experts' sum zeroed and added. */
enum { DEVICE_ONLY_OPS = 4 };
/* The device's part of a layer with a pool, `share` of the experts that the rows choose: their rows are gathered,
 * computed and added one expert after another. Before that a sum is cleared, and indices and weights are copied. */
enum { POOL_EXPERT_OPS = 2, POOL_LAYER_OPS = 3 };
static double pool_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double share) {
    const double n = cost_distinct(q, rows) * share, small = m->domain[d].latency[COST_ELEM];
    if (!(n > 0)) return 0;
    return n * (expert_time(m, d, q, rows * q->topk / cost_distinct(q, rows), rows, 0) +
                m->domain[d].latency[COST_FFN] + POOL_EXPERT_OPS * small) +
           POOL_LAYER_OPS * small;
}

/* The missing experts of a layer, divided between the CPU and the link so that both end together; alone_s: on the CPU
 * alone. What the link reads of host memory is taken from the CPU. */
static double divided_time(const struct cost_machine *m, int d, const struct cost_model *q, double rows, double missing,
                           double alone_s) {
    const double sent = cost_distinct(q, rows) * missing * cost_transfer(m, d, COST_H2D, q->expert_bytes),
                 beside = routed_time(m, 0, q, rows, missing, m->domain[d].link[COST_H2D].rate);
    return sent > 0 ? min_of(alone_s, beside * sent / (beside + sent)) : alone_s;
}

/* Layers that are alike: where their attention blocks are, whether they have experts, and of their choices the share
 * that the device has. is_pool: in slots that move, or to which missing ones are sent. */
struct layer_kind {
    int count;
    bool on_device, experts, is_pool;
    double resident;
};
static struct layer_time layer_time(const struct cost_machine *m, const struct cost_model *q,
                                    const struct cost_decode *s, int rows, const struct layer_kind *k, double taken) {
    const bool on_device = k->on_device;
    const double resident = k->resident;
    struct cost_rows r = cost_decode_rows(rows, s->keys);
    if (s->is_one_session) r.sessions = 1;
    int d = on_device ? 1 + s->device : 0, ranks = on_device && s->ranks > 1 ? s->ranks : 1;
    struct cost_model share;
    const struct cost_model *part = q;
    if (ranks > 1) share = rank_model(q, ranks), part = &share;
    const double sum = all_reduce_time(m, d, q, rows, ranks);
    double attn = attention_block_time(m, d, part, r, taken) + sum;
    if (!k->experts) {
        attn += ffn_time(m, d, q, rows, part->ffn_bytes, part->ffn_flops, 1, taken) + sum;
        return (struct layer_time){on_device ? 0 : attn, on_device ? attn : 0, attn};
    }
    double shared =
        ffn_time(m, d, q, rows, part->shared_bytes, part->shared_flops, 1, taken) + (q->shared_bytes > 0 ? sum : 0);
    if (!on_device) {
        attn += shared + routed_time(m, 0, q, rows, 1, taken);
        return (struct layer_time){attn, 0, attn};
    }
    if (k->is_pool && s->sends_experts) {
        const double sent = cost_distinct(q, rows) * (1 - resident) * cost_transfer(m, d, COST_H2D, q->expert_bytes),
                     computed = shared + pool_time(m, d, q, rows, 1);
        return (struct layer_time){0, attn + max_of(sent, computed), attn + m->hand_off_s + max_of(sent, computed)};
    }
    double cpu = routed_time(m, 0, q, rows, 1 - resident, taken);
    if (s->divides_missing && resident > 0) cpu = divided_time(m, d, q, rows, 1 - resident, cpu);
    if (k->is_pool) {
        const double pool = pool_time(m, d, q, rows, resident);
        return (struct layer_time){cpu, attn + shared + pool,
                                   attn + max_of(hand_off_time(m, d, q, rows) + max_of(cpu, pool), shared)};
    }
    const bool is_resident = resident >= 1; /* nothing for the CPU */
    double gpu = shared + routed_time(m, d, q, rows, resident, 0);
    if (is_resident && !joins_small(m, d, q, rows)) gpu += DEVICE_ONLY_OPS * m->domain[d].latency[COST_ELEM];
    if (is_resident) return (struct layer_time){0, attn + gpu, attn + gpu};
    return (struct layer_time){cpu, attn + gpu, max_of(attn + hand_off_time(m, d, q, rows) + cpu, attn + gpu)};
}

double cost_decode(const struct cost_machine *m, const struct cost_model *q, const struct cost_decode *s) {
    bool dual = s->mode == DECODE_DUAL && s->first_rows > 0 && s->first_rows < s->rows,
         devices = s->mode != DECODE_CPU && s->device < m->n_devices;
    int on = devices ? s->n_device_layers : 0,
        part[2] = {dual ? s->first_rows : s->rows, dual ? s->rows - s->first_rows : 0};
    double taken = s->beside_prefill ? cost_upload_rate(m, 1) : 0, sum = 0;
    if (s->rows < 1) return 0;
    const int dense_on_device = on < q->dense_layers ? on : q->dense_layers, moe = q->layers - q->dense_layers,
              moe_on_device = on - dense_on_device,
              whole = devices ? (s->n_expert_layers < moe_on_device ? s->n_expert_layers : moe_on_device) : 0;
    const struct layer_kind kinds[] = {
        {q->dense_layers - dense_on_device, false, false, false, 0},
        {moe - moe_on_device, false, true, false, 0},
        {dense_on_device, true, false, false, 0},
        {moe_on_device - whole, true, true, s->moves_experts || s->sends_experts, s->resident_share},
        {whole, true, true, false, 1}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k].count < 1) continue;
        struct layer_time a = layer_time(m, q, s, part[0], &kinds[k], taken), b = {0};
        if (dual) b = layer_time(m, q, s, part[1], &kinds[k], taken);
        sum += kinds[k].count * max_of(max_of(a.chain, b.chain), max_of(a.cpu + b.cpu, a.gpu + b.gpu));
    }
    int head = on == q->layers ? 1 + s->device : 0;
    for (int i = 0; i < 1 + dual; i++) sum += cost_head(m, head, q, part[i]); /* the head overlaps with nothing */
    return sum * cost_factor(m, &m->observed[s->mode], s->rows);
}

int cost_best_cut(const struct cost_machine *m, const struct cost_model *q, const struct cost_decode *s) {
    struct cost_decode try = *s;
    int best = 0;
    double least = INFINITY;
    for (try.first_rows = s->rows / 2; try.first_rows >= 1; try.first_rows--) { /* equal parts first: they win ties */
        double t = cost_decode(m, q, &try);
        if (t < least) least = t, best = try.first_rows;
    }
    return best;
}

int cost_layers_fit(const struct cost_model *q, double bytes, double positions) {
    const double row = positions * q->kv_row_bytes * (1 - q->kv_taken_layers / q->layers);
    int n = 0;
    for (; n < q->layers; n++) {
        bytes -= q->attn_block_bytes + (n < q->dense_layers ? q->ffn_bytes : q->shared_bytes) + row;
        if (bytes < 0) break;
    }
    return n;
}

static void add_point(struct cost_curve *c, float rows, double value) {
    if (c->n < COST_POINTS) c->rows[c->n] = rows, c->value[c->n++] = (float)value;
}
void cost_use_fp8(struct cost_machine *m) {
    const float few = BATCH_INVARIANT_ROWS;
    for (int d = 1; d <= m->n_devices; d++)
        for (int k = COST_FFN; k <= COST_LINEAR; k++) {
            struct cost_domain *g = &m->domain[d];
            const struct cost_curve was = *cost_rate(g, (enum cost_kind)k, COST_8BIT), *fp8 = &g->rate_fp8[k];
            struct cost_curve *to = &g->rate[k][COST_8BIT];
            if (!fp8->n || !was.n) continue;
            *to = (struct cost_curve){0};
            for (int i = 0; i < was.n && was.rows[i] < few; i++) add_point(to, was.rows[i], (double)was.value[i]);
            add_point(to, few, cost_at(&was, (double)few));
            add_point(to, few + 1, cost_at(fp8, (double)few + 1));
            for (int i = 0; i < fp8->n; i++)
                if (fp8->rows[i] > few + 1) add_point(to, fp8->rows[i], (double)fp8->value[i]);
        }
}

/* --- Prefills --------------------------------------------------------------------------------- */

/* The attention block of a layer for n rows, chunk by chunk. */
static double attention_blocks_time(const struct cost_machine *m, int d, const struct cost_model *q, double n,
                                    double pos, int chunk) {
    double sum = 0;
    for (double at = 0; at < n; at += chunk)
        sum += cost_attention_block(m, d, q, cost_prefill_rows(min_of(chunk, n - at), pos + at));
    return sum;
}

/* All layers for one chunk, then the next chunk: weights are read once per chunk. Rows of a decode batch join in. */
static double prefill_cpu_time(const struct cost_machine *m, const struct cost_model *q, const struct cost_prefill *p) {
    int chunk = m->cpu_chunk_rows > 0 ? m->cpu_chunk_rows : p->n, moe = q->layers - q->dense_layers;
    double sum = cost_head(m, 0, q, 1), with = p->n_decoding;
    for (double at = 0; at < p->n; at += chunk) {
        double n = min_of(chunk, p->n - at), attn = cost_attention_block(m, 0, q, cost_prefill_rows(n, p->pos + at));
        if (with > 0) attn += cost_attention_block(m, 0, q, cost_decode_rows(p->n_decoding, p->keys));
        sum += q->layers * attn + moe * (cost_shared(m, 0, q, n + with) + cost_routed(m, 0, q, n + with));
        sum += q->dense_layers * ffn_time(m, 0, q, n + with, q->ffn_bytes, q->ffn_flops, 1, 0);
    }
    return sum;
}

/* One layer for all rows, then the next layer: weights that are not resident are uploaded once, overlapped with
 * compute. Each of S ranks takes a share of the rows in attention and a share of the experts, and exchanges rows and
 * sums (SmallEP, BF16). */
static double prefill_stream_time(const struct cost_machine *m, const struct cost_model *q,
                                  const struct cost_prefill *p, int ranks) {
    double n = p->n, s = ranks, moe = q->layers - q->dense_layers, chosen = cost_distinct(q, n);
    /* 2 * n * hidden * 2 bytes */
    double each = ranks > 1 ? ceil(n / s) : n, exchange = ranks > 1 ? n * q->row_bytes * (s - 1) / s : 0;
    /* slp_selects_few: wait for the router or not */
    double loaded = chosen > 0.75 * q->n_experts ? q->n_experts : chosen;
    const double dense_share = 1 - min_of(p->n_dense_layers, q->layers) / q->layers,
                 streamed = moe - min_of(p->n_expert_layers, moe);
    double dense =
        dense_share * (q->layers * q->attn_block_bytes + moe * q->shared_bytes + q->dense_layers * q->ffn_bytes);
    /* whole experts, on the rank with the most */
    double part = q->n_experts > 0 ? ceil(q->n_experts / s) / q->n_experts : 0;
    double bytes = dense + streamed * loaded * q->expert_bytes * part + moe * exchange,
           first = p->n_dense_layers > 0 ? 0 : cost_transfer(m, 1, COST_H2D, q->attn_block_bytes);
    /* In a striped prefill a rank's rows are spread over the sequence, so it sees all keys. */
    double attn =
        ranks > 1 ? cost_attention_block(m, 1, q,
                                         (struct cost_rows){each, cost_prefill_rows(n, p->pos).pairs / s, p->pos + n})
                  : attention_blocks_time(m, 1, q, n, p->pos, m->gpu_chunk_rows > 0 ? m->gpu_chunk_rows : p->n);
    double compute = q->layers * attn + moe * (cost_shared(m, 1, q, each) + cost_routed(m, 1, q, n) * part) +
                     q->dense_layers * ffn_time(m, 1, q, each, q->ffn_bytes, q->ffn_flops, 1, 0);
    if (ranks > 1) compute += moe * cost_transfer(m, 1, COST_D2H, exchange);
    /* shared by all ranks */
    double disk = m->disk_bw > 0 ? streamed * loaded * q->expert_bytes * m->disk_share / m->disk_bw : 0;
    double alloc =
        /* allocation of the ring */
        m->domain[1].alloc > 0 ? min_of(q->n_experts / s * q->expert_bytes, m->domain[1].memory) / m->domain[1].alloc
                               : 0;
    const double host = s * bytes / cost_upload_rate(m, ranks); /* the links of all ranks read the same memory */
    return first + alloc + max_of(max_of(max_of(cost_transfer(m, 1, COST_H2D, bytes), host), compute), disk) +
           cost_head(m, 0, q, 1);
}

/* n rows through all layers with split experts. The number of experts sent over the (identical) devices' links
 * minimizes the longest of link, device and CPU. */
static double blend_batch_time(const struct cost_machine *m, const struct cost_model *q, const struct cost_prefill *p,
                               double n, double pos) {
    double chosen = cost_distinct(q, n + p->n_decoding), rows = chosen > 0 ? (n + p->n_decoding) * q->topk / chosen : 0,
           moe = q->layers - q->dense_layers;
    double attn = attention_blocks_time(m, 1, q, n, pos, m->gpu_chunk_rows > 0 ? m->gpu_chunk_rows : p->n),
           hand = hand_off_time(m, 1, q, n), shared = cost_shared(m, 1, q, n);
    const double taken = cost_upload_rate(m, p->ranks > 1 ? p->ranks : 1), cpu_alone = cost_expert(m, 0, q, rows, n),
                 cpu_beside = expert_time(m, 0, q, rows, n, taken);
    double gpu_expert = cost_expert(m, 1, q, rows, n), upload = cost_upload_beside(m, 1, q->expert_bytes);
    double ranks = p->ranks > 1 ? p->ranks : 1,
           /* rows to the device, the sum back */
        help = ranks > 1 ? hand + cost_transfer(m, 1, COST_H2D, n * q->row_bytes) : 0;
    double dense = p->is_resident ? 0 : cost_upload_beside(m, 1, q->attn_block_bytes + q->shared_bytes),
           layer = INFINITY;
    if (p->n_decoding) attn += cost_attention_block(m, 1, q, cost_decode_rows(p->n_decoding, p->keys));
    double disk = disk_time(m, q, chosen, chosen);
    for (double x = 0; x < chosen + 1; x++) {
        double moved = min_of(x, chosen), left = chosen - moved, each = ceil(moved / ranks);
        double cpu = left > 0 ? m->domain[0].latency[COST_FFN] + left * (moved > 0 ? cpu_beside : cpu_alone) + hand : 0;
        double work = moved > 0 ? m->domain[1].latency[COST_FFN] + each * gpu_expert : 0,
               gpu = attn + max_of(max_of(shared + work, moved > 1 ? help + work : 0), cpu);
        layer = min_of(layer, max_of(dense + each * upload, gpu));
    }
    const double whole = min_of(p->n_expert_layers, moe),
                 resident = attn + shared + cost_routed(m, 1, q, n + p->n_decoding);
    double plain = attn + ffn_time(m, 1, q, n, q->ffn_bytes, q->ffn_flops, 1, 0);
    if (!p->is_resident) plain = max_of(plain, cost_transfer(m, 1, COST_H2D, q->attn_block_bytes + q->ffn_bytes));
    return (moe - whole) * max_of(layer, disk) + whole * resident + q->dense_layers * plain;
}
/* Like the stream, but in batches that each upload the weights again. */
static double prefill_blend_time(const struct cost_machine *m, const struct cost_model *q,
                                 const struct cost_prefill *p) {
    double sum = cost_head(m, 0, q, 1) + (p->is_resident ? 0 : cost_transfer(m, 1, COST_H2D, q->attn_block_bytes));
    for (int at = 0; at < p->n; at += COST_BLEND_ROWS)
        sum += blend_batch_time(m, q, p, min_of(COST_BLEND_ROWS, p->n - at), p->pos + at);
    return sum;
}

double cost_prefill(const struct cost_machine *m, const struct cost_model *q, const struct cost_prefill *p) {
    int ranks = p->mode == PREFILL_DSLP || (p->mode == PREFILL_BLEND && p->ranks > 1) ? p->ranks : 1;
    if (p->mode != PREFILL_CPU && (ranks < 1 || ranks > m->n_devices)) return INFINITY;
    double t = p->mode == PREFILL_CPU
                   ? prefill_cpu_time(m, q, p)
                   : m->prefill_start_s +
                         (p->mode == PREFILL_BLEND ? prefill_blend_time(m, q, p) : prefill_stream_time(m, q, p, ranks));
    return t * cost_factor(m, &m->observed[p->mode], p->n);
}

double cost_tower(const struct cost_machine *m, const struct cost_tower *t) {
    const struct cost_item products = {COST_LINEAR, t->weights, t->patches, t->bytes, t->flops, t->products},
                           attention = {COST_ATTENTION,     COST_F32,          t->patches, 0,
                                        t->attention_flops, t->attention_calls};
    return (cost_time(m, 0, &products) + cost_time(m, 0, &attention)) * cost_factor(m, &m->observed_tower, t->patches);
}

/* --- Tables ----------------------------------------------------------------------------------- */

/* Entry i is i rows below 8, then eight entries per octave. */
static double table_rows(int i) { return i < 8 ? i : (8 + (i - 8) % 8) * exp2((i - 8) / 8); }

void cost_table_fill(struct cost_table *t, const struct cost_machine *m, int domain, const struct cost_model *q,
                     double of) {
    t->t[0] = 0;
    for (int i = 1; i <= COST_TABLE; i++) { /* monotonic: sorting by rows then sorts by time */
        float c = (float)cost_expert(m, domain, q, table_rows(i), of);
        t->t[i] = c > t->t[i - 1] ? c : t->t[i - 1];
    }
}
double cost_table_at(const struct cost_table *t, int rows) {
    if (rows < 8) return (double)t->t[rows > 0 ? rows : 0];
    /* rows >> shift is 8 .. 15 */
    int shift = 28 - __builtin_clz((unsigned)rows), at = 8 + 8 * shift + ((rows >> shift) & 7);
    if (at >= COST_TABLE) return (double)t->t[COST_TABLE] * rows / table_rows(COST_TABLE);
    double part = (double)(rows & ((1 << shift) - 1)) / (1 << shift);
    return (double)t->t[at] + ((double)t->t[at + 1] - (double)t->t[at]) * part;
}
