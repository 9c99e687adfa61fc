/* Drafts: whatever is drafted, the text is the text without a draft, for every family, on the CPU and on devices, in
 * batches and beside cancelled turns; and sampled tokens have the right distribution. On generated checkpoints. */
#include "engine/session/engine_tasks.h"
#include "test/unit/drafted.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/draft/lookup.h"
#include "engine/ember/ember.h"

/* --- Lookup of earlier text ------------------------------------------------------------------- */

static void the_longest_earlier_end_is_taken(void **st) {
    static const int32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 4, 8, 2, 3, 4};
    static const int32_t round[] = {5, 6, 7, 5, 6, 7};
    int32_t out[DRAFT_MAX];
    int matched;
    assert_int_equal(lookup_draft(text, 16, 4, out, &matched), 4);
    assert_int_equal(matched, 3); /* "2 3 4" occurs twice: the later one wins, not "4" after it */
    assert_memory_equal(out, ((int32_t[]){6, 7, 4, 8}), 16);
    assert_int_equal(lookup_draft(text, 9, 2, out, &matched), 2);
    assert_memory_equal(out, ((int32_t[]){5, 9}), 8);
    assert_int_equal(lookup_draft(text, 6, 4, out, &matched), 0);
    assert_int_equal(matched, 0);
    assert_int_equal(lookup_draft(text, 1, 4, out, &matched), 0);
    assert_int_equal(lookup_draft(round, 6, 7, out, &matched), 7); /* past the end of the text it wraps around */
    assert_int_equal(matched, 3);
    assert_memory_equal(out, ((int32_t[]){5, 6, 7, 5, 6, 7, 5}), 28);
}

/* --- A draft that knows the text and gives wrong tokens on purpose ---------------------------- */

struct liar {
    /* by the first token of the prompt; the last one is of the cancelled session */
    int32_t truth[SESSIONS + 1][PROMPT + ANSWER];
    bool known;
    int honest; /* percentage of correct tokens; > 100: all, and as many as allowed */
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
    assert_true(most >= 1 && most <= DRAFT_MAX && n + most < PROMPT + ANSWER + (tokens[0] == SESSIONS + 2));
    for (int i = 0; i < k; i++) {
        bool right = l->known && n + i < PROMPT + ANSWER && (int)(any(l) % 100) < l->honest;
        out[i] = right ? truth[n + i] : (int32_t)(any(l) % VOCAB);
    }
    l->guesses += k;
    return k;
}

/* Answers; returns the number of tokens. */
static int turn(struct engine *eng, struct session *s, struct request r, int32_t *out, struct turn_stats *stats) {
    struct error e = {0};
    struct event ev = {0};
    int n = 0;
    if (session_submit(s, &r, &e)) fail_msg("%s", e.text);
    while (ev.kind != EVENT_DONE && engine_poll(eng, &ev, -1)) {
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) out[n++] = ev.token;
    }
    *stats = ev.stats;
    return n;
}

/* honest: percentages of correct drafts to try, terminated by -1. */
static void same_text(const char *name, struct engine_params p, const int *honest) {
    struct liar l = {.seed = 1};
    int32_t got[SESSIONS + 1][PROMPT + ANSWER];
    int drafted, accepted;
    struct engine *eng = open_model(name, p);
    answer_all(eng, l.truth, &drafted, &accepted);
    uint64_t steps = eng->n_batches;
    engine_close(&eng);
    assert_int_equal(drafted, 0);
    p.draft = DRAFT_LOOKUP, p.custom_draft = lie, p.custom_draft_ctx = &l;
    l.known = true;
    for (; *honest >= 0; honest++) {
        l.honest = *honest;
        p.max_drafted = *honest == 60 ? 1 : 0;
        eng = open_model(name, p);
        answer_all(eng, got, &drafted, &accepted);
        uint64_t with = eng->n_batches;
        engine_close(&eng);
        for (int i = 0; i <= SESSIONS; i++)
            for (int t = 0; t < PROMPT + ANSWER; t++)
                if (got[i][t] != l.truth[i][t])
                    fail_msg("%s, honest %d: session %d, position %d: %d, not %d", name, l.honest, i, t, got[i][t],
                             l.truth[i][t]);
        if (drafted < ANSWER) fail_msg("%s, honest %d: %d tokens guessed", name, l.honest, drafted);
        if (!l.honest && accepted > drafted / 10) fail_msg("%s: %d of %d lies were right", name, accepted, drafted);
        if (l.honest > 100 && (accepted < drafted * 3 / 4 || with * 2 > steps))
            fail_msg("%s: %d of %d true guesses were right; %d steps, %d without", name, accepted, drafted, (int)with,
                     (int)steps);
    }
}

