/* Drafts: whatever one guesses, the text is what it would be without, for every family, on the processor and on devices, in company
 * and beside turns that are cancelled; and what is drawn is distributed as it should be. On checkpoints of ours. */
#include "test/unit/unit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/fault.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/draft/lookup.h"
#include "engine/ember/ember.h"
#include "engine/internal.h"

enum { SESSIONS = 3, PROMPT = 17, ANSWER = 30, VOCAB = 120 };
static const char *root;
static bool all; /* with long_tests */

/* --- What occurred before ------------------------------------------------------------------------------------------------------- */

static void the_longest_earlier_end_is_taken(void **st) {
    static const int32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 4, 8, 2, 3, 4};
    static const int32_t round[] = {5, 6, 7, 5, 6, 7};
    int32_t out[DRAFT_MOST];
    int matched;
    assert_int_equal(draft_lookup(text, 16, 4, out, &matched), 4);
    assert_int_equal(matched, 3); /* "2 3 4" twice: the later one, not "4" after it */
    assert_memory_equal(out, ((int32_t[]){6, 7, 4, 8}), 16);
    assert_int_equal(draft_lookup(text, 9, 2, out, &matched), 2);
    assert_memory_equal(out, ((int32_t[]){5, 9}), 8);
    assert_int_equal(draft_lookup(text, 6, 4, out, &matched), 0);
    assert_int_equal(matched, 0);
    assert_int_equal(draft_lookup(text, 1, 4, out, &matched), 0);
    assert_int_equal(draft_lookup(round, 6, 7, out, &matched), 7); /* past the end of what is there it goes round */
    assert_int_equal(matched, 3);
    assert_memory_equal(out, ((int32_t[]){5, 6, 7, 5, 6, 7, 5}), 28);
}

/* --- A draft that knows the text, and lies ---------------------------------------------------------------------------------------- */

struct liar {
    int32_t truth[SESSIONS + 1][PROMPT + ANSWER]; /* by the first token of the prompt; the last is of the one that is cancelled */
    bool known;
    int honest; /* of 100 tokens; > 100: all, and as many as it may */
    uint32_t seed;
    int guesses;
};
static uint32_t any(struct liar *l) {
    l->seed = l->seed * 1664525 + 1013904223;
    return l->seed >> 8;
}
static int lie(void *ctx, const int32_t *tokens, int n, int most, int32_t *out) {
    struct liar *l = ctx;
    int k = l->honest > 100 ? most : 1 + (int)(any(l) % (uint32_t)most);
    const int32_t *truth = l->truth[tokens[0] - 2];
    assert_true(most >= 1 && most <= DRAFT_MOST && n + most < PROMPT + ANSWER + (tokens[0] == SESSIONS + 2));
    for (int i = 0; i < k; i++) {
        bool right = l->known && n + i < PROMPT + ANSWER && (int)(any(l) % 100) < l->honest;
        out[i] = right ? truth[n + i] : (int32_t)(any(l) % VOCAB);
    }
    l->guesses += k;
    return k;
}

static struct engine *open_model(const char *name, struct engine_params p) {
    char dir[1024];
    struct engine *e;
    struct error err = {0};
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    p.dir = dir, p.threads = 1;
    if (engine_open(&e, &p, &err)) fail_msg("%s: %s", name, err.text);
    return e;
}

static void prompt_of(int which, int32_t *out) {
    out[0] = which + 2;
    for (int i = 1; i < PROMPT; i++) out[i] = 2 + (which * 29 + i * i * 7) % (VOCAB - 2);
}

static void submit(struct session *s, int which, int answer) {
    static const struct sampling how[] = {{.temperature = 0, .repeat_penalty = 1, .top_p = 1},
                                          {.temperature = 0.9f, .repeat_penalty = 1, .top_p = 0.9f, .seed = 7},
                                          {.temperature = 0.7f, .repeat_penalty = 1.3f, .top_p = 1, .top_k = 20, .seed = 3}};
    int32_t prompt[PROMPT];
    struct error err = {0};
    prompt_of(which, prompt);
    struct request r = {.tokens = prompt, .n = PROMPT, .max_tokens = answer, .flags = REQUEST_NO_EOS, .sampling = how[which % 3]};
    if (session_submit(s, &r, &err)) fail_msg("%s", err.text);
}

/* Answers, and returns how many tokens. */
static int turn(struct engine *e, struct session *s, struct request r, int32_t *out, struct turn_stats *stats) {
    struct error err = {0};
    struct event ev = {0};
    int n = 0;
    if (session_submit(s, &r, &err)) fail_msg("%s", err.text);
    while (ev.kind != EVENT_DONE && engine_poll(e, &ev, -1)) {
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) out[n++] = ev.token;
    }
    *stats = ev.stats;
    return n;
}

