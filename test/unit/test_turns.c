/* Concurrent turns: what one session does or suffers must not change another's text, delay it, or lose its events. On
 * the built-in checkpoint. */
#include "engine/session/engine_tasks.h"
#include "test/unit/unit.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/test_limits.h"
#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"
#include "engine/session/engine_state.h"
#include "test/unit/turns.h"

struct later {
    struct session *s;
    double after, at;
};
static void *cancel_later(void *arg) {
    struct later *l = arg;
    usleep((useconds_t)(l->after * 1e6));
    l->at = clock_now();
    session_cancel(l->s);
    return NULL;
}

/* Other processes only ever make it longer: the shortest of a few tries counts. */
enum { TIMES = 12 };
static void a_queued_turn_is_cancelled_at_once(void **st) {
    double least = 1e9, least_close = 1e9;
    for (int i = 0; i < TIMES && (least > 0.2 || least_close > 0.2); i++) {
        struct engine *e = open_with((struct engine_params){.threads = 1});
        struct session *a = new_session(e), *b = new_session(e), *c = new_session(e);
        submit(a, 0, LONG, 1);
        submit(b, 1, LONG - 1, 1);
        submit(c, 2, LONG - 2, 1);
        pthread_t t;
        struct later l = {.s = b, .after = 0.1};
        assert_int_equal(pthread_create(&t, NULL, cancel_later, &l), 0); /* while this thread waits for events */
        struct event ev;
        do ev = next(e);
        while (ev.kind != EVENT_DONE);
        double ended = clock_now();
        pthread_join(t, NULL);
        if (ended - l.at < least) least = ended - l.at;
        assert_ptr_equal(ev.session, b);
        assert_int_equal(ev.reason, DONE_CANCELLED);
        assert_false(session_busy(b));
        double begin = clock_now(); /* closing a queued session does not wait either */
        session_close(&c);
        if (clock_now() - begin < least_close) least_close = clock_now() - begin;
        assert_true(session_busy(a));
        submit(b, 0, 5, 1); /* and it may be submitted again at once */
        session_cancel(a);
        assert_int_equal(wait_for(e, a, EVENT_DONE).reason, DONE_CANCELLED);
        assert_int_equal(wait_for(e, b, EVENT_DONE).reason, DONE_LENGTH);
        session_close(&a);
        session_close(&b);
        engine_close(&e);
    }
    print_message("a queued turn ended %.1f ms after its cancel, another was closed in %.1f ms\n", least * 1e3,
                  least_close * 1e3);
    assert_true(least < 0.2 && least_close < 0.2);
}

/* The events of a are not read: it waits at 1,024 unread tokens, and b continues. Closing a loses nothing of b. */
static void unread_events_hold_nobody_else(void **st) {
    struct engine *e = open_with((struct engine_params){.threads = 1});
    struct session *a = new_session(e), *b = new_session(e);
    submit(a, 0, 3, 1100);
    for (int unread = 0; unread < ENGINE_MAX_UNREAD;) {
        usleep(20000);
        pthread_mutex_lock(&e->lock);
        unread = a->n_unread;
        pthread_mutex_unlock(&e->lock);
    }
    submit(b, 0, 5, 8);
    for (bool over = false; !over;) {
        usleep(20000);
        pthread_mutex_lock(&e->lock);
        over = b->end_serial != 0;
        pthread_mutex_unlock(&e->lock);
    }
    struct pollfd p = {.fd = engine_event_fd(e), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 1);
    struct session *c = new_session(e); /* a's are older than b's: in order of arrival */
    assert_ptr_equal(next(e).session, a);
    session_close(&a);
    for (int i = 0; i < 8; i++) {
        struct event ev = next(e);
        if (ev.kind == EVENT_PROGRESS) ev = next(e);
        assert_true(ev.session == b && ev.kind == EVENT_TOKEN);
    }
    session_close(&c);
    struct event ev = next(e);
    assert_true(ev.session == b && ev.kind == EVENT_DONE && ev.stats.answer_tokens == 8);
    assert_false(engine_poll(e, &ev, 0));
    assert_int_equal(poll(&p, 1, 0), 0);
    a = new_session(e); /* read late, but complete */
    submit(a, 0, 3, 1100);
    sleep(1);
    int tokens = 0;
    while ((ev = next(e)).kind != EVENT_DONE) tokens += ev.kind == EVENT_TOKEN;
    assert_int_equal(tokens, 1100);
    session_close(&a);
    session_close(&b);
    engine_close(&e);
}

