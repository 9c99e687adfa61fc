#include "cli/server/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/report.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"

/* --- sockets ---------------------------------------------------------------------------------- */

/* Takes the key from HEARTH_API_KEY, or makes one. */
static int choose_key(struct server *s, struct error *e) {
    const char *fixed = getenv("HEARTH_API_KEY");
    unsigned char random[32];
    if (fixed && *fixed) {
        if (strlen(fixed) >= SERVE_KEY_SIZE || strpbrk(fixed, "\r\n \t"))
            return error_set(e, ERR_USAGE, "HEARTH_API_KEY: a key has at most %d bytes and no white space",
                             SERVE_KEY_SIZE - 1);
        snprintf(s->key, sizeof s->key, "%s", fixed);
        s->has_fixed_key = true;
        return 0;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return error_set(e, ERR_RUNTIME, "--listen: cannot get random numbers for a key");
    for (size_t i = 0; i < sizeof random; i++) snprintf(s->key + 2 * i, 3, "%02x", random[i]);
    return 0;
}

struct address {
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    bool is_six, is_local;
    char host[64];
};

/* Parses PORT, ADDRESS:PORT, localhost:PORT or [ADDRESS]:PORT. */
static int parse_address(const char *where, struct address *out, struct error *e) {
    const char *colon = strrchr(where, ':'), *digits = colon ? colon + 1 : where;
    const size_t n = strlen(digits);
    const unsigned long port = strtoul(digits, NULL, 10);
    *out = (struct address){.in.sin_family = AF_INET, .in6.sin6_family = AF_INET6, .host = "127.0.0.1"};
    if (!n || n > 5 || strspn(digits, "0123456789") != n || port > 65535)
        return error_set(e, ERR_USAGE, "--listen %s: must be PORT or ADDRESS:PORT, as in 8080 or 127.0.0.1:8080",
                         where);
    const bool is_named = colon && colon - where == 9 && !strncasecmp(where, "localhost", 9);
    if (colon && !is_named) snprintf(out->host, sizeof out->host, "%.*s", (int)(colon - where), where);
    char inner[64] = "";
    const size_t m = strlen(out->host);
    out->is_six = m > 2 && out->host[0] == '[' && out->host[m - 1] == ']';
    if (out->is_six) snprintf(inner, sizeof inner, "%.*s", (int)m - 2, out->host + 1);
    if (inet_pton(out->is_six ? AF_INET6 : AF_INET, out->is_six ? inner : out->host,
                  out->is_six ? (void *)&out->in6.sin6_addr : (void *)&out->in.sin_addr) != 1)
        return error_set(e, ERR_USAGE,
                         "--listen %s: not an address, and names are not looked up; %s is this machine alone, "
                         "0.0.0.0:%s all of its addresses",
                         where, digits, digits);
    out->in.sin_port = out->in6.sin6_port = htons((uint16_t)port);
    out->is_local =
        out->is_six ? IN6_IS_ADDR_LOOPBACK(&out->in6.sin6_addr) : ntohl(out->in.sin_addr.s_addr) >> 24 == 127;
    return 0;
}

/* --listen: binds a port. Addresses of a network need --allow-remote and a fixed key. */
static int listen_port(struct server *s, const char *where, struct error *e) {
    struct address at;
    int rc = parse_address(where, &at, e);
    if (!rc) rc = choose_key(s, e);
    if (rc) return rc;
    if (!at.is_local && !s->app->opts.v[OPT_ALLOW_REMOTE].on)
        return error_set(e, ERR_USAGE, "--listen %s: other machines could connect; --allow-remote permits that", where);
    if (!at.is_local && !s->has_fixed_key)
        return error_set(e, ERR_USAGE, "--listen %s: --allow-remote needs a key in HEARTH_API_KEY", where);
    struct sockaddr *sa = at.is_six ? (struct sockaddr *)&at.in6 : (struct sockaddr *)&at.in;
    socklen_t size = at.is_six ? sizeof at.in6 : sizeof at.in;
    int fd = socket(at.is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* a connection of the previous server may still be closing */
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, sa, size) || listen(fd, 256) || getsockname(fd, sa, &size)) {
        rc = error_set(e, ERR_RUNTIME, "--listen %s: %s", where, error_reason(errno));
        if (fd >= 0) close(fd);
        return rc;
    }
    s->port_fd = fd;
    snprintf(s->url, sizeof s->url, "http://%s:%d/v1", at.host, ntohs(at.is_six ? at.in6.sin6_port : at.in.sin_port));
    return 0;
}

