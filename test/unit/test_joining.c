/* Short prompts of several sessions are read together on the CPU: who is, with which texts, and what happens if some of
 * them are cancelled or a shorter prompt comes. */
#include "test/unit/turns.h"

#include <math.h>
#include <string.h>

#include "base/test_limits.h"
#include "engine/ember/ember.h"

enum { N = 4, MOST = 6 };

/* Reading takes as long for many tokens as for few, or twice as long for twice as many. */
static void set_times(struct engine *e, bool is_flat) {
    for (int few = 0; few < 2; few++) {
        e->read_times[few] = (struct read_times){0};
        read_times_add(&e->read_times[few], 1, is_flat ? 1 : 0.01);
        read_times_add(&e->read_times[few], 512, is_flat ? 1.01 : 5.12);
    }
}

struct texts {
    int32_t token[MOST][N];
    char why[MOST][440];
};
static void read_alone(struct engine *e, const int *n, int count, struct texts *t) {
    for (int i = 0; i < count; i++) {
        struct session *s = new_session(e);
        submit(s, 10 * i, n[i], N);
        for (int k = 0; k < N; k++) t->token[i][k] = wait_for(e, s, EVENT_TOKEN).token;
        wait_for(e, s, EVENT_DONE);
        session_close(&s);
    }
}
/* The answers of sessions that run. */
static void collect(struct engine *e, struct session **s, int count, struct texts *t) {
    int n[MOST] = {0}, done = 0;
    while (done < count) {
        const struct event ev = next(e);
        for (int i = 0; i < count; i++) {
            if (ev.session != s[i]) continue;
            if (ev.kind == EVENT_TOKEN) t->token[i][n[i]++] = ev.token;
            if (ev.kind != EVENT_DONE) continue;
            memcpy(t->why[i], ev.stats.prefill_why, sizeof t->why[i]);
            done++;
        }
    }
}
/* Submits prompts while a batch of another session is held. */
static void submit_at_once(struct engine *e, struct session **s, const int *n, int count, bool is_flat) {
    struct session *other = new_session(e);
    hold_arm(NULL);
    submit(other, 5000, 3, 2);
    hold_wait();
    set_times(e, is_flat);
    for (int i = 0; i < count; i++) submit(s[i], 10 * i, n[i], N);
    sem_post(&hold.go);
    wait_for(e, other, EVENT_DONE);
    session_close(&other);
}

static const struct {
    int n[MOST], count;
    bool is_flat;
    int with[MOST]; /* number of other prompts that each is read with; -1: any, it may pass */
} cases[] = {
    {{5, 24, 1, 17, 9, 20}, 6, true, {5, 5, 5, 5, 5, 5}},
    {{30, 100, 25, 64}, 4, true, {3, 3, 3, 3}},
    {{30, 40, 25}, 3, false, {0, 0, 0}},                /* gains nothing */
    {{30, 7, 40, 8}, 4, true, {1, -1, 1, -1}},          /* prompts with kernels of their own */
    {{30, 700, 40, 250, 35}, 5, true, {3, 0, 3, 3, 3}}, /* too long */
    {{250, 240, 60, 30, 9}, 5, true, {2, 0, 2, 2, -1}}, /* too many tokens together */
};
static void waiting_prompts_are_read_together(void **st) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int threads = 1; threads < 3; threads++) {
            struct engine *e = open_with((struct engine_params){.threads = threads});
            const int count = cases[k].count;
            struct session *s[MOST];
            struct texts alone, text;
            read_alone(e, cases[k].n, count, &alone);
            for (int i = 0; i < count; i++) s[i] = new_session(e);
            hold_begin(e);
            submit_at_once(e, s, cases[k].n, count, cases[k].is_flat);
            collect(e, s, count, &text);
            assert_memory_equal(text.token, alone.token, (size_t)count * sizeof *text.token);
            for (int i = 0; i < count; i++) {
                char with[40];
                if (cases[k].with[i] < 0) continue;
                snprintf(with, sizeof with, "read with %d other prompt", cases[k].with[i]);
                if (cases[k].with[i] ? !strstr(text.why[i], with) : strstr(text.why[i], "read with") != NULL)
                    fail_msg("case %zu, prompt %d: not \"%s\": %s", k, i, with, text.why[i]);
            }
            for (int i = 0; i < count; i++) session_close(&s[i]);
            assert_null(e->prefilling);
            engine_close(&e);
        }
}

