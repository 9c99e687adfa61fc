/* Speeds of turns after one another in one process: how fast a prompt is read and an answer is written, with every
 * decision that the program itself would make.
 *   bench_turns MODEL LIST|none TURN...      LIST as in --gpus; TURN: PROMPT:ANSWER in tokens, or PROMPT:ANSWER:fp8
 * Turns with fp8 keep their keys and values in FP8 and run after the others. Prints rows of a Markdown table. Equal
 * turns have equal prompts, which no other turn's cache serves, so the ids of their answers must be equal with any LIST
 * of the same precision. BENCH_TURNS_CACHE in the environment: the folder of calibrations; without it speeds are
 * assumed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { SHOWN = 16, ROOM = 64 };

struct turn {
    int prompt, answer;
    bool is_fp8;
};

static void quiet(void *ctx, enum log_level level, const char *text) {}
static int fail(const char *what, const struct error *e) { return printf("FAIL %s: %s\n", what, e->text), 1; }

static bool read_turn(const char *text, struct turn *t) {
    char kind[8] = "";
    const int n = sscanf(text, "%d:%d:%7s", &t->prompt, &t->answer, kind);
    t->is_fp8 = !strcmp(kind, "fp8");
    return (n == 2 || (n == 3 && t->is_fp8)) && t->prompt > 0 && t->answer > 0;
}

/* Tokens that neither another length nor another place has, so that no cache has them and experts spread as in text. */
static void fill_prompt(int32_t *ids, int n, int vocab) {
    for (int k = 0; k < n; k++)
        ids[k] = (int32_t)(((uint64_t)k * 2654435761u + (uint64_t)n * 69069u) % (uint64_t)vocab);
}

static int run_turn(struct engine *eng, const struct turn *t, struct error *e) {
    struct session *s = NULL;
    struct event ev;
    int32_t shown[SHOWN], *ids = mem_alloc((size_t)t->prompt * sizeof *ids);
    int rc = ids ? 0 : error_set(e, ERR_MEMORY, "no memory"), n = 0;
    if (!rc) fill_prompt(ids, t->prompt, engine_info(eng)->vocab);
    const struct request q = {.tokens = ids,
                              .n = t->prompt,
                              .max_tokens = t->answer,
                              .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE | REQ_NO_DISK_CACHE,
                              .sampling = {.top_p = 1, .repeat_penalty = 1}};
    if (!rc && !(rc = session_open(eng, &s, e))) rc = session_submit(s, &q, e);
    for (bool done = false; !rc && !done;) {
        if (!engine_poll(eng, &ev, -1)) continue;
        if (ev.kind == EVENT_TOKEN && n < SHOWN) shown[n++] = ev.token;
        if (ev.kind == EVENT_ERROR) *e = ev.error, rc = e->code;
        done = ev.kind == EVENT_DONE;
    }
    if (!rc) {
        const struct turn_stats *r = &ev.stats;
        printf("| %d:%d%s | %.1f | %.0f | %.3f | %s, %s |", t->prompt, t->answer, t->is_fp8 ? ":fp8" : "",
               r->decode_s > 0 ? (r->answer_tokens - 1) / r->decode_s : 0, t->prompt / r->prefill_s, r->ttft_s,
               r->prefill_mode ? r->prefill_mode : "-", r->decode_mode ? r->decode_mode : "-");
        for (int i = 0; i < n; i++) printf(" %d", shown[i]);
        printf(" |\n");
        fflush(stdout);
    }
    session_close(&s);
    mem_free(ids);
    return rc;
}

/* Runs the turns of one type of keys and values; none: opens nothing. */
static int run_turns(const char *model, const char *gpus, const struct turn *turns, int n, bool is_fp8) {
    struct engine *eng;
    struct error e = {0};
    int most = 0, rc = 0;
    for (int i = 0; i < n; i++)
        if (turns[i].is_fp8 == is_fp8 && turns[i].prompt + turns[i].answer > most)
            most = turns[i].prompt + turns[i].answer;
    if (!most) return 0;
    const struct engine_params p = {.dir = model,
                                    .gpus = gpus,
                                    .context = most + ROOM,
                                    .kv = is_fp8 ? DT_E4M3 : DT_BF16,
                                    .expert_cache = "auto",
                                    .calibration_dir = getenv("BENCH_TURNS_CACHE"),
                                    .draft = DRAFT_NONE};
    if (engine_open(&eng, &p, &e)) return fail("opening", &e);
    for (int i = 0; i < n && !rc; i++)
        if (turns[i].is_fp8 == is_fp8) rc = run_turn(eng, &turns[i], &e);
    engine_close(&eng);
    return rc ? fail("a turn", &e) : 0;
}

int main(int argc, char **argv) {
    struct turn *turns = calloc((size_t)argc, sizeof *turns);
    bool valid = argc > 3 && turns;
    for (int i = 3; i < argc && valid; i++) valid = read_turn(argv[i], &turns[i - 3]);
    if (!valid) {
        fprintf(stderr, "usage: bench_turns MODEL LIST|none PROMPT:ANSWER[:fp8]...\n");
        free(turns);
        return 2;
    }
    log_set(quiet, NULL, LOG_WARN);
    printf("| turn | answer, tokens/s | prompt, tokens/s | first token, s | modes | first tokens |\n"
           "|---|---|---|---|---|---|\n");
    int rc = run_turns(argv[1], argv[2], turns, argc - 3, false);
    if (!rc) rc = run_turns(argv[1], argv[2], turns, argc - 3, true);
    free(turns);
    return rc;
}