/* The texts of several sessions that answer at once, and of one that is cancelled on the way and asked again. Tokens guessed and right. */
static void answer_all(struct engine *e, int32_t text[SESSIONS + 1][PROMPT + ANSWER], int *drafted, int *accepted) {
    struct session *s[SESSIONS + 1];
    struct error err = {0};
    struct event ev;
    int n[SESSIONS + 1], left = SESSIONS + 1;
    bool again = false;
    *drafted = *accepted = 0;
    for (int i = 0; i <= SESSIONS; i++) {
        if (session_open(e, &s[i], &err)) fail_msg("%s", err.text);
        prompt_of(i, text[i]);
        n[i] = PROMPT;
        submit(s[i], i, ANSWER);
    }
    while (left && engine_poll(e, &ev, -1)) {
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
        if (i == SESSIONS && !again) { /* it may have been through already */
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

static const char *const families[] = {"mla_yarn", "mla_plain", "dsa_halves", "dsa_shared", "gqa_norm",    "gqa_shared", "gqa_half",
                                       "gqa_flat", "gqa_sinks", "gqa_mixer",  "gqa_fused",  "delta_fused", "streams"};

/* honest: shares of right guesses to try, up to -1. */
static void same_text(const char *name, struct engine_params p, const int *honest) {
    struct liar l = {.seed = 1};
    int32_t got[SESSIONS + 1][PROMPT + ANSWER];
    int drafted, accepted;
    struct engine *e = open_model(name, p);
    answer_all(e, l.truth, &drafted, &accepted);
    uint64_t steps = e->steps;
    engine_close(&e);
    assert_int_equal(drafted, 0);
    p.draft = DRAFT_LOOKUP, p.draft_own = lie, p.draft_ctx = &l;
    l.known = true;
    for (; *honest >= 0; honest++) {
        l.honest = *honest;
        p.draft_len = *honest == 60 ? 1 : 0;
        e = open_model(name, p);
        answer_all(e, got, &drafted, &accepted);
        uint64_t with = e->steps;
        engine_close(&e);
        for (int i = 0; i <= SESSIONS; i++)
            for (int t = 0; t < PROMPT + ANSWER; t++)
                if (got[i][t] != l.truth[i][t]) fail_msg("%s, honest %d: session %d, position %d: %d, not %d", name, l.honest, i, t, got[i][t], l.truth[i][t]);
        if (drafted < ANSWER) fail_msg("%s, honest %d: %d tokens guessed", name, l.honest, drafted);
        if (!l.honest && accepted > drafted / 10) fail_msg("%s: %d of %d lies were right", name, accepted, drafted);
        if (l.honest > 100 && (accepted < drafted * 3 / 4 || with * 2 > steps))
            fail_msg("%s: %d of %d true guesses were right; %d steps, %d without", name, accepted, drafted, (int)with, (int)steps);
    }
}

static const int every[] = {0, 60, 95, 101, -1}, some[] = {85, -1};
static void text_is_the_same_with_any_draft(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        same_text(families[i], (struct engine_params){.kv = DT_F32, .cpu_level = all || i % 4 == 0 ? CPU_SCALAR + 1 : 0, .context = PROMPT + ANSWER},
                  all || i % 4 == 3 ? every : some);
}
static void text_is_the_same_at_the_best_level(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        same_text(families[i], (struct engine_params){.kv = i % 2 ? DT_BF16 : DT_E4M3}, all ? every : some);
}
static void text_is_the_same_on_devices(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (enum decode_mode m = DECODE_HYBRID; m <= DECODE_DUAL; m++)
            if (all || (i + m) % 2)
                same_text(families[i],
                          (struct engine_params){.kv = DT_BF16,
                                                 .gpus = i % 3   ? "emu:1"
                                                         : i % 2 ? "emu:2,parallel=tensor"
                                                                 : "emu:2",
                                                 .prefill = PREFILL_CPU,
                                                 .decode = m},
                          all ? every : some);
}

/* --- The prediction layer ----------------------------------------------------------------------------------------------------------- */

static const char *const questions[] = {"How do I ask about a PDF?", "What is a GPU good for?", "Which sampling options are there?"};
enum { QUESTIONS = sizeof questions / sizeof *questions, TEXT = 60 };

/* Two turns of several sessions on the built-in model, the second of which takes the end of the first back. */
static void converse(const struct engine_params *p, int32_t text[2][QUESTIONS][TEXT], int n[2][QUESTIONS], int *drafted, int *accepted) {
    struct engine *e;
    struct session *s[QUESTIONS];
    struct error err = {0};
    struct event ev;
    if (engine_open(&e, p, &err)) fail_msg("%s", err.text);
    *drafted = *accepted = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < QUESTIONS; i++) {
            int32_t prompt[200] = {0, 2};
            int len = 2;
            for (const char *c = questions[i]; *c; c++) prompt[len++] = 6 + (unsigned char)*c; /* bytes as tokens: an odd wording, which it declines */
            prompt[len++] = 1, prompt[len++] = 3;
            for (int k = 0; turn && k < 10; k++) prompt[len++] = text[0][i][k];
            if (!turn && session_open(e, &s[i], &err)) fail_msg("%s", err.text);
            struct request r = {
                .tokens = prompt, .n = len, .max_tokens = TEXT, .sampling = {.temperature = i == 2, .top_p = 1, .repeat_penalty = 1, .seed = 5}};
            n[turn][i] = 0;
            if (session_submit(s[i], &r, &err)) fail_msg("%s", err.text);
        }
        for (int left = QUESTIONS; left && engine_poll(e, &ev, -1);) {
            int i = 0;
            while (s[i] != ev.session) i++;
            if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
            if (ev.kind == EVENT_TOKEN) text[turn][i][n[turn][i]++] = ev.token;
            if (ev.kind == EVENT_DONE) left--, *drafted += ev.stats.drafted, *accepted += ev.stats.accepted;
        }
    }
    for (int i = 0; i < QUESTIONS; i++) session_close(&s[i]);
    engine_close(&e);
}

/* Its guesses are mostly right, which they are only where all of it is: the published layer was trained to guess so. */
static void the_prediction_layer_guesses_well(void **st) {
    static const struct {
        const char *gpus;
        enum decode_mode mode;
        int level;
    } how[] = {{NULL, DECODE_CPU, CPU_SCALAR + 1}, {NULL, DECODE_CPU, 0}, {"emu:1", DECODE_HYBRID, 0}, {"emu:2", DECODE_DUAL, 0}};
    int32_t want[2][QUESTIONS][TEXT], got[2][QUESTIONS][TEXT];
    int n[2][QUESTIONS], m[2][QUESTIONS], drafted, accepted;
    for (size_t h = !all; h < sizeof how / sizeof *how; h++) { /* the scalar reference takes long */
        struct engine_params p = {
            .dir = "ember:", .threads = 1, .context = 512, .cpu_level = how[h].level, .gpus = how[h].gpus, .decode = how[h].mode, .prefill = PREFILL_CPU};
        memset(want, 0, sizeof want);
        converse(&p, want, n, &drafted, &accepted);
        p.draft = DRAFT_MTP;
        for (p.draft_len = 1; p.draft_len <= 4; p.draft_len += 3) {
            memset(got, 0, sizeof got);
            converse(&p, got, m, &drafted, &accepted);
            assert_memory_equal(n, m, sizeof n);
            assert_memory_equal(want, got, sizeof want);
            print_message("%s, %d at once: %d of %d guesses were right\n", how[h].gpus ? how[h].gpus : "processor", p.draft_len, accepted, drafted);
            assert_true(drafted > 60 && accepted * 100 > drafted * (p.draft_len == 1 ? 75 : 40));
        }
    }
}

/* What test/golden/oracle.py says of the same weights: of every position and the token behind it, and of what follows from that. */
struct told {
    struct session *s;
    const int32_t *tokens;
    const float *want;
    int n;
    double worst, most;
};
static int32_t take(void *ctx, int i, float *logits, int32_t top) {
    struct told *t = ctx;
    const size_t vocab = (size_t)t->s->engine->info.vocab;
    for (size_t k = 0; k < vocab; k++) {
        const double want = (double)t->want[(size_t)i * vocab + k];
        t->worst = fmax(t->worst, fabs((double)logits[k] - want)), t->most = fmax(t->most, fabs(want));
    }
    return top;
}
static int compare(void *arg) {
    struct told *t = arg;
    struct engine *e = t->s->engine;
    const size_t hidden = (size_t)e->info.hidden, vocab = (size_t)e->info.vocab;
    struct mtp_chat chat = {0};
    assert_int_equal(t->s->mtp.waiting, t->n);
    for (int i = 0; i + 1 < t->n; i++, t->want += 2 * vocab) {
        int32_t out[2];
        mtp_tell(e->mtp, &chat, i, 1, t->s->mtp.h + (size_t)i * hidden);
        assert_int_equal(mtp_guess(e->mtp, &chat, t->tokens, i + 2, 2, out, take, t), 2);
    }
    mtp_chat_close(&chat);
    return 0;
}
static void the_prediction_layer_says_what_the_reference_says(void **st) {
    static const char *const names[] = {"guess_mla", "guess_gqa"};
    for (int i = 0; i < 2; i++) {
        char path[1100], *text, *want;
        size_t size, at;
        int32_t tokens[64];
        struct told t = {.tokens = tokens};
        struct error err = {0};
        struct event ev = {0};
        snprintf(path, sizeof path, "%s/%s_ahead.json", GOLDEN_DIR, names[i]);
        assert_int_equal(file_read(path, 1 << 20, &text, &size, &err), 0);
        const char *p = strchr(strstr(text, "\"tokens\""), '[');
        while (*p != ']') tokens[t.n++] = (int32_t)strtol(p + 1, (char **)&p, 10);
        snprintf(path, sizeof path, "%s/%s_ahead.f32", GOLDEN_DIR, names[i]);
        assert_int_equal(file_read(path, 1 << 20, &want, &at, &err), 0);
        struct engine *e = open_model(names[i], (struct engine_params){.draft = DRAFT_MTP, .kv = DT_F32, .cpu_level = CPU_SCALAR + 1});
        assert_int_equal(at, (size_t)(t.n - 1) * 2 * (size_t)e->info.vocab * sizeof(float));
        t.want = (const float *)(const void *)want;
        assert_int_equal(session_open(e, &t.s, &err), 0);
        struct request r = {.tokens = tokens, .n = t.n, .max_tokens = 0};
        assert_int_equal(session_submit(t.s, &r, &err), 0);
        while (ev.kind != EVENT_DONE) assert_true(engine_poll(e, &ev, -1) && ev.kind != EVENT_ERROR);
        engine_run(e, compare, &t);
        if (!(t.worst <= 1e-5 * t.most)) fail_msg("%s: off by %.1e of %.1e", names[i], t.worst, t.most);
        session_close(&t.s);
        engine_close(&e);
        mem_free(text);
        mem_free(want);
    }
}

static void who_has_no_prediction_layer_says_so(void **st) {
    char dir[1024];
    struct engine *e;
    struct error err = {0};
    snprintf(dir, sizeof dir, "%s/gqa_flat", root);
    struct engine_params p = {.dir = dir, .threads = 1, .draft = DRAFT_MTP};
    assert_int_equal(engine_open(&e, &p, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "gqa_flat has no prediction layer"));
}

/* --- The model with experts in INT4 ----------------------------------------------------------------------------------------------- */

static void a_row_is_rounded_to_the_nearest_of_fifteen(void **st) {
    enum { N = 300, GROUPS = 3 };
    float x[N];
    uint8_t codes[GROUPS * 64];
    uint16_t scales[GROUPS];
    uint32_t seed = 7;
    for (int i = 0; i < N; i++) seed = seed * 1664525 + 1013904223, x[i] = i / 128 == 1 ? 0 : (float)(int32_t)seed * 0x1p-31f * (i < 128 ? 1e-3f : 70);
    x[5] = NAN;
    int4_row(x, N, codes, scales);
    x[5] = 0;
    const struct mat m = {.data = codes,
                          .scale = scales,
                          .stride = sizeof codes,
                          .rows = 1,
                          .cols = N,
                          .block_rows = 1,
                          .block_cols = 128,
                          .scale_stride = GROUPS,
                          .row_step = 1,
                          .dtype = DT_INT4,
                          .scale_dtype = DT_BF16};
    double worst = 0;
    for (int i = 0; i < N; i++) {
        const double step = scale_at(&m, 0, i), off = fabs((double)mat_at(&m, 0, i) - (double)x[i]);
        if (i == 5) continue;
        if (i / 128 == 1) assert_true(mat_at(&m, 0, i) == 0);
        else assert_true(off <= step * 0.5001);
        if (i / 128 == 0) worst = fmax(worst, off);
    }
    assert_true(worst > 1e-3 / 7 * 0.45 && worst < 1e-3 / 7 * 0.51); /* of what so many steps can do */
}

static void wait_for_int4(struct engine *e) {
    for (int i = 0; !int4_ready(e->int4); i++) {
        assert_true(i < 60000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Whatever it guesses, the text is the same; and it guesses as only such a model can. */
static void the_int4_draft_guesses_well(void **st) {
    static const struct {
        const char *gpus;
        enum decode_mode mode;
        int level;
        enum dtype kv;
    } how[] = {
        {NULL, DECODE_CPU, CPU_SCALAR + 1, DT_F32}, {NULL, DECODE_CPU, 0, DT_BF16}, {"emu:1", DECODE_HYBRID, 0, DT_BF16}, {"emu:2", DECODE_DUAL, 0, DT_BF16}};
    int32_t want[SESSIONS + 1][PROMPT + ANSWER], got[SESSIONS + 1][PROMPT + ANSWER];
    int guessed = 0, right = 0;
    uint64_t there = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        for (size_t h = 0; h < sizeof how / sizeof *how; h++) {
            struct engine_params p = {.gpus = how[h].gpus, .decode = how[h].mode, .prefill = PREFILL_CPU, .cpu_level = how[h].level, .kv = how[h].kv};
            int drafted, accepted;
            const bool states = i + 2 >= sizeof families / sizeof *families; /* the last two: what a draft leaves there is to go again */
            if (!all && ((!states && (3 * i + h) % 8 > 1) || (!h && i % 4))) continue;
            struct engine *e = open_model(families[i], p);
            answer_all(e, want, &drafted, &accepted);
            engine_close(&e);
            p.draft = DRAFT_INT4, p.draft_len = 1 + (int)(i + h) % 5;
            e = open_model(families[i], p);
            wait_for_int4(e);
            answer_all(e, got, &drafted, &accepted);
            there += step_counts(e->machine.step).drafted;
            engine_close(&e);
            if (memcmp(want, got, sizeof want)) fail_msg("%s, %s: another text", families[i], how[h].gpus ? how[h].gpus : "processor");
            assert_true(drafted > ANSWER);
            guessed += drafted, right += accepted;
        }
    }
    print_message("%d of %d guesses were right, %" PRIu64 " layers of the draft were computed on devices\n", right, guessed, there);
    assert_true(there > 0);
    assert_true(right * 100 > guessed * 22 &&
                right * 100 < guessed * 40); /* chance has one of a hundred; with experts of the model itself on the processor half are */
}

/* A turn that is stopped while sixteen tokens are guessed waits for one step, not for all of them: by what is read of weights from then on. */
static void who_stops_a_draft_waits_for_a_step(void **st) {
    struct error err = {0};
    struct event ev;
    struct session *s;
    int32_t prompt[PROMPT];
    struct engine *e = open_model("gqa_flat", (struct engine_params){.draft = DRAFT_INT4, .draft_len = DRAFT_MOST, .context = 4096});
    const uint64_t step = e->weights.files.bytes + int4_bytes(e->int4); /* no step reads more */
    wait_for_int4(e);
    prompt_of(0, prompt);
    for (int round = 0; round < 12; round++) {
        assert_int_equal(session_open(e, &s, &err), 0);
        struct request r = {
            .tokens = prompt, .n = PROMPT, .max_tokens = 2000, .flags = REQUEST_NO_EOS, .sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)round}};
        assert_int_equal(session_submit(s, &r, &err), 0);
        for (int n = 0; n < 3 + round;) {
            assert_true(engine_poll(e, &ev, -1));
            n += ev.kind == EVENT_TOKEN;
        }
        session_cancel(s);
        const uint64_t before = atomic_load(&e->machine.bytes_read);
        do assert_true(engine_poll(e, &ev, -1));
        while (ev.kind != EVENT_DONE && ev.kind != EVENT_ERROR);
        assert_int_equal(ev.reason, DONE_CANCELLED);
        assert_true(atomic_load(&e->machine.bytes_read) - before <= 2 * step);
        session_close(&s);
    }
    engine_close(&e);
}

/* --- What it foresees --------------------------------------------------------------------------------------------------------------- */

static void the_soonest_and_surest_experts_come_first(void **st) {
    static const int32_t ids[3][2] = {{4, 1}, {1, 7}, {-1, 4}};
    static const float sure[3][2] = {{0.4f, 0.6f}, {0.9f, 0.1f}, {0, 1}};
    struct lookahead a;
    struct lookahead_want w[4];
    void *mem = malloc(lookahead_bytes(2, 2));
    lookahead_open(&a, 2, 2, mem);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lookahead_token(&a, i), i);
        lookahead_chose(&a, i, 1, ids[i], sure[i]);
    }
    assert_int_equal(lookahead_wants(&a, 0, w, 4), 0);
    assert_int_equal(lookahead_wants(&a, 1, w, 4), 3);
    assert_true(w[0].expert == 4 && w[0].ahead == 0 && w[0].confidence == 1 && w[1].expert == 1 && w[1].ahead == 0 && w[1].confidence == 0.9f);
    assert_true(w[2].expert == 7 && w[2].ahead == 1);
    assert_int_equal(lookahead_wants(&a, 1, w, 2), 2);
    for (int i = 3; i < LOOKAHEAD_TOKENS; i++) assert_int_equal(lookahead_token(&a, i), i);
    assert_int_equal(lookahead_token(&a, 0), -1);
    lookahead_clear(&a);
    assert_int_equal(lookahead_wants(&a, 1, w, 4), 0);
    free(mem);
}

