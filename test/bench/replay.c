/* Hit rates of an expert cache over routing traces, by score, compared with the optimum.
 *
 *   bench_replay [tokens]      generated traces (routing.h) that resemble paper D's three models
 *   bench_replay FILE          a file written by --trace-routing
 *   bench_replay check         the first one, short, and asserts what NOTES.md claims
 *
 * Each layer has its own cache. After a token has passed a layer, each chosen expert that missed replaces the one with
 * the lowest score if its own score is higher; a move counts only then. Belady's policy knows the future and keeps what
 * is needed soonest. The first fifth of a trace fills the cache and is not counted. Pinned: the experts that the first
 * half used most, for the second half; beside it what the first half lets expect (usage_profile_pinned_share).
 *
 * Choice: ms a token by the cost model, on desktops with three cards, of Qwen3-30B-A3B in Q4_K with the trace's numbers
 * of experts, if that part of all experts fits: whole layers, pinned experts and a pool (MRS), with the hits of the
 * second half; and what --expert-cache auto would choose by the first half. The choice is right if the other one of
 * layers and pinned is not more than 5 % faster in the second half, which is the gain that auto asks for.
 *
 * Fitted: skew, reuse (1 : 2) and the remaining noise, such that LRU at 25% has the rate that paper D prints for that
 * model (30.2, 47.7, 45.0; its figure 9), with a memory of 50 tokens. Not fitted, but printed for comparison: MRS at
 * 25% (36.2, 52.7, 52.8), and for Mixtral both at 75% (80.6, 83.3). */
#include <stdio.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/experts/usage_profile.h"
#include "engine/model/known.h"
#include "engine/placement/datasheet.h"
#include "test/bench/routing.h"

static const struct model {
    const char *name;
    int layers, experts, topk;
    double share; /* of skew and reuse together */
    double lru, mrs;
} models[] = {
    {"Mixtral-8x7B", 32, 8, 2, 0.13, 30.2, 36.2},
    {"DeepSeek-V2-Lite", 26, 64, 6, 0.31, 47.7, 52.7},
    {"Qwen2-57B-A14B", 28, 64, 8, 0.31, 45.0, 52.8},
};
static const char *const policies[] = {"lru", "lfu", "ema", "mrs"};
enum { POLICIES = 4, SHARES = 9 };

struct rate {
    double hits, moves, uses;
};
static int room_of(const struct routing *r, double share) { return (int)(share * r->experts + 0.5); }

static struct rate replay(const struct routing *r, const char *policy, double share) {
    struct score s;
    struct rate rate = {0};
    int room = room_of(r, share);
    void *mem = calloc(1, score_bytes(r->layers, r->experts));
    uint8_t *all = calloc((size_t)r->layers * (size_t)r->experts, 1);
    if (!mem || !all) abort();
    score_open(&s, score_find(policy), r->layers, r->experts, r->topk, mem);
    for (int l = 0; l < r->layers; l++) memset(all + (size_t)l * (size_t)r->experts, 1, (size_t)room);
    for (int t = 0; t < r->n; t++)
        for (int l = 0; l < r->layers; l++) {
            struct score_rows step = routing_step(r, t, l);
            uint8_t *there = all + (size_t)l * (size_t)r->experts;
            bool counts = t >= r->n / 5;
            if (step.ids[0] < 0) continue; /* no experts in this layer */
            for (int k = 0; k < r->topk && counts; k++) rate.uses++, rate.hits += there[step.ids[k]];
            score_update(&s, l, &step);
            for (int k = 0; k < r->topk; k++) {
                int worst = -1, id = step.ids[k];
                for (int e = 0; e < r->experts && !there[id]; e++)
                    if (there[e] && (worst < 0 || score_of(&s, l, e) < score_of(&s, l, worst))) worst = e;
                if (worst < 0 || score_of(&s, l, worst) >= score_of(&s, l, id)) continue;
                there[worst] = 0, there[id] = 1;
                rate.moves += counts;
            }
        }
    free(mem), free(all);
    return rate;
}