/* Those that are cancelled end between two layers; the others do not notice, and a cancelled session goes on. */
static void some_are_cancelled(void **st) {
    enum { COUNT = 4 };
    static const int n[COUNT] = {30, 40, 50, 25};
    for (unsigned which = 1; which < 1u << COUNT; which++) { /* the sessions that are cancelled; bit 0: the first */
        struct engine *e = open_with((struct engine_params){.threads = 1});
        struct session *s[COUNT], *other = new_session(e);
        struct texts alone, text;
        read_alone(e, n, COUNT, &alone);
        hold_begin(e);
        for (int i = 0; i < COUNT; i++) s[i] = new_session(e);
        hold_arm(NULL);
        submit(other, 5000, 3, 2);
        hold_wait();
        set_times(e, true);
        for (int i = 0; i < COUNT; i++) submit(s[i], 10 * i, n[i], N);
        hold_arm(s[0]);
        sem_post(&hold.go);
        wait_for(e, other, EVENT_DONE);
        hold_wait(); /* in the first layer of all */
        for (int i = 0; i < COUNT; i++)
            if (which >> i & 1) session_cancel(s[i]);
        assert_false(engine_poll(e, &(struct event){0}, 2)); /* not while its rows are computed */
        sem_post(&hold.go);
        for (int i = 0, got[COUNT] = {0}, left = COUNT + __builtin_popcount(which); left > 0;) {
            const struct event ev = next(e);
            for (i = 0; s[i] != ev.session; i++) {
            }
            if (ev.kind == EVENT_TOKEN) text.token[i][got[i]++] = ev.token;
            if (ev.kind != EVENT_DONE) continue;
            left--;
            assert_true(got[i] == (ev.reason == DONE_CANCELLED ? 0 : N));
            if (ev.reason == DONE_CANCELLED) submit(s[i], 10 * i, n[i], N);
        }
        assert_memory_equal(text.token, alone.token, COUNT * sizeof *text.token);
        for (int i = 0; i < COUNT; i++) session_close(&s[i]);
        session_close(&other);
        assert_null(e->prefilling);
        engine_close(&e);
    }
}

/* Two shorter prompts pass the three that are read together, themselves together. One more is closed meanwhile. */
static void shorter_prompts_pass_all(void **st) {
    enum { COUNT = 5, CLOSED = 5 };
    static const int n[COUNT + 1] = {120, 90, 100, 7, 8, 60};
    struct engine *e = open_with((struct engine_params){.threads = 1});
    struct session *s[COUNT + 1], *other = new_session(e);
    struct texts alone, text;
    read_alone(e, n, COUNT, &alone);
    hold_begin(e);
    for (int i = 0; i <= COUNT; i++) s[i] = new_session(e);
    hold_arm(NULL);
    submit(other, 5000, 3, 2);
    hold_wait();
    set_times(e, true);
    for (int i = 0; i < 3; i++) submit(s[i], 10 * i, n[i], N);
    submit(s[CLOSED], 40, n[CLOSED], N);
    hold_arm(s[0]);
    sem_post(&hold.go);
    wait_for(e, other, EVENT_DONE);
    hold_wait();
    for (struct session *o = s[0]; o; o = o->prefill.joined) o->prefill.expected_s = 1e3;
    for (int i = 3; i < COUNT; i++) submit(s[i], 10 * i, n[i], N);
    hold_arm(s[3]);
    sem_post(&hold.go);
    hold_wait(); /* the others wait */
    session_cancel(s[CLOSED]);
    sem_post(&hold.go);
    session_close(&s[CLOSED]);
    collect(e, s, COUNT, &text);
    assert_memory_equal(text.token, alone.token, COUNT * sizeof *text.token);
    for (int i = 0; i < COUNT; i++) {
        const char *with = i < 3 ? "read with 3 other prompts, 370 tokens in all; 2 shorter prompts passed it"
                                 : "passes a longer prompt; read with 1 other prompt, 15 tokens in all";
        if (!strstr(text.why[i], with)) fail_msg("prompt %d: not \"%s\": %s", i, with, text.why[i]);
        session_close(&s[i]);
    }
    session_close(&other);
    engine_close(&e);
}