/* In each layer three places, which the last three that were wanted have: who comes, phase by phase. */
static int expect_in_phases(void *arg) {
    enum { FAR = 1000 }; /* seconds: in time, whatever the link */
    static const int32_t first[3] = {0, 1, 2}, second[3] = {3, 4, 5};
    static const float sure[3] = {0.6f, 0.3f, 0.1f};
    struct engine *e = arg;
    struct step *s = e->machine.step;
    const struct config *c = &e->weights.config;
    struct lookahead a;
    void *mem = malloc(lookahead_bytes(c->n_layers, c->topk));
    int layers = 0;
    struct error err = {0};
    lookahead_open(&a, c->n_layers, c->topk, mem);
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].moe)
            layers++, assert_int_equal(scan_experts(&e->machine.scan, l, first, 3, &err) | scan_experts(&e->machine.scan, l, second, 3, &err), 0);
    for (int round = 0; round < 4; round++) {
        static const struct {
            enum step_phase phase;
            int moved;
        } asked[] = {{STEP_PRIME, 0}, {STEP_LIKELY, 1}, {STEP_ALL, 2}, {STEP_ALL, 0}};
        lookahead_clear(&a);
        lookahead_token(&a, 0);
        for (int l = 0; l < c->n_layers; l++)
            if (c->layer[l].moe) lookahead_chose(&a, 0, l, round % 2 ? second : first, sure);
        for (int i = 0; i < 4; i++) {
            const uint64_t before = step_counts(s).moved;
            assert_int_equal(step_expect(s, &a, asked[i].phase, FAR), 0);
            if (round) assert_int_equal(step_counts(s).moved - before, asked[i].moved * layers); /* before the first, others had the places */
        }
    }
    const uint64_t before = step_counts(s).moved;
    lookahead_clear(&a);
    lookahead_token(&a, 0);
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].moe) lookahead_chose(&a, 0, l, first, sure);
    assert_int_equal(step_expect(s, &a, STEP_ALL, -FAR), 0); /* too late for all of them */
    assert_int_equal(step_counts(s).moved, before);
    free(mem);
    return 0;
}
static void what_is_foreseen_comes_in_three_phases(void **st) {
    struct error err = {0};
    struct event ev = {0};
    struct session *s;
    int32_t prompt[PROMPT];
    struct engine *e =
        open_model("mla_yarn", (struct engine_params){.gpus = "emu:1", .decode = DECODE_HYBRID, .prefill = PREFILL_CPU, .expert_cache = "3", .evict = "lru"});
    prompt_of(0, prompt);
    assert_int_equal(session_open(e, &s, &err), 0);
    submit(s, 0, 3);
    while (ev.kind != EVENT_DONE) assert_true(engine_poll(e, &ev, -1) && ev.kind != EVENT_ERROR);
    engine_run(e, expect_in_phases, e);
    session_close(&s);
    engine_close(&e);
}