static double belady(const struct routing *r, double share) {
    struct rate rate = {0};
    int room = room_of(r, share), *next = malloc((size_t)r->n * (size_t)r->topk * sizeof *next),
        *soon = malloc((size_t)r->experts * sizeof *soon);
    uint8_t *there = malloc((size_t)r->experts);
    if (!next || !soon || !there) abort();
    for (int l = 0; l < r->layers; l++) {
        if (r->ids[routing_at(r, 0, l)] < 0) continue;
        for (int e = 0; e < r->experts; e++) soon[e] = r->n, there[e] = e < room;
        for (int t = r->n; t-- > 0;) /* the next use of each */
            for (int k = 0; k < r->topk; k++) {
                int id = r->ids[routing_at(r, t, l) + (size_t)k];
                next[t * r->topk + k] = soon[id];
                soon[id] = t;
            }
        for (int t = 0; t < r->n; t++)
            for (int k = 0; k < r->topk; k++) {
                int id = r->ids[routing_at(r, t, l) + (size_t)k], worst = -1;
                if (t >= r->n / 5) rate.uses++, rate.hits += there[id];
                soon[id] = next[t * r->topk + k];
                for (int e = 0; e < r->experts && !there[id]; e++)
                    if (there[e] && (worst < 0 || soon[e] > soon[worst])) worst = e;
                if (worst >= 0 && soon[worst] > soon[id]) there[worst] = 0, there[id] = 1;
            }
    }
    free(next), free(soon), free(there);
    return rate.hits / rate.uses;
}

/* *expected: the hit rate by the first half. */
static double pinned(const struct routing *r, double share, double *expected) {
    static struct config c;
    struct rate rate = {0};
    const int room = room_of(r, share), half = r->n / 2;
    uint32_t *counts = calloc((size_t)r->layers * (size_t)r->experts, sizeof *counts);
    uint32_t *copy = calloc((size_t)r->layers * (size_t)r->experts, sizeof *copy);
    int32_t *best = malloc((size_t)r->experts * sizeof *best);
    if (!counts || !copy || !best) abort();
    c.n_layers = r->layers, c.n_experts = r->experts, c.topk = r->topk;
    for (int t = 0; t < half; t++)
        for (int l = 0; l < r->layers; l++)
            for (int k = 0; k < r->topk; k++) {
                const int32_t id = r->ids[routing_at(r, t, l) + (size_t)k];
                if (id >= 0) counts[l * r->experts + id]++;
            }
    struct usage_profile u = {.c = &c, .before = counts, .prompts = copy, .pinned = counts};
    int layers = 0;
    *expected = 0;
    for (int l = 0; l < r->layers; l++) {
        if (r->ids[routing_at(r, 0, l)] < 0) continue;
        *expected += usage_profile_pinned_share(&u, l, room), layers++;
        usage_profile_pinned(&u, l, room, best);
        for (int t = half; t < r->n; t++)
            for (int k = 0; k < r->topk; k++) {
                rate.uses++;
                for (int i = 0; i < room; i++) rate.hits += best[i] == r->ids[routing_at(r, t, l) + (size_t)k];
            }
    }
    *expected /= layers ? layers : 1;
    free(counts), free(copy), free(best);
    return rate.hits / rate.uses;
}

static void table(const struct routing *r) {
    printf("  %8s", "capacity");
    for (int p = 0; p < POLICIES; p++) printf("%8s", policies[p]);
    printf("%8s%8s%10s   experts moved a token and layer: lru, mrs\n", "best", "pinned", "expected");
    for (int i = 1; i <= SHARES; i++) {
        double moves[POLICIES];
        printf("  %7d%%", 10 * i);
        for (int p = 0; p < POLICIES; p++) {
            struct rate a = replay(r, policies[p], 0.1 * i);
            printf("%8.1f", 100 * a.hits / a.uses);
            moves[p] = a.moves / a.uses * r->topk;
        }
        double expected, hits = pinned(r, 0.1 * i, &expected);
        printf("%8.1f%8.1f%10.1f   %.2f, %.2f\n", 100 * belady(r, 0.1 * i), 100 * hits, 100 * expected, moves[0],
               moves[3]);
    }
}

/* --- What auto chooses ------------------------------------------------------------------------ */

static const char *const cards[] = {"RTX 3060", "RTX 4090", "RTX 5090"};
enum { CARDS = sizeof cards / sizeof *cards, KEYS = 1024, CHOICES = 6 };
static const double MIN_GAIN = 1.05; /* as decode_experts.c */

static void describe(const struct routing *r, const char *card, struct cost_machine *m, struct cost_model *q) {
    static struct config c;
    struct error e = {0};
    char why[64];
    struct machine_datasheet sheet = {.channels = 2, .ddr = 6000, .cores = 16, .isa = "avx512bf16", .memory = 192e9};
    const struct known_model *k = known_model_find("qwen3-30b");
    snprintf(sheet.card, sizeof sheet.card, "%s", card);
    if (known_model_config(k, &c, &e) || !datasheet_machine(m, &sheet, why, sizeof why)) abort();
    cost_model_of(q, &c, DT_Q4_K, DT_Q4_K, DT_BF16);
    const double chosen = (double)q->topk / r->topk; /* a token reads as many bytes */
    q->n_experts = r->experts, q->topk = r->topk, q->expert_bytes *= chosen, q->expert_flops *= chosen;
}

