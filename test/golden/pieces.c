/* Compares a sequence's logits with a reference for several splits: whole, as prefills that each continue after the
 * rows of the one before, and token by token; on the CPU at every level it has, on emulated devices, and on both at
 * once. On the CPU several prompts are also read together. usage: pieces DIR TOKENS REFERENCE [THIRD]    TOKENS:
 * comma-separated ids. REFERENCE: a file of float32 [tokens, columns]; the columns are spread evenly over the
 * vocabulary, starting with 0. THIRD: 0 to 2, of the devices' cases; or "joined": only prompts that are read together.
 * Exit 1 when a result exceeds its tolerance. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "cpu/gemm_inner.h"
#include "engine/ember/ember.h"
#include "engine/exec/stream/slp.h"
#include "engine/session/engine_state.h"
#include "test/env.h"

/* Tolerances relative to the reference's largest logit. Levels with float32 activations differ by the order of
 * summation only (up to 3.4e-6 observed). Levels that round activations to BF16 may also flip a close choice of
 * experts, so there the median of the positions counts (up to 1.7e-2 observed, in three passes over the same layers;
 * else 7.1e-3). Those that round activations of experts to 8 bits, with a scale for 32, lose about twice as much
 * (3.6e-2 of that model). */
static const double float_bound = 1e-5, bf16_bound = 2e-2, int8_bound = 4e-2;
/* For few tokens, experts in blocks or FP4 use integer products, which keep 16 bits of an activation (up to 3.1e-4
 * observed). */
static const double whole_bound = 6e-4;

enum { MAX_TOKENS = 512 };
static int32_t tokens[2][MAX_TOKENS]; /* the sequence; the same reversed, for a second session in the batch */
static int n_tokens, n_columns, failures, ran;
static bool only_joined;
static float *reference; /* [n_tokens, n_columns] */
static double largest;

static const struct {
    const char *gpus;                  /* LIST of --gpus; NULL: CPU only */
    const struct prefill_driver *mode; /* of the prefills */
    enum exec_mode cut;                /* of the decoded tokens */
    const char *split;
    bool turns; /* every other decode batch is on the CPU only */
    int layers; /* maximum layers per device; 0: as many as fit */
    bool mixed; /* the checked session decodes on the CPU, in a batch with one on devices */
} places[] = {
    {NULL, &prefill_mode_cpu, DECODE_CPU},
    {"emu:1,cpu=scalar,chunk=7", &prefill_mode_slp, DECODE_CPU},
    {"emu:1,cpu=scalar", &prefill_mode_cpu, DECODE_HYBRID, .turns = true},
    {"emu:1,cpu=avx2,ring=2", &prefill_mode_slp, DECODE_HYBRID},
    {"emu:2,cpu=scalar", &prefill_mode_dslp, DECODE_HYBRID},
    /* some layers on each, others on the CPU */
    {"emu:2,cpu=scalar,parallel=layers", &prefill_mode_cpu, DECODE_HYBRID, .layers = 1},
    {"emu:3,cpu=scalar,nopeer,chunk=5,ring=3", &prefill_mode_dslp, DECODE_CPU},
    {"emu:4,cpu=avx2", &prefill_mode_dslp, DECODE_DUAL},
    {"emu:1,cpu=scalar", &prefill_mode_blend, DECODE_HYBRID, "cut"},
    {"emu:1,cpu=scalar,h2d=1", &prefill_mode_blend, DECODE_HYBRID, "trimoe"},
    {"emu:1,cpu=avx2", &prefill_mode_blend, DECODE_CPU, "trimoe"},
    {"emu:1,cpu=scalar,bw=1", &prefill_mode_blend, DECODE_DUAL, "hybrimoe"},
    /* the second device has experts only */
    {"emu:2,cpu=scalar,h2d=1", &prefill_mode_blend, DECODE_HYBRID, "trimoe"},
    /* together all layers of each reference */
    {"emu:3,cpu=scalar,h2d=1,bw=1", &prefill_mode_blend, DECODE_DUAL, "auto", .layers = 3},
    /* a shard of each layer on each, where possible */
    {"emu:2,cpu=scalar,parallel=tensor", &prefill_mode_cpu, DECODE_HYBRID, .turns = true},
    {"emu:3,cpu=scalar,parallel=tensor", &prefill_mode_slp, DECODE_DUAL},
    {"emu:1,cpu=scalar", &prefill_mode_cpu, DECODE_HYBRID, .mixed = true},
};
/* Where a prefill ends, in 24ths of the sequence; the rest is decoded. */
static const int cuts[][4] = {{24}, {1, 11, 12, 24}, {8, 24}, {7, 21}};

