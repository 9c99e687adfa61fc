/* Steps whose parts devices run as they were recorded give the same answers as steps launched piece by piece: alone and in company, cut in
 * two, over two devices, past the number of keys that a recording is laid out for, with routed experts on the device, with rows that a draft
 * guessed; and they are run so.
 * The built-in model. usage: test_graph [cuda] (in the CUDA emulation: one case) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/ember/ember.h"
#include "engine/internal.h"

enum { SESSIONS = 2, ANSWER = 14, MOST = 520 };
static int failed;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}

/* Parts that ran as recorded; answers [SESSIONS, ANSWER]. */
static uint64_t run(const char *gpus, enum decode_mode decode, const char *cache, int guesses, const int *prompt, int answer, int32_t *out) {
    struct engine *e;
    struct session *s[SESSIONS];
    struct error err = {0};
    struct event ev;
    int32_t tokens[MOST];
    int got[SESSIONS] = {0}, left = 0;
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .gpus = gpus,
                              .prefill = PREFILL_CPU,
                              .decode = decode,
                              .expert_cache = cache,
                              .draft = guesses ? DRAFT_MTP : DRAFT_NONE,
                              .draft_len = guesses,
                              .context = 1024,
                              .deterministic = true};
    if (engine_open(&e, &p, &err)) die(gpus, &err);
    for (int i = 0; i < SESSIONS && prompt[i]; i++, left++) {
        if (session_open(e, &s[i], &err)) die(gpus, &err);
        for (int k = 0; k < prompt[i]; k++) tokens[k] = (k * 37 + k / 7 + 11 + 5 * i) % 500;
        if (session_submit(s[i], &(struct request){.tokens = tokens, .n = prompt[i], .max_tokens = answer, .flags = REQUEST_NO_EOS}, &err)) die(gpus, &err);
    }
    for (int n = left; left;) {
        if (!engine_poll(e, &ev, 120000)) die(gpus, &(struct error){.text = "nothing for two minutes"});
        if (ev.kind == EVENT_ERROR) die(gpus, &ev.error);
        for (int i = 0; i < n; i++)
            if (ev.kind == EVENT_TOKEN && ev.session == s[i]) out[i * ANSWER + got[i]++] = ev.token;
        left -= ev.kind == EVENT_DONE;
    }
    uint64_t replayed = step_counts(e->machine.step).replayed;
    for (int i = 0; i < SESSIONS && prompt[i]; i++) session_close(&s[i]);
    engine_close(&e);
    return replayed;
}

static void quiet(void *ctx, enum log_level level, const char *text) {}

int main(int argc, char **argv) {
    static const struct {
        const char *gpus;
        enum decode_mode decode;
        const char *cache;
        int guesses, prompt[SESSIONS];
    } emulated[] = {{"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {20, 0}},
                    {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 0, {505, 9}}, /* 512 keys are passed on the way */
                    {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 0, {30, 9}},
                    {"emu:1,cpu=scalar", DECODE_DUAL, "6", 0, {30, 9}},
                    {"emu:2,cpu=scalar,mem=5M", DECODE_HYBRID, NULL, 0, {30, 9}},
                    {"emu:1,cpu=scalar", DECODE_HYBRID, NULL, 2, {506, 0}},
                    {"emu:1,cpu=scalar", DECODE_DUAL, NULL, 1, {30, 9}}},
      cuda[] = {{"0,math=f32", DECODE_HYBRID, NULL, 0, {12, 0}}};
    const bool card = argc > 1 && !strcmp(argv[1], "cuda");
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    for (size_t i = 0; i < (card ? sizeof cuda / sizeof *cuda : sizeof emulated / sizeof *emulated); i++) {
        int32_t one[SESSIONS * ANSWER] = {0}, each[SESSIONS * ANSWER] = {0};
        char gpus[80];
        const char *list = card ? cuda[i].gpus : emulated[i].gpus, *cache = card ? cuda[i].cache : emulated[i].cache;
        const enum decode_mode decode = card ? cuda[i].decode : emulated[i].decode;
        const int *prompt = card ? cuda[i].prompt : emulated[i].prompt, guesses = card ? cuda[i].guesses : emulated[i].guesses;
        snprintf(gpus, sizeof gpus, "%s,nograph", list);
        const int answer = card ? 4 : ANSWER;
        uint64_t none = run(gpus, decode, cache, guesses, prompt, answer, each), replayed = run(list, decode, cache, guesses, prompt, answer, one);
        printf("%s, %d and %d tokens, %d guessed at once: %llu parts of layers ran as recorded\n", list, prompt[0], prompt[1], guesses,
               (unsigned long long)replayed);
        if (none || !replayed)
            failed++, printf("FAIL: %llu recorded parts ran, and with nograph %llu\n", (unsigned long long)replayed, (unsigned long long)none);
        if (memcmp(one, each, sizeof one)) failed++, printf("FAIL: other tokens than piece by piece\n");
    }
    return failed != 0;
}