/* All experts as bytes, whoever made or read them. */
static uint64_t sum_of(const struct weights *w, struct int4 *d) {
    uint64_t sum = 0;
    for (int i = 0; !int4_ready(d); i++) {
        assert_true(i < 60000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int l = 0; l < w->config.n_layers; l++)
        for (int k = 0; k < w->config.n_experts && int4_experts(d)[l]; k++) sum = hash64(int4_experts(d)[l][k].gate.data, int4_expert_bytes(d), sum);
    return sum;
}
static int count(void *ctx, const char *name) { return *name != '.' ? ++*(int *)ctx, 0 : 0; }
static int files_in(const char *dir) {
    int n = 0;
    file_list(dir, count, &n, &(struct error){0});
    return n;
}
static void change_byte(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 1, f);
    fclose(f);
}

static void the_int4_draft_is_kept_on_disk(void **st) {
    char model[1024], dir[] = "int4-XXXXXX", path[1100];
    struct weights w;
    struct int4 *a, *b;
    struct error e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/mla_yarn", root);
    assert_int_equal(weights_open(&w, model, false, &e), 0);
    snprintf(path, sizeof path, "%s/%016llx.int4", dir, (unsigned long long)w.files.fingerprint);
#define OPEN(d) assert_int_equal(int4_open(&(d), &w, CPU_SCALAR, dir, false, &e), 0)
    fault_set(FAULT_WRITE, 2, true, false); /* the disk is full: there is a draft, and no file */
    OPEN(a);
    const uint64_t want = sum_of(&w, a);
    int4_close(&a);
    fault_set(FAULT_WRITE, 0, false, false);
    assert_int_equal(files_in(dir), 0);
    OPEN(a), OPEN(b); /* two at once */
    assert_true(sum_of(&w, a) == want && sum_of(&w, b) == want);
    for (int i = 0; access(path, F_OK) && i < 60000; i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    int4_close(&a), int4_close(&b);
    assert_int_equal(files_in(dir), 1);
    static const long changed[] = {8, 33, 70, 5000, -1, 0};
    for (int i = 0; i < 6; i++) { /* its version, its sample, a sum, an expert, the last one; nothing */
        struct stat before, after;
        if (changed[i]) change_byte(path, changed[i]);
        assert_int_equal(stat(path, &before), 0);
        OPEN(a);
        assert_true(sum_of(&w, a) == want);
        for (int k = 0; changed[i] && k < 60000 && (stat(path, &after) || after.st_ino == before.st_ino); k++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        int4_close(&a);
        assert_int_equal(stat(path, &after), 0);
        assert_true((after.st_ino == before.st_ino) == !changed[i]); /* one that is whole is read, and stays */
    }
    assert_int_equal(truncate(path, 100), 0);
    OPEN(a);
    assert_true(sum_of(&w, a) == want);
    int4_close(&a);
    OPEN(a); /* given up at once; while it rests; and made beside something else, in part */
    int4_close(&a);
    OPEN(a);
    int4_beside(a, true);
    int4_close(&a);
    OPEN(a);
    int4_beside(a, true), int4_beside(a, false);
    assert_true(sum_of(&w, a) == want);
    int4_close(&a);
    weights_close(&w);
    unlink(path);
    assert_int_equal(files_in(dir), 0);
    rmdir(dir);
}

static void who_cannot_have_an_int4_draft_says_so(void **st) {
    struct error err = {0};
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 300u << 20, &err), 0);
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 0, &err), 0);
    assert_int_equal(int4_fits(100u << 20, 200u << 20, 299u << 20, &err), ERR_MEMORY);
    assert_non_null(strstr(err.text, "100 MB for its experts beside 200 MB of weights, 299 MB are free"));
}

