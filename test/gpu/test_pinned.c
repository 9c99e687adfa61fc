/* Experts on devices whose results do not depend on history. Pinned experts: those that a usage profile names, and no
 * others, are on the devices, whatever is answered beside and after; the same bits come out alone, in company, in one
 * or two micro-batches, with any number of threads, and after a prompt that borrowed the memory. The device computes at
 * another level than the CPU, so that its sums have other bits.
 *
 * A pool that sends: the same bits with any number of slots and whatever they hold, also while a prompt reads them.
 * usage: test_pinned    the built-in model */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/ember/ember.h"
#include "engine/experts/usage_profile.h"
#include "engine/layer/kv_planes.h"
#include "engine/placement/cost.h"
#include "engine/session/engine_state.h"
#include "engine/weights/weights_open.h"
#include "test/env.h"

enum { SESSIONS = 6, KEYS = 24, STEPS = 3, PER_LAYER = 4, STRIDE = 3 };
static const uint64_t fingerprint = 0x5eed;

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
    struct kv kv[SESSIONS];
    char dir[32], path[64];
} b = {.dir = "/tmp/hearth-pinned-XXXXXX"};

/* --- Opening ---------------------------------------------------------------------------------- */

static void open_model(void) {
    struct error err = {0};
    if (weights_open(&b.w, "ember:", false, &err)) die("model", &err);
    if (!mkdtemp(b.dir)) die("directory", &(struct error){0});
    snprintf(b.path, sizeof b.path, "%s/%016" PRIx64 ".usage", b.dir, fingerprint);
    b.m.w = &b.w;
    b.m.expert_bytes = weights_expert_bytes(&b.w);
    b.m.split_policy = split_find("auto"), b.m.evict_policy = score_find("auto");
    b.m.cost = &b.cost, b.m.cost_model = &b.cost_model;
    cost_model_of(&b.cost_model, &b.w.config, weights_dense_dtype(&b.w), weights_ffn_dtype(&b.w), DT_F32);
    if (weight_state_open(&b.m.weight_state, &b.w.config, &err)) die("weights", &err);
    b.m.expert_touched = mem_calloc((size_t)b.w.config.n_experts + 1, 1);
}
static void close_model(void) {
    weight_state_close(&b.m.weight_state);
    mem_free(b.m.expert_touched);
    weights_close(&b.w);
    unlink(b.path), rmdir(b.dir);
}

struct setting {
    const char *gpus;
    int threads, per_layer;
    bool is_pinned, is_deterministic, is_sent;
};
static void open_bench(const struct setting *t) {
    struct error err = {0};
    _Atomic int never = 0;
    const struct config *c = &b.w.config;
    cost_assumed(&b.cost, t->threads, CPU_SCALAR, 2, 10e9, 10e9, 0);
    b.cost.is_deterministic = t->is_pinned || t->is_deterministic || t->is_sent;
    b.m.expert_cache = (struct expert_cache){BUDGET_EXPERTS, (size_t)t->per_layer, t->is_pinned, t->is_sent};
    if (pool_open(&b.pool, t->threads, false, &err) || !(b.m.cpu = cpu_exec_open(b.pool, CPU_SCALAR, &err)))
        die("processor", &err);
    b.m.scan = (struct nan_scan){&b.w, b.pool, &b.m.weight_state};
    if (usage_profile_open(&b.m.usage, c, b.dir, fingerprint, &err) || gpu_set_open(&b.m.gpus, t->gpus, &err) ||
        decode_open(&b.m.decode, &b.m, DT_F32, &err))
        die("open", &err);
    for (int i = 0; i < SESSIONS; i++) {
        int32_t tokens[KEYS];
        if (kv_open(&b.kv[i], c, kv_planes, 256, DT_F32, &err)) die("session", &err);
        for (int k = 0; k < KEYS; k++) tokens[k] = (k * 37 + i * 11) % 500;
        struct decode_span span = {.kv = &b.kv[i], .tokens = tokens, .n = KEYS};
        if (decode_run(b.m.decode, DECODE_CPU, &span, 1, &never, &err)) die("keys", &err);
    }
}
static void close_bench(void) {
    struct error err = {0};
    for (int i = 0; i < SESSIONS; i++) decode_forget(b.m.decode, &b.kv[i]);
    if (!usage_profile_is_kept(b.m.usage) && usage_profile_save(b.m.usage, decode_expert_rows(b.m.decode), &err))
        die("profile", &err);
    decode_close(&b.m.decode);
    usage_profile_close(&b.m.usage);
    gpu_set_close(&b.m.gpus);
    for (int i = 0; i < SESSIONS; i++) kv_close(&b.kv[i]);
    cpu_exec_close(&b.m.cpu);
    pool_close(&b.pool);
}

