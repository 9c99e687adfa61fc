#pragma once
/* The interactive chat: sessions, their turns, and the loop over keys, engine events and signals. */
#include "cli/app.h"
#include "cli/conv.h"
#include "cli/line.h"
#include "cli/printer.h"
#include "cli/store.h"
#include "cli/turn.h"

struct past { /* the conversation before /clear, for /undo */
    struct conv conv;
    struct store store;
    char name[128];
    bool named;
};

struct talk {   /* one session of the chat */
    int number; /* as /sessions shows it */
    char name[128];
    bool named;        /* by the user; otherwise the prompt shows the number */
    bool shown;        /* the last answer was shown whole */
    bool went_on;      /* the running turn continues the last answer */
    bool compacting;   /* the running turn writes a summary */
    bool closing;      /* the session is being closed: print nothing more about it */
    size_t summarised; /* number of messages summarised; the others did not fit into the prompt */
    struct conv conv;
    struct buf attached; /* documents for the next question */
    struct past past;
    struct seat *seat; /* opened with the first turn */
    struct store store;
    struct turn turn;     /* running, or the last one */
    struct prompt prompt; /* last prompt plus the generated ids: for /continue */
    struct turn_stats stats;
    bool has_stats;
    uint64_t seed;
};

struct repl {
    struct app *app;
    struct talk **talks;
    size_t n, cap;
    struct talk *now;       /* the active session */
    struct talk *answering; /* == active while its answer is on the screen, or NULL */
    int numbers;
    struct line line;
    bool below; /* the edited line is one row below the end of the running answer */
    struct history history;
    struct printer printer;
    struct buf input; /* bytes typed ahead */
    char **queue;     /* lines entered during an answer, oldest first */
    size_t n_queue, cap_queue;
    double status_drawn;
    bool asks; /* the prompt is on the last row of a dumb terminal */
    bool dumb, leave;
    bool told; /* warned that leaving stops background answers; reset when a new one starts */
    char prompt[160];
};

int repl_run(struct app *a, struct error *e);

/* repl.c: the screen and the loop, for the other files */
void repl_say(struct repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));         /* prints a line on the terminal */
void repl_say_in(struct repl *r, const char *style, const char *head, const char *text, size_t n); /* prints text in a style, and a line end */
void repl_hide(struct repl *r); /* hides the edited line, so that output can follow; during an answer the cursor returns to its end */
void repl_pump(struct repl *r); /* handles queued engine events */
void repl_drop_queue(struct repl *r);
void repl_leave(struct repl *r, bool key); /* asks first if leaving stops background answers; key: a line is being edited */
void repl_editor(struct repl *r);
void repl_label(const struct talk *t, char *out, size_t cap); /* its name, or its number */

/* chat_session.c: sessions */
struct talk *repl_new(struct repl *r, const char *name);  /* NULL: no memory */
struct talk *repl_find(struct repl *r, const char *name); /* by name or number */
void repl_switch(struct repl *r, struct talk *t);
void repl_drop(struct repl *r, struct talk *t); /* cancels, saves, closes */
void repl_save(struct repl *r, struct talk *t); /* saves soon, without waiting for the disk */
bool repl_say_unsaved(struct repl *r);          /* reports failed writes since the last call; true if there were any */
bool repl_busy(struct repl *r, struct talk *t); /* prints a message if a turn is running */
bool repl_attach(struct repl *r, struct talk *t, const char *path);
void repl_clear(struct repl *r, struct talk *t);
bool repl_bring_back(struct repl *r, struct talk *t); /* restores what chat_session_clear put aside; false if there is nothing */

/* chat_turn.c: turns. All print their errors, and return the code. */
int repl_answer(struct repl *r, struct talk *t, bool background); /* answers the current conversation */
int repl_continue(struct repl *r, struct talk *t);
int repl_start(struct repl *r, struct talk *t, bool background, struct error *e); /* starts the turn of t->prompt */
int repl_send(struct repl *r, const char *text, size_t n, bool background);
void repl_finish(struct repl *r, struct talk *t); /* handles the end of its turn */
void repl_background(struct repl *r);             /* moves the answer on the screen to the background */
void repl_watch(struct repl *r, struct talk *t);  /* shows its running answer on the screen */

/* compact.c: the model summarises the conversation; the summary replaces it when the turn ends. */
int repl_compact(struct repl *r, struct talk *t);
void repl_keep_summary(struct repl *r, struct talk *t);

/* command.c: lines that begin with '/' */
void command_run(struct repl *r, const char *text);
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);
