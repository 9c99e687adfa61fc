#include "engine/experts/tuned.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

enum { LONGEST = 2048 };

static bool path_of(const char *dir, uint64_t fingerprint, char *out, size_t cap) {
    return (size_t)snprintf(out, cap, "%s/%016" PRIx64 ".tuned", dir, fingerprint) < cap;
}

/* Copies the line at *text and moves *text past it; false: there is none, or it is too long. */
static bool take_line(const char **text, char *out, size_t cap) {
    const size_t n = strcspn(*text, "\n");
    if (!(*text)[n] || n >= cap) return false;
    memcpy(out, *text, n);
    out[n] = 0;
    *text += n + 1;
    return true;
}

bool tuned_read(const char *dir, uint64_t fingerprint, const char *machine, struct tuned *out) {
    char path[4096], of[LONGEST], *data = NULL;
    size_t n;
    *out = (struct tuned){0};
    if (!path_of(dir, fingerprint, path, sizeof path) || access(path, F_OK) ||
        file_read(path, LONGEST, &data, &n, &(struct error){0}))
        return false;
    const char *at = data;
    const bool is_whole = strlen(data) == n && take_line(&at, of, sizeof of) &&
                          take_line(&at, out->choice, sizeof out->choice) &&
                          take_line(&at, out->why, sizeof out->why) && !*at;
    out->is_of_other = is_whole && strcmp(of, machine) != 0;
    mem_free(data);
    return is_whole;
}

int tuned_write(const char *dir, uint64_t fingerprint, const char *machine, const char *choice, const char *why,
                struct error *e) {
    char path[4096];
    struct buf b = {0};
    if (!path_of(dir, fingerprint, path, sizeof path))
        return error_set(e, ERR_RUNTIME, "the path of the cache is too long: %s", dir);
    buf_fmt(&b, "%s\n%s\n%s\n", machine, choice, why);
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory for what --tune measured") : file_mkdirs(dir, e);
    if (!rc) rc = file_write(path, b.data, b.len, e);
    buf_free(&b);
    return rc;
}
