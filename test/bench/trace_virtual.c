/* Chats and documents on one machine, by the cost model and the policy: the time to first token and between tokens.
 * Served as the engine does (prompts first come, first served, beside one decode batch of all answering sessions), one
 * request at a time, and by what other servers do: chunked prefill (each decode batch takes a chunk of the first prompt
 * along; its experts run on the CPU or are streamed to the cards, whichever is sooner) and layered prefill (arXiv
 * 2510.08055: each decode batch takes some layers of the whole prompt along, so that weights are read once).
 * DeepSeek-V3 on paper A's machine with two cards. No clock and no device: batches and prompts take the time that
 * placement/cost predicts, choices are placement/policy's. usage: trace_virtual [check | table] */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/placement/policy.h"
#include "virtual_v3.h"

/* GROUP_TOKENS: a group of layers does the work that all layers do for so many tokens */
enum { REQUESTS = 400, MOST = 16, GROUP_TOKENS = 512 };
enum how { TOGETHER, ONE_AT_A_TIME, CHUNKED_256, CHUNKED_8192, LAYERED, HOWS };
static const char *const names[] = {"beside each other", "one at a time", "chunked, 256", "chunked, 8,192", "layered"};

static struct cost_machine cost;
static struct cost_model shape;

static struct request {
    double at, first, end;
    int prompt, answer, left; /* left: tokens of the answer */
    bool document;
} all[REQUESTS];

static double uniform(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}
/* Four of five are chats. Arrivals are a Poisson process. */
static void draw(double every) {
    double t = 0;
    for (int i = 0; i < REQUESTS; i++) {
        bool document = uniform() < 0.2;
        t -= every * log(uniform());
        all[i] = (struct request){.at = t,
                                  .document = document,
                                  .prompt = document ? 8192 + (int)(uniform() * 24576) : 200 + (int)(uniform() * 1000)};
        all[i].left = all[i].answer = document ? 200 + (int)(uniform() * 300) : 100 + (int)(uniform() * 400);
    }
}

/* --- Times ------------------------------------------------------------------------------------ */

static struct policy_machine machine(void) {
    struct policy_machine m = {.cost = &cost,
                               .model = &shape,
                               .n_devices = 2,
                               .n_device_layers = shape.layers,
                               .prefill_mask = 1 << PREFILL_BLEND | 1 << PREFILL_SLP | 1 << PREFILL_DSLP,
                               .decode_mask = 1 << DECODE_HYBRID | 1 << DECODE_DUAL};
    m.free[0] = m.free[1] = 31e9;
    m.decode_uses[0] = true;
    return m;
}
static double keys_of(struct request *const *batch, int n) {
    double keys = 0;
    for (int i = 0; i < n; i++) keys += (batch[i]->prompt + batch[i]->answer - batch[i]->left) / (double)n;
    return keys;
}
/* A decode batch of the first of these sessions, split as the policy chooses; *took: how many. */
static double step(struct request *const *batch, int n, bool beside, int *took) {
    struct policy_machine m = machine();
    struct policy_decode_in in = {
        .n_decoding = n, .max_rows = MOST, .keys = keys_of(batch, n), .context_tokens = 4096, .beside_prefill = beside};
    struct policy_decode_out out;
    policy_decode_batch(&m, &in, &out);
    *took = out.batch;
    return out.seconds[out.mode];
}
static double prefill(const struct request *r, int decoding, double keys, double since, enum exec_mode *mode) {
    struct policy_machine m = machine();
    struct policy_prefill_in in = {
        .n_new = r->prompt, .n_decoding = decoding, .keys = keys, .since_decode_s = since, .dense_resident = true};
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    *mode = out.mode;
    return out.seconds[out.mode];
}

/* A decode batch with n tokens of a prompt included: attention on the card, experts on the CPU. */
static double mixed(int n, int pos, int rows, double keys) {
    double half = cost_attention_block(&cost, 1, &shape, cost_prefill_rows(n, pos)) +
                  (rows ? cost_attention_block(&cost, 1, &shape, cost_decode_rows(rows, keys)) : 0);
    double sum = 2 * cost.hand_off_s + 2 * cost_transfer(&cost, 1, COST_H2D, (n + rows) * shape.row_bytes),
           experts = cost_routed(&cost, 0, &shape, n + rows);
    double shared = cost_shared(&cost, 1, &shape, n + rows), moe = shape.layers - shape.dense_layers;
    return shape.layers * half + moe * (sum + (experts > shared ? experts : shared)) +
           cost_head(&cost, 1, &shape, rows + 1);
}