/* Writes a profile in which STRIDE, 2 * STRIDE ... are used most. */
static bool is_favourite(int x) { return x % STRIDE == 0 && x && x / STRIDE <= PER_LAYER; }
static void write_profile(void) {
    struct error err = {0};
    struct usage_profile *u;
    const struct config *c = &b.w.config;
    uint32_t *counts = mem_calloc((size_t)c->n_layers * (size_t)c->n_experts, sizeof *counts);
    for (int i = 0; i < c->n_layers * c->n_experts; i++) counts[i] = is_favourite(i % c->n_experts) ? 500 : 20;
    unlink(b.path);
    if (usage_profile_open(&u, c, b.dir, fingerprint, &err) || usage_profile_save(u, counts, &err)) die("write", &err);
    usage_profile_close(&u);
    mem_free(counts);
}

/* --- Answers ---------------------------------------------------------------------------------- */

/* Decodes STEPS tokens of sessions [first, first + n) from position KEYS; out [STEPS, vocab]: the logits of session
 * `of`. */
static void answer_of(int first, int n, enum exec_mode mode, int first_token, int of, float *out) {
    const size_t vocab = (size_t)b.w.config.vocab;
    struct error err = {0};
    _Atomic int never = 0;
    for (int k = 0; k < STEPS; k++) {
        struct decode_span spans[SESSIONS];
        int32_t token[SESSIONS];
        for (int i = 0; i < n; i++) {
            struct kv *kv = &b.kv[first + i];
            if (!k) decode_rewind(b.m.decode, kv, KEYS);
            token[i] = (first_token + 50 * k + 7 * (first + i)) % 500;
            spans[i] = (struct decode_span){.kv = kv, .tokens = &token[i], .pos = KEYS + k, .n = 1};
        }
        if (decode_run(b.m.decode, mode, spans, n, &never, &err)) die("answer", &err);
        CHECK(decode_last_exec(b.m.decode) == mode, "it ran otherwise");
        if (out) memcpy(out + (size_t)k * vocab, spans[of - first].logits, vocab * sizeof *out);
    }
}
static void answer(int n, enum exec_mode mode, int first_token, float *out) {
    answer_of(0, n, mode, first_token, 0, out);
}

/* Checks that exactly the named experts are on devices; NULL: none. Returns how many. */
static int check_resident(const char *what, bool (*named)(int)) {
    const struct config *c = &b.w.config;
    const size_t n = (size_t)c->n_layers * (size_t)c->n_experts;
    uint32_t *used = mem_alloc(n * sizeof *used);
    int8_t *where = mem_alloc(n);
    uint64_t pinned_uses = 0;
    int resident = 0, wrong = 0;
    decode_expert_map(b.m.decode, used, where);
    for (size_t i = 0; i < n; i++) {
        const bool want = c->layer[i / (size_t)c->n_experts].moe && named && named((int)(i % (size_t)c->n_experts));
        wrong += want != (where[i] >= 0), resident += where[i] >= 0;
        if (where[i] >= 0) pinned_uses += used[i];
    }
    CHECK(!wrong, "%s: %d experts are not where they belong", what, wrong);
    mem_free(used), mem_free(where);
    return resident;
}
static bool is_first(int x) { return x < PER_LAYER; }

static void compare(const char *what, const float *got, const float *want) {
    CHECK(!memcmp(got, want, STEPS * (size_t)b.w.config.vocab * sizeof *got), "%s: other bits", what);
}

static void *file_bytes(size_t *n) {
    char *data;
    struct error err = {0};
    if (file_read(b.path, 1 << 20, &data, n, &err)) die("profile", &err);
    return data;
}

/* --- Tests ------------------------------------------------------------------------------------ */

