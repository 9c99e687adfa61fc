#pragma once
/* Where answers come from: one row for each kind of engine, and the same for all above it. What is kept of a conversation,
 * what is shown and what is written is the business of the turn and its callers; a row makes a prompt of a conversation,
 * has it answered and tells what comes. All functions belong to one thread, seat_cancel apart. */
#include "engine/engine.h"
#include "tokenizer/chat.h"

struct app;
struct call; /* a request to a server */
struct json;
struct prompt;
struct seat;

/* What an engine tells of the turn that runs at a seat. */
struct news {
    struct seat *seat;
    struct event event; /* its session means nothing here */
    enum part part;     /* EVENT_TOKEN of an engine that has no ids for us: the text that it stands for; valid until the next */
    const char *text;   /* poll. NULL: event.token is the id */
    size_t n;
};

struct backend {
    const char *name;
    bool unsaid;                                        /* what is not given of sampling is not said: NAN, and top_k -1 */
    bool own;                                           /* in this process: ids, logits and the whole KV cache can be seen */
    bool goes_on;                                       /* an answer can go on behind the text that there is of it */
    int (*open_text)(struct app *a, struct error *e);   /* what prompts are made with: cheap */
    int (*open_engine)(struct app *a, struct error *e); /* sets a->info */
    void (*close)(struct app *a);                       /* both; also what was never opened */
    int (*prompt)(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
    /* How many tokens a prompt has. NULL: it does not tell. */
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

/* Where the turns of one conversation run, one after the other: a session of the engine, or requests to a server. */
struct seat {
    struct app *app;
    struct seat *next; /* in app->seats */
    struct session *session;
    struct call *call;
};
int seat_open(struct app *a, struct seat **s, struct error *e);
void seat_close(struct seat **s);
/* One that goes on where another, which is not busy, stands, and shares its memory. NULL where its engine has none to share or no room:
 * whoever opens one then has all read again. */
void seat_fork(struct seat *from, struct seat **s);
/* Queues a turn, as session_submit: r without its tokens, which are the prompt's. With --no-save nothing of it is kept. */
int seat_submit(struct seat *s, const struct prompt *p, const struct request *r, struct error *e);
void seat_cancel(struct seat *s);
/* Under which keys its engine keeps on disk what it reads of the last prompt, as session_kept. Of an engine elsewhere they come with
 * news of kind EVENT_NONE, or never. */
size_t seat_kept(const struct seat *s, const uint64_t **keys);
/* As engine_poll and engine_fd, over all seats of a. */
bool seat_poll(struct app *a, struct news *out, int timeout_ms);
int seat_fd(const struct app *a);