static void more_sessions_than_a_step_takes(void **st) {
    enum { S = ENGINE_MAX_BATCH + 5, LEN = 60 };
    struct engine *e = open_with((struct engine_params){.context = 128});
    struct session *s[S];
    int got[S] = {0}, least = LEN;
    for (int i = 0; i < S; i++) s[i] = new_session(e);
    for (int i = 0; i < S; i++) submit(s[i], i, 4, LEN);
    for (struct event ev; (ev = next(e)).kind != EVENT_DONE;)
        for (int i = 0; i < S; i++) got[i] += ev.session == s[i] && ev.kind == EVENT_TOKEN;
    for (int i = 0; i < S; i++) least = got[i] < least ? got[i] : least;
    print_message("when the first of %d sessions had its %d tokens, the last had %d\n", S, LEN, least);
    assert_true(least >= LEN / 4);
    for (int i = 0; i < S; i++) session_close(&s[i]);
    engine_close(&e);
}

/* as seen by the engine's thread when it started a batch */
static bool is_read(struct engine *e, const struct session *s) {
    pthread_mutex_lock(&e->lock);
    bool is = e->prefilling == s && s->prefill.driver;
    pthread_mutex_unlock(&e->lock);
    return is;
}

/* Two sessions answer, a prompt is read beside them, and the engine's thread is held in a decode batch of both. The
 * prompt's turn is cancelled at once, its session may be used again immediately, and no other text changes. */
static void a_cancelled_prefill_waits_for_no_step(void **st) {
    static const struct {
        const char *gpus, *name;
        enum exec_mode mode;
    } cases[] = {{NULL, "cpu", PREFILL_CPU},
                 {"emu:1,cpu=scalar,h2d=0.02", "slp", PREFILL_SLP},
                 {"emu:1,cpu=scalar,h2d=0.02", "blend", PREFILL_BLEND}};
    enum { N = 6 };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct engine *e = open_with((struct engine_params){
            .threads = 1, .gpus = cases[k].gpus, .prefill = cases[k].mode, .decode = DECODE_CPU});
        struct session *s[3];
        int32_t alone[3][N], got[3][N];
        int n[3] = {0};
        struct event ev;
        hold_begin(e);
        for (int i = 0; i < 3; i++) {
            submit(s[i] = new_session(e), 5 * i, 9, N);
            for (int t = 0; t < N; t++) alone[i][t] = wait_for(e, s[i], EVENT_TOKEN).token;
            wait_for(e, s[i], EVENT_DONE);
            session_close(&s[i]);
            s[i] = new_session(e);
        }
        for (int i = 0; i < 2; i++) submit(s[i], 5 * i, 9, -1);
        submit(s[2], 3, LONG - 3, 1);
        for (bool begun = false; !begun;) { /* answers continue */
            ev = next(e);
            for (int i = 0; i < 2; i++)
                if (ev.session == s[i] && ev.kind == EVENT_TOKEN && n[i] < N) got[i][n[i]++] = ev.token;
            begun = n[0] && n[1] && is_read(e, s[2]);
        }
        hold_arm(NULL);
        hold_wait();
        for (int times = 0; times < 3; times++) { /* cancels the prefill, a queued turn, and once more */
            if (times) submit(s[2], 100 * times, 50, 1);
            session_cancel(s[2]);
            do { /* no more events arrive by waiting */
                if (!engine_poll(e, &ev, 0)) fail_msg("%s: a cancelled prefill waits for the step", cases[k].name);
                for (int i = 0; i < 2; i++)
                    if (ev.session == s[i] && ev.kind == EVENT_TOKEN && n[i] < N) got[i][n[i]++] = ev.token;
            } while (ev.session != s[2] || ev.kind != EVENT_DONE);
            assert_int_equal(ev.reason, DONE_CANCELLED);
            if (!times) assert_string_equal(ev.stats.prefill_mode, cases[k].name);
        }
        submit(s[2], 10, 9, N);
        assert_true(s[2]->prefill.is_abandoned);
        sem_post(&hold.go);
        for (bool over = false; !over || n[0] < N || n[1] < N;) {
            ev = next(e);
            for (int i = 0; i < 3; i++)
                if (ev.session == s[i] && ev.kind == EVENT_TOKEN && n[i] < N) got[i][n[i]++] = ev.token;
            over |= ev.session == s[2] && ev.kind == EVENT_DONE;
        }
        assert_int_equal(n[2], N);
        assert_memory_equal(got, alone, sizeof got);
        submit(s[2], 3, LONG - 3, 1); /* closed while it runs */
        while (!is_read(e, s[2])) next(e);
        for (int i = 2; i >= 0; i--) session_close(&s[i]);
        assert_null(e->prefilling);
        engine_close(&e);
        sem_destroy(&hold.in);
        sem_destroy(&hold.go);
    }
}