static uint64_t follow_profile(const struct setting *t, const float *alone, float *got) {
    struct error err = {0};
    size_t n_before, n_after;
    char *before = file_bytes(&n_before);
    const size_t row = STEPS * (size_t)b.w.config.vocab;
    open_bench(t);
    answer(1, DECODE_HYBRID, 40, got);
    if (alone) compare(t->gpus, got, alone);
    check_resident("at first", is_favourite);
    const uint64_t hash = decode_pinned_experts(b.m.decode);
    const struct decode_counts c = decode_counts(b.m.decode);
    CHECK(hash && c.pinned == hash && c.hits && c.hits < c.selected, "%llu of %llu on the device",
          (unsigned long long)c.hits, (unsigned long long)c.selected);
    float *again = mem_alloc(row * sizeof *again);
    answer(SESSIONS, DECODE_HYBRID, 40, again), compare("in company", again, got);
    answer(SESSIONS, DECODE_DUAL, 40, again), compare("in two micro-batches", again, got);
    for (int i = 0; i < 8; i++) answer(3, DECODE_HYBRID, 60 + 31 * i, NULL);
    answer(1, DECODE_HYBRID, 40, again), compare("after other answers", again, got);
    check_resident("after other answers", is_favourite);

    /* not for a KV cache, but for a prompt; they return after it */
    const bool has_room = ledger_evict(&b.m.gpus->ledger[0], LEDGER_FOR_KV);
    CHECK(!has_room, "a KV cache displaced experts");
    check_resident("beside KV caches", is_favourite);
    decode_evict_experts(b.m.decode, -1, SIZE_MAX);
    check_resident("during a prompt", NULL);
    decode_reclaim(b.m.decode);
    answer(1, DECODE_HYBRID, 40, again), compare("after a prompt", again, got);
    check_resident("after a prompt", is_favourite);
    CHECK(decode_pinned_experts(b.m.decode) == hash, "another number after a prompt");

    /* what is loaded ahead of a prompt */
    bool more = true;
    decode_evict_experts(b.m.decode, -1, SIZE_MAX);
    decode_reclaim(b.m.decode);
    while (more)
        if (decode_load_next(b.m.decode, 0, &more, &err)) die("load", &err);
    check_resident("loaded ahead", is_favourite);
    answer(2, DECODE_HYBRID, 40, again), compare("loaded ahead", again, got);
    close_bench();
    char *after = file_bytes(&n_after);
    CHECK(n_before == n_after && !memcmp(before, after, n_before), "the profile was written");
    mem_free(before), mem_free(after), mem_free(again);
    return hash;
}

/* Rows whose caches found no room on the device are computed by the CPU, also where they need a pinned expert that the
 * device computes for others. */
static void beside_rows_of_the_cpu(const float *alone, float *got) {
    struct error err = {0};
    void *taken[64];
    int n_taken = 0;
    open_bench(&(struct setting){"emu:1,mem=64M", 1, PER_LAYER, .is_pinned = true});
    answer(1, DECODE_HYBRID, 40, NULL);
    struct gpu *g = b.m.gpus->gpu[0];
    for (size_t size = gpu_mem_free(g); size > 4096 && n_taken < 64;)
        if (gpu_alloc(g, &taken[n_taken], size, &err)) size /= 2, err = (struct error){0};
        else n_taken++;
    answer(SESSIONS, DECODE_HYBRID, 40, got), compare("beside rows of the CPU", got, alone);
    float *by_cpu = mem_alloc(STEPS * (size_t)b.w.config.vocab * sizeof *by_cpu);
    answer_of(SESSIONS - 1, 1, DECODE_CPU, 40, SESSIONS - 1, by_cpu);
    answer_of(0, SESSIONS, DECODE_HYBRID, 40, SESSIONS - 1, got), compare("a row of the CPU", got, by_cpu);
    mem_free(by_cpu);
    CHECK(decode_n_without_room(b.m.decode), "all rows are on the device");
    check_resident("beside rows of the CPU", is_favourite);
    while (n_taken) gpu_free(g, taken[--n_taken]);
    close_bench();
}

