#pragma once
/* State shared by all modes: options, streams, and the opened model. Opens the model and formats messages and statistics. */
#include <stdbool.h>
#include <stdint.h>

#include "cli/options/opt.h"
#include "cli/options/paths.h"
#include "cli/turn/engine_client.h"
#include "engine/engine.h"
#include "tokenizer/chat/chat_template.h"

struct app {
    struct opts opts;
    bool tty_in, tty_out, tty_err;
    bool color_out, color_err;
    bool quiet, verbose;
    char model_dir[PATHS_MAX];      /* the model's directory, or "ember:" */
    const struct backend *backend;  /* the engine in use: this process, attached or remote */
    struct engine_client *clients;  /* list of open clients */
    const struct engine_info *info; /* describes the engine in use; NULL before it is open */
    /* of this process's engine; NULL when another engine answers */
    struct tokenizer *tokenizer;
    struct chat_template *template; /* NULL with --raw */
    struct topic *topic;            /* built-in model only; NULL before the first prompt */
    struct engine *engine;
    struct remote *remote; /* connection to an attached or remote engine; NULL: none */
};

/* Resolves -m to a directory in a->dir. ERR_MODEL without a match. */
int open_find_model(struct app *a, struct error *e);
/* Opens only the tokenizer of a->dir. ERR_MODEL when there is none. */
int open_tokenizer(struct app *a, struct error *e);
/* open_text: chooses the backend and opens what prompts are rendered with. open_engine: opens the engine, with progress on a
 * terminal. open_close undoes both. */
int open_text(struct app *a, struct error *e);
int open_engine(struct app *a, struct error *e);
void open_close(struct app *a);
/* The same for a->dir in this process. */
int open_text_local(struct app *a, struct error *e);
int open_engine_local(struct app *a, struct error *e);
/* Closes the model and opens another. If that fails, reopens the old one; a->info is NULL when neither opens. */
int open_other_model(struct app *a, const char *name, struct error *e);
/* Sets engine parameters from the options. Strings remain owned by the options. */
void open_engine_params(struct app *a, struct engine_params *p);

/* Sets sampling from the options, then the model's defaults, then built-in ones. Without --seed it draws a seed. */
void open_sampling(const struct app *a, const struct opts *o, struct sampling *s);

/* Messages on stderr, each on its own lines with the prefix "hearth: ". The progress line is cleared first. */
int report_error(const struct app *a, const struct error *e);                                      /* returns the exit code */
void report_note(const struct app *a, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* silent with -q */
/* True if the open model is the built-in one. */
bool open_is_builtin(const struct app *a);
void report_stats(const struct app *a, const struct turn_stats *s); /* the --stats line */
void report_stats_text(const struct turn_stats *s, struct buf *out);
/* --explain, one line: why the modes of a turn were chosen, and expected against measured times. */
void report_explain(const struct app *a, const struct turn_stats *s);
void report_explain_text(const struct turn_stats *s, struct buf *out);

const char *report_bytes(uint64_t n, char *buf, size_t cap); /* "32.1 GB" */

/* Copies the i-th directory of --model-path; false after the last. */
bool open_model_path_entry(const struct opts *o, int i, char *out, size_t cap);
