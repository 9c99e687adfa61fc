#include "cli/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/out.h"
#include "cli/progress.h"
#include "cli/resident.h"
#include "cli/sig.h"
#include "engine/base/clock.h"
#include "engine/base/limit.h"

/* --- sockets --------------------------------------------------------------------------------------------------------- */

/* --listen: binds a local port and makes a key. */
static int listen_port(struct server *s, const char *where, struct error *e) {
    char host[64], *end;
    const char *colon = strrchr(where, ':');
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    unsigned char random[(SERVE_KEY - 1) / 2];
    if (!colon || !colon[1] || *end || port > 65535) return error_set(e, ERR_USAGE, "--listen %s: must be ADDRESS:PORT, as in 127.0.0.1:8080", where);
    snprintf(host, sizeof host, "%.*s", (int)(colon - where), where);
    bool six = !strcmp(host, "[::1]");
    if (!six && (inet_pton(AF_INET, host, &in.sin_addr) != 1 || ntohl(in.sin_addr.s_addr) >> 24 != 127))
        return error_set(e, ERR_USAGE, "--listen %s: only loopback addresses (127.0.0.1 or [::1]) are allowed; hearth does not serve a network", where);
    in.sin_port = in6.sin6_port = htons((uint16_t)port);
    in6.sin6_addr = in6addr_loopback;
    struct sockaddr *sa = six ? (struct sockaddr *)&in6 : (struct sockaddr *)&in;
    socklen_t size = six ? sizeof in6 : sizeof in;
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)); /* a connection of the previous server may still be closing */
    if (fd < 0 || bind(fd, sa, size) || listen(fd, 256) || getsockname(fd, sa, &size)) {
        int rc = error_set(e, ERR_RUNTIME, "--listen %s: %s", where, strerror(errno));
        if (fd >= 0) close(fd);
        return rc;
    }
    s->port_fd = fd;
    snprintf(s->url, sizeof s->url, "http://%s:%d/v1", host, ntohs(six ? in6.sin6_port : in.sin_port));
    if (getrandom(random, sizeof random, 0) != sizeof random) return error_set(e, ERR_RUNTIME, "--listen: cannot get random numbers for a key");
    for (size_t i = 0; i < sizeof random; i++) snprintf(s->key + 2 * i, 3, "%02x", random[i]);
    return 0;
}

/* True if a client has more than its share of connections. All clients at the port count as one, which has its own limit. */
static bool has_many(const struct server *s, pid_t job) {
    int n = 0;
    for (const struct conn *k = s->conns; k; k = k->next) n += k->job == job;
    return job && n > SERVE_SHARE * (SERVE_CONNECTIONS - s->connections);
}

static void on_connection(void *server, struct MHD_Connection *c, void **state, enum MHD_ConnectionNotificationCode what) {
    struct server *s = server;
    s->connections += what == MHD_CONNECTION_NOTIFY_STARTED ? 1 : -1;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct conn *k = *state = mem_calloc(1, sizeof *k);
        if (!k) return; /* MHD's own timeout remains */
        *k = (struct conn){.next = s->conns, .fd = info ? info->connect_fd : -1};
        k->pid = resident_peer(k->fd, &k->job);
        s->conns = k;
        k->many = has_many(s, k->job);
        serve_expect(s, c, k->many ? SERVE_MANY_S : SERVE_HEAD_S);
    } else if (*state) {
        struct conn **at = &s->conns;
        while (*at != *state) at = &(*at)->next;
        *at = (*at)->next;
        mem_free(*state);
    }
    if (what != MHD_CONNECTION_NOTIFY_STARTED) s->deaf = 0;
}

void serve_expect(struct server *s, struct MHD_Connection *c, int seconds) {
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct conn *k = info ? info->socket_context : NULL;
    if (k) k->until = seconds ? clock_now() + seconds * 1e-3 * (double)limit_get(LIMIT_PATIENCE, 1000) : 0;
}

/* Closes connections that miss their deadline. MHD's timeout restarts with each byte, so a slow sender would never reach it. */
static void end_the_slow(struct server *s, double now) {
    for (struct conn *k = s->conns; k; k = k->next) {
        if (!k->until || now < k->until) continue;
        k->until = 0;
        shutdown(k->fd, SHUT_RDWR); /* MHD then sees the end */
    }
}

