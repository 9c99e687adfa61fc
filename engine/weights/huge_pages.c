#include "engine/weights/huge_pages.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* Pages in a row that end it: that stay small, at first and after some became large; that are slow. */
enum { SMALL_FIRST = 4, SMALL_LATER = 16, SLOW = 5 };
static const double SLOW_S = 0.01; /* a large page that takes longer to read is slow */
static const double REST = 2;      /* times as long as reading took: an answer loses little speed meanwhile */

struct huge_pages {
    const struct checkpoint *files;
    pthread_t thread;
    atomic_bool stop;
    int n_read, n_small, n_slow; /* pages read; in a row: that stayed small, that were slow */
    bool gives_large;
    double seconds;
};

/* Reads one page again. Returns why to end, or NULL. */
static const char *convert(struct huge_pages *l, const uint8_t *p) {
    const double begin = clock_now();
    if (file_map_reload(p, MEM_HUGE_PAGE)) return ", then the system refused";
    const double took = clock_now() - begin;
    l->n_read++, l->seconds += took;
    l->n_slow = took > SLOW_S ? l->n_slow + 1 : 0;
    usleep((useconds_t)(REST * 1e6 * fmin(took, SLOW_S)));
    if (l->n_slow == SLOW) return ", then the disk was too slow";
    const bool is_large = file_map_large(p, MEM_HUGE_PAGE) == MEM_HUGE_PAGE;
    l->gives_large |= is_large;
    l->n_small = is_large ? 0 : l->n_small + 1;
    if (l->n_small < (l->gives_large ? SMALL_LATER : SMALL_FIRST)) return NULL;
    return l->gives_large ? ", then the system gave no more" : ", which it does not give";
}
static const char *convert_file(struct huge_pages *l, const struct file_map *m) {
    const char *why = NULL;
    for (size_t at = 0; !why && at + MEM_HUGE_PAGE <= m->size; at += MEM_HUGE_PAGE) {
        if (atomic_load(&l->stop)) return ", then the program ended";
        const uint8_t *p = m->data + at;
        const size_t cached = file_map_cached(p, MEM_HUGE_PAGE);
        if (!cached) continue;
        if (cached == MEM_HUGE_PAGE && (file_map_touch(p, MEM_HUGE_PAGE) || file_map_large(p, MEM_HUGE_PAGE))) continue;
        why = convert(l, p);
    }
    return why;
}
static void *huge_pages_thread(void *huge_pages) {
    struct huge_pages *l = huge_pages;
    const char *why = NULL;
    for (int i = 0; !why && i < l->files->n_shards; i++)
        if (!l->files->shards[i].map.embedded) why = convert_file(l, &l->files->shards[i].map);
    if (l->n_read)
        log_say(LOG_INFO, "%zu MB of weights were read into pages of 2 MB in %.1f s%s",
                (size_t)l->n_read * MEM_HUGE_PAGE >> 20, l->seconds, why ? why : "");
    return NULL;
}

void huge_pages_open(struct huge_pages **out, const struct checkpoint *files) {
    struct huge_pages *l = file_map_large(files, 1) < 0 ? NULL : mem_calloc(1, sizeof *l);
    *out = NULL;
    if (!l) return;
    l->files = files;
    if (!pthread_create(&l->thread, NULL, huge_pages_thread, l)) *out = l;
    else mem_free(l);
}
void huge_pages_close(struct huge_pages **huge_pages) {
    struct huge_pages *l = *huge_pages;
    if (!l) return;
    atomic_store(&l->stop, true);
    pthread_join(l->thread, NULL);
    mem_free(l);
    *huge_pages = NULL;
}