/* With --expert-cache auto a KV cache that needs memory gets that of the last layer, whose experts the CPU computes. */
static int last_layer;
static bool check_without_last(void) {
    const struct config *c = &b.w.config;
    const size_t n = (size_t)c->n_layers * (size_t)c->n_experts;
    uint32_t *used = mem_alloc(n * sizeof *used);
    int8_t *where = mem_alloc(n);
    int wrong = 0;
    decode_expert_map(b.m.decode, used, where);
    for (size_t i = 0; i < n; i++) {
        const int l = (int)(i / (size_t)c->n_experts), x = (int)(i % (size_t)c->n_experts);
        wrong += (c->layer[l].moe && l < last_layer && is_favourite(x)) != (where[i] >= 0);
    }
    mem_free(used), mem_free(where);
    return !wrong;
}
static void gives_way(const float *none, float *got) {
    last_layer = b.w.config.n_layers - 1;
    write_profile();
    open_bench(&(struct setting){"emu:1", 1, PER_LAYER, .is_pinned = true});
    answer(1, DECODE_HYBRID, 40, NULL);
    const uint64_t hash = decode_pinned_experts(b.m.decode);
    b.m.expert_cache.request = BUDGET_AUTO;
    CHECK(ledger_evict(&b.m.gpus->ledger[0], LEDGER_FOR_KV), "a KV cache gets no memory");
    CHECK(check_without_last(), "after a KV cache: other experts");
    CHECK(decode_pinned_experts(b.m.decode) != hash, "the same number with fewer experts");
    answer(SESSIONS, DECODE_HYBRID, 40, got);
    CHECK(check_without_last(), "later: other experts");
    float largest = 0, apart = 0;
    for (size_t i = 0; i < STEPS * (size_t)b.w.config.vocab; i++)
        largest = fmaxf(largest, fabsf(none[i])), apart = fmaxf(apart, fabsf(none[i] - got[i]));
    CHECK(apart < 1e-4f * largest, "without a layer: logits of at most %g are %g from the CPU's", (double)largest,
          (double)apart);
    for (int i = 0; i < 9; i++) ledger_evict(&b.m.gpus->ledger[0], LEDGER_FOR_KV);
    CHECK(!ledger_evict(&b.m.gpus->ledger[0], LEDGER_FOR_KV), "experts without end");
    answer(1, DECODE_HYBRID, 40, got), compare("without any", got, none);
    close_bench();
}

/* Without a profile the first prompt decides, and nothing after it. */
static bool is_second_choice(int x) { return x == 1 || x == 5 || x == 6 || x == 15; }
static void follow_first_prompt(float *got, const float *none) {
    const int32_t ids[] = {5, 15, 1, 6, 5, 15, 1, 6, 9, -1}, later[] = {0, 2, 0, 2, 0, 2, 0, 2};
    unlink(b.path);
    open_bench(&(struct setting){"emu:1", 1, PER_LAYER, .is_pinned = true});
    answer(1, DECODE_HYBRID, 40, got);
    check_resident("before the first prompt", NULL);
    compare("before the first prompt", got, none);
    CHECK(!decode_pinned_experts(b.m.decode), "a number before the first prompt");
    for (int l = 0; l < b.w.config.n_layers; l++)
        usage_profile_count(b.m.usage, l, ids, b.w.config.layer[l].moe ? 10 : 0);
    answer(1, DECODE_HYBRID, 40, NULL);
    check_resident("after the first prompt", is_second_choice);
    for (int l = 0; l < b.w.config.n_layers; l++)
        for (int i = 0; i < 9; i++) usage_profile_count(b.m.usage, l, later, b.w.config.layer[l].moe ? 8 : 0);
    answer(1, DECODE_HYBRID, 40, NULL);
    check_resident("after a later prompt", is_second_choice);
    CHECK(decode_pinned_experts(b.m.decode), "no number after the first prompt");
    close_bench();
    CHECK(file_exists(b.path), "no profile for the next run");
}

