#pragma once
/* --serve: serves the chat-completions protocol on a Unix socket and, with --listen, on a local port. One thread handles sockets,
 * engine events and signals, and never blocks on one of them. Clients are identified by their job at the Unix socket, by the program's
 * name at the port, and by the request's own "user"; they are served round-robin (base/fair_queue.h). Texts are never logged. */

#include "cli/api.h"
#include "cli/lib_mhd.h"
#include "cli/serve.h"
#include "engine/base/fair.h"

enum {
    SERVE_CONNECTIONS = 512, /* at once; further ones wait to be accepted */
    SERVE_AT_PORT = 256,     /* the port accepts none above this number, which reserves connections for the owner's socket */
    SERVE_WAITING = 256,     /* requests that may wait for a session */
    SERVE_SHARE = 3,         /* a client may have this many times what remains of the two limits above: one alone gets three quarters, and some always remain */
    SERVE_KEPT = 8,          /* one in this many sessions is reserved: no client may hold all */
    SERVE_HEAD = 32 << 10,   /* bytes of a request's line and headers */
    SERVE_BODY = 16 << 20,   /* bytes of a request's body */
    SERVE_BODIES = 256 << 20, /* total of bodies being read or waiting */
    SERVE_QUIET_S = 60,       /* an idle connection is closed after this time */
    SERVE_HEAD_S = 60,        /* limit for the whole head of a request */
    SERVE_MANY_S = 2,         /* the same for a client beyond its share of connections */
    SERVE_BODY_S = 300,       /* limit for the whole body, after the head */
    SERVE_KEY = 65,
};

/* One request, from its first byte until its connection is done with it and its turn has ended. */
enum ask_state { ASK_READING, ASK_WAITING, ASK_RUNNING, ASK_OVER };
struct ask {
    struct server *server;
    struct ask *next;            /* in server->requests */
    struct MHD_Connection *conn; /* NULL: closed */
    int fd;
    bool local;   /* over the Unix socket */
    bool many;    /* on a connection beyond its client's share: refused, then closed */
    pid_t pid;    /* client process; 0: unknown */
    uint64_t job; /* identifies the client, apart from the request's own "user" */
    enum ask_state state;
    const struct route *route;
    int status;          /* set when refused: the rest of the body is dropped */
    const char *allowed; /* the method that status 405 names */
    struct buf body, refusal;
    size_t dropped;                        /* bytes */
    bool suspended, hung_up, begun, ended; /* begun, ended: the first chunk, with the role, and the last chunk are formatted */
    struct api_request request;
    struct api_answer answer;
    struct prompt prompt;
    size_t n_prompt; /* in tokens; the prompt is freed when the turn begins */
    struct turn turn;
    struct slot *slot;     /* while it runs */
    struct fair_turn wait; /* its client and, while it waits, its place in the queue */
    struct {               /* generated, not formatted yet: formatted when the connection can send, so that a slow reader costs few bytes */
        struct buf text;
        enum part part;
    } said[8];
    size_t n_said;
    char note[96];    /* progress comment of the stream; empty: none */
    struct buf aside; /* other comments: disk-cache keys; the dropped document */
    struct buf out;   /* formatted, being sent */
    size_t sent;
};

struct conn {
    struct conn *next;
    int fd;
    pid_t pid, job; /* 0: unknown */
    bool many;
    double until; /* deadline for complete input; 0: none expected */
};

struct slot { /* a session of the engine, with its KV cache */
    struct seat *seat;
    struct ask *ask; /* NULL: idle */
    uint64_t used;
    uint64_t said; /* hash of the messages of its last request */
};

struct server {
    struct app *app;
    struct MHD_Daemon *http;
    int lock, fd, port_fd; /* port_fd: -1 without --listen */
    char path[108], url[96], key[SERVE_KEY];
    struct buf identity;
    struct ask *asks;
    struct fair waiting;
    struct slot *slots;
    int n_slots, most; /* limit */
    int connections;
    struct conn *conns;
    double deaf; /* accepting failed: retry at this time, or when a connection ends */
    size_t bodies;
    uint64_t orders, answered;
    double began, last; /* last: time of the last request or answer */
    bool stopping;
};

/* serve_http.c: requests and replies */
enum MHD_Result serve_request(void *server, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *upload, size_t *n,
                              void **state);
void serve_completed(void *server, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why);
void serve_wake(struct ask *x); /* there is something to send */
/* serve.c: sets the deadline, in seconds, for complete input on a connection; 0: none. */
void serve_expect(struct server *s, struct MHD_Connection *c, int seconds);

/* serve_turns.c: sessions and their turns */
int serve_prompt(struct ask *x, struct error *e);  /* parses the body and makes the prompt */
int serve_enqueue(struct ask *x, struct error *e); /* the same, and queues it for a session */
void serve_news(struct server *s, const struct news *news);
void serve_start(struct server *s);  /* starts waiting requests while sessions are free */
void serve_cancel(struct server *s); /* cancels all: the server ends */
void serve_leave(struct ask *x);     /* its connection is closed */
void serve_ask_free(struct ask *x);
/* Formats generated text into x->out; false: there is none. */
bool serve_chunk(struct ask *x);
void serve_status(struct server *s, struct buf *out);