/* A decode batch, then n tokens of a prompt with streamed weights on all cards. */
static double streamed(int n, int pos, struct request *const *batch, int rows) {
    int took;
    const struct cost_prefill p = {
        .mode = PREFILL_DSLP, .n = n, .pos = pos, .ranks = cost.n_devices, .n_dense_layers = shape.layers};
    return cost_prefill(&cost, &shape, &p) + (rows ? step(batch, rows, false, &took) : 0);
}

/* --- The ways --------------------------------------------------------------------------------- */

struct server {
    double now, last_activity_s; /* last: time of a session's last token; < 0: never */
    struct request *answering[REQUESTS];
    int n, next; /* answering; the first prompt that has not begun */
};
/* One token for the first few; sessions that continue move to the end. */
static void answered(struct server *s, int took) {
    struct request *again[MOST];
    int k = 0;
    s->last_activity_s = s->now;
    for (int i = 0; i < took; i++) {
        if (--s->answering[i]->left > 0) again[k++] = s->answering[i];
        else s->answering[i]->end = s->now;
    }
    memmove(s->answering, s->answering + took, (size_t)(s->n - took) * sizeof *s->answering);
    memcpy(s->answering + s->n - took, again, (size_t)k * sizeof *again);
    s->n += k - took;
}
static void begins_to_answer(struct server *s, struct request *r) {
    r->first = s->now;
    if (--r->left > 0) s->answering[s->n++] = r;
    else r->end = s->now;
}

static void together(struct server *s) {
    struct request *reading = NULL;
    enum exec_mode mode = PREFILL_CPU;
    double left = 0; /* remaining seconds of the prompt, without competition */
    for (int took; s->next < REQUESTS || reading || s->n;) {
        if (!reading && s->next < REQUESTS && all[s->next].at <= s->now) {
            reading = &all[s->next++];
            left = prefill(reading, s->n, s->n ? keys_of(s->answering, s->n) : 0,
                           s->last_activity_s < 0 ? -1 : s->now - s->last_activity_s, &mode);
        }
        if (!reading && !s->n) {
            s->now = all[s->next].at;
            continue;
        }
        bool streams = reading && (mode == PREFILL_SLP || mode == PREFILL_DSLP), shares = reading && !streams;
        if (s->n) { /* a prompt that needs the CPU gets half of its time */
            double t = step(s->answering, s->n, streams, &took), given = !shares ? 0 : t < left ? t : left;
            s->now += t + given;
            left -= shares ? given : t;
            answered(s, took);
        } else {
            s->now += left;
            left = 0;
        }
        if (reading && left <= 0) begins_to_answer(s, reading), reading = NULL;
    }
}

static void one_at_a_time(struct server *s) {
    enum exec_mode mode;
    int took;
    for (; s->next < REQUESTS; s->next++) {
        struct request *r = &all[s->next];
        if (r->at > s->now) s->now = r->at;
        s->now += prefill(r, 0, 0, -1, &mode); /* no other session answers: all cards */
        begins_to_answer(s, r);
        while (s->n) s->now += step(s->answering, 1, false, &took), answered(s, 1);
    }
}

static void chunked(struct server *s, int chunk) {
    struct request *reading = NULL;
    int done = 0, took;
    while (s->next < REQUESTS || reading || s->n) {
        if (!reading && s->next < REQUESTS && all[s->next].at <= s->now) reading = &all[s->next++], done = 0;
        if (!reading && !s->n) {
            s->now = all[s->next].at;
            continue;
        }
        if (!reading) {
            s->now += step(s->answering, s->n, false, &took);
            answered(s, took);
            continue;
        }
        int n = reading->prompt - done < chunk ? reading->prompt - done : chunk,
            rows = s->n < POLICY_BATCH ? s->n : POLICY_BATCH;
        s->now +=
            fmin(mixed(n, done, rows, rows ? keys_of(s->answering, rows) : 0), streamed(n, done, s->answering, rows));
        done += n;
        if (rows) answered(s, rows);
        if (done == reading->prompt) begins_to_answer(s, reading), reading = NULL;
    }
}

