/* Recurrent states (gated DeltaNet): which are kept and dropped as a session advances and rewinds; and that whatever a
 * session has been through, its text is that of a fresh one. The latter also for models whose layers use rows of other
 * layers. */
#include "engine/layer/kv_planes.h"
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/session/engine_state.h"
#include "test/unit/session.h"

/* --- The table of states ---------------------------------------------------------------------- */

static struct config model(bool delta) {
    return (struct config){.n_layers = 2,
                           .n_heads = 1,
                           .n_kv_heads = 1,
                           .head_dim = 4,
                           .v_dim = 4,
                           .delta = {.k_heads = 1, .v_heads = 2, .k_dim = 4, .v_dim = 8, .taps = 4},
                           .layer = {[0] = {.mixer = delta ? MIXER_DELTA : MIXER_ATTENTION}}};
}
static void open_kv(struct kv *kv, const struct config *c) {
    struct error e = {0};
    if (kv_open(kv, c, kv_planes, 4096, DT_BF16, &e)) fail_msg("%s", e.text);
}
static struct kv_state_step move(struct kv *kv, int pos, int n, int mark) {
    struct kv_state_step m = kv_state_begin(kv, pos, n, mark);
    assert_true(m.to_row >= 0 && m.to_row != m.from_row &&
                (!m.mark || (m.mark_row != m.from_row && m.mark_row != m.to_row)) && (pos == 0) == (m.from_row < 0));
    kv_state_commit(kv, &m, pos, n);
    return m;
}

static void states_are_kept_where_one_goes_back_to(void **st) {
    struct config c = model(true), rows = model(false);
    struct kv kv;
    open_kv(&kv, &rows);
    assert_true(!kv.has_states && kv_resume_pos(&kv, 77) == 77 && kv_state_begin(&kv, 5, 1, 0).to_row == -1 &&
                !kv_state_bytes(&rows));
    kv_close(&kv);
    open_kv(&kv, &c);
    assert_int_equal(kv_state_bytes(&c), (3 * (2 * 4 + 2 * 8) + 2 * 4 * 8) * 4);
    assert_int_equal(kv_row_bytes(&c, 0, DT_BF16), 0);
    assert_int_equal(kv_row_bytes(&c, 1, DT_BF16), 2 * 4 * 2);
    assert_int_equal(kv_resume_pos(&kv, 4000), 0);
    move(&kv, 0, 100, 64);
    assert_true(kv_resume_pos(&kv, 99) == 64 && kv_resume_pos(&kv, 100) == 100 && kv_resume_pos(&kv, 63) == 0);
    for (int i = 100; i < 300; i++) move(&kv, i, 1, 0); /* decoding: two rows alternate */
    assert_true(kv_resume_pos(&kv, 299) == 299 && kv_resume_pos(&kv, 298) == 64);
    /* and one that fails: its starting state still exists */
    struct kv_state_step lost = kv_state_begin(&kv, 300, 50, 0);
    assert_true(lost.from_row >= 0 && kv_resume_pos(&kv, 350) == 300);
    kv_state_keep(&kv, 300);
    move(&kv, 300, 200, 128);
    assert_true(kv_resume_pos(&kv, 499) == 428 && kv_resume_pos(&kv, 427) == 300 && kv_resume_pos(&kv, 299) == 64);
    kv_rewind(&kv, 427);
    assert_int_equal(kv_resume_pos(&kv, 4000), 300);
    move(&kv, 300, 10, 0); /* other tokens: everything after them is invalid */
    kv_state_begin(&kv, 64, 5, 0);
    assert_int_equal(kv_resume_pos(&kv, 4000), 64);
    kv_close(&kv);
}

/* Steps of one batch, each of which continues the one before: with `keep` other kept states and a mark in one of them,
 * or at its end, they use two rows in turn, so that what the first began from is there until the last is committed, and
 * after a failure. */
