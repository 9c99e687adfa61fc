#pragma once
/* --serve: serves the chat-completions protocol on a Unix socket and, with --listen, on a local port. One thread
 * handles sockets, engine events and signals, and never blocks on one of them. Clients are identified by their job at
 * the Unix socket, by the program's name at the port, and by the request's own "user"; they are served round-robin
 * (base/fair_queue.h). Texts are never logged. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/fair_queue.h"
#include "cli/app.h"
#include "cli/server/api.h"
#include "cli/server/lib_mhd.h"
#include "tokenizer/chat/tool_stream.h"

enum {
    SERVE_MAX_CONNECTIONS = 512, /* at once; further ones wait to be accepted */
    /* the port accepts none above this number, which reserves connections for the owner's socket */
    SERVE_MAX_PORT_CONNECTIONS = 256,
    SERVE_MAX_WAITING = 256, /* requests that may wait for a session */
    /* a client may have this many times what remains of the two limits above: one alone gets three quarters, and some
       always remain */
    SERVE_CLIENT_SHARE = 3,
    SERVE_RESERVED_SHARE = 8,           /* for this many answers at once there is one more session for another client */
    SERVE_HEAD_BYTES = 32 << 10,        /* bytes of a request's line and headers */
    SERVE_BODY_BYTES = 16 << 20,        /* bytes of a request's body */
    SERVE_ALL_BODIES_BYTES = 256 << 20, /* total of bodies being read or waiting */
    SERVE_IDLE_S = 60,                  /* an idle connection is closed after this time */
    SERVE_HEAD_S = 60,                  /* limit for the whole head of a request */
    SERVE_PORT_HEAD_S = 10,             /* the same for a client of the port that has not shown the key */
    SERVE_OVER_SHARE_S = 2,             /* the same for a client beyond its share of connections */
    SERVE_BODY_S = 300,                 /* limit for the whole body, after the head */
    SERVE_SILENT_S = 5,                 /* a stream that has sent nothing for this time says that it is still here */
    SERVE_KEY_SIZE = 257,
};

/* A model. Without --max-models there is one, open from the start to the end. With it the models of --models are opened
 * when a request names them, on threads of their own, and closed for others or when they have been unused. */
struct http_request;
enum serve_job { SERVE_JOB_NONE, SERVE_JOB_TEXT, SERVE_JOB_ENGINE, SERVE_JOB_CLOSE };
struct serve_model {
    char name[304];
    struct app *app;         /* its engine is NULL unless is_open; its info is NULL before has_text */
    struct app *own;         /* the same, if it belongs to the model */
    struct app *job_app;     /* the copy with which a job opens or closes the engine */
    bool has_text;           /* tokenizer and template are open, from the first request to the end */
    bool is_open;            /* the engine, too */
    bool is_wanted;          /* opened without a request, at the start */
    bool is_draining;        /* begins no answers: it is to be closed */
    bool needs_memory;       /* did not fit beside others */
    bool is_outdated;        /* its engine opens again, as soon as its answers have ended */
    struct fair_queue queue; /* answers that wait for a session of it */
    double keep_s, idle_s;   /* keep_s: closed when unused for this time; negative: never. idle_s: unused since */
    uint64_t last_used;
    long long opened_at; /* seconds since 1970 */
    uint64_t bytes;      /* size of its files */
    /* the job of its thread */
    enum serve_job job;
    pthread_t thread;
    atomic_bool done, cancelled;
    int event_fd; /* gets a signal when the job is done */
    int rc;
    struct error error;
    /* facts for lists while it is closed */
    struct engine_info facts;
    char type[64];
};