static const int every[] = {0, 60, 95, 101, -1}, some[] = {85, -1};
static void text_is_the_same_with_any_draft(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        same_text(families[i],
                  (struct engine_params){
                      .kv = DT_F32, .cpu_level = all || i % 4 == 0 ? CPU_SCALAR + 1 : 0, .context = PROMPT + ANSWER},
                  all || i % 4 == 3 ? every : some);
}
static void text_is_the_same_at_the_best_level(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        same_text(families[i], (struct engine_params){.kv = i % 2 ? DT_BF16 : DT_E4M3}, all ? every : some);
}
static void text_is_the_same_on_devices(void **st) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (enum exec_mode m = DECODE_HYBRID; m <= DECODE_DUAL; m++)
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

/* --- The prediction layer --------------------------------------------------------------------- */

static const char *const questions[] = {"How do I ask about a PDF?", "What is a GPU good for?",
                                        "Which sampling options are there?"};
enum { QUESTIONS = sizeof questions / sizeof *questions, TEXT = 60 };

/* Runs two turns of several sessions on the built-in model; the second one rewinds the end of the first. */
static void converse(const struct engine_params *p, int32_t text[2][QUESTIONS][TEXT], int n[2][QUESTIONS], int *drafted,
                     int *accepted) {
    struct engine *eng;
    struct session *s[QUESTIONS];
    struct error e = {0};
    struct event ev;
    if (engine_open(&eng, p, &e)) fail_msg("%s", e.text);
    *drafted = *accepted = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < QUESTIONS; i++) {
            int32_t prompt[200] = {0, 2};
            int len = 2;
            /* bytes as tokens: unusual wording, which the model declines */
            for (const char *c = questions[i]; *c; c++) prompt[len++] = 6 + (unsigned char)*c;
            prompt[len++] = 1, prompt[len++] = 3;
            for (int k = 0; turn && k < 10; k++) prompt[len++] = text[0][i][k];
            if (!turn && session_open(eng, &s[i], &e)) fail_msg("%s", e.text);
            struct request r = {.tokens = prompt,
                                .n = len,
                                .max_tokens = TEXT,
                                .sampling = {.temperature = i == 2, .top_p = 1, .repeat_penalty = 1, .seed = 5}};
            n[turn][i] = 0;
            if (session_submit(s[i], &r, &e)) fail_msg("%s", e.text);
        }
        for (int left = QUESTIONS; left && engine_poll(eng, &ev, -1);) {
            int i = 0;
            while (s[i] != ev.session) i++;
            if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
            if (ev.kind == EVENT_TOKEN) text[turn][i][n[turn][i]++] = ev.token;
            if (ev.kind == EVENT_DONE) left--, *drafted += ev.stats.drafted, *accepted += ev.stats.accepted;
        }
    }
    for (int i = 0; i < QUESTIONS; i++) session_close(&s[i]);
    engine_close(&eng);
}

