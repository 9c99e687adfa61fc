#include "engine/store/fetch.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels refuse it, and the pages are mapped as they are touched */
#endif

enum { RANGES = 2 * PARAMS_MAX }; /* of an expert: its matrices and their scales */

struct list {
    const struct expert **e; /* [n_experts] */
    int n, done;
};

struct fetch {
    const struct weights *w;
    struct param params[PARAMS_MAX]; /* of a routed expert */
    int n_params;
    size_t page, window; /* bytes that may be read ahead for a layer */
    uint8_t *late;       /* [n_experts] */
    struct residency *known;
    struct list now;    /* asked for, to be waited for and mapped */
    struct list next;   /* to be asked for when now is through */
    size_t ahead;       /* bytes of next that were asked for */
    float skill;        /* share of what was read ahead and then chosen, of late */
    unsigned held_back; /* layers for which a bad guesser was not asked */
    struct fetch_counts counts;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool started, quit;
};

/* --- Pages --- */

struct range {
    uint8_t *p;
    size_t size;
};
static struct range whole_pages(const struct fetch *f, const void *p, size_t size) {
    uintptr_t begin = (uintptr_t)p / f->page * f->page, end = (uintptr_t)p + size;
    return (struct range){(uint8_t *)begin, (end - begin + f->page - 1) / f->page * f->page};
}
static int ranges(const struct fetch *f, const struct expert *e, struct range *out) {
    int n = 0;
    for (int i = 0; i < f->n_params; i++) {
        if (!f->params[i].cols) continue; /* vectors are copies, always there */
        const struct mat *m = params_mat(e, &f->params[i]);
        out[n++] = whole_pages(f, m->data, mat_span(m));
        if (m->scale) out[n++] = whole_pages(f, m->scale, mat_scale_span(m));
    }
    return n;
}
static bool resident(const struct fetch *f, const struct expert *e) {
    unsigned char in[1024];
    struct range r[RANGES];
    for (int i = 0, n = ranges(f, e, r); i < n; i++)
        for (size_t at = 0, step; at < r[i].size; at += step) {
            step = r[i].size - at < sizeof in * f->page ? r[i].size - at : sizeof in * f->page;
            if (mincore(r[i].p + at, step, in)) return true; /* not to be known: as if nothing were asked */
            for (size_t k = 0; k < step / f->page; k++)
                if (!(in[k] & 1)) return false;
        }
    return true;
}
static void ask_for(const struct fetch *f, const struct expert *e) {
    struct range r[RANGES];
    for (int i = 0, n = ranges(f, e, r); i < n; i++) file_map_ahead(r[i].p, r[i].size);
}
static void wait_for(const struct fetch *f, const struct expert *e) {
    struct range r[RANGES];
    for (int i = 0, n = ranges(f, e, r); i < n; i++) madvise(r[i].p, r[i].size, MADV_POPULATE_READ);
}

/* --- The thread: maps what comes in, so that the pool's threads need not, and asks for what is likely --- */

