/* A prompt does not upload what its devices hold already: SLP, DSLP and blended prefills with none, some or all experts
 * resident give the same logits, bit by bit, and the bytes that cross the link fall by the resident share. Sessions
 * that decode beside such a prompt, or a device that fails meanwhile, change nothing. The built-in model. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/ember/ember.h"
#include "engine/session/engine_state.h"
#include "test/env.h"

enum { PROMPT = 48, ANSWER = 6, LAYERS = 4, EXPERTS = 16 }; /* of ember: layers with experts, experts of each */

static int failed, n_tries;
#define CHECK(ok, ...) \
    do { \
        if (!(ok)) { \
            printf("FAIL %s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__); \
            printf("\n"), failed++; \
        } \
    } while (0)

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}
static void quiet(void *ctx, enum log_level level, const char *text) {}

static int add_up(void *sum, int position, const float *logits) {
    uint64_t *h = sum;
    uint32_t bits;
    for (int i = 0; i < 500; i++) memcpy(&bits, &logits[i], sizeof bits), *h = (*h ^ bits) * 1099511628211u;
    return 0;
}

struct outcome {
    uint64_t sum, bytes; /* checksum of all logits; weights read for the prompt */
    uint64_t first;      /* weights read for the turn before it */
    int resident;        /* experts on devices during it */
    char mode[16];
};

/* Runs a turn of n tokens to its end; the prompts of two turns differ. answer 0: only the prompt. */
static struct event run_turn(struct engine *eng, int n, int first, int answer, uint64_t *sum) {
    struct session *s;
    struct error e = {0};
    struct event ev;
    int32_t tokens[PROMPT];
    for (int i = 0; i < n; i++) tokens[i] = (i * 37 + first) % 500;
    if (session_open(eng, &s, &e)) die("session", &e);
    struct request r = {.tokens = tokens, .n = n, .max_tokens = answer, .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE};
    if (sum) *sum = 14695981039346656037u, r.logits = add_up, r.logits_ctx = sum;
    if (session_submit(s, &r, &e)) die("submit", &e);
    do
        if (!engine_poll(eng, &ev, 120000)) die("poll", &(struct error){.text = "nothing for two minutes"});
    while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
    if (ev.kind == EVENT_ERROR) die("a turn", &ev.error);
    session_close(&s);
    return ev;
}

static int count_resident(struct engine *eng) {
    struct expert_map m;
    struct error e = {0};
    int n = 0, listed = 0;
    if (engine_expert_map(eng, &m, &e)) die("map", &e);
    for (int i = 0; i < m.n_devices; i++) { /* the devices' figures agree with the map */
        const struct expert_device *d = &m.device[i];
        const bool whole = d->resident_layers == d->layers && d->layers > 0;
        listed += d->resident_layers * EXPERTS + d->cached;
        CHECK(d->hits <= d->chosen && (!d->resident_layers || d->resident_bytes > 0) &&
                  (!d->cached || d->cached_bytes > 0),
              "figures of device %d", d->rank);
        CHECK(!whole || d->hits == d->chosen, "device %d computed %" PRIu64 " of %" PRIu64 " choices", d->rank, d->hits,
              d->chosen);
    }
    for (int i = 0; i < m.n_layers * m.n_experts; i++) n += m.device_rank[i] >= 0;
    CHECK(listed == n, "devices list %d experts, the map %d", listed, n);
    engine_expert_map_free(&m);
    return n;
}

/* Decodes an answer first, which loads what decode keeps on devices; then prefills. */
static struct outcome read_prompt(const char *gpus, enum exec_mode prefill, const char *experts) {
    struct engine *eng;
    struct error e = {0};
    struct outcome out = {0};
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = 1,
                              .gpus = gpus,
                              .prefill = prefill,
                              .decode = experts ? DECODE_HYBRID : DECODE_CPU,
                              .expert_cache = experts,
                              .context = 128,
                              .kv = DT_F32,
                              .draft = DRAFT_NONE};
    if (engine_open(&eng, &p, &e)) die(gpus, &e);
    out.first = run_turn(eng, PROMPT, 3, ANSWER, NULL).stats.bytes_read;
    if (experts) run_turn(eng, PROMPT / 4, 7, 0, NULL); /* by its end what the pools were still uploading has arrived */
    struct event ev = run_turn(eng, PROMPT, 11, 0, &out.sum);
    out.bytes = ev.stats.bytes_read;
    out.resident = count_resident(eng); /* those evicted for the prompt return with the next decode batch */
    snprintf(out.mode, sizeof out.mode, "%s", ev.stats.prefill_mode);
    engine_close(&eng);
    return out;
}

/* SLP: the link carries all experts but the resident ones, and no dense layer of a device that holds it. */
static void streams_the_rest(void) {
    const struct outcome plain = read_prompt("emu:1,cpu=scalar", PREFILL_SLP, NULL),
                         dense = read_prompt("emu:1,cpu=scalar", PREFILL_SLP, "off"),
                         all = read_prompt("emu:1,cpu=scalar", PREFILL_SLP, "layers");
    const double experts = (double)(dense.bytes - all.bytes);
    static const struct {
        const char *gpus, *experts;
        int least, most;
    } cases[] = {{"emu:1,cpu=scalar,mem=16M", "layers", EXPERTS, 3 * EXPERTS},
                 {"emu:1,cpu=scalar", "1", LAYERS, LAYERS},
                 {"emu:1,cpu=scalar", "4", 3 * LAYERS, 4 * LAYERS},
                 {"emu:1,cpu=scalar,nopin", "4", 3 * LAYERS, 4 * LAYERS}};
    CHECK(plain.resident == 0 && dense.resident == 0 && all.resident == LAYERS * EXPERTS, "%d, %d, %d experts resident",
          plain.resident, dense.resident, all.resident);
    CHECK(plain.bytes > dense.bytes + 1000000 && dense.bytes > all.bytes + 5000000,
          "%" PRIu64 ", %" PRIu64 ", %" PRIu64 " bytes", plain.bytes, dense.bytes, all.bytes);
    CHECK(plain.sum == dense.sum && plain.sum == all.sum, "logits differ with resident weights");
    /* What stays is uploaded before the first prompt, which then does not upload it again. */
    CHECK((double)all.first < 1.05 * experts,
          "%" PRIu64 " bytes for the first prompt and its answer, %.0f bytes of experts", all.first, experts);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct outcome some = read_prompt(cases[i].gpus, PREFILL_SLP, cases[i].experts);
        const double want = (double)all.bytes + experts * (1 - some.resident / (double)(LAYERS * EXPERTS));
        CHECK(some.resident >= cases[i].least && some.resident <= cases[i].most, "%s, %s: %d experts resident",
              cases[i].gpus, cases[i].experts, some.resident);
        CHECK((double)some.bytes > want * 0.999 && (double)some.bytes < want * 1.001,
              "%s, %s: %" PRIu64 " bytes, expected %.0f", cases[i].gpus, cases[i].experts, some.bytes, want);
        CHECK(some.sum == plain.sum && !strcmp(some.mode, "slp"), "%s, %s: other logits, by %s", cases[i].gpus,
              cases[i].experts, some.mode);
    }
    printf("SLP: %.2f MB with no weights resident, %.2f MB beside dense layers, %.2f MB beside all experts\n",
           (double)plain.bytes * 1e-6, (double)dense.bytes * 1e-6, (double)all.bytes * 1e-6);
}

