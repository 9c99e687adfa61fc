/* Paths of weights to devices. Whether pinned, copied or staged, no copy blocks its caller, and prompts and answers are
 * the same. An emulated device that cannot pin (`nopin`), or cannot pin mapped files (`nomap`), counts the copies that
 * a driver would have blocked on. The built-in model, from the program and from files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "engine/ember/ember.h"
#include "engine/session/engine_state.h"
#include "engine/weights/weights_open.h"
#include "gpu/emu/emu.h"
#include "test/env.h"

/* a layer of LONG stores more than a driver copies at once by itself, on a device with room for large KV slabs */
enum { PROMPT = 70, LONG = 480, ANSWER = 5 };
static int failed;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}

/* Waits until pinning has ended; returns whether everything is pinned. */
static bool pinned(const struct engine *eng) {
    const struct gpu_set *g = eng->machine.gpus;
    bool all = true, any = false;
    for (double end = clock_now() + 60; !pin_is_done(g->pin) && clock_now() < end;) usleep(1000);
    for (int i = 0; i < weights_ranges(&eng->weights); i++) {
        const struct weights_range r = weights_range(&eng->weights, i);
        if (r.bytes) any = true, all &= gpu_set_pinned(g, r.at, r.bytes);
    }
    return all && any;
}
/* Returns the bytes of file mappings in memory that are writable, so in pages of our own. */
static size_t own_bytes(const struct weights *w) {
    char line[512];
    size_t sum = 0, begin, end;
    char may[8];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%zx-%zx %7s", &begin, &end, may) != 3 || may[1] != 'w') continue;
        for (int i = 0; i < w->files.n_shards; i++) {
            const struct file_map *m = &w->files.shards[i].map;
            size_t a = (size_t)m->data, b = a + m->size;
            if (!m->embedded && begin < b && end > a) sum += (end < b ? end : b) - (begin > a ? begin : a);
        }
    }
    if (f) fclose(f);
    return sum;
}

/* Runs a prompt, and one that continues after its answer; counts copies that blocked, on all devices. wait: for pinning
 * to end. */