struct rows {
    double off[MAX_TOKENS]; /* error of each position */
    int next, vocab;
};
static int take(void *ctx, int position, const float *logits) {
    struct rows *r = ctx;
    if (position != r->next++) return 1;
    double worst = 0;
    for (int c = 0; c < n_columns; c++) {
        double d = fabs((double)logits[c * (r->vocab / n_columns)] - (double)reference[position * n_columns + c]);
        if (isnan(d) || d > worst) worst = d; /* NaN must propagate */
    }
    r->off[position] = worst / largest;
    return 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return isnan(y) ? -1 : isnan(x) ? 1 : (x > y) - (x < y);
}

static int prefill(struct runtime *m, const struct prefill_driver *mode, struct prefill_job *j, struct error *err) {
    if (mode == &prefill_mode_dslp && slp_why_unsplittable(&m->w->config)) mode = &prefill_mode_slp;
    int rc = mode->open(m, j, err);
    if (rc) return rc;
    do {
        while (!atomic_load(&j->is_ready)) usleep(100);
    } while ((rc = mode->advance(m, j, err)) == PREFILL_MORE);
    mode->close(m, j);
    return rc;
}

/* A token that is replaced later: the devices' rows of it are stale. */
static int mislead(struct engine *eng, enum exec_mode cut, struct session *s, const int32_t *wrong, int at,
                   struct error *e) {
    _Atomic int never = 0;
    int rc = decode_run(eng->machine.decode, cut,
                        &(struct decode_span){.kv = &s->kv, .tokens = wrong, .pos = at, .n = 1, .n_before = at}, 1,
                        &never, e);
    decode_rewind(eng->machine.decode, &s->kv, at);
    return rc;
}

/* Decodes the rest. With two rows in the batch, the other session's row comes first or second, alternately. */
static int decode(struct engine *eng, int place, struct session *const *s, int at, struct rows *r, struct error *e) {
    int rc = 0;
    for (_Atomic int never = 0; at < n_tokens && !rc; at++) {
        enum exec_mode cut = places[place].turns && at % 2 ? DECODE_CPU : places[place].cut;
        int n = cut == DECODE_DUAL || places[place].mixed ? 2 : 1;
        struct decode_span spans[2];
        for (int k = 0; k < n; k++)
            spans[(k + at) % n] =
                (struct decode_span){.kv = &s[k]->kv, .tokens = &tokens[k][at], .pos = at, .n = 1, .n_before = at};
        rc = decode_run(eng->machine.decode, cut, spans, n, &never, e);
        if (!rc && decode_last_exec(eng->machine.decode) != cut)
            rc = error_set(e, ERR_RUNTIME, "the step ran otherwise");
        if (!rc) rc = take(r, at, spans[at % n].logits);
    }
    return rc;
}

static int run(struct engine *eng, int place, const int *cut, struct rows *r, struct error *e) {
    struct session *s[2];
    float *logits = mem_alloc((size_t)r->vocab * sizeof *logits);
    _Atomic int never = 0;
    int at = 0, rc = logits ? session_open(eng, &s[0], e) : ERR_MEMORY,
        both = places[place].cut == DECODE_DUAL || places[place].mixed ? 2 : 1;
    if (!rc && (rc = session_open(eng, &s[1], e))) session_close(&s[0]);
    if (rc) return rc;
    for (int k = both; k-- > 0 && !rc;) { /* the first one is checked */
        r->next = at = 0;
        for (int i = 0; i < 4 && cut[i] && !rc; i++) {
            int end = n_tokens * cut[i] / 24;
            rc = mislead(eng, places[place].cut, s[k], &tokens[!k][at], at, e);
            if (!rc)
                rc = prefill(&eng->machine, places[place].mode,
                             &(struct prefill_job){.kv = &s[k]->kv,
                                                   .tokens = tokens[k] + at,
                                                   .pos = at,
                                                   .n = end - at,
                                                   .n_before = at,
                                                   .last_logits = logits,
                                                   .on_logits = take,
                                                   .on_logits_ctx = r,
                                                   .cancel = &never},
                             e);
            at = end;
        }
    }
    if (!rc) rc = decode(eng, place, s, at, r, e);
    session_close(&s[0]);
    session_close(&s[1]);
    mem_free(logits);
    return rc;
}

