/* --status and --stop: clients of the resident engine. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/report.h"
#include "cli/server/resident.h"
#include "cli/server/serve.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"

static bool state_is(const struct json *session, const char *state) {
    return json_is(json_get(session, "state"), state);
}
static long long session_process(const struct json *session) {
    return (long long)json_int(json_get(session, "process"), 0);
}

/* Waiting and idle sessions of a process share one line, at the first of them. */
static bool same_line(const struct json *a, const struct json *b) {
    return session_process(a) == session_process(b) &&
           ((state_is(a, "waiting") && state_is(b, "waiting")) || (state_is(a, "idle") && state_is(b, "idle")));
}

static void put_session(const struct json *list, uint32_t i, struct buf *b) {
    char left[32], count[32];
    const struct json *j = &list->items[i];
    double seconds = json_num(json_get(j, "left_s"), -1);
    long long n = 0, tokens = 0;
    for (uint32_t k = 0; k < i; k++)
        if (same_line(&list->items[k], j)) return;
    for (uint32_t k = i; k < list->n; k++) {
        const struct json *o = &list->items[k];
        if (same_line(o, j))
            n++, tokens += (long long)json_int(json_get(o, state_is(o, "idle") ? "tokens" : "prompt_tokens"), 0);
    }
    if (state_is(j, "prefill")) {
        buf_fmt(b, "  prefill: %.0f %%", 100 * json_num(json_get(j, "share"), 0));
        if (seconds >= 0) buf_fmt(b, ", %s left", amount_duration(seconds, left, sizeof left));
    } else if (state_is(j, "decode"))
        buf_fmt(b, "  decode: %s, %s tok/s",
                amount_count((long long)json_int(json_get(j, "tokens"), 0), "token", count, sizeof count),
                amount_rate(json_num(json_get(j, "tokens_per_s"), 0), left, sizeof left));
    else if (state_is(j, "waiting") && n == 1)
        buf_fmt(b, "  waiting, with a prompt of %s", amount_count(tokens, "token", count, sizeof count));
    else if (state_is(j, "waiting"))
        buf_fmt(b, "  %lld waiting, with prompts of %s", n, amount_count(tokens, "token", count, sizeof count));
    else if (n == 1) buf_fmt(b, "  idle, %s cached", amount_count(tokens, "token", count, sizeof count));
    else buf_fmt(b, "  %lld idle, %s cached", n, amount_count(tokens, "token", count, sizeof count));
    if (session_process(j)) buf_fmt(b, ", for process %lld", session_process(j));
    buf_char(b, '\n');
}

static void put_status(const struct json *j, struct buf *b) {
    char up[32], memory[32], kv[32];
    const struct json *name = json_get(j, "model"), *sessions = json_get(j, "sessions");
    const long long answered = json_int(json_get(j, "answered"), 0);
    buf_fmt(b, "%.*s, process %lld, up %s; %lld answer%s; %s of memory, %s of them KV caches\n",
            name && name->type == JSON_STRING ? (int)name->n : 0, name && name->type == JSON_STRING ? name->string : "",
            (long long)json_int(json_get(j, "pid"), 0),
            amount_duration(json_num(json_get(j, "up_s"), 0), up, sizeof up), answered, answered == 1 ? "" : "s",
            amount_bytes((uint64_t)json_int(json_path(j, "memory.resident_bytes"), 0), memory, sizeof memory),
            amount_bytes((uint64_t)json_int(json_path(j, "memory.kv_bytes"), 0), kv, sizeof kv));
    for (uint32_t i = 0; sessions && sessions->type == JSON_ARRAY && i < sessions->n; i++) put_session(sessions, i, b);
}

int resident_status_print(struct app *a, struct error *e) {
    struct buf body = {0}, text = {0};
    struct arena arena = {0};
    struct json j;
    int rc = resident_request("GET", "/hearth/status", NULL, &body, e);
    if (rc == ERR_CANCELLED) rc = e->code = ERR_RUNTIME;
    if (!rc) rc = json_parse(&arena, body.data, body.len, 0, "status", &j, e);
    if (!rc && a->opts.v[OPT_JSON].on) out_write(body.data, body.len);
    else if (!rc) {
        put_status(&j, &text);
        if (text.failed) rc = error_set(e, ERR_MEMORY, "no memory");
        else out_write(text.data, text.len);
    }
    arena_free(&arena);
    buf_free(&body);
    buf_free(&text);
    return rc;
}

int resident_status_stop(struct app *a, struct error *e) {
    enum { EXIT_S = 30, POLL_MS = 20 };
    struct buf body = {0};
    int lock, rc = resident_request("POST", "/hearth/stop", NULL, &body, e);
    buf_free(&body);
    if (rc == ERR_CANCELLED) return e->code = ERR_RUNTIME;
    if (rc) return rc;
    for (double until = clock_now() + EXIT_S; (rc = resident_claim(&lock, e)) && clock_now() < until;)
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    if (rc) return error_set(e, ERR_RUNTIME, "the resident engine did not exit within %d seconds", EXIT_S);
    close(lock);
    report_note("the resident engine has exited");
    return 0;
}
