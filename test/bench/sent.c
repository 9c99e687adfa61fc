/* Experts that a card lacks, in virtual time: the CPU computes them, or the link sends them and the card computes
 * them, or both share them. Shapes, cards and links are described, routing is made (routing.h), and costs, splits and
 * scores are the engine's. No byte is moved.
 *
 *   bench_sent           decoding: the tables of expert-cache.md
 *   bench_sent prompts   the same machines' prefills
 *   bench_sent check     some rows of the first, and asserts what expert-cache.md says of them
 *
 * Decode, for each layer of MoE: attention and the shared expert on the card, then the routed experts of the rows:
 *
 *     CPU     the most used experts stay on the card, the CPU computes the others (--expert-cache pinned)
 *     sent    the others are sent and computed on the card, and stay in place of those with the lowest scores
 *     split   as CPU, but the link sends some of the others
 *     moving  as split; what is sent stays, and an idle link sends the best missing expert
 *
 * "Foreseen" is a bound for sent: all missing experts are known in time, so that the link never waits for a router.
 * While the link sends, the CPU has the rest of host memory's bandwidth. Prompts: the engine's own prefills in virtual
 * time; a stream-loaded prefill is "sent". */
#include <stdio.h>

#include "engine/model/known.h"
#include "engine/placement/calibrate.h"
#include "engine/plan/virtual.h"
#include "engine/weights/shape_only.h"
#include "test/bench/routing.h"
#include "test/bench/splits.h"

enum { TRACED = 6, PROFILE = 300, WARM = 200, STEPS = 100, KEYS = 1024, SESSIONS_APART = 37 };
enum system { ON_CPU, SENT, SPLIT, MOVING, SYSTEMS };

struct bench {
    struct cost_machine machine;
    struct cost_model q;
    struct cost_table table[2];
    struct routing trace;
    int slots; /* experts of a layer that the card has room for */
    double send_s, cpu_share;
};
struct run {
    const struct bench *b;
    enum system system;
    uint8_t *here;    /* [TRACED, experts] */
    double now, link; /* seconds; when the link is free */
    struct score score;
    void *score_mem;
    double uses, hits;
};
static struct split_plan plan, other;

static void fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    exit(1);
}

/* --- One layer -------------------------------------------------------------------------------- */

struct chosen {
    int n;
    struct split_expert expert[512];
    int16_t id[512];
    int32_t rows[512], ids[64 * 16];
};
static void choose(const struct run *x, int layer, int token, int rows, struct chosen *c) {
    const struct routing *r = &x->b->trace;
    memset(c->rows, 0, sizeof c->rows);
    for (int i = 0; i < rows; i++)
        memcpy(c->ids + i * r->topk, r->ids + routing_at(r, (token + i * SESSIONS_APART) % r->n, layer),
               (size_t)r->topk * sizeof *c->ids);
    for (int i = 0; i < rows * r->topk; i++) c->rows[c->ids[i]]++;
    c->n = 0;
    for (int e = 0; e < r->experts; e++) {
        if (!c->rows[e]) continue;
        c->id[c->n] = (int16_t)e;
        c->expert[c->n++] = (struct split_expert){c->rows[e], 1u | (x->here[layer * r->experts + e] ? 2u : 0)};
    }
}
static int worst_of(const struct run *x, int layer, const int32_t *needed) {
    int at = -1;
    for (int e = 0; e < x->b->trace.experts; e++)
        if (x->here[layer * x->b->trace.experts + e] && !(needed && needed[e]) &&
            (at < 0 || score_of(&x->score, layer, e) < score_of(&x->score, layer, at)))
            at = e;
    return at;
}
static void replace(struct run *x, int layer, int out, int in) {
    if (out < 0) return;
    x->here[layer * x->b->trace.experts + out] = 0;
    x->here[layer * x->b->trace.experts + in] = 1;
}

/* Returns the seconds of a layer's routed experts; plan says where they were computed. */
static double split_experts(const struct run *x, const struct chosen *c, int rows) {
    const struct bench *b = x->b;
    const double busy = x->link > x->now ? x->link - x->now : 0, shared = cost_shared(&b->machine, 1, &b->q, rows);
    struct split_domain d[2] = {{.class = COST_CPU,
                                 .expert_cost = &b->table[0],
                                 .start_s = b->machine.domain[0].latency[COST_FFN] + 2 * b->machine.hand_off_s},
                                {.class = COST_GPU,
                                 .expert_cost = &b->table[1],
                                 .busy_s = shared,
                                 .link_busy_s = busy + b->machine.hand_off_s, /* the host reads the choices */
                                 .transfer_s = b->send_s,
                                 .max_transfers = SPLIT_EXPERTS}};
    const struct split_in in = {.domain = d, .expert = c->expert, .n_domains = 2, .n = c->n};
    if (x->system == SENT) {
        split_run(&split_stream, &in, &plan);
        return fmax(plan.end_s, shared);
    }
    if (busy > 0) d[0].scale = 1 / b->cpu_share;
    split_run(&split_host, &in, &plan);
    if (x->system == ON_CPU) return fmax(plan.end_s, shared);
    d[0].scale = 1 / b->cpu_share;
    split_run(split_find("auto"), &in, &other);
    if (other.end_s < plan.end_s) plan = other;
    return fmax(plan.end_s, shared);
}