/* Returns false when accepting must pause. */
static bool accept_all(struct server *s, int fd) {
    while (s->connections < (fd == s->fd ? SERVE_CONNECTIONS : SERVE_AT_PORT)) {
        struct sockaddr_storage sa = {0};
        socklen_t size = sizeof sa;
        int c = accept4(fd, (struct sockaddr *)&sa, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (c < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        if (fd == s->fd && !resident_is_us(c)) close(c);
        else mhd.add_connection(s->http, c, (struct sockaddr *)&sa, size); /* closes it on failure */
    }
    return true;
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

/* MHD does not poll suspended connections, so a hangup of a waiting client is detected here. */
static void look_for_hangups(struct server *s, const struct pollfd *fds, int n) {
    for (int i = 0; i < n; i++) {
        if (!(fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
        for (struct ask *x = s->asks; x; x = x->next) {
            if (x->fd != fds[i].fd || !x->conn || !x->suspended || x->hung_up) continue;
            x->hung_up = true;
            serve_wake(x);
        }
    }
}

/* MHD's epoll mode is edge-triggered, and loses a client that writes and closes at once. So MHD lists its descriptors, we poll them
 * and pass the results back. */
struct watch {
    fd_set reads, writes, odd;
    int max;
};
static int watch_begin(struct server *s, struct watch *w, struct pollfd *fds) {
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
static void watch_end(struct server *s, struct watch *w, const struct pollfd *fds, int n) {
    FD_ZERO(&w->odd);
    for (int i = 0; i < n; i++) {
        if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR))) FD_CLR(fds[i].fd, &w->reads);
        if (!(fds[i].revents & (POLLOUT | POLLHUP | POLLERR))) FD_CLR(fds[i].fd, &w->writes);
    }
    mhd.run_from_select(s->http, &w->reads, &w->writes, &w->odd);
}

static void loop(struct server *s) {
    enum { FIXED = 4, AT_MOST = 1000, NEWS = 256, ENOUGH = 100, RESTS = 10, MOST = FIXED + FD_SETSIZE + SERVE_CONNECTIONS };
    static struct pollfd fds[MOST];
    static struct watch watch;
    double idle = s->app->opts.v[OPT_IDLE].text ? s->app->opts.v[OPT_IDLE].num * 60 : 0, until = 0;
    struct news news;
    int in_vain = 0; /* rounds with only MHD's work: it spins on a line of a chunked body that is longer than its buffer */
    for (;;) {
        MHD_UNSIGNED_LONG_LONG soon;
        double now = clock_now();
        bool hears = s->connections < SERVE_CONNECTIONS && !s->stopping && now >= s->deaf;
        int n = FIXED, wait = mhd.get_timeout(s->http, &soon) == MHD_YES && soon < AT_MOST ? (int)soon : AT_MOST;
        in_vain = wait > 0 ? 0 : in_vain + 1;
        if (in_vain > ENOUGH) wait = RESTS;
        if (idle > 0 && !s->asks && now >= s->last + idle) s->stopping = true;
        if (idle > 0 && s->last + idle - now < wait * 1e-3) wait = (int)((s->last + idle - now) * 1e3) + 1;
        if (s->stopping && !until) {
            until = now + 3;
            serve_cancel(s);
        }
        if (until && (!s->asks || now >= until)) return;
        if (until) wait = wait < 20 ? wait : 20;
        end_the_slow(s, now);
        fds[0] = (struct pollfd){.fd = seat_fd(s->app), .events = POLLIN};
        fds[1] = (struct pollfd){.fd = sig_fd(), .events = POLLIN};
        fds[2] = (struct pollfd){.fd = hears ? s->fd : -1, .events = POLLIN};
        fds[3] = (struct pollfd){.fd = hears && s->connections < SERVE_AT_PORT ? s->port_fd : -1, .events = POLLIN};
        int http = n;
        n += watch_begin(s, &watch, fds + n);
        int waiting = n;
        for (const struct ask *x = s->asks; x && n < MOST; x = x->next)
            if (x->suspended && x->conn && !x->hung_up) fds[n++] = (struct pollfd){.fd = x->fd, .events = POLLRDHUP};
        int ready = poll(fds, (nfds_t)n, wait < 0 ? 0 : wait);
        if (ready < 0 && errno != EINTR) return;
        if (ready) in_vain = 0;
        sig_drain();
        if (sig_interrupted() || sig_terminated()) s->stopping = true;
        look_for_hangups(s, fds + waiting, n - waiting);
        for (int i = 0; i < NEWS && seat_poll(s->app, &news, 0); i++) serve_news(s, &news);
        serve_start(s);
        watch_end(s, &watch, fds + http, waiting - http);
        for (int i = 2; i < FIXED; i++)
            if (fds[i].fd >= 0 && (fds[i].revents & POLLIN) && !accept_all(s, fds[i].fd)) s->deaf = clock_now() + 0.1;
        serve_start(s);
    }
}

/* --- start and end --------------------------------------------------------------------------------------------------- */

static int begin(struct server *s, struct error *e) {
    struct app *a = s->app;
    struct buf line = {0};
    s->most = a->opts.v[OPT_PARALLEL].text ? (int)a->opts.v[OPT_PARALLEL].integer : 16;
    if (!(s->slots = mem_calloc((size_t)s->most, sizeof *s->slots))) return error_set(e, ERR_MEMORY, "no memory");
    if (lib_mhd(e)) return ERR_RUNTIME;
    s->http = mhd.start_daemon(MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, serve_request, s, MHD_OPTION_CONNECTION_LIMIT,
                               (unsigned)SERVE_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVE_HEAD, MHD_OPTION_CONNECTION_TIMEOUT,
                               (unsigned)SERVE_QUIET_S, MHD_OPTION_NOTIFY_COMPLETED, serve_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
                               MHD_OPTION_END);
    if (!s->http) return error_set(e, ERR_RUNTIME, "--serve: libmicrohttpd failed to start");
    int rc = a->opts.v[OPT_LISTEN].text ? listen_port(s, a->opts.v[OPT_LISTEN].text, e) : 0;
    if (!rc) rc = resident_listen(&s->fd, s->path, e);
    if (rc) return rc;
    s->began = s->last = clock_now();
    buf_fmt(&line, "serving %s on %s\n", a->info->name, s->path);
    if (s->port_fd >= 0) buf_fmt(&line, "base URL %s\nkey %s\n", s->url, s->key);
    rc = line.failed ? error_set(e, ERR_MEMORY, "no memory") : out_write(line.data, line.len) ? out_check(e) : 0; /* fail: no reader gets the URL or the key */
    buf_free(&line);
    return rc;
}

static void end(struct server *s) {
    for (struct ask *x = s->asks; x; x = x->next) {
        x->hung_up = true;
        serve_wake(x);
    }
    if (s->fd >= 0) unlink(s->path); /* first, so that no new client connects */
    if (s->http) {
        struct pollfd fds[FD_SETSIZE];
        struct watch w;
        watch_end(s, &w, fds, watch_begin(s, &w, fds)); /* returns resumed connections to MHD */
        mhd.stop_daemon(s->http);
    }
    for (int i = 0; i < s->n_slots; i++) seat_close(&s->slots[i].seat);
    while (s->asks) serve_ask_free(s->asks);
    if (s->fd >= 0) close(s->fd);
    if (s->port_fd >= 0) close(s->port_fd);
    if (s->lock >= 0) close(s->lock);
    mem_free(s->slots);
    buf_free(&s->identity);
}

int serve_run(struct app *a, struct error *e) {
    struct server s = {.app = a, .lock = -1, .fd = -1, .port_fd = -1};
    if (a->opts.v[OPT_RAW].on) return error_set(e, ERR_USAGE, "--serve and --raw cannot be combined: serving needs a chat template");
    int rc = resident_path(s.path, e);
    if (!rc) rc = resident_claim(&s.lock, e);
    if (!rc) rc = app_find_model(a, e);
    if (!rc) rc = resident_identity(a, &s.identity, e);
    if (!rc) rc = app_open_own_text(a, e);
    if (!rc) rc = app_open_own_engine(a, e);
    if (!rc) {
        sig_hold(NULL);
        rc = begin(&s, e);
    }
    out_err_never_waits();
    if (!rc) loop(&s);
    end(&s);
    return rc;
}