static void steps_of_a_batch_follow_each_other(void **st) {
    enum { STEPS = 5, N = 10, MARK = 7, CASES = 2 * 2 * (STEPS + 1) * KV_STATES };
    struct config c = model(true);
    for (int k = 0; k < CASES; k++) {
        const bool is_first = k % 2;
        const int mark = k / 2 % 2 ? MARK : N, marked = k / 4 % (STEPS + 1) - 1, keep = k / 4 / (STEPS + 1);
        const int base = is_first ? 0 : 1000;
        struct kv kv;
        struct kv_state_step s[STEPS];
        open_kv(&kv, &c);
        for (int i = 1; i <= keep; i++) move(&kv, 100 * (i - 1), 100, 0), kv_state_keep(&kv, 100 * i);
        if (!is_first) move(&kv, 100 * keep, 1000 - 100 * keep, 0);
        const int from = is_first ? -1 : kv_state_find(&kv, base);
        s[0] = kv_state_begin(&kv, base, N, marked == 0 ? mark : 0);
        for (int i = 1; i < STEPS; i++) s[i] = kv_state_continue(&kv, &s[i - 1], N, marked == i ? mark : 0);
        assert_int_equal(s[0].from_row, from);
        unsigned rows = 0;
        for (int i = 0; i < STEPS; i++) {
            assert_true(!i || s[i].from_row == s[i - 1].to_row);
            assert_true(s[i].to_row >= 0 && s[i].to_row != from && s[i].to_row != s[i].from_row);
            rows |= 1u << s[i].to_row;
            assert_int_equal(s[i].mark, marked == i && mark < N ? MARK : 0);
            for (int l = 0; l < STEPS && s[i].mark; l++) assert_true(s[i].mark_row != s[l].to_row);
            assert_true(!s[i].mark || (s[i].mark_row >= 0 && s[i].mark_row != from));
        }
        const bool keeps_row = marked >= 0 && marked < STEPS - 2 && mark == N; /* later ones take another */
        assert_int_equal(__builtin_popcount(rows), 2 + keeps_row);
        assert_int_equal(kv_resume_pos(&kv, 4000), base);
        for (int i = 0; i < STEPS; i++) kv_state_commit(&kv, &s[i], base + N * i, N);
        assert_int_equal(kv_resume_pos(&kv, 4000), base + N * STEPS);
        assert_int_equal(kv_state_find(&kv, base + N * STEPS), s[STEPS - 1].to_row);
        if (marked >= 0) {
            const int at = base + N * marked + mark;
            assert_true(kv_resume_pos(&kv, at) == at && kv.state[kv_state_find(&kv, at)].is_kept);
        }
        kv_close(&kv);
    }
}

static void old_states_give_way(void **st) {
    struct config c = model(true);
    struct kv kv;
    open_kv(&kv, &c);
    for (int i = 0; i < 3 * KV_STATES; i++) {
        move(&kv, 100 * i, 100, 0);
        kv_state_keep(&kv, 100 * (i + 1));
    }
    int left = 0, gap = 0;
    for (int at = 0, to = 300 * KV_STATES; to; to = at) {
        at = kv_resume_pos(&kv, to - 1);
        gap = to - at > gap ? to - at : gap;
        left++;
    }
    assert_int_equal(kv_resume_pos(&kv, 4000), 300 * KV_STATES);
    assert_true(left == KV_STATES && gap <= 900);
    kv_close(&kv);
}

/* Whatever was tried after a position, and however full the table is, the session can resume there, and never from a
 * state that was only tried. */
static void tried_tokens_leave_no_state(void **st) {
    struct config c = model(true);
    for (int keep = 0; keep <= KV_STATES; keep++)
        for (int variant = 0; variant < 3; variant++) { /* 2: after a single step, so that all states may be kept */
            const bool base_kept = variant > 0;
            struct kv kv;
            int left = 0;
            open_kv(&kv, &c);
            for (int i = 1; i <= keep; i++) move(&kv, 100 * (i - 1), 100, 0), kv_state_keep(&kv, 100 * i);
            const int pos = 100 * keep + 2, step = variant == 2 ? 2 : 1;
            for (int i = pos - 2; i < pos; i += step) move(&kv, i, step, 0);
            if (base_kept) kv_state_keep(&kv, pos);
            kv_state_try(&kv, pos);
            for (int i = pos; i < pos + 7; i++) {
                move(&kv, i, 1, 0);
                assert_true(kv_state_find(&kv, pos) >= 0 && kv_state_find(&kv, i + 1) >= 0);
            }
            kv_state_undo(&kv, pos);
            assert_int_equal(kv_resume_pos(&kv, 4000), pos);
            for (int i = 1; i <= keep; i++) left += kv_state_find(&kv, 100 * i) >= 0;
            assert_true(left >= (keep < KV_STATES - 3 ? keep : KV_STATES - 3));
            const bool kept = kv.state[kv_state_find(&kv, pos)].is_kept;
            assert_true(kept == base_kept); /* otherwise it would never be evicted */
            move(&kv, pos, 1, 0);
            assert_int_equal(kv_resume_pos(&kv, 4000), pos + 1);
            kv_close(&kv);
        }
}

