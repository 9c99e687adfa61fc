/* Decode batches that replay recorded graphs give the same answers as batches launched operation by operation: alone
 * and in a batch, in two micro-batches, over two devices, past the number of keys that a graph is laid out for, with
 * routed experts on the device, with drafted rows. Also checks that graphs are in fact replayed. usage: test_graph
 * [cuda] [DIR...]    The built-in model, or these; cuda: on a card, or in its emulation, one case each */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "engine/ember/ember.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "test/env.h"

enum { SESSIONS = 2, ANSWER = 14, MOST = 520 };
static int failed;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}

/* Drafts tokens that are hardly ever right, one fewer every other time. */
static int lies(void *ctx, const int32_t *tokens, int n, int most, int32_t *out) {
    if (n % 2 && most > 1) most--;
    for (int i = 0; i < most; i++) out[i] = tokens[n - 1 - i % n];
    return most;
}
/* Returns a checksum of a session's cache. */
static uint64_t cached(const struct session *s) {
    uint64_t sum = 0;
    for (int l = 0; l < s->kv.n_layers; l++) {
        struct cache_desc desc[CACHE_PLANES];
        for (int p = kv_planes(s->kv.c, l, desc); p-- > 0;) {
            struct kv_row_range r = kv_row_range_of(
                &s->kv.layer[l].p[p], 0, desc[p].fixed_rows ? desc[p].fixed_rows : kv_complete_rows(&desc[p], s->n_kv));
            sum = hash64(s->kv.layer[l].p[p].data, r.bytes, sum);
        }
    }
    return sum;
}

static uint64_t host_waits; /* of the last run: for rows of a layer from a device */
static uint64_t selections; /* hash of the experts that the last run selected, and how often */