/* An error of prompts that are read together: each is then read alone, and only one that fails alone ends. */
static struct {
    int (*experts)(struct exec *, const struct op_experts *);
    int bad_rows;  /* experts give NaN to a prompt of so many rows; 0: to none */
    int n_refused; /* calls for several prompts that have failed for want of memory */
    bool refuses;
} faulty;
static int faulty_experts(struct exec *x, const struct op_experts *o) {
    const struct op_prompts one = {&(int32_t){o->n}, 1}, *const p = x->prompts ? x->prompts : &one;
    set_times(hold.e, true); /* it always seems to pay */
    if (x->prompts && faulty.refuses) return faulty.n_refused++, ERR_MEMORY;
    const int rc = faulty.experts(x, o);
    for (int i = 0, at = 0; i < p->n; at = p->end[i++])
        if (p->end[i] - at == faulty.bad_rows) o->y[at * o->hidden] = NAN;
    return rc;
}
static void an_error_ends_one_prompt(void **st) {
    enum { COUNT = 4, BAD = 2, CANCELLED = 3 };
    static const int n[COUNT] = {30, 40, 50, 25};
    for (int refuses = 0; refuses < 2; refuses++)
        for (int cancels = 0; cancels < 2; cancels++) {
            struct engine *e = open_with((struct engine_params){.threads = 1});
            struct session *s[COUNT], *other = new_session(e);
            struct texts alone, text;
            bool is_cancelled = false;
            read_alone(e, n, COUNT, &alone);
            hold_begin(e);
            faulty.experts = hold.experts, hold.experts = faulty_experts;
            faulty.refuses = refuses, faulty.n_refused = 0, faulty.bad_rows = refuses ? 0 : n[BAD];
            for (int i = 0; i < COUNT; i++) s[i] = new_session(e);
            hold_arm(NULL);
            submit(other, 5000, 3, 2);
            hold_wait();
            set_times(e, true);
            for (int i = 0; i < COUNT; i++) submit(s[i], 10 * i, n[i], N);
            hold_arm(s[0]);
            sem_post(&hold.go);
            wait_for(e, other, EVENT_DONE);
            hold_wait();
            if (cancels) session_cancel(s[CANCELLED]);
            sem_post(&hold.go);
            for (int got[COUNT] = {0}, left = COUNT, i; left > 0;) {
                struct event ev;
                assert_true(engine_poll(e, &ev, 120000));
                for (i = 0; s[i] != ev.session; i++) {
                }
                if (ev.kind == EVENT_TOKEN) text.token[i][got[i]++] = ev.token;
                if (ev.kind == EVENT_TOKEN || ev.kind == EVENT_PROGRESS) continue;
                left--;
                is_cancelled |= ev.reason == DONE_CANCELLED;
                if (cancels && i == CANCELLED) assert_true(ev.kind == EVENT_DONE && ev.reason == DONE_CANCELLED);
                else if (!refuses && i == BAD) assert_true(ev.kind == EVENT_ERROR && ev.error.code == ERR_MODEL);
                else assert_true(ev.kind == EVENT_DONE && got[i] == N && !strstr(ev.stats.prefill_why, "read with"));
                if (ev.kind == EVENT_ERROR || ev.reason == DONE_CANCELLED)
                    memcpy(text.token[i], alone.token[i], sizeof text.token[i]);
            }
            assert_memory_equal(text.token, alone.token, COUNT * sizeof *text.token);
            assert_true(is_cancelled == cancels && faulty.n_refused == refuses);
            for (int i = 0; i < COUNT; i++) session_close(&s[i]);
            session_close(&other);
            assert_null(e->prefilling);
            engine_close(&e);
        }
}

/* A prompt that needs less than what is left of those that are read together passes them, even if it is longer than
 * each, and while one of them is cancelled. */
static void longer_prompts_pass_several(void **st) {
    enum { COUNT = 5, LAST = 4 };
    static const int n[COUNT] = {60, 50, 70, 55, 90};
    struct engine *e = open_with((struct engine_params){.threads = 1, .prefill = PREFILL_CPU, .decode = DECODE_CPU});
    struct session *s[COUNT], *other = new_session(e);
    struct texts alone, text;
    read_alone(e, n, COUNT, &alone);
    e->is_calibrated = false; /* what a prompt takes follows from the others' time by the number of tokens */
    hold_begin(e);
    for (int i = 0; i < COUNT; i++) s[i] = new_session(e);
    hold_arm(NULL);
    submit(other, 5000, 3, 2);
    hold_wait();
    set_times(e, true);
    for (int i = 0; i < LAST; i++) submit(s[i], 10 * i, n[i], N);
    hold_arm(s[0]);
    sem_post(&hold.go);
    wait_for(e, other, EVENT_DONE);
    hold_wait(); /* in the first layer */
    for (struct session *o = s[0]; o; o = o->prefill.joined) o->prefill.thread_s = 1;
    session_cancel(s[1]);
    submit(s[LAST], 10 * LAST, n[LAST], N);
    sem_post(&hold.go);
    assert_int_equal(wait_for(e, s[1], EVENT_DONE).reason, DONE_CANCELLED);
    collect(e, (struct session *[]){s[0], s[2], s[3], s[LAST]}, 4, &text);
    session_close(&s[1]);
    static const int of[] = {0, 2, 3, LAST};
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(text.token[i], alone.token[of[i]], sizeof *text.token);
        const char *what = of[i] == LAST ? "passes a longer prompt" : "; 1 shorter prompt passed it";
        if (!strstr(text.why[i], what)) fail_msg("prompt %d: not \"%s\": %s", of[i], what, text.why[i]);
        session_close(&s[of[i]]);
    }
    session_close(&other);
    engine_close(&e);
}

/* A client whose prompts are tried in vain keeps its turn, and gets no more than its turns. Two of the prompts are too
 * large for a batch. */
