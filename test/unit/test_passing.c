/* Prompts of several sessions: a short one passes a long one that is being read, changes no text, and is not delayed by
 * what happens to it; and how many devices read a document. */
#include "test/unit/turns.h"

#include <string.h>
#include <unistd.h>

#include "base/test_limits.h"
#include "engine/ember/ember.h"

enum { N = 5, DOCUMENT = 600, MEDIUM = 100, SHORT = 9 };
enum who { DOC, MID, HELLO, ALL };
static const struct { int from, n; } prompts[ALL] = {{0, DOCUMENT}, {3, MEDIUM}, {50, SHORT}};

static void read_alone(struct engine *e, int32_t text[ALL][N]) {
    for (int i = 0; i < ALL; i++) {
        struct session *s = new_session(e);
        submit(s, prompts[i].from, prompts[i].n, N);
        for (int t = 0; t < N; t++) text[i][t] = wait_for(e, s, EVENT_TOKEN).token;
        wait_for(e, s, EVENT_DONE);
        session_close(&s);
    }
}
/* Submits the document and returns when a part of it has been read. With a device it streams. */
static void begin_document(struct engine *e, struct session *doc, enum exec_mode mode) {
    e->params.prefill = mode;
    submit(doc, prompts[DOC].from, prompts[DOC].n, N);
    for (bool begun = false; !begun; usleep(100)) {
        pthread_mutex_lock(&e->lock);
        begun = doc->prefill.driver && (doc->prefill.driver->has_thread || atomic_load(&doc->prefill.job.done) > 0);
        pthread_mutex_unlock(&e->lock);
    }
    e->params.prefill = mode == PREFILL_CPU ? mode : MODE_AUTO;
}

/* Collects the rest of all answers; order[k]: whose first token was the k-th. */
static void collect(struct engine *e, struct session **s, int32_t text[ALL][N], int order[ALL], char why[ALL][440]) {
    int n[ALL] = {0}, n_first = 0;
    for (int done = 0; done < ALL;) {
        const struct event ev = next(e);
        for (int i = 0; i < ALL; i++) {
            if (ev.session != s[i]) continue;
            if (ev.kind == EVENT_TOKEN && !n[i]) order[n_first++] = i;
            if (ev.kind == EVENT_TOKEN) text[i][n[i]++] = ev.token;
            if (ev.kind == EVENT_DONE) memcpy(why[i], ev.stats.prefill_why, sizeof why[i]), done++;
        }
    }
}

static const struct {
    const char *gpus;
    enum exec_mode mode;
} cases[] = {{NULL, PREFILL_CPU}, {"emu:1,h2d=0.02", PREFILL_SLP}, {"emu:1,h2d=0.02", PREFILL_BLEND}};

/* A middle prompt passes the document between two of its layers, a short one passes both. */
static void the_shortest_is_first(void **st) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct engine *e = open_with((struct engine_params){
            .threads = 1, .gpus = cases[k].gpus, .prefill = cases[k].mode, .decode = DECODE_CPU});
        struct session *s[ALL];
        int32_t alone[ALL][N], text[ALL][N];
        int order[ALL];
        char why[ALL][440];
        hold_begin(e);
        read_alone(e, alone);
        for (int i = 0; i < ALL; i++) s[i] = new_session(e);
        begin_document(e, s[DOC], cases[k].mode);
        hold_arm(s[MID]);
        submit(s[MID], prompts[MID].from, prompts[MID].n, N);
        hold_wait();
        submit(s[HELLO], prompts[HELLO].from, prompts[HELLO].n, N);
        sem_post(&hold.go);
        collect(e, s, text, order, why);
        assert_int_equal(order[0], HELLO);
        assert_int_equal(order[1], MID);
        assert_memory_equal(text, alone, sizeof text);
        assert_non_null(strstr(why[HELLO], "passes a longer prompt"));
        assert_non_null(strstr(why[DOC], "2 shorter prompts passed it"));
        assert_non_null(strstr(why[MID], "1 shorter prompt passed it"));
        assert_true(s[DOC]->prefill.lost_s > s[MID]->prefill.lost_s || cases[k].mode == PREFILL_SLP);
        assert_true(s[MID]->prefill.lost_s > 0);
        for (int i = 0; i < ALL; i++) session_close(&s[i]);
        engine_close(&e);
    }
}

/* A document that waits is cancelled at once, its session goes on, and whoever passed it does not notice. */
static void a_passed_document_is_cancelled_at_once(void **st) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct engine *e = open_with((struct engine_params){
            .threads = 1, .gpus = cases[k].gpus, .prefill = cases[k].mode, .decode = DECODE_CPU});
        struct session *s[ALL];
        struct event ev;
        int32_t alone[ALL][N], text[ALL][N];
        int order[ALL];
        char why[ALL][440];
        hold_begin(e);
        read_alone(e, alone);
        for (int i = 0; i < ALL; i++) s[i] = new_session(e);
        begin_document(e, s[DOC], cases[k].mode);
        hold_arm(s[MID]);
        submit(s[MID], prompts[MID].from, prompts[MID].n, N);
        hold_wait();
        session_cancel(s[DOC]);
        do assert_true(engine_poll(e, &ev, 0));
        while (ev.session != s[DOC] || ev.kind != EVENT_DONE);
        assert_int_equal(ev.reason, DONE_CANCELLED);
        submit(s[DOC], prompts[DOC].from, prompts[DOC].n, N);
        submit(s[HELLO], prompts[HELLO].from, prompts[HELLO].n, N);
        sem_post(&hold.go);
        collect(e, s, text, order, why);
        assert_memory_equal(text, alone, sizeof text);
        for (int i = 0; i < ALL; i++) session_close(&s[i]), s[i] = new_session(e);
        begin_document(e, s[DOC], cases[k].mode); /* closed while it waits */
        hold_arm(s[MID]);
        submit(s[MID], 1, MEDIUM, 1);
        hold_wait();
        sem_post(&hold.go);
        for (int i = 0; i < ALL; i++) session_close(&s[i]);
        assert_null(e->prefilling);
        engine_close(&e);
    }
}

