#pragma once
/* Conversations on disk: one JSON file each in the data directory, readable by the user alone, replaced atomically,
 * with a version and a checksum, and locked while open so that two writers cannot meet. */
#include "cli/app.h"
#include "cli/conv.h"

struct store_kept { /* under which keys the engine keeps on disk what it read of a conversation (session_kept) */
    uint64_t *key;
    size_t n, cap;
};
struct store { /* zero-initialised: closed */
    char name[128];
    struct store_kept kept; /* of this conversation: saved with it, and forgotten with it */
    int lock;               /* descriptor + 1; 0: none */
    bool off;               /* the place cannot be written: conversations go on without being saved */
};
enum store_mode { STORE_NEW, STORE_LOAD, STORE_REPLACE };

int store_check_name(const char *name, struct error *e); /* ERR_USAGE */
/* STORE_NEW refuses a name that exists, STORE_LOAD one that does not; STORE_REPLACE takes both and reads nothing. Loading
 * appends to conv; a damaged file is put aside and is an error. A place that cannot be
 * written: a note (once) and store->off. ERR_RUNTIME when another hearth has it open. */
int store_open(struct store *s, struct app *a, const char *name, enum store_mode mode, struct conv *conv, struct error *e);
int store_save(struct store *s, struct app *a, const struct conv *conv, struct error *e); /* 0 when off */
/* The same by saver.h's thread: what fails on the disk is told by saver_failed. */
int store_save_later(struct store *s, struct app *a, const struct conv *conv, struct error *e);
int store_rename(struct store *s, const char *name, struct error *e); /* the next save goes to name, which must be free */
void store_close(struct store *s);
/* What the engine keeps of the seat's last prompt is the conversation's, too. ERR_MEMORY. */
int store_keep(struct store *s, const struct seat *seat, struct error *e);
/* Takes away what a killed hearth left of a save that it never finished. Once, before anything is opened. */
void store_sweep(void);
/* Opens a name for a conversation that has none: the first words of its first question, and a number where that is taken. */
int store_open_for(struct store *s, struct app *a, const struct conv *conv, struct error *e);
/* Takes a conversation off the disk, and what engines keep there of it, but for beginnings that other saved ones have too. ERR_RUNTIME
 * when there is none, or another hearth has it open. */
int store_delete(const char *name, struct error *e);

/* store_list.c: what is on disk, newest first. */
struct store_entry {
    char name[128], title[256]; /* the title within 60 columns */
    int64_t saved;              /* seconds since 1970 */
    size_t bytes, turns;
    bool damaged;
};
int store_entries(struct store_entry **out, size_t *n, struct error *e); /* freed with mem_free */
/* A row of a list, without a line end, with a name's column of `width` and, where cols is not 0, a title that ends there or none:
 * where there is no room for its columns just the day, the name and the number of questions. */
void store_entry_text(const struct store_entry *t, int width, int cols, struct buf *out);
int store_name_width(const struct store_entry *v, size_t n); /* of the longest name, within reason */
/* The name of the newest that is not damaged. ERR_RUNTIME when there is none. */
int store_last(char *name, size_t cap, struct error *e);
int store_print_list(struct app *a, struct error *e); /* --list */

/* Reads the bytes of a session file; what names it in errors; kept, which may be NULL, is appended to. For store_open and the fuzz target. */
int store_parse(const char *data, size_t n, const char *what, struct app *a, struct conv *conv, struct store_kept *kept, struct error *e);