/* Most drafts are accepted, which requires that all of it is right: the published layer was trained to predict this. */
static void the_prediction_layer_guesses_well(void **st) {
    static const struct {
        const char *gpus;
        enum exec_mode mode;
        int level;
    } how[] = {{NULL, DECODE_CPU, CPU_SCALAR + 1},
               {NULL, DECODE_CPU, 0},
               {"emu:1", DECODE_HYBRID, 0},
               {"emu:2", DECODE_DUAL, 0}};
    int32_t want[2][QUESTIONS][TEXT], got[2][QUESTIONS][TEXT];
    int n[2][QUESTIONS], m[2][QUESTIONS], drafted, accepted;
    for (size_t h = !all; h < sizeof how / sizeof *how; h++) { /* the scalar reference is slow */
        struct engine_params p = {.dir = "ember:",
                                  .threads = 1,
                                  .context = 512,
                                  .cpu_level = how[h].level,
                                  .gpus = how[h].gpus,
                                  .decode = how[h].mode,
                                  .prefill = PREFILL_CPU};
        memset(want, 0, sizeof want);
        converse(&p, want, n, &drafted, &accepted);
        p.draft = DRAFT_MTP;
        for (p.max_drafted = 1; p.max_drafted <= 4; p.max_drafted += 3) {
            memset(got, 0, sizeof got);
            converse(&p, got, m, &drafted, &accepted);
            assert_memory_equal(n, m, sizeof n);
            assert_memory_equal(want, got, sizeof want);
            print_message("%s, %d at once: %d of %d guesses were right\n", how[h].gpus ? how[h].gpus : "processor",
                          p.max_drafted, accepted, drafted);
            assert_true(drafted > 60 && accepted * 100 > drafted * (p.max_drafted == 1 ? 75 : 40));
        }
    }
}

/* Compares with test/golden/oracle.py on the same weights: every position with its next token, and the tokens predicted
 * from there. */
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
    struct engine *eng = t->s->engine;
    const size_t hidden = (size_t)eng->info.hidden, vocab = (size_t)eng->info.vocab;
    struct mtp_session chat = {0};
    assert_int_equal(t->s->mtp.n_waiting, t->n);
    for (int i = 0; i + 1 < t->n; i++, t->want += 2 * vocab) {
        int32_t out[2];
        mtp_feed(eng->mtp, &chat, i, 1, t->s->mtp.hidden + (size_t)i * hidden);
        assert_int_equal(mtp_draft(eng->mtp, &chat, t->tokens, i + 2, 2, out, take, t), 2);
    }
    mtp_session_close(&chat);
    return 0;
}
static void the_prediction_layer_says_what_the_reference_says(void **st) {
    static const char *const names[] = {"guess_mla", "guess_gqa"};
    for (int i = 0; i < 2; i++) {
        char path[1100], *text, *want;
        size_t size, at;
        int32_t tokens[64];
        struct told t = {.tokens = tokens};
        struct error e = {0};
        struct event ev = {0};
        snprintf(path, sizeof path, "%s/%s_ahead.json", GOLDEN_DIR, names[i]);
        assert_int_equal(file_read(path, 1 << 20, &text, &size, &e), 0);
        const char *p = strchr(strstr(text, "\"tokens\""), '[');
        while (*p != ']') tokens[t.n++] = (int32_t)strtol(p + 1, (char **)&p, 10);
        snprintf(path, sizeof path, "%s/%s_ahead.f32", GOLDEN_DIR, names[i]);
        assert_int_equal(file_read(path, 1 << 20, &want, &at, &e), 0);
        struct engine *eng =
            open_model(names[i], (struct engine_params){.draft = DRAFT_MTP, .kv = DT_F32, .cpu_level = CPU_SCALAR + 1});
        assert_int_equal(at, (size_t)(t.n - 1) * 2 * (size_t)eng->info.vocab * sizeof(float));
        t.want = (const float *)(const void *)want;
        assert_int_equal(session_open(eng, &t.s, &e), 0);
        struct request r = {.tokens = tokens, .n = t.n, .max_tokens = 0};
        assert_int_equal(session_submit(t.s, &r, &e), 0);
        while (ev.kind != EVENT_DONE) assert_true(engine_poll(eng, &ev, -1) && ev.kind != EVENT_ERROR);
        engine_run_on_thread(eng, compare, &t);
        if (!(t.worst <= 1e-5 * t.most)) fail_msg("%s: off by %.1e of %.1e", names[i], t.worst, t.most);
        session_close(&t.s);
        engine_close(&eng);
        mem_free(text);
        mem_free(want);
    }
}