/* One answer to a request. */
enum http_choice_state { HTTP_CHOICE_WAITING, HTTP_CHOICE_RUNNING, HTTP_CHOICE_DONE };
struct http_choice {
    struct http_request *request;
    int index;
    enum http_choice_state state;
    struct fair_entry queue_entry; /* its client and, while it waits, its place in the queue */
    struct serve_session *session; /* while it runs */
    struct prompt *prompt;         /* of the request; NULL: the turn has begun */
    size_t n_prompt;               /* in tokens */
    struct turn turn;
    struct tool_calls calls; /* calls of the ended turn */
    /* generated, not formatted yet: formatted when the connection can send, so that a slow reader costs few bytes */
    struct {
        struct buf text;
        enum output_kind part;
    } generated[8];
    size_t n_generated, n_logprobs_sent, n_ids_sent;
    /* in a stream: the calls as they are written; NULL: none yet. Those that were formatted, and of the last one the
     * bytes of its arguments */
    struct tool_stream *tool_stream;
    size_t n_calls_begun, n_calls_ended, n_arguments_sent;
    bool calls_grew; /* since they were formatted */
    bool finished;   /* its end is formatted */
};

/* One request, from its first byte until its connection is done with it and its turns have ended. */
enum http_request_state {
    HTTP_REQUEST_READING,   /* or its model's tokenizer and template are being opened */
    HTTP_REQUEST_LOADING,   /* it asks for nothing but that its model is open */
    HTTP_REQUEST_COMPILING, /* the grammar of its answer, or opening its images, after which it is READING again */
    HTTP_REQUEST_REFUSED,   /* by http_request.refused */
    HTTP_REQUEST_ANSWERING,
    HTTP_REQUEST_DONE
};
struct http_request {
    struct server *server;
    struct http_request *next;   /* in server->requests */
    struct MHD_Connection *conn; /* NULL: closed */
    int fd;
    bool local;          /* over the Unix socket */
    bool over_share;     /* on a connection beyond its client's share: refused, then closed */
    pid_t pid;           /* client process; 0: unknown */
    uint64_t client_job; /* identifies the client, apart from the request's own "user" */
    enum http_request_state state;
    const struct route *route;
    int status;  /* set when refused: the rest of the body is dropped */
    int replied; /* status of the reply */
    double began_s;
    char line[80];             /* method and path, for the log */
    const char *content_type;  /* the reply's; NULL: JSON */
    struct serve_model *model; /* NULL: not chosen */
    bool waits_for_model;      /* while READING */
    uint64_t order;            /* while LOADING: arrival number */
    const struct api_protocol *protocol;
    const char *allowed_method; /* the method that status 405 names */
    struct buf body, refusal;
    size_t dropped_bytes; /* bytes of the body after a refusal */
    /* half_closed: the client only reads. _made: the stream's beginning and end are formatted. old: before 1.1 */
    bool suspended, hung_up, half_closed, first_chunk_made, last_chunk_made, is_old_http;
    struct api_request request;
    bool is_parsed;                  /* request is what the body says */
    struct compile_job *job;         /* compiles the grammar of the answer, or opens images; NULL: none */
    struct source_grammars grammars; /* of the answer */
    struct error refused;
    struct api_answer answer;
    struct prompt prompt;
    struct prompt *more; /* [request.n_prompts - 1]: the prompts after the first; all are freed when all turns have
                            begun */
    bool document_dropped;
    struct http_choice *choices; /* [n_choices]; none before the request is queued */
    int n_choices, n_begun, n_done;
    const struct http_choice *failed; /* the first whose turn failed; NULL: none */
    char progress_comment[96];        /* progress comment of the stream; empty: none */
    struct buf comments;              /* other comments: disk-cache keys; the dropped document */
    struct buf formatted;             /* part of the stream that is being sent */
    double sent_s, probed_s;          /* time of the stream's last bytes, and of the last probe */
    size_t sent_bytes;
};

struct http_connection {
    struct http_connection *next;
    int fd;
    pid_t pid, job; /* 0: unknown */
    bool over_share;
    bool has_key;      /* may stay when the port is full: it has shown the key, or is not of the port */
    bool evicted;      /* shut down in favour of a new one; MHD will close it */
    double deadline_s; /* deadline for complete input; 0: none expected */
};

struct serve_session { /* a session of the engine, with its KV cache */
    struct engine_client *client;
    struct http_choice *choice; /* NULL: idle */
    uint64_t last_used;
    uint64_t messages_hash; /* hash of the messages of its last request, without the begun answer */
    struct buf answer;      /* text of its last answer, which began with n_begun bytes of the request */
    size_t n_begun;
};