/* --- the loop --------------------------------------------------------------------------------- */

/* MHD's epoll mode is edge-triggered, and loses a client that writes and closes at once. So MHD lists its descriptors,
 * we poll them and pass the results back. */
struct fd_watch {
    fd_set reads, writes, odd;
    int max;
};
static int watch_begin(struct server *s, struct fd_watch *w, struct pollfd *fds) {
    int n = 0;
    FD_ZERO(&w->reads);
    FD_ZERO(&w->writes);
    FD_ZERO(&w->odd);
    w->max = -1;
    if (mhd.get_fdset(s->http, &w->reads, &w->writes, &w->odd, &w->max) != MHD_YES) w->max = -1;
    for (int fd = 0; fd <= w->max; fd++) {
        int events = (FD_ISSET(fd, &w->reads) ? POLLIN : 0) | (FD_ISSET(fd, &w->writes) ? POLLOUT : 0);
        if (events) fds[n++] = (struct pollfd){.fd = fd, .events = (short)events};
    }
    return n;
}
static void watch_end(struct server *s, struct fd_watch *w, const struct pollfd *fds, int n) {
    FD_ZERO(&w->odd);
    for (int i = 0; i < n; i++) {
        if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR))) FD_CLR(fds[i].fd, &w->reads);
        if (!(fds[i].revents & (POLLOUT | POLLHUP | POLLERR))) FD_CLR(fds[i].fd, &w->writes);
    }
    mhd.run_from_select(s->http, &w->reads, &w->writes, &w->odd);
}

