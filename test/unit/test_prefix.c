/* Shared prefixes: a session that continues after a shared prefix has the bits and the text that it would have alone,
 * whatever happens to the session it shares with; and the memory exists once, by the system's own count. On the
 * built-in checkpoint. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/fault.h"
#include "base/test_limits.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/decode.h"
#include "engine/kv/kv_image.h"
#include "engine/session/engine_state.h"
#include "test/unit/session.h"

enum { ROWS = 128, ANSWER = 8, MOST = 4096 };

static struct engine *open_with(struct engine_params p) {
    struct engine *eng;
    struct error e = {0};
    p.dir = "ember:", p.threads = 1;
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    return eng;
}

/* Makes n tokens, of which the first `same` are the same for every kind. */
static const int32_t *text(int n, int same, int kind) {
    static int32_t t[MOST];
    for (int i = 0; i < n; i++) t[i] = (i * 37 + i / 7 + 11 + (i >= same ? kind * 29 : 0)) % 500;
    return t;
}

struct answer {
    int32_t token[ANSWER];
    int n, cached, rc;
};
static struct answer ask(struct engine *eng, struct session *s, const int32_t *tokens, int n, int shared, int flags) {
    struct answer a = {0};
    struct error e = {0};
    struct event ev;
    struct request r = {.tokens = tokens,
                        .n = n,
                        .n_shared = shared,
                        .max_tokens = ANSWER,
                        .flags = REQ_IGNORE_EOS | flags,
                        .sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5}};
    if ((a.rc = session_submit(s, &r, &e))) return a;
    do {
        engine_poll(eng, &ev, -1);
        if (ev.kind == EVENT_TOKEN) a.token[a.n++] = ev.token;
    } while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
    a.rc = ev.kind == EVENT_ERROR ? ev.error.code : 0;
    a.cached = ev.stats.cached_tokens;
    return a;
}

struct pair {
    const uint8_t *a, *b;
};
static int same_piece(void *ctx, const struct kv_image_range *p) {
    const struct pair *x = ctx;
    return memcmp(x->a + p->at, x->b + p->at, p->bytes);
}
static bool same_rows(const struct session *a, const struct session *b, int n) {
    return !kv_image_each(&a->kv, 0, n, -1, same_piece, &(struct pair){a->kv.pages, b->kv.pages});
}
/* The cache and answer of a session that shares nothing; checks that s has the same. */
static void as_alone(struct engine *eng, const struct session *s, const struct answer *a, const int32_t *tokens, int n,
                     int shared) {
    struct session *o = new_session(eng);
    struct answer want = ask(eng, o, tokens, n, shared, REQ_NO_PREFIX_REUSE);
    assert_int_equal(want.cached, 0);
    assert_true(same_rows(s, o, n));
    assert_memory_equal(want.token, a->token, sizeof want.token);
    session_close(&o);
}

/* REQ_EXACT_PREFIX_ONLY: a chat that goes on has the bits of one whose KV cache is lost. Otherwise the rows of its
 * answers stay. */
static void answers_are_read_again_if_asked(void **st) {
    for (int exact = 0; exact < 2; exact++) {
        const int flags = exact ? REQ_EXACT_PREFIX_ONLY : 0;
        struct engine *eng = open_with((struct engine_params){0});
        struct session *s = new_session(eng);
        int32_t chat[MOST];
        int n = 2 * ROWS + 40;
        memcpy(chat, text(n, MOST, 0), (size_t)n * sizeof *chat);
        struct answer x = ask(eng, s, chat, n, 0, flags);
        for (int turn = 0; turn < 3; turn++) {
            const int was = n;
            memcpy(chat + n, x.token, sizeof x.token);
            n += ANSWER;
            memcpy(chat + n, text(30, 0, turn), 30 * sizeof *chat);
            n += 30;
            x = ask(eng, s, chat, n, 0, flags);
            assert_int_equal(x.cached, exact ? was / ROWS * ROWS : was + ANSWER - 1);
            if (exact) as_alone(eng, s, &x, chat, n, 0);
        }
        session_close(&s);
        engine_close(&eng);
    }
}

