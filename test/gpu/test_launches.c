/* Counts what a decoded token costs a device in launches, copies and signals, for the shapes of models: a bound that
 * keeps them from growing. usage: test_launches [cuda] DIR...    cuda: kernels of the emulated CUDA backend instead of
 * an emulated device's operations */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/placement/cost.h"
#include "engine/session/engine_state.h"
#include "gpu/fuse.h"
#include "test/env.h"

_Static_assert((int)COST_CHAIN_NUMBERS == (int)FUSE_NUMBERS, "the cost model joins what devices join");

enum { PROMPT = 9, FIRST = 6, LAST = 14, TOKENS = LAST - FIRST }; /* the first answers record graphs */

uint64_t cuda_emulate_enqueued(int kind) __attribute__((weak)); /* 0 kernels, 1 copies */

static int failed;
static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}
static void quiet(void *ctx, enum log_level level, const char *text) {}

struct counts {
    double ops, copies, waits;
    int layers, modelled; /* modelled: operations of a layer in the cost model; 0: layers differ */
};
/* Counts of a whole run that answers with n tokens. */
static struct counts count(const char *dir, const char *gpus, const char *cache, int n) {
    struct engine *eng;
    struct session *s;
    struct error e = {0};
    struct event ev = {0};
    int32_t tokens[PROMPT];
    const struct engine_params p = {.dir = dir,
                                    .threads = 1,
                                    .cpu_level = CPU_SCALAR + 1,
                                    .gpus = gpus,
                                    .prefill = PREFILL_CPU,
                                    .decode = DECODE_HYBRID,
                                    .expert_cache = cache,
                                    .draft = DRAFT_NONE,
                                    .context = 64,
                                    .deterministic = true};
    if (engine_open(&eng, &p, &e) || session_open(eng, &s, &e)) die(dir, &e);
    const int ids = engine_info(eng)->vocab < 500 ? engine_info(eng)->vocab : 500;
    for (int k = 0; k < PROMPT; k++) tokens[k] = (k * 37 + 11) % ids;
    if (session_submit(s, &(struct request){.tokens = tokens, .n = PROMPT, .max_tokens = n, .flags = REQ_IGNORE_EOS},
                       &e))
        die(dir, &e);
    while (ev.kind != EVENT_DONE) {
        if (!engine_poll(eng, &ev, 120000)) die(dir, &(struct error){.text = "nothing for two minutes"});
        if (ev.kind == EVENT_ERROR) die(dir, &ev.error);
    }
    if (strcmp(ev.stats.decode_mode, "hybrid")) die(dir, &(struct error){.text = "decoded in another mode"});
    session_close(&s);
    struct gpu_stats u = gpu_stats(eng->machine.gpus->gpu[0]);
    const struct config *m = &eng->machine.w->config;
    struct cost_model q;
    cost_model_of(&q, m, DT_BF16, DT_BF16, DT_BF16);
    struct counts c = {(double)u.n_ops, (double)u.n_copies, (double)u.n_waits, m->n_layers,
                       q.n_joined_linear_ops + q.n_joined_elem_ops + 1 + (q.shared_bytes > 0)};
    c.modelled = config_has_states(m) ? 0 : c.modelled + !strcmp(cache, "layers");
    engine_close(&eng);
    return c;
}

/* Counts per answered token. */
static struct counts per_token(const char *dir, bool cuda, bool joins, const char *cache) {
    char gpus[64];
    uint64_t before[2] = {0};
    struct counts of[2];
    snprintf(gpus, sizeof gpus, "%s%s", cuda ? "0,math=f32" : "emu:1,cpu=scalar", joins ? "" : ",nojoin");
    for (int k = 0; k < 2; k++) {
        for (int i = 0; cuda && i < 2; i++) before[i] = cuda_emulate_enqueued(i);
        of[k] = count(dir, gpus, cache, k ? LAST : FIRST);
        if (cuda)
            of[k].ops = (double)(cuda_emulate_enqueued(0) - before[0]),
            of[k].copies = (double)(cuda_emulate_enqueued(1) - before[1]);
    }
    return (struct counts){(of[1].ops - of[0].ops) / TOKENS, (of[1].copies - of[0].copies) / TOKENS,
                           (of[1].waits - of[0].waits) / TOKENS, of[0].layers, of[0].modelled};
}

/* Most operations of an emulated device per layer, beside at most ALONE per token. */
static const struct bound {
    const char *end; /* of a checkpoint's path */
    double resident, hybrid;
} bounds[] = {{"qwen3_moe", 9, 8},   {"deepseek_v3", 13.25, 12.5}, {"gpt_oss", 9, 8},
              {"glm4_moe", 9, 8.5},  {"qwen3_next", 12.25, 11.25}, {"gqa_norm", 9, 8},
              {"mla_plain", 13, 12}, {"delta_fused", 11.5, 10.75}};
enum { ALONE = 7 };

static void check(const char *dir, bool cuda, bool hybrid) {
    const char *cache = hybrid ? "off" : "layers", *name = strrchr(dir, '/') ? strrchr(dir, '/') + 1 : dir;
    const struct counts all = per_token(dir, cuda, true, cache), each = per_token(dir, cuda, false, cache);
    printf("%s, %d layers, experts on the %s: %.0f %s and %.0f copies per token, not joined %.0f and %.0f; %.0f "
           "signals and waits\n",
           name, all.layers, hybrid ? "CPU" : "device", all.ops, cuda ? "kernels" : "operations", all.copies, each.ops,
           each.copies, all.waits);
    if (cuda) return;
    bool known = false;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (strcmp(bounds[i].end, name)) continue;
        known = true;
        const double most = (hybrid ? bounds[i].hybrid : bounds[i].resident) * all.layers + ALONE;
        if (all.ops > most) failed++, printf("FAIL: more than %.0f operations\n", most);
    }
    const double each_layer = (all.ops - ALONE) / all.layers; /* a layer with a dense FFN has no router */
    if (all.modelled && (each_layer > all.modelled || each_layer < all.modelled - 1.5))
        failed++, printf("FAIL: the cost model counts %d operations per layer\n", all.modelled);
    if (!known) failed++, printf("FAIL: no bound for %s\n", name);
    if (all.ops + all.copies >= each.ops + each.copies) failed++, printf("FAIL: nothing is joined\n");
}

int main(int argc, char **argv) {
    const bool cuda = argc > 1 && !strcmp(argv[1], "cuda");
    log_set(quiet, NULL, LOG_WARN);
    for (int i = 1 + cuda; i < argc; i++) check(argv[i], cuda, false), check(argv[i], cuda, true);
    return failed != 0;
}