static long run(const char *dir, const char *gpus, const char *topology, enum exec_mode prefill, enum pin_path way,
                bool wait, int prompt, int32_t out[2][ANSWER], uint64_t *bytes) {
    static const char *const names[] = {
        [PREFILL_CPU] = "cpu", [PREFILL_BLEND] = "blend", [PREFILL_SLP] = "slp", [PREFILL_DSLP] = "dslp"};
    struct engine *eng;
    struct session *s;
    struct error e = {0};
    struct event ev;
    int32_t tokens[LONG];
    long held = 0;
    struct engine_params p = {.dir = dir,
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = gpus,
                              .topology = topology,
                              .prefill = prefill,
                              .decode = DECODE_HYBRID,
                              .context = 512,
                              .deterministic = true};
    if (engine_open(&eng, &p, &e) || session_open(eng, &s, &e)) die(gpus, &e);
    const struct pin_choice *chosen = pin_get_choice(eng->machine.gpus->pin);
    if (chosen->by_node != (topology && way != PIN_MAPPED))
        failed++, printf("FAIL: %s: weights %s by node (%s)\n", gpus, chosen->by_node ? "" : "not", chosen->why);
    if (chosen->path != way)
        failed++,
            printf("FAIL: %s: weights %s (%s), not %s\n", gpus, pin_name(chosen->path), chosen->why, pin_name(way));
    if (wait && pinned(eng) != (way == PIN_COPIED || way == PIN_MAPPED))
        failed++, printf("FAIL: %s: weights are%s pinned\n", gpus, pinned(eng) ? "" : " not");
    const bool is_copied = (way == PIN_COPIED || chosen->by_node) && !eng->weights.n_slabs;
    if (wait && own_bytes(&eng->weights) != (is_copied ? chosen->bytes : 0))
        failed++, printf("FAIL: %s: %zu of %zu bytes lie in memory of our own\n", gpus, own_bytes(&eng->weights),
                         chosen->bytes);
    /* whole pieces */
    const size_t own = pin_own_bytes(eng->machine.gpus->pin), bytes_own = is_copied ? chosen->bytes : 0;
    if (wait && !eng->weights.n_slabs && (own > bytes_own || own + (bytes_own >> 8) < bytes_own))
        failed++, printf("FAIL: %s: %zu of %zu bytes count\n", gpus, own, bytes_own);
    for (int i = 0; i < prompt; i++)
        tokens[i] = (i * 37 + i / 7 + 11) % (eng->info.vocab < 500 ? eng->info.vocab : 500);
    *bytes = 0;
    for (int turn = 0; turn < 2; turn++) {
        int n = turn ? prompt : prompt / 2, got = 0;
        if (session_submit(
                s, &(struct request){.tokens = tokens, .n = n, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS}, &e))
            die(gpus, &e);
        do {
            if (!engine_poll(eng, &ev, 120000)) die(gpus, &(struct error){.text = "nothing for two minutes"});
            if (ev.kind == EVENT_ERROR) die(gpus, &ev.error);
            if (ev.kind == EVENT_TOKEN) out[turn][got++] = ev.token;
        } while (ev.kind != EVENT_DONE);
        if (strcmp(ev.stats.prefill_mode, names[prefill]) || strcmp(ev.stats.decode_mode, "hybrid"))
            failed++, printf("FAIL: %s: read by %s (%s), answered by %s\n", gpus, ev.stats.prefill_mode,
                             ev.stats.prefill_why, ev.stats.decode_mode);
        *bytes += ev.stats.bytes_read;
        char told[64];
        snprintf(told, sizeof told, "weights %s, ", pin_name(way));
        if (prefill != PREFILL_CPU && !strstr(ev.stats.prefill_why, told))
            failed++, printf("FAIL: %s: the way of the weights is not told: %s\n", gpus, ev.stats.prefill_why);
    }
    const struct cost_domain *d = &eng->cost.domain[1]; /* whose link the prompts have timed */
    const struct cost_observed *seen = prefill == PREFILL_SLP ? &d->observed_link[COST_H2D] : &d->observed_beside;
    if ((prefill == PREFILL_SLP || prefill == PREFILL_BLEND) && !(seen->weight[0] > 0))
        failed++, printf("FAIL: %s: %s prompts time no uploads\n", gpus, names[prefill]);
    for (int i = 0; i < eng->machine.gpus->n; i++)
        held += atomic_load(&((struct emu *)eng->machine.gpus->gpu[i])->n_blocking_copies);
    session_close(&s);
    engine_close(&eng);
    return held;
}

/* Opens a device and a checkpoint; hold: as if sessions decoded. */
static void open_pin(const char *dir, const char *gpus, bool hold, struct gpu **g, struct weights *w, struct pin **p) {
    struct gpu_spec spec;
    struct error err = {0};
    if (gpu_spec_parse(&spec, gpus, &err) || gpu_open(g, &spec, 0, &err) || weights_open(w, dir, false, &err) ||
        pin_open(p, *g, w, &(struct numa){.n_nodes = 1}, hold, &err))
        die(gpus, &err);
}

/* While sessions decode nothing is registered, but all is copied; each card keeps room for the driver's page tables. */
static void check_hold(const char *dir, const char *gpus) {
    struct gpu *g;
    struct weights w;
    struct pin *p;
    open_pin(dir, gpus, true, &g, &w, &p);
    const struct file_map *m = &w.files.shards[0].map;
    if (pin_page_table_bytes(p) != m->size / 4096 * 8)
        failed++, printf("FAIL: %zu bytes of page tables for %zu\n", pin_page_table_bytes(p), m->size);
    const size_t had = gpu_info(g)->mem;
    gpu_reserve(g, pin_page_table_bytes(p));
    if (gpu_info(g)->mem + m->size / 4096 * 8 != had) failed++, printf("FAIL: page tables have no room\n");
    pin_start(p);
    const size_t copied = pin_get_choice(p)->path == PIN_COPIED ? m->size : 0;
    for (double end = clock_now() + 60; own_bytes(&w) < copied && clock_now() < end;) usleep(1000);
    usleep(20000);
    if (own_bytes(&w) != copied)
        failed++, printf("FAIL: %zu bytes of %zu are copied while sessions decode\n", own_bytes(&w), copied);
    if (pin_is_done(p) || pin_covers(p, m->data, 1))
        failed++, printf("FAIL: weights are pinned while sessions decode\n");
    pin_hold(p, false);
    for (double end = clock_now() + 60; !pin_is_done(p) && clock_now() < end;) usleep(1000);
    if (!pin_covers(p, m->data, m->size)) failed++, printf("FAIL: weights are not pinned after sessions decode\n");
    pin_close(&p);
    weights_close(&w);
    gpu_close(&g);
}