/* Sends the best missing expert over an idle link, as expert_pool_layer.c. */
static void use_idle_link(struct run *x, int layer) {
    const int experts = x->b->trace.experts, worst = worst_of(x, layer, NULL);
    int best = -1;
    if (x->link > x->now || worst < 0) return;
    for (int e = 0; e < experts; e++)
        if (!x->here[layer * experts + e] &&
            (best < 0 || score_of(&x->score, layer, e) > score_of(&x->score, layer, best)))
            best = e;
    if (best < 0 || score_of(&x->score, layer, best) <= score_of(&x->score, layer, worst)) return;
    replace(x, layer, worst, best);
    x->link = x->now + x->b->send_s;
}

static void run_layer(struct run *x, int layer, int token, int rows) {
    static struct chosen c;
    const struct routing *r = &x->b->trace;
    choose(x, layer, token, rows, &c);
    const double took = split_experts(x, &c, rows);
    for (int i = 0; i < c.n; i++) x->uses++, x->hits += c.expert[i].resident >> 1;
    for (int k = plan.transfer_begin[1]; k < plan.transfer_begin[2]; k++) {
        x->link = fmax(x->link, x->now) + x->b->send_s;
        if (x->system != SPLIT) replace(x, layer, worst_of(x, layer, c.rows), c.id[plan.transfer[k]]);
    }
    x->now += took;
    const size_t at = 2 * routing_at(r, token % r->n, layer); /* the first session's scores stand for all */
    score_update(&x->score, layer, &(struct score_rows){rows, c.ids, rows > 1 ? NULL : r->near + at, r->chance + at});
    if (x->system == MOVING) use_idle_link(x, layer);
}

/* --- A token ---------------------------------------------------------------------------------- */

static double fixed_seconds(const struct bench *b, int rows) { /* of a layer, before its routed experts */
    return cost_attention_block(&b->machine, 1, &b->q, cost_decode_rows(rows, KEYS));
}
static double rest_seconds(const struct bench *b, int rows) { /* dense layers and the head */
    const struct cost_model *q = &b->q;
    const struct cost_item ffn = {COST_FFN, q->dense, rows, q->ffn_bytes, rows * q->ffn_flops, 1};
    return q->dense_layers * (fixed_seconds(b, rows) + cost_time(&b->machine, 1, &ffn)) +
           cost_head(&b->machine, 1, q, rows);
}
static void pin_most_used(struct run *x) {
    const struct routing *r = &x->b->trace;
    for (int l = 0; l < r->layers; l++) {
        int used[512] = {0};
        for (int t = 0; t < PROFILE; t++)
            for (int k = 0; k < r->topk; k++) used[r->ids[routing_at(r, t, l) + (size_t)k]]++;
        for (int k = 0; k < x->b->slots; k++) {
            int best = 0;
            for (int e = 1; e < r->experts; e++)
                if (used[e] > used[best]) best = e;
            x->here[l * r->experts + best] = 1, used[best] = -1;
        }
    }
}
struct result {
    double seconds, foreseen_s, hits;
};
/* Seconds of a decode batch. foreseen_s: if the link sent what is missing without a pause. */
static struct result decode(const struct bench *b, enum system system, int rows) {
    const struct routing *r = &b->trace;
    struct run x = {.b = b, .system = system};
    x.here = calloc((size_t)(r->layers * r->experts), 1);
    x.score_mem = calloc(1, score_bytes(r->layers, r->experts));
    if (!x.here || !x.score_mem) abort();
    score_open(&x.score, score_find("mrs"), r->layers, r->experts, r->topk, x.score_mem);
    pin_most_used(&x);
    double began = 0;
    for (int t = PROFILE; t < PROFILE + WARM + STEPS; t++) {
        if (t == PROFILE + WARM) began = x.now, x.uses = x.hits = 0;
        for (int l = 0; l < r->layers; l++) {
            x.now += fixed_seconds(b, rows);
            run_layer(&x, l, t, rows);
        }
    }
    const int moe = b->q.layers - b->q.dense_layers;
    const double layers = (double)moe / r->layers, misses = (x.uses - x.hits) / STEPS * layers;
    struct result out = {(x.now - began) / STEPS * layers + rest_seconds(b, rows), 0, x.hits / x.uses};
    out.foreseen_s = fmax(misses * b->send_s, moe * (fixed_seconds(b, rows) + cost_shared(&b->machine, 1, &b->q, rows) +
                                                     cost_routed(&b->machine, 1, &b->q, rows))) +
                     rest_seconds(b, rows);
    free(x.here), free(x.score_mem);
    return out;
}

