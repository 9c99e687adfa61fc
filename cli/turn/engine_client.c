#include "cli/turn/engine_client.h"

#include "cli/app.h"
#include "cli/turn/conversation.h"
#include "engine/ember/topic.h"

/* --- clients --------------------------------------------------------------------------------------------------------- */

int engine_client_open(struct app *a, struct engine_client **out, struct error *e) {
    struct engine_client *s = *out = mem_calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a session");
    s->app = a;
    int rc = a->backend->client_open(s, e);
    if (rc) {
        mem_free(s);
        *out = NULL;
        return rc;
    }
    s->next = a->clients;
    a->clients = s;
    return 0;
}

void engine_client_close(struct engine_client **sp) {
    struct engine_client *s = *sp;
    if (!s) return;
    s->app->backend->client_close(s);
    struct engine_client **at = &s->app->clients;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    mem_free(s);
    *sp = NULL;
}

void engine_client_fork(struct engine_client *from, struct engine_client **out) {
    *out = NULL;
    if (!from || !from->app->backend->is_local || engine_client_open(from->app, out, NULL)) return;
    if (session_fork(from->session, (*out)->session, NULL)) engine_client_close(out);
}

int engine_client_submit(struct engine_client *s, const struct prompt *p, const struct request *r, struct error *e) {
    struct request q = *r;
    if (s->app->opts.v[OPT_NO_SAVE].on) q.flags |= REQ_NO_DISK_CACHE;
    return s->app->backend->submit(s, p, &q, e);
}
size_t engine_client_disk_keys(const struct engine_client *s, const uint64_t **keys) { return s->app->backend->disk_keys(s, keys); }
void engine_client_cancel(struct engine_client *s) { s->app->backend->cancel(s); }
bool engine_client_poll(struct app *a, struct engine_event *out, int timeout_ms) { return a->backend->poll(a, out, timeout_ms); }
int engine_client_fd(const struct app *a) { return a->backend->fd(a); }

/* --- the engine of this process -------------------------------------------------------------------------------------- */

static void local_close(struct app *a) {
    engine_close(&a->engine);
    chat_template_close(&a->template);
    topic_close(&a->topic);
    tokenizer_close(&a->tokenizer);
}
static int local_client_open(struct engine_client *s, struct error *e) { return session_open(s->app->engine, &s->session, e); }
static void local_client_close(struct engine_client *s) { session_close(&s->session); }
static void local_cancel(struct engine_client *s) { session_cancel(s->session); }
static int local_fd(const struct app *a) { return engine_event_fd(a->engine); }

static int local_submit(struct engine_client *s, const struct prompt *p, const struct request *r, struct error *e) {
    struct request q = *r;
    if (p->fixed_answer.n) return session_submit_answer(s->session, (int)p->ids.n, p->fixed_answer.data, (int)p->fixed_answer.n, r->max_tokens, e);
    if (p->document_dropped) prompt_note_dropped_document(s->app);
    q.tokens = p->ids.data;
    q.n = (int)p->ids.n;
    q.n_shared = p->n_shareable;
    return session_submit(s->session, &q, e);
}

static size_t local_disk_keys(const struct engine_client *s, const uint64_t **keys) { return session_disk_keys(s->session, keys); }

static int local_count_tokens(struct app *a, const struct prompt *p, size_t *n, struct error *e) {
    *n = p->ids.n;
    return 0;
}

static bool local_poll(struct app *a, struct engine_event *out, int timeout_ms) {
    *out = (struct engine_event){0};
    if (!engine_poll(a->engine, &out->event, timeout_ms)) return false;
    out->client = a->clients;
    while (out->client && out->client->session != out->event.session) out->client = out->client->next;
    return true;
}

const struct backend backend_local = {.name = "local",
                                      .is_local = true,
                                      .can_continue = true,
                                      .open_text = open_text_local,
                                      .open_engine = open_engine_local,
                                      .close = local_close,
                                      .make_prompt = prompt_from_json_local,
                                      .count_tokens = local_count_tokens,
                                      .client_open = local_client_open,
                                      .client_close = local_client_close,
                                      .submit = local_submit,
                                      .cancel = local_cancel,
                                      .disk_keys = local_disk_keys,
                                      .poll = local_poll,
                                      .fd = local_fd};