/* Tables of n-grams, which no device reads, are neither copied nor pinned, except where they share a piece with other
 * weights. */
static void check_tables(const char *dir, const char *gpus) {
    struct gpu *g;
    struct weights w;
    struct pin *p;
    open_pin(dir, gpus, false, &g, &w, &p);
    const struct file_map *m = &w.files.shards[0].map;
    size_t tables = 0;
    pin_start(p);
    for (double end = clock_now() + 60; !pin_is_done(p) && clock_now() < end;) usleep(1000);
    for (size_t at = 0; at < m->size; at += 4096) { /* pieces */
        const bool is_table = weights_is_ngram_table(&w, m->data + at, 4096);
        tables += is_table ? 4096 : 0;
        if (emu_is_pinned(m->data + at, 4096) == is_table)
            failed++, printf("FAIL: %s: byte %zu is %s\n", gpus, at, is_table ? "pinned" : "not pinned");
    }
    const size_t bytes = pin_get_choice(p)->bytes;
    if (!tables || bytes != m->size - tables || own_bytes(&w) != bytes || !pin_covers(p, m->data, m->size))
        failed++, printf("FAIL: %s: %zu bytes of weights, %zu copied\n", gpus, bytes, own_bytes(&w));
    pin_close(&p);
    weights_close(&w);
    gpu_close(&g);
}

