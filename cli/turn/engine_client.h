#pragma once
/* Engine clients: one table of operations (struct backend) for each kind of engine: local, attached, remote. A backend
 * makes a prompt of a conversation, submits it and reports events. Storing, displaying and formatting are left to the
 * turn and its callers. All functions belong to one thread, except engine_client_cancel. */
#include "engine/engine.h"
#include "tokenizer/chat/chat_template.h"

struct app;
struct remote_request; /* a request to a server */
struct json;
struct prompt;
struct engine_client;

/* An event of the turn that runs on a client. */
struct engine_event {
    struct engine_client *client;
    struct event event; /* its session field is unset */
    /* EVENT_TOKEN of an engine without token ids: a piece of the answer, valid until the next poll. text NULL:
     * event.token is the id. */
    enum output_kind part;
    const char *text;
    size_t n;
    /* EVENT_TOKEN of an attached engine: event.token is the id of a token whose text has come; -1: those that came are
     * void */
    bool is_id;
};

struct backend {
    const char *name;
    /* omits sampling options that the user did not set: NAN, and top_k -1 */
    bool omits_unset_sampling;
    /* in this process: token ids, logits and the KV cache are accessible */
    bool is_local;
    bool can_continue;                                  /* can continue a partial answer */
    int (*open_text)(struct app *a, struct error *e);   /* opens what prompts are made with: cheap */
    int (*open_engine)(struct app *a, struct error *e); /* sets a->info */
    void (*close)(struct app *a);                       /* closes both; safe if neither is open */
    int (*make_prompt)(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
    /* Counts the tokens of a prompt. NULL: the engine cannot. */
    int (*count_tokens)(struct app *a, const struct prompt *p, size_t *n, struct error *e);
    int (*client_open)(struct engine_client *s, struct error *e);
    void (*client_close)(struct engine_client *s); /* cancels its turn first */
    int (*submit)(struct engine_client *s, const struct prompt *p, const struct request *r, struct error *e);
    void (*cancel)(struct engine_client *s); /* async-signal-safe */
    size_t (*disk_keys)(const struct engine_client *s, const uint64_t **keys);
    bool (*poll)(struct app *a, struct engine_event *out, int timeout_ms);
    int (*fd)(const struct app *a); /* readable while events wait */
};

/* Runs the turns of one conversation in sequence: a session of the local engine, or requests to a server. */
struct engine_client {
    struct app *app;
    struct engine_client *next; /* in app->clients */
    struct session *session;
    struct remote_request *request;
};
int engine_client_open(struct app *a, struct engine_client **s, struct error *e);
void engine_client_close(struct engine_client **s);
/* Opens a client that shares the state and memory of `from`, which must be idle. *s is NULL if the engine cannot share
 * or has no room; a new client then prefills the whole conversation. */
void engine_client_fork(struct engine_client *from, struct engine_client **s);
/* Queues a turn, as session_submit; r has no tokens, they come from the prompt. With --no-save nothing is stored on
 * disk. */
int engine_client_submit(struct engine_client *s, const struct prompt *p, const struct request *r, struct error *e);
void engine_client_cancel(struct engine_client *s);
/* sig_defer; SIGINT, SIGTERM and SIGHUP cancel s (may be NULL) */
void engine_client_defer_signals(struct engine_client *s);
/* Returns the keys under which the engine caches the last prompt on disk, as session_disk_keys. An attached engine
 * reports them with an EVENT_NONE; a remote one never does. */
size_t engine_client_disk_keys(const struct engine_client *s, const uint64_t **keys);
/* As engine_poll and engine_event_fd, over all clients of a. */
bool engine_client_poll(struct app *a, struct engine_event *out, int timeout_ms);
int engine_client_fd(const struct app *a);
