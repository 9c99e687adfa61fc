#pragma once
/* Shared by remote.c and remote_request.c. */
#include <pthread.h>
#include <stdatomic.h>

#include "cli/lib_curl.h"
#include "cli/remote.h"

enum { REMOTE_TRIES = 6, REMOTE_PATIENCE_S = 600 }; /* attempts against a busy server; longest Retry-After that is honoured */

struct remote_piece { /* a queued event */
    struct remote_piece *next;
    struct news news;
    struct buf text;
};

struct call {          /* one request */
    struct call *next; /* in remote->requests */
    struct remote *remote;
    struct seat *seat;
    CURL *easy;
    struct buf body, line, raw; /* line: incomplete line of the stream; raw: body of an error */
    bool added;                 /* added to the multi handle */
    bool over;                  /* its last event is queued: the thread no longer uses it */
    _Atomic bool cancelled;
    int tries;
    double submitted, first, last, not_before; /* clock */
    bool said, done;                           /* some of the answer arrived; its end mark arrived */
    const char *bad;                           /* why the answer could not be parsed, or NULL */
    bool has_reason;
    enum done_reason reason;
    struct turn_stats stats;
    bool timed;     /* stats' times are the server's */
    uint64_t *kept; /* disk-cache keys, [n_kept], written once under the lock */
    size_t n_kept;
    char why[CURL_ERROR_SIZE];
    struct remote_piece *farewell; /* preallocated for the last event, which must not fail */
    struct {
        struct buf name, arguments;
    } tools[16];
};

struct remote {
    struct app *app;
    bool resident;
    char *base, *model, *socket, *key; /* http://host/v1; key: NULL: none */
    struct engine_info info;
    struct curl_slist *headers;
    CURLM *multi;
    pthread_t thread;
    bool started;
    int fd, wake; /* eventfds: fd is readable while events are queued; wake interrupts the thread's poll */
    pthread_mutex_t lock;
    bool closing;       /* under the lock, as are the next two members, and over and added of requests */
    struct call *calls; /* all that are not freed */
    struct remote_piece *first, **end, *told;
};

/* Sets the options common to all requests. */
int remote_setup(struct remote *r, CURL *easy, const char *path);
/* Sets e to the message of an error reply, or to the meaning of its status. */
int remote_error(const struct remote *r, long status, const struct buf *body, struct error *e);

/* remote_call.c */
int remote_start(struct remote *r, struct error *e);
void remote_stop(struct remote *r);
int remote_submit(struct seat *s, const struct prompt *p, const struct request *q, struct error *e);
void remote_cancel(struct seat *s);
size_t remote_kept(const struct seat *s, const uint64_t **keys);
void remote_seat_close(struct seat *s);
bool remote_poll(struct app *a, struct news *out, int timeout_ms);