/* --- Machines, models and routing -------------------------------------------------------------- */

static void open_machine(struct cost_machine *m, const char *name, double link) {
    struct error e = {0};
    if (calibrate_read(m, name, &e)) fail(e.text);
    m->domain[1].link[COST_H2D].rate = m->domain[1].link[COST_D2H].rate = link * 1e9;
}
static void open_model(struct shape_only *s, struct config *c, const char *name, const char *format) {
    struct error e = {0};
    if (known_model_config(known_model_find(name), c, &e)) fail(e.text);
    if (shape_only_open_as(s, c, known_format_find(format), &e)) fail(e.text);
}
/* Usage and reuse of routers: as in the made traces of expert-cache.md; and as somebody measured Qwen3.8-Flash-Next,
 * 512 experts of which 10 are chosen: the 32 most used of half a trace have 10 % of the other half's choices, the last
 * 64 have 67 %, the last 128 81 %. */
static const struct routing_kind kinds[] = {{0.103, 0.207, 0.98, 3}, {0.02, 0.57, 0.98, 3}};
static const char *const kind_names[] = {"made", "reused"};

static void open_bench(struct bench *b, const char *machine, double link, const struct shape_only *s, int kind) {
    const struct config *c = &s->w.config;
    memset(b, 0, sizeof *b);
    open_machine(&b->machine, machine, link);
    cost_model_of(&b->q, c, weights_dense_dtype(&s->w), weights_ffn_dtype(&s->w), DT_BF16);
    const struct cost_model *q = &b->q;
    const int moe = q->layers - q->dense_layers;
    const double kv = 8192 * q->kv_row_bytes * q->layers, work = 1e9,
                 dense = q->layers * q->attn_block_bytes + moe * q->shared_bytes + q->dense_layers * q->ffn_bytes +
                         q->head_bytes,
                 room = (b->machine.domain[1].memory - dense - kv - work) / (moe * q->expert_bytes);
    b->slots = room < 0 ? 0 : room < q->n_experts ? (int)room : q->n_experts;
    for (int d = 0; d < 2; d++) cost_table_fill(&b->table[d], &b->machine, d, q, BATCH_INVARIANT_ROWS);
    b->send_s = cost_transfer(&b->machine, 1, COST_H2D, q->expert_bytes);
    b->cpu_share = cost_cpu_share(&b->machine, link * 1e9);
    routing_make(&b->trace, PROFILE + WARM + STEPS + 300, moe < TRACED ? moe : TRACED, q->n_experts, q->topk,
                 &kinds[kind], 7);
}

static const double links[] = {12, 25, 32, 55};
static const struct pair {
    const char *machine, *model, *format;
} pairs[] = {
    {"desktop-ddr5-64+rtx3060", "qwen3-30b", "q4_k_m"},      {"desktop-ddr5-96+rtx4090", "qwen3-30b", "fp8"},
    {"desktop-ddr5-96+rtx5090", "qwen3-30b", "bf16"},        {"desktop-ddr5-64+rtx3060", "qwen3-next-80b", "q4_k_m"},
    {"desktop-ddr5-64+rtx4090", "qwen3-next-80b", "q4_k_m"}, {"desktop-ddr5-64+rtx5090", "qwen3-next-80b", "q4_k_m"},
    {"desktop-ddr5-192+rtx4090", "minimax-m2", "q4_k_m"},    {"desktop-ddr5-192+rtx5090", "minimax-m2", "q4_k_m"},
    {"epyc-9004-12ch+rtx4090", "deepseek-v3", "fp8"},        {"epyc-9004-12ch+rtx5090", "deepseek-v3", "fp8"},
};

/* --- Tables ------------------------------------------------------------------------------------ */

