#include "engine/transfer/pin.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "engine/weights/numa_copy.h"
#include "engine/weights/numa_ranges.h"

enum { READERS = 8, MAX_STAGE_THREADS = 8, MIN_STAGE_THREADS = 4, CORES_PER_THREAD = 8, FAR_SHARE = 12 };
static const size_t READ_BYTES = (size_t)16 << 20, PROBE_BYTES = (size_t)2 << 20; /* a large page */
static const useconds_t HOLD_POLL_US = 1000;
static const double THREAD_RATE = 6e9; /* memcpy rate of one thread, bytes/s */

struct pin_extent { /* range of a file, or of a slab, that one registration covers */
    const uint8_t *at;
    size_t bytes;  /* whole pages */
    bool is_table; /* of n-grams: neither copied nor registered */
    _Atomic int pinned;
};
struct pin {
    struct gpu *gpu;
    const struct weights *w;
    struct pin_choice choice;
    struct numa nodes;
    struct numa_ranges spans; /* NUMA placement of the bytes; empty without choice.by_node */
    struct pin_extent *extents;
    int n_extents, *first; /* first [weights_ranges + 1]: first extent of each range */
    /* next extent to place; placed extents; next extent to register after that */
    _Atomic int next, n_placed, next_held;
    _Atomic int n_working, stop, is_full, held; /* running threads; is_full: no more can be registered */
    double begin_s;
    pthread_t thread[READERS];
    int n_threads;
    bool is_started;
};

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }
static size_t whole_pages(size_t n) { return (n + page_size() - 1) / page_size() * page_size(); }

int pin_stage_threads(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN), n = cores / CORES_PER_THREAD;
    n = n < MIN_STAGE_THREADS ? MIN_STAGE_THREADS : n > MAX_STAGE_THREADS ? MAX_STAGE_THREADS : n;
    return (int)(n <= cores / 2 ? n : cores > 1 ? cores / 2 : 1);
}
int pin_idle_stage_threads(void) {
    const long cores_used = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    return (int)(cores_used < 1 ? 1 : cores_used > MAX_STAGE_THREADS ? MAX_STAGE_THREADS : cores_used);
}

/* --- The choice ------------------------------------------------------------------------------- */

const char *pin_name(enum pin_path p) {
    static const char *const names[] = {"built in", "mapped", "copied", "staged"};
    return names[p];
}
double pin_rate(enum pin_path p, double link) {
    double most = pin_stage_threads() * THREAD_RATE;
    return p == PIN_STAGED && (!(link > 0) || link > most) ? most : link;
}

/* Whether our own pages replace the mapped files. */
static bool copies(const struct pin_choice *c) { return c->path == PIN_COPIED || c->by_node; }
static bool can_register(struct gpu *g, const void *p, size_t size, struct error *e) {
    if (gpu_host_register(g, p, size, e)) return false;
    gpu_host_unregister(g, p, size);
    return true;
}

/* Bytes of the first extent of a range, of which `left` bytes remain. */
static size_t extent_bytes(const struct gpu *g, const uint8_t *at, size_t left) {
    const size_t n = gpu_register_chunk(g) - (uintptr_t)at % gpu_register_chunk(g);
    return n < left ? n : left;
}
/* Bytes of a range in extents that stay mapped and unpinned. */
static size_t table_bytes(const struct gpu *g, const struct weights *w, const struct weights_range *r) {
    const size_t bytes = whole_pages(r->bytes);
    size_t sum = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = extent_bytes(g, r->at + at, bytes - at);
        if (weights_is_ngram_table(w, r->at + at, n)) sum += n;
    }
    return sum;
}

