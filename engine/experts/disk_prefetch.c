#include "engine/experts/disk_prefetch.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels reject it, and pages are mapped on first touch */
#endif
#ifndef MADV_COLD
#define MADV_COLD 20 /* Linux 5.4; older kernels reject it, and pages stay in LRU order */
#endif

enum {
    RANGES = 2 * PARAMS_MAX /* an expert's matrices and their scales */,
    ROWS = 32 /* largest batch whose router logits are scored */
};

struct expert_list {
    const struct expert **e; /* [n_experts] */
    int n, done;
};

/* state of an expert in the queue of disk reads */
enum announce_state { ANNOUNCE_NONE, ANNOUNCE_QUEUED, ANNOUNCE_DEQUEUED, ANNOUNCE_READ };
/* an expert announced by a draft */
struct announced_expert {
    const struct expert *e;
    int layer;
};

struct disk_prefetch {
    const struct weights *w;
    struct param params[PARAMS_MAX]; /* a routed expert's parameters */
    int n_params;
    size_t page, window; /* read-ahead limit per layer, bytes */
    size_t reserved;     /* bytes of memory reserved for others */
    uint8_t *missing;    /* [n_experts] flags returned by disk_prefetch_selected */
    struct weight_state *weight_state;
    struct expert_list now;                 /* selected and requested; to be waited for and mapped */
    struct expert_list next;                /* likely, requested after now */
    size_t next_bytes;                      /* bytes requested from next */
    struct announced_expert *announced;     /* [n_layers * n_experts] announced, requested after `next` */
    int n_announced, announced_done, layer; /* layer: the last one that selected */
    /* bytes of announced experts in memory or being read whose layer has not selected since */
    size_t announced_bytes;
    uint8_t *announce_state;      /* [n_layers, n_experts] enum announce_state, until the layer selects */
    uint8_t *was_announced;       /* [n_experts] the layer's flags when it selected */
    struct lookahead_need *needs; /* [n_experts] scratch */
    float skill;                  /* recent share of likely experts that were selected */
    unsigned n_skipped;           /* layers without a prediction because skill is low */
    struct disk_prefetch_counts counts;
    struct score score;
    void *score_mem;
    uint8_t *has_slot; /* [n_layers, n_experts] it has a slot */
    int *slots_used;   /* [n_layers] slots in use */
    int32_t *best;     /* [ROWS, 2 * topk] scratch for score_best */
    float *best_score;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool started, quit;
};

/* --- Pages ------------------------------------------------------------------------------------ */

struct page_range {
    uint8_t *p;
    size_t size;
};
static struct page_range whole_pages(const struct disk_prefetch *f, const void *p, size_t size) {
    uintptr_t begin = (uintptr_t)p / f->page * f->page, end = (uintptr_t)p + size;
    return (struct page_range){(uint8_t *)begin, (end - begin + f->page - 1) / f->page * f->page};
}
static int page_ranges(const struct disk_prefetch *f, const struct expert *e, struct page_range *out) {
    int n = 0;
    for (int i = 0; i < f->n_params; i++) {
        if (!f->params[i].cols) continue; /* vectors are copies in memory */
        const struct mat *m = params_mat(e, &f->params[i]);
        out[n++] = whole_pages(f, m->data, mat_span(m));
        if (m->scale) out[n++] = whole_pages(f, m->scale, mat_scale_span(m));
    }
    return n;
}
static bool is_in_memory(const struct disk_prefetch *f, const struct expert *e) {
    struct page_range r[RANGES];
    for (int i = 0, n = page_ranges(f, e, r); i < n; i++)
        if (!file_map_is_cached(r[i].p, r[i].size)) return false;
    return true;
}
static void request_pages(const struct disk_prefetch *f, const struct expert *e) {
    struct page_range r[RANGES];
    for (int i = 0, n = page_ranges(f, e, r); i < n; i++) file_map_prefetch(r[i].p, r[i].size);
}
static void map_pages(const struct disk_prefetch *f, const struct expert *e) {
    struct page_range r[RANGES];
    for (int i = 0, n = page_ranges(f, e, r); i < n; i++) madvise(r[i].p, r[i].size, MADV_POPULATE_READ);
}

/* --- The thread: maps what arrives, so that compute threads need not, and requests what is likely --- */

