/* What an expert pool uploads on an idle link, with every upload complete before the next batch, so that nothing
 * depends on the machine's speed: MRS scores all experts that a router ranks high, not only those that it selects;
 * experts are exchanged for better ones; and experts that later layers' routers select ahead are uploaded. usage:
 * test_pool the built-in model */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/expert_pool_internal.h"
#include "engine/layer/kv_planes.h"
#include "engine/placement/cost.h"
#include "engine/session/engine_state.h"
#include "engine/weights/weights_open.h"
#include "test/env.h"

enum { KEYS = 24, SLOTS = 2, MOST_TOKENS = 200 };

static int failures;
#define CHECK(c, ...) \
    do { \
        if (!(c)) failures++, printf("FAIL: " __VA_ARGS__), printf("\n"), fflush(stdout); \
    } while (0)
static void die(const char *what, const struct error *e) {
    printf("FAIL %s: %s\n", what, e->text);
    exit(1);
}

static struct bench {
    struct weights w;
    struct pool *pool;
    struct runtime m;
    struct cost_machine cost;
    struct cost_model cost_model;
    struct kv kv;
} b;

/* A CPU that is said to be slow and a fast link: an expert on the device always pays. The split leaves the others to
 * the CPU, so that only idle links upload. */
static void open_bench(void) {
    struct error err = {0};
    _Atomic int never = 0;
    int32_t tokens[KEYS];
    const struct config *c = &b.w.config;
    if (weights_open(&b.w, "ember:", false, &err) || weight_state_open(&b.m.weight_state, c, &err)) die("model", &err);
    b.m.w = &b.w, b.m.expert_bytes = weights_expert_bytes(&b.w);
    b.m.split_policy = &split_host, b.m.evict_policy = score_find("mrs");
    b.m.cost = &b.cost, b.m.cost_model = &b.cost_model;
    cost_model_of(&b.cost_model, c, weights_dense_dtype(&b.w), weights_ffn_dtype(&b.w), DT_F32);
    cost_assumed(&b.cost, 1, CPU_SCALAR, 1, 1e12, 1e12, 0);
    b.cost.domain[0].bw[COST_FFN] = (struct cost_curve){1, {1}, {1e6f}};
    b.m.expert_cache = (struct expert_cache){BUDGET_EXPERTS, SLOTS, false};
    b.m.expert_touched = mem_calloc((size_t)c->n_experts + 1, 1);
    if (pool_open(&b.pool, 1, false, &err) || !(b.m.cpu = cpu_exec_open(b.pool, CPU_SCALAR, &err)))
        die("processor", &err);
    b.m.scan = (struct nan_scan){&b.w, b.pool, &b.m.weight_state};
    if (gpu_set_open(&b.m.gpus, "emu:1", &err) || decode_open(&b.m.decode, &b.m, DT_F32, &err) ||
        kv_open(&b.kv, c, kv_planes, 256, DT_F32, &err))
        die("open", &err);
    for (int i = 0; i < KEYS; i++) tokens[i] = (i * 37) % 500;
    struct decode_span span = {.kv = &b.kv, .tokens = tokens, .n = KEYS};
    if (decode_run(b.m.decode, DECODE_CPU, &span, 1, &never, &err)) die("keys", &err);
}
static void close_bench(void) {
    decode_forget(b.m.decode, &b.kv);
    decode_close(&b.m.decode);
    gpu_set_close(&b.m.gpus);
    kv_close(&b.kv);
    cpu_exec_close(&b.m.cpu);
    pool_close(&b.pool);
    weight_state_close(&b.m.weight_state);
    mem_free(b.m.expert_touched);
    weights_close(&b.w);
    b = (struct bench){0};
}

static struct decode_device *device(void) { return &b.m.decode->dev[0]; }
/* Decodes one token after KEYS others and waits for the uploads that it caused. */
static void answer(int32_t token) {
    struct error err = {0};
    _Atomic int never = 0;
    struct decode_span span = {.kv = &b.kv, .tokens = &token, .pos = KEYS, .n = 1};
    decode_rewind(b.m.decode, &b.kv, KEYS);
    for (int i = 0; i < b.cost.n_domains; i++) /* what this machine measures changes no cost */
        memset(b.cost.domain[i].observed, 0, sizeof b.cost.domain[i].observed);
    if (device()->pool) expert_pool_fill_costs(device()->pool);
    if (decode_run(b.m.decode, DECODE_HYBRID, &span, 1, &never, &err)) die("answer", &err);
    if (decode_last_exec(b.m.decode) != DECODE_HYBRID || !device()->pool)
        die("answer", &(struct error){.text = "it ran otherwise"});
    while (device()->pool && !upload_is_idle(&device()->pool->uploads)) sched_yield();
}

/* After the first token exactly the best 2 * topk experts of its layers have scores. */
static void best_experts_have_scores(void) {
    const struct config *c = &b.w.config;
    const int most = 2 * c->topk < c->n_experts ? 2 * c->topk : c->n_experts;
    answer(40);
    for (int l = device()->first; l < device()->last; l++) {
        int scored = 0;
        for (int i = 0; i < c->n_experts && c->layer[l].moe; i++) scored += score_of(&device()->score, l, i) > 0;
        CHECK(!c->layer[l].moe || scored == most, "layer %d: %d experts have scores, %d are best", l, scored, most);
    }
}
/* Experts come for those that score less, and others because a router selects them ahead. */
static void idle_links_upload(void) {
    const uint64_t before = decode_counts(b.m.decode).uploaded - decode_counts(b.m.decode).prefetched;
    struct decode_counts now = {0};
    int n = 0;
    for (; n < MOST_TOKENS && (!now.prefetched || now.uploaded - now.prefetched == before); n++) {
        answer((n * 91 + 7) % 500);
        now = decode_counts(b.m.decode);
    }
    printf("after %d tokens: %llu experts exchanged, %llu uploaded ahead\n", n,
           (unsigned long long)(now.uploaded - now.prefetched - before), (unsigned long long)now.prefetched);
    CHECK(now.uploaded - now.prefetched > before, "no expert was exchanged for a better one");
    CHECK(now.prefetched > 0, "no expert was uploaded ahead of its layer");
}

static void quiet(void *ctx, enum log_level level, const char *text) {}
int main(void) {
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    open_bench();
    best_experts_have_scores();
    idle_links_upload();
    close_bench();
    printf("%d failures\n", failures);
    return failures != 0;
}