static void send_experts(const float *none, float *want, float *got) {
    struct error err = {0};
    struct resident_set held[GPU_MAX];
    const size_t row = STEPS * (size_t)b.w.config.vocab;
    float largest = 0, apart = 0;
    for (int slots = 1; slots <= b.w.config.n_experts; slots *= 4) {
        char what[64];
        snprintf(what, sizeof what, "sent, %d slots", slots);
        open_bench(&(struct setting){slots == 4 ? "emu:2" : "emu:1", 1, slots, .is_sent = true});
        answer(1, DECODE_HYBRID, 40, slots == 1 ? want : got);
        if (slots > 1) compare(what, got, want);
        const struct decode_counts c = decode_counts(b.m.decode);
        CHECK(c.uploaded && c.hits <= c.selected && c.cpu_s < 1, "%s: %llu uploads", what,
              (unsigned long long)c.uploaded);
        answer(SESSIONS, DECODE_HYBRID, 40, got), compare(what, got, want);
        answer(SESSIONS, DECODE_DUAL, 40, got), compare(what, got, want);
        for (int i = 0; i < 4; i++) answer(3, DECODE_HYBRID, 60 + 31 * i, NULL);
        answer(1, DECODE_HYBRID, 40, got), compare(what, got, want);
        const uint64_t hits = decode_counts(b.m.decode).hits;
        if (decode_lock_weights(b.m.decode, held, &err)) die("lock", &err);
        answer(SESSIONS, DECODE_HYBRID, 40, got), compare("beside a prompt that reads the slots", got, want);
        decode_unlock_weights(b.m.decode);
        for (int i = 0; i < GPU_MAX; i++) resident_set_close(&held[i]);
        CHECK(decode_counts(b.m.decode).hits > hits || slots < PER_LAYER, "%s: no slot is used beside a prompt", what);
        CHECK(ledger_evict(&b.m.gpus->ledger[0], LEDGER_FOR_KV), "a KV cache gets no memory");
        answer(SESSIONS, DECODE_HYBRID, 40, got), compare("with a slot less", got, want);
        decode_evict_experts(b.m.decode, -1, SIZE_MAX);
        decode_reclaim(b.m.decode);
        answer(2, DECODE_HYBRID, 40, got), compare("after a prompt that took the memory", got, want);
        close_bench();
    }
    for (size_t i = 0; i < row; i++)
        largest = fmaxf(largest, fabsf(none[i])), apart = fmaxf(apart, fabsf(none[i] - want[i]));
    CHECK(apart < 1e-4f * largest, "sent: logits of at most %g are %g from the CPU's", (double)largest, (double)apart);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}
int main(void) {
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    open_model();
    const size_t row = STEPS * (size_t)b.w.config.vocab;
    float *want = mem_alloc(row * sizeof *want), *got = mem_alloc(row * sizeof *got),
          *none = mem_alloc(row * sizeof *none);
    write_profile();
    const uint64_t hash = follow_profile(&(struct setting){"emu:1", 1, PER_LAYER, .is_pinned = true}, NULL, want);
    CHECK(follow_profile(&(struct setting){"emu:1", 3, PER_LAYER, .is_pinned = true}, want, got) == hash,
          "another number with more threads");
    follow_profile(&(struct setting){"emu:1", 2, PER_LAYER, .is_pinned = true, .is_deterministic = true}, want, got);
    beside_rows_of_the_cpu(want, got);
    open_bench(&(struct setting){"emu:1", 1, PER_LAYER, .is_deterministic = true});
    answer(1, DECODE_HYBRID, 40, got);
    check_resident("deterministic", is_first);
    CHECK(!decode_pinned_experts(b.m.decode), "a number without pinned experts");
    close_bench();
    open_bench(&(struct setting){"emu:1", 1, 0, .is_deterministic = true});
    answer(1, DECODE_HYBRID, 40, none);
    close_bench();
    float largest = 0, apart = 0; /* the same sums but for rounding */
    for (size_t i = 0; i < row; i++)
        largest = fmaxf(largest, fabsf(none[i])), apart = fmaxf(apart, fabsf(none[i] - want[i]));
    CHECK(apart < 1e-4f * largest, "logits of at most %g are %g from the CPU's", (double)largest, (double)apart);
    if (cpu_level_best() == CPU_SCALAR) printf("SKIPPED: devices compute as the CPU does, which has one level\n");
    else CHECK(memcmp(none, want, row * sizeof *none), "the device computes no experts");
    gives_way(none, got);
    follow_first_prompt(got, none);
    send_experts(none, want, got);
    close_model();
    mem_free(want), mem_free(got), mem_free(none);
    printf("%d failures\n", failures);
    return failures != 0;
}