static void bandwidth_beside_a_turn(void **st) {
    struct engine *e = open_with((struct engine_params){0});
    struct session *a = new_session(e);
    test_limits_set(TEST_LIMIT_BANDWIDTH_BYTES, (size_t)64 << 20);
    submit(a, 0, 3, 5000);
    wait_for(e, a, EVENT_TOKEN);
    assert_true(engine_read_bandwidth(e, 3) > 1e8);
    test_limits_set(TEST_LIMIT_BANDWIDTH_BYTES, 0);
    session_cancel(a);
    assert_int_equal(wait_for(e, a, EVENT_DONE).reason, DONE_CANCELLED);
    session_close(&a);
    engine_close(&e);
}

/* Bytes are counted once: each session has its share of a batch that two ran together, and of a prompt's. Equal ones,
 * read together, take no more than one; shares are rounded. */
static void bytes_are_the_turns_own(void **st) {
    struct engine *e = open_with((struct engine_params){0});
    struct session *a = new_session(e), *b = new_session(e);
    submit(a, 0, 40, 100);
    uint64_t alone = wait_for(e, a, EVENT_DONE).stats.bytes_read;
    session_close(&a);
    a = new_session(e);
    submit(a, 0, 40, 100);
    submit(b, 0, 40, 100);
    uint64_t sum = 0;
    for (int done = 0; done < 2;) {
        struct event ev = next(e);
        if (ev.kind != EVENT_DONE) continue;
        done++;
        sum += ev.stats.bytes_read;
    }
    print_message("bytes read: %.1f MB alone, %.1f MB two together\n", (double)alone * 1e-6, (double)sum * 1e-6);
    assert_true(alone > 1000000 && sum + 100 > alone && sum < 2 * alone);
    session_close(&a);
    session_close(&b);
    engine_close(&e);
}

static void a_cancelled_prefill_keeps_whole_batches(void **st) {
    struct engine *e = open_with((struct engine_params){0});
    struct session *a = new_session(e);
    submit(a, 0, LONG, 4);
    struct event ev;
    do ev = next(e);
    while (ev.kind != EVENT_PROGRESS || ev.done < 1100);
    session_cancel(a);
    assert_int_equal(wait_for(e, a, EVENT_DONE).reason, DONE_CANCELLED);
    const int32_t *tokens;
    int kept = session_tokens(a, &tokens);
    assert_true(kept >= 1024 && kept < LONG && kept % 1024 == 0);
    assert_memory_equal(tokens, prompt, (size_t)kept * sizeof *tokens);
    int32_t resumed[4], whole[4];
    for (int i = 0; i < 2; i++) {
        submit(a, 0, kept + 100, 4);
        for (int k = 0; k < 4; k++) (i ? whole : resumed)[k] = wait_for(e, a, EVENT_TOKEN).token;
        ev = wait_for(e, a, EVENT_DONE);
        assert_int_equal(ev.stats.cached_tokens, i ? 0 : kept);
        session_close(&a);
        a = new_session(e);
    }
    assert_memory_equal(resumed, whole, sizeof whole);
    session_close(&a);
    engine_close(&e);
}

/* Returns the tokens per second of all sessions, over one second. */
static double rate(struct engine *e) {
    double begin = clock_now(), t;
    int n = 0;
    while ((t = clock_now() - begin) < 1) n += next(e).kind == EVENT_TOKEN;
    return n / t;
}