/* Ranks use what their own device holds. */
static void several_ranks(void) {
    static const char *const lists[] = {"emu:2,cpu=scalar", "emu:3,cpu=scalar", "emu:3,cpu=scalar,nopeer"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const struct outcome plain = read_prompt(lists[i], PREFILL_DSLP, NULL),
                             all = read_prompt(lists[i], PREFILL_DSLP, "layers");
        CHECK(!strcmp(plain.mode, "dslp") && !strcmp(all.mode, "dslp"), "%s: by %s and %s", lists[i], plain.mode,
              all.mode);
        CHECK(plain.sum == all.sum && all.resident && (double)all.bytes < 0.75 * (double)plain.bytes,
              "%s: %d resident, %" PRIu64 " of %" PRIu64 " bytes, %s", lists[i], all.resident, all.bytes, plain.bytes,
              plain.sum == all.sum ? "same logits" : "other logits");
    }
}

/* A blended prefill uploads no expert that a pool holds. With one CPU core and a fast link nearly all experts run on
 * the device. */
static void blends_the_rest(void) {
    const char *gpus = "emu:1,cpu=scalar,h2d=50";
    const struct outcome none = read_prompt(gpus, PREFILL_BLEND, "off"), some = read_prompt(gpus, PREFILL_BLEND, "8"),
                         all = read_prompt(gpus, PREFILL_BLEND, "layers");
    CHECK(!strcmp(none.mode, "blend") && !strcmp(some.mode, "blend") && !strcmp(all.mode, "blend"), "by %s, %s, %s",
          none.mode, some.mode, all.mode);
    CHECK(some.resident > 4 * LAYERS && all.resident == LAYERS * EXPERTS, "%d, %d resident", some.resident,
          all.resident);
    CHECK(all.bytes < some.bytes && (double)some.bytes < 0.75 * (double)none.bytes,
          "%" PRIu64 ", %" PRIu64 ", %" PRIu64 " bytes", none.bytes, some.bytes, all.bytes);
    printf("blend: %.2f MB without resident experts, %.2f MB with %d of %d, %.2f MB with all\n",
           (double)none.bytes * 1e-6, (double)some.bytes * 1e-6, some.resident, LAYERS * EXPERTS,
           (double)all.bytes * 1e-6);
}

