#pragma once
/* The interactive chat: sessions, their turns, and the loop over keys, engine events and signals. */
#include "cli/app.h"
#include "cli/saved/store.h"
#include "cli/terminal/line.h"
#include "cli/tools/tool_job.h"
#include "cli/tools/tool_round.h"
#include "cli/turn/answer_printer.h"
#include "cli/turn/conversation.h"
#include "cli/turn/turn.h"

struct cleared_conversation { /* the conversation before /clear, for /undo */
    struct conversation conv;
    struct store store;
    char name[128];
    bool named;
};

struct attachment {
    char *name, *path; /* path: NULL if the document is that of an undone question */
    struct buf text;   /* the document, wrapped in its tag */
    size_t bytes;      /* size of the file */
};
struct attachments { /* documents for the next question; empty when zero-initialised */
    struct attachment *v;
    size_t n, cap;
};

struct repl;
struct chat_session { /* one session of the chat */
    int number;       /* as /sessions shows it */
    char name[128];
    bool named;            /* by the user; otherwise the prompt shows the number */
    bool answer_seen;      /* the last answer was shown whole */
    bool continues_answer; /* the running turn continues the last answer */
    bool asks;             /* the running turn answers a question that was added after n_before messages */
    size_t n_before;
    bool closing;                                              /* the session is being closed: print nothing more about it */
    unsigned last_used;                                        /* grows with each switch */
    size_t n_markup;                                           /* bytes at the end of the last answer's text that are markup without a call */
    size_t n_summarised;                                       /* number of messages summarised; the others did not fit into the prompt */
    void (*on_finish)(struct repl *r, struct chat_session *t); /* takes the text of the running turn, a summary; NULL: the turn is an answer */
    struct conversation conv;
    struct conversation compacted; /* the messages that the summary of /compact replaced, for /undo */
    struct conversation replaced;  /* the answer that the running turn replaces, for a turn that fails */
    struct attachments attached;
    struct cleared_conversation cleared;
    struct engine_client *client; /* opened with the first turn */
    struct store store;
    struct turn turn;            /* running, or the last one */
    struct tool_round round;     /* tool calls of the answer */
    struct tool_job *job;        /* the call that runs; NULL: none */
    bool asking;                 /* the next call needs the user's consent */
    struct prompt prompt;        /* last prompt plus the generated ids: for /continue */
    struct prompt answer_prompt; /* that of the last answer, while a summary is written */
    struct turn_stats stats;
    bool has_stats;
    double started_s; /* clock at the start of the running turn, or the last one */
    uint64_t seed;
};

struct thinking_fold {
    double since;  /* clock when the folded thinking began; 0: none */
    int n_before;  /* tokens of the answer before it */
    bool unfolded; /* Ctrl-O: print the rest of it */
};

struct repl {
    struct app *app;
    struct chat_session **sessions;
    size_t n_sessions, cap_sessions;
    struct chat_session *active;
    struct chat_session *on_screen; /* == active while its answer is on the screen, or NULL */
    int last_number;
    unsigned n_switches;
    double escape_s; /* clock when a lone ESC arrived; 0: none */
    struct line line;
    bool line_below_answer; /* the edited line is one row below the end of the running answer */
    struct history history;
    struct answer_printer printer;
    struct buf input; /* bytes typed ahead */
    char **queue;     /* lines entered during an answer, oldest first */
    size_t n_queue, cap_queue;
    double status_drawn_s;
    struct thinking_fold thinking;
    bool answer_status_shown; /* on the row below the running answer */
    bool prompt_shown;        /* the prompt is on the last row of a dumb terminal */
    bool dumb, leaving;
    struct buf put_aside; /* text that was being typed when a tool call needed consent */
    /* chat_tools_step(), which continues with the tool calls of an ended turn. */
    void (*on_calls)(struct repl *r, struct chat_session *t, bool front);
    bool choosing_model; /* /model has listed the models: a number as the next line chooses one */
    bool exit_warned;    /* warned that leaving stops background answers; reset when a new one starts */
    char prompt[160];
};

/* True if the next line answers a question about a tool call. */
static inline bool chat_awaits_consent(const struct repl *r) { return r->active && r->active->asking; }

int repl_run(struct app *a, struct error *e);

/* screen.c: prints and draws */
void screen_print(struct repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));             /* prints a line on the terminal */
void screen_print_styled(struct repl *r, const char *style, const char *head, const char *text, size_t n); /* prints text in a style, and a line end */
void screen_print_held(struct repl *r);                                                                    /* prints the messages held by progress.h */
void screen_flush(struct repl *r);                                                                         /* writes what the line editor has drawn */
void screen_hide_line(struct repl *r);          /* hides the edited line, so that output can follow; during an answer the cursor returns to its end */
void screen_open_row_below(struct repl *r);     /* opens a row for the edited line below the running answer */
void screen_redraw_line(struct repl *r);        /* below a running answer the line is shown only when it has contents */
void screen_begin_line(struct repl *r);         /* starts a line; text typed during the answer is already in it */
void screen_format_prompt(struct repl *r);      /* sets r->prompt */
void screen_update_status(struct repl *r);      /* shows running answers and queued lines below the edited line */
void screen_show_answer_status(struct repl *r); /* shows tokens and speed of the running answer on the row below */
bool screen_any_running(const struct repl *r);
void screen_label(const struct chat_session *t, char *out, size_t cap); /* its name, or its number */

/* queue.c: lines entered during an answer */
void queue_add(struct repl *r, const char *text, size_t n);
char *queue_take(struct repl *r);   /* removes the first line, which must exist; free with mem_free */
void queue_discard(struct repl *r); /* moves all lines to the history */
void queue_add_to_history(struct repl *r, const char *text, size_t n);

