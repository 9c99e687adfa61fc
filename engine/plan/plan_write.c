#include "engine/plan/plan_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/exec/stream/slp.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/arch.h"
#include "engine/placement/datasheet.h"
#include "engine/placement/numa_cost.h"
#include "engine/placement/search.h"
#include "engine/plan/plan_query.h"

/* SPREAD: index of the machine without placement by NUMA node */
enum { LENGTHS = 9, BATCHES = 5, CHANGES = 5, ASKED = 2, SPREAD = 1 + CHANGES, MACHINES };
enum {
    PROMPTS = POLICY_BATCH,
    ANSWER = 256,
    MANY = 4096,
    ROWS = 16
    /* --batch: ANSWER tokens for each prompt of lengths[0]; PROMPTS at once unless the policy says more, MANY at most;
       ROWS per batch that is not paged */
};
static const int lengths[LENGTHS] = {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072},
                 batches[BATCHES] = {1, 2, 4, 6, 8};
static const int upgrade_lengths[ASKED] = {2048, 32768}, upgrade_batches[ASKED] = {1, 4}; /* for a modified machine */

/* --- The engine's decisions on a machine ------------------------------------------------------ */

struct machine_choice {
    const struct cost_machine *cost;
    struct cost_model model;
    struct policy_machine policy;
    int n_resident_layers;   /* layers */
    struct search_rows rows; /* in paged batches */
    const char *why_unpaged; /* why the model cannot be paged; NULL: it can be */
    char why[640];           /* as decode_placement_why */
};
static double weight_bytes(const struct weights *w) {
    return (double)w->bytes_routed + (double)w->bytes_dense + (double)w->bytes_embed;
}
static double parameter_count(const struct config *c) {
    struct param list[PARAMS_MAX];
    double all = 0;
    for (int l = -1; l < c->n_layers; l++)
        for (int of_expert = 0; of_expert < 2; of_expert++) {
            if (l < 0 && of_expert) continue;
            const unsigned modules = l < 0 ? MODULE_MODEL : of_expert ? MODULE_EXPERT : MODULE_LAYER;
            for (int n = params_list(c, l < 0 ? 0 : l, modules, list); n-- > 0;)
                all += (double)list[n].rows * (list[n].cols ? list[n].cols : 1) * (of_expert ? c->n_experts : 1);
        }
    return all;
}
static bool fits_in_memory(const struct cost_machine *cost, const struct weights *w) {
    return !(cost->domain[0].memory > 0) || weight_bytes(w) < cost->domain[0].memory;
}
static void make_cost_model(struct cost_model *q, const struct weights *w, enum dtype kv) {
    cost_model_of(q, &w->config, weights_dense_dtype(w), weights_ffn_dtype(w), kv);
}
/* Whether weights fit in memory, or memory can cache experts of a disk with known speed. Sets cost->missing and
 * cost->absent. */
static bool set_disk_spill(struct cost_machine *cost, const struct weights *w, enum dtype kv) {
    struct cost_model q;
    make_cost_model(&q, w, kv);
    cost->disk_share_few_rows = cost->disk_share = 0;
    return fits_in_memory(cost, w) || (cost->disk_bw > 0 && cost_spill(cost, &q, cost->domain[0].memory));
}

/* Whether the engine places weights by NUMA node: an eighth of memory stays free (numa_copy_fits()). */
static bool places_weights(const struct cost_machine *cost, const struct weights *w) {
    return cost->n_nodes > 1 && (!(cost->domain[0].memory > 0) || weight_bytes(w) <= cost->domain[0].memory / 8 * 7);
}

