/* Sessions whose caches do not fit the devices take turns, and get the tokens that they get alone. */
#include "test/unit/session.h"

#include "base/test_limits.h"
#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/session/engine_state.h"

enum { SESSIONS = 4, ANSWER = 100, ROOM = 2, SLICE = 3 };

struct run {
    int32_t token[SESSIONS][ANSWER];
    int n[SESSIONS];
    int order[SESSIONS * ANSWER], n_order; /* sessions of the tokens that came while all answered */
    char why[660];
};

/* Asks all sessions; room: caches that fit the device, 0: all. */
static struct run run(size_t room, int at_once) {
    struct engine_params p = {.dir = "ember:",
                              .threads = 2,
                              .cpu_level = CPU_SCALAR + 1,
                              .kv = DT_F32,
                              .context = 512,
                              .gpus = "emu:1,cpu=scalar",
                              .decode = DECODE_HYBRID,
                              .draft = DRAFT_NONE,
                              .deterministic = true};
    struct run r = {0};
    struct engine *eng;
    struct error e = {0};
    struct session *s[SESSIONS];
    int32_t prompt[16];
    test_limits_set(TEST_LIMIT_DEVICE_CHATS, room);
    test_limits_set(TEST_LIMIT_SLICE_BATCHES, SLICE);
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < SESSIONS; i++) s[i] = new_session(eng);
    for (int i = 0; i < SESSIONS; i += at_once) {
        for (int k = i; k < i + at_once; k++) {
            for (int t = 0; t < 16; t++) prompt[t] = 100 + (k * 37 + t * 11) % 300;
            if (session_submit(s[k],
                               &(struct request){.tokens = prompt,
                                                 .n = 16,
                                                 .max_tokens = ANSWER,
                                                 .client = (uint64_t)k,
                                                 .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE,
                                                 .sampling = {.temperature = 1, .top_p = 1, .seed = 5}},
                               &e))
                fail_msg("%s", e.text);
        }
        for (int left = at_once; left;) {
            struct event ev;
            int k = 0, all = 1;
            if (!engine_poll(eng, &ev, 120000)) fail_msg("no event for two minutes");
            while (s[k] != ev.session) k++;
            if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
            if (ev.kind == EVENT_TOKEN) {
                for (int o = 0; o < SESSIONS; o++) all &= r.n[o] > 0 && r.n[o] < ANSWER;
                if (all) r.order[r.n_order++] = k;
                r.token[k][r.n[k]++] = ev.token;
            }
            if (ev.kind == EVENT_DONE && !r.why[0]) memcpy(r.why, ev.stats.decode_why, sizeof r.why);
            left -= ev.kind == EVENT_DONE;
        }
    }
    for (int i = 0; i < SESSIONS; i++) session_close(&s[i]);
    engine_close(&eng);
    return r;
}

static void caches_take_turns(void **st) {
    const struct run alone = run(0, 1), slices = run(ROOM, SESSIONS);
    int most = 0, last[SESSIONS] = {0}, n_long = 0;
    for (int i = 0; i < SESSIONS; i++) {
        assert_int_equal(slices.n[i], ANSWER);
        assert_memory_equal(slices.token[i], alone.token[i], sizeof alone.token[i]);
    }
    assert_true(slices.n_order > 60);
    for (int i = 0; i < slices.n_order; i++) {
        const int gap = i - last[slices.order[i]];
        last[slices.order[i]] = i;
        most = gap > most ? gap : most;
        n_long += gap > ROOM * SLICE;
    }
    assert_true(n_long > 5);                     /* a session waits for a slice of the others */
    assert_true(most <= (ROOM * SLICE) * 2 + 2); /* and not for long */
    assert_null(strstr(alone.why, "take turns"));
    assert_non_null(strstr(slices.why, "the caches of 2 of 4 sessions fit the devices: these take turns of 3 batches"));
}

int main(void) {
    file_embed(ember_files);
    const struct CMUnitTest tests[] = {cmocka_unit_test(caches_take_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
