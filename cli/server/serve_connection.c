/* The connections of --serve: accepting, deadlines, hangups, and waking a suspended one. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/test_limits.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"

void serve_connection_wake(struct http_request *x) {
    if (!x->suspended || !x->conn) return;
    const bool is_whole = !x->request.stream && x->state > HTTP_REQUEST_LOADING; /* one that waits for its end */
    if (is_whole && x->state != HTTP_REQUEST_DONE && x->state != HTTP_REQUEST_REFUSED && !x->hung_up) return;
    x->suspended = false;
    mhd.resume_connection(x->conn);
}

static struct http_connection *of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void serve_connection_set_key(struct MHD_Connection *c) {
    struct http_connection *k = of(c);
    if (k) k->has_key = true;
}

void serve_connection_set_deadline(struct MHD_Connection *c, int seconds) {
    struct http_connection *k = of(c);
    if (k)
        k->deadline_s =
            seconds ? clock_now() + seconds * 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000) : 0;
}

/* True for a connection to the Unix socket, which only its owner can make. */
static bool is_of_socket(int fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
}

/* True if a client has more than its share of connections. All clients at the port count as one, which has its own
 * limit. */
static bool exceeds_share(const struct server *s, pid_t job) {
    int n = 0;
    for (const struct http_connection *k = s->connections; k; k = k->next) n += k->job == job;
    return job && n > SERVE_CLIENT_SHARE * (SERVE_MAX_CONNECTIONS - s->n_connections);
}

void serve_connection_notify(void *server, struct MHD_Connection *c, void **state,
                             enum MHD_ConnectionNotificationCode what) {
    struct server *s = server;
    s->n_connections += what == MHD_CONNECTION_NOTIFY_STARTED ? 1 : -1;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct http_connection *k = *state = mem_calloc(1, sizeof *k);
        if (!k) return; /* MHD's own timeout remains */
        *k = (struct http_connection){.next = s->connections, .fd = info ? info->connect_fd : -1};
        k->pid = resident_peer(k->fd, &k->job);
        k->has_key = is_of_socket(k->fd);
        s->connections = k;
        k->over_share = exceeds_share(s, k->job);
        serve_connection_set_deadline(c, k->over_share ? SERVE_OVER_SHARE_S
                                         : k->has_key  ? SERVE_HEAD_S
                                                       : SERVE_PORT_HEAD_S);
    } else if (*state) {
        struct http_connection **at = &s->connections;
        while (*at != *state) at = &(*at)->next;
        *at = (*at)->next;
        mem_free(*state);
    }
    if (what != MHD_CONNECTION_NOTIFY_STARTED) s->accept_again_s = 0;
}

/* Closes connections that miss their deadline. MHD's timeout restarts with each byte, so a slow sender would never
 * reach it. */
void serve_connection_close_slow(struct server *s, double now) {
    for (struct http_connection *k = s->connections; k; k = k->next) {
        if (!k->deadline_s || now < k->deadline_s) continue;
        k->deadline_s = 0;
        shutdown(k->fd, SHUT_RDWR); /* MHD then sees the end */
    }
}

/* Returns the oldest connection of the port whose client has not shown the key; NULL: none. */
static struct http_connection *oldest_without_key(const struct server *s) {
    struct http_connection *oldest = NULL;
    for (struct http_connection *k = s->connections; k; k = k->next)
        if (!k->has_key && !k->evicted) oldest = k; /* new ones come first */
    return oldest;
}

bool serve_connection_has_room(const struct server *s) {
    return s->n_connections < SERVE_MAX_PORT_CONNECTIONS || oldest_without_key(s);
}

/* Makes room at a full port, so that half-open connections do not block it. */
static void evict(struct server *s) {
    struct http_connection *k = oldest_without_key(s);
    if (!k) return;
    k->evicted = true;
    shutdown(k->fd, SHUT_RDWR); /* MHD then sees the end */
}

/* Returns false when accepting must pause. */
bool serve_connection_accept(struct server *s, int fd) {
    if (fd != s->fd && s->n_connections >= SERVE_MAX_PORT_CONNECTIONS) evict(s);
    while (s->n_connections < (fd == s->fd ? SERVE_MAX_CONNECTIONS : SERVE_MAX_PORT_CONNECTIONS)) {
        struct sockaddr_storage sa = {0};
        socklen_t size = sizeof sa;
        int c = accept4(fd, (struct sockaddr *)&sa, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (c < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        if (fd == s->fd && !resident_peer_is_user(c)) close(c);
        else mhd.add_connection(s->http, c, (struct sockaddr *)&sa, size); /* closes it on failure */
    }
    return true;
}

/* MHD does not poll suspended connections, so a hangup of a waiting client is detected here. On a Unix socket a client
 * that is gone is told from one that has only closed its sending half. */
static bool is_gone(struct http_request *x, short revents) {
    x->half_closed = true; /* at the port serve_stream_break_silence asks which it is */
    return revents & (POLLHUP | POLLERR);
}
void serve_connection_detect_hangups(struct server *s, const struct pollfd *fds, int n) {
    for (int i = 0; i < n; i++) {
        if (!(fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
        for (struct http_request *x = s->requests; x; x = x->next) {
            if (x->fd != fds[i].fd || !x->conn || !x->suspended || x->hung_up || !is_gone(x, fds[i].revents)) continue;
            x->hung_up = true;
            serve_connection_wake(x);
        }
    }
}