struct pin_choice pin_choose(struct gpu *g, const struct weights *w, const struct numa *nodes) {
    struct pin_choice c = {.path = PIN_STAGED};
    struct error mapped_error = {0}, own_error = {0};
    struct weights_range file_range = {0}; /* of a file */
    size_t file_bytes = 0;
    size_t available = mem_available(),
           /* the rest is for KV caches, workspaces and other programs */
        max_bytes = test_limits_get(TEST_LIMIT_PIN_BYTES, available / 8 * 7);
    for (int i = 0; i < weights_ranges(w); i++) {
        const struct weights_range r = weights_range(w, i);
        const size_t bytes = r.bytes - table_bytes(g, w, &r);
        if (r.is_file && bytes) file_range = r, file_bytes += bytes;
        c.bytes += bytes;
    }
    if (!c.bytes) {
        c.path = PIN_BUILT_IN;
        snprintf(c.why, sizeof c.why, "they are part of the executable");
        return c;
    }
    if (file_bytes > max_bytes) {
        snprintf(c.why, sizeof c.why, "%zu MiB do not fit in the %zu MiB of memory that may be pinned",
                 file_bytes >> 20, max_bytes >> 20);
        return c;
    }
    const bool maps = file_bytes &&
                      can_register(g, file_range.at, file_range.bytes < PROBE_BYTES ? file_range.bytes : PROBE_BYTES,
                                   &mapped_error),
               /* repacked weights are in memory already */
        by_node = nodes->n_nodes > 1 && numa_copy_fits(nodes, file_bytes, false);
    void *p = maps && !by_node ? NULL : mem_pages(PROBE_BYTES, 0);
    if (p && can_register(g, p, PROBE_BYTES, &own_error)) c.path = PIN_COPIED;
    else if (maps) c.path = PIN_MAPPED;
    c.by_node = by_node && c.path != PIN_MAPPED;
    mem_pages_free(p, PROBE_BYTES);
    if (c.by_node)
        snprintf(c.why, sizeof c.why, "each of %d NUMA nodes gets the rows that its CPUs compute%s", nodes->n_nodes,
                 c.path == PIN_STAGED ? "; the driver cannot pin memory" : "");
    else if (c.path == PIN_STAGED)
        snprintf(c.why, sizeof c.why, "the driver cannot pin memory: %.80s",
                 p ? own_error.text : "no memory for a test");
    else if (!file_bytes) snprintf(c.why, sizeof c.why, "they are repacked in memory of their own");
    else
        snprintf(c.why, sizeof c.why, "the driver %s pin mapped files%s", maps ? "can" : "cannot",
                 nodes->n_nodes > 1 && !by_node ? ", and a NUMA node has too little memory for its rows of all weights"
                                                : "");
    return c;
}

/* --- Pinning ---------------------------------------------------------------------------------- */

/* Whether an allocation of that size leaves other programs a sixteenth of the memory. */
static bool leaves_memory(size_t bytes) {
    size_t available = mem_available();
    return available > bytes && available - bytes > mem_total() / 16;
}

/* Copies a part of the file to our own pages, which replace the mapping. */
static int replace_mapping(struct pin *p, const struct pin_extent *extent, struct error *e) {
    /* Where 2 MB span rows of several nodes, as in small experts, small pages cost less than reads from other nodes. */
    const bool is_fine =
        numa_ranges_misplaced(&p->spans, extent->at, extent->bytes, PROBE_BYTES) > extent->bytes / FAR_SHARE;
    const size_t page = is_fine ? page_size() : PROBE_BYTES;
    uint8_t *own = leaves_memory(extent->bytes) ? mem_pages(extent->bytes, is_fine ? MEM_SMALL : MEM_HUGE) : NULL;
    if (!own) return error_set(e, ERR_MEMORY, "no memory for a copy of %zu MiB of weights", extent->bytes >> 20);
    const size_t max_bytes = test_limits_get(TEST_LIMIT_COPY_BYTES, READ_BYTES);
    int rc = 0;
    for (size_t at = 0, n; at < extent->bytes && !rc; at += n) {
        int node;
        n = numa_ranges_run(&p->spans, extent->at + at, extent->bytes - at, (uintptr_t)own + at, page, max_bytes,
                            &node);
        numa_prefer(&p->nodes, node);
        rc = atomic_load(&p->stop) ? ERR_CANCELLED : file_map_copy(own + at, extent->at + at, n, e);
    }
    if (!rc) rc = file_map_replace(extent->at, own, extent->bytes, e);
    if (rc) mem_pages_free(own, extent->bytes);
    return rc;
}

