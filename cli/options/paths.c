#include "cli/options/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

int paths_get(enum paths_kind kind, const char *name, char *out, size_t cap) {
    static const struct {
        const char *env, *home;
    } dirs[] = {
        [PATHS_CONFIG] = {"XDG_CONFIG_HOME", ".config"},       [PATHS_DATA] = {"XDG_DATA_HOME", ".local/share"},
        [PATHS_STATE] = {"XDG_STATE_HOME", ".local/state"},    [PATHS_CACHE] = {"XDG_CACHE_HOME", ".cache"},
        [PATHS_RUNTIME] = {"XDG_RUNTIME_DIR", ".local/state"}, /* fallback without a login session */
    };
    const char *base = getenv(dirs[kind].env), *home = getenv("HOME"), *sep = name ? "/" : "";
    if (!name) name = "";
    int n;
    /* XDG: relative paths are ignored */
    if (base && *base == '/') n = snprintf(out, cap, "%s/hearth%s%s", base, sep, name);
    else if (home && *home) n = snprintf(out, cap, "%s/%s/hearth%s%s", home, dirs[kind].home, sep, name);
    else return ERR_RUNTIME;
    return n < 0 || (size_t)n >= cap ? ERR_RUNTIME : 0;
}

int paths_make(enum paths_kind kind, const char *name, char *out, size_t cap, struct error *e) {
    if (paths_get(kind, name, out, cap)) return error_set(e, ERR_RUNTIME, "no home directory: HOME is not set");
    char *slash = name ? strrchr(out, '/') : NULL;
    if (slash) *slash = 0;
    int rc = file_mkdirs(out, e);
    if (slash) *slash = '/';
    return rc;
}

int paths_expand(const char *path, char *out, size_t cap) {
    const char *home = *path == '~' && (!path[1] || path[1] == '/') ? getenv("HOME") : NULL;
    int n = home && *home ? snprintf(out, cap, "%s%s", home, path + 1) : snprintf(out, cap, "%s", path);
    return n < 0 || (size_t)n >= cap ? ERR_USAGE : 0;
}
