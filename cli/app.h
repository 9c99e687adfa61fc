#pragma once
/* What every way of running shares: the options, the streams, and the opened model. */
#include <stdbool.h>
#include <stdint.h>

#include "cli/backend.h"
#include "cli/opt.h"
#include "cli/paths.h"
#include "engine/engine.h"
#include "tokenizer/chat.h"

struct app {
    struct opts opts;
    bool tty_in, tty_out, tty_err;
    bool color_out, color_err;
    bool quiet, verbose;
    char dir[PATHS_MAX];            /* of the model, or "ember:" */
    const struct backend *backend;  /* who answers */
    struct seat *seats;             /* all that are open */
    const struct engine_info *info; /* of whoever answers; NULL before it is open */
    /* of the engine of this process; NULL where another answers */
    struct tokenizer *tokenizer;
    struct chat *chat;   /* NULL with --raw */
    struct scope *scope; /* of the built-in model; NULL before it is asked something */
    struct engine *engine;
    struct remote *remote; /* the engine elsewhere; NULL: none */
};

/* Finds the directory that -m means. ERR_MODEL when there is none. */
int app_find_model(struct app *a, struct error *e);
/* The tokenizer of a->dir alone. ERR_MODEL when there is none. */
int app_open_tokenizer(struct app *a, struct error *e);
/* Finds who answers, and opens what prompts are made with; then the engine, with progress on a terminal. app_close undoes both. */
int app_open_text(struct app *a, struct error *e);
int app_open_engine(struct app *a, struct error *e);
void app_close(struct app *a);
/* The same of a->dir by this process itself. */
int app_open_own_text(struct app *a, struct error *e);
int app_open_own_engine(struct app *a, struct error *e);
/* Closes what is open and opens another model; when that fails, the old one again. a->info is NULL when neither opens. */
int app_change_model(struct app *a, const char *name, struct error *e);
/* Engine parameters from the options; strings belong to the options. */
void app_engine_params(struct app *a, struct engine_params *p);

/* Sampling after options, then the vendor's defaults, then built-in ones. Without --seed it draws one. */
void app_sampling(const struct app *a, const struct opts *o, struct sampling *s);

/* Messages on stderr, each on lines of its own with "hearth: " before; progress is taken off the screen first. */
int app_fail(const struct app *a, const struct error *e);                                       /* returns the exit code */
void app_note(const struct app *a, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* silent with -q */
/* Whether the built-in model answers; it is open. */
bool app_builtin(const struct app *a);
void app_stats(const struct app *a, const struct turn_stats *s); /* the --stats line */
void app_stats_text(const struct turn_stats *s, struct buf *out);
/* --explain: why the modes of a turn, and what was expected of them; one line. */
void app_explain(const struct app *a, const struct turn_stats *s);
void app_explain_text(const struct turn_stats *s, struct buf *out);

const char *app_bytes(uint64_t n, char *buf, size_t cap); /* "32.1 GB" */

/* Where -m NAME is looked up, one directory a call; false at the end. */
bool app_model_dir(const struct opts *o, int i, char *out, size_t cap);
