/* Files of the world, past the program: bits that rot, and what a deleted chat must not leave. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/saved/store.h"
#include "test/world/fibers.h"
#include "test/world/world.h"

static const char sessions[] = ".local/share/hearth/sessions", kv[] = ".cache/hearth/kv";

/* --- Rot -------------------------------------------------------------------------------------- */

/* Flips a bit. The file is exchanged: who has mapped it keeps the good one, as it keeps pages in memory. */
static bool rot(const char *path) {
    char aside[400];
    struct stat st;
    uint8_t *data = NULL;
    FILE *f = fopen(path, "r");
    bool done = false;
    snprintf(aside, sizeof aside, "%s/rotten", world->dir);
    check_pause();
    if (f && !fstat(fileno(f), &st) && st.st_size && (data = malloc((size_t)st.st_size)) &&
        fread(data, (size_t)st.st_size, 1, f) == 1) {
        const uint32_t bit = fibers_random((uint32_t)st.st_size * 8);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        FILE *to = fopen(aside, "w");
        done = to && fwrite(data, (size_t)st.st_size, 1, to) == 1 && !fchmod(fileno(to), 0600);
        done = to && !fclose(to) && done && !renameat(AT_FDCWD, aside, AT_FDCWD, path);
        world_note("bit %u of %s has rotted", bit, path);
    }
    free(data);
    if (f) fclose(f);
    check_resume();
    return done;
}
bool files_rot_chat(int user) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s/user%d.json", world->dir, sessions, user);
    return rot(path);
}
static int is_kv_file(const struct dirent *it) {
    const size_t n = strlen(it->d_name);
    return n > 3 && !strcmp(it->d_name + n - 3, ".kv");
}
bool files_rot_kv(int nth) {
    char path[600];
    struct dirent **all = NULL;
    bool done = false;
    snprintf(path, sizeof path, "%s/%s", world->dir, kv);
    check_pause();
    const int n = scandir(path, &all, is_kv_file, alphasort);
    if (n > 0) {
        snprintf(path, sizeof path, "%s/%s/%s", world->dir, kv, all[nth % n]->d_name);
        done = rot(path);
    }
    for (int i = 0; i < n; i++) free(all[i]);
    free(all);
    check_resume();
    return done;
}

/* --- What deleted chats leave ----------------------------------------------------------------- */

static void read_keys(int user, struct disk_keys *out) {
    struct conversation conv = {0};
    char path[400], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/%s/user%d.json", world->dir, sessions, user);
    if (file_read(path, 1 << 20, &data, &n, NULL)) return;
    store_parse(data, n, path, &conv, out, NULL, NULL);
    conversation_free(&conv);
    mem_free(data);
}
static bool has(const struct disk_keys *k, uint64_t key) {
    for (size_t i = 0; i < k->n; i++)
        if (k->keys[i] == key) return true;
    return false;
}

void files_own_keys(int user, struct disk_keys *out) {
    struct disk_keys others = {0};
    size_t left = 0;
    read_keys(user, out);
    for (int u = 0; u < USERS; u++)
        if (u != user) read_keys(u, &others);
    for (size_t i = 0; i < out->n; i++)
        if (!has(&others, out->keys[i])) out->keys[left++] = out->keys[i];
    out->n = left;
    mem_free(others.keys);
}
void files_forbid(const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++) world->forgotten[world->n_forgotten++ % FORGOTTEN] = keys[i];
}
void files_permit(const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < FORGOTTEN; k++)
            if (world->forgotten[k] == keys[i]) world->forgotten[k] = 0;
}
void files_check(void) {
    char path[400];
    struct stat st;
    for (int k = 0; k < FORGOTTEN; k++) {
        if (!world->forgotten[k]) continue;
        snprintf(path, sizeof path, "%s/%s/%016" PRIx64 ".kv", world->dir, kv, world->forgotten[k]);
        if (!stat(path, &st)) world_fail("the KV of a deleted chat is on the disk: %016" PRIx64, world->forgotten[k]);
    }
}