static uint8_t *announce_state_of(const struct disk_prefetch *f, const struct announced_expert *t) {
    return f->announce_state + (size_t)t->layer * (size_t)f->w->config.n_experts +
           (size_t)(t->e - f->w->layers[t->layer].experts);
}

static void *prefetch_thread(void *arg) {
    struct disk_prefetch *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->quit) {
        const bool maps = f->now.done < f->now.n,
                   reads_next = !maps && f->next.done < f->next.n && f->next_bytes < f->window;
        /* too late */
        while (f->announced_done < f->n_announced && f->announced[f->announced_done].layer <= f->layer)
            f->announced_done++;
        const bool reads_announced =
            !maps && !reads_next && f->announced_done < f->n_announced && f->announced_bytes < f->window;
        if (!maps && !reads_next && !reads_announced) {
            pthread_cond_wait(&f->work, &f->lock);
            continue;
        }
        uint8_t *state = reads_announced ? announce_state_of(f, &f->announced[f->announced_done]) : NULL;
        const struct expert *e = maps         ? f->now.e[f->now.done++]
                                 : reads_next ? f->next.e[f->next.done++]
                                              : f->announced[f->announced_done++].e;
        const size_t bytes = params_bytes(e, f->params, f->n_params);
        if (reads_next) f->next_bytes += bytes;
        if (reads_announced) *state = ANNOUNCE_DEQUEUED;
        pthread_mutex_unlock(&f->lock);
        const bool is_missing = !reads_announced || !is_in_memory(f, e);
        if (maps) map_pages(f, e);
        else if (is_missing) request_pages(f, e);
        pthread_mutex_lock(&f->lock);
        if (!reads_announced || !is_missing) continue;
        f->counts.announced++;
        /* else its layer has selected in the meantime */
        if (*state == ANNOUNCE_DEQUEUED) *state = ANNOUNCE_READ, f->announced_bytes += bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* --- Requests by layers ----------------------------------------------------------------------- */

const uint8_t *disk_prefetch_selected(struct disk_prefetch *f, int layer, const int32_t *ids, int n) {
    const struct expert *all = f->w->layers[layer].experts;
    int n_experts = f->w->config.n_experts, missing = 0, hits = 0, predicted = 0;
    enum { IN_MEMORY, MISSING, NOT_SELECTED };
    pthread_mutex_lock(&f->lock);
    f->now.n = f->now.done = f->next.n = f->next.done = 0; /* drop what the previous layer did not get to */
    f->next_bytes = 0;
    f->layer = layer;
    uint8_t *state = f->announce_state + (size_t)layer * (size_t)n_experts;
    for (int i = 0; i < n_experts; i++) {
        if (state[i] == ANNOUNCE_READ) f->announced_bytes -= params_bytes(&all[i], f->params, f->n_params);
        f->was_announced[i] = state[i], state[i] = ANNOUNCE_NONE, f->missing[i] = NOT_SELECTED;
    }
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < n; i++) {
        uint8_t *flag = ids[i] < 0 ? NULL : &f->missing[ids[i]];
        if (!flag || *flag != NOT_SELECTED) continue;
        *flag = is_in_memory(f, &all[ids[i]]) ? IN_MEMORY : MISSING;
        f->counts.selected++;
        f->counts.announced_hits += f->was_announced[ids[i]] == ANNOUNCE_READ;
        hits += weight_state_has(f->weight_state, layer, ids[i], WEIGHT_PREFETCHED);
        if (*flag != MISSING) continue;
        request_pages(f, &all[ids[i]]);
        f->now.e[missing++] = &all[ids[i]];
    }
    for (int i = 0; i < n_experts; i++) {
        if (f->missing[i] == NOT_SELECTED) f->missing[i] = IN_MEMORY;
        predicted += weight_state_has(f->weight_state, layer, i, WEIGHT_PREFETCHED);
        weight_state_clear(f->weight_state, layer, i, WEIGHT_PREFETCHED);
    }
    f->counts.missing += (uint64_t)missing;
    f->counts.read_ahead_hits += (uint64_t)hits;
    if (predicted) f->skill += ((float)hits / (float)predicted - f->skill) / 16;
    if (!missing) return NULL;
    pthread_mutex_lock(&f->lock);
    f->now.n = missing;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    return f->missing;
}

/* --- Slots ------------------------------------------------------------------------------------ */