static int choice_open(struct machine_choice *c, struct cost_machine *cost, const struct weights *w,
                       const struct plan_options *o, struct error *e) {
    struct virtual *v;
    struct cost_model model;
    make_cost_model(&model, w, o->kv);
    set_disk_spill(cost, w, o->kv);
    if (cost->n_nodes > 1 && !places_weights(cost, w)) cost->spread_bw_share = numa_cost_reach(cost, &model);
    int rc = virtual_open(
        &v, &(struct virtual_options){.cost = cost, .w = w, .kv = o->kv, .experts = o->experts, .usage = o->usage}, e);
    if (rc) return rc;
    *c = (struct machine_choice){
        .cost = cost, .model = model, .n_resident_layers = decode_resident_layers(virtual_decode_state(v))};
    c->policy = (struct policy_machine){.n_devices = cost->n_devices,
                                        .why_unsplittable = slp_why_unsplittable(&w->config),
                                        .n_device_layers = c->n_resident_layers,
                                        .n_expert_layers = decode_expert_layers(virtual_decode_state(v)),
                                        .resident_share = decode_pinned_share(virtual_decode_state(v)),
                                        .ranks = decode_tp_ranks(virtual_decode_state(v)),
                                        .prefill_mask = 1u << PREFILL_SLP | 1u << PREFILL_DSLP,
                                        .max_tpot_s = o->max_tpot_s};
    if (decode_can_blend(virtual_decode_state(v))) c->policy.prefill_mask |= 1u << PREFILL_BLEND;
    if (c->n_resident_layers) c->policy.decode_mask = 1u << DECODE_HYBRID | 1u << DECODE_DUAL;
    for (int i = 0; i < cost->n_devices && i < POLICY_DEVICES; i++) {
        c->policy.free[i] = cost->domain[1 + i].memory;
        c->policy.decode_uses[i] = decode_holds_layers(virtual_decode_state(v), i);
        c->policy.dense_layers[i] = decode_device_layers(virtual_decode_state(v), i, false);
        c->policy.expert_layers[i] = decode_device_layers(virtual_decode_state(v), i, true);
    }
    strncpy(c->why, decode_placement_why(virtual_decode_state(v)), sizeof c->why - 1);
    virtual_paged_rows(v, &c->rows);
    c->why_unpaged = cost->disk_share > 0 ? "the weights do not fit in memory" : virtual_why_unpaged(v);
    virtual_close(&v);
    return 0;
}
static enum exec_mode choose_prefill(const struct machine_choice *c, int n) {
    struct policy_machine m = c->policy;
    struct policy_prefill_out out;
    m.cost = c->cost, m.model = &c->model;
    policy_prefill(&m,
                   &(struct policy_prefill_in){
                       .n_new = n, .since_decode_s = -1, .dense_resident = c->n_resident_layers == c->model.layers},
                   &out);
    return out.mode;
}
/* Most of `most` sessions that decode at once within the bound, if there is one. */
static int bounded_sessions(const struct machine_choice *c, int most) {
    struct policy_machine m = c->policy;
    double tpot_s;
    m.cost = c->cost, m.model = &c->model;
    if (!(m.max_tpot_s > 0)) return most;
    return policy_max_sessions(
        &m, &(struct policy_decode_in){.max_rows = most, .keys = PLAN_KEYS, .context_tokens = 4 * PLAN_KEYS}, &tpot_s);
}
static struct policy_decode_out choose_decode(const struct machine_choice *c, int sessions) {
    struct policy_machine m = c->policy;
    struct policy_decode_out out;
    m.cost = c->cost, m.model = &c->model;
    policy_decode_batch(&m,
                        &(struct policy_decode_in){
                            .n_decoding = sessions, .max_rows = 16, .keys = PLAN_KEYS, .context_tokens = 4 * PLAN_KEYS},
                        &out);
    return out;
}

/* --- Queries ---------------------------------------------------------------------------------- */

struct plan {
    struct plan_queries runs;
    const char *upgrade_name[1 + CHANGES]; /* [0]: the machine as described */
    struct cost_machine *machine;          /* [MACHINES] */
    struct machine_choice choice[MACHINES];
    int n_machines;
    int prefill_query[LENGTHS][PREFILL_DSLP + 1], n_lengths; /* indices of runs; < 0: the machine lacks the mode */
    enum exec_mode chosen_mode[LENGTHS];
    int decode_query[BATCHES], beside_query[BATCHES], spread_query; /* spread_query: of one session; < 0: none */
    double max_tpot_s;
    int bound_query[ROWS], bound_batch[ROWS]; /* with max_tpot_s: decode batches of 1 .. ROWS sessions */
    struct policy_decode_out decided[BATCHES];
    struct batch { /* --batch */
        struct search_out search;
        /* indices of runs. many: paged, < 0: not used; otherwise a prompt, and a batch of `with.batch` rows */
        int paged_query, prefill_query, decode_query;
        struct policy_decode_out decode_decision;
        enum exec_mode mode; /* mode of `read` */
    } batch[1 + CHANGES];
    int upgrade_prefill[1 + CHANGES][ASKED], upgrade_decode[1 + CHANGES][ASKED], upgrade_batch[1 + CHANGES][ASKED];
};

