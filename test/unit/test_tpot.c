/* The bound on time per token: which prompts begin beside answers, how much time other work gets, and what is said.
 * Decisions are by the cost table alone, so that they do not depend on this machine. */
#include "engine/session/tpot.h"
#include "test/unit/session.h"

#include <math.h>

#include "base/log.h"
#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/decode.h"
#include "engine/session/engine_state.h"

enum { SESSIONS = 4, ANSWER = 16 };
static char warning[400];
static int n_warnings;
static void on_log(void *ctx, enum log_level level, const char *text) {
    if (level != LOG_WARN) return;
    n_warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

struct run {
    int32_t token[SESSIONS][ANSWER];
    int n[SESSIONS];
    int most_at_once; /* answers that had begun and had not ended when a token came */
    struct turn_stats stats[SESSIONS];
};

/* Makes the CPU of the cost table ten thousand times as slow, so that no real batch is above a bound that is near its
 * predictions. */
static void slow_down(struct cost_domain *d) {
    for (int k = 0; k < COST_KINDS; k++) {
        d->latency[k] *= 1e4;
        for (int i = 0; i < COST_POINTS; i++) d->bw[k].value[i] *= 1e-4f;
        for (int f = 0; f < COST_FORMATS; f++)
            for (int i = 0; i < COST_POINTS; i++) d->rate[k][f].value[i] *= 1e-4f;
    }
    for (int f = 0; f < COST_FORMATS; f++)
        for (int i = 0; i < COST_POINTS; i++) d->rate_few_rows[f].value[i] *= 1e-4f;
}

static void submit_all(struct session **s) {
    struct error err = {0};
    static int32_t prompt[SESSIONS][16];
    for (int i = 0; i < SESSIONS; i++) {
        for (int k = 0; k < 16; k++) prompt[i][k] = 100 + (i * 37 + k * 11) % 300;
        if (session_submit(s[i],
                           &(struct request){.tokens = prompt[i],
                                             .n = 16,
                                             .max_tokens = ANSWER,
                                             .client = (uint64_t)i,
                                             .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE,
                                             .sampling = {.temperature = 1, .top_p = 1, .seed = 5}},
                           &err))
            fail_msg("%s", err.text);
    }
}

/* Whether the first answer has so few tokens that the others begin beside it. False if this thread was held up between
 * two questions. */
static bool begin_together(struct engine *eng, const struct session *first) {
    pthread_mutex_lock(&eng->lock);
    const bool is_early = first->n_answered < ANSWER / 4;
    pthread_mutex_unlock(&eng->lock);
    return is_early;
}

/* Asks all sessions at once; on a busy machine this may take several attempts. */
static struct run run(double max_tpot_s, const char *gpus, enum exec_mode decode, bool is_slow) {
    struct engine_params p = {.dir = "ember:",
                              .threads = 2,
                              .cpu_level = CPU_SCALAR + 1,
                              .kv = DT_F32,
                              .context = 512,
                              .gpus = gpus,
                              .decode = decode,
                              .deterministic = true,
                              .max_tpot_s = max_tpot_s};
    struct run r = {0};
    struct engine *eng;
    struct error e = {0};
    struct session *s[SESSIONS];
    bool over[SESSIONS] = {0};
    for (int attempt = 0;; attempt++) {
        if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
        if (is_slow) slow_down(&eng->cost.domain[0]);
        for (int i = 0; i < SESSIONS; i++) s[i] = new_session(eng);
        n_warnings = 0;
        submit_all(s);
        if (begin_together(eng, s[0])) break;
        if (attempt == 20) fail_msg("no questions were asked at once in 20 attempts");
        for (int i = 0; i < SESSIONS; i++) session_close(&s[i]);
        engine_close(&eng);
    }
    for (int left = SESSIONS; left;) {
        struct event ev;
        int i = 0, at_once = 0;
        if (!engine_poll(eng, &ev, 120000)) fail_msg("no event for two minutes");
        while (s[i] != ev.session) i++;
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) r.token[i][r.n[i]++] = ev.token;
        if (ev.kind == EVENT_DONE) over[i] = true, left--, r.stats[i] = ev.stats;
        for (int k = 0; k < SESSIONS; k++) at_once += r.n[k] > 1 && !over[k]; /* the first token is of the prefill */
        r.most_at_once = at_once > r.most_at_once ? at_once : r.most_at_once;
    }
    for (int i = 0; i < SESSIONS; i++) session_close(&s[i]);
    engine_close(&eng);
    return r;
}