static void marks_lie_before_the_end_of_a_prompt(void **st) {
    for (int pos = 0; pos < 200; pos += 7)
        for (int n = 1; n < 400; n += 3) {
            int mark = kv_state_mark(pos, n);
            assert_true(mark >= 0 && (!mark || ((pos + mark) % 64 == 0 && n - mark >= 16 && n - mark < 16 + 64)));
            assert_true(mark || n < 16 + 64);
        }
}

/* --- Memory of a cache ------------------------------------------------------------------------ */

/* A context larger than any machine's memory costs nothing until it is used; rows keep their addresses. */
static void a_cache_grows_in_its_place(void **st) {
    struct config c = model(false);
    struct kv kv;
    struct error e = {0};
    struct rlimit was, less;
    if (kv_open(&kv, &c, kv_planes, 1 << 30, DT_E4M3, &e)) fail_msg("%s", e.text);
    uint8_t *data = kv.layer[1].p[1].data;
    float *scale = kv.layer[1].p[1].scale;
    assert_int_equal(kv.committed, 0);
    for (int end = 1; end <= 1 << 20; end *= 4) {
        if (kv_commit(&kv, end, &e)) fail_msg("%s", e.text);
        data[4 * end - 1] = (uint8_t)end ^ 77, scale[end - 1] = (float)end;
    }
    for (int end = 1; end <= 1 << 20; end *= 4)
        assert_true(data[4 * end - 1] == ((uint8_t)end ^ 77) && scale[end - 1] == (float)end);
    int committed = kv.committed;
    assert_true(committed >= 1 << 20 && committed < (1 << 20) + 2048);
    for (int nth = 1; nth < 4; nth++) { /* a failure leaves everything as it was, and is retried later */
        fault_set(FAULT_ALLOC, nth, false, false);
        assert_int_equal(kv_commit(&kv, committed + 5000, &e), ERR_MEMORY);
        fault_set(FAULT_ALLOC, 0, false, false);
        assert_int_equal(kv.committed, committed);
    }
    getrlimit(RLIMIT_DATA, &was);
    less = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = was.rlim_max};
    setrlimit(RLIMIT_DATA, &less); /* the system's own refusal: no more writable memory */
    int rc = kv_commit(&kv, 1 << 28, &e);
    setrlimit(RLIMIT_DATA, &was);
    assert_int_equal(rc, ERR_MEMORY);
    assert_int_equal(kv.committed, committed);
    if (kv_commit(&kv, committed + 5000, &e)) fail_msg("%s", e.text);
    data[4 * (committed + 5000) - 1] = 1, scale[committed + 4999] = 1;
    kv_close(&kv);
}

/* Large pages of the block of 2 MB at p; -1: unknown. */
static int large_pages_at(const void *p) {
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[256];
    unsigned long begin, end;
    bool in = false;
    int kb = -1;
    while (f && fgets(line, sizeof line, f) && kb < 0)
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) in = (uintptr_t)p >= begin && (uintptr_t)p < end;
        else if (in) sscanf(line, "AnonHugePages: %d", &kb);
    if (f) fclose(f);
    return kb < 0 ? -1 : kb / 2048;
}
static bool has_large_pages(void) {
    uint8_t *p = mem_pages(4 * MEM_HUGE_PAGE, MEM_HUGE);
    if (p) p[0] = 1;
    bool has = p && large_pages_at(p) == 1;
    if (has) { /* and replaces small ones */
        uint8_t *q = mem_pages(MEM_HUGE_PAGE, MEM_RESERVE);
        has = q && !mem_commit(q, MEM_HUGE_PAGE);
        if (has) q[0] = 1, mem_request_huge(q, MEM_HUGE_PAGE, true), has = large_pages_at(q) == 1;
        mem_pages_free(q, MEM_HUGE_PAGE);
    }
    mem_pages_free(p, 4 * MEM_HUGE_PAGE);
    return has;
}
/* Keys have small pages at first, large ones when a block of 2 MB is in use to some part: at once for a prompt, one
 * plane after the other for an answer, which keeps what is there; beyond a share of memory when they are full. */