static double token_s(const struct cost_machine *m, const struct cost_model *q, int whole, double share, bool moves) {
    return cost_decode(m, q,
                       &(struct cost_decode){.mode = DECODE_HYBRID,
                                             .rows = 1,
                                             .keys = KEYS,
                                             .n_device_layers = q->layers,
                                             .n_expert_layers = whole,
                                             .resident_share = share,
                                             .moves_experts = moves});
}

/* The split leaves experts that a pool has to the CPU where that is sooner. */
static double moving_s(const struct cost_machine *m, const struct cost_model *q, double hits) {
    double best = token_s(m, q, 0, hits, true);
    for (double share = 0; share < hits; share += 0.05) best = fmin(best, token_s(m, q, 0, share, true));
    return best;
}

/* Prints a line for each share; returns how often the choice is wrong. */
static int choices(const struct routing *r, bool prints) {
    static struct cost_machine m;
    struct cost_model q;
    int wrong = 0;
    if (prints) printf("  choice, ms a token: whole layers, pinned, moving -> auto\n");
    for (int i = 1; i <= CHOICES; i++) {
        double expected;
        const double hits = pinned(r, 0.1 * i, &expected);
        const struct rate moving = replay(r, "mrs", 0.1 * i);
        if (prints) printf("  %7d%%", 10 * i);
        for (int c = 0; c < CARDS; c++) {
            describe(r, cards[c], &m, &q);
            const int layers = room_of(r, 0.1 * i) * q.layers / r->experts; /* whole ones, in the memory of these
                                                                               experts */
            const double whole = token_s(&m, &q, layers, 0, false), by_profile = token_s(&m, &q, 0, expected, false),
                         found = token_s(&m, &q, 0, hits, false);
            const bool pins = by_profile * MIN_GAIN <= whole;
            const bool is_right = pins ? found <= whole * MIN_GAIN : whole <= found * MIN_GAIN;
            wrong += !is_right;
            if (prints)
                printf("   %s %.2f %.2f %.2f -> %s%s", cards[c], 1e3 * whole, 1e3 * found,
                       1e3 * moving_s(&m, &q, moving.hits / moving.uses), pins ? "pinned" : "layers",
                       is_right ? "" : " (WRONG)");
        }
        if (prints) printf("\n");
    }
    return wrong;
}

static int by_count(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }
/* Prints how uneven the choices of a layer are, and how many experts of a token its predecessor chose, beside what
 * usage alone would give. Layers are averaged. */
static void usage(const struct routing *r) {
    double quarter = 0, busiest = 0, again = 0, alone = 0;
    int layers = 0, *count = malloc((size_t)r->experts * sizeof *count);
    if (!count) abort();
    for (int l = 0; l < r->layers; l++) {
        double all = 0, same = 0, pairs = 0, expected = 0, top = 0;
        if (r->ids[routing_at(r, 0, l)] < 0) continue;
        memset(count, 0, (size_t)r->experts * sizeof *count);
        for (int t = 0; t < r->n; t++)
            for (int k = 0; k < r->topk; k++) {
                const int32_t id = r->ids[routing_at(r, t, l) + (size_t)k];
                count[id]++, all++;
                for (int j = 0; t && j < r->topk; j++) same += r->ids[routing_at(r, t - 1, l) + (size_t)j] == id;
                pairs += t > 0;
            }
        for (int e = 0; e < r->experts; e++) expected += (double)count[e] * count[e] / ((double)r->n * all);
        qsort(count, (size_t)r->experts, sizeof *count, by_count);
        for (int e = 0; e < r->experts / 4; e++) top += count[e];
        quarter += top / all, busiest += count[0] * r->experts / all, again += same / pairs, alone += expected,
            layers++;
    }
    free(count);
    if (layers)
        printf("  usage: the busiest quarter of a layer's experts has %.1f%% of the choices, the busiest one %.2f "
               "times the mean; %.1f%% of a token's experts "
               "were "
               "the last token's too, %.1f%% by usage alone\n",
               100 * quarter / layers, busiest / layers, 100 * again / layers, 100 * alone / layers);
}

static struct routing make(const struct model *m, int tokens, int layers) {
    struct routing r;
    routing_make(&r, tokens, layers, m->experts, m->topk,
                 &(struct routing_kind){m->share / 3, m->share * 2 / 3, 0.98, 3}, 7);
    return r;
}

/* --- A trace of --trace-routing: the tokens of all chats in the order of their batches -------- */

