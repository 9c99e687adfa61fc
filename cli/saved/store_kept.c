#include "cli/saved/store_kept.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"

static int kept_path(const char *name, char out[PATHS_MAX]) {
    char file[160];
    snprintf(file, sizeof file, "sessions/%s.json", name);
    return paths_get(PATHS_DATA, file, out, PATHS_MAX);
}

int store_kept_open(struct store *s, struct app *a) {
    char path[PATHS_MAX];
    struct conversation none = {0};
    const bool has_person = a->tty_in || a->tty_out || a->tty_err;
    if (!has_person || a->opts.v[OPT_NO_SAVE].on ||
        paths_make(PATHS_DATA, "sessions/" STORE_KEPT, path, sizeof path, &(struct error){0}))
        return ERR_CANCELLED;
    *strrchr(path, '/') = 0;
    if (access(path, W_OK) || store_open(s, a, STORE_KEPT, STORE_REPLACE, &none, &(struct error){0}))
        return ERR_CANCELLED;
    return 0;
}

int store_kept_take(struct app *a, char *name, size_t cap, struct error *e) {
    struct store s = {0};
    struct conversation conv = {0};
    char from[PATHS_MAX], to[PATHS_MAX];
    int rc = store_read(STORE_KEPT, &conv, e);
    if (!rc) rc = store_open_unnamed(&s, a, &conv, e);
    if (!rc && !s.disabled) {
        if (kept_path(STORE_KEPT, from) || kept_path(s.name, to)) rc = error_set(e, ERR_RUNTIME, "no home directory");
        else if (fault_hit(FAULT_RENAME) ? (errno = EIO, true) : rename(from, to) != 0)
            rc = error_set(e, ERR_RUNTIME, "%s: %s", to, strerror(errno));
        else snprintf(name, cap, "%s", s.name);
    }
    store_close(&s);
    conversation_free(&conv);
    return rc;
}
