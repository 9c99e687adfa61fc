#pragma once
/* --serve: the engine stays, and answers the chat-completions protocol on a Unix socket and, with --listen, on a port of this
 * machine. One thread does it all: it takes what sockets, the engine and signals have to tell, and never waits for one of
 * them alone. Clients are told apart by who connects, the job at the Unix socket and the program's name at the port, and by the
 * request's own "user"; they take turns (base/fair.h). What they say is never logged. */

#include "cli/api.h"
#include "cli/lib_mhd.h"
#include "cli/serve.h"
#include "engine/base/fair.h"

enum {
    SERVE_CONNECTIONS = 512,  /* at once; those after them wait to be accepted */
    SERVE_AT_PORT = 256,      /* a port accepts none while there are so many: whoever can reach it, the owner's socket has room */
    SERVE_WAITING = 256,      /* requests that may wait for a session */
    SERVE_SHARE = 3,          /* a client may have so many times what is left of these two: one alone three quarters, and there is always room for another */
    SERVE_KEPT = 8,           /* one of so many sessions is not given to who has all others */
    SERVE_HEAD = 32 << 10,    /* bytes of a request's line and headers */
    SERVE_BODY = 16 << 20,    /* bytes of a request's body */
    SERVE_BODIES = 256 << 20, /* of all bodies that are being read or waiting */
    SERVE_QUIET_S = 60,       /* a connection on which nothing moves, though it could, is closed */
    SERVE_HEAD_S = 60,        /* and one whose next request has no whole head by then, however it moves */
    SERVE_MANY_S = 2,         /* of a client that has more than its share of connections */
    SERVE_BODY_S = 300,       /* or no whole body so long after that */
    SERVE_KEY = 65,
};

/* One request from its first byte until its connection has no more use for it and its turn is over. */
enum ask_state { ASK_READING, ASK_WAITING, ASK_RUNNING, ASK_OVER };
struct ask {
    struct server *server;
    struct ask *next;            /* of all */
    struct MHD_Connection *conn; /* NULL: it is gone */
    int fd;
    bool local;   /* came by the Unix socket */
    bool many;    /* on a connection beyond its client's share: refused, and that is closed */
    pid_t pid;    /* whose it is; 0: not known */
    uint64_t job; /* its client but for the request's own "user" */
    enum ask_state state;
    const struct route *route;
    int status;          /* of a refusal: what else comes of the body is dropped */
    const char *allowed; /* the method that status 405 tells */
    struct buf body, refusal;
    size_t dropped;                        /* bytes */
    bool suspended, hung_up, begun, ended; /* begun, ended: the first chunk, which says who speaks, and the last are made */
    struct api_request request;
    struct api_answer answer;
    struct prompt prompt;
    size_t n_prompt; /* its tokens; prompt itself is gone when its turn begins */
    struct turn turn;
    struct slot *slot;     /* while it runs */
    struct fair_turn wait; /* its client and, while it waits, when its turn comes */
    struct {               /* said, and not sent yet: made into chunks when there is room, so that a slow reader holds few bytes */
        struct buf text;
        enum part part;
    } said[8];
    size_t n_said;
    char note[96];    /* a comment of the stream: how far the prompt is read; empty: none */
    struct buf aside; /* others: the keys of the prompt on disk; that it goes without its document */
    struct buf out;   /* made, and being sent */
    size_t sent;
};

struct conn {
    struct conn *next;
    int fd;
    pid_t pid, job; /* 0: not known */
    bool many;
    double until; /* what a client sends is to be whole by then; 0: nothing is to come */
};

struct slot { /* a session of the engine, with what its cache holds */
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
    int n_slots, most; /* at once */
    int connections;
    struct conn *conns;
    double deaf; /* nothing can be accepted until then, or a connection ends */
    size_t bodies;
    uint64_t orders, answered;
    double began, last; /* last: something was asked or answered */
    bool stopping;
};

/* serve_http.c: requests and their replies */
enum MHD_Result serve_request(void *server, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *upload, size_t *n,
                              void **state);
void serve_completed(void *server, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why);
void serve_wake(struct ask *x); /* there is something to send */
/* serve.c: what comes on a connection is to be whole in so many seconds; 0: nothing has to come. */
void serve_expect(struct server *s, struct MHD_Connection *c, int seconds);

/* serve_turns.c: sessions and what runs on them */
int serve_prompt(struct ask *x, struct error *e);  /* the body is there: reads it, and makes the prompt */
int serve_enqueue(struct ask *x, struct error *e); /* the same, and it waits for a session */
void serve_news(struct server *s, const struct news *news);
void serve_start(struct server *s);  /* those that wait, while there are sessions */
void serve_cancel(struct server *s); /* all of them: the server ends */
void serve_leave(struct ask *x);     /* nobody waits for it any more */
void serve_ask_free(struct ask *x);
/* Forms what is said and not sent into x->out; false: there is nothing. */
bool serve_chunk(struct ask *x);
void serve_status(struct server *s, struct buf *out);