static void blocks_in_use_become_large_pages(void **st) {
    enum { ROW = 4, BLOCK = MEM_HUGE_PAGE / ROW, EARLY = BLOCK / 32 }; /* positions */
    struct config c = model(false);
    struct kv kv;
    struct error e = {0};
    if (!has_large_pages()) {
        print_message("SKIPPED: this system gives no large pages\n");
        return;
    }
    if (kv_open(&kv, &c, kv_planes, 1 << 24, DT_E4M3, &e)) fail_msg("%s", e.text);
    uint8_t *data = kv.layer[1].p[1].data;
    assert_int_equal((uintptr_t)data % MEM_HUGE_PAGE, 0);
    for (int end = 1; end < EARLY; end += 512) {
        if (kv_commit(&kv, end, &e)) fail_msg("%s", e.text);
        data[ROW * end - 1] = (uint8_t)(end % 251);
    }
    assert_int_equal(large_pages_at(data), 0);
    for (int end = EARLY; end < EARLY + 64; end++) { /* each call may copy a few blocks */
        if (kv_commit(&kv, end, &e)) fail_msg("%s", e.text);
        data[ROW * end - 1] = 1;
    }
    assert_int_equal(large_pages_at(data), 1);
    for (int end = 1; end < EARLY; end += 512) assert_int_equal(data[ROW * end - 1], end % 251);
    if (kv_commit(&kv, 3 * BLOCK, &e)) fail_msg("%s", e.text);
    memset(data + ROW * EARLY, 1, 3 * MEM_HUGE_PAGE - ROW * EARLY);
    assert_int_equal(large_pages_at(data), 3);
    assert_int_equal(kv_renew(&kv), 0);
    if (kv_commit(&kv, BLOCK, &e)) fail_msg("%s", e.text);
    assert_int_equal(data[0], 0);
    data[0] = 1;
    assert_int_equal(large_pages_at(data), 1);
    const size_t bytes = kv.n_large * MEM_HUGE_PAGE;
    kv_close(&kv);

    /* n such caches, the last of which is beyond the share */
    int n = 0;
    struct kv *many = mem_calloc(mem_total() / 32 / bytes + 2, sizeof *many);
    for (; !n || many[n - 1].is_early; n++)
        if (kv_open(&many[n], &c, kv_planes, 1 << 24, DT_E4M3, &e)) fail_msg("%s", e.text);
    assert_true((size_t)n * bytes > mem_total() / 32 && (size_t)(n - 1) * bytes <= mem_total() / 32);
    data = many[n - 1].layer[1].p[1].data;
    if (kv_commit(&many[n - 1], BLOCK - 1, &e)) fail_msg("%s", e.text);
    data[0] = 1;
    assert_int_equal(large_pages_at(data), 0);
    for (int i = 0; i < 64; i++)
        if (kv_commit(&many[n - 1], BLOCK + i, &e)) fail_msg("%s", e.text);
    assert_int_equal(large_pages_at(data), 1);
    kv_close(&many[0]);
    if (kv_open(&many[0], &c, kv_planes, 1 << 24, DT_E4M3, &e)) fail_msg("%s", e.text);
    assert_true(many[0].is_early); /* what was closed is free again */
    for (int i = 0; i < n; i++) kv_close(&many[i]);
    mem_free(many);
}

/* --- Sessions --------------------------------------------------------------------------------- */

enum { LONG = 200, ANSWER = 6 };
static int32_t prompt[LONG + 3 * ANSWER];
static const char *dir;
/* further models, without states, whose layers take keys or latents of others; ends with NULL */
static char *const *taking;