static int add_prefill_query(struct plan *p, int machine, enum exec_mode mode, int n, struct error *e) {
    const struct policy_machine *m = &p->choice[machine].policy;
    const bool is_uneven = exec_modes[mode].min_devices && (m->n_expert_layers > 0 || m->resident_share > 0);
    return plan_query_add(
        &p->runs, &(struct plan_query){.cost = &p->machine[machine], .mode = mode, .n = n, .is_uneven = is_uneven}, e);
}

static int add_decode_query(struct plan *p, int machine, int sessions, bool beside, struct policy_decode_out *decided,
                            struct error *e) {
    const struct cost_machine *cost = &p->machine[machine];
    *decided = choose_decode(&p->choice[machine], sessions);
    double taken = beside && cost->n_devices ? cost->domain[1].link[COST_H2D].rate : 0;
    return plan_query_add(
        &p->runs, &(struct plan_query){.cost = cost, .mode = decided->mode, .n = decided->batch, .stream_rate = taken},
        e);
}

/* Adds the query that the engine makes for announced prompts. */
static int add_throughput_query(struct plan *p, int machine, struct error *e) {
    const struct machine_choice *c = &p->choice[machine];
    struct search_out *found = &p->batch[machine].search;
    struct search_in in = {.cost = c->cost,
                           .model = &c->model,
                           .rows = &c->rows,
                           .machine = &c->policy,
                           .max_tpot_s = p->max_tpot_s,
                           .prompt_tokens = lengths[0],
                           .answer_tokens = ANSWER,
                           .max_matrix_rows = BATCH_INVARIANT_ROWS,
                           .allowed_mask = 1u << SEARCH_CPU};
    in.max_rows[SEARCH_CPU] = in.max_rows[SEARCH_HYBRID] = ROWS, in.max_rows[SEARCH_PAGED] = MANY;
    if (c->n_resident_layers) in.allowed_mask |= 1u << SEARCH_HYBRID;
    if (!c->why_unpaged) in.allowed_mask |= 1u << SEARCH_PAGED;
    search_run(&in, found);
    const struct search_policy *q = &found->policy;
    if (!found->is_found || found->misses_tpot || q->placement != SEARCH_PAGED) return -1;
    const struct virtual_throughput paged = {.n_prompts = q->n_rows,
                                             .micro_rows = q->micro_rows,
                                             .prompt_tokens = lengths[0],
                                             .answer_tokens = ANSWER,
                                             .n_devices = q->n_devices,
                                             .read_rows = q->read_rows,
                                             .resident_share = -1};
    return plan_query_add(&p->runs,
                          &(struct plan_query){.cost = c->cost,
                                               .stream_rate = found->cost.link_rate,
                                               .expected_s = found->cost.decode_s,
                                               .throughput = paged},
                          e);
}

static int add_batch_queries(struct plan *p, int machine, struct error *e) {
    struct batch *b = &p->batch[machine];
    b->mode = choose_prefill(&p->choice[machine], lengths[0]);
    if ((b->prefill_query = add_prefill_query(p, machine, b->mode, lengths[0], e)) < 0) return e->code;
    if ((b->decode_query = add_decode_query(p, machine, bounded_sessions(&p->choice[machine], PROMPTS), false,
                                            &b->decode_decision, e)) < 0)
        return e->code;
    return (b->paged_query = add_throughput_query(p, machine, e)) < 0 ? e->code : 0;
}