void editor_open(struct repl *r);

/* chat_session.c: sessions */
struct chat_session *chat_session_new(struct repl *r, const char *name);  /* NULL: no memory */
struct chat_session *chat_session_find(struct repl *r, const char *name); /* by name or number */
void chat_session_free(struct repl *r, struct chat_session *t);           /* removes it from the list; it must not be answering */
void chat_session_save(struct repl *r, struct chat_session *t);           /* saves soon, without waiting for the disk */
bool chat_session_report_unsaved(void);                                   /* reports failed writes since the last call; true if there were any */
bool chat_session_is_answering(const struct chat_session *t);             /* a turn or a tool runs, or a tool call waits for consent */
bool chat_session_report_busy(struct repl *r, struct chat_session *t);    /* true, with a message, while it is answering */
void chat_session_clear(struct repl *r, struct chat_session *t);
bool chat_session_undo_clear(struct chat_session *t);                             /* restores what chat_session_clear put aside; false if there is nothing */
struct chat_session *chat_session_find_cleared(struct repl *r, const char *name); /* the session that has cleared this conversation, or NULL */
void chat_session_drop_cleared(struct repl *r, const char *name); /* gives up what /undo could restore, so that its file can be opened or deleted */

/* attachments.c */
/* Attaches the files that words name (input_paths_add_words). On error all are left out; ERR_CONTEXT: they do not fit. */
int attachments_add(struct app *a, struct chat_session *t, const char *words, struct error *e);
void attachments_put(const struct attachments *l, struct buf *out); /* appends the documents */
size_t attachments_bytes(const struct attachments *l);              /* of their files */
/* Attaches the documents of a question again, which is taken back. Returns how many they are, -1 without memory. */
int attachments_restore(struct attachments *l, const struct message *question);
/* Removes those of the first n that were read from the same path as a later one, or, of an undone question, have its name. Returns how many these are. */
size_t attachments_drop_older(struct attachments *l, size_t n);
void attachments_remove(struct attachments *l, size_t i);
void attachments_truncate(struct attachments *l, size_t n); /* keeps the first n */
void attachments_free(struct attachments *l);

/* chat_turn.c: turns. All return the code of an error, and print it unless they take an `e`. */
int chat_turn_answer(struct repl *r, struct chat_session *t, bool background); /* answers the current conversation */
int chat_turn_continue(struct repl *r, struct chat_session *t);
int chat_turn_start(struct repl *r, struct chat_session *t, bool background, struct error *e); /* starts the turn of t->prompt */
int chat_turn_send(struct repl *r, const char *text, size_t n, bool background);
int chat_turn_resume(struct repl *r, struct chat_session *t, bool background); /* the next turn of an answer, after tool calls */
void chat_turn_cancel(struct chat_session *t);                                 /* stops its turn or its tool */
void chat_turn_acquire_screen(struct repl *r, struct chat_session *t);
void chat_turn_release_screen(struct repl *r);                    /* after the answer on it has ended or moved to the background */
void chat_turn_poll(struct repl *r);                              /* handles queued engine events */
void chat_turn_to_background(struct repl *r);                     /* moves the answer on the screen to the background */
void chat_turn_to_screen(struct repl *r, struct chat_session *t); /* shows its running answer on the screen */

/* chat_tools.c: the tool calls of answers */
/* Continues with the calls: asks, starts a tool, or starts the next turn. front: the answer was on the screen. */
void chat_tools_step(struct repl *r, struct chat_session *t, bool front);
void chat_tools_poll(struct repl *r);                               /* handles tools that have ended */
void chat_tools_show(struct repl *r, struct chat_session *t);       /* shows its running tool or its question, after a switch */
void chat_tools_answer(struct repl *r, const char *text, size_t n); /* handles the line that answers the question */
/* Stops the tool, waits for its end, and gives all remaining calls a result that says why they were not run. */
void chat_tools_abandon(struct repl *r, struct chat_session *t, const char *why);
void chat_tools_stop(struct repl *r, struct chat_session *t); /* the user stops the answer at a question */

/* thinking.c */
void thinking_begin(struct repl *r);                                                /* an answer goes to the screen */
int thinking_on_text(void *ctx, enum output_kind part, const char *data, size_t n); /* a turn_fn: prints text, folds thinking; ctx: the repl */
void thinking_end(struct repl *r);                                                  /* prints one line in place of folded thinking */
void thinking_show(struct repl *r);                                                 /* Ctrl-O: unfolds it, or prints the thinking of the last answer */

/* chat_switch.c */
void chat_switch_to(struct repl *r, struct chat_session *t);    /* activates it: prints its last exchange, attaches to its running answer */
void chat_switch_close(struct repl *r, struct chat_session *t); /* cancels, saves, closes */

/* compact.c: the model summarises the conversation; the summary replaces it when the turn ends. */
int compact_start(struct repl *r, struct chat_session *t);
bool compact_undo(struct chat_session *t); /* restores what a summary replaced; false if the last question is not a summary */

/* command.c: lines that begin with '/' */
bool command_is(const char *text);          /* false for a question, also one that begins with a path such as /etc/fstab */
bool command_runs_beside(const char *text); /* true if the command runs at once while an answer runs */
bool command_leaves(const char *text);      /* true for /bye and its aliases */
void command_run(struct repl *r, const char *text);
void command_request_exit(struct repl *r, bool as_hint); /* asks first if leaving stops background answers, in a hint below the edited line or as a message */
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);