/* Moves the pages of a slab to their nodes. */
static void move_pages_to_nodes(const struct pin *p, const struct pin_extent *extent) {
    for (size_t at = 0, n; at < extent->bytes && p->choice.by_node; at += n) {
        int node;
        n = numa_ranges_run(&p->spans, extent->at + at, extent->bytes - at, (uintptr_t)extent->at + at, page_size(),
                            READ_BYTES, &node);
        numa_move_to(&p->nodes, extent->at + at, n, node);
    }
}

/* Waits until no session decodes, at most PIN_PATIENCE_S. */
static void wait_while_held(const struct pin *p) {
    const double begin_s = clock_now();
    while (atomic_load(&p->held) && !atomic_load(&p->stop) && clock_now() - begin_s < PIN_PATIENCE_S)
        usleep(HOLD_POLL_US);
}

/* Registers an extent, unless it is registered already or no more can be. */
static void register_extent(struct pin *p, struct pin_extent *extent) {
    struct error e = {0};
    if (p->choice.path == PIN_STAGED || extent->is_table || atomic_load(&p->is_full) || atomic_load(&extent->pinned))
        return;
    if (!gpu_host_register(p->gpu, extent->at, extent->bytes, &e)) {
        atomic_store(&extent->pinned, 1);
        return;
    }
    log_say(LOG_INFO, "unpinned weights are uploaded through staging buffers: %s", e.text);
    atomic_store(&p->is_full, 1);
    if (!p->choice.by_node) atomic_store(&p->stop, 1); /* the other extents would be copied only to be pinned */
}
/* Copies an extent of a file to our own pages, or moves the pages of a slab to their nodes. */
static void place_extent(struct pin *p, int i) {
    struct error e = {0};
    if (i >= p->first[p->w->files.n_shards]) return move_pages_to_nodes(p, &p->extents[i]);
    if (p->extents[i].is_table || !copies(&p->choice) || !replace_mapping(p, &p->extents[i], &e)) return;
    if (e.code != ERR_CANCELLED && !atomic_load(&p->stop))
        log_say(p->choice.by_node ? LOG_WARN : LOG_INFO, "the other weights stay mapped, unpinned: %s", e.text);
    atomic_store(&p->stop, 1);
}

/* Places all extents, and registers those that it can while no session decodes; then registers the others. */
static void *pin_thread(void *arg) {
    struct pin *p = arg;
    for (int i; !atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n_extents;
         atomic_fetch_add(&p->n_placed, 1)) {
        place_extent(p, i);
        if (!atomic_load(&p->held) && !atomic_load(&p->stop)) register_extent(p, &p->extents[i]);
    }
    while (!atomic_load(&p->stop) && atomic_load(&p->n_placed) < p->n_extents) usleep(HOLD_POLL_US);
    for (int i; !atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next_held, 1)) < p->n_extents;) {
        if (!atomic_load(&p->extents[i].pinned)) wait_while_held(p);
        if (!atomic_load(&p->stop)) register_extent(p, &p->extents[i]);
    }
    if (atomic_fetch_sub(&p->n_working, 1) == 1 && !atomic_load(&p->stop))
        log_say(LOG_INFO, "weights %s%s in %.1f s", copies(&p->choice) ? "copied" : "pinned",
                p->choice.path == PIN_COPIED && !atomic_load(&p->is_full) ? " and pinned" : "",
                clock_now() - p->begin_s);
    return NULL;
}

static void lay_out_extents(struct pin *p) {
    p->n_extents = 0;
    for (int i = 0; i < weights_ranges(p->w); i++) {
        const struct weights_range r = weights_range(p->w, i);
        p->first[i] = p->n_extents;
        size_t bytes = whole_pages(r.bytes);
        for (size_t at = 0, n; at < bytes; at += n) {
            n = extent_bytes(p->gpu, r.at + at, bytes - at);
            if (p->extents) p->extents[p->n_extents].at = r.at + at, p->extents[p->n_extents].bytes = n;
            if (p->extents) p->extents[p->n_extents].is_table = weights_is_ngram_table(p->w, r.at + at, n);
            p->n_extents++;
        }
    }
    p->first[weights_ranges(p->w)] = p->n_extents;
}