static void the_same_beginning_is_read_once(void **st) {
    static const uint8_t types[] = {DT_BF16, DT_E4M3, DT_F32};
    for (int k = 0; k < 3; k++) {
        struct engine *eng = open_with((struct engine_params){.kv = types[k]});
        struct session *a = new_session(eng), *b = new_session(eng), *c = new_session(eng);
        struct answer x = ask(eng, a, text(400, MOST, 0), 400, 0, 0);
        assert_int_equal(x.cached, 0);
        x = ask(eng, b, text(380, 300, 1), 380, 0, 0); /* 300 tokens are the same: two batches */
        assert_int_equal(x.cached, 2 * ROWS);
        as_alone(eng, b, &x, text(380, 300, 1), 380, 0);
        x = ask(eng, a, text(350, 100, 2), 350, 0, 0); /* the owner of the prefix continues differently and is closed */
        assert_int_equal(x.cached, 0);
        as_alone(eng, a, &x, text(350, 100, 2), 350, 0);
        session_close(&a);
        struct session *alone = new_session(eng);
        ask(eng, alone, text(380, 300, 1), 380, 0, REQ_NO_PREFIX_REUSE);
        assert_true(same_rows(b, alone, 380));
        session_close(&alone);
        x = ask(eng, c, text(390, 300, 3), 390, 0, 0); /* a session passes on a prefix that it shares */
        assert_int_equal(x.cached, 2 * ROWS);
        as_alone(eng, c, &x, text(390, 300, 3), 390, 0);
        /* and rewinds to the end of a batch, so that others may share what follows */
        x = ask(eng, c, text(390, 300, 1), 390, 0, 0);
        assert_int_equal(x.cached, 2 * ROWS);
        as_alone(eng, c, &x, text(390, 300, 1), 390, 0);
        x = ask(eng, b, text(100, 0, 4), 100, 0, 0);
        as_alone(eng, b, &x, text(100, 0, 4), 100, 0);
        session_close(&b);
        session_close(&c);
        engine_close(&eng);
    }
}

/* The prefix length that the caller announces as shareable ends a batch and is shared; the remainder after rounding is
 * read again. */
static void a_beginning_may_be_named(void **st) {
    struct engine *eng = open_with((struct engine_params){0});
    struct session *a = new_session(eng), *b = new_session(eng);
    struct answer x = ask(eng, a, text(300, 200, 1), 300, 200, 0);
    as_alone(eng, a, &x, text(300, 200, 1), 300, 200);
    x = ask(eng, b, text(310, 200, 2), 310, 200, 0);
    assert_int_equal(x.cached, 192);
    as_alone(eng, b, &x, text(310, 200, 2), 310, 200);
    x = ask(eng, b, text(310, 0, 2), 310, 100, 0); /* another one, and an invalid hint */
    assert_int_equal(x.cached, 0);
    x = ask(eng, b, text(64, 0, 3), 64, 64, 0);
    assert_int_equal(x.cached, 0);
    session_close(&a);
    session_close(&b);
    engine_close(&eng);
}

/* The end of a part that only an earlier prompt shared is no end of another session's batches: nothing of that session
 * follows it. */
static void a_named_beginning_stays_an_end(void **st) {
    struct engine *eng = open_with((struct engine_params){0});
    struct session *a = new_session(eng), *b = new_session(eng), *alone = new_session(eng);
    ask(eng, a, text(300, MOST, 0), 300, 200, 0);
    ask(eng, b, text(900, MOST, 0), 900, 0, REQ_NO_PREFIX_REUSE);
    struct answer x = ask(eng, a, text(900, MOST, 0), 900, 0, 0),
                  want = ask(eng, alone, text(900, MOST, 0), 900, 0, REQ_NO_PREFIX_REUSE);
    assert_in_range(x.cached, 192, 300);
    assert_memory_equal(want.token, x.token, sizeof want.token);
    session_close(&a);
    session_close(&b);
    session_close(&alone);
    engine_close(&eng);
}