static void serve_loop(struct server *s) {
    /* MANY_IDLE_ROUNDS: rounds with only MHD's work, which spins on a line of a chunked body that is longer than its
     * buffer */
    enum {
        N_FIXED = 5,
        MAX_WAIT_MS = 1000,
        EVENTS_PER_ROUND = 256,
        MANY_IDLE_ROUNDS = 100,
        IDLE_PAUSE_MS = 10,
        STOP_S = 3,
        STOP_WAIT_MS = 20
    };
    enum { MAX_OPEN = 64, MAX_FDS = N_FIXED + MAX_OPEN + FD_SETSIZE + SERVE_MAX_CONNECTIONS };
    static struct pollfd fds[MAX_FDS];
    static struct fd_watch watch;
    double idle_s = s->app->opts.v[OPT_IDLE].text ? s->app->opts.v[OPT_IDLE].num * 60 : 0, exit_at = 0;
    struct engine_event event;
    int n_idle_rounds = 0;
    for (;;) {
        MHD_UNSIGNED_LONG_LONG timeout_ms;
        double now = clock_now();
        bool accepting = s->n_connections < SERVE_MAX_CONNECTIONS && !s->stopping && now >= s->accept_again_s;
        int n = N_FIXED, wait_ms = mhd.get_timeout(s->http, &timeout_ms) == MHD_YES && timeout_ms < MAX_WAIT_MS
                                       ? (int)timeout_ms
                                       : MAX_WAIT_MS;
        n_idle_rounds = wait_ms > 0 ? 0 : n_idle_rounds + 1;
        if (n_idle_rounds > MANY_IDLE_ROUNDS) wait_ms = IDLE_PAUSE_MS;
        if (idle_s > 0 && !s->requests && now >= s->last_activity_s + idle_s) s->stopping = true;
        if (idle_s > 0 && s->last_activity_s + idle_s - now < wait_ms * 1e-3)
            wait_ms = (int)((s->last_activity_s + idle_s - now) * 1e3) + 1;
        if (s->stopping && !exit_at) {
            exit_at = now + STOP_S;
            serve_cancel_all(s);
        }
        if (exit_at && (!s->requests || now >= exit_at)) return;
        if (exit_at) wait_ms = wait_ms < STOP_WAIT_MS ? wait_ms : STOP_WAIT_MS;
        serve_connection_close_slow(s, now);
        serve_stream_break_silence(s, now);
        serve_gpus_poll(s);
        const double next_s = serve_models_step(s, now);
        if (next_s >= 0 && next_s < wait_ms * 1e-3) wait_ms = (int)(next_s * 1e3) + 1;
        serve_start_waiting(s); /* on models that have opened */
        fds[0] = (struct pollfd){.fd = s->model_fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = sig_fd(), .events = POLLIN};
        fds[2] = (struct pollfd){.fd = accepting ? s->fd : -1, .events = POLLIN};
        fds[3] = (struct pollfd){.fd = accepting && serve_connection_has_room(s) ? s->port_fd : -1, .events = POLLIN};
        fds[4] = (struct pollfd){.fd = s->compile_fd, .events = POLLIN};
        for (size_t i = 0; i < s->n_models && n < N_FIXED + MAX_OPEN; i++)
            if (s->models[i]->is_open)
                fds[n++] = (struct pollfd){.fd = engine_client_fd(s->models[i]->app), .events = POLLIN};
        int first_http = n;
        n += watch_begin(s, &watch, fds + n);
        int first_suspended = n;
        for (const struct http_request *x = s->requests; x && n < MAX_FDS; x = x->next)
            if (x->suspended && x->conn && !x->hung_up)
                fds[n++] = (struct pollfd){.fd = x->fd, .events = x->half_closed ? 0 : POLLRDHUP};
        int ready = poll(fds, (nfds_t)n, wait_ms < 0 ? 0 : wait_ms);
        if (ready < 0 && errno != EINTR) return;
        if (ready) n_idle_rounds = 0;
        sig_drain();
        if (sig_interrupted() || sig_terminated()) s->stopping = true;
        serve_connection_detect_hangups(s, fds + first_suspended, n - first_suspended);
        for (size_t k = 0; k < s->n_models; k++)
            for (int i = 0;
                 s->models[k]->is_open && i < EVENTS_PER_ROUND && engine_client_poll(s->models[k]->app, &event, 0); i++)
                serve_handle_event(s, &event);
        serve_compile_finish(s);
        serve_start_waiting(s);
        watch_end(s, &watch, fds + first_http, first_suspended - first_http);
        for (int i = 2; i < 4; i++)
            if (fds[i].fd >= 0 && (fds[i].revents & POLLIN) && !serve_connection_accept(s, fds[i].fd))
                s->accept_again_s = clock_now() + 0.1;
        serve_start_waiting(s);
    }
}

/* --- start and end ---------------------------------------------------------------------------- */

