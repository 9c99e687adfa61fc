#pragma once
/* Runs several sessions at once on generated checkpoints of every family; shared by the tests of drafts. */
#include "test/unit/unit.h"

#include "engine/session/engine_state.h"

enum { SESSIONS = 3, PROMPT = 17, ANSWER = 30, VOCAB = 120 };
static const char *root;
static bool all; /* with long_tests */

static struct engine *open_model(const char *name, struct engine_params p) {
    char dir[1024];
    struct engine *eng;
    struct error e = {0};
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    p.dir = dir, p.threads = 1;
    if (engine_open(&eng, &p, &e)) fail_msg("%s: %s", name, e.text);
    return eng;
}

static void prompt_of(int which, int32_t *out) {
    out[0] = which + 2;
    for (int i = 1; i < PROMPT; i++) out[i] = 2 + (which * 29 + i * i * 7) % (VOCAB - 2);
}

static void submit(struct session *s, int which, int answer) {
    static const struct sampling how[] = {
        {.temperature = 0, .repeat_penalty = 1, .top_p = 1},
        {.temperature = 0.9f, .repeat_penalty = 1, .top_p = 0.9f, .seed = 7},
        {.temperature = 0.7f, .repeat_penalty = 1.3f, .top_p = 1, .top_k = 20, .seed = 3}};
    int32_t prompt[PROMPT];
    struct error err = {0};
    prompt_of(which, prompt);
    struct request r = {
        .tokens = prompt, .n = PROMPT, .max_tokens = answer, .flags = REQ_IGNORE_EOS, .sampling = how[which % 3]};
    if (session_submit(s, &r, &err)) fail_msg("%s", err.text);
}

/* Collects the texts of several sessions that answer at once, and of one that is cancelled midway and asked again.
 * Counts drafted and accepted tokens. */
static void answer_all(struct engine *eng, int32_t text[SESSIONS + 1][PROMPT + ANSWER], int *drafted, int *accepted) {
    struct session *s[SESSIONS + 1];
    struct error e = {0};
    struct event ev;
    int n[SESSIONS + 1], left = SESSIONS + 1;
    bool again = false;
    *drafted = *accepted = 0;
    for (int i = 0; i <= SESSIONS; i++) {
        if (session_open(eng, &s[i], &e)) fail_msg("%s", e.text);
        prompt_of(i, text[i]);
        n[i] = PROMPT;
        submit(s[i], i, ANSWER);
    }
    while (left && engine_poll(eng, &ev, -1)) {
        int i = 0;
        while (s[i] != ev.session) i++;
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) {
            assert_true(n[i] < PROMPT + ANSWER);
            text[i][n[i]++] = ev.token;
            if (i == SESSIONS && !again && n[i] == PROMPT + 9) session_cancel(s[i]);
        }
        if (ev.kind != EVENT_DONE) continue;
        *drafted += ev.stats.drafted, *accepted += ev.stats.accepted;
        assert_true(ev.stats.accepted <= ev.stats.drafted && ev.stats.accepted < ev.stats.answer_tokens);
        if (i == SESSIONS && !again) { /* it may have finished before the cancel */
            again = true;
            n[i] = PROMPT;
            submit(s[i], i, ANSWER);
            continue;
        }
        assert_int_equal(n[i], PROMPT + ANSWER);
        left--;
    }
    for (int i = 0; i <= SESSIONS; i++) session_close(&s[i]);
}

static const char *const families[] = {"mla_yarn",   "mla_plain",   "dsa_halves", "dsa_shared", "gqa_norm",
                                       "gqa_shared", "gqa_half",    "gqa_flat",   "gqa_sinks",  "gqa_mixer",
                                       "gqa_fused",  "delta_fused", "streams"};