/* Rows of paged steps are other prompts': a draft that is named beside them is refused, one that chooses for itself says that it does nothing. */
static void nothing_is_guessed_in_paged_steps(void **st) {
    struct error err = {0};
    struct turn_stats stats;
    struct session *s;
    int32_t prompt[PROMPT], text[ANSWER];
    struct engine *e;
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/gqa_shared", root);
    for (enum draft_kind named = DRAFT_LOOKUP; named <= DRAFT_INT4; named++) {
        err = (struct error){0};
        assert_int_equal(engine_open(&e, &(struct engine_params){.dir = dir, .threads = 1, .gpus = "emu:1", .decode = DECODE_PAGED, .draft = named}, &err),
                         ERR_USAGE);
        assert_non_null(strstr(err.text, "leave out --draft"));
    }
    for (enum draft_kind draft = DRAFT_NONE; draft <= DRAFT_AUTO; draft++) {
        e = open_model("gqa_shared", (struct engine_params){.gpus = "emu:1", .decode = DECODE_PAGED, .draft = draft});
        prompt_of(0, prompt);
        assert_int_equal(session_open(e, &s, &err), 0);
        turn(e, s, (struct request){.tokens = prompt, .n = PROMPT, .max_tokens = ANSWER, .flags = REQUEST_NO_EOS}, text, &stats);
        assert_string_equal(stats.decode_mode, "paged");
        assert_true(!stats.draft && !stats.drafted && !strstr(stats.decode_why, "nothing is guessed") == !draft);
        session_close(&s);
        engine_close(&e);
    }
}