/* --- Forks ------------------------------------------------------------------------------------ */

static struct session *fork_of(struct engine *eng, struct session *a) {
    struct session *b = new_session(eng);
    struct error e = {0};
    if (session_fork(a, b, &e)) fail_msg("%s", e.text);
    assert_true(session_tokens(b, &(const int32_t *){0}) == session_tokens(a, &(const int32_t *){0}));
    return b;
}

static void a_fork_goes_on_as_its_origin(void **st) {
    struct engine *eng = open_with((struct engine_params){0});
    struct session *a = new_session(eng), *b, *c;
    int32_t talk[400];
    memcpy(talk, text(400, MOST, 0), sizeof talk);
    struct answer x = ask(eng, a, talk, 300, 0, 0), y, z;
    memcpy(talk + 300, x.token, sizeof x.token);
    b = fork_of(eng, a);
    y = ask(eng, b, talk, 350, 0, 0);
    assert_int_equal(y.cached, 300 + ANSWER - 1);
    c = fork_of(eng, b);
    x = ask(eng, a, talk, 350, 0, 0);
    assert_true(x.cached == y.cached && !memcmp(x.token, y.token, sizeof x.token) && same_rows(a, b, 350) &&
                same_rows(a, c, 350));
    x = ask(eng, a, text(200, 0, 9), 200, 0, 0); /* it starts anew: the others keep their rows */
    assert_true(same_rows(b, c, 350 + ANSWER - 1));
    session_close(&b);
    memcpy(talk + 350, y.token, sizeof y.token);
    y = ask(eng, c, talk, 390, 0, 0);
    assert_int_equal(y.cached, 350 + ANSWER - 1);
    b = fork_of(eng, c);
    y = ask(eng, b, talk, 320, 0, 0), z = ask(eng, c, talk, 320, 0, 0); /* both rewind into their shared rows */
    assert_true(y.cached == z.cached && !memcmp(y.token, z.token, sizeof y.token) && same_rows(b, c, 320));
    session_close(&a);
    session_close(&b);
    session_close(&c);
    engine_close(&eng);
}

/* A turn that is cancelled in the queue leaves fewer rows than the turn before it; a fork gets all of them. */
static void a_fork_after_a_turn_that_never_ran(void **st) {
    enum { KEPT = 300 };
    struct engine *eng = open_with((struct engine_params){0});
    struct session *a = new_session(eng), *b, *c, *busy = new_session(eng);
    struct error e = {0};
    struct event ev = {0};
    int32_t talk[KEPT + 20];
    ask(eng, a, text(KEPT, MOST, 0), KEPT, 0, 0);
    b = fork_of(eng, a);
    struct request r = {.tokens = text(2000, 0, 7), .n = 2000};
    if (session_submit(busy, &r, &e)) fail_msg("%s", e.text);
    memcpy(talk, text(KEPT + 20, KEPT, 3), sizeof talk);
    r = (struct request){.tokens = talk, .n = KEPT + 20, .max_tokens = 1};
    if (session_submit(b, &r, &e)) fail_msg("%s", e.text);
    session_cancel(b);
    for (int i = 0; i < 2; i++) {
        do engine_poll(eng, &ev, -1);
        while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
        assert_true(ev.session == (i ? busy : b) && ev.kind == EVENT_DONE);
    }
    assert_int_equal(session_tokens(b, &(const int32_t *){0}), KEPT);
    c = fork_of(eng, b);
    assert_true(same_rows(a, c, KEPT));
    struct answer x = ask(eng, c, talk, KEPT + 20, 0, 0), y = ask(eng, a, talk, KEPT + 20, 0, 0);
    assert_true(x.cached == KEPT && y.cached == KEPT && !memcmp(x.token, y.token, sizeof x.token) &&
                same_rows(a, c, KEPT + 20));
    session_close(&a);
    session_close(&b);
    session_close(&c);
    session_close(&busy);
    engine_close(&eng);
}