/* Weights that all stay on the only device are not pinned until some are evicted. */
static void check_resident(const char *dir) {
    const struct engine_params p = {.dir = dir,
                                    .threads = 1,
                                    .cpu_level = CPU_SCALAR + 1,
                                    .gpus = "emu:1,cpu=scalar",
                                    .expert_cache = "auto",
                                    .context = 1024,
                                    .deterministic = true};
    struct engine *eng;
    struct error e = {0};
    if (engine_open(&eng, &p, &e)) die("resident", &e);
    const struct file_map *m = &eng->weights.files.shards[0].map;
    struct decode *s = eng->machine.decode;
    bool more = true;
    usleep(20000);
    while (more)
        if (decode_load_next(s, 0, &more, &e)) die("resident", &e);
    if (!decode_has_all_experts(s, 0)) failed++, printf("FAIL: not all experts are on the device\n");
    if (!pin_is_done(eng->machine.gpus->pin) || gpu_set_pinned(eng->machine.gpus, m->data, 1))
        failed++, printf("FAIL: resident weights are pinned\n");
    if (!decode_evict_experts(s, 0, SIZE_MAX)) failed++, printf("FAIL: nothing is evicted\n");
    if (!pinned(eng)) failed++, printf("FAIL: evicted weights are not pinned\n");
    engine_close(&eng);
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

/* Writes the built-in model's files to a directory of their own. */
static void write_files(const char *dir) {
    struct error err = {0};
    char path[256];
    for (const struct file_embedded *f = ember_files; f->name; f++)
        if (file_join(path, sizeof path, dir, f->name, &err) ||
            file_write(path, f->begin, (size_t)(f->end - f->begin), &err))
            die("files", &err);
}
static void remove_files(const char *dir) {
    char path[256];
    for (const struct file_embedded *f = ember_files; f->name; f++)
        if (!file_join(path, sizeof path, dir, f->name, &(struct error){0})) unlink(path);
    rmdir(dir);
}

int main(int argc, char **argv) {
    /* a checkpoint whose matrices are repacked in memory; argv[2]: one with tables of n-grams */
    const char *const repacked = argv[1];
    static char dir[] = "ember-files-XXXXXX", nodes[64];
    struct error e = {0};
    static const char *const built_in = "ember:";
    const struct {
        const char *dir, *plain, *gpus;
        enum exec_mode prefill;
        enum pin_path way;
        bool wait;   /* wait until pinning has ended */
        size_t most; /* limit of pinned memory; 0: what fits */
        int prompt;  /* 0: PROMPT */
        const char *nodes;
    } cases[] = {
        {built_in, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin", PREFILL_BLEND, PIN_BUILT_IN, true, 0},
        {built_in, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin,h2d=0.5", PREFILL_SLP, PIN_BUILT_IN, false, 0},
        {built_in, "emu:2,cpu=scalar", "emu:2,cpu=scalar,nopin,nopeer", PREFILL_DSLP, PIN_BUILT_IN, false, 0},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar", PREFILL_SLP, PIN_MAPPED, true, 0},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap,piece=256K", PREFILL_SLP, PIN_COPIED, true, 0},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap,piece=128K", PREFILL_BLEND, PIN_COPIED, false, 0},
        {dir, "emu:2,cpu=scalar", "emu:2,cpu=scalar,nomap", PREFILL_DSLP, PIN_COPIED, true, 0},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar", PREFILL_SLP, PIN_COPIED, true, 0, 0,
         "node 4096 0\nnode 4096 1\n"},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap", PREFILL_BLEND, PIN_COPIED, true, 0, 0,
         "node 4096 0\nnode 4096 1\n"},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar", PREFILL_SLP, PIN_MAPPED, true, 0, 0, "node 4096 0\nnode 1 1\n"},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin", PREFILL_SLP, PIN_STAGED, true, 0, 0,
         "node 4096 0\nnode 4096 1\n"},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin", PREFILL_SLP, PIN_STAGED, true, 0},
        {dir, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap", PREFILL_BLEND, PIN_STAGED, true, 100000},
        {repacked, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap", PREFILL_SLP, PIN_COPIED, true},
        {repacked, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nomap", PREFILL_BLEND, PIN_COPIED, true, 0, 0,
         "node 4096 0\nnode 4096 1\n"},
        {repacked, "emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin", PREFILL_SLP, PIN_STAGED, true},
        {built_in, "emu:1,cpu=scalar,mem=256M", "emu:1,cpu=scalar,mem=256M,nopin", PREFILL_CPU, PIN_BUILT_IN, false, 0,
         LONG}};
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    if (!mkdtemp(dir)) die(dir, &(struct error){.text = "it cannot be made"});
    write_files(dir);
    snprintf(nodes, sizeof nodes, "%s.nodes", dir);
    test_limits_set(TEST_LIMIT_COPY_BYTES, 1 << 20);
    test_limits_set(TEST_LIMIT_METER_BYTES, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t plain[2][ANSWER], got[2][ANSWER];
        uint64_t bytes[2];
        int prompt = cases[i].prompt ? cases[i].prompt : PROMPT;
        if (cases[i].nodes && file_write(nodes, cases[i].nodes, strlen(cases[i].nodes), &e)) die(nodes, &e);
        const bool own = cases[i].dir == repacked;
        run(own ? repacked : built_in, cases[i].plain, NULL, cases[i].prefill, own ? PIN_COPIED : PIN_BUILT_IN, false,
            prompt, plain, &bytes[0]);
        test_limits_set(TEST_LIMIT_PIN_BYTES, cases[i].most);
        long held = run(cases[i].dir, cases[i].gpus, cases[i].nodes ? nodes : NULL, cases[i].prefill, cases[i].way,
                        cases[i].wait, prompt, got, &bytes[1]);
        test_limits_set(TEST_LIMIT_PIN_BYTES, 0);
        printf("%s: weights %s; %ld copies held their caller, %.1f MB of weights read\n", cases[i].gpus,
               pin_name(cases[i].way), held, (double)bytes[1] * 1e-6);
        if (held) failed++, printf("FAIL: a copy of memory that is not pinned held its caller\n");
        if (memcmp(plain, got, sizeof got)) failed++, printf("FAIL: other tokens than with pinned weights\n");
    }
    check_hold(dir, "emu:1,cpu=scalar,piece=128K");
    check_hold(dir, "emu:1,cpu=scalar,piece=128K,nomap");
    check_tables(argv[2], "emu:1,cpu=scalar,piece=4K,nomap");
    check_resident(dir);
    unlink(nodes);
    remove_files(dir);
    return failed != 0;
}