static struct engine *open_with(struct engine_params p) {
    struct engine *eng;
    struct error e = {0};
    p.dir = dir, p.threads = 2, p.kv = DT_F32, p.cpu_level = CPU_SCALAR + 1;
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < LONG; i++) prompt[i] = (i * 37 + i / 7 + 11) % engine_info(eng)->vocab;
    return eng;
}
/* Runs a turn over tokens [0, n) of `tokens`; returns how many the cache had. */
static int turn_with(struct engine *eng, struct session *s, const int32_t *tokens, int n, int flags, int32_t *out) {
    struct error e = {0};
    struct event ev;
    int k = 0;
    struct request r = {.tokens = tokens,
                        .n = n,
                        .max_tokens = ANSWER,
                        .flags = REQ_IGNORE_EOS | flags,
                        .sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5}};
    if (session_submit(s, &r, &e)) fail_msg("%s", e.text);
    do {
        engine_poll(eng, &ev, -1);
        if (ev.kind == EVENT_TOKEN) out[k++] = ev.token;
    } while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
    if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
    assert_int_equal(k, ANSWER);
    return ev.stats.cached_tokens;
}
static int turn(struct engine *eng, struct session *s, const int32_t *tokens, int n, int32_t *out) {
    return turn_with(eng, s, tokens, n, 0, out);
}
/* The same in a session with an empty cache and no sharing. */
static void as_fresh(struct engine *eng, const int32_t *tokens, int n, const int32_t *got) {
    int32_t want[ANSWER];
    struct session *s = new_session(eng);
    assert_int_equal(turn_with(eng, s, tokens, n, REQ_NO_PREFIX_REUSE, want), 0);
    session_close(&s);
    assert_memory_equal(got, want, sizeof want);
}

/* has_states: the session resumes only where it has a state; otherwise at the first token that differs. */
static void conversation(const char *gpus, enum exec_mode prefill, enum exec_mode decode, bool has_states) {
    struct engine *eng = open_with((struct engine_params){.gpus = gpus, .prefill = prefill, .decode = decode});
    struct session *s = new_session(eng), *other;
    int32_t out[ANSWER], again[ANSWER], talk[LONG];
    const int known = 90 + ANSWER - 1; /* the last token of an answer is not in the cache */
    turn(eng, s, prompt, 90, out);
    as_fresh(eng, prompt, 90, out);
    assert_int_equal(turn(eng, s, prompt, 90, again), has_states ? 64 : 89); /* once more: from the mark */
    assert_memory_equal(out, again, sizeof out);
    memcpy(talk, prompt, sizeof talk);
    memcpy(talk + 90, out, sizeof out);
    assert_int_equal(turn(eng, s, talk, 112, again), known);
    as_fresh(eng, talk, 112, again);
    talk[100]++; /* rewound, with another question */
    assert_int_equal(turn(eng, s, talk, 108, again), has_states ? known : 100);
    as_fresh(eng, talk, 108, again);
    talk[80]++; /* further back */
    assert_int_equal(turn(eng, s, talk, 130, again), has_states ? 64 : 80);
    other = new_session(eng); /* another session with the same prefix, alternating with this one */
    turn(eng, other, talk, 130, out);
    assert_memory_equal(out, again, sizeof out);
    turn(eng, s, talk, 131, again);
    as_fresh(eng, talk, 131, again);
    session_close(&other);
    session_close(&s);
    engine_close(&eng);
}
static void text_is_that_of_a_fresh_session(void **st) {
    const char *first = dir;
    for (int i = -1; i < 0 || taking[i]; i++) {
        dir = i < 0 ? first : taking[i];
        conversation(NULL, PREFILL_CPU, DECODE_CPU, i < 0);
        conversation("emu:1,cpu=scalar,chunk=30", PREFILL_SLP, DECODE_HYBRID, i < 0);
        conversation("emu:2,cpu=scalar,nopeer", PREFILL_DSLP, DECODE_HYBRID, i < 0);
        conversation("emu:1,cpu=scalar", PREFILL_BLEND, DECODE_CPU, i < 0);
    }
    dir = first;
}