/* The same on devices: a copy gets the common prefix from another session's copy, whichever of them continues, rewinds
 * or ends, and whichever copy fails. */
static void devices_share_beginnings(void **st) {
    static const char *const gpus[] = {"emu:1", "emu:2", "emu:2,fail=copy:60"};
    static const uint8_t types[] = {DT_BF16, DT_E4M3, DT_F32};
    for (int k = 0; k < 3; k++) {
        struct engine *eng = open_with(
            (struct engine_params){.gpus = gpus[k], .kv = types[k], .prefill = PREFILL_CPU, .decode = DECODE_HYBRID});
        struct session *a = new_session(eng), *b = new_session(eng), *c, *d;
        struct answer x = ask(eng, a, text(400, MOST, 0), 400, 0, 0), y;
        assert_true(decode_counts(eng->machine.decode).kv_rows_shared == 0);
        x = ask(eng, b, text(380, 300, 1), 380, 0, 0);
        assert_int_equal(x.cached, 2 * ROWS);
        if (k < 2) assert_true(decode_counts(eng->machine.decode).kv_rows_shared == 2 * ROWS);
        as_alone(eng, b, &x, text(380, 300, 1), 380, 0);
        c = fork_of(eng, b);
        x = ask(eng, a, text(350, 100, 2), 350, 0, 0); /* the owner starts anew */
        as_alone(eng, a, &x, text(350, 100, 2), 350, 0);
        int32_t talk[400];
        memcpy(talk, text(380, 300, 1), 380 * sizeof *talk);
        int n = session_tokens(c, &(const int32_t *){0});
        memcpy(talk, c->tokens, (size_t)n * sizeof *talk);
        talk[n] = 7;
        /* the fork and its origin continue alike */
        x = ask(eng, c, talk, n + 1, 0, 0), y = ask(eng, b, talk, n + 1, 0, 0);
        assert_true(x.cached == n && y.cached == n && !memcmp(x.token, y.token, sizeof x.token) &&
                    same_rows(b, c, n + 1));
        if (k < 2) assert_true(decode_counts(eng->machine.decode).kv_rows_shared == (uint64_t)(2 * ROWS + n));
        session_close(&b);
        d = new_session(eng);
        /* the prefix's device copy belongs to a session that did not read it */
        x = ask(eng, d, text(390, 300, 3), 390, 0, 0);
        as_alone(eng, d, &x, text(390, 300, 3), 390, 0);
        session_close(&a);
        session_close(&c);
        session_close(&d);
        engine_close(&eng);
    }
}

static double pss(void) { /* Returns the MB of this process, each page divided by its number of users. */
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    double kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %lf", &kb) == 1) break;
    if (f) fclose(f);
    return kb / 1024;
}

/* Returns the MB of caches, as --status reports them. */
static double said(struct engine *eng, struct session **s, int n) {
    double tokens = 0;
    for (int i = 0; i < n; i++) tokens += session_tokens(s[i], &(const int32_t *){0}) - session_shared_tokens(s[i]);
    return (tokens * (double)engine_info(eng)->kv_token_bytes + (double)engine_shared_bytes(eng)) / (1 << 20);
}

/* Eight forks of a chat of 4,096 tokens take the memory of 1.1, and the reported size is the system's count, without
 * large pages, of which a part is empty. */
static void forks_share_memory(void **st) {
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 0);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    struct engine *e = open_with((struct engine_params){.kv = DT_F32, .context = 8192});
    struct session *first = new_session(e), *a, *fork[9];
    ask(e, first, text(MOST, 0, 1), MOST, 0, 0); /* by then the engine has allocated its own memory */
    session_close(&first);
    if (!pss()) SKIP("no /proc/self/smaps_rollup");
