/* A prefill on devices and the CPU runs beside a session whose decode batch is cancelled midway: both share a device's
 * stream, and work that the cancelled batch leaves must not affect the prefill. Slow links keep the queue long, so that
 * such a batch mostly waits for it. The built-in model; the prompt's logits equal those without the other session, bit
 * by bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"
#include "test/env.h"

enum { PROMPT = 48, ANSWER = 400, TRIES = 24 };

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}

static int add_up(void *sum, int position, const float *logits) {
    uint64_t *h = sum;
    uint32_t bits;
    for (int i = 0; i < 500; i++) memcpy(&bits, &logits[i], sizeof bits), *h = (*h ^ bits) * 1099511628211u;
    return 0;
}

/* Returns a checksum of the prompt's logits. other: a session that decodes and is cancelled after that many
 * microseconds; NULL: none. */
static uint64_t read_prompt(struct engine *eng, struct session *other, unsigned us) {
    struct session *s;
    struct error e = {0};
    struct event ev;
    int32_t tokens[PROMPT];
    uint64_t sum = 14695981039346656037u;
    for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + 11) % 500;
    if (other && session_submit(other,
                                &(struct request){.tokens = (int32_t[]){7, 9},
                                                  .n = 2,
                                                  .max_tokens = ANSWER,
                                                  .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE},
                                &e))
        die("submit", &e);
    for (bool begun = !other; !begun; begun = ev.kind == EVENT_TOKEN)
        if (!engine_poll(eng, &ev, 120000) || ev.kind == EVENT_ERROR) die("an answer", &ev.error);
    if (session_open(eng, &s, &e) ||
        session_submit(s, &(struct request){.tokens = tokens, .n = PROMPT, .logits = add_up, .logits_ctx = &sum}, &e))
        die("submit", &e);
    if (other) usleep(us), session_cancel(other);
    for (int over = other ? 0 : 1; over < 2; over += ev.kind == EVENT_DONE) {
        if (!engine_poll(eng, &ev, 120000)) die("poll", &(struct error){.text = "nothing for two minutes"});
        if (ev.kind == EVENT_ERROR) die("a turn", &ev.error);
        if (ev.kind == EVENT_DONE && ev.session == s && strcmp(ev.stats.prefill_mode, "blend")) {
            printf("FAIL: read by %s: %s\n", ev.stats.prefill_mode, ev.stats.prefill_why);
            exit(1);
        }
    }
    session_close(&s);
    return sum;
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(void) {
    static const char *const lists[] = {"emu:1,cpu=scalar,h2d=0.05", "emu:2,cpu=scalar,h2d=0.05"};
    int failed = 0;
    file_embed(ember_files);
    log_set(quiet, NULL, LOG_WARN);
    for (int k = 0; k < 2; k++) {
        struct engine *eng;
        struct session *other;
        struct error e = {0};
        struct engine_params p = {.dir = "ember:",
                                  .threads = 1,
                                  .cpu_level = 1,
                                  .gpus = lists[k],
                                  .prefill = PREFILL_BLEND,
                                  .decode = DECODE_HYBRID,
                                  .context = 512,
                                  .kv = DT_F32,
                                  .deterministic = true};
        if (engine_open(&eng, &p, &e) || session_open(eng, &other, &e)) die("open", &e);
        const uint64_t alone = read_prompt(eng, NULL, 0);
        for (int i = 0; i < TRIES; i++) {
            const uint64_t got = read_prompt(eng, other, (unsigned)i * 4000);
            if (got != alone)
                failed++, printf("FAIL: %s: other logits beside a session stopped after %d ms\n", lists[k], i * 4);
        }
        session_close(&other);
        engine_close(&eng);
    }
    printf("%d of %d prompts differ\n", failed, 2 * TRIES);
    return failed != 0;
}
