#pragma once
/* Conversations on disk: one JSON file each in the data directory, readable by the user alone, replaced atomically,
 * with a version and a checksum, and locked while open so that two writers cannot meet. */
#include "cli/app.h"
#include "cli/conv.h"

struct store { /* zero-initialised: closed */
    char name[128];
    int lock; /* descriptor + 1; 0: none */
    bool off; /* the place cannot be written: conversations go on without being saved */
};
enum store_mode { STORE_NEW, STORE_LOAD, STORE_REPLACE };

int store_check_name(const char *name, struct error *e); /* ERR_USAGE */
/* STORE_NEW refuses a name that exists, STORE_LOAD one that does not; STORE_REPLACE takes both and reads nothing. Loading
 * appends to conv; a damaged file is put aside with a note and the conversation begins empty. A place that cannot be
 * written: a note (once) and store->off. ERR_RUNTIME when another hearth has it open. */
int store_open(struct store *s, struct app *a, const char *name, enum store_mode mode, struct conv *conv, struct error *e);
int store_save(struct store *s, struct app *a, const struct conv *conv, struct error *e); /* 0 when off */
int store_rename(struct store *s, const char *name, struct error *e);                     /* the next save goes to name, which must be free */
void store_close(struct store *s);
/* Takes away what a killed hearth left of a save that it never finished. Once, before anything is opened. */
void store_sweep(void);
/* Names on disk, sorted, newline-separated. */
int store_list(struct buf *out, struct error *e);

/* Reads the bytes of a session file; what names it in errors. For store_open and the fuzz target. */
int store_parse(const char *data, size_t n, const char *what, struct app *a, struct conv *conv, struct error *e);