/* Three sessions answer and one prompt is read on one CPU: half of the time each. Repeated if other processes disturbed
 * the measurement. */
static void a_long_prompt_beside_answers(void **st) {
    enum { S = 3, N = LONG / 2 };
    bool good = false;
    for (int times = 0; times < TIMES && !good; times++) {
        struct engine *e = open_with((struct engine_params){.threads = 1});
        struct session *s[S], *a = new_session(e);
        submit(a, 0, N, 1);
        double alone = wait_for(e, a, EVENT_DONE).stats.ttft_s;
        for (int i = 0; i < S; i++) submit(s[i] = new_session(e), 5 * i, 20, -1);
        for (int i = 0; i < S; i++) wait_for(e, s[i], EVENT_TOKEN);
        double usual = rate(e) / 2;
        submit(a, 7, N - 7, 1);
        struct event ev;
        int beside = 0;
        double begin = clock_now();
        while ((ev = next(e)).session != a || ev.kind != EVENT_DONE)
            beside += ev.kind == EVENT_TOKEN && ev.session != a;
        double took = clock_now() - begin;
        usual += rate(e) / 2;
        print_message(
            "beside a long prompt %.2f of the answers' speed is left; its first token takes %.2f times as long\n",
            beside / took / usual, took / alone);
        good = beside / took / usual > 0.3 && took / alone < 3.3; /* half and twice, on a quiet machine */
        for (int i = 0; i < S; i++) session_close(&s[i]);
        session_close(&a);
        engine_close(&e);
    }
    assert_true(good);
}

/* A prompt is read on a device over a slow link: sessions that decode on the CPU do not wait for its layers. */
static void answers_beside_a_device(void **st) {
    struct engine *e = open_with((struct engine_params){.gpus = "emu:1,h2d=0.004,cpu=scalar", .prefill = PREFILL_SLP});
    struct session *a = new_session(e), *b = new_session(e);
    submit(a, 0, 3, -1);
    wait_for(e, a, EVENT_TOKEN);
    submit(b, 0, 30, 2);
    struct event ev;
    int tokens = 0; /* a session that waited for layers would get one token per layer */
    while ((ev = next(e)).session != b || ev.kind != EVENT_TOKEN) tokens += ev.kind == EVENT_TOKEN;
    ev = wait_for(e, b, EVENT_DONE);
    assert_string_equal(ev.stats.prefill_mode, "slp");
    print_message("%d tokens beside a prefill of %d layers on a device, %.2f s\n", tokens, engine_info(e)->n_layers,
                  ev.stats.prefill_s);
    assert_true(tokens > 2 * engine_info(e)->n_layers);
    submit(b, 9, 30, 2);
    usleep(100000);
    engine_close(&e); /* while everything runs */
}

/* The link would take 50 s and more for all layers, 10 for one. */
static void closing_waits_for_no_link(void **st) {
    struct engine *e = open_with((struct engine_params){.gpus = "emu:1,h2d=0.0005,cpu=scalar", .prefill = PREFILL_SLP});
    struct session *a = new_session(e);
    submit(a, 9, 30, 2);
    usleep(300000);
    double begin = clock_now();
    session_close(&a);
    print_message("closed in %.2f s\n", clock_now() - begin);
    assert_true(clock_now() - begin < 15); /* a copy takes 7.5 s, all of them 17 */
    engine_close(&e);
}

/* --- Fairness between clients ----------------------------------------------------------------- */

struct hold {
    struct engine *e;
    sem_t begun, end;
};
static int held(void *arg) {
    struct hold *h = arg;
    sem_post(&h->begun);
    while (sem_wait(&h->end)) {
    } /* interrupted */
    return 0;
}
static void *hold_it(void *arg) {
    engine_run_on_thread(((struct hold *)arg)->e, held, arg);
    return NULL;
}

/* One client's prompts came before all others': those of the others are read in between. The engine's thread is held
 * until all are queued. */