/* --- What is drawn ------------------------------------------------------------------------------------------------------------------
 *
 * From a vocabulary of three tokens (the likeliest of each position) DRAWN in a row are drawn by the engine, with a draft that guesses the third and the
 * fourth: the frequencies of all 81 texts over seeds, against what the model's logits say. A token must not become likelier by being guessed. */

enum { LIKELY = 3, DRAWN = 4, TEXTS = 81, NODES = 1 + 3 + 9 + 27, SEEDS = 2500 };
struct node { /* of the tree of texts: the children of i are 3 * i + 1 .. 3 * i + 3 */
    int32_t likely[LIKELY], tokens[PROMPT + DRAWN];
    int n; /* tokens before it */
    double chance[LIKELY];
};
enum guessing { GUESS_ANY, GUESS_LIKELIEST, GUESS_LAST, GUESSINGS };
struct guesser {
    struct node tree[NODES];
    enum guessing how;
    uint32_t seed;
};

static int look(void *ctx, int position, const float *logits) {
    struct node *x = ctx;
    double sum = 0;
    for (int k = 0; k < LIKELY; k++) {
        x->likely[k] = -1;
        for (int t = 0; t < VOCAB; t++) {
            bool taken = false;
            for (int i = 0; i < k; i++) taken |= x->likely[i] == t;
            if (!taken && (x->likely[k] < 0 || logits[t] > logits[x->likely[k]])) x->likely[k] = t;
        }
        sum += x->chance[k] = exp((double)logits[x->likely[k]] - (double)logits[x->likely[0]]);
    }
    for (int k = 0; k < LIKELY; k++) x->chance[k] /= sum;
    return 0;
}