/* A device that fails while a prompt is read, with a session that decodes meanwhile: both answers, and the likeliest
 * token after each position of the prompt, are those without a failure. */
enum { OTHER = 40 };
struct answers {
    int32_t token[2][OTHER], likeliest[PROMPT];
    int n[2];
};
static int note_likeliest(void *got, int position, const float *logits) {
    int32_t top = 0;
    for (int32_t i = 1; i < 500; i++)
        if (!(logits[i] <= logits[top])) top = i;
    ((struct answers *)got)->likeliest[position] = top;
    return 0;
}
/* Clears each failure of a device at once, as another task that shares it may. */
struct clearer {
    const struct gpu_set *set;
    _Atomic bool stop;
    int n;
};
static void *clear_failures(void *arg) {
    struct clearer *c = arg;
    for (; !atomic_load(&c->stop); usleep(20))
        for (int i = 0; i < c->set->n; i++)
            if (gpu_error(c->set->gpu[i], NULL)) gpu_clear(c->set->gpu[i], &(struct error){0}), c->n++;
    return NULL;
}
/* cleared: failures are cleared at once, and counted. */
static int read_beside(const char *gpus, enum exec_mode prefill, const char *experts, struct answers *got,
                       int *cleared) {
    struct engine *eng;
    struct session *s, *other;
    struct error e = {0};
    struct event ev;
    int32_t tokens[PROMPT];
    int over = 0, fell_back = 0;
    *got = (struct answers){0};
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = 1,
                              .gpus = gpus,
                              .prefill = prefill,
                              .decode = DECODE_HYBRID,
                              .split = prefill == PREFILL_BLEND ? "trimoe" : NULL,
                              .expert_cache = experts,
                              .context = 256,
                              .kv = DT_F32,
                              .draft = DRAFT_NONE};
    if (engine_open(&eng, &p, &e) || session_open(eng, &other, &e) || session_open(eng, &s, &e)) die(gpus, &e);
    struct clearer clearer = {.set = eng->machine.gpus};
    pthread_t thread;
    if (cleared && pthread_create(&thread, NULL, clear_failures, &clearer)) die("thread", &e);
    struct request r = {
        .tokens = (int32_t[]){7, 9}, .n = 2, .max_tokens = OTHER, .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE};
    if (session_submit(other, &r, &e)) die("submit", &e);
    for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + 11) % 500;
    while (over < 2) {
        if (!engine_poll(eng, &ev, 120000)) die("poll", &(struct error){.text = "nothing for two minutes"});
        if (ev.kind == EVENT_ERROR) die(gpus, &ev.error);
        if (ev.kind == EVENT_TOKEN && !got->n[0] &&
            session_submit(s,
                           &(struct request){.tokens = tokens,
                                             .n = PROMPT,
                                             .max_tokens = ANSWER,
                                             .flags = r.flags,
                                             .logits = note_likeliest,
                                             .logits_ctx = got},
                           &e))
            die("submit", &e);
        if (ev.kind == EVENT_TOKEN) got->token[ev.session == s][got->n[ev.session == s]++] = ev.token;
        over += ev.kind == EVENT_DONE;
        fell_back += ev.kind == EVENT_DONE && ev.session == s && strcmp(ev.stats.prefill_mode, exec_mode_name(prefill));
    }
    session_close(&s), session_close(&other);
    atomic_store(&clearer.stop, true);
    if (cleared) pthread_join(thread, NULL), *cleared += clearer.n;
    engine_close(&eng);
    return fell_back;
}
static void devices_fail_meanwhile(void) {
    struct answers want, got;
    int fell_back = read_beside("emu:1,cpu=scalar,h2d=0.2", PREFILL_SLP, "off", &want, NULL), cleared = 0;
    CHECK(!fell_back && want.n[0] == OTHER && want.n[1] == ANSWER, "%d, %d tokens", want.n[0], want.n[1]);
    for (int k = 0; k < n_tries; k++) {
        const char *experts = k % 3 ? "layers" : "4";
        char gpus[80];
        snprintf(gpus, sizeof gpus, "emu:1,cpu=scalar,h2d=0.2,fail=%s:%d", k % 2 ? "launch" : "copy",
                 200 + 1464 / n_tries * k);
        fell_back += read_beside(gpus, PREFILL_SLP, experts, &got, k % 2 ? NULL : &cleared);
        CHECK(!memcmp(&got, &want, sizeof got), "%s, %s: other answers", gpus, experts);
    }
    CHECK(fell_back > 0, "no device failed during a prompt");
    CHECK(cleared > 0, "no failure was cleared meanwhile");
}
/* The second device has no layers and computes experts of a blended prefill. Its results may not be finite when it
 * fails; the error must not blame the weights. */