static void tried_prompts_keep_their_turn(void **st) {
    enum { COUNT = 6, LATE = 5 };
    struct engine *e = open_with((struct engine_params){.threads = 1, .prefill = PREFILL_CPU, .decode = DECODE_CPU});
    struct session *s[COUNT], *other = new_session(e), *order[COUNT];
    e->is_calibrated = false; /* none of them passes another one of as many tokens */
    hold_begin(e);
    for (int i = 0; i < COUNT; i++) s[i] = new_session(e);
    hold_arm(NULL);
    submit(other, 5000, 3, 2);
    hold_wait();
    set_times(e, true);
    for (int i = 0; i < COUNT; i++) {
        struct error err = {0};
        struct request r = {.tokens = prompt + i, .n = 250, .max_tokens = 1, .client = i ? 2 : 1};
        if (i == LATE) { /* while the first is read */
            hold_arm(s[0]);
            sem_post(&hold.go);
            wait_for(e, other, EVENT_DONE);
            hold_wait();
            r.client = 3;
        }
        if (session_submit(s[i], &r, &err)) fail_msg("%s", err.text);
    }
    sem_post(&hold.go);
    for (int k = 0; k < COUNT;) {
        const struct event ev = next(e);
        if (ev.kind == EVENT_TOKEN) order[k++] = ev.session;
    }
    assert_true(order[0] == s[0] && order[1] == s[1]);
    assert_true(order[2] == s[LATE] || order[3] == s[LATE]); /* one or two of the other client's come before */
    for (int i = 0; i < COUNT; i++) session_close(&s[i]);
    session_close(&other);
    engine_close(&e);
}

/* --- Times ------------------------------------------------------------------------------------ */

static double linear(const void *ctx, int n) { return n * *(const double *)ctx; }

static void times_are_learnt(void **st) {
    struct read_times t = {0};
    const double per = 0.01;
    assert_float_equal(read_times_expect(&t, 100, linear, &per), 1, 1e-9);
    read_times_add(&t, 40, 0.2); /* half of what is expected */
    assert_float_equal(read_times_expect(&t, 40, linear, &per), 0.2, 1e-9);
    assert_float_equal(read_times_expect(&t, 20, linear, &per), 0.1, 1e-9);
    assert_float_equal(read_times_expect(&t, 60, linear, &per), 0.25, 1e-9); /* hoped */
    assert_float_equal(read_times_expect(&t, 80, linear, &per), 0.3, 1e-9);
    assert_float_equal(read_times_expect(&t, 160, linear, &per), 0.6, 1e-9);
    read_times_add(&t, 80, 0.4);
    assert_float_equal(read_times_expect(&t, 60, linear, &per), 0.3, 1e-9);
    read_times_add(&t, 82, 0.82); /* the same point: twice as long now */
    assert_float_equal(read_times_expect(&t, 80, linear, &per), 0.4 + 0.3 * 0.4, 1e-9);
    const struct read_times before = t;
    read_times_add(&t, 0, 1), read_times_add(&t, 100000, 1), read_times_add(&t, 40, 0), read_times_add(&t, -3, 1);
    assert_memory_equal(&t, &before, sizeof t);
    assert_float_equal(read_times_expect(&t, 120, linear, &per), 0.52 * 1.25, 1e-9);
    for (int i = 0; i < 12; i++) read_times_add(&t, 40, 0.2);
    assert_float_equal(read_times_expect(&t, 80, linear, &per), 0.52, 1e-9);
    read_times_add(&t, 40, 0.2);
    assert_float_equal(read_times_expect(&t, 80, linear, &per), 0.3, 1e-9); /* hoped again */
    read_times_add(&t, 512, 1);
    read_times_add(&t, 1, 1);
    assert_true(policy_may_join(1, 1, 1, 1.75));
    assert_false(policy_may_join(1, 1, 1, 1.76));
    assert_true(policy_may_join(7, 2.1, 1, 2.4)); /* the eighth of one length */
    /* a short prompt and a long one, either first: 1.2 s on average one after the other */
    assert_false(policy_may_join(1, 2, 0.2, 2.05));
    assert_false(policy_may_join(1, 0.2, 2, 2.05));
    assert_true(policy_may_join(1, 2, 1.5, 2.6));
}

int main(void) {
    file_embed(ember_files);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 400);
    const struct CMUnitTest tests[] = {cmocka_unit_test(times_are_learnt),
                                       cmocka_unit_test(waiting_prompts_are_read_together),
                                       cmocka_unit_test(some_are_cancelled),
                                       cmocka_unit_test(shorter_prompts_pass_all),
                                       cmocka_unit_test(an_error_ends_one_prompt),
                                       cmocka_unit_test(longer_prompts_pass_several),
                                       cmocka_unit_test(tried_prompts_keep_their_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
