#pragma once
/* What remote.c and remote_call.c share. */
#include <pthread.h>
#include <stdatomic.h>

#include "cli/lib_curl.h"
#include "cli/remote.h"

enum { REMOTE_TRIES = 6, REMOTE_PATIENCE_S = 600 }; /* how often a busy server is asked; how long it may ask to wait */

struct remote_piece { /* what waits to be told */
    struct remote_piece *next;
    struct news news;
    struct buf text;
};

struct call {          /* one request */
    struct call *next; /* of remote->calls */
    struct remote *remote;
    struct seat *seat;
    CURL *easy;
    struct buf body, line, raw; /* line: of the stream, not whole yet; raw: what an error says */
    bool added;                 /* to the multi handle */
    bool over;                  /* its last news is queued: the thread has no more to do with it */
    _Atomic bool cancelled;
    int tries;
    double submitted, first, last, not_before; /* clock */
    bool said, done;                           /* something of the answer came; its end mark did */
    const char *bad;                           /* what of the answer could not be understood, or NULL */
    bool has_reason;
    enum done_reason reason;
    struct turn_stats stats;
    bool timed;     /* stats' times are the server's own */
    uint64_t *kept; /* [n_kept], under the lock; where it is there it stays */
    size_t n_kept;
    char why[CURL_ERROR_SIZE];
    struct remote_piece *farewell; /* for its last news, which must not fail */
    struct {
        struct buf name, arguments;
    } tools[16];
};

struct remote {
    struct app *app;
    bool resident;
    char *base, *model, *socket, *key; /* http://host/v1; NULL: none */
    struct engine_info info;
    struct curl_slist *headers;
    CURLM *multi;
    pthread_t thread;
    bool started;
    int fd, wake; /* eventfds: readable while news wait; what the thread sleeps on */
    pthread_mutex_t lock;
    bool closing;       /* under the lock, as are the next two, and over and added of calls */
    struct call *calls; /* all that are not freed */
    struct remote_piece *first, **end, *told;
};

/* Sets what all requests have in common. */
int remote_setup(struct remote *r, CURL *easy, const char *path);
/* The message of an error reply, or what its status means. */
int remote_error(const struct remote *r, long status, const struct buf *body, struct error *e);

/* remote_call.c */
int remote_start(struct remote *r, struct error *e);
void remote_stop(struct remote *r);
int remote_submit(struct seat *s, const struct prompt *p, const struct request *q, struct error *e);
void remote_cancel(struct seat *s);
size_t remote_kept(const struct seat *s, const uint64_t **keys);
void remote_seat_close(struct seat *s);
bool remote_poll(struct app *a, struct news *out, int timeout_ms);
