#pragma once
/* The state of an interactive chat: its sessions, the edited line, and what is on the screen. */
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
    char *name, *path;         /* path: NULL if the document is that of an undone question */
    struct buf text;           /* the document, wrapped in its tag; empty: an image */
    struct image_files images; /* that image */
    size_t bytes;              /* size of the file */
    int width, height, tokens; /* of an image; 0: known to the engine of another process only */
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
    /* the session is being closed: print nothing more about it */
    bool closing;
    unsigned last_used; /* grows with each switch */
    /* bytes at the end of the last answer's text that are markup without a call */
    size_t n_markup;
    /* number of messages summarised; the others did not fit into the prompt */
    size_t n_summarised;
    /* takes the text of the running turn, a summary; NULL: the turn is an answer */
    void (*on_finish)(struct repl *r, struct chat_session *t);
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
    int n_in_context;       /* tokens of the last answer and its prompt; 0: unknown */
    bool takes_any_summary; /* /compact force */
    bool keeps_whole;       /* a summary was refused: --compact-at waits for the user */
    double started_s;       /* clock at the start of the running turn, or the last one */
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
    bool asks_to_read;      /* the consent that is awaited is to files going to another machine */
    struct chat_gpus *gpus; /* chat_gpus.c's; NULL: no check has begun */
};

/* True if the next line answers a question about a tool call. */
static inline bool chat_awaits_consent(const struct repl *r) { return r->active && r->active->asking; }