/* What the model thinks of each text, read as a prompt. */
static void grow(struct engine *e, struct session *s, struct node *tree) {
    struct turn_stats stats;
    prompt_of(0, tree->tokens);
    tree->n = PROMPT;
    for (int i = 0; i < NODES; i++) {
        struct node *x = &tree[i];
        turn(e, s, (struct request){.tokens = x->tokens, .n = x->n, .flags = REQUEST_NO_EOS, .logits = look, .logits_ctx = x}, NULL, &stats);
        for (int k = 0; k < LIKELY && LIKELY * i + 1 < NODES; k++) {
            struct node *child = &tree[LIKELY * i + 1 + k];
            memcpy(child->tokens, x->tokens, sizeof x->tokens);
            child->tokens[x->n] = x->likely[k], child->n = x->n + 1;
        }
    }
}

static int branch(const struct node *x, int32_t token) {
    int k = 0;
    while (k < LIKELY && x->likely[k] != token) k++;
    assert_true(k < LIKELY);
    return k;
}

static int guess_likely(void *ctx, const int32_t *tokens, int n, int most, int32_t *out) {
    struct guesser *g = ctx;
    int at = 0, i = 0;
    for (int p = PROMPT; p < n; p++) at = LIKELY * at + 1 + branch(&g->tree[at], tokens[p]);
    for (; i < most && at < NODES; i++) {
        g->seed = g->seed * 1664525 + 1013904223;
        const int k = g->how == GUESS_ANY ? (int)((g->seed >> 8) % LIKELY) : g->how == GUESS_LAST ? LIKELY - 1 : 0;
        out[i] = g->tree[at].likely[k];
        at = LIKELY * at + 1 + k;
    }
    return i;
}

/* Of texts that are expected `few` times and more each, and of the others together; *degrees of freedom. */
static double chi_square(const int *seen, const double *want, int *degrees) {
    enum { few = 5 };
    double chi = 0, rest = 0, rest_seen = 0;
    int cells = 0;
    for (int i = 0; i < TEXTS; i++) {
        if (want[i] < few) rest += want[i], rest_seen += seen[i];
        else chi += (seen[i] - want[i]) * (seen[i] - want[i]) / want[i], cells++;
    }
    if (rest >= few) chi += (rest_seen - rest) * (rest_seen - rest) / rest, cells++;
    *degrees = cells - 1;
    return chi;
}

