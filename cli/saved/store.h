#pragma once
/* Conversations on disk: one JSON file each in the data directory, mode 0600, replaced atomically, with a version and a
 * checksum, and locked while open, so that there is one writer. */
#include "cli/app.h"
#include "cli/saved/store_model.h"
#include "cli/turn/conversation.h"

struct disk_keys { /* keys under which the engine's disk cache holds the conversation's prompts (session_disk_keys) */
    uint64_t *keys;
    size_t n, cap;
};
struct store { /* closed when zero-initialised */
    char name[128];
    struct disk_keys disk_keys; /* of this conversation: saved and deleted with it */
    int lock;                   /* descriptor + 1; 0: none */
    struct store_model model;   /* model of the loaded file; the next save stores the open one */
    bool disabled;              /* the directory is not writable: conversations are not saved */
};
enum store_mode { STORE_NEW, STORE_LOAD, STORE_REPLACE };

int store_check_name(const char *name, struct error *e); /* ERR_USAGE */
/* Copies the name of a saved conversation that name begins or is spelt like; false if there is none. */
bool store_nearest(const char *name, char *near, size_t cap);
bool store_exists(const char *name); /* whether a conversation was saved under this name */
/* Opens a name. STORE_NEW fails if it exists, STORE_LOAD if it does not; STORE_REPLACE accepts both and reads nothing.
 * Loading appends to conv; a damaged file is renamed and is an error; one of a newer version is an error and stays. If
 * the directory is not writable, STORE_NEW fails; the other modes print a note once and set s->disabled. ERR_RUNTIME
 * when another hearth has it open. */
int store_open(struct store *s, struct app *a, const char *name, enum store_mode mode, struct conversation *conv,
               struct error *e);
int store_save(struct store *s, struct app *a, const struct conversation *conv, struct error *e); /* 0 when disabled */
/* Whether the disk takes the conversation and an answer, before that is computed. ERR_RUNTIME, ERR_MEMORY. */
int store_check_space(const struct store *s, const struct app *a, const struct conversation *conv, struct error *e);
/* The same in the saver's thread; saver_take_error reports disk errors. */
int store_save_later(struct store *s, struct app *a, const struct conversation *conv, struct error *e);
/* the next save goes to name, which must be free */
int store_rename(struct store *s, const char *name, struct error *e);
void store_close(struct store *s);
/* Adds the client's disk-cache keys to the conversation. ERR_MEMORY. */
int store_add_disk_keys(struct store *s, const struct engine_client *client, struct error *e);
/* Removes files that a killed hearth left from an unfinished save. Call once, before any store is opened. */
void store_sweep(void);
/* Opens a name for an unnamed conversation: the first words of its first question, plus a number if taken. */
int store_open_unnamed(struct store *s, struct app *a, const struct conversation *conv, struct error *e);
/* Deletes a conversation, and its KV cache on disk except prefixes that other saved conversations share. ERR_RUNTIME
 * when there is none, or another hearth has it open. */
int store_delete(const char *name, struct error *e);

/* store_list.c: saved conversations, newest first. */
struct store_entry {
    char name[128], title[256]; /* title: at most 60 columns */
    int64_t saved_at, saved_ns; /* seconds since 1970, and the rest in nanoseconds */
    size_t bytes, n_questions;
    /* damaged: cannot be opened; newer: because a newer version of hearth saved it; unreadable: because the file is too
     * large, or the system refuses to read it */
    bool damaged, newer, unreadable;
};
int store_list_entries(struct store_entry **out, size_t *n, struct error *e); /* free with mem_free */
/* Appends a row of the list without a line end. width: of the name column. cols: of the screen, 0 for no limit; a title
 * is truncated to it. If the columns do not fit, the row is the day, the name and the number of questions. */
void store_list_entry_text(const struct store_entry *t, int width, int cols, struct buf *out);
/* Width of the longest name that leaves room for titles on a screen of cols columns (0: no limit). */
int store_list_name_width(const struct store_entry *v, size_t n, int cols);
/* Copies the name of the newest conversation that is not damaged. ERR_RUNTIME when there is none. */
int store_list_last(char *name, size_t cap, struct error *e);
int store_list_print(struct app *a, struct error *e); /* --list */

/* Parses the bytes of a session file; what names it in errors; keys are appended to disk_keys. ERR_MODEL: damaged;
 * ERR_RUNTIME: of a newer version; ERR_MEMORY. disk_keys and model may be NULL. For store_open and the fuzz target. */
int store_parse(const char *data, size_t n, const char *what, struct conversation *conv, struct disk_keys *disk_keys,
                struct store_model *model, struct error *e);
/* Appends the messages of a saved conversation without opening it. */
int store_read(const char *name, struct conversation *conv, struct error *e);
/* Sets -m to the model of a saved conversation; see store_model_select. Does nothing if store_open would fail. */
int store_select_model(struct app *a, const char *name, struct error *e);
