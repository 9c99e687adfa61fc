/* The INT4 draft, which is the model with experts in INT4: rounding, drafted tokens, experts predicted by its routers,
 * and its file. On generated checkpoints.
 */
#include "base/mat_at.h"
#include "base/minifloat.h"
#include "engine/session/engine_tasks.h"
#include "engine/weights/weights_open.h"
#include "test/unit/drafted.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"

/* --- Drafted tokens --------------------------------------------------------------------------- */

static void a_row_is_rounded_to_the_nearest_of_sixteen(void **st) {
    enum { N = 300, GROUPS = 3 };
    float x[N];
    uint8_t codes[GROUPS * 64];
    uint16_t scales[GROUPS];
    uint32_t seed = 7;
    for (int i = 0; i < N; i++)
        seed = seed * 1664525 + 1013904223,
        x[i] = i / 128 == 1 ? 0 : (float)(int32_t)seed * 0x1p-31f * (i < 128 ? 1e-3f : 70);
    x[5] = NAN;
    int4_row(x, N, codes, scales);
    x[5] = 0;
    const struct mat m = {.data = codes,
                          .scale = scales,
                          .stride = sizeof codes,
                          .rows = 1,
                          .cols = N,
                          .block_rows = 1,
                          .block_cols = 128,
                          .scale_stride = GROUPS,
                          .row_step = 1,
                          .dtype = DT_INT4,
                          .scale_dtype = DT_BF16};
    for (int i = 0; i < N; i++) {
        const double step = (double)mat_scale_at(&m, 0, i), got = (double)mat_at(&m, 0, i);
        if (i == 5) continue;
        if (i / 128 == 1) assert_true(got == 0);
        else if (x[i] / step > -8 && x[i] / step < 7) assert_true(fabs(got - x[i]) <= fabs(step) * 0.5001);
        else assert_true(got == (x[i] / step < 0 ? -8 : 7) * step);
    }
}

/* The error of normal numbers is well below that of rounding to 15 levels up to the largest. */
static void a_row_is_rounded_closely(void **st) {
    enum { N = 128, ROWS = 500 };
    double ours = 0, plain = 0;
    uint32_t seed = 7;
    for (int r = 0; r < ROWS; r++) {
        float x[N], most = 0;
        uint8_t codes[N / 2];
        uint16_t scale;
        for (int i = 0; i < N; i++) {
            x[i] = 0;
            for (int k = 0; k < 12; k++) seed = seed * 1664525 + 1013904223, x[i] += (float)(int32_t)seed * 0x1p-32f;
            most = fmaxf(most, fabsf(x[i]));
        }
        int4_row(x, N, codes, &scale);
        for (int i = 0; i < N; i++) {
            const int code = (codes[i % 64] >> (i < 64 ? 0 : 4) & 15) - 8;
            const float off = bf16_to_f32(scale) * (float)code - x[i], level = x[i] * 7 / most;
            const float other = (float)(int)(level + (level < 0 ? -0.5f : 0.5f)) * most / 7 - x[i];
            ours += off * off, plain += other * other;
        }
    }
    assert_true(ours < 0.74 * plain);
}

