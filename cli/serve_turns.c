/* The turns of --serve. Requests wait for one of a few sessions; clients are served round-robin, and each request takes the session that
 * caches the longest prefix of its prompt. Generated text is stored and formatted into chunks when its connection can send. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cli/out.h"
#include "cli/resident.h"
#include "cli/server.h"
#include "engine/base/clock.h"
#include "engine/base/hash.h"

static const char ending[] = "the server is shutting down";

/* --- requests -------------------------------------------------------------------------------------------------------- */

void serve_ask_free(struct ask *x) {
    struct server *s = x->server;
    struct ask **at = &s->asks;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    if (x->state == ASK_WAITING) fair_leave(&s->waiting, &x->wait);
    s->bodies -= x->body.len;
    for (size_t i = 0; i < sizeof x->said / sizeof *x->said; i++) buf_free(&x->said[i].text);
    turn_free(&x->turn);
    prompt_free(&x->prompt);
    api_free(&x->request);
    buf_free(&x->body);
    buf_free(&x->refusal);
    buf_free(&x->aside);
    buf_free(&x->out);
    mem_free(x);
}

void serve_leave(struct ask *x) {
    if (x->state == ASK_RUNNING) seat_cancel(x->slot->seat); /* freed by its last event */
    else serve_ask_free(x);
}

static int check_model(const struct ask *x, struct error *e) {
    const struct json *m = x->request.model;
    const char *name = x->server->app->info->name;
    if (!m || json_is(m, name)) return 0;
    return error_set(e, ERR_MODEL, "no model %.*s; this server has %s", (int)(m->n < 100 ? m->n : 100), m->string, name);
}

int serve_prompt(struct ask *x, struct error *e) {
    struct app *a = x->server->app;
    int rc = api_parse(&x->request, x->body.data ? x->body.data : "", x->body.len, a->chat, e);
    if (rc || (rc = check_model(x, e))) return rc;
    rc = conv_prompt_json(a, &x->request.conv, &x->prompt, e);
    if (rc == ERR_RUNTIME) return e->code = ERR_USAGE; /* the template refuses this conversation */
    if (!rc && x->request.begun) rc = conv_begun(a, x->request.begun->string, x->request.begun->n, &x->prompt, e);
    return rc;
}