struct server {
    struct app *app; /* the options; without --max-models also the model */
    struct MHD_Daemon *http;
    int lock, fd, port_fd; /* port_fd: -1 without --listen */
    char path[108], url[96], key[SERVE_KEY_SIZE];
    bool has_fixed_key; /* from HEARTH_API_KEY; not printed */
    struct buf identity;
    struct http_request *requests;
    struct serve_model **models;
    size_t n_models, cap_models;
    struct serve_model *default_model;
    bool has_models;     /* --max-models: requests choose among models */
    uint64_t max_models; /* a number of them, or bytes */
    double keep_s, listed_s;
    int model_fd;                    /* readable when a model's job is done */
    struct gpu_check *gpus;          /* NULL: no GPU was checked */
    struct fair_queue compile_queue; /* of jobs that wait for a thread */
    struct compile_job *jobs;        /* those that have one */
    atomic_int n_compile_waiting;
    int compile_fd;           /* readable when a job is done */
    double fast_s, fast_at_s; /* time at full priority that jobs may use, as of fast_at_s */
    struct serve_session *sessions;
    int n_sessions, max_sessions, parallel; /* parallel: most that one client may hold */
    int n_connections;
    struct http_connection *connections;
    double accept_again_s; /* accepting failed: retry at this time, or when a connection ends */
    size_t body_bytes;
    uint64_t n_orders, n_answered; /* n_orders: numbers queue entries and uses of sessions in order */
    struct {                       /* of ended turns */
        uint64_t failed, prompt_tokens, cached_tokens, answer_tokens, decoded_tokens;
        double ttft_s, decode_s;
    } totals;
    long long opened_at;               /* seconds since 1970 */
    double started_s, last_activity_s; /* last: time of the last request or answer */
    bool stopping;
    char noted_tool[60]; /* type of a tool that was left out and noted on stderr */
};

/* serve_connection.c: connections */
void serve_connection_notify(void *server, struct MHD_Connection *c, void **state,
                             enum MHD_ConnectionNotificationCode what);
bool serve_connection_accept(struct server *s, int fd);  /* all that wait; false: accepting must pause */
bool serve_connection_has_room(const struct server *s);  /* for another, if need be by closing one */
void serve_connection_set_key(struct MHD_Connection *c); /* the client has shown the key */
void serve_connection_set_deadline(struct MHD_Connection *c, int seconds); /* for complete input; 0: none */
void serve_connection_close_slow(struct server *s, double now);            /* closes those past their deadline */
void serve_connection_detect_hangups(struct server *s, const struct pollfd *fds, int n);
void serve_connection_wake(struct http_request *x); /* there is something to send */

/* serve_http.c: requests and replies */
enum MHD_Result serve_request(void *server, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *n, void **state);
/* Decodes %XX in place. %00 stays: as a NUL it would end the text before what follows. */
size_t serve_unescape(void *unused, struct MHD_Connection *c, char *text);
void serve_completed(void *server, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why);

/* serve_turns.c: requests, sessions and their turns */
/* Parses the body, and opens the images in it on a thread, which can take seconds. Returns 1 then: the request is woken
 * when they are open, for another call, which returns 0; or refused. */
int serve_read(struct http_request *x, struct error *e);
int serve_make_prompt(struct http_request *x, struct error *e); /* after serve_read has returned 0 */
/* the same, and queues it for a session, unless it is load_only */
int serve_enqueue(struct http_request *x, struct error *e);
void serve_handle_event(struct server *s, const struct engine_event *event);
void serve_start_waiting(struct server *s); /* starts waiting requests while sessions are free */
void serve_cancel_all(struct server *s);    /* cancels all: the server ends */
/* ends the answers that wait for a model, which does not open */
void serve_fail_waiting(struct server *s, const struct serve_model *m, const struct error *e);
void serve_drop_sessions(struct server *s, const struct serve_model *m); /* closes a model's sessions, which are idle */
void serve_drop_request(struct http_request *x);                         /* its connection is closed */
void serve_request_free(struct http_request *x);
int serve_request_tokens(const struct http_request *x); /* generated so far */

