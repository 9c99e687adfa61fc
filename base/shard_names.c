#include "base/shard_names.h"

#include <stdio.h>

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