int pin_open(struct pin **out, struct gpu *g, const struct weights *w, const struct numa *nodes, bool held,
             struct error *e) {
    struct pin *p = mem_calloc(1, sizeof *p);
    *out = p;
    if (!p || !(p->first = mem_calloc((size_t)weights_ranges(w) + 1, sizeof *p->first))) goto no_memory;
    p->gpu = g;
    p->w = w;
    atomic_init(&p->held, held);
    p->nodes = *nodes;
    p->choice = pin_choose(g, w, nodes);
    log_say(LOG_INFO, "weights for devices: %s; %s", pin_name(p->choice.path), p->choice.why);
    if (p->choice.path != PIN_MAPPED && !copies(&p->choice)) return 0;
    if (p->choice.by_node && numa_ranges_open(&p->spans, w, nodes, e)) goto fail;
    lay_out_extents(p);
    if (!(p->extents = mem_calloc((size_t)p->n_extents, sizeof *p->extents))) goto no_memory;
    lay_out_extents(p);
    return 0;
no_memory:
    error_set(e, ERR_MEMORY, "no memory to pin the weights");
fail:
    pin_close(out);
    return e->code;
}

void pin_start(struct pin *p) {
    if (!p || !p->extents || p->is_started) return;
    p->is_started = true;
    p->begin_s = clock_now();
    const int n = copies(&p->choice) ? pin_stage_threads() : 1; /* the driver registers one range at a time */
    for (; p->n_threads < n; p->n_threads++) {
        atomic_fetch_add(&p->n_working, 1);
        if (!pthread_create(&p->thread[p->n_threads], NULL, pin_thread, p)) continue;
        atomic_fetch_sub(&p->n_working, 1);
        break;
    }
    if (!p->n_threads)
        log_say(LOG_WARN, "cannot start a thread to pin the weights: they are uploaded through staging buffers");
}

void pin_close(struct pin **pp) {
    struct pin *p = *pp;
    if (!p) return;
    *pp = NULL;
    atomic_store(&p->stop, 1);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->thread[i], NULL);
    for (int i = 0; p->extents && i < p->n_extents; i++)
        if (atomic_load(&p->extents[i].pinned)) gpu_host_unregister(p->gpu, p->extents[i].at, p->extents[i].bytes);
    numa_ranges_close(&p->spans);
    mem_free(p->extents);
    mem_free(p->first);
    mem_free(p);
}

const struct pin_choice *pin_get_choice(const struct pin *p) { return &p->choice; }
size_t pin_own_bytes(const struct pin *p) {
    return copies(&p->choice) && p->n_extents
               ? p->choice.bytes / (size_t)p->n_extents * (size_t)atomic_load(&p->n_placed)
               : 0;
}
bool pin_is_done(const struct pin *p) { return !atomic_load(&p->n_working); }
void pin_hold(struct pin *p, bool held) {
    if (p && atomic_load_explicit(&p->held, memory_order_relaxed) != held) atomic_store(&p->held, held);
}
size_t pin_page_table_bytes(const struct pin *p) {
    enum { PAGE = 4096, ENTRY = 8 };
    return p->n_extents && p->choice.path != PIN_STAGED ? p->choice.bytes / PAGE * ENTRY : 0;
}

bool pin_covers(const struct pin *p, const void *where, size_t size) {
    const uint8_t *b = where;
    for (int i = 0; p->extents && i < weights_ranges(p->w); i++) {
        const struct weights_range r = weights_range(p->w, i);
        if (!r.bytes || b < r.at || b >= r.at + r.bytes) continue;
        size_t most = gpu_register_chunk(p->gpu), base = (uintptr_t)r.at / most;
        size_t from = (uintptr_t)b / most - base, to = (uintptr_t)(b + (size ? size - 1 : 0)) / most - base;
        bool all = b + size <= r.at + r.bytes;
        for (size_t k = from; k <= to && all; k++)
            all = p->extents[p->first[i] + (int)k].is_table || atomic_load(&p->extents[p->first[i] + (int)k].pinned);
        return all;
    }
    return false;
}