static int start_server(struct server *s, struct error *e) {
    struct app *a = s->app;
    struct buf line = {0};
    char count[32];
    s->parallel = a->opts.v[OPT_PARALLEL].text ? (int)a->opts.v[OPT_PARALLEL].integer : 16;
    s->max_sessions = s->parallel + s->parallel / SERVE_RESERVED_SHARE;
    if (!(s->sessions = mem_calloc((size_t)s->max_sessions, sizeof *s->sessions)))
        return error_set(e, ERR_MEMORY, "no memory");
    if (lib_mhd(e)) return ERR_RUNTIME;
    TRY(serve_compile_open(s, e));
    s->http = mhd.start_daemon(MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, serve_request, s,
                               MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVE_MAX_CONNECTIONS,
                               MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVE_HEAD_BYTES,
                               MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SERVE_IDLE_S, MHD_OPTION_NOTIFY_COMPLETED,
                               serve_completed, s, MHD_OPTION_UNESCAPE_CALLBACK, serve_unescape, NULL,
                               MHD_OPTION_NOTIFY_CONNECTION, serve_connection_notify, s, MHD_OPTION_END);
    if (!s->http) return error_set(e, ERR_RUNTIME, "--serve: libmicrohttpd failed to start");
    int rc = a->opts.v[OPT_LISTEN].text ? listen_port(s, a->opts.v[OPT_LISTEN].text, e) : 0;
    if (!rc && s->lock >= 0) rc = resident_listen(&s->fd, s->path, e);
    if (rc) return rc;
    s->started_s = s->last_activity_s = clock_now();
    s->opened_at = (long long)time(NULL);
    buf_fmt(&line, "serving %s",
            s->has_models ? amount_count((long long)s->n_models, "model", count, sizeof count) : a->info->name);
    buf_fmt(&line, s->fd >= 0 ? " on %s\n" : "\n", s->path);
    if (s->port_fd >= 0)
        buf_fmt(&line, "base URL %s\nkey %s\n", s->url, s->has_fixed_key ? "from HEARTH_API_KEY" : s->key);
    if (a->opts.v[OPT_PAGE].on) /* servers do not see what follows # */
        buf_fmt(&line, "page %.*s/%s%s\n", (int)(strlen(s->url) - strlen("/v1")), s->url,
                s->has_fixed_key ? "" : "#key=", s->has_fixed_key ? "" : s->key);
    /* else no client has the URL and key */
    rc = line.failed ? error_set(e, ERR_MEMORY, "no memory") : out_write(line.data, line.len) ? out_check(e) : 0;
    buf_free(&line);
    return rc;
}

static void stop_server(struct server *s) {
    for (struct http_request *x = s->requests; x; x = x->next) {
        x->hung_up = true;
        serve_connection_wake(x);
    }
    if (s->fd >= 0) unlink(s->path); /* first, so that no new client connects */
    serve_compile_close(s);
    if (s->http) {
        struct pollfd fds[FD_SETSIZE];
        struct fd_watch w;
        watch_end(s, &w, fds, watch_begin(s, &w, fds)); /* returns resumed connections to MHD */
        mhd.stop_daemon(s->http);
    }
    for (int i = 0; i < s->n_sessions; i++) {
        engine_client_close(&s->sessions[i].client);
        buf_free(&s->sessions[i].answer);
    }
    while (s->requests) serve_request_free(s->requests);
    if (s->fd >= 0) close(s->fd);
    if (s->port_fd >= 0) close(s->port_fd);
    if (s->lock >= 0) close(s->lock);
    serve_gpus_end(s);
    serve_models_close(s);
    mem_free(s->sessions);
    buf_free(&s->identity);
}

/* The socket is that of one engine of a user. Another with a port of its own does without. */
static int claim_socket(struct server *s, struct error *e) {
    int rc = resident_path(s->path, e);
    if (!rc) rc = resident_claim(&s->lock, e);
    if (rc != ERR_RUNTIME || !s->app->opts.v[OPT_LISTEN].text) return rc;
    report_note("%s; serving the port alone", e->text);
    return 0;
}

int serve_run(struct app *a, struct error *e) {
    struct server s = {.app = a, .lock = -1, .fd = -1, .port_fd = -1, .compile_fd = -1, .model_fd = -1};
    if (a->opts.v[OPT_RAW].on)
        return error_set(e, ERR_USAGE, "--serve and --raw cannot be combined: serving needs a chat template");
    int rc = claim_socket(&s, e);
    if (!rc) rc = serve_models_open(&s, e);
    if (!rc) {
        sig_defer(NULL, NULL);
        rc = start_server(&s, e);
    }
    out_err_nonblocking();
    if (!rc) serve_loop(&s);
    stop_server(&s);
    return rc;
}