/* Adds variants of the machine with one upgrade each. */
static void add_upgrades(struct plan *p) {
    const struct cost_machine *now = &p->machine[0];
    struct cost_machine *m = &p->machine[p->n_machines];
    char why[8];
    *m = *now;
    if (now->n_devices && now->n_devices < POLICY_DEVICES && now->n_domains < COST_DOMAINS) {
        memmove(&m->domain[now->n_devices + 2], &m->domain[now->n_devices + 1],
                (size_t)(now->n_domains - now->n_devices - 1) * sizeof *m->domain);
        m->domain[now->n_devices + 1] = m->domain[1];
        m->n_devices++, m->n_domains++;
        p->upgrade_name[p->n_machines++] = "one card more";
    } else if (!now->n_devices &&
               datasheet_machine(m,
                                 &(struct machine_datasheet){
                                     .channels = 1, .ddr = 4800, .cores = 1, .isa = "avx2", .card = "RTX 5090"},
                                 why, sizeof why)) {
        struct cost_domain card = m->domain[1];
        *m = *now;
        memmove(&m->domain[2], &m->domain[1], (size_t)(now->n_domains - 1) * sizeof *m->domain);
        m->domain[1] = card, m->n_devices = 1, m->n_domains++;
        if (!(m->hand_off_s > 0)) m->hand_off_s = COST_HAND_OFF_S;
        p->upgrade_name[p->n_machines++] = "a card, an RTX 5090";
    }
    if (now->disk_share > 0 || (p->batch[0].paged_query >= 0 && p->batch[0].search.bound == SEARCH_HOST_MEMORY)) {
        m = &p->machine[p->n_machines];
        *m = *now;
        m->domain[0].memory *= 2, m->spread_bw_share = 0;
        p->upgrade_name[p->n_machines++] = "twice the memory";
    }
    m = &p->machine[p->n_machines];
    *m = *now;
    m->dram_bw *= 1.5;
    for (int k = 0; k < COST_KINDS; k++)
        for (int i = 0; i < m->domain[0].bw[k].n; i++) m->domain[0].bw[k].value[i] *= 1.5f;
    p->upgrade_name[p->n_machines++] = "memory half as fast again";
    if (!now->n_devices) return;
    m = &p->machine[p->n_machines];
    *m = *now;
    for (int i = 1; i <= m->n_devices; i++)
        m->domain[i].link[COST_H2D].rate *= 2, m->domain[i].link[COST_D2H].rate *= 2;
    p->upgrade_name[p->n_machines++] = "links twice as fast";
    m = &p->machine[p->n_machines];
    *m = *now;
    if (p->choice[0].n_resident_layers == p->choice[0].model.layers) return;
    for (int i = 1; i <= m->n_devices; i++) m->domain[i].memory *= 2;
    p->upgrade_name[p->n_machines++] = "cards with twice the memory";
}

/* Adds the query of decode on the machine without placement by NUMA node. */
static int add_spread_query(struct plan *p, struct error *e) {
    struct policy_decode_out d;
    struct cost_machine *m = &p->machine[SPREAD];
    p->spread_query = -1;
    if (!places_weights(&p->machine[0], p->runs.w)) return 0;
    *m = p->machine[0];
    m->spread_bw_share = numa_cost_reach(m, &p->choice[0].model);
    int rc =
        choice_open(&p->choice[SPREAD], m, p->runs.w,
                    &(struct plan_options){.kv = p->runs.kv, .experts = p->runs.experts, .usage = p->runs.usage}, e);
    return rc ? rc : (p->spread_query = add_decode_query(p, SPREAD, 1, false, &d, e)) < 0 ? e->code : 0;
}