static void mark_cold(const struct disk_prefetch *f, const struct expert *e) {
    struct page_range r[RANGES];
    for (int i = 0, n = page_ranges(f, e, r); i < n; i++) {
        if (r[i].size <= 2 * f->page) continue; /* the first and last page are shared with neighbours */
        madvise(r[i].p + f->page, r[i].size - 2 * f->page, MADV_COLD);
    }
}
/* Picks the eviction victim: lowest score, not selected now; -1: none. */
static int eviction_victim(const struct disk_prefetch *f, int layer) {
    const uint8_t *slot = f->has_slot + (size_t)layer * (size_t)f->w->config.n_experts;
    int at = -1;
    for (int i = 0; i < f->w->config.n_experts; i++)
        if (slot[i] && !f->score.load[i] && (at < 0 || score_of(&f->score, layer, i) < score_of(&f->score, layer, at)))
            at = i;
    return at;
}
void disk_prefetch_score(struct disk_prefetch *f, int layer, const int32_t *ids, const float *router, int n) {
    const struct config *c = &f->w->config;
    const struct layer *y = &f->w->layers[layer];
    uint8_t *slot = f->has_slot + (size_t)layer * (size_t)c->n_experts;
    size_t p = 2 * (size_t)c->topk;
    bool known = router && n <= ROWS && !y->router_table;
    for (int i = 0; i < n && known; i++)
        score_best(c->score, y->router_bias, router + (size_t)i * (size_t)config_n_choices(c), c->n_experts, (int)p,
                   f->best + (size_t)i * p, f->best_score + (size_t)i * p);
    score_update(&f->score, layer, &(struct score_rows){n, ids, known ? f->best : NULL, f->best_score});
    for (int i = 0; i < n * c->topk; i++)
        if (ids[i] >= 0 && !slot[ids[i]]) slot[ids[i]] = 1, f->slots_used[layer]++;
    for (int k; f->slots_used[layer] > f->counts.slots_per_layer && (k = eviction_victim(f, layer)) >= 0;
         f->slots_used[layer]--) {
        slot[k] = 0;
        f->counts.evicted++;
        mark_cold(f, &y->experts[k]);
    }
}

bool disk_prefetch_is_useful(struct disk_prefetch *f) { return f->skill >= 0.5f || f->n_skipped++ % 32 == 0; }

void disk_prefetch_likely(struct disk_prefetch *f, int layer, const int32_t *ids, int n) {
    const struct expert *all = f->w->layers[layer].experts;
    int count = 0;
    for (int i = 0; i < n; i++) { /* the thread does not touch next.e while next.n is 0 */
        int id = ids ? ids[i] : i;
        if (weight_state_has(f->weight_state, layer, id, WEIGHT_PREFETCHED) || is_in_memory(f, &all[id])) continue;
        weight_state_set(f->weight_state, layer, id, WEIGHT_PREFETCHED);
        f->next.e[count++] = &all[id];
    }
    f->counts.read_ahead += (uint64_t)count;
    pthread_mutex_lock(&f->lock);
    f->next.n = count;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

void disk_prefetch_announce(struct disk_prefetch *f, const struct lookahead *a, bool unlikely) {
    const struct config *c = &f->w->config;
    pthread_mutex_lock(&f->lock);
    f->n_announced = f->announced_done = 0; /* the rest is announced again */
    f->layer = -1;
    for (int l = 0; l < c->n_layers; l++) {
        uint8_t *state = f->announce_state + (size_t)l * (size_t)c->n_experts;
        const int n = f->w->layers[l].experts ? lookahead_needs(a, l, f->needs, c->n_experts) : 0;
        for (int i = 0; i < n; i++) {
            const struct lookahead_need *need = &f->needs[i];
            score_announce(&f->score, l, &need->expert, 1, need->distance + 1);
            /* below an equal share */
            if (state[need->expert] > ANNOUNCE_QUEUED || (!unlikely && need->confidence * (float)c->topk < 1)) continue;
            state[need->expert] = ANNOUNCE_QUEUED;
            f->announced[f->n_announced++] = (struct announced_expert){&f->w->layers[l].experts[need->expert], l};
        }
    }
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}
void disk_prefetch_counts(struct disk_prefetch *f, struct disk_prefetch_counts *out) {
    pthread_mutex_lock(&f->lock);
    *out = f->counts;
    pthread_mutex_unlock(&f->lock);
}

/* --- Open, close ------------------------------------------------------------------------------ */

bool disk_prefetch_is_needed(const struct weights *w) {
    size_t have = mem_available();
    return have && weights_needed_bytes(w) > have - have / 16;
}

/* Slots per layer that memory holds beside everything else; an eighth of memory stays free. */
static int slots_that_fit(const struct disk_prefetch *f) {
    const struct config *c = &f->w->config;
    size_t have = mem_available(), all = 0, one = 0;
    have -= have / 8;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].moe) all++, one = params_bytes(&f->w->layers[i].experts[0], f->params, f->n_params);
    const size_t others = f->w->bytes_dense + f->reserved;
    size_t rest = have > others ? have - others : 0, each = all && one ? rest / (all * one) : 0;
    return each > (size_t)c->n_experts ? c->n_experts : each < (size_t)c->topk ? c->topk : (int)each;
}

