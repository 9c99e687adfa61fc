/* Dual batch in real time, without measuring any: attention of one micro-batch on the device and experts of the other
 * on the CPU must be able to run at once. Each attention of the device waits until the CPU has begun the experts that
 * belong beside it, and these wait until it has begun. A batch that runs one after the other never meets them. The
 * linker wraps both operations (--wrap). usage: test_rendezvous    the built-in model */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/ember/ember.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "engine/weights/weights_open.h"
#include "test/env.h"

enum { SESSIONS = 2, KEYS = 24, STEPS = 3, PATIENCE_S = 60 };

static int failures;
static void die(const char *what, const struct error *e) {
    printf("FAIL %s: %s\n", what, e->text);
    exit(1);
}

static struct bench {
    struct weights w;
    struct pool *pool;
    struct runtime m;
    struct kv kv[SESSIONS];
} b;

/* --- Meeting ---------------------------------------------------------------------------------- */

/* Of one step: operations that have begun. Attention number 2 * l + i is that of micro-batch i in layer l; only layers
 * from 1 on have experts, number 2 * (l - 1) + i. Micro-batch 1 of a layer attends beside the experts of micro-batch 0
 * in that layer, and micro-batch 0 of the next layer beside those of micro-batch 1: attention number a beside the
 * experts number a - 3. */
enum { APART = 3 };
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_on, is_given_up;
    int attended, expert_calls;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Counts an operation in *own and waits until *other has reached `least`. */
static void meet(const char *what, int *own, const int *other, int least) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    ++*own;
    pthread_cond_broadcast(&meeting.changed);
    while (*other < least && !meeting.is_given_up)
        if (pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end)) {
            failures++, meeting.is_given_up = true;
            printf("FAIL: %s %d waits for operation %d of the other kind, of which %d have begun\n", what, *own - 1,
                   least - 1, *other);
            pthread_cond_broadcast(&meeting.changed);
        }
}

int __real_cpu_attention(struct exec *x, const struct op_attention *o);
int __wrap_cpu_attention(struct exec *x, const struct op_attention *o);
int __wrap_cpu_attention(struct exec *x, const struct op_attention *o) {
    pthread_mutex_lock(&meeting.lock);
    if (meeting.is_on && x != b.m.cpu)
        meet("attention", &meeting.attended, &meeting.expert_calls, meeting.attended - APART + 1);
    pthread_mutex_unlock(&meeting.lock);
    return __real_cpu_attention(x, o);
}
int __real_cpu_experts(struct exec *x, const struct op_experts *o);
int __wrap_cpu_experts(struct exec *x, const struct op_experts *o);
int __wrap_cpu_experts(struct exec *x, const struct op_experts *o) {
    pthread_mutex_lock(&meeting.lock);
    const int all = SESSIONS * b.w.config.n_layers, least = meeting.expert_calls + APART + 1;
    if (meeting.is_on && x == b.m.cpu)
        meet("experts", &meeting.expert_calls, &meeting.attended, least < all ? least : all);
    pthread_mutex_unlock(&meeting.lock);
    return __real_cpu_experts(x, o);
}

/* --- The batch -------------------------------------------------------------------------------- */

static void open_bench(void) {
    struct error err = {0};
    _Atomic int never = 0;
    const struct config *c = &b.w.config;
    if (weights_open(&b.w, "ember:", false, &err) || weight_state_open(&b.m.weight_state, c, &err)) die("model", &err);
    b.m.w = &b.w;
    if (pool_open(&b.pool, 1, false, &err) || !(b.m.cpu = cpu_exec_open(b.pool, CPU_SCALAR, &err)))
        die("processor", &err);
    b.m.scan = (struct nan_scan){&b.w, b.pool, &b.m.weight_state};
    b.m.expert_touched = mem_calloc((size_t)c->n_experts + 1, 1);
    b.m.expert_cache.request = BUDGET_OFF; /* all experts on the CPU, so that it is known what meets */
    if (gpu_set_open(&b.m.gpus, "emu:1", &err) || decode_open(&b.m.decode, &b.m, DT_F32, &err)) die("open", &err);
    for (int i = 0; i < SESSIONS; i++) {
        int32_t tokens[KEYS];
        for (int k = 0; k < KEYS; k++) tokens[k] = (k * 37 + i * 11) % 500;
        struct decode_span span = {.kv = &b.kv[i], .tokens = tokens, .n = KEYS};
        if (kv_open(&b.kv[i], c, kv_planes, 256, DT_F32, &err) ||
            decode_run(b.m.decode, DECODE_CPU, &span, 1, &never, &err))
            die("keys", &err);
    }
}
static void close_bench(void) {
    for (int i = 0; i < SESSIONS; i++) decode_forget(b.m.decode, &b.kv[i]);
    decode_close(&b.m.decode);
    gpu_set_close(&b.m.gpus);
    for (int i = 0; i < SESSIONS; i++) kv_close(&b.kv[i]);
    cpu_exec_close(&b.m.cpu);
    pool_close(&b.pool);
    weight_state_close(&b.m.weight_state);
    mem_free(b.m.expert_touched);
    weights_close(&b.w);
}

static void step(int at, bool meets) {
    struct error err = {0};
    _Atomic int never = 0;
    int32_t token[SESSIONS];
    struct decode_span spans[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        token[i] = 40 + i + at,
        spans[i] = (struct decode_span){.kv = &b.kv[i], .tokens = &token[i], .pos = KEYS + at, .n = 1};
    meeting.attended = meeting.expert_calls = 0, meeting.is_on = meets;
    if (decode_run(b.m.decode, DECODE_DUAL, spans, SESSIONS, &never, &err)) die("step", &err);
    meeting.is_on = false;
    if (decode_last_exec(b.m.decode) != DECODE_DUAL) die("step", &(struct error){.text = "it ran otherwise"});
    const int layers = b.w.config.n_layers;
    if (meets && (meeting.attended != SESSIONS * layers || meeting.expert_calls != SESSIONS * (layers - 1)))
        failures++, printf("FAIL: %d attentions and %d calls of experts\n", meeting.attended, meeting.expert_calls);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}
int main(void) {
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    open_bench();
    step(0, false); /* loads weights and uploads the keys */
    for (int at = 1; at <= STEPS && !meeting.is_given_up; at++) step(at, true);
    close_bench();
    printf("%d failures\n", failures);
    return failures != 0;
}