static void who_has_no_prediction_layer_says_so(void **st) {
    char dir[1024];
    struct engine *eng;
    struct error e = {0};
    snprintf(dir, sizeof dir, "%s/gqa_flat", root);
    struct engine_params p = {.dir = dir, .threads = 1, .draft = DRAFT_MTP};
    assert_int_equal(engine_open(&eng, &p, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "gqa_flat has no supported prediction layer"));
}

/* Rows of paged decoding are other prompts': an explicit draft is refused with it, an automatic one reports that it is
 * off. */
static void nothing_is_guessed_in_paged_steps(void **st) {
    struct error e = {0};
    struct turn_stats stats;
    struct session *s;
    int32_t prompt[PROMPT], text[ANSWER];
    struct engine *eng;
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/gqa_shared", root);
    for (enum draft_kind named = DRAFT_LOOKUP; named <= DRAFT_INT4; named++) {
        e = (struct error){0};
        assert_int_equal(
            engine_open(&eng,
                        &(struct engine_params){
                            .dir = dir, .threads = 1, .gpus = "emu:1", .decode = DECODE_PAGED, .draft = named},
                        &e),
            ERR_USAGE);
        assert_non_null(strstr(e.text, "leave out --draft"));
    }
    for (enum draft_kind draft = DRAFT_NONE; draft <= DRAFT_AUTO; draft++) {
        eng = open_model("gqa_shared", (struct engine_params){.gpus = "emu:1", .decode = DECODE_PAGED, .draft = draft});
        prompt_of(0, prompt);
        assert_int_equal(session_open(eng, &s, &e), 0);
        turn(eng, s, (struct request){.tokens = prompt, .n = PROMPT, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS},
             text, &stats);
        assert_string_equal(stats.decode_mode, "paged");
        assert_true(!stats.draft && !stats.drafted && !strstr(stats.decode_why, "no drafts") == !draft);
        session_close(&s);
        engine_close(&eng);
    }
}

/* --- Distribution of sampled tokens --------------------------------------------------------------
 *
 * The engine samples DRAWN tokens in a row from a vocabulary of three (the likeliest of each position), with a draft of
 * the third and the fourth. Compares the frequencies of all 81 texts over the seeds with the model's logits. A token
 * must not become likelier by being drafted. */

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