/* --- Prompts of three sessions that are read together: each has the bits that it has alone --- */

enum { JOINED = 3, PREFIX = 3 };
/* Reads the prompts, after the first tokens of each, alone or together, and decodes a token of each. logits:
 * [2, JOINED, vocab] of the prompts' last tokens, and of those after them. */
static int read_prompts(struct engine *eng, struct session *const *s, const int *n, bool together, float *logits,
                        struct error *e) {
    struct prefill_job job[JOINED] = {0};
    _Atomic int never = 0;
    const size_t vocab = (size_t)engine_info(eng)->vocab;
    float *unused = logits + (2 * JOINED - 1) * vocab; /* until the last token is decoded */
    for (int i = 0; i < JOINED; i++) {
        const int32_t *text = tokens[i % 2];
        struct prefill_job first = {
            .kv = &s[i]->kv, .tokens = text, .n = PREFIX, .last_logits = unused, .cancel = &never};
        TRY(prefill(&eng->machine, &prefill_mode_cpu, &first, e));
        job[i].kv = &s[i]->kv, job[i].tokens = text + PREFIX, job[i].pos = job[i].n_before = PREFIX;
        job[i].n = n[i], job[i].cancel = &never, job[i].last_logits = logits + (size_t)i * vocab;
        if (together && i) job[i - 1].joined = &job[i];
        if (!together) TRY(prefill(&eng->machine, &prefill_mode_cpu, &job[i], e));
    }
    if (together) TRY(prefill(&eng->machine, &prefill_mode_cpu, job, e));
    for (int i = 0; i < JOINED; i++) {
        const int at = PREFIX + n[i];
        struct decode_span next = {.kv = &s[i]->kv, .tokens = &tokens[i % 2][at], .pos = at, .n = 1, .n_before = at};
        TRY(decode_run(eng->machine.decode, DECODE_CPU, &next, 1, &never, e));
        memcpy(logits + (size_t)(JOINED + i) * vocab, next.logits, vocab * sizeof *logits);
    }
    return 0;
}
static void check_joined(struct engine *eng, const char *level, const int *n) {
    const size_t floats = 2 * JOINED * (size_t)engine_info(eng)->vocab;
    float *alone = mem_calloc(floats, sizeof *alone), *together = mem_calloc(floats, sizeof *together);
    struct session *s[2 * JOINED] = {0};
    struct error e = {0};
    int rc = alone && together ? 0 : ERR_MEMORY;
    for (int i = 0; i < 2 * JOINED && !rc; i++) rc = session_open(eng, &s[i], &e);
    if (!rc) rc = read_prompts(eng, s, n, false, alone, &e);
    if (!rc) rc = read_prompts(eng, s + JOINED, n, true, together, &e);
    const bool ok = !rc && !memcmp(alone, together, floats * sizeof *alone);
    printf("%-4s processor (%s), %d, %d and %d tokens together%s%s\n", ok ? "ok" : "FAIL", level, n[0], n[1], n[2],
           rc ? ": " : "", rc ? e.text : "");
    failures += !ok, ran++;
    for (int i = 0; i < 2 * JOINED; i++) session_close(&s[i]);
    mem_free(alone);
    mem_free(together);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

/* Whether a level rounds activations of some experts to 8 bits. */
static bool has_int8(const struct engine *eng, int level) {
    const struct weights *w = &eng->weights;
    for (int l = 0; l < w->config.n_layers; l++)
        for (int n = 1; n <= n_tokens && w->layers[l].experts; n += n_tokens - 1) {
            const struct mat *m = &w->layers[l].experts[0].gate;
            const struct gemm *g = gemm_for_weights((enum cpu_level)level, n, n, false, m);
            if (g && g->is_int8 && g->supports(m, n)) return true;
        }
    return false;
}
/* Returns the tolerance at a level, or for devices whose products are of a higher level. */
static double bound_of(const struct engine *eng, int level, const char *gpus) {
    if (gpus && strstr(gpus, "cpu=avx2") && level < CPU_AVX2) level = CPU_AVX2;
    const struct kernels *k = gemm_kernels((enum cpu_level)level);
    const struct weights *w = &eng->weights;
    if (has_int8(eng, level)) return int8_bound;
    if (gemm_for((enum cpu_level)level, false)->bf16) return bf16_bound;
    for (int l = 0; l < w->config.n_layers; l++)
        if (w->layers[l].experts && k->whole[w->layers[l].experts[0].gate.dtype]) return whole_bound;
    return float_bound;
}

static void check(const char *dir, int place, int level) {
    struct error e = {0};
    struct engine *eng;
    struct engine_params p = {.dir = dir,
                              .threads = 2,
                              .cpu_level = level + 1,
                              .kv = DT_F32,
                              .gpus = places[place].gpus,
                              .split = places[place].split,
                              .context = MAX_TOKENS};
    const char *where = places[place].gpus ? places[place].gpus : "processor";
    const struct gemm *products = gemm_for((enum cpu_level)level, false);
    test_limits_set(TEST_LIMIT_DEVICE_LAYERS, (size_t)places[place].layers);
    test_limits_set(TEST_LIMIT_DEVICE_CHATS, places[place].mixed);
    if (engine_open(&eng, &p, &e)) {
        printf("FAIL %s: %s\n", where, e.text);
        failures++;
        return;
    }
    const double bound = bound_of(eng, level, places[place].gpus);
    /* devices: after a prefix */
    for (size_t i = places[place].gpus ? 2 : 0; i < sizeof cuts / sizeof *cuts && !only_joined; i++) {
        static struct rows r;
        r = (struct rows){.vocab = engine_info(eng)->vocab};
        int rc = run(eng, place, cuts[i], &r, &e);
        qsort(r.off, (size_t)n_tokens, sizeof *r.off, by_size);
        double off = bound >= bf16_bound ? r.off[n_tokens / 2] : r.off[n_tokens - 1];
        bool ok = !rc && r.next == n_tokens && off <= bound;
        printf("%-4s %s, %s (%s), cut %zu: %.2g of %g%s%s\n", ok ? "ok" : "FAIL", where,
               cpu_level_name((enum cpu_level)level), products->name, i, off, largest, rc ? ": " : "",
               rc ? e.text : "");
        failures += !ok, ran++;
    }
    const int most = n_tokens - PREFIX - 1, few[JOINED] = {most < 5 ? most : 5, most < 20 ? most : 20, 1},
              many[JOINED] = {BATCH_INVARIANT_ROWS + 1, most, (BATCH_INVARIANT_ROWS + 1 + most) / 2};
    if (!places[place].gpus) check_joined(eng, cpu_level_name((enum cpu_level)level), few);
    if (!places[place].gpus && most > BATCH_INVARIANT_ROWS)
        check_joined(eng, cpu_level_name((enum cpu_level)level), many);
    engine_close(&eng);
}

int main(int argc, char **argv) {
    FILE *f = argc == 4 || argc == 5 ? fopen(argv[3], "rb") : NULL;
    if (!f) {
        fprintf(stderr, "usage: pieces DIR TOKENS REFERENCE [THIRD]\n");
        return 2;
    }
    for (const char *s = argv[2]; *s && n_tokens < MAX_TOKENS; s += *s == ',')
        tokens[0][n_tokens++] = (int32_t)strtol(s, (char **)&s, 10);
    for (int i = 0; i < n_tokens; i++) tokens[1][i] = tokens[0][n_tokens - 1 - i];
    fseek(f, 0, SEEK_END);
    size_t floats = (size_t)ftell(f) / sizeof *reference;
    rewind(f);
    n_columns = (int)(floats / (size_t)n_tokens);
    reference = malloc(floats * sizeof *reference);
    if (!reference || fread(reference, sizeof *reference, floats, f) != floats ||
        floats != (size_t)n_tokens * (size_t)n_columns)
        return 2;
    fclose(f);
    for (size_t i = 0; i < floats; i++) largest = fmax(largest, fabs((double)reference[i]));
    only_joined = argc == 5 && !strcmp(argv[4], "joined");
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    for (int level = CPU_SCALAR; level < CPU_LEVELS; level++)
        if (cpu_level_has((enum cpu_level)level)) check(argv[1], 0, level);
        else printf("SKIPPED: this CPU has no %s\n", cpu_level_name((enum cpu_level)level));
    for (size_t i = 1; i < sizeof places / sizeof *places && !only_joined; i++)
        if (argc == 5 && i % 3 != strtoul(argv[4], NULL, 10)) continue;
        else if (!strstr(places[i].gpus, "avx2") || cpu_level_has(CPU_AVX2)) check(argv[1], (int)i, CPU_SCALAR);
    printf("%d runs, %d failed\n", ran, failures);
    return failures || !ran;
}
