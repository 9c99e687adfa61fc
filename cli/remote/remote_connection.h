#pragma once
/* A connection to a server, and its requests (remote_request.c). */
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "cli/remote/lib_curl.h"
#include "cli/turn/engine_client.h"

enum {
    REMOTE_MAX_TRIES = 6,           /* attempts against a busy server */
    REMOTE_MAX_RETRY_AFTER_S = 600, /* longest Retry-After that is honoured */
    REMOTE_MAX_CALLS = 16,          /* tool calls of an answer */
    REMOTE_SILENCE_S = 1800,        /* longest wait for any data: a prompt of an hour's reading is sent in parts */
    REMOTE_TOKEN_BYTES = 128,       /* most bytes of an answer per token of its limit, */
    REMOTE_SPARE_BYTES = 1 << 20,   /* beyond these */
    REMOTE_ANSWER_BYTES = 64 << 20  /* and without a limit */
};

struct remote_event { /* a queued event */
    struct remote_event *next;
    struct engine_event event;
    struct buf text;
};

struct remote_request {
    struct remote_request *next; /* in remote->requests */
    struct remote *remote;
    struct engine_client *client;
    CURL *easy;
    /* body: of the request; line: incomplete line of the stream; error_body: of an error reply */
    struct buf body, line, error_body;
    bool in_multi; /* added to the multi handle */
    bool finished; /* its last event is queued: the thread no longer uses it */
    _Atomic bool cancelled;
    int tries;
    double submitted, first, last, not_before; /* clock: of the request, its first and last text, the next try */
    bool has_text, has_end_mark;               /* some of the answer arrived; its end mark arrived */
    const char *parse_error;                   /* why the answer could not be parsed, or NULL */
    int max_tokens;                            /* limit that the request named; less than 1: none */
    size_t n_received;                         /* bytes of the answer's text, thinking and calls */
    double heard;                              /* clock: when it was sent, or data came last */
    bool has_reason;
    enum done_reason reason;
    struct turn_stats stats;
    bool has_server_times; /* stats' times are the server's */
    uint64_t *disk_keys;   /* disk-cache keys, [n_disk_keys], written once under the lock */
    size_t n_disk_keys;
    char curl_error[CURL_ERROR_SIZE];
    struct remote_event *last_event; /* preallocated for the last event, which must not fail */
    struct {
        struct buf name, arguments;
    } tools[REMOTE_MAX_CALLS];
};

struct remote {
    struct app *app;
    bool resident, is_local;           /* is_local: the server is on the loopback interface */
    char *base, *model, *socket, *key; /* http://host/v1; key: NULL: none */
    char *host;                        /* NULL: the resident engine */
    struct engine_info info;
    struct curl_slist *headers;
    CURLM *multi;
    pthread_t thread;
    bool started;
    int events_fd, wake_fd; /* eventfds: fd is readable while events are queued; wake interrupts the thread's poll */
    pthread_mutex_t lock;
    /* under the lock, as are requests, the queue, and finished and in_multi of requests */
    bool closing;
    struct remote_request *requests;                           /* all that are not freed */
    struct remote_event *queue_head, **queue_tail, *delivered; /* delivered: the event that the last poll returned */
};

/* True for localhost and for addresses of the loopback interface; host as curl returns it. */
bool remote_connection_is_loopback(const char *host);
/* Sets the options common to all requests. Proxies get no request for this machine. */
int remote_connection_setup(struct remote *r, CURL *easy, const char *path);
/* Sets e to the message of an error reply, or to the meaning of its status. */
int remote_connection_error(const struct remote *r, long status, const struct buf *body, struct error *e);

/* remote_body.c: appends the body of a request; *b stays failed if there is no memory. */
void remote_body_put(const struct remote *r, const struct prompt *p, const struct request *q, struct buf *b);

/* remote_request.c: requests that run */
int remote_request_start_thread(struct remote *r, struct error *e);
void remote_request_stop_thread(struct remote *r);
int remote_request_submit(struct engine_client *s, const struct prompt *p, const struct request *q, struct error *e);
void remote_request_cancel(struct engine_client *s);
size_t remote_request_disk_keys(const struct engine_client *s, const uint64_t **keys);
void remote_request_close(struct engine_client *s);
bool remote_request_poll(struct app *a, struct engine_event *out, int timeout_ms);
