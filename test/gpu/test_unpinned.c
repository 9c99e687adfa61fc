/* Weights that cannot be pinned: no copy holds its caller, whoever that is, and what is read and answered is the same. An emulated
 * device with `nopin` counts the copies that a driver would have held; the built-in model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/ember/ember.h"
#include "engine/internal.h"
#include "gpu/emu.h"

enum { PROMPT = 70, ANSWER = 5 };
static int failed;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}

/* A prompt, and one that goes on from its answer. Copies that held somebody, of all devices. */
static long run(const char *gpus, enum prefill_mode prefill, int32_t out[2][ANSWER], uint64_t *bytes) {
    static const char *const names[] = {[PREFILL_BLEND] = "blend", [PREFILL_SLP] = "slp", [PREFILL_DSLP] = "dslp"};
    struct engine *e;
    struct session *s;
    struct error err = {0};
    struct event ev;
    int32_t tokens[PROMPT];
    long held = 0;
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = gpus,
                              .prefill = prefill,
                              .decode = DECODE_HYBRID,
                              .context = 512,
                              .deterministic = true};
    if (engine_open(&e, &p, &err) || session_open(e, &s, &err)) die(gpus, &err);
    for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + i / 7 + 11) % 500;
    *bytes = 0;
    for (int turn = 0; turn < 2; turn++) {
        int n = turn ? PROMPT : PROMPT / 2, got = 0;
        if (session_submit(s, &(struct request){.tokens = tokens, .n = n, .max_tokens = ANSWER, .flags = REQUEST_NO_EOS}, &err)) die(gpus, &err);
        do {
            if (!engine_poll(e, &ev, 120000)) die(gpus, &(struct error){.text = "nothing for two minutes"});
            if (ev.kind == EVENT_ERROR) die(gpus, &ev.error);
            if (ev.kind == EVENT_TOKEN) out[turn][got++] = ev.token;
        } while (ev.kind != EVENT_DONE);
        if (strcmp(ev.stats.prefill_mode, names[prefill]) || strcmp(ev.stats.decode_mode, "hybrid"))
            failed++, printf("FAIL: %s: read by %s (%s), answered by %s\n", gpus, ev.stats.prefill_mode, ev.stats.why, ev.stats.decode_mode);
        *bytes += ev.stats.bytes_read;
    }
    for (int i = 0; i < e->machine.gpus->n; i++) held += atomic_load(&((struct emu *)e->machine.gpus->gpu[i])->held);
    session_close(&s);
    engine_close(&e);
    return held;
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(void) {
    static const struct {
        const char *plain, *unpinned;
        enum prefill_mode prefill;
    } cases[] = {{"emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin", PREFILL_BLEND},
                 {"emu:1,cpu=scalar", "emu:1,cpu=scalar,nopin,h2d=0.5", PREFILL_SLP},
                 {"emu:2,cpu=scalar", "emu:2,cpu=scalar,nopin,nopeer", PREFILL_DSLP}};
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t plain[2][ANSWER], got[2][ANSWER];
        uint64_t bytes[2];
        run(cases[i].plain, cases[i].prefill, plain, &bytes[0]);
        long held = run(cases[i].unpinned, cases[i].prefill, got, &bytes[1]);
        printf("%s: %ld copies held their caller, %.1f MB of weights read\n", cases[i].unpinned, held, (double)bytes[1] * 1e-6);
        if (held) failed++, printf("FAIL: a copy of memory that is not pinned held its caller\n");
        if (memcmp(plain, got, sizeof got)) failed++, printf("FAIL: other tokens than with pinned weights\n");
    }
    return failed != 0;
}