static void numbers(const struct json *j, int32_t *ids, float *x, int n) {
    for (int i = 0; i < n; i++) {
        const struct json *v = j ? json_at(j, (uint32_t)i) : NULL;
        if (ids) ids[i] = (int32_t)json_int(v, -1);
        else x[i] = (float)json_num(v, 0);
    }
}
static int read_trace(struct routing *r, const char *path, struct error *e) {
    char *text, *line, *save = NULL;
    size_t size;
    struct arena a = {0};
    struct json j;
    int last = -1, rc = file_read(path, (size_t)1 << 32, &text, &size, e), n = 0, n_rows = 0;
    if (rc) return rc;
    for (size_t i = 0; i < size; i++) n += text[i] == '\n';
    if (!(line = strtok_r(text, "\n", &save)) || (rc = json_parse(&a, line, strlen(line), 0, path, &j, e)))
        return rc ? rc : ERR_MODEL;
    routing_open(r, n, (int)json_int(json_get(&j, "layers"), 0), (int)json_int(json_get(&j, "experts"), 0),
                 (int)json_int(json_get(&j, "topk"), 0));
    memset(r->ids, 0xff, (size_t)n * (size_t)r->layers * (size_t)r->topk * 4);
    r->n = 0;
    struct {
        int chat, first, pos; /* its first row of the batch: as a token of the trace, its position */
    } rows[64];
    while ((line = strtok_r(NULL, "\n", &save))) { /* rows of a batch come layer by layer */
        arena_reset(&a);
        if ((rc = json_parse(&a, line, strlen(line), 0, path, &j, e))) return rc;
        int step = (int)json_int(json_get(&j, "step"), 0), chat = (int)json_int(json_get(&j, "chat"), 0),
            pos = (int)json_int(json_get(&j, "pos"), 0), k = 0;
        if (step != last) last = step, n_rows = 0;
        while (k < n_rows && rows[k].chat != chat) k++;
        if (k == 64) continue;
        if (k == n_rows) rows[n_rows].chat = chat, rows[n_rows].pos = pos, rows[n_rows++].first = r->n;
        int token = rows[k].first + pos - rows[k].pos;
        if (token < 0 || token >= n) continue;
        if (token >= r->n) r->n = token + 1;
        size_t at = routing_at(r, token, (int)json_int(json_get(&j, "layer"), 0));
        numbers(json_get(&j, "ids"), r->ids + at, NULL, r->topk);
        numbers(json_get(&j, "near"), r->near + 2 * at, NULL, 2 * r->topk);
        numbers(json_get(&j, "chances"), NULL, r->chance + 2 * at, 2 * r->topk);
    }
    arena_free(&a);
    mem_free(text);
    return 0;
}

static int check(void) {
    int bad = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct routing r = make(&models[i], 3000, 12);
        struct rate lru = replay(&r, "lru", 0.25), mrs = replay(&r, "mrs", 0.25);
        double a = 100 * lru.hits / lru.uses, b = 100 * mrs.hits / mrs.uses, best = 100 * belady(&r, 0.25);
        const int wrong = choices(&r, false);
        bool ok = fabs(a - models[i].lru) < 1.5 && b - a >= 6 && b <= best && mrs.moves < lru.moves / 2 && !wrong;
        printf(
            "%s %-17s at 25%%: lru %.1f (printed %.1f), mrs %.1f (printed %.1f), best %.1f; moves %.2f of lru's; auto "
            "wrong in %d of %d\n",
            ok ? "ok  " : "FAIL", models[i].name, a, models[i].lru, b, models[i].mrs, best, mrs.moves / lru.moves,
            wrong, CHOICES * CARDS);
        bad += !ok;
        routing_close(&r);
    }
    return bad;
}

int main(int argc, char **argv) {
    int tokens = argc > 1 ? atoi(argv[1]) : 2000;
    struct routing r;
    if (argc > 1 && !strcmp(argv[1], "check")) return check() != 0;
    if (argc > 1 && !tokens) {
        struct error e = {0};
        if (read_trace(&r, argv[1], &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        printf("%s: %d tokens, %d layers, %d of %d experts\n", argv[1], r.n, r.layers, r.topk, r.experts);
        usage(&r);
        table(&r);
        const int wrong = choices(&r, true);
        routing_close(&r);
        return wrong != 0;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        r = make(&models[i], tokens, models[i].layers / 4);
        printf("like %s, made: %d tokens, %d layers, %d of %d experts; printed at 25%%: lru %.1f, mrs %.1f\n",
               models[i].name, r.n, r.layers, r.topk, r.experts, models[i].lru, models[i].mrs);
        usage(&r);
        table(&r);
        choices(&r, true);
        routing_close(&r);
    }
    return 0;
}