static void helpers_fail(void) {
    struct answers want, got;
    int fell_back = read_beside("emu:2,cpu=scalar", PREFILL_BLEND, "off", &want, NULL), cleared = 0;
    CHECK(!fell_back && want.n[0] == OTHER && want.n[1] == ANSWER, "%d, %d tokens", want.n[0], want.n[1]);
    for (int k = 0; k < n_tries; k++) {
        char gpus[80];
        snprintf(gpus, sizeof gpus, "emu:2,cpu=scalar,fail=%s:%d@1", k % 4 == 3 ? "launch" : "copy",
                 4 + 120 / n_tries * k);
        fell_back += read_beside(gpus, PREFILL_BLEND, "off", &got, k % 2 ? NULL : &cleared);
        CHECK(!memcmp(&got, &want, sizeof got), "%s: other answers", gpus);
    }
    CHECK(fell_back > 0, "no device failed during a prompt");
    CHECK(cleared > 0, "no failure was cleared meanwhile");
}

/* Another task fails and clears the device after the last layer: no row may reach the caller, who would report its
 * logits, before the run fails. */
static int embed_any(void *ctx, float *out, int row, int n) {
    const struct engine *eng = ctx;
    for (int i = 0; i < n * eng->info.hidden; i++) out[i] = 0.01f * (float)((row + i) % 7);
    return 0;
}
static int n_reported;
static int count_rows(void *ctx, const float *x, int row, int n) {
    n_reported += n;
    return 0;
}
static void fail_after_layers(void *ctx, int done, int total) {
    struct gpu *g = ctx;
    struct gpu_stream *s;
    struct error err;
    char host[4] = {0};
    if (done < total) return;
    usleep(50000); /* the run's streams are idle */
    if (gpu_stream_open(g, &s, "other", false, NULL, &err)) die("stream", &err);
    CHECK(gpu_copy(s, host, host, sizeof host, GPU_H2D) || gpu_stream_sync(s), "a copy to host memory did not fail");
    if (gpu_clear(g, &err)) die("clear", &err);
    gpu_stream_close(&s);
}
static void no_rows_of_failed_runs(void) {
    struct engine *eng;
    struct session *s;
    struct error e = {0};
    const struct engine_params p = {.dir = "ember:",
                                    .threads = 1,
                                    .cpu_level = 1,
                                    .gpus = "emu:1,cpu=scalar",
                                    .prefill = PREFILL_SLP,
                                    .decode = DECODE_CPU,
                                    .context = 128,
                                    .kv = DT_F32};
    int32_t tokens[PROMPT] = {0};
    if (engine_open(&eng, &p, &e) || session_open(eng, &s, &e) || kv_commit(&s->kv, PROMPT, &e)) die("engine", &e);
    for (int fails = 0; fails < 2; fails++) {
        const struct slp_job job = {.w = &eng->weights,
                                    .set = eng->machine.gpus,
                                    .ranks = 1,
                                    .cache = s->kv.layer,
                                    .n = PROMPT,
                                    .tokens = tokens,
                                    .embed = embed_any,
                                    .on_rows = count_rows,
                                    .ctx = eng,
                                    .progress = fails ? fail_after_layers : NULL,
                                    .progress_ctx = eng->machine.gpus->gpu[0]};
        n_reported = 0;
        const int rc = slp_prefill(&job, NULL, &e);
        CHECK(fails ? rc == ERR_RUNTIME && !n_reported : !rc && n_reported == PROMPT,
              "%d rows of a run that returned %d: %s", n_reported, rc, e.text);
    }
    session_close(&s);
    engine_close(&eng);
}

int main(int argc, char **argv) {
    n_tries = argc > 1 ? 24 : 14; /* with `full` */
    file_embed(ember_files);
    log_set(quiet, NULL, LOG_WARN);
    streams_the_rest();
    several_ranks();
    blends_the_rest();
    devices_fail_meanwhile();
    helpers_fail();
    no_rows_of_failed_runs();
    printf("%d failed\n", failed);
    return failed != 0;
}
