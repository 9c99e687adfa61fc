#include "base/shard_names.h"

#include <stdio.h>
#include <string.h>

static const char only[] = "model.safetensors";

void shard_names_put(shard_names_has *has, const void *ctx, int i, int n, char out[SHARD_NAME_SIZE]) {
    snprintf(out, SHARD_NAME_SIZE, n == 1 && has(ctx, only) ? only : "model-%05d-of-%05d.safetensors", i, n);
}

static bool is_complete(shard_names_has *has, const void *ctx, int n) {
    char name[SHARD_NAME_SIZE];
    for (int i = 1; i <= n; i++) {
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, n);
        if (!has(ctx, name)) return false;
    }
    return true;
}

int shard_names_find(shard_names_has *has, const void *ctx) {
    int found = has(ctx, only);
    for (int n = 1; n <= SHARD_NAMES_MOST; n++) {
        if (!is_complete(has, ctx, n)) continue;
        if (found) return 0;
        found = n;
    }
    return found;
}

bool shard_names_is_weights(const char *name) {
    static const char end[] = ".safetensors";
    const size_t n = strlen(name), m = sizeof end - 1;
    return n > m && !strcmp(name + n - m, end) && strncmp(name, "adapter_", 8) != 0 && !strchr(name, '/');
}

const char *shard_names_path(const char *name, size_t n, size_t *path_bytes) {
    while (n > 2 && !memcmp(name, "./", 2)) name += 2, n -= 2;
    if (!n || memchr(name, 0, n) || memchr(name, '\\', n)) return NULL;
    for (size_t i = 0; i <= n; i++) { /* each part of the path begins with another character */
        if (i && name[i - 1] != '/') continue;
        if (i == n || name[i] == '/' || name[i] == '.') return NULL;
    }
    *path_bytes = n;
    return name;
}