static int add_all_queries(struct plan *p, const struct config *c, struct error *e) {
    int most = c->max_context, rc;
    for (int i = 0; i < LENGTHS && lengths[i] <= most; i++, p->n_lengths++) {
        p->chosen_mode[i] = choose_prefill(&p->choice[0], lengths[i]);
        for (int m = PREFILL_CPU; m <= PREFILL_DSLP; m++) {
            int devices = exec_modes[m].min_devices;
            bool can =
                p->machine[0].n_devices >= devices && (m != PREFILL_BLEND || p->choice[0].policy.prefill_mask >> m & 1);
            if ((p->prefill_query[i][m] = can ? add_prefill_query(p, 0, (enum exec_mode)m, lengths[i], e) : -1) < 0 &&
                can)
                return e->code;
        }
    }
    for (int i = 0; i < BATCHES; i++) {
        struct policy_decode_out again;
        if ((p->decode_query[i] = add_decode_query(p, 0, batches[i], false, &p->decided[i], e)) < 0) return e->code;
        if ((p->beside_query[i] = add_decode_query(p, 0, batches[i], true, &again, e)) < 0) return e->code;
    }
    for (int i = 0; i < ROWS && p->max_tpot_s > 0; i++) {
        struct policy_decode_out d;
        if ((p->bound_query[i] = add_decode_query(p, 0, i + 1, false, &d, e)) < 0) return e->code;
        p->bound_batch[i] = d.batch;
    }
    if ((rc = add_spread_query(p, e)) || (rc = add_batch_queries(p, 0, e))) return rc;
    add_upgrades(p);
    for (int k = 0; k < p->n_machines; k++) {
        if (k &&
            (rc = choice_open(
                 &p->choice[k], &p->machine[k], p->runs.w,
                 &(struct plan_options){
                     .kv = p->runs.kv, .experts = p->runs.experts, .usage = p->runs.usage, .max_tpot_s = p->max_tpot_s},
                 e)))
            return rc;
        for (int i = 0; i < ASKED; i++) {
            struct policy_decode_out d;
            const int n = upgrade_lengths[i];
            if ((p->upgrade_prefill[k][i] =
                     n <= most ? add_prefill_query(p, k, choose_prefill(&p->choice[k], n), n, e) : -1) < 0 &&
                n <= most)
                return e->code;
            if ((p->upgrade_decode[k][i] = add_decode_query(p, k, upgrade_batches[i], false, &d, e)) < 0)
                return e->code;
            p->upgrade_batch[k][i] = d.batch;
        }
        if (k && (rc = add_batch_queries(p, k, e))) return rc;
    }
    return 0;
}

/* --- Output ----------------------------------------------------------------------------------- */

/* Writes the busiest resource, as an identifier, and its share of the time. */
static void json_limit(struct buf *b, const struct virtual_used *u) {
    const struct {
        const char *name;
        double seconds;
    } all[] = {{"host memory", u->cpu.memory_s},           {"processor", u->cpu.arithmetic_s},
               {"card memory", u->gpu.memory_s},           {"card", u->gpu.arithmetic_s},
               {"link", fmax(u->gpu.h2d_s, u->gpu.d2h_s)}, {"disk", u->cpu.disk_s + u->gpu.disk_s}};
    int best = 0;
    for (int i = 1; i < 6; i++)
        if (all[i].seconds > all[best].seconds) best = i;
    buf_fmt(b, "\"limit\":\"%s\",\"busy\":%.2f", all[best].name,
            u->seconds > 0 ? fmin(1, all[best].seconds / u->seconds) : 0);
}
static void json_seconds(struct buf *b, const struct plan_query *q) {
    if (q->is_infeasible || !isfinite(q->seconds)) buf_str(b, "null");
    else buf_fmt(b, "%.4g", q->seconds);
}
/* Milliseconds per token of each of `sessions` sessions, of which a batch takes `batch`. */
static double tpot_ms(const struct plan_query *q, int sessions, int batch) {
    return q->seconds * 1e3 * sessions / batch;
}

/* Replaces chosen modes that do not fit by the fastest one that does, as the engine does. */
static void replace_infeasible(struct plan *p) {
    for (int i = 0; i < p->n_lengths; i++) {
        const bool refused = p->runs.query[p->prefill_query[i][p->chosen_mode[i]]].is_infeasible;
        for (int m = PREFILL_CPU; m <= PREFILL_DSLP && refused; m++)
            if (p->prefill_query[i][m] >= 0 && p->runs.query[p->prefill_query[i][m]].seconds <
                                                   p->runs.query[p->prefill_query[i][p->chosen_mode[i]]].seconds)
                p->chosen_mode[i] = (enum exec_mode)m;
    }
    if (p->n_lengths)
        p->batch[0].mode = p->chosen_mode[0], p->batch[0].prefill_query = p->prefill_query[0][p->chosen_mode[0]];
}