static void chunked_256(struct server *s) { chunked(s, 256); }
static void chunked_8192(struct server *s) { chunked(s, 8192); }

static void layered(struct server *s) {
    struct request *reading = NULL;
    double part = 0; /* seconds of a group of layers */
    int groups = 0, took;
    while (s->next < REQUESTS || reading || s->n) {
        if (!reading && s->next < REQUESTS && all[s->next].at <= s->now) {
            enum exec_mode mode;
            reading = &all[s->next++];
            groups = (reading->prompt + GROUP_TOKENS - 1) / GROUP_TOKENS;
            if (groups > shape.layers) groups = shape.layers;
            part = prefill(reading, 0, 0, -1, &mode) / groups;
        }
        if (!reading && !s->n) {
            s->now = all[s->next].at;
            continue;
        }
        if (reading) s->now += part, groups--;
        if (s->n) s->now += step(s->answering, s->n, false, &took), answered(s, took);
        if (reading && !groups) begins_to_answer(s, reading), reading = NULL;
    }
}

/* Latencies */

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
struct felt {
    double ttft[2][2], tpot[2][2], took; /* [chats, documents][p50, p99] */
};
static struct felt run(enum how how) {
    static void (*const ways[])(struct server *) = {together, one_at_a_time, chunked_256, chunked_8192, layered};
    struct felt f = {0};
    for (int i = 0; i < REQUESTS; i++) all[i].left = all[i].answer, all[i].first = all[i].end = 0;
    struct server *s = calloc(1, sizeof *s);
    s->last_activity_s = -1;
    ways[how](s);
    f.took = s->now;
    free(s);
    for (int kind = 0; kind < 2; kind++) {
        double ttft[REQUESTS], tpot[REQUESTS];
        int n = 0;
        for (int i = 0; i < REQUESTS; i++)
            if (all[i].document == kind)
                ttft[n] = all[i].first - all[i].at, tpot[n++] = (all[i].end - all[i].first) / (all[i].answer - 1);
        qsort(ttft, (size_t)n, sizeof *ttft, by_value);
        qsort(tpot, (size_t)n, sizeof *tpot, by_value);
        for (int p = 0; p < 2; p++)
            f.ttft[kind][p] = ttft[p ? n * 99 / 100 : n / 2], f.tpot[kind][p] = tpot[p ? n * 99 / 100 : n / 2];
    }
    return f;
}

int main(int argc, char **argv) {
    bool check = argc > 1 && !strcmp(argv[1], "check");
    static const double every[] = {40, 20, 12};
    int failed = 0;
    build(61, 3);
    cost_preset(&cost, "paper-a-2");
    cost_model_of(&shape, &v3.w.config, DT_E4M3, DT_E4M3, DT_BF16);
    if (!check)
        printf("| one every | served | chats: TTFT p50 / p99 | TPOT p50 / p99 | documents: TTFT p50 / p99 | TPOT p50 / "
               "p99 |\n|---|---|---|---|---|---|\n");
    for (int k = 0; k < 3; k++) {
        struct felt f[HOWS];
        draw(every[k]);
        for (int how = 0; how < HOWS; how++) {
            f[how] = run((enum how)how);
            if (check) continue;
            printf("| %.0f s | %s |", every[k], names[how]);
            for (int kind = 0; kind < 2; kind++)
                printf(" %.1f / %.1f s | %.0f / %.0f ms |", f[how].ttft[kind][0], f[how].ttft[kind][1],
                       f[how].tpot[kind][0] * 1e3, f[how].tpot[kind][1] * 1e3);
            printf("\n");
        }
        bool ok = true; /* against each other way: tokens come sooner, or the first one does */
        for (int how = 0; how < HOWS; how++)
            ok = ok && (how == TOGETHER || f[TOGETHER].tpot[0][1] < f[how].tpot[0][1] ||
                        f[TOGETHER].ttft[0][1] < f[how].ttft[0][1]);
        if (!ok) failed++, printf("FAIL: one every %.0f s: another way is better for chats in both\n", every[k]);
    }
    shape_only_close(&v3);
    return failed != 0;
}
