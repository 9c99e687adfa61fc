#pragma once
/* Engine clients: one table of operations (struct backend) for each kind of engine: local, attached, remote. A backend makes a
 * prompt of a conversation, submits it and reports events. Storing, displaying and formatting are left to the turn and its callers.
 * All functions belong to one thread, except engine_client_cancel. */
#include "engine/engine.h"
#include "tokenizer/chat.h"

struct app;
struct call; /* a request to a server */
struct json;
struct prompt;
struct seat;

/* An event of the turn that runs on a client. */
struct news {
    struct seat *seat;
    struct event event; /* its session field is unset */
    enum part part;     /* EVENT_TOKEN of an engine without token ids: the text, valid until the next poll. NULL: event.token is the id. */
    const char *text;
    size_t n;
};

struct backend {
    const char *name;
    bool unsaid;                                        /* omits sampling options that the user did not set: NAN, and top_k -1 */
    bool own;                                           /* in this process: token ids, logits and the KV cache are accessible */
    bool goes_on;                                       /* can continue a partial answer */
    int (*open_text)(struct app *a, struct error *e);   /* opens what prompts are made with: cheap */
    int (*open_engine)(struct app *a, struct error *e); /* sets a->info */
    void (*close)(struct app *a);                       /* closes both; safe if neither is open */
    int (*prompt)(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
    /* Counts the tokens of a prompt. NULL: the engine does not tell. */
    int (*count)(struct app *a, const struct prompt *p, size_t *n, struct error *e);
    int (*seat_open)(struct seat *s, struct error *e);
    void (*seat_close)(struct seat *s); /* cancels its turn first */
    int (*submit)(struct seat *s, const struct prompt *p, const struct request *r, struct error *e);
    void (*cancel)(struct seat *s); /* async-signal-safe */
    size_t (*kept)(const struct seat *s, const uint64_t **keys);
    bool (*poll)(struct app *a, struct news *out, int timeout_ms);
    int (*fd)(const struct app *a);
};
extern const struct backend backend_local;

/* Runs the turns of one conversation in sequence: a session of the local engine, or requests to a server. */
struct seat {
    struct app *app;
    struct seat *next; /* in app->clients */
    struct session *session;
    struct call *call;
};
int seat_open(struct app *a, struct seat **s, struct error *e);
void seat_close(struct seat **s);
/* Opens a client that shares the state and memory of `from`, which must be idle. *s is NULL if the engine cannot share or has no
 * room; a new client then prefills the whole conversation. */
void seat_fork(struct seat *from, struct seat **s);
/* Queues a turn, as session_submit; r has no tokens, they come from the prompt. With --no-save nothing is stored on disk. */
int seat_submit(struct seat *s, const struct prompt *p, const struct request *r, struct error *e);
void seat_cancel(struct seat *s);
/* Returns the keys under which the engine caches the last prompt on disk, as session_kept. An attached engine reports them with
 * an EVENT_NONE; a remote one never does. */
size_t seat_kept(const struct seat *s, const uint64_t **keys);
/* As engine_poll and engine_fd, over all clients of a. */
bool seat_poll(struct app *a, struct news *out, int timeout_ms);
int seat_fd(const struct app *a);