#ifdef HEARTH_RACE_RANGES
    SKIP("ThreadSanitizer takes memory of its own");
#endif
    double before = pss();
    a = new_session(e);
    ask(e, a, text(MOST, MOST, 0), MOST, 0, 0);
    double one = pss() - before, one_said = said(e, &a, 1);
    for (int i = 0; i < 8; i++) fork[i] = fork_of(e, a);
    for (int i = 0; i < 8; i++) assert_true(same_rows(a, fork[i], MOST));
    fork[8] = a;
    double all = pss() - before, all_said = said(e, fork, 9);
    print_message("by --status %.2f and %.2f MB\n", one_said, all_said);
    assert_true(fabs(one_said - one) < 0.1 * one && fabs(all_said - all) < 0.1 * all);
    print_message("a chat of 4,096 tokens takes %.2f MB, with eight forks of it %.2f: of %.3f\n", one, all, all / one);
    assert_true(one > 10 && all < 1.1 * one);
    for (int i = 0; i < 8; i++) session_close(&fork[i]);
    session_close(&a);
    assert_true(pss() - before < 0.2 * one); /* and all of it is freed */
    engine_close(&e);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, ROWS);
}

/* Without memory for sharing, a prompt is read again or the turn fails; nothing else happens. */
static void no_memory_to_share(void **st) {
    struct engine *eng = open_with((struct engine_params){0});
    struct session *a = new_session(eng), *b, *c;
    struct answer want = ask(eng, a, text(400, MOST, 0), 400, 0, 0), got;
    int ok = 0, errors = 0;
    for (int nth = 1; ok < 2; nth += 1 + nth / 8) {
        b = new_session(eng), c = new_session(eng);
        struct error e = {0};
        fault_set(FAULT_ALLOC, nth, false, false);
        got = ask(eng, b, text(400, MOST, 0), 400, 0, 0);
        int rc = got.rc ? 0 : session_fork(b, c, &e);
        bool hit = fault_count(FAULT_ALLOC) >= nth;
        fault_set(FAULT_ALLOC, 0, false, false);
        ok += !hit, errors += got.rc || rc;
        if (got.rc) assert_int_equal(got.rc, ERR_MEMORY);
        else assert_true(!memcmp(got.token, want.token, sizeof want.token) && same_rows(a, b, 400));
        if (rc) assert_int_equal(rc, ERR_MEMORY);
        else if (!got.rc) assert_true(same_rows(b, c, 400));
        got = ask(eng, b, text(400, MOST, 0), 400, 0, 0);
        assert_true(!got.rc && !memcmp(got.token, want.token, sizeof want.token));
        session_close(&b);
        session_close(&c);
    }
    assert_true(errors > 2);
    session_close(&a);
    engine_close(&eng);
}

/* --- Random schedules ------------------------------------------------------------------------- */

/* Random prompts with few beginnings in several sessions at once, which are stopped, forked, closed and opened again,
 * with prefixes written to disk and read from it: each answer is the one that the prompt has alone. Float32 and scalar,
 * where rows have the same bits in any batch. */
static int rounds = 24;

