#include "engine/draft_model_engine.h"

#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_core.h"

/* A draft reads at most FEW_UNREAD tokens before it answers; more are read in the background. POLL_MS: between two
 * looks at a cancel. */
enum { FEW_UNREAD = 32, POLL_MS = 20 };

struct draft {
    struct engine *engine;
    pthread_mutex_t lock;
};

static void close_model(void *ctx) {
    struct draft *d = ctx;
    engine_close(&d->engine);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

static void close_chat(void *ctx, struct draft_model_chat *c) {
    struct draft *d = ctx;
    if (!c->session) return;
    pthread_mutex_lock(&d->lock);
    session_close(&c->session);
    pthread_mutex_unlock(&d->lock);
}

/* Discards the events of sessions that read in the background. */
static void drain_events(struct draft *d) {
    struct event ev;
    while (engine_poll(d->engine, &ev, 0)) {
    }
}

static int n_unread(const struct session *s, const int32_t *tokens, int n) {
    const int32_t *read;
    int have = session_tokens(s, &read), same = 0;
    while (same < have && same < n && read[same] == tokens[same]) same++;
    return n - same;
}

static bool is_ready(struct draft *d, struct draft_model_chat *c, const int32_t *tokens, int n, int most) {
    struct error e = {0};
    drain_events(d);
    if (n + most > engine_info(d->engine)->context) return false;
    if (!c->session && session_open(d->engine, &c->session, &e)) return false;
    if (session_busy(c->session)) return false;
    if (n_unread(c->session, tokens, n) <= FEW_UNREAD) return true;
    if (session_submit(c->session,
                       &(struct request){.tokens = tokens, .n = n, .flags = REQ_IGNORE_EOS | REQ_NO_DISK_CACHE}, &e))
        log_say(LOG_INFO, "the draft model cannot read this conversation: %s", e.text);
    return false;
}
static bool ready(void *ctx, struct draft_model_chat *c, const int32_t *tokens, int n, int most) {
    struct draft *d = ctx;
    pthread_mutex_lock(&d->lock);
    const bool is = is_ready(d, c, tokens, n, most);
    pthread_mutex_unlock(&d->lock);
    return is;
}

static struct draft_model_row *row_of(struct draft_model_row *rows, int n, const struct session *s) {
    for (int i = 0; i < n; i++)
        if (rows[i].chat->session == s) return &rows[i];
    return NULL; /* a session that reads in the background */
}

static void run(void *ctx, struct draft_model_row *rows, int n, bool (*stopped)(void *arg), void *arg) {
    struct draft *d = ctx;
    int running = 0;
    bool cancelled = false;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < n; i++) {
        struct draft_model_row *r = &rows[i];
        const struct request q = {.tokens = r->tokens,
                                  .n = r->n,
                                  .max_tokens = r->most,
                                  .flags = REQ_IGNORE_EOS | REQ_NO_DISK_CACHE,
                                  .sampling = r->sampling};
        r->made = 0;
        if (!session_submit(r->chat->session, &q, &(struct error){0})) running++;
    }
    while (running) {
        struct event ev;
        if (!cancelled && (cancelled = stopped(arg)))
            for (int i = 0; i < n; i++) session_cancel(rows[i].chat->session);
        if (!engine_poll(d->engine, &ev, POLL_MS)) continue;
        struct draft_model_row *r = row_of(rows, n, ev.session);
        if (!r) continue;
        if (ev.kind == EVENT_TOKEN && r->made < r->most) r->out[r->made++] = ev.token;
        running -= ev.kind == EVENT_DONE || ev.kind == EVENT_ERROR;
    }
    pthread_mutex_unlock(&d->lock);
}

int draft_model_engine_open(struct draft_model *out, const char *dir, const struct engine_params *p, struct error *e) {
    const struct engine_params own = {.dir = dir,
                                      .threads = p->threads,
                                      .cpu_level = p->cpu_level,
                                      .kv = p->kv,
                                      .topology = p->topology,
                                      .force = p->force,
                                      .prefill = PREFILL_CPU,
                                      .decode = DECODE_CPU,
                                      .draft = DRAFT_NONE};
    struct error why = {0};
    struct draft *d = mem_calloc(1, sizeof *d);
    if (!d) return error_set(e, ERR_MEMORY, "no memory for a draft model");
    const int rc = engine_core_open(&d->engine, &own, &why);
    if (rc) {
        mem_free(d);
        return error_set(e, rc, "the draft model: %s (--draft)", why.text);
    }
    pthread_mutex_init(&d->lock, NULL);
    *out = (struct draft_model){.ctx = d, .ready = ready, .run = run, .close_chat = close_chat, .close = close_model};
    return 0;
}