/* serve_compile.c: compiles the grammars of answers, and opens images, on threads of their own */
int serve_compile_open(struct server *s, struct error *e);
/* Starts the job of a request; on_done() follows, maybe before this returns, with the job's result. */
typedef void serve_compile_done(struct http_request *x, int rc, const struct error *e);
enum serve_compile_what { COMPILE_GRAMMAR, COMPILE_IMAGES };
int serve_compile(struct http_request *x, enum serve_compile_what what, uint64_t client, serve_compile_done *on_done,
                  struct error *e);
void serve_compile_finish(struct server *s); /* takes the results of jobs that are done, and starts others */
/* Cancels the job of a request. True: its thread still uses the request, which the job then frees if it has no
 * connection, or refuses. */
bool serve_compile_cancel(struct http_request *x);
void serve_compile_close(struct server *s);

/* serve_stream.c: answers as text */
/* formats what was generated since into x->formatted; false: nothing */
bool serve_stream_format(struct http_request *x);
/* bytes of the arguments that the tool stream of an answer has; *n: of its calls, twice those that are complete */
size_t serve_stream_arguments(const struct http_choice *c, size_t *n);
/* sends something to clients whose streams have been silent, so that neither they nor a proxy give up */
void serve_stream_break_silence(struct server *s, double now);
/* the answer without stream; all turns have ended without error */
void serve_stream_put_whole(struct http_request *x, struct buf *out);
/* serve_info.c: append a reply. ERR_USAGE names the member of the request that is wrong */
int serve_info_tokenize(const struct http_request *x, struct buf *out, struct error *e);
int serve_info_detokenize(const struct http_request *x, struct buf *out, struct error *e);
void serve_info_metrics(const struct server *s, struct buf *out); /* Prometheus text */
void serve_info_count(struct server *s, const struct turn *t);    /* counts an ended turn */
/* serve_status.c */
void serve_status_put(struct server *s, struct buf *out);
uint64_t serve_status_kv_bytes(const struct server *s); /* memory of all KV caches */
uint64_t serve_status_resident_bytes(void);             /* memory of the process */

/* serve_page.c: the page of --page; experts: of the model that the status describes. ERR_USAGE: it has none, or is not
 * open; ERR_MEMORY: it is answering */
void serve_page_get(const char **text, size_t *n);
int serve_page_put_experts(const struct server *s, struct buf *b, struct error *e);

/* serve_gpus.c: checks GPUs of a kind that no hearth has run on, and opens the models with them if they are right */
void serve_gpus_poll(struct server *s);
void serve_gpus_end(struct server *s);

/* serve_model.c: the list */
/* Adds a model. own: an app is made for it. */
int serve_model_add(struct server *s, const char *name, const char *dir, bool own, struct error *e);
int serve_model_add_listed(struct server *s, struct error *e); /* those of --models that are not known */
void serve_model_refresh(struct server *s, double now);        /* the same, now and then */
struct serve_model *serve_model_find(struct server *s, const char *name, size_t n); /* NULL: none */
/* The model that the status describes: the open one that was used last, or the default one. */
const struct serve_model *serve_model_current(const struct server *s);
void serve_model_keep(struct http_request *x); /* applies a request's keep_alive */

/* serve_models.c: opening and closing */
int serve_models_open(struct server *s, struct error *e);
void serve_models_close(struct server *s); /* waits for the threads */
/* Chooses the model of a request and opens what its prompt is made with. 0: it is open; 1: the request is woken when it
 * is, or refused; ERR_MODEL: no such model, e names what exists; ERR_MEMORY, ERR_RUNTIME. */
int serve_models_take(struct http_request *x, struct error *e);
/* Takes the results of jobs, opens what requests wait for, and closes what has been unused. Returns the seconds until
 * it has something to do; negative: unknown. */
double serve_models_step(struct server *s, double now);
