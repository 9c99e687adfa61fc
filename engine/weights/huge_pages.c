#include "engine/weights/huge_pages.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"

enum { PIECE = 8 << 20, PROBE = 8 /* chunks until the gain is checked */, SLOW = 3 };
static const double most_s = 0.04;              /* per chunk: a prompt may have arrived */
static const size_t little = (size_t)64 << 20;  /* bytes in small pages; below this it is not worth it */
static const size_t looked = (size_t)128 << 30; /* limit of bytes to check, since checking them takes a second */

static bool over(struct huge_pages *l, const char *why) {
    if (l->done_bytes) log_say(LOG_INFO, "%zu MB of weights were read into pages of 2 MB in %.1f s%s", l->done_bytes >> 20, l->seconds, why);
    l->files = NULL;
    return false;
}

/* Returns whether the checked pages are small pages. */
static bool pages_are_small(size_t *large) {
    size_t touched;
    return file_map_pages(&touched, large) && touched > *large + little && touched > *large + touched / 8;
}

bool huge_pages_advance(struct huge_pages *l) {
    size_t large;
    if (!l->files) return false;
    if (!l->is_started) {
        size_t all = 0;
        for (int i = 0; i < l->files->n_shards; i++) all += l->files->shards[i].map.embedded ? looked : l->files->shards[i].map.size;
        if (all >= looked || !pages_are_small(&l->large_bytes_before)) return over(l, "");
        l->is_started = true;
    }
    while (l->shard < l->files->n_shards && l->next_byte + PIECE > l->files->shards[l->shard].map.size) l->shard++, l->next_byte = 0;
    if (l->shard == l->files->n_shards) return over(l, "");
    double begin = clock_now();
    int rc = file_map_reload(l->files->shards[l->shard].map.data + l->next_byte, PIECE);
    double took = clock_now() - begin;
    l->next_byte += PIECE, l->done_bytes += PIECE, l->seconds += took;
    l->n_slow = took > most_s ? l->n_slow + 1 : 0;
    if (rc || l->n_slow == SLOW) return over(l, rc ? ", then the system refused" : ", then the disk was too slow");
    if (l->done_bytes == (size_t)PROBE * PIECE && (!file_map_pages(&(size_t){0}, &large) || large < l->large_bytes_before + l->done_bytes / 2))
        return over(l, ", which it does not give");
    return true;
}