static void wait_for_int4(struct engine *eng) {
    for (int i = 0; !int4_ready(eng->int4); i++) {
        assert_true(i < 60000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Whatever is drafted, the text is the same; and the acceptance is that of such a model. */
static void the_int4_draft_guesses_well(void **st) {
    static const struct {
        const char *gpus;
        enum exec_mode mode;
        int level;
        enum dtype kv;
    } how[] = {{NULL, DECODE_CPU, CPU_SCALAR + 1, DT_F32},
               {NULL, DECODE_CPU, 0, DT_BF16},
               {"emu:1", DECODE_HYBRID, 0, DT_BF16},
               {"emu:2", DECODE_DUAL, 0, DT_BF16}};
    int32_t want[SESSIONS + 1][PROMPT + ANSWER], got[SESSIONS + 1][PROMPT + ANSWER];
    int guessed = 0, right = 0;
    uint64_t there = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        for (size_t h = 0; h < sizeof how / sizeof *how; h++) {
            struct engine_params p = {.gpus = how[h].gpus,
                                      .decode = how[h].mode,
                                      .prefill = PREFILL_CPU,
                                      .cpu_level = how[h].level,
                                      .kv = how[h].kv};
            int drafted, accepted;
            /* the last two: the state that a draft leaves must be discarded */
            const bool states = i + 2 >= sizeof families / sizeof *families;
            if (!all && ((!states && (3 * i + h) % 8 > 1) || (!h && i % 4))) continue;
            struct engine *eng = open_model(families[i], p);
            answer_all(eng, want, &drafted, &accepted);
            engine_close(&eng);
            p.draft = DRAFT_INT4, p.max_drafted = 1 + (int)(i + h) % 5;
            eng = open_model(families[i], p);
            wait_for_int4(eng);
            answer_all(eng, got, &drafted, &accepted);
            there += decode_counts(eng->machine.decode).draft_layers;
            engine_close(&eng);
            if (memcmp(want, got, sizeof want))
                fail_msg("%s, %s: another text", families[i], how[h].gpus ? how[h].gpus : "processor");
            assert_true(drafted > ANSWER);
            guessed += drafted, right += accepted;
        }
    }
    print_message("%d of %d guesses were right, %" PRIu64 " layers of the draft were computed on devices\n", right,
                  guessed, there);
    assert_true(there > 0);
    /* chance accepts 1 %; with the model's own experts on the CPU half are accepted */
    assert_true(right * 100 > guessed * 22 && right * 100 < guessed * 40);
}

/* A model without experts drafts with its dense FFNs in INT4: the text stays, and some guesses are wrong. */
static void a_dense_model_drafts_with_its_ffns(void **st) {
    int32_t want[SESSIONS + 1][PROMPT + ANSWER], got[SESSIONS + 1][PROMPT + ANSWER];
    int drafted, accepted;
    struct engine_params p = {.decode = DECODE_CPU, .prefill = PREFILL_CPU};
    struct engine *eng = open_model("dense_around", p);
    answer_all(eng, want, &drafted, &accepted);
    engine_close(&eng);
    p.draft = DRAFT_INT4, p.max_drafted = 3;
    eng = open_model("dense_around", p);
    wait_for_int4(eng);
    answer_all(eng, got, &drafted, &accepted);
    engine_close(&eng);
    assert_memory_equal(want, got, sizeof want);
    print_message("%d of %d guesses were right\n", accepted, drafted);
    /* the model itself is right in most cases */
    assert_true(drafted > ANSWER && accepted * 5 > drafted && accepted * 4 < drafted * 3);
}

/* A turn that is cancelled while sixteen tokens are drafted waits for one of them, not for all; measured by the weights
 * read afterwards. */
static void a_cancelled_draft_ends_after_one_token(void **st) {
    struct error e = {0};
    struct event ev;
    struct session *s;
    int32_t prompt[PROMPT];
    struct engine *eng =
        open_model("gqa_flat", (struct engine_params){.draft = DRAFT_INT4, .max_drafted = DRAFT_MAX, .context = 4096});
    const uint64_t step = eng->weights.files.bytes + int4_bytes(eng->int4); /* no batch reads more */
    wait_for_int4(eng);
    prompt_of(0, prompt);
    for (int round = 0; round < 12; round++) {
        assert_int_equal(session_open(eng, &s, &e), 0);
        struct request r = {.tokens = prompt,
                            .n = PROMPT,
                            .max_tokens = 2000,
                            .flags = REQ_IGNORE_EOS,
                            .sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)round}};
        assert_int_equal(session_submit(s, &r, &e), 0);
        for (int n = 0; n < 3 + round;) {
            assert_true(engine_poll(eng, &ev, -1));
            n += ev.kind == EVENT_TOKEN;
        }
        uint64_t before = atomic_load(&eng->machine.bytes_read);
        /* until the next draft, or what verifies it, is running */
        while (atomic_load(&eng->machine.bytes_read) == before) usleep(10);
        session_cancel(s);
        before = atomic_load(&eng->machine.bytes_read);
        do assert_true(engine_poll(eng, &ev, -1));
        while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
        assert_int_equal(ev.reason, DONE_CANCELLED);
        assert_true(atomic_load(&eng->machine.bytes_read) - before <= 2 * step);
        session_close(&s);
    }
    engine_close(&eng);
}

