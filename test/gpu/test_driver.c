/* A session answers through a device and the CPU while other prompts are streamed to the same device, under the rules
 * by which a driver blocks its callers (cuda_emulate/driver.cpp): a call of one must not wait for work that the other
 * has yet to release. The built-in model.
 *
 * usage: test_driver [prompts] [tokens of a prompt]. Other checks: test_driver found LIST tried|untried TEXT [trouble],
 * which GPUs are found, and what is said of them; test_driver opens|answers TEXT, what is said while the first one is
 * opened, or answers, "": nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"
#include "gpu/gpu.h"
#include "test/env.h"

enum { SESSIONS = 12, TOKENS = 400, GAP = 3, PATIENCE_MS = 60000 };

static int32_t tokens[TOKENS];

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    fflush(stdout);
    _Exit(1); /* what hangs cannot be closed */
}
static void submit(struct session *s, int from, int n, int most) {
    struct error err = {0};
    if (session_submit(
            s,
            &(struct request){
                .tokens = tokens + from, .n = n, .max_tokens = most, .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE},
            &err))
        die("submit", &err);
}
static void quiet(void *ctx, enum log_level level, const char *text) {}

static int check_found(const char *list, bool is_tried, const char *text, bool is_trouble) {
    struct engine_gpus found;
    engine_find_gpus(&found);
    if (!strcmp(found.list, list) && (!*list || found.is_tried == is_tried) && strstr(found.text, text) &&
        !strstr(found.trouble, text) == !is_trouble)
        return 0;
    printf("FAIL found '%s', %s: %s; trouble: %s\n", found.list, found.is_tried ? "tried" : "untried", found.text,
           found.trouble);
    return 1;
}

struct said {
    char text[1024];
    int n;
};
static void keep(void *ctx, enum log_level level, const char *text) {
    struct said *said = ctx;
    snprintf(said->text, sizeof said->text, "%s", text);
    said->n++;
}
static int check_opens(const char *text) {
    struct said said = {0};
    struct error e = {0};
    struct gpu *g;
    const struct gpu_spec spec = {.n = 1};
    log_set(keep, &said, LOG_WARN);
    if (gpu_open(&g, &spec, 0, &e)) keep(&said, LOG_WARN, e.text);
    gpu_close(&g);
    log_set(NULL, NULL, LOG_WARN);
    if (*text ? said.n == 1 && strstr(said.text, text) : !said.n) return 0;
    printf("FAIL said %d times: %s\n", said.n, said.text);
    return 1;
}

/* One answer with the device, of which TEXT is said once. */
static int check_answers(const char *text) {
    struct said said = {0};
    struct error e = {0};
    struct engine *eng;
    struct session *s;
    struct event ev;
    const struct engine_params p = {.dir = "ember:",
                                    .threads = 1,
                                    .gpus = "0,math=f32",
                                    .prefill = PREFILL_CPU,
                                    .decode = DECODE_HYBRID,
                                    .context = 64,
                                    .deterministic = true};
    file_embed(ember_files);
    log_set(keep, &said, LOG_WARN);
    if (engine_open(&eng, &p, &e) || session_open(eng, &s, &e)) die("open", &e);
    submit(s, 0, 4, 3);
    do {
        if (!engine_poll(eng, &ev, PATIENCE_MS)) die("hangs", &(struct error){.text = "nothing for a minute"});
        if (ev.kind == EVENT_ERROR) die("the answer", &ev.error);
    } while (ev.kind != EVENT_DONE);
    session_close(&s);
    engine_close(&eng);
    log_set(NULL, NULL, LOG_WARN);
    if (*text ? said.n == 1 && strstr(said.text, text) : !said.n) return 0;
    printf("FAIL said %d times: %s\n", said.n, said.text);
    return 1;
}

int main(int argc, char **argv) {
    if (argc >= 5 && !strcmp(argv[1], "found"))
        return check_found(argv[2], !strcmp(argv[3], "tried"), argv[4], argc > 5 && *argv[5]);
    if (argc == 3 && !strcmp(argv[1], "opens")) return check_opens(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "answers")) return check_answers(argv[2]);
    const int n = argc > 1 ? atoi(argv[1]) : 6, len = argc > 2 ? atoi(argv[2]) : 60;
    struct engine *eng;
    struct session *answer, *prompt[SESSIONS];
    struct error e = {0};
    struct event ev;
    const struct engine_params p = {.dir = "ember:",
                                    .threads = 1,
                                    .cpu_level = 1,
                                    .gpus = "0,math=f32",
                                    .prefill = PREFILL_SLP,
                                    .decode = DECODE_HYBRID,
                                    .context = 1024,
                                    .deterministic = true};
    int begun = 0, done = 0, answered = 0;
    if (n < 1 || n > SESSIONS || len < 1 || len + n > TOKENS) die("arguments", &(struct error){.text = "out of range"});
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + 11) % 500;
    log_set(quiet, NULL, LOG_WARN);
    file_embed(ember_files);
    if (engine_open(&eng, &p, &e) || session_open(eng, &answer, &e)) die("open", &e);
    for (int i = 0; i < n; i++)
        if (session_open(eng, &prompt[i], &e)) die("open", &e);
    submit(answer, 0, 8, 2000);
    while (done < n) {
        if (!engine_poll(eng, &ev, PATIENCE_MS)) {
            printf("%d tokens, %d of %d prompts begun, %d done\n", answered, begun, n, done);
            die("hangs", &(struct error){.text = "nothing for a minute"});
        }
        if (ev.kind == EVENT_ERROR) die("a turn", &ev.error);
        answered += ev.kind == EVENT_TOKEN && ev.session == answer;
        if (ev.kind == EVENT_DONE && ev.session == answer)
            die("the answer", &(struct error){.text = "it ended before the prompts"});
        if (ev.kind == EVENT_DONE) {
            done++;
            if (strcmp(ev.stats.prefill_mode, "slp"))
                die(ev.stats.prefill_mode, &(struct error){.text = "a prompt was not streamed"});
        }
        if (begun < n && answered >= GAP * (begun + 1)) submit(prompt[begun], begun, len, 2), begun++;
    }
    session_cancel(answer);
    do {
        if (!engine_poll(eng, &ev, PATIENCE_MS)) die("hangs", &(struct error){.text = "the answer does not end"});
    } while (ev.kind != EVENT_DONE || ev.session != answer);
    if (strcmp(ev.stats.decode_mode, "hybrid"))
        die(ev.stats.decode_mode, &(struct error){.text = "the answer did not use the device"});
    for (int i = 0; i < n; i++) session_close(&prompt[i]);
    session_close(&answer);
    engine_close(&eng);
    printf("%d tokens beside %d prompts\n", answered, n);
    return 0;
}
