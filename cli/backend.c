#include "cli/backend.h"

#include "cli/app.h"
#include "cli/conv.h"
#include "cli/scope.h"

/* --- clients --------------------------------------------------------------------------------------------------------- */

int seat_open(struct app *a, struct seat **out, struct error *e) {
    struct seat *s = *out = mem_calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a session");
    s->app = a;
    int rc = a->backend->seat_open(s, e);
    if (rc) {
        mem_free(s);
        *out = NULL;
        return rc;
    }
    s->next = a->seats;
    a->seats = s;
    return 0;
}

void seat_close(struct seat **sp) {
    struct seat *s = *sp;
    if (!s) return;
    s->app->backend->seat_close(s);
    struct seat **at = &s->app->seats;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    mem_free(s);
    *sp = NULL;
}

void seat_fork(struct seat *from, struct seat **out) {
    *out = NULL;
    if (!from || !from->app->backend->own || seat_open(from->app, out, NULL)) return;
    if (session_fork(from->session, (*out)->session, NULL)) seat_close(out);
}

int seat_submit(struct seat *s, const struct prompt *p, const struct request *r, struct error *e) {
    struct request q = *r;
    if (s->app->opts.v[OPT_NO_SAVE].on) q.flags |= REQUEST_SECRET;
    return s->app->backend->submit(s, p, &q, e);
}
size_t seat_kept(const struct seat *s, const uint64_t **keys) { return s->app->backend->kept(s, keys); }
void seat_cancel(struct seat *s) { s->app->backend->cancel(s); }
bool seat_poll(struct app *a, struct news *out, int timeout_ms) { return a->backend->poll(a, out, timeout_ms); }
int seat_fd(const struct app *a) { return a->backend->fd(a); }

/* --- the engine of this process -------------------------------------------------------------------------------------- */

static void local_close(struct app *a) {
    engine_close(&a->engine);
    chat_close(&a->chat);
    scope_close(&a->scope);
    tokenizer_close(&a->tokenizer);
}
static int local_seat_open(struct seat *s, struct error *e) { return session_open(s->app->engine, &s->session, e); }
static void local_seat_close(struct seat *s) { session_close(&s->session); }
static void local_cancel(struct seat *s) { session_cancel(s->session); }
static int local_fd(const struct app *a) { return engine_fd(a->engine); }

static int local_submit(struct seat *s, const struct prompt *p, const struct request *r, struct error *e) {
    struct request q = *r;
    if (p->known.n) return session_say(s->session, (int)p->ids.n, p->known.data, (int)p->known.n, r->max_tokens, e);
    if (p->alone) conv_note_alone(s->app);
    q.tokens = p->ids.data;
    q.n = (int)p->ids.n;
    q.shared = p->shared;
    return session_submit(s->session, &q, e);
}

static size_t local_kept(const struct seat *s, const uint64_t **keys) { return session_kept(s->session, keys); }

static int local_count(struct app *a, const struct prompt *p, size_t *n, struct error *e) {
    *n = p->ids.n;
    return 0;
}

static bool local_poll(struct app *a, struct news *out, int timeout_ms) {
    *out = (struct news){0};
    if (!engine_poll(a->engine, &out->event, timeout_ms)) return false;
    out->seat = a->seats;
    while (out->seat && out->seat->session != out->event.session) out->seat = out->seat->next;
    return true;
}

const struct backend backend_local = {.name = "local",
                                      .own = true,
                                      .goes_on = true,
                                      .open_text = app_open_own_text,
                                      .open_engine = app_open_own_engine,
                                      .close = local_close,
                                      .prompt = conv_prompt_own,
                                      .count = local_count,
                                      .seat_open = local_seat_open,
                                      .seat_close = local_seat_close,
                                      .submit = local_submit,
                                      .cancel = local_cancel,
                                      .kept = local_kept,
                                      .poll = local_poll,
                                      .fd = local_fd};