/* Batches of 64 rows, so that a cancel leaves some of them. */
static void a_stopped_prefill_is_gone_on_with(void **st) {
    struct engine *eng = open_with((struct engine_params){0});
    struct session *s = new_session(eng);
    int32_t out[ANSWER];
    bool some = false;
    for (int i = 0; i < 12 && !some; i++) {
        struct error e = {0};
        struct event ev;
        struct request r = {.tokens = prompt, .n = LONG, .max_tokens = 1};
        prompt[0] = i; /* nothing in common with the previous round */
        if (session_submit(s, &r, &e)) fail_msg("%s", e.text);
        usleep((useconds_t)(2000 << i / 2));
        session_cancel(s);
        do engine_poll(eng, &ev, -1);
        while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
        const int32_t *held;
        int n = session_tokens(s, &held);
        some = n > 0 && n < LONG - 1;
        if (!some) continue;
        assert_int_equal(n % 64, 0);
        assert_int_equal(turn(eng, s, prompt, LONG, out), n);
        as_fresh(eng, prompt, LONG, out);
    }
    if (!some) print_message("SKIPPED: no prefill was cancelled midway\n");
    session_close(&s);
    engine_close(&eng);
}

/* From one engine to the next through the disk: rows, and the state at their end. */
static void through_the_disk(bool has_states) {
    char kept[] = "/tmp/hearth-state-XXXXXX";
    int32_t out[ANSWER];
    assert_non_null(mkdtemp(kept));
    test_limits_set(TEST_LIMIT_KV_DISK_MIN_US, 1);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 16); /* more ends than states */
    for (int k = 0; k < 2; k++) {
        struct engine *eng = open_with((struct engine_params){.kv_dir = kept});
        struct session *s = new_session(eng);
        assert_int_equal(turn(eng, s, prompt, LONG, out), k ? LONG / 16 * 16 : 0);
        as_fresh(eng, prompt, LONG, out);
        /* shorter ones, from the other session: where it has no state, it rewinds further */
        for (int n = 41; n < LONG && k; n += 48) {
            struct session *part = new_session(eng);
            const int had = turn(eng, part, prompt, n, out);
            assert_true(had <= n / 16 * 16 && (has_states || had >= (n - 1) / 16 * 16));
            as_fresh(eng, prompt, n, out);
            session_close(&part);
        }
        session_close(&s);
        engine_close(&eng);
    }
    test_limits_set(TEST_LIMIT_KV_DISK_MIN_US, 0);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 64);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", kept);
    assert_int_equal(system(command), 0);
}
static void another_engine_starts_behind_what_one_has_read(void **st) {
    const char *first = dir;
    through_the_disk(true);
    for (int i = 0; taking[i]; i++) dir = taking[i], through_the_disk(false);
    dir = first;
}

static void quiet(void *ctx, enum log_level l, const char *text) {}

/* The device dies while sessions answer: the CPU continues from the state in host memory. */
static void a_device_that_dies_takes_nothing_along(void **st) {
    log_set(quiet, NULL, LOG_WARN);
    for (int at = 600; at < 1200; at += 300) {
        char gpus[64];
        int32_t out[ANSWER];
        snprintf(gpus, sizeof gpus, "emu:1,cpu=scalar,fail=die:%d@0", at);
        struct engine *eng = open_with(
                          (struct engine_params){.gpus = gpus, .prefill = PREFILL_CPU, .decode = DECODE_HYBRID}),
                      *plain;
        struct session *s = new_session(eng);
        turn(eng, s, prompt, 40, out);
        session_close(&s);
        engine_close(&eng);
        plain = open_with((struct engine_params){0});
        as_fresh(plain, prompt, 40, out);
        engine_close(&plain);
    }
}

int main(int argc, char **argv) {
    dir = argc > 1 ? argv[1] : ""; /* delta_fused of test/golden/models.py */
    taking = argv + (argc > 1 ? 2 : 1);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 64);
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_kept_where_one_goes_back_to),
                                       cmocka_unit_test(steps_of_a_batch_follow_each_other),
                                       cmocka_unit_test(old_states_give_way),
                                       cmocka_unit_test(tried_tokens_leave_no_state),
                                       cmocka_unit_test(marks_lie_before_the_end_of_a_prompt),
                                       cmocka_unit_test(a_cache_grows_in_its_place),
                                       cmocka_unit_test(blocks_in_use_become_large_pages),
                                       cmocka_unit_test(text_is_that_of_a_fresh_session),
                                       cmocka_unit_test(a_stopped_prefill_is_gone_on_with),
                                       cmocka_unit_test(another_engine_starts_behind_what_one_has_read),
                                       cmocka_unit_test(a_device_that_dies_takes_nothing_along)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