static void one_at_a_time(void **st) {
    static const struct {
        const char *gpus;
        enum exec_mode decode;
    } ways[] = {{NULL, MODE_AUTO}, {"emu:1,cpu=scalar", DECODE_HYBRID}, {"emu:1,cpu=scalar", MODE_AUTO}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        const struct run free = run(0, ways[w].gpus, ways[w].decode, false);
        assert_int_equal(n_warnings, 0);
        const struct run loose = run(1000, ways[w].gpus, ways[w].decode, false);
        assert_true(free.most_at_once > 1 && loose.most_at_once > 1);
        assert_int_equal(n_warnings, 0);
        assert_null(strstr(free.stats[0].decode_why, "max-tpot"));
        assert_non_null(strstr(loose.stats[0].decode_why, "within the limit of 1e+06 (--max-tpot)"));
        const struct run tight = run(1e-9, ways[w].gpus, ways[w].decode, false);
        assert_int_equal(tight.most_at_once, 1);
        assert_int_equal(n_warnings, 1); /* once, not for each answer */
        assert_non_null(
            strstr(warning, "a limit of 1e-06 ms per token cannot be met: with one session, a token takes "));
        assert_non_null(strstr(tight.stats[0].decode_why, "the least, above the limit of"));
        int waited = 0;
        for (int i = 0; i < SESSIONS; i++)
            waited += strstr(tight.stats[i].prefill_why, "waited for other answers (--max-tpot)") != NULL;
        assert_int_equal(waited, SESSIONS - 1);
        for (int i = 0; i < SESSIONS; i++) {
            assert_int_equal(tight.n[i], ANSWER);
            if (ways[w].gpus && !ways[w].decode) continue; /* the mode may depend on the number of sessions */
            assert_memory_equal(free.token[i], tight.token[i], sizeof free.token[i]);
            assert_memory_equal(free.token[i], loose.token[i], sizeof free.token[i]);
        }
    }
}

/* A bound between what two and three sessions take: by the cost table, two answers run at once. */
static void as_many_as_the_bound_permits(void **st) {
    struct engine_params p = {.dir = "ember:",
                              .threads = 2,
                              .cpu_level = CPU_SCALAR + 1,
                              .kv = DT_F32,
                              .context = 512,
                              .deterministic = true};
    struct engine *eng;
    struct error e = {0};
    struct policy_decode_out d[4];
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    slow_down(&eng->cost.domain[0]);
    for (int n = 1; n < 4; n++)
        policy_decode_batch(&(struct policy_machine){.cost = &eng->cost, .model = &eng->cost_model},
                            &(struct policy_decode_in){.n_decoding = n, .max_rows = ENGINE_MAX_BATCH, .keys = 28},
                            &d[n]);
    engine_close(&eng);
    assert_true(d[3].tpot_s > 1.02 * d[2].tpot_s);
    assert_int_equal(run((d[2].tpot_s + d[3].tpot_s) / 2, NULL, MODE_AUTO, true).most_at_once, 2);
}

/* Batches of 60 ms under a bound of 100 leave 40 ms each to a prompt, and at most 100, or a unit of it, at once. */
static void other_work_gets_what_is_left(void **st) {
    static struct engine e;
    assert_true(tpot_has_room(&e, 1e9)); /* no bound */
    e.params.max_tpot_s = 0.1, e.batch_expected_s = 0.06;
    assert_true(tpot_has_room(&e, 0) && !tpot_has_room(&e, 0.001));
    double prompts = 0, batches = 0;
    e.tpot.unit_s = 0.25;
    for (int i = 0; i < 1000; i++) {
        if (tpot_has_room(&e, 0.25)) tpot_charge(&e, 0.25), prompts += 0.25;
        else tpot_batch_done(&e, 2, 2, 0.06), batches += 0.06;
        assert_true(e.tpot.spare_s >= 0 && e.tpot.spare_s <= 0.35);
    }
    assert_true(fabs(prompts / batches - 40.0 / 60) < 0.01);
    e.tpot = (struct tpot){0};
    for (int i = 0; i < 1000; i++) tpot_batch_done(&e, 2, 2, 0.06); /* saved time has a limit: no stall is long */
    assert_true(fabs(e.tpot.spare_s - 0.1) < 1e-12);
    e.tpot = (struct tpot){0};
    tpot_batch_done(&e, 4, 2, 0.04); /* two of four sessions got a token: the bound permits 50 ms */
    assert_true(fabs(e.tpot.spare_s - 0.01) < 1e-12);
    tpot_batch_done(&e, 2, 3, 0.14); /* a drafted token more: 150 ms */
    assert_true(fabs(e.tpot.spare_s - 0.02) < 1e-12);
    for (int i = 0; i < 3; i++) tpot_batch_done(&e, 1, 1, 0.12); /* too slow: debts are kept until batches are faster */
    assert_true(!tpot_has_room(&e, 0) && !e.tpot.has_warned);
}

/* It is said after a row of slow batches, and only if the prediction is above the bound too. */
static void a_miss_is_said_once(void **st) {
    static struct engine e;
    n_warnings = 0;
    e.params.max_tpot_s = 0.1, e.batch_expected_s = 0.06, e.next_exec = DECODE_HYBRID;
    for (int i = 0; i < 20; i++) tpot_batch_done(&e, 1, 1, 0.2);
    assert_int_equal(n_warnings, 0);
    e.batch_expected_s = 0.15;
    for (int i = 0; i < 20; i++) tpot_batch_done(&e, 1, 1, i % 7 ? 0.2 : 0.05), tpot_batch_done(&e, 2, 2, 0.2);
    assert_int_equal(n_warnings, 0);
    for (int i = 0; i < 20; i++) tpot_batch_done(&e, 1, 1, 0.2);
    assert_int_equal(n_warnings, 1);
    assert_string_equal(warning, "a limit of 100 ms per token cannot be met: with one session, a token takes 200 ms "
                                 "(150 ms expected) by hybrid, the fastest choice; answers are "
                                 "generated one at a time (--max-tpot)");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_work_gets_what_is_left),
                                       cmocka_unit_test(a_miss_is_said_once), cmocka_unit_test(one_at_a_time),
                                       cmocka_unit_test(as_many_as_the_bound_permits)};
    file_embed(ember_files);
    log_set(on_log, NULL, LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
