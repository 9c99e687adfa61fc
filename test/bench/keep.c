/* Measures how soon a long chat on disk can continue: writes the KV cache of Qwen3-30B-A3B (48 layers, 96 KB a token)
 * as the engine does, batch by batch, then reads it as for a prompt that begins with its tokens, from the page cache
 * and from the disk itself. For comparison, the time to read the same files, which is the limit.
 *
 *     bench_keep DIR [tokens [threads]]        # 32,768 tokens: 3.2 GB in DIR, and 4 GB of memory */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "cpu/pool.h"
#include "engine/kv/kv_disk.h"
#include "engine/kv/kv_image.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "engine/session/prefix.h"

enum { BATCH = 1024 };
static struct config qwen3 = {.n_layers = 48, .n_heads = 32, .n_kv_heads = 4, .head_dim = 128, .v_dim = 128};

static int fail(const struct error *e) { return fprintf(stderr, "%s\n", e->text), 1; }

static size_t files(const char *dir, size_t *bytes, bool drop, char *room) {
    DIR *d = opendir(dir);
    size_t n = 0, sum = 0;
    for (struct dirent *it; d && (it = readdir(d));) {
        int fd = strstr(it->d_name, ".kv") ? openat(dirfd(d), it->d_name, O_RDONLY) : -1;
        if (fd < 0) continue;
        n++;
        if (drop) fdatasync(fd), posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        for (ssize_t got; room && (got = read(fd, room, 1 << 20)) > 0;) sum += (size_t)got;
        close(fd);
    }
    if (d) closedir(d);
    if (bytes) *bytes = sum;
    return n;
}

/* Reads every row once, as attention does. */
static uint64_t touch(const struct kv *kv, int n) {
    uint64_t sum = 0;
    for (int l = 0; l < kv->n_layers; l++)
        for (int p = 0; p < 2; p++) {
            const uint64_t *x = kv->layer[l].p[p].data;
            for (size_t i = 0, m = kv_row_range_of(&kv->layer[l].p[p], 0, n).bytes / 8; i < m; i += 8) sum += x[i];
        }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "bench_keep DIR [tokens [threads]]\n"), 2;
    int tokens = argc > 2 ? atoi(argv[2]) / BATCH * BATCH : 32768, threads = argc > 3 ? atoi(argv[3]) : 0;
    struct error e = {0};
    struct kv kv;
    struct pool *pool;
    struct kv_store store = {.fd = memfd_create("bench", 0)};
    struct kv_disk *k = kv_disk_open(argv[1], (uint64_t)1 << 40, 1, DT_BF16);
    char *room = malloc(1 << 20);
    int32_t *ids = calloc((size_t)tokens, sizeof *ids);
    if (!k || pool_open(&pool, threads, true, &e) || kv_open(&kv, &qwen3, kv_planes, tokens, DT_BF16, &e) ||
        kv_commit(&kv, tokens, &e))
        return fail(&e);
    for (int l = 0; l < kv.n_layers; l++)
        for (int p = 0; p < 2; p++) {
            uint64_t *x = kv.layer[l].p[p].data;
            for (size_t i = 0, m = kv_row_range_of(&kv.layer[l].p[p], 0, tokens).bytes / 8; i < m; i++)
                x[i] = i * 0x9e3779b97f4a7c15u + (uint64_t)(l * 2 + p);
        }
    uint64_t want = touch(&kv, tokens);
    double t = clock_now();
    for (int at = 0; at < tokens; at += BATCH) {
        struct kv_shared *b = malloc(sizeof *b);
        *b = (struct kv_shared){.store = &store,
                                .refs = 1,
                                .offset = store.size,
                                .bytes = kv_image_bytes(&kv, at, at + BATCH, false),
                                .from = at,
                                .to = at + BATCH};
        store.size += (off_t)b->bytes;
        if (ftruncate(store.fd, store.size) || kv_image_write(&kv, at, at + BATCH, -1, store.fd, b->offset))
            return fail(&e);
        kv_image_replace(&kv, at, at + BATCH, -1, store.fd, b->offset);
        kv_disk_write(k, b, (uint64_t)at + 1, ids, 0);
        kv_shared_unref(b);
    }
    printf("%d tokens, %.2f GB: handed over in %.2f s", tokens, (double)store.size / 1e9, clock_now() - t);
    kv_close(&kv);
    while (files(argv[1], NULL, false, NULL) < (size_t)(tokens / BATCH)) usleep(10000);
    printf(", written after %.2f s (%.2f GB/s)\n", clock_now() - t, (double)store.size / (clock_now() - t) / 1e9);
    close(store.fd);
    for (int round = 0; round < 4; round++) {
        bool cold = round >= 2, state;
        size_t bytes;
        files(argv[1], NULL, cold, NULL);
        t = clock_now();
        files(argv[1], &bytes, false, room);
        double limit = clock_now() - t;
        files(argv[1], NULL, cold, NULL);
        if (kv_open(&kv, &qwen3, kv_planes, tokens, DT_BF16, &e)) return fail(&e);
        t = clock_now();
        for (int at = 0; at < tokens; at += BATCH) {
            if (!kv_disk_read(k, pool, &kv, (uint64_t)at + 1, ids, at, at + BATCH, &state)) return 1;
            kv_disk_prefetch(k, (uint64_t)at + 1 + BATCH);
        }
        double found = clock_now() - t;
        uint64_t sum = touch(&kv, tokens);
        double all = clock_now() - t;
        printf("%s: found and checked in %.2f s, all rows looked at after %.2f s; reading the files with one thread "
               "takes %.2f s: %.2f of that speed\n",
               cold ? "from the disk" : "from memory  ", found, all, limit, limit / all);
        if (sum != want) return fprintf(stderr, "other rows\n"), 1;
        kv_close(&kv);
    }
    kv_disk_close(&k);
    pool_close(&pool);
    return 0;
}