static void random_sessions_share_prefixes_unchanged(void **st) {
    enum { S = 5, KINDS = 3, LENGTHS = 4 };
    static const int length[LENGTHS] = {70, 140, 200, 290};
    static struct answer want[KINDS][LENGTHS];
    char kept[] = "/tmp/hearth-prefix-XXXXXX", command[64];
    assert_non_null(mkdtemp(kept));
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 64);
    test_limits_set(TEST_LIMIT_KV_DISK_MIN_US, 1);
    struct engine *eng = open_with(
        (struct engine_params){.cpu_level = CPU_SCALAR + 1, .kv = DT_F32, .kv_dir = kept, .kv_limit = 1 << 20});
    struct session *s[S];
    struct {
        int kind, length, n;
        bool runs, stopped;
        int32_t token[ANSWER];
    } turn[S] = {0};
    struct error e = {0};
    uint64_t x = 88172645463325252u;
    long shared = 0, answered = 0, stopped = 0;
    for (int k = 0; k < KINDS; k++)
        for (int l = 0; l < LENGTHS; l++) {
            struct session *alone = new_session(eng);
            want[k][l] = ask(eng, alone, text(length[l], 100 + 50 * k, k), length[l], 0,
                             REQ_NO_PREFIX_REUSE | REQ_NO_DISK_CACHE);
            session_close(&alone);
        }
    for (int i = 0; i < S; i++) s[i] = new_session(eng);
    for (int round = 0, left = 0; round < rounds || left;) {
        int i = (int)((x ^= x << 13, x ^= x >> 7, x ^= x << 17) % S);
        if (!turn[i].runs && round < rounds) {
            round++;
            if (x >> 20 & 1) {
                int from = (i + 1) % S;
                session_close(&s[i]);
                s[i] = new_session(eng);
                if (!turn[from].runs && x >> 21 & 1 && session_fork(s[from], s[i], &e)) fail_msg("%s", e.text);
            }
            turn[i].kind = (int)(x >> 24 & 255) % KINDS, turn[i].length = (int)(x >> 32 & 255) % LENGTHS, turn[i].n = 0;
            turn[i].stopped = (x >> 40 & 7) == 0, turn[i].runs = true;
            struct request r = {.tokens = text(length[turn[i].length], 100 + 50 * turn[i].kind, turn[i].kind),
                                .n = length[turn[i].length],
                                .max_tokens = ANSWER,
                                .flags = REQ_IGNORE_EOS,
                                .sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5}};
            if (session_submit(s[i], &r, &e)) fail_msg("%s", e.text);
            if (turn[i].stopped) session_cancel(s[i]);
            left++;
            if (left < 3) continue;
        }
        struct event ev;
        if (!engine_poll(eng, &ev, 60000)) fail_msg("no event in a minute");
        int k = 0;
        while (s[k] != ev.session) k++;
        if (ev.kind == EVENT_TOKEN) turn[k].token[turn[k].n++] = ev.token;
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind != EVENT_DONE) continue;
        assert_memory_equal(turn[k].token, want[turn[k].kind][turn[k].length].token,
                            (size_t)turn[k].n * sizeof *turn[k].token);
        if (!turn[k].stopped) assert_int_equal(turn[k].n, ANSWER);
        shared += ev.stats.cached_tokens, answered += !turn[k].stopped, stopped += turn[k].stopped;
        turn[k].runs = false;
        left--;
    }
    print_message("%ld answers, %ld stopped, %ld tokens known from before\n", answered, stopped, shared);
    assert_true(shared > 40 * answered);
    for (int i = 0; i < S; i++) session_close(&s[i]);
    engine_close(&eng);
    test_limits_set(TEST_LIMIT_KV_DISK_MIN_US, 0);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, ROWS);
    snprintf(command, sizeof command, "rm -r %s", kept);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = atoi(argv[1]);
    file_embed(ember_files);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, ROWS);
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_read_again_if_asked),
                                       cmocka_unit_test(the_same_beginning_is_read_once),
                                       cmocka_unit_test(a_beginning_may_be_named),
                                       cmocka_unit_test(a_named_beginning_stays_an_end),
                                       cmocka_unit_test(a_fork_goes_on_as_its_origin),
                                       cmocka_unit_test(a_fork_after_a_turn_that_never_ran),
                                       cmocka_unit_test(devices_share_beginnings),
                                       cmocka_unit_test(forks_share_memory),
                                       cmocka_unit_test(no_memory_to_share),
                                       cmocka_unit_test(random_sessions_share_prefixes_unchanged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