static void draws_are_distributed_as_the_logits_say(void **st) {
    struct guesser g = {.seed = 1};
    struct error err = {0};
    double want[TEXTS];
    struct engine *e = open_model("gqa_flat", (struct engine_params){.kv = DT_F32, .draft = DRAFT_LOOKUP, .draft_own = guess_likely, .draft_ctx = &g});
    struct session *s;
    assert_int_equal(session_open(e, &s, &err), 0);
    grow(e, s, g.tree);
    for (int i = 0; i < TEXTS; i++) {
        int at = NODES + i, k;
        for (want[i] = SEEDS; at; at = (at - 1) / LIKELY) k = (at - 1) % LIKELY, want[i] *= g.tree[(at - 1) / LIKELY].chance[k];
    }
    for (g.how = 0; g.how < GUESSINGS; g.how++) {
        int seen[TEXTS] = {0}, drafted = 0, accepted = 0, degrees;
        for (int seed = 0; seed < SEEDS; seed++) {
            const struct request r = {
                .tokens = g.tree->tokens,
                .n = PROMPT,
                .max_tokens = DRAWN,
                .flags = REQUEST_NO_EOS,
                .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = LIKELY, .seed = (uint64_t)(g.how * SEEDS + seed)}};
            struct turn_stats stats;
            int32_t text[DRAWN];
            int at = 0;
            assert_int_equal(turn(e, s, r, text, &stats), DRAWN);
            for (int i = 0; i < DRAWN; i++) at = LIKELY * at + 1 + branch(&g.tree[at < NODES ? at : 0], text[i]);
            seen[at - NODES]++;
            drafted += stats.drafted, accepted += stats.accepted;
        }
        const double chi = chi_square(seen, want, &degrees), most = degrees + 3.1 * sqrt(2.0 * degrees) + 6; /* p < 0.001 from 20 degrees on */
        print_message("guesses %d: %d of %d right; chi-square %.1f of %d degrees\n", g.how, accepted, drafted, chi, degrees);
        assert_true(degrees >= 20 && drafted >= SEEDS && accepted > drafted / 20 && accepted < drafted);
        if (chi > most) fail_msg("guesses %d: chi-square %.1f of %d degrees", g.how, chi, degrees);
    }
    session_close(&s);
    engine_close(&e);
}

/* --- What steps teach -------------------------------------------------------------------------------------------------------------- */

static int nothing(void *arg) { return 0; }

/* A step that reads experts for the first time is no measure of what steps take; one that needs the same again is. */
static void first_steps_teach_nothing(void **st) {
    static const int32_t prompt[] = {7};
    struct error err = {0};
    struct turn_stats stats;
    int32_t text[2][4];
    struct engine *e = open_model("gqa_flat", (struct engine_params){.draft = DRAFT_LOOKUP});
    for (int i = 0; i < 2; i++) {
        struct session *s;
        const struct request r = {.tokens = prompt, .n = 1, .max_tokens = 2, .flags = REQUEST_NO_EOS | REQUEST_ALONE};
        assert_int_equal(session_open(e, &s, &err), 0);
        assert_int_equal(turn(e, s, r, text[i], &stats), 2);
        session_close(&s);
        engine_run(e, nothing, NULL); /* the step is counted behind its last token */
        assert_int_equal(e->governor.steps, i + 1);
        assert_int_equal(e->governor.cost[STEP_CPU][1].n, i);
    }
    engine_close(&e);
}

int main(int argc, char **argv) {
    file_embed(ember_files);
    root = argc > 1 ? argv[1] : "";
    all = argc > 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_longest_earlier_end_is_taken),
                                       cmocka_unit_test(text_is_the_same_with_any_draft),
                                       cmocka_unit_test(text_is_the_same_at_the_best_level),
                                       cmocka_unit_test(text_is_the_same_on_devices),
                                       cmocka_unit_test(the_prediction_layer_guesses_well),
                                       cmocka_unit_test(who_has_no_prediction_layer_says_so),
                                       cmocka_unit_test(the_prediction_layer_says_what_the_reference_says),
                                       cmocka_unit_test(a_row_is_rounded_to_the_nearest_of_fifteen),
                                       cmocka_unit_test(the_int4_draft_guesses_well),
                                       cmocka_unit_test(the_int4_draft_is_kept_on_disk),
                                       cmocka_unit_test(who_stops_a_draft_waits_for_a_step),
                                       cmocka_unit_test(the_soonest_and_surest_experts_come_first),
                                       cmocka_unit_test(what_is_foreseen_comes_in_three_phases),
                                       cmocka_unit_test(who_cannot_have_an_int4_draft_says_so),
                                       cmocka_unit_test(nothing_is_guessed_in_paged_steps),
                                       cmocka_unit_test(draws_are_distributed_as_the_logits_say),
                                       cmocka_unit_test(first_steps_teach_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