struct gains {
    double most[SYSTEMS], least[SYSTEMS]; /* speed over the CPU's */
};
static void decode_rows(const struct pair *p, const struct shape_only *s, int rows, int kind, double link,
                        struct gains *g) {
    static struct bench b;
    struct result t[SYSTEMS];
    open_bench(&b, p->machine, link, s, kind);
    for (int k = 0; k < SYSTEMS && b.slots < b.q.n_experts; k++) {
        t[k] = decode(&b, (enum system)k, rows);
        const double gain = t[ON_CPU].seconds / t[k].seconds;
        g->most[k] = fmax(g->most[k], gain), g->least[k] = fmin(g->least[k], gain);
    }
    routing_close(&b.trace);
    if (b.slots >= b.q.n_experts) return; /* nothing is missing */
    printf("| %s | %s %s | %s | %d | %.0f | %d of %d | %.0f, %.0f, %.0f%% |", p->machine, p->model, p->format,
           kind_names[kind], rows, link, b.slots, b.q.n_experts, 100 * t[ON_CPU].hits, 100 * t[SENT].hits,
           100 * t[MOVING].hits);
    for (int k = 0; k < SYSTEMS; k++) printf(" %.1f |", 1e3 * t[k].seconds);
    printf(" %.1f |\n", 1e3 * t[SENT].foreseen_s);
}

static void prefill_rows(const struct pair *p, const struct shape_only *s, double link) {
    static const enum exec_mode modes[] = {PREFILL_CPU, PREFILL_BLEND, PREFILL_SLP};
    static const int lengths[] = {32, 128, 512, 2048, 8192};
    struct cost_machine m;
    open_machine(&m, p->machine, link);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        printf("| %s | %s %s | %.0f | %d |", p->machine, p->model, p->format, link, lengths[i]);
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
            struct virtual *v;
            struct error e = {0};
            double t;
            if (virtual_open(&v,
                             &(struct virtual_options){
                                 .cost = &m, .w = &s->w, .kv = DT_BF16, .experts = {BUDGET_AUTO, .is_pinned = true}},
                             &e))
                fail(e.text);
            if (virtual_prefill(v, modes[k], lengths[i], &t, &e)) printf(" - |");
            else printf(" %.2f |", t);
            virtual_close(&v);
            fflush(stdout);
        }
        printf("\n");
    }
}

enum table { DECODE, PROMPTS, CHECK };
static struct gains print_table(enum table what, int pair, int kind) {
    static struct config c;
    struct shape_only s = {0};
    struct gains g = {.least = {INFINITY, INFINITY, INFINITY, INFINITY}};
    open_model(&s, &c, pairs[pair].model, pairs[pair].format);
    for (size_t k = 0; k < sizeof links / sizeof *links; k++)
        if (what == PROMPTS) prefill_rows(&pairs[pair], &s, links[k]);
        else
            for (int rows = 1; rows <= (what == CHECK ? 1 : 4); rows *= 4)
                decode_rows(&pairs[pair], &s, rows, kind, links[k], &g);
    shape_only_close(&s);
    return g;
}
static int expect(bool right, const char *what) {
    if (!right) printf("FAIL: expert-cache.md says otherwise: %s\n", what);
    return !right;
}
static int check(void) {
    enum { QWEN_5090 = 2, MINIMAX_5090 = 7, DEEPSEEK_4090 = 8 };
    const struct gains even = print_table(CHECK, QWEN_5090, 0), reused = print_table(CHECK, MINIMAX_5090, 1),
                       large = print_table(CHECK, DEEPSEEK_4090, 1);
    return expect(even.most[SENT] < 1.25 && even.least[SENT] < 0.4, "sent, routers that reuse little") +
           expect(reused.most[SENT] > 2 && reused.most[MOVING] > 0.95 * reused.most[SENT],
                  "sent and moving, routers that reuse much") +
           expect(large.most[SENT] < 0.3, "sent, where hardly any expert fits") +
           expect(even.most[SPLIT] < 1.1 && reused.most[SPLIT] < 1.1 && large.most[SPLIT] < 1.1, "split") +
           expect(even.least[MOVING] > 0.97 && large.least[MOVING] > 0.95, "moving is hardly ever slower");
}

int main(int argc, char **argv) {
    const enum table what = argc < 2 ? DECODE : !strcmp(argv[1], "check") ? CHECK : PROMPTS;
    if (what == CHECK) return check();
    for (int kind = 0; kind < (what == DECODE ? 2 : 1); kind++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            const struct gains g = print_table(what, (int)i, kind);
            if (what == DECODE && g.most[SENT] > 0)
                printf("%s %s, %s: sent %.2f to %.2f, split %.2f to %.2f, moving %.2f to %.2f of the CPU's speed\n",
                       pairs[i].machine, pairs[i].model, kind_names[kind], g.least[SENT], g.most[SENT], g.least[SPLIT],
                       g.most[SPLIT], g.least[MOVING], g.most[MOVING]);
        }
    return 0;
}