/* Returns the model's probability of each text, read as a prompt. */
static void grow(struct engine *eng, struct session *s, struct node *tree) {
    struct turn_stats stats;
    prompt_of(0, tree->tokens);
    tree->n = PROMPT;
    for (int i = 0; i < NODES; i++) {
        struct node *x = &tree[i];
        turn(eng, s,
             (struct request){.tokens = x->tokens, .n = x->n, .flags = REQ_IGNORE_EOS, .logits = look, .logits_ctx = x},
             NULL, &stats);
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

/* Over texts that are expected at least `few` times, and the others together; *degrees of freedom. */
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
    struct error e = {0};
    double want[TEXTS];
    struct engine *eng = open_model(
        "gqa_flat", (struct engine_params){
                        .kv = DT_F32, .draft = DRAFT_LOOKUP, .custom_draft = guess_likely, .custom_draft_ctx = &g});
    struct session *s;
    assert_int_equal(session_open(eng, &s, &e), 0);
    grow(eng, s, g.tree);
    for (int i = 0; i < TEXTS; i++) {
        int at = NODES + i, k;
        for (want[i] = SEEDS; at; at = (at - 1) / LIKELY)
            k = (at - 1) % LIKELY, want[i] *= g.tree[(at - 1) / LIKELY].chance[k];
    }
    for (g.how = 0; g.how < GUESSINGS; g.how++) {
        int seen[TEXTS] = {0}, drafted = 0, accepted = 0, degrees;
        for (int seed = 0; seed < SEEDS; seed++) {
            const struct request r = {.tokens = g.tree->tokens,
                                      .n = PROMPT,
                                      .max_tokens = DRAWN,
                                      .flags = REQ_IGNORE_EOS,
                                      .sampling = {.temperature = 1,
                                                   .top_p = 1,
                                                   .repeat_penalty = 1,
                                                   .top_k = LIKELY,
                                                   .seed = (uint64_t)(g.how * SEEDS + seed)}};
            struct turn_stats stats;
            int32_t text[DRAWN];
            int at = 0;
            assert_int_equal(turn(eng, s, r, text, &stats), DRAWN);
            for (int i = 0; i < DRAWN; i++) at = LIKELY * at + 1 + branch(&g.tree[at < NODES ? at : 0], text[i]);
            seen[at - NODES]++;
            drafted += stats.drafted, accepted += stats.accepted;
        }
        /* p < 0.001 from 20 degrees of freedom */
        const double chi = chi_square(seen, want, &degrees), most = degrees + 3.1 * sqrt(2.0 * degrees) + 6;
        print_message("guesses %d: %d of %d right; chi-square %.1f of %d degrees\n", g.how, accepted, drafted, chi,
                      degrees);
        assert_true(degrees >= 20 && drafted >= SEEDS && accepted > drafted / 20 && accepted < drafted);
        if (chi > most) fail_msg("guesses %d: chi-square %.1f of %d degrees", g.how, chi, degrees);
    }
    session_close(&s);
    engine_close(&eng);
}

/* --- Another model as the draft --------------------------------------------------------------- */

/* The model itself drafts what it then says, also with random numbers; another model drafts other tokens. Neither
 * changes the text. The last session of answer_all() is cancelled. */
static void another_model_drafts(void **st) {
    static const char *const drafts[] = {"dense_around", "gqa_flat"};
    static int32_t want[SESSIONS + 1][PROMPT + ANSWER], got[SESSIONS + 1][PROMPT + ANSWER];
    for (int i = 0; i < 4; i++) {
        char dir[4096];
        struct engine_params p = {
            .gpus = i > 1 ? "emu:1" : NULL, .decode = i > 1 ? DECODE_HYBRID : DECODE_CPU, .prefill = PREFILL_CPU};
        int drafted, accepted;
        snprintf(dir, sizeof dir, "%s/%s", root, drafts[i % 2]);
        struct engine *eng = open_model("dense_around", p);
        answer_all(eng, want, &drafted, &accepted);
        engine_close(&eng);
        p.draft = DRAFT_MODEL, p.draft_model = dir, p.max_drafted = 3;
        eng = open_model("dense_around", p);
        answer_all(eng, got, &drafted, &accepted);
        engine_close(&eng);
        print_message("%s: %d of %d guesses were right\n", drafts[i % 2], accepted, drafted);
        assert_memory_equal(want, got, sizeof want);
        if (i % 2) assert_true(drafted > ANSWER / 2 && accepted < drafted / 4);
        else assert_true(drafted > ANSWER / 2 && accepted * 10 > drafted * 9);
    }
}

/* --- Measured decode times -------------------------------------------------------------------- */

static int nothing(void *arg) { return 0; }

/* A batch that reads experts for the first time is not a measurement of decode time; one that needs the same experts
 * again is. */
static void batches_with_first_reads_are_not_measured(void **st) {
    static const int32_t prompt[] = {7};
    struct error e = {0};
    struct turn_stats stats;
    int32_t text[2][4];
    struct engine *eng = open_model("gqa_flat", (struct engine_params){.draft = DRAFT_LOOKUP});
    for (int i = 0; i < 2; i++) {
        struct session *s;
        const struct request r = {
            .tokens = prompt, .n = 1, .max_tokens = 2, .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE};
        assert_int_equal(session_open(eng, &s, &e), 0);
        assert_int_equal(turn(eng, s, r, text[i], &stats), 2);
        session_close(&s);
        engine_run_on_thread(eng, nothing, NULL); /* the batch is counted after its last token */
        assert_int_equal(eng->governor.n_batches, i + 1);
        assert_int_equal(eng->governor.cost[0][1].n_samples, i); /* the mode of batches on the CPU */
    }
    engine_close(&eng);
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
                                       cmocka_unit_test(nothing_is_guessed_in_paged_steps),
                                       cmocka_unit_test(draws_are_distributed_as_the_logits_say),
                                       cmocka_unit_test(another_model_drafts),
                                       cmocka_unit_test(batches_with_first_reads_are_not_measured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