/* A document that lost as much time as it takes lets nobody pass, nor does one beside devices if texts must not depend
 * on other sessions. */
static void a_document_waits_for_a_bounded_time(void **st) {
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        struct engine *e = open_with((struct engine_params){.threads = 1,
                                                            .gpus = is_lost ? NULL : "emu:1,h2d=0.02",
                                                            .prefill = is_lost ? PREFILL_CPU : PREFILL_SLP,
                                                            .decode = DECODE_CPU,
                                                            .deterministic = !is_lost});
        struct session *doc = new_session(e), *hello = new_session(e);
        begin_document(e, doc, e->params.prefill);
        if (is_lost) {
            pthread_mutex_lock(&e->lock);
            doc->prefill.lost_s = 1e6;
            pthread_mutex_unlock(&e->lock);
        }
        submit(hello, 50, SHORT, 1);
        struct event ev;
        do ev = next(e);
        while (ev.kind != EVENT_TOKEN);
        assert_ptr_equal(ev.session, doc);
        session_close(&doc);
        session_close(&hello);
        engine_close(&e);
    }
}

/* All devices read each document of a chat, whose own answers do not count as others that may go on; beside another
 * chat's answer one device is left to that. */
static void documents_in_a_row_use_all_devices(void **st) {
    struct engine *e = open_with((struct engine_params){
        .gpus = "emu:2,h2d=50,d2h=50,bw=1000,flops=0.02,attn=0.02", .decode = DECODE_CPU, .deterministic = true});
    struct session *mine = new_session(e), *other = new_session(e);
    for (int k = 0; k < COST_KINDS; k++) /* a CPU that no prompt is read on */
        for (int f = 0; f < COST_FORMATS; f++)
            for (int i = 0; i < e->cost.domain[0].rate[k][f].n; i++) e->cost.domain[0].rate[k][f].value[i] *= 1e-4f;
    for (int turn = 0; turn < 4; turn++) {
        struct session *s = turn == 2 ? other : mine;
        submit(s, 7 * turn, 300, 2);
        const struct event ev = wait_for(e, s, EVENT_DONE);
        if (!strcmp(ev.stats.prefill_mode, "dslp") != (turn < 2))
            fail_msg("turn %d: %s: %s", turn, ev.stats.prefill_mode, ev.stats.prefill_why);
    }
    session_close(&mine);
    session_close(&other);
    engine_close(&e);
}

/* A prompt passes if it ends before the other one would, by the measured rate once a tenth is done, else by the
 * expected one; and while the other one loses at most its own time. */
static void only_shorter_prompts_pass(void **st) {
    static const struct {
        struct policy_pass_in in;
        struct policy_passed p;
        bool may;
    } rows[] = {
        /* 10 s are expected, nothing is done */
        {{50, 9.9}, {0, 0, 10, 0, 1000, true}, true},
        {{50, 10.1}, {0, 0, 10, 0, 1000, true}, false},
        /* half is done after 2 s, so the CPU is faster than expected: 10 expected seconds take 4 */
        {{50, 4.9}, {2, 0.5, 10, 0, 1000, true}, true},
        {{50, 5.1}, {2, 0.5, 10, 0, 1000, true}, false},
        /* which says nothing of the CPU if a device is that fast */
        {{50, 1.9}, {2, 0.5, 10, 0, 1000, false}, true},
        {{50, 2.1}, {2, 0.5, 10, 0, 1000, false}, false},
        /* not calibrated: as many tokens per second as the other one */
        {{499, -1}, {2, 0.5, 0, 0, 1000, true}, true},
        {{501, -1}, {2, 0.5, 0, 0, 1000, true}, false},
        {{9, -1}, {2, 0.5, 0, 0, 1000, false}, false},
        {{9, -1}, {0, 0, 0, 0, 1000, true}, false},
        /* 10 s alone, of which 3 are left: others may take 10 */
        {{50, 2}, {7, 0.7, 10, 7.9, 1000, false}, true},
        {{50, 2}, {7, 0.7, 10, 8.1, 1000, false}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (policy_may_pass(&rows[i].in, &rows[i].p) != rows[i].may) fail_msg("row %zu is not %d", i, rows[i].may);
}

int main(void) {
    file_embed(ember_files);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 256); /* a document of several batches */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_shorter_prompts_pass), cmocka_unit_test(documents_in_a_row_use_all_devices),
        cmocka_unit_test(the_shortest_is_first), cmocka_unit_test(a_passed_document_is_cancelled_at_once),
        cmocka_unit_test(a_document_waits_for_a_bounded_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
