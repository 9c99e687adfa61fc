#include "cli/turn/engine_client.h"

#include "cli/app.h"
#include "cli/terminal/sig.h"

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
    if (s->app->opts.v[OPT_DETERMINISTIC].on) q.flags |= REQ_EXACT_PREFIX_ONLY;
    return s->app->backend->submit(s, p, &q, e);
}
size_t engine_client_disk_keys(const struct engine_client *s, const uint64_t **keys) {
    return s->app->backend->disk_keys(s, keys);
}
void engine_client_cancel(struct engine_client *s) { s->app->backend->cancel(s); }
static void cancel_client(void *s) { engine_client_cancel(s); }
void engine_client_defer_signals(struct engine_client *s) { sig_defer(cancel_client, s); }
bool engine_client_poll(struct app *a, struct engine_event *out, int timeout_ms) {
    return a->backend->poll(a, out, timeout_ms);
}
int engine_client_fd(const struct app *a) { return a->backend->fd(a); }