static void json_prefill(struct buf *b, const struct plan *p) {
    buf_str(b, ",\"prefill\":[");
    for (int i = 0; i < p->n_lengths; i++) {
        buf_fmt(b, "%s{\"tokens\":%d,\"chosen\":\"%s\",\"modes\":{", i ? "," : "", lengths[i],
                exec_mode_name(p->chosen_mode[i]));
        const char *sep = "";
        for (int m = PREFILL_CPU; m <= PREFILL_DSLP; m++) {
            if (p->prefill_query[i][m] < 0) continue;
            buf_fmt(b, "%s\"%s\":", sep, exec_mode_name((enum exec_mode)m));
            json_seconds(b, &p->runs.query[p->prefill_query[i][m]]);
            sep = ",";
        }
        buf_str(b, "},");
        json_limit(b, &p->runs.query[p->prefill_query[i][p->chosen_mode[i]]].used);
        buf_str(b, "}");
    }
    buf_str(b, "]");
}

/* How fast one session decodes with weights placed by NUMA node, and without. */
static void json_nodes(struct buf *b, const struct plan *p) {
    const struct cost_machine *m = &p->machine[0];
    const bool is_placed = p->spread_query >= 0;
    const double placed_s = p->runs.query[p->decode_query[0]].seconds;
    if (m->n_nodes < 2) return;
    buf_fmt(b, ",\"nodes\":{\"n\":%d,\"placed\":%s,\"reach\":%.3g", m->n_nodes, is_placed ? "true" : "false",
            is_placed ? p->machine[SPREAD].spread_bw_share : m->spread_bw_share);
    if (is_placed)
        buf_fmt(b, ",\"tokens_per_s\":%.4g,\"unplaced_tokens_per_s\":%.4g", 1 / placed_s,
                1 / p->runs.query[p->spread_query].seconds);
    buf_str(b, "}");
}

static void json_decode(struct buf *b, const struct plan *p) {
    buf_str(b, ",\"decode\":[");
    for (int i = 0; i < BATCHES; i++) {
        const struct plan_query *q = &p->runs.query[p->decode_query[i]], *beside = &p->runs.query[p->beside_query[i]];
        int batch = p->decided[i].batch;
        double t = tpot_ms(q, batches[i], batch), with = tpot_ms(beside, batches[i], batch);
        if (!p->machine[0].n_devices) with = 2 * t; /* a prefill on the CPU gets half of the time */
        buf_fmt(b,
                "%s{\"sessions\":%d,\"mode\":\"%s\",\"tpot_ms\":%.4g,\"tokens_per_s\":%.4g,\"tpot_beside_prefill_ms\":%"
                ".4g,",
                i ? "," : "", batches[i], exec_mode_name(p->decided[i].mode), t, 1e3 * batches[i] / t, with);
        json_limit(b, &q->used);
        buf_str(b, "}");
    }
    buf_str(b, "]");
}

/* How many sessions decode at once within the bound; if none, one does. */
static void json_max_tpot(struct buf *b, const struct plan *p) {
    double ms = 0, next;
    int n = 0;
    if (!(p->max_tpot_s > 0)) return;
    while (n < ROWS && (next = tpot_ms(&p->runs.query[p->bound_query[n]], n + 1, p->bound_batch[n]),
                        !n || next <= p->max_tpot_s * 1e3))
        ms = next, n++;
    buf_fmt(b, ",\"max_tpot\":{\"bound_ms\":%.4g,\"met\":%s,\"sessions\":%d,\"tpot_ms\":%.4g,\"tokens_per_s\":%.4g}",
            p->max_tpot_s * 1e3, ms <= p->max_tpot_s * 1e3 ? "true" : "false", n, ms, 1e3 * n / ms);
}

static bool is_paged(const struct plan *p, const struct batch *b) {
    return b->paged_query >= 0 && !p->runs.query[b->paged_query].is_infeasible;
}
/* Answer tokens per second: all prompts at once in paged batches with the policy that the search found; otherwise
 * prompts one after the other, then their answers together. */
static double batch_rate(const struct plan *p, const struct batch *b) {
    const struct plan_query *q = &p->runs.query[is_paged(p, b) ? b->paged_query : b->decode_query];
    const double n = b->search.policy.n_rows;
    if (is_paged(p, b)) return n * ANSWER / (q->prefill_s + ANSWER * q->seconds);
    return PROMPTS * ANSWER /
           (PROMPTS * p->runs.query[b->prefill_query].seconds +
            ANSWER * q->seconds * PROMPTS / b->decode_decision.batch);
}