/* Counts replayed parts; answers [SESSIONS, ANSWER]; checksums of their caches [SESSIONS]. */
static uint64_t run(const char *dir, const char *gpus, enum exec_mode decode, const char *cache, int guesses,
                    const int *prompt, int answer, int32_t *out, uint64_t *caches) {
    struct engine *eng;
    struct session *s[SESSIONS];
    struct error e = {0};
    struct event ev;
    int32_t tokens[MOST];
    int got[SESSIONS] = {0}, left = 0;
    struct engine_params p = {.dir = dir,
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = gpus,
                              .prefill = PREFILL_CPU,
                              .decode = decode,
                              .expert_cache = cache,
                              .draft = !guesses                ? DRAFT_NONE
                                       : strcmp(dir, "ember:") ? DRAFT_LOOKUP
                                                               : DRAFT_MTP,
                              .custom_draft = guesses && strcmp(dir, "ember:") ? lies : NULL,
                              .max_drafted = guesses,
                              .context = 1024,
                              .deterministic = true};
    if (engine_open(&eng, &p, &e)) die(gpus, &e);
    const int ids = engine_info(eng)->vocab < 500 ? engine_info(eng)->vocab : 500;
    for (int i = 0; i < SESSIONS && prompt[i]; i++, left++) {
        if (session_open(eng, &s[i], &e)) die(gpus, &e);
        for (int k = 0; k < prompt[i]; k++) tokens[k] = (k * 37 + k / 7 + 11 + 5 * i) % ids;
        if (session_submit(
                s[i],
                &(struct request){.tokens = tokens, .n = prompt[i], .max_tokens = answer, .flags = REQ_IGNORE_EOS}, &e))
            die(gpus, &e);
    }
    for (int n = left; left;) {
        if (!engine_poll(eng, &ev, 120000)) die(gpus, &(struct error){.text = "nothing for two minutes"});
        if (ev.kind == EVENT_ERROR) die(gpus, &ev.error);
        for (int i = 0; i < n; i++)
            if (ev.kind == EVENT_TOKEN && ev.session == s[i]) out[i * ANSWER + got[i]++] = ev.token;
        left -= ev.kind == EVENT_DONE;
    }
    uint64_t replayed = decode_counts(eng->machine.decode).graph_launches;
    host_waits = decode_counts(eng->machine.decode).host_waits;
    struct expert_map m;
    if (engine_expert_map(eng, &m, &e)) die(gpus, &e);
    selections = hash64(m.n_used, (size_t)m.n_layers * (size_t)m.n_experts * sizeof *m.n_used, 0);
    engine_expert_map_free(&m);
    for (int i = 0; i < SESSIONS && prompt[i]; i++) caches[i] = cached(s[i]), session_close(&s[i]);
    engine_close(&eng);
    return replayed;
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

struct graph_case {
    const char *gpus;
    enum exec_mode decode;
    const char *cache;
    int guesses, prompt[SESSIONS];
};
static void check(const char *dir, const struct graph_case *c, int answer) {
    char gpus[80];
    int32_t each[SESSIONS * ANSWER] = {0}, one[SESSIONS * ANSWER] = {0};
    uint64_t held[2][SESSIONS] = {{0}};
    snprintf(gpus, sizeof gpus, "%s,nograph", c->gpus);
    uint64_t none = run(dir, gpus, c->decode, c->cache, c->guesses, c->prompt, answer, each, held[0]),
             replayed = run(dir, c->gpus, c->decode, c->cache, c->guesses, c->prompt, answer, one, held[1]);
    printf("%s, %s, %d and %d tokens, %d guessed at once: %llu parts of layers ran as recorded\n", dir, c->gpus,
           c->prompt[0], c->prompt[1], c->guesses, (unsigned long long)replayed);
    if (none || !replayed)
        failed++, printf("FAIL: %llu recorded parts ran, and with nograph %llu\n", (unsigned long long)replayed,
                         (unsigned long long)none);
    /* all experts are resident: one graph for a token's layers */
    const bool all = c->cache && !strcmp(c->cache, "layers") && !strstr(c->gpus, "mem=");
    if (all && (host_waits || replayed > 2 * ANSWER))
        failed++, printf("FAIL: with all experts resident the host waited %llu times for a layer\n",
                         (unsigned long long)host_waits);
    if (!all && c->cache && !host_waits) failed++, printf("FAIL: no wait of the host was counted\n");
    if (memcmp(one, each, sizeof one)) failed++, printf("FAIL: other tokens than piece by piece\n");
    if (memcmp(held[0], held[1], sizeof held[0])) failed++, printf("FAIL: other bits in caches than piece by piece\n");
}

/* Tokens, caches and selections are the same whether a layer's experts are on the device or on the CPU. */
static void check_resident(const char *dir, enum exec_mode decode) {
    static const int prompt[SESSIONS] = {30, 9};
    int32_t out[2][SESSIONS * ANSWER] = {{0}};
    uint64_t held[2][SESSIONS] = {{0}}, selected[2];
    for (int k = 0; k < 2; k++) {
        run(dir, "emu:1,cpu=scalar", decode, k ? "layers" : "off", 0, prompt, ANSWER, out[k], held[k]);
        selected[k] = selections;
    }
    if (memcmp(out[0], out[1], sizeof out[0]) || memcmp(held[0], held[1], sizeof held[0]))
        failed++, printf("FAIL: %s: resident experts change bits\n", dir);
    if (selected[0] != selected[1])
        failed++, printf("FAIL: %s: selections of resident experts are not counted as the CPU's\n", dir);
}

/* Rows of one session with drafted tokens are split into two micro-batches: the same tokens and caches as in one; more
 * waits of the host show that they were split. */
static void check_split(const char *dir, const char *gpus, bool splits) {
    static const int prompt[SESSIONS] = {33, 0};
    int32_t out[2][SESSIONS * ANSWER] = {{0}};
    uint64_t held[2][SESSIONS] = {{0}}, waits[2];
    for (int k = 0; k < 2; k++) {
        run(dir, gpus, k ? DECODE_DUAL : DECODE_HYBRID, "off", 3, prompt, ANSWER, out[k], held[k]);
        waits[k] = host_waits;
    }
    if (memcmp(out[0], out[1], sizeof out[0]) || memcmp(held[0], held[1], sizeof held[0]))
        failed++, printf("FAIL: %s: split rows change bits\n", dir);
    if ((waits[1] > waits[0]) != splits)
        failed++, printf("FAIL: %s: %llu waits, %llu with split rows\n", dir, (unsigned long long)waits[0],
                         (unsigned long long)waits[1]);
}

int main(int argc, char **argv) {
    static const struct graph_case
        own[] = {{"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {20, 0}},
                 /* passes 512 keys */
                 {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {505, 9}},
                 {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 0, {30, 9}},
                 {"emu:1,cpu=scalar", DECODE_DUAL, "6", 0, {30, 9}},
                 {"emu:1,cpu=scalar", DECODE_HYBRID, "layers", 0, {30, 9}},
                 {"emu:1,cpu=scalar", DECODE_DUAL, "layers", 0, {30, 9}},
                 /* a part of the layers */
                 {"emu:1,cpu=scalar,mem=12M", DECODE_HYBRID, "layers", 0, {30, 9}},
                 {"emu:1,cpu=scalar", DECODE_HYBRID, "layers", 2, {30, 0}},
                 {"emu:2,cpu=scalar,mem=5M,parallel=layers", DECODE_HYBRID, NULL, 0, {30, 9}},
                 {"emu:2,cpu=scalar,parallel=tensor", DECODE_DUAL, NULL, 0, {505, 9}},
                 {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 2, {506, 0}},
                 {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 1, {30, 9}},
                 /* rows of one session in two micro-batches */
                 {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 3, {506, 0}},
                 {"emu:2,cpu=scalar,mem=7M,parallel=layers", DECODE_DUAL, "layers", 2, {30, 0}}},
        /* few keys for an indexer, then it selects */
        models[] = {{"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {3, 0}},
                    {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 0, {40, 2}},
                    {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {40, 0}},
                    {"emu:2,cpu=scalar", DECODE_DUAL, NULL, 0, {40, 33}},
                    {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 2, {33, 0}},
                    /* two and three rows, three and two */
                    {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 2, {33, 8}}},
        card[] = {{"0,math=f32", DECODE_HYBRID, NULL, 0, {12, 0}}, {"0,math=f32", DECODE_HYBRID, "layers", 0, {12, 0}}};
    const bool cuda = argc > 1 && !strcmp(argv[1], "cuda");
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    for (size_t i = 0; argc == 1 && i < sizeof own / sizeof *own; i++) check("ember:", &own[i], ANSWER);
    for (enum exec_mode mode = DECODE_HYBRID; argc == 1 && mode <= DECODE_DUAL; mode++) check_resident("ember:", mode);
    for (int k = 1; argc == 1 && k <= 2; k++)
        check_split("ember:", k > 1 ? "emu:2,cpu=scalar,mem=5M,parallel=layers" : "emu:1,cpu=scalar", true);
    for (int i = 0; cuda && argc == 2 && i < 2; i++) check("ember:", &card[i], 4);
    for (int k = 1 + cuda; k < argc; k++) {
        for (int i = 0; cuda && i < 2; i++) check(argv[k], &card[i], 5);
        bool splits = true; /* not with states or compressed keys */
        for (int i = 0; i < 5; i++)
            splits &= !strstr(argv[k], (const char *const[]){"delta", "streams", "pooled", "looped", "kda"}[i]);
        if (!cuda) check_split(argv[k], "emu:1,cpu=scalar", splits);
        for (size_t i = 0; !cuda && i < sizeof models / sizeof *models; i++) check(argv[k], &models[i], ANSWER);
    }
    return failed != 0;
}