/* --- Predicted experts ------------------------------------------------------------------------ */

static void the_soonest_and_surest_experts_come_first(void **st) {
    static const int32_t ids[3][2] = {{4, 1}, {1, 7}, {-1, 4}};
    static const float sure[3][2] = {{0.4f, 0.6f}, {0.9f, 0.1f}, {0, 1}};
    struct lookahead a;
    struct lookahead_need w[4];
    void *mem = malloc(lookahead_bytes(2, 2));
    lookahead_open(&a, 2, 2, mem);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lookahead_add_token(&a, i), i);
        lookahead_record(&a, i, 1, ids[i], sure[i]);
    }
    assert_int_equal(lookahead_needs(&a, 0, w, 4), 0);
    assert_int_equal(lookahead_needs(&a, 1, w, 4), 3);
    assert_true(w[0].expert == 4 && w[0].distance == 0 && w[0].confidence == 1 && w[1].expert == 1 &&
                w[1].distance == 0 && w[1].confidence == 0.9f);
    assert_true(w[2].expert == 7 && w[2].distance == 1);
    assert_int_equal(lookahead_needs(&a, 1, w, 2), 2);
    for (int i = 3; i < LOOKAHEAD_TOKENS; i++) assert_int_equal(lookahead_add_token(&a, i), i);
    assert_int_equal(lookahead_add_token(&a, 0), -1);
    lookahead_clear(&a);
    assert_int_equal(lookahead_needs(&a, 1, w, 4), 0);
    free(mem);
}

/* Each layer has three slots, holding the last three requested experts: checks which are uploaded, phase by phase. */
static int expect_in_phases(void *arg) {
    enum { FAR = 1000 }; /* seconds: always in time, whatever the link */
    static const int32_t first[3] = {0, 1, 2}, second[3] = {3, 4, 5};
    static const float sure[3] = {0.6f, 0.3f, 0.1f};
    struct engine *eng = arg;
    struct decode *s = eng->machine.decode;
    const struct config *c = &eng->weights.config;
    struct lookahead a;
    void *mem = malloc(lookahead_bytes(c->n_layers, c->topk));
    int layers = 0;
    struct error e = {0};
    lookahead_open(&a, c->n_layers, c->topk, mem);
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].moe)
            layers++, assert_int_equal(nan_scan_experts(&eng->machine.scan, l, first, 3, &e) |
                                           nan_scan_experts(&eng->machine.scan, l, second, 3, &e),
                                       0);
    for (int round = 0; round < 4; round++) {
        static const struct {
            enum decode_prefetch_phase phase;
            int moved;
        } asked[] = {{PREFETCH_NONE, 0}, {PREFETCH_LIKELY, 1}, {PREFETCH_ALL, 2}, {PREFETCH_ALL, 0}};
        lookahead_clear(&a);
        lookahead_add_token(&a, 0);
        for (int l = 0; l < c->n_layers; l++)
            if (c->layer[l].moe) lookahead_record(&a, 0, l, round % 2 ? second : first, sure);
        for (int i = 0; i < 4; i++) {
            const uint64_t before = decode_counts(s).uploaded;
            assert_int_equal(decode_prefetch(s, &a, asked[i].phase, FAR), 0);
            /* before the first round others had the slots */
            if (round) assert_int_equal(decode_counts(s).uploaded - before, asked[i].moved * layers);
        }
    }
    const uint64_t before = decode_counts(s).uploaded;
    lookahead_clear(&a);
    lookahead_add_token(&a, 0);
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].moe) lookahead_record(&a, 0, l, first, sure);
    assert_int_equal(decode_prefetch(s, &a, PREFETCH_ALL, -FAR), 0); /* too late for all of them */
    assert_int_equal(decode_counts(s).uploaded, before);
    free(mem);
    return 0;
}
static void foreseen_experts_are_uploaded_in_three_phases(void **st) {
    struct error e = {0};
    struct event ev = {0};
    struct session *s;
    int32_t prompt[PROMPT];
    struct engine *eng = open_model(
        "mla_yarn",
        (struct engine_params){
            .gpus = "emu:1", .decode = DECODE_HYBRID, .prefill = PREFILL_CPU, .expert_cache = "3", .evict = "lru"});
    prompt_of(0, prompt);
    assert_int_equal(session_open(eng, &s, &e), 0);
    submit(s, 0, 3);
    while (ev.kind != EVENT_DONE) assert_true(engine_poll(eng, &ev, -1) && ev.kind != EVENT_ERROR);
    engine_run_on_thread(eng, expect_in_phases, eng);
    session_close(&s);
    engine_close(&eng);
}