static void json_paged_batch(struct buf *b, const struct plan *p) {
    const struct batch *batch = &p->batch[0];
    const struct plan_query *q = &p->runs.query[batch->paged_query];
    const struct search_policy *s = &batch->search.policy;
    buf_fmt(b,
            ",\"batch\":{\"tokens_per_s\":%.4g,\"expected_tokens_per_s\":%.4g,\"prompt\":%d,\"answer\":%d,\"step_s\":%."
            "4g,\"read_s\":%.4g,",
            batch_rate(p, batch), batch->search.cost.tokens_per_s, lengths[0], ANSWER, q->seconds, q->prefill_s);
    buf_fmt(b,
            "\"policy\":{\"prompts\":%d,\"in_a_step\":%d,\"micro_batch\":%d,\"read\":\"paged\",\"decode\":\"paged\","
            "\"attention\":\"processor\",\"experts\":"
            "\"cards\",\"cards\":%d,",
            s->n_rows, s->n_rows, s->micro_rows, s->n_devices);
    buf_fmt(b, "\"weights_on_cards\":%.3g,\"kv_on_cards\":0,\"longest\":\"%s\",\"no_more\":\"%s\",\"tried\":%d},",
            s->weight_share, search_limit_name(batch->search.cost.limit), search_bound_name(batch->search.bound),
            batch->search.n_tried);
    json_limit(b, &q->used);
    buf_str(b, "}");
}

static void json_batch(struct buf *b, const struct plan *p) {
    const struct batch *batch = &p->batch[0];
    if (is_paged(p, batch)) return json_paged_batch(b, p);
    bool cards = batch->decode_decision.mode != DECODE_CPU;
    buf_fmt(b,
            ",\"batch\":{\"tokens_per_s\":%.4g,\"prompt\":%d,\"answer\":%d,\"policy\":{\"prompts\":%d,\"in_a_step\":%d,"
            "\"read\":\"%s\",\"decode\":\"%s\",",
            batch_rate(p, batch), lengths[0], ANSWER, PROMPTS, batch->decode_decision.batch,
            exec_mode_name(batch->mode), exec_mode_name(batch->decode_decision.mode));
    buf_fmt(b, "\"attention\":\"%s\",\"experts\":\"processor\"},", cards ? "cards" : "processor");
    json_limit(b, &p->runs.query[batch->decode_query].used);
    buf_str(b, "}");
}

static void json_upgrades(struct buf *b, const struct plan *p) {
    buf_str(b, ",\"more\":[");
    for (int k = 1; k < p->n_machines; k++) {
        buf_fmt(b, "%s{\"what\":\"%s\",\"prefill\":[", k > 1 ? "," : "", p->upgrade_name[k]);
        for (int i = 0; i < ASKED; i++) {
            if (p->upgrade_prefill[k][i] < 0) continue;
            buf_fmt(b, "%s{\"tokens\":%d,\"seconds\":", i ? "," : "", upgrade_lengths[i]);
            json_seconds(b, &p->runs.query[p->upgrade_prefill[k][i]]);
            buf_str(b, ",\"now\":");
            json_seconds(b, &p->runs.query[p->upgrade_prefill[0][i]]);
            buf_str(b, "}");
        }
        buf_str(b, "],\"decode\":[");
        for (int i = 0; i < ASKED; i++)
            buf_fmt(b, "%s{\"sessions\":%d,\"tpot_ms\":%.4g,\"now\":%.4g}", i ? "," : "", upgrade_batches[i],
                    tpot_ms(&p->runs.query[p->upgrade_decode[k][i]], upgrade_batches[i], p->upgrade_batch[k][i]),
                    tpot_ms(&p->runs.query[p->upgrade_decode[0][i]], upgrade_batches[i], p->upgrade_batch[0][i]));
        buf_fmt(b, "],\"batch\":{\"tokens_per_s\":%.4g,\"now\":%.4g}}", batch_rate(p, &p->batch[k]),
                batch_rate(p, &p->batch[0]));
    }
    buf_str(b, "]");
}