int serve_enqueue(struct ask *x, struct error *e) {
    struct server *s = x->server;
    struct app *a = s->app;
    unsigned char id[12];
    int waiting = 0, own = 0, rc;
    for (const struct ask *o = s->asks; o; o = o->next)
        if (o->state == ASK_WAITING) waiting++, own += o->job == x->job;
    if (own && own >= SERVE_SHARE * (SERVE_WAITING - waiting))
        return error_set(e, ERR_MEMORY, "too many waiting requests: %d, %d of them from this client", waiting, own);
    rc = serve_prompt(x, e);
    if (!rc && !x->prompt.ids.n) rc = error_set(e, ERR_USAGE, "messages: the prompt is empty");
    if (!rc && !x->prompt.known.n && x->prompt.ids.n + 1 > (size_t)a->info->context)
        rc = error_set(e, ERR_CONTEXT, "the prompt has %zu tokens, the context holds %d", x->prompt.ids.n, a->info->context);
    if (rc) return rc;
    if (getrandom(id, sizeof id, 0) != sizeof id) return error_set(e, ERR_RUNTIME, "cannot get random numbers");
    snprintf(x->answer.id, sizeof x->answer.id, "chatcmpl-");
    for (size_t i = 0; i < sizeof id; i++) snprintf(x->answer.id + 9 + 2 * i, 3, "%02x", id[i]);
    x->answer.created = (long long)time(NULL);
    x->answer.model = a->info->name;
    x->n_prompt = x->prompt.ids.n;
    x->state = ASK_WAITING;
    const struct json *user = x->request.user;
    fair_wait(&s->waiting, &x->wait, user ? hash64(user->string, user->n, x->job) : x->job, ++s->orders);
    return 0;
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

static size_t held(const struct slot *k, const int32_t **tokens) {
    int n = session_tokens(k->seat->session, tokens);
    return n > 0 ? (size_t)n : 0;
}
static size_t common(const struct slot *k, const struct prompt *p) {
    const int32_t *tokens;
    size_t n = held(k, &tokens), i = 0;
    while (i < n && i < p->ids.n && tokens[i] == p->ids.data[i]) i++;
    return i;
}

/* Picks an idle session, or opens a new one below the limit: one that loses little of its cache, else the least recently used. NULL:
 * all are busy. */
static struct slot *choose(struct server *s, const struct prompt *p, struct error *e) {
    const int32_t *tokens;
    struct slot *best = NULL, *oldest = NULL;
    size_t most = 0;
    for (int i = 0; i < s->n_slots; i++) {
        struct slot *k = &s->slots[i];
        if (k->ask) continue;
        size_t n = common(k, p);
        if (!best || n > most) best = k, most = n;
        if (!oldest || k->used < oldest->used) oldest = k;
    }
    if (best && most * 2 >= held(best, &tokens)) return best;
    if (s->n_slots < s->most) {
        struct slot *k = &s->slots[s->n_slots];
        if (!seat_open(s->app, &k->seat, e)) {
            s->n_slots++;
            return k;
        }
    }
    return oldest;
}

static int on_piece(void *ctx, enum part part, const char *data, size_t n) {
    struct ask *x = ctx;
    size_t k = x->n_said;
    if ((part == PART_TOOL && !x->request.markup) || !x->request.stream) return 0; /* sent whole at the end */
    while (k && x->said[k - 1].part != part && x->n_said == sizeof x->said / sizeof *x->said) k--;
    if (!k || x->said[k - 1].part != part) {
        k = ++x->n_said;
        x->said[k - 1].part = part;
        x->said[k - 1].text.len = 0;
    }
    return buf_add(&x->said[k - 1].text, data, n);
}

static void over(struct ask *x) {
    struct server *s = x->server;
    if (x->slot) x->slot->ask = NULL;
    x->slot = NULL;
    if (x->state == ASK_WAITING) fair_leave(&s->waiting, &x->wait);
    x->state = ASK_OVER;
    s->last = clock_now();
    if (!x->conn) serve_ask_free(x);
    else serve_wake(x);
}

/* Sends the disk-cache keys before anything of the prompt can be on disk. */
static void tell_kept(struct ask *x) {
    const uint64_t *keys;
    size_t n = seat_kept(x->slot->seat, &keys);
    for (size_t i = 0; i < n; i++) buf_fmt(&x->aside, "%s%016llx", i ? " " : ": kept ", (unsigned long long)keys[i]);
    if (n) buf_str(&x->aside, "\n\n");
    if (n) serve_wake(x);
}

/* True if the request continues the chat of the session's last request: its messages and more. *said: hash of the messages. */
static bool goes_on(const struct ask *x, const struct slot *k, uint64_t *said) {
    const struct json *list = json_get(&x->request.conv, "messages");
    struct buf b = {0};
    bool same = false;
    *said = 0;
    for (uint32_t i = 0; i < list->n && !b.failed; i++) {
        b.len = 0;
        json_write(&b, &list->items[i]);
        if (!b.failed) *said = hash64(b.data, b.len, *said);
        same |= *said == k->said && (i + 1 < list->n || x->request.begun);
    }
    same = same && !b.failed;
    buf_free(&b);
    return same;
}

/* Starts a request on a session. A continued chat reuses the KV cache of its own answers; any other request reuses only prefilled
 * prefixes, so that an answer does not depend on other clients. */
static int begin(struct ask *x, struct slot *k, struct error *e) {
    struct server *s = x->server;
    uint64_t said;
    const bool alone = x->prompt.alone;
    x->prompt.alone = false; /* a note for the client, not for the server's terminal */
    int flags = (x->request.secret ? REQUEST_SECRET : 0) | (goes_on(x, k, &said) ? 0 : REQUEST_AFRESH);
    struct request q = {.max_tokens = x->request.max_tokens, .client = x->wait.client, .flags = flags};
    app_sampling(s->app, &s->app->opts, &q.sampling);
    api_sampling(&x->request, &q.sampling);
    int rc = turn_start(&x->turn, s->app, k->seat, &x->prompt, &q, on_piece, x, e);
    if (rc) return rc;
    turn_stop_at(&x->turn, x->request.stop, x->request.n_stop);
    x->turn.begun = x->request.begun && x->request.begun->n;
    k->ask = x;
    k->used = ++s->orders;
    k->said = said;
    x->slot = k;
    fair_serve(&s->waiting, &x->wait);
    x->state = ASK_RUNNING;
    prompt_free(&x->prompt);
    if (x->request.kept && x->request.stream) tell_kept(x);
    if (alone && x->request.markup && x->request.stream) {
        buf_str(&x->aside, ": alone\n\n");
        serve_wake(x);
    }
    return 0;
}

/* False for a client that has all sessions except the reserved ones: it waits until one of its own ends. */
static bool may_begin(const void *server, uint64_t client) {
    const struct server *s = server;
    int n = 0;
    for (int i = 0; i < s->n_slots; i++) n += s->slots[i].ask && s->slots[i].ask->wait.client == client;
    return n < s->most - s->most / SERVE_KEPT;
}

void serve_start(struct server *s) {
    for (;;) {
        struct fair_turn *turn = fair_next(&s->waiting, may_begin, s);
        struct ask *first = turn ? (struct ask *)((char *)turn - offsetof(struct ask, wait)) : NULL;
        struct error e = {.code = ERR_MEMORY, .text = "no memory for a session"};
        int busy = 0;
        for (int i = 0; i < s->n_slots; i++) busy += s->slots[i].ask != NULL;
        struct slot *k = first && busy < s->most ? choose(s, &first->prompt, &e) : NULL;
        if (!first || (!k && busy)) return; /* retried when a request ends */
        int rc = k ? begin(first, k, &e) : ERR_MEMORY;
        if (!rc) continue;
        first->turn.failed = true;
        first->turn.error = e;
        over(first);
    }
}

void serve_cancel(struct server *s) {
    for (struct ask *x = s->asks, *next; x; x = next) {
        next = x->next;
        if (x->state == ASK_RUNNING) seat_cancel(x->slot->seat);
        if (x->state != ASK_WAITING) continue;
        x->turn.failed = true;
        error_set(&x->turn.error, ERR_MEMORY, "%s", ending);
        over(x);
    }
}

void serve_news(struct server *s, const struct news *news) {
    struct ask *x = NULL;
    for (int i = 0; i < s->n_slots && !x; i++)
        if (s->slots[i].seat == news->seat) x = s->slots[i].ask;
    if (!x) return;
    turn_event(&x->turn, news);
    if (news->event.kind == EVENT_PROGRESS && news->event.total > 0 && x->request.stream)
        snprintf(x->note, sizeof x->note, ": prompt %d of %d, %.3f s left\n\n", news->event.done, news->event.total, news->event.left_s);
    if (x->turn.running) {
        if (x->n_said || *x->note) serve_wake(x);
        return;
    }
    s->answered++;
    if (!x->turn.failed && x->turn.reason == DONE_CANCELLED && x->conn && !x->hung_up) {
        x->turn.failed = true;
        error_set(&x->turn.error, ERR_MEMORY, "%s", ending);
    }
    over(x);
}

/* --- chunks ---------------------------------------------------------------------------------------------------------- */

static void put_end(struct ask *x) {
    struct tool_calls calls = {0};
    struct buf delta = {0};
    const struct turn *t = &x->turn;
    const char *code;
    if (t->failed) {
        int status = api_status(&t->error, &code);
        buf_str(&x->out, "data: ");
        api_error(&x->out, status, code, t->error.text);
        buf_str(&x->out, "\n\n");
        return;
    }
    if (api_tools(&x->request, t, &calls)) x->out.failed = true;
    if (calls.n) api_calls(&delta, &calls, x->answer.id, true);
    else if (t->tool.len && !x->request.markup) api_text(&delta, PART_TEXT, t->tool.data, t->tool.len);
    if (delta.len) api_chunk(&x->out, &x->answer, delta.data, delta.len, NULL);
    api_chunk(&x->out, &x->answer, NULL, 0, api_reason(t, &calls));
    if (x->request.usage) api_usage_chunk(&x->out, &x->answer, t, x->request.explain);
    buf_str(&x->out, "data: [DONE]\n\n");
    if (delta.failed) x->out.failed = true;
    buf_free(&delta);
    tools_free(&calls);
}

bool serve_chunk(struct ask *x) {
    static const char who[] = "\"role\": \"assistant\", \"content\": \"\"";
    x->out.len = x->sent = 0;
    if (x->aside.len) buf_add(&x->out, x->aside.data, x->aside.len);
    if (x->aside.failed) x->out.failed = true;
    x->aside.len = 0;
    if (*x->note) {
        buf_str(&x->out, x->note);
        *x->note = 0;
    }
    if (!x->begun && (x->n_said || (x->state == ASK_OVER && !x->turn.failed))) {
        api_chunk(&x->out, &x->answer, who, sizeof who - 1, NULL);
        x->begun = true;
    }
    for (size_t i = 0; i < x->n_said; i++) {
        struct buf delta = {0};
        api_text(&delta, x->said[i].part, x->said[i].text.data, x->said[i].text.len);
        api_chunk(&x->out, &x->answer, delta.data, delta.len, NULL);
        if (delta.failed) x->out.failed = true;
        buf_free(&delta);
        x->said[i].text.len = 0;
    }
    x->n_said = 0;
    if (x->state == ASK_OVER && !x->ended) {
        put_end(x);
        x->ended = true;
    }
    return x->out.len > 0;
}

/* --- status ---------------------------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void) {
    char text[128] = "";
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fgets(text, sizeof text, f)) sscanf(text, "%*u %llu", &pages);
    if (f) fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Of n cached tokens, returns those that are not shared. */
static size_t own(const struct slot *k, size_t n) {
    size_t shared = (size_t)session_shared(k->seat->session);
    return n > shared ? n - shared : 0;
}

static void put_ask(struct buf *b, const struct ask *x, size_t *kv) {
    const struct turn *t = &x->turn;
    int prompt = (int)x->n_prompt;
    buf_str(b, "{");
    if (x->pid) buf_fmt(b, "\"process\": %ld, ", (long)x->pid);
    if (x->state == ASK_WAITING) buf_fmt(b, "\"state\": \"waiting\", \"prompt_tokens\": %d}", prompt);
    else if (t->n_tokens) {
        double s = t->last_token - t->first_token;
        buf_fmt(b, "\"state\": \"decode\", \"prompt_tokens\": %d, \"tokens\": %d, \"tokens_per_s\": %.3f}", prompt, t->n_tokens,
                t->n_tokens > 1 && s > 0 ? (t->n_tokens - 1) / s : 0.0);
        *kv += own(x->slot, (size_t)(prompt + t->n_tokens));
    } else {
        buf_fmt(b, "\"state\": \"prefill\", \"prompt_tokens\": %d, \"share\": %.4f, \"left_s\": ", prompt, t->total ? (double)t->done / t->total : 0.0);
        if (t->total && t->left_s >= 0) buf_fmt(b, "%.3f}", t->left_s);
        else buf_str(b, "null}");
        *kv += own(x->slot, (size_t)(t->total && t->total <= prompt ? prompt - t->total + t->done : 0)); /* the cached prefix, and what is prefilled */
    }
}

void serve_status(struct server *s, struct buf *b) {
    const struct engine_info *i = s->app->info;
    const int32_t *tokens;
    size_t kv = 0; /* in tokens */
    bool first = true;
    buf_str(b, "{\"model\": ");
    out_json_string(b, i->name, strlen(i->name));
    buf_str(b, ", \"identity\": ");
    buf_add(b, s->identity.data, s->identity.len);
    buf_str(b, ", \"build\": ");
    resident_build(b);
    buf_fmt(b,
            ", \"pid\": %ld, \"up_s\": %.3f, \"context\": %d, \"max_context\": %d, \"kv_token_bytes\": %llu, \"fingerprint\": \"%016llx\", \"parallel\": %d, "
            "\"answered\": %llu, ",
            (long)getpid(), clock_now() - s->began, i->context, i->max_context, (unsigned long long)i->kv_token_bytes, (unsigned long long)i->fingerprint,
            s->most, (unsigned long long)s->answered);
    buf_str(b, "\"sampling\": {");
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"temperature", i->temperature}, {"top_p", i->top_p}, {"min_p", i->min_p}, {"repeat_penalty", i->repeat_penalty}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (numbers[k].value == numbers[k].value) buf_fmt(b, "\"%s\": %.17g, ", numbers[k].name, numbers[k].value);
    buf_fmt(b, "\"top_k\": %d, \"do_sample\": %s}, \"sessions\": [", i->top_k, i->do_sample ? "true" : "false");
    for (const struct ask *x = s->asks; x; x = x->next) {
        if (x->state != ASK_WAITING && x->state != ASK_RUNNING) continue;
        buf_str(b, first ? "" : ", ");
        put_ask(b, x, &kv);
        first = false;
    }
    for (int k = 0; k < s->n_slots; k++) {
        if (s->slots[k].ask) continue;
        size_t n = held(&s->slots[k], &tokens);
        buf_fmt(b, "%s{\"state\": \"idle\", \"tokens\": %zu}", first ? "" : ", ", n);
        kv += own(&s->slots[k], n);
        first = false;
    }
    buf_fmt(b, "], \"memory\": {\"resident_bytes\": %llu, \"kv_bytes\": %llu}}\n", (unsigned long long)resident_bytes(),
            (unsigned long long)(kv * i->kv_token_bytes + engine_shared_bytes(s->app->engine)));
}