/* All experts as bytes, computed or read from the file. */
static uint64_t sum_of(const struct weights *w, struct int4 *d) {
    uint64_t sum = 0;
    for (int i = 0; !int4_ready(d); i++) {
        assert_true(i < 60000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int l = 0; l < w->config.n_layers; l++)
        for (int k = 0; k < w->config.n_experts && int4_experts(d)[l]; k++)
            sum = hash64(int4_experts(d)[l][k].gate.data, int4_expert_bytes(d), sum);
    return sum;
}
static int count(void *ctx, const char *name) { return *name != '.' ? ++*(int *)ctx, 0 : 0; }
static int files_in(const char *dir) {
    int n = 0;
    file_list(dir, count, &n, &(struct error){0});
    return n;
}
static void change_byte(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 1, f);
    fclose(f);
}

static void the_int4_draft_is_kept_on_disk(void **st) {
    char model[1024], dir[] = "int4-XXXXXX", path[1100];
    struct weights w;
    struct int4 *a, *b;
    struct error e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/mla_yarn", root);
    assert_int_equal(weights_open(&w, model, false, &e), 0);
    snprintf(path, sizeof path, "%s/%016llx.int4", dir, (unsigned long long)w.files.fingerprint);
#define OPEN(d) assert_int_equal(int4_open(&(d), &w, CPU_SCALAR, dir, false, &e), 0)
    fault_set(FAULT_WRITE, 2, true, false); /* the disk is full: the draft works, without a file */
    OPEN(a);
    const uint64_t want = sum_of(&w, a);
    int4_close(&a);
    fault_set(FAULT_WRITE, 0, false, false);
    assert_int_equal(files_in(dir), 0);
    OPEN(a), OPEN(b); /* two at the same time */
    assert_true(sum_of(&w, a) == want && sum_of(&w, b) == want);
    for (int i = 0; access(path, F_OK) && i < 60000; i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    int4_close(&a), int4_close(&b);
    assert_int_equal(files_in(dir), 1);
    static const long changed[] = {8, 33, 70, 5000, -1, 0};
    for (int i = 0; i < 6; i++) { /* damages the version, the sample, a checksum, an expert, the last one; nothing */
        struct stat before, after;
        if (changed[i]) change_byte(path, changed[i]);
        assert_int_equal(stat(path, &before), 0);
        OPEN(a);
        assert_true(sum_of(&w, a) == want);
        for (int k = 0; changed[i] && k < 60000 && (stat(path, &after) || after.st_ino == before.st_ino); k++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        int4_close(&a);
        assert_int_equal(stat(path, &after), 0);
        assert_true((after.st_ino == before.st_ino) == !changed[i]); /* a complete file is read and kept */
    }
    assert_int_equal(truncate(path, 100), 0);
    OPEN(a);
    assert_true(sum_of(&w, a) == want);
    int4_close(&a);
    OPEN(a); /* cancelled at once, while idle, and partly done beside other work */
    int4_close(&a);
    OPEN(a);
    int4_set_cpu_busy(a, true);
    int4_close(&a);
    OPEN(a);
    int4_set_cpu_busy(a, true), int4_set_cpu_busy(a, false);
    assert_true(sum_of(&w, a) == want);
    int4_close(&a);
    weights_close(&w);
    unlink(path);
    assert_int_equal(files_in(dir), 0);
    rmdir(dir);
}

/* A matrix with columns in another order is converted in x's order. */
static void columns_are_put_back_in_order(void **st) {
    char model[1024];
    struct weights w;
    struct int4 *d;
    struct error e = {0};
    snprintf(model, sizeof model, "%s/gqa_flat", root);
    assert_int_equal(weights_open(&w, model, false, &e), 0);
    int layer = 0;
    while (!w.layers[layer].experts) layer++;
    struct mat *up = &w.layers[layer].experts[1].up;
    const int n = up->cols, blocks = (n + INT4_GROUP - 1) / INT4_GROUP;
    int32_t *order = calloc((size_t)n, sizeof *order);
    float *stored = calloc((size_t)n, sizeof *stored), *own = calloc((size_t)n, sizeof *own);
    uint8_t *codes = calloc((size_t)blocks, INT4_GROUP / 2);
    uint16_t *scales = calloc((size_t)blocks, sizeof *scales);
    assert_true(order && stored && own && codes && scales);
    for (int c = 0; c < n; c++) order[c] = (c * 5 + 3) % n;
    assert_true(n % 5);
    up->order = order, up->x_cols = n;
    assert_int_equal(int4_open(&d, &w, CPU_SCALAR, NULL, true, &e), 0);
    sum_of(&w, d);
    const struct mat *got = &int4_experts(d)[layer][1].up;
    for (int r = 0; r < up->rows; r++) {
        mat_row(up, r, stored);
        for (int c = 0; c < n; c++) own[order[c]] = stored[c];
        int4_row(own, n, codes, scales);
        assert_memory_equal((const uint8_t *)got->data + (size_t)r * got->stride, codes,
                            (size_t)blocks * INT4_GROUP / 2);
    }
    assert_null(got->order);
    int4_close(&d);
    weights_close(&w);
    free(order), free(stored), free(own), free(codes), free(scales);
}

static void who_cannot_have_an_int4_draft_says_so(void **st) {
    struct error err = {0};
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 300u << 20, &err), 0);
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 0, &err), 0);
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 299u << 20, &err), ERR_MEMORY);
    assert_non_null(strstr(err.text, "100 MB for its experts beside 200 MB of weights, 299 MB are free"));
}

int main(int argc, char **argv) {
    root = argc > 1 ? argv[1] : "";
    all = argc > 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_row_is_rounded_to_the_nearest_of_sixteen),
                                       cmocka_unit_test(a_row_is_rounded_closely),
                                       cmocka_unit_test(the_int4_draft_guesses_well),
                                       cmocka_unit_test(the_int4_draft_is_kept_on_disk),
                                       cmocka_unit_test(a_dense_model_drafts_with_its_ffns),
                                       cmocka_unit_test(a_cancelled_draft_ends_after_one_token),
                                       cmocka_unit_test(the_soonest_and_surest_experts_come_first),
                                       cmocka_unit_test(foreseen_experts_are_uploaded_in_three_phases),
                                       cmocka_unit_test(columns_are_put_back_in_order),
                                       cmocka_unit_test(who_cannot_have_an_int4_draft_says_so)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