static void json_fits(struct buf *b, const struct cost_machine *cost, const struct weights *w, enum dtype kv,
                      const struct machine_choice *c) {
    double bytes = weight_bytes(w), have = cost->domain[0].memory, row = (double)kv_token_bytes(&w->config, kv);
    bool fits = fits_in_memory(cost, w);
    buf_str(b, "\"fits\":{\"host\":{\"name\":");
    json_quote(b, cost->domain[0].name, strlen(cost->domain[0].name));
    buf_fmt(b,
            ",\"bytes\":%.0f,\"have\":%.0f,\"fits\":%s},\"parameters\":%.4g,\"token_bytes\":%zu,"
            "\"routed_bytes\":%zu,\"routed_token_bytes\":"
            "%.0f,\"kv_token_bytes\":%.0f",
            bytes, have, fits ? "true" : "false", parameter_count(&w->config), weights_token_bytes(w), w->bytes_routed,
            w->config.n_experts ? (double)w->bytes_routed / w->config.n_experts * w->config.topk : 0, row);
    if (have > bytes) buf_fmt(b, ",\"context_tokens\":%.0f", floor((have - bytes) / row));
    if (cost->disk_share > 0)
        buf_fmt(b, ",\"disk\":{\"bytes_per_s\":%.4g,\"experts_in_memory\":%.3g,\"chosen_in_memory\":%.3g}",
                cost->disk_bw, 1 - cost->disk_share, 1 - cost->disk_share_few_rows);
    buf_str(b, ",\"cards\":[");
    for (int i = 1; i <= cost->n_devices; i++) {
        buf_fmt(b, "%s{\"name\":", i > 1 ? "," : "");
        json_quote(b, cost->domain[i].name, strlen(cost->domain[i].name));
        buf_fmt(b, ",\"bytes\":%.0f}", cost->domain[i].memory);
    }
    buf_fmt(b, "],\"layers\":%d,\"resident_layers\":%d,\"expert_layers\":%d,\"resident\":", w->config.n_layers,
            c->n_resident_layers, c->policy.n_expert_layers);
    json_quote(b, c->why, strlen(c->why));
    buf_str(b, "}");
}

int plan_write(const struct cost_machine *cost, const struct weights *w, const char *title,
               const struct plan_options *o, struct buf *out, struct error *e) {
    struct plan *p = mem_calloc(1, sizeof *p);
    int rc = 0;
    if (!p || !(p->machine = mem_calloc(MACHINES, sizeof *p->machine)))
        rc = error_set(e, ERR_MEMORY, "no memory for a plan");
    if (rc) goto out;
    p->runs = (struct plan_queries){.w = w, .kv = o->kv, .experts = o->experts, .usage = o->usage};
    p->max_tpot_s = o->max_tpot_s;
    p->machine[p->n_machines++] = *cost;
    if ((rc = choice_open(&p->choice[0], &p->machine[0], w, o, e))) goto out;
    bool fits = fits_in_memory(cost, w) || p->machine[0].disk_share > 0;
    if (fits) rc = add_all_queries(p, &w->config, e);
    if (!rc && fits) rc = plan_query_run(&p->runs, o->progress, o->ctx, e);
    if (rc) goto out;
    replace_infeasible(p);
    buf_str(out, "{\"basis\":\"modelled, not measured\",\"machine\":");
    json_quote(out, cost->name, strlen(cost->name));
    buf_str(out, ",\"model\":");
    json_quote(out, title, strlen(title));
    buf_fmt(out, ",\"error\":{\"decode\":%g,\"prefill\":%g", PLAN_DECODE_ERROR / 100.0, PLAN_PREFILL_ERROR / 100.0);
    if (cost->n_devices) buf_fmt(out, ",\"card\":%g", PLAN_CARD_SLOWER);
    buf_str(out, "},");
    json_fits(out, &p->machine[0], w, o->kv, &p->choice[0]);
    json_prefill(out, p);
    if (fits) json_nodes(out, p), json_decode(out, p), json_max_tpot(out, p), json_batch(out, p), json_upgrades(out, p);
    else buf_str(out, ",\"decode\":[],\"more\":[]");
    buf_str(out, "}");
    if (out->failed) rc = error_set(e, ERR_MEMORY, "no memory for a plan");
out:
    if (p) plan_query_free(&p->runs), mem_free(p->machine);
    mem_free(p);
    return rc;
}