static void prompts_of_clients_take_turns(void **st) {
    enum { S = 8, GONE = 3 };
    static const uint64_t client[S] = {1, 1, 1, 1, 1, 2, 3, 2};
    static const int want[S - 1] = {0, 5, 6, 1, 7, 2, 4};
    struct engine *e = open_with((struct engine_params){.threads = 1});
    struct session *s[S];
    struct error err = {0};
    struct hold h = {.e = e};
    pthread_t t;
    sem_init(&h.begun, 0, 0);
    sem_init(&h.end, 0, 0);
    assert_int_equal(pthread_create(&t, NULL, hold_it, &h), 0);
    while (sem_wait(&h.begun)) {
    }
    for (int i = 0; i < S; i++) {
        struct request r = {
            .tokens = prompt + i, .n = 20, .max_tokens = 1, .client = client[i], .flags = REQ_IGNORE_EOS};
        if (session_submit(s[i] = new_session(e), &r, &err)) fail_msg("%s", err.text);
    }
    session_cancel(s[GONE]);
    wait_for(e, s[GONE], EVENT_DONE);
    sem_post(&h.end);
    for (int i = 0; i < S - 1; i++) {
        struct event ev;
        do ev = next(e);
        while (ev.kind != EVENT_DONE);
        if (ev.session != s[want[i]]) fail_msg("the %d-th that is read is not session %d", i, want[i]);
    }
    pthread_join(t, NULL);
    for (int i = 0; i < S; i++) session_close(&s[i]);
    engine_close(&e);
    sem_destroy(&h.begun);
    sem_destroy(&h.end);
}

/* A canned answer arrives like a computed one; the session keeps its cache, and the next turn continues from it. */
static void a_canned_answer_arrives_like_a_computed_one(void **st) {
    struct engine *e = open_with((struct engine_params){0});
    struct session *s = new_session(e);
    struct error err;
    const int32_t *held;
    int32_t known[] = {7, 8, 9};
    submit(s, 0, 40, 1);
    assert_int_equal(session_submit_answer(s, 5, known, 3, -1, &err), ERR_RUNTIME); /* busy */
    wait_for(e, s, EVENT_DONE);
    int n = session_tokens(s, &held);
    for (int most = -1; most < 4; most++) {
        int want = most < 0 || most > 3 ? 3 : most;
        assert_int_equal(session_submit_answer(s, 5, known, 3, most, &err), 0);
        session_cancel(s); /* too late */
        assert_true(session_busy(s));
        for (int i = 0; i < want; i++) {
            struct event ev = next(e);
            assert_true(ev.kind == EVENT_TOKEN && ev.session == s && ev.token == known[i]);
        }
        struct event end = next(e);
        assert_true(end.kind == EVENT_DONE && end.reason == (want < 3 ? DONE_LENGTH : DONE_STOP));
        assert_true(end.stats.answer_tokens == want && end.stats.prompt_tokens == 5 && end.stats.bytes_read == 0);
        assert_int_equal(session_tokens(s, &held), n);
        assert_memory_equal(held, prompt, 40 * sizeof *held);
    }
    submit(s, 0, 50, 1);
    assert_int_equal(wait_for(e, s, EVENT_DONE).stats.cached_tokens, 40);
    assert_int_equal(session_submit_answer(s, 5, prompt, ENGINE_MAX_UNREAD + 1, -1, &err), ERR_RUNTIME);
    assert_int_equal(session_submit_answer(s, 5, known, 3, -1, &err), 0);
    session_close(&s); /* with unread events */
    engine_close(&e);
}

int main(int argc, char **argv) {
    file_embed(ember_files);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_canned_answer_arrives_like_a_computed_one),
                                       cmocka_unit_test(prompts_of_clients_take_turns),
                                       cmocka_unit_test(a_queued_turn_is_cancelled_at_once),
                                       cmocka_unit_test(a_cancelled_prefill_waits_for_no_step),
                                       cmocka_unit_test(unread_events_hold_nobody_else),
                                       cmocka_unit_test(more_sessions_than_a_step_takes),
                                       cmocka_unit_test(bandwidth_beside_a_turn),
                                       cmocka_unit_test(bytes_are_the_turns_own),
                                       cmocka_unit_test(a_cancelled_prefill_keeps_whole_batches),
                                       cmocka_unit_test(a_long_prompt_beside_answers),
                                       cmocka_unit_test(answers_beside_a_device),
                                       cmocka_unit_test(closing_waits_for_no_link)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
