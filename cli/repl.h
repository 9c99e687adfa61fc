#pragma once
/* The chat on a terminal: sessions, their turns, and the loop that serves keys, the engine and signals. */
#include "cli/app.h"
#include "cli/conv.h"
#include "cli/line.h"
#include "cli/printer.h"
#include "cli/store.h"
#include "cli/turn.h"

struct past { /* what /clear has put aside */
    struct conv conv;
    struct store store;
    char name[128];
    bool named;
};

struct talk {   /* one session of the chat */
    int number; /* as /sessions shows it */
    char name[128];
    bool named;        /* by the user; else the prompt shows the number */
    bool shown;        /* the last answer has been seen whole */
    bool went_on;      /* the running turn continues the last answer */
    bool compacting;   /* the running turn writes a summary */
    bool closing;      /* it is being ended for good: nothing more is said of it */
    size_t summarised; /* of so many messages; the rest did not fit beside them */
    struct conv conv;
    struct buf attached; /* documents that go along with the next question */
    struct past past;
    struct seat *seat; /* opened with the first turn */
    struct store store;
    struct turn turn;     /* running, or the last one */
    struct prompt prompt; /* of the last turn, with what was generated since: for /continue */
    struct turn_stats stats;
    bool has_stats;
    uint64_t seed;
};

struct repl {
    struct app *app;
    struct talk **talks;
    size_t n, cap;
    struct talk *now;       /* the one in front */
    struct talk *answering; /* == now while its answer is on the screen, or NULL */
    int numbers;
    struct line line;
    bool below; /* the edited line stands a row below the end of the running answer */
    struct history history;
    struct printer printer;
    struct buf input; /* bytes typed ahead */
    char **queue;     /* lines entered while an answer runs, oldest first */
    size_t n_queue, cap_queue;
    double status_drawn;
    bool asks; /* the prompt of a dumb terminal stands on its last row */
    bool dumb, leave;
    bool told; /* that leaving stops answers which run in the background; none was begun since */
    char prompt[160];
};

int repl_run(struct app *a, struct error *e);

/* repl.c: the screen and the loop, for the other files */
void repl_say(struct repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));         /* a line on the terminal */
void repl_say_in(struct repl *r, const char *style, const char *head, const char *text, size_t n); /* text in a style, and the end of its line */
void repl_hide(struct repl *r); /* the edited line: room to print; when an answer runs, at its end */
void repl_pump(struct repl *r); /* what the engine has to tell */
void repl_drop_queue(struct repl *r);
void repl_leave(struct repl *r, bool key); /* asks first where that stops answers in the background; key: a line is being edited */
void repl_editor(struct repl *r);
void repl_label(const struct talk *t, char *out, size_t cap); /* its name, or its number */

/* talk.c: sessions */
struct talk *repl_new(struct repl *r, const char *name);  /* NULL: no memory */
struct talk *repl_find(struct repl *r, const char *name); /* by name or number */
void repl_switch(struct repl *r, struct talk *t);
void repl_drop(struct repl *r, struct talk *t); /* cancels, saves, closes */
void repl_save(struct repl *r, struct talk *t); /* soon, without waiting for the disk */
bool repl_say_unsaved(struct repl *r);          /* says what could not be written since it was last asked; true: something */
bool repl_busy(struct repl *r, struct talk *t); /* says so when a turn is running */
bool repl_attach(struct repl *r, struct talk *t, const char *path);
void repl_clear(struct repl *r, struct talk *t);
bool repl_bring_back(struct repl *r, struct talk *t); /* what repl_clear put aside; false: nothing is */

/* answer.c: turns. All say what went wrong, and return its code. */
int repl_answer(struct repl *r, struct talk *t, bool background); /* answers the conversation as it stands */
int repl_continue(struct repl *r, struct talk *t);
int repl_start(struct repl *r, struct talk *t, bool background, struct error *e); /* starts the turn of t->prompt */
int repl_send(struct repl *r, const char *text, size_t n, bool background);
void repl_finish(struct repl *r, struct talk *t); /* its turn has ended */
void repl_background(struct repl *r);             /* the answer on the screen goes on behind it */
void repl_watch(struct repl *r, struct talk *t);  /* its running answer comes to the screen */

/* compact.c: has the model summarise the conversation, and puts that in its place when the turn has ended. */
int repl_compact(struct repl *r, struct talk *t);
void repl_keep_summary(struct repl *r, struct talk *t);

/* command.c: a line that begins with '/' */
void command_run(struct repl *r, const char *text);
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);