static void *run(void *arg) {
    struct fetch *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->quit) {
        bool wait = f->now.done < f->now.n, ask = !wait && f->next.done < f->next.n && f->ahead < f->window;
        if (!wait && !ask) {
            pthread_cond_wait(&f->work, &f->lock);
            continue;
        }
        const struct expert *e = wait ? f->now.e[f->now.done++] : f->next.e[f->next.done++];
        if (ask) f->ahead += params_bytes(e, f->params, f->n_params);
        pthread_mutex_unlock(&f->lock);
        (wait ? wait_for : ask_for)(f, e);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* --- What the layers ask --- */

const uint8_t *fetch_chosen(struct fetch *f, int layer, const int32_t *ids, int n) {
    const struct expert *all = f->w->layers[layer].experts;
    int n_experts = f->w->config.n_experts, missing = 0, right = 0, guesses = 0;
    enum { THERE, GONE, UNSEEN };
    pthread_mutex_lock(&f->lock);
    f->now.n = f->now.done = f->next.n = f->next.done = 0; /* what the last layer did not come to read is not wanted any more */
    f->ahead = 0;
    pthread_mutex_unlock(&f->lock);
    memset(f->late, UNSEEN, (size_t)n_experts);
    for (int i = 0; i < n; i++) {
        uint8_t *late = &f->late[ids[i]];
        if (*late != UNSEEN) continue;
        *late = resident(f, &all[ids[i]]) ? THERE : GONE;
        f->counts.chosen++;
        right += residency_is(f->known, layer, ids[i], RESIDENCY_AHEAD);
        if (*late != GONE) continue;
        ask_for(f, &all[ids[i]]);
        f->now.e[missing++] = &all[ids[i]];
    }
    for (int i = 0; i < n_experts; i++) {
        if (f->late[i] == UNSEEN) f->late[i] = THERE;
        guesses += residency_is(f->known, layer, i, RESIDENCY_AHEAD);
        residency_clear(f->known, layer, i, RESIDENCY_AHEAD);
    }
    f->counts.missing += (uint64_t)missing;
    f->counts.guessed += (uint64_t)right;
    if (guesses) f->skill += ((float)right / (float)guesses - f->skill) / 16;
    if (!missing) return NULL;
    pthread_mutex_lock(&f->lock);
    f->now.n = missing;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    return f->late;
}

bool fetch_wants(struct fetch *f) { return f->skill >= 0.5f || f->held_back++ % 32 == 0; }

void fetch_likely(struct fetch *f, int layer, const int32_t *ids, int n) {
    const struct expert *all = f->w->layers[layer].experts;
    int count = 0;
    for (int i = 0; i < n; i++) { /* the thread leaves next.e alone while there is nothing in it */
        int id = ids ? ids[i] : i;
        if (residency_is(f->known, layer, id, RESIDENCY_AHEAD) || resident(f, &all[id])) continue;
        residency_set(f->known, layer, id, RESIDENCY_AHEAD);
        f->next.e[count++] = &all[id];
    }
    f->counts.likely += (uint64_t)count;
    pthread_mutex_lock(&f->lock);
    f->next.n = count;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

void fetch_count(const struct fetch *f, struct fetch_counts *out) { *out = f->counts; }

/* --- Open, close --- */

bool fetch_needed(const struct weights *w) {
    size_t have = mem_available();
    return have && w->files.bytes - w->bytes_skipped > have - have / 16;
}

int fetch_open(struct fetch **out, const struct weights *w, struct residency *known, struct error *e) {
    size_t n = (size_t)w->config.n_experts + 1;
    struct fetch *f = mem_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return error_set(e, ERR_MEMORY, "no memory to read weights ahead");
    *f = (struct fetch){.w = w, .known = known, .page = (size_t)sysconf(_SC_PAGESIZE), .window = mem_available() / 16, .skill = 1};
    for (int i = w->config.n_layers; i-- > 0 && !f->n_params;) f->n_params = params_list(&w->config, i, MODULE_EXPERT, f->params);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    f->late = mem_alloc(n);
    f->now.e = mem_alloc(n * sizeof *f->now.e);
    f->next.e = mem_alloc(n * sizeof *f->next.e);
    int rc = f->late && f->now.e && f->next.e ? 0 : error_set(e, ERR_MEMORY, "no memory to read weights ahead");
    if (!rc && pthread_create(&f->thread, NULL, run, f)) rc = error_set(e, ERR_RUNTIME, "no thread to read weights ahead");
    f->started = !rc;
    if (rc) fetch_close(&f);
    *out = f;
    return rc;
}

void fetch_close(struct fetch **fp) {
    struct fetch *f = *fp;
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->quit = true;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    if (f->started) pthread_join(f->thread, NULL);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->work);
    mem_free(f->late);
    mem_free((void *)f->now.e);
    mem_free((void *)f->next.e);
    mem_free(f);
    *fp = NULL;
}
