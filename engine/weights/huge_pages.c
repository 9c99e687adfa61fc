#include "engine/weights/huge_pages.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

/* bytes of a chunk; chunks until the gain is checked; slow chunks in a row that end it */
enum { CHUNK = 8 << 20, PROBE = 8, SLOW = 3 };
/* a chunk that takes longer is slow: a prompt may have arrived */
static const double SLOW_S = 0.04;
static const size_t MIN_SMALL_BYTES = (size_t)64 << 20; /* bytes in small pages; fewer are not worth it */
/* larger checkpoints are left alone, since checking their pages takes over a second */
static const size_t MAX_CHECK = (size_t)128 << 30;

static bool finish(struct huge_pages *l, const char *why) {
    if (l->done_bytes)
        log_say(LOG_INFO, "%zu MB of weights were read into pages of 2 MB in %.1f s%s", l->done_bytes >> 20, l->seconds,
                why);
    l->files = NULL;
    return false;
}

/* Returns whether more than an eighth of the touched bytes are in small pages. *large: bytes in large ones. */
static bool pages_are_small(size_t *large) {
    size_t touched;
    return file_map_pages(&touched, large) && touched > *large + MIN_SMALL_BYTES && touched > *large + touched / 8;
}

bool huge_pages_advance(struct huge_pages *l) {
    size_t large;
    if (!l->files) return false;
    if (!l->is_started) {
        size_t all = 0;
        for (int i = 0; i < l->files->n_shards; i++)
            all += l->files->shards[i].map.embedded ? MAX_CHECK : l->files->shards[i].map.size;
        if (all >= MAX_CHECK || !pages_are_small(&l->large_bytes_before)) return finish(l, "");
        l->is_started = true;
    }
    while (l->shard < l->files->n_shards && l->next_byte + CHUNK > l->files->shards[l->shard].map.size)
        l->shard++, l->next_byte = 0;
    if (l->shard == l->files->n_shards) return finish(l, "");
    double begin = clock_now();
    int rc = file_map_reload(l->files->shards[l->shard].map.data + l->next_byte, CHUNK);
    double took = clock_now() - begin;
    l->next_byte += CHUNK, l->done_bytes += CHUNK, l->seconds += took;
    l->n_slow = took > SLOW_S ? l->n_slow + 1 : 0;
    if (rc || l->n_slow == SLOW) return finish(l, rc ? ", then the system refused" : ", then the disk was too slow");
    if (l->done_bytes == (size_t)PROBE * CHUNK &&
        (!file_map_pages(&(size_t){0}, &large) || large < l->large_bytes_before + l->done_bytes / 2))
        return finish(l, ", which it does not give");
    return true;
}