void disk_prefetch_reserve(struct disk_prefetch *f, size_t bytes) {
    f->reserved = bytes;
    f->counts.slots_per_layer = slots_that_fit(f);
}

int disk_prefetch_open(struct disk_prefetch **out, const struct weights *w, struct weight_state *known,
                       const struct score_policy *keep, struct error *e) {
    size_t n = (size_t)w->config.n_experts + 1;
    struct disk_prefetch *f = mem_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return error_set(e, ERR_MEMORY, "no memory to read weights ahead");
    *f = (struct disk_prefetch){.w = w,
                                .weight_state = known,
                                .page = (size_t)sysconf(_SC_PAGESIZE),
                                .window = mem_available() / 16,
                                .skill = 1};
    for (int i = w->config.n_layers; i-- > 0 && !f->n_params;)
        f->n_params = params_list(&w->config, i, MODULE_EXPERT, f->params);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    f->layer = -1;
    f->missing = mem_alloc(n);
    f->now.e = mem_alloc(n * sizeof *f->now.e);
    f->next.e = mem_alloc(n * sizeof *f->next.e);
    const struct config *c = &w->config;
    f->announced = mem_alloc((size_t)c->n_layers * n * sizeof *f->announced);
    f->announce_state = mem_calloc((size_t)c->n_layers, n);
    f->was_announced = mem_alloc(n);
    f->needs = mem_alloc(n * sizeof *f->needs);
    f->score_mem = mem_calloc(1, score_bytes(c->n_layers, c->n_experts));
    f->has_slot = mem_calloc((size_t)c->n_layers * n, 1);
    f->slots_used = mem_calloc((size_t)c->n_layers, sizeof *f->slots_used);
    f->best = mem_alloc(2 * ROWS * (size_t)c->topk * sizeof *f->best);
    f->best_score = mem_alloc(2 * ROWS * (size_t)c->topk * sizeof *f->best_score);
    if (f->score_mem) score_open(&f->score, keep, c->n_layers, c->n_experts, c->topk, f->score_mem);
    f->counts.slots_per_layer = slots_that_fit(f);
    bool all = f->missing && f->now.e && f->next.e && f->score_mem && f->has_slot && f->slots_used && f->best &&
               f->best_score && f->announced && f->announce_state && f->was_announced && f->needs;
    int rc = all ? 0 : error_set(e, ERR_MEMORY, "no memory to read weights ahead");
    if (!rc && pthread_create(&f->thread, NULL, prefetch_thread, f))
        rc = error_set(e, ERR_RUNTIME, "cannot start a thread to read weights ahead");
    f->started = !rc;
    if (rc) disk_prefetch_close(&f);
    *out = f;
    return rc;
}

void disk_prefetch_close(struct disk_prefetch **fp) {
    struct disk_prefetch *f = *fp;
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->quit = true;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    if (f->started) pthread_join(f->thread, NULL);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->work);
    mem_free(f->missing);
    mem_free((void *)f->now.e);
    mem_free((void *)f->next.e);
    mem_free(f->score_mem), mem_free(f->has_slot), mem_free(f->slots_used), mem_free(f->best), mem_free(f->best_score);
    mem_free(f->announced), mem_free(f->announce_state), mem_free(f->was_announced), mem_free(f->needs);
    mem_free(f);
    *fp = NULL;
}
