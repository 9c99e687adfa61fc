/* Invariants of the engine's state, and what a process must give back. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/engine_state.h"
#include "test/world/fibers.h"
#include "test/world/world.h"

static size_t n_queued(const struct fair_queue *q, const struct engine *eng) {
    size_t n = 0;
    for (const struct session *s = eng->sessions; s; s = s->next) n += atomic_load(&s->state) == SESSION_QUEUED;
    return n;
}

void check_engine(struct engine *eng, int n_sessions) {
    int n = 0, unread = 0, in_prefill = 0;
    if (fibers_is_locked(&eng->lock)) return;
    for (const struct session *s = eng->sessions; s; s = s->next) {
        const int state = atomic_load(&s->state);
        n++;
        unread += s->n_unread + (s->progress_serial != 0) + (s->end_serial != 0);
        in_prefill += state == SESSION_PREFILL;
        if (state == SESSION_IDLE && (s->n_unread || s->end_serial)) world_fail("an idle session has unread events");
        if (s->n_kv > s->n_tokens) world_fail("the KV cache has %d of %d tokens", s->n_kv, s->n_tokens);
        if (s->n_borrowers < 0) world_fail("a session has %d borrowers", s->n_borrowers);
    }
    if (n != n_sessions) world_fail("the engine has %d sessions, the users %d", n, n_sessions);
    if (unread != eng->n_unread)
        world_fail("the engine counts %d unread events, its sessions %d", eng->n_unread, unread);
    for (const struct session *s = eng->prefilling; s; s = s->prefill.below) in_prefill -= !s->prefill.is_abandoned;
    if (in_prefill) world_fail("%d sessions in prefill are not in the list", in_prefill);
    if ((fair_queue_next(&eng->prefill_queue, NULL, NULL) != NULL) != (n_queued(&eng->prefill_queue, eng) > 0))
        world_fail("the queue of prompts does not hold the queued sessions");
}

/* References to a block that the sessions hold. */
static int count_refs(const struct engine *eng, const struct kv_shared *b) {
    int n = 0;
    for (const struct session *s = eng->sessions; s; s = s->next) {
        for (size_t i = 0; i < s->prefix.n_chunks; i++) n += s->prefix.chunks[i].block == b;
        for (size_t i = 0; i < s->prefix.n_mapped_blocks; i++) n += s->prefix.mapped_blocks[i] == b;
    }
    return n;
}
static void check_prefix(const struct engine *eng, const struct session *s) {
    const struct prefix *p = &s->prefix;
    int end = 0, exact = 0;
    for (size_t i = 0; i < p->n_chunks; i++) {
        const struct prefix_chunk *x = &p->chunks[i];
        if (x->end <= end) world_fail("chunk %zu of a prefix ends at %d, the one before at %d", i, x->end, end);
        if (x->block && (x->block->from != end || x->block->to != x->end))
            world_fail("chunk %d to %d of a prefix has the rows %d to %d", end, x->end, x->block->from, x->block->to);
        if (x->block && !eng->kv_disk && atomic_load(&x->block->refs) != count_refs(eng, x->block))
            world_fail("a block of KV memory counts %d references of %d", atomic_load(&x->block->refs),
                       count_refs(eng, x->block));
        end = x->end;
        if (x->key) exact = end;
    }
    if (exact != p->exact_end) world_fail("a prefix is exact up to %d, not %d", exact, p->exact_end);
}

/* The memory of devices: classes add up, and a prefill has given back what it borrowed. */
static void check_devices(struct engine *eng) {
    struct gpu_set *set = eng->machine.gpus;
    for (int i = 0; set && i < set->n; i++) {
        struct ledger *l = &set->ledger[i];
        size_t n = 0;
        if (l->is_locked || l->n_retired) world_fail("device %d: the ledger of an idle engine is locked", i);
        if (ledger_bytes(l, 1u << LEDGER_STREAMED)) world_fail("device %d: slots of a prefill are left", i);
        for (int k = 0; k < LEDGER_CLASSES; k++) {
            n += l->bytes[k];
            if (!l->bytes[k] != !l->n[k]) world_fail("device %d: %zu entries of %zu bytes", i, l->n[k], l->bytes[k]);
        }
        if (n != ledger_bytes(l, (1u << LEDGER_CLASSES) - 1)) world_fail("device %d: classes do not add up", i);
        if (!set->is_lost && n + gpu_mem_free(set->gpu[i]) > gpu_info(set->gpu[i])->mem)
            world_fail("device %d: the ledger holds more than the device", i);
    }
}

/* The engine thread may still free what the last turn left: it comes to rest first. */
void check_idle(struct engine *eng) {
    enum { PATIENCE = 100000 };
    for (int i = 0; !fibers_sleep_all(); i++) {
        if (i == PATIENCE) world_fail("the engine does not come to rest");
        fibers_point();
    }
    if (eng->prefilling || eng->advancing || eng->tasks || eng->n_unread) world_fail("the idle engine has work left");
    for (const struct session *s = eng->sessions; s; s = s->next) {
        if (s->hold != HOLD_NONE || s->n_borrowers) world_fail("an idle engine holds a session");
        check_prefix(eng, s);
    }
    check_devices(eng);
    if (!eng->sessions && !eng->kv_disk && engine_shared_bytes(eng))
        world_fail("%llu bytes of KV memory are left without sessions", (unsigned long long)engine_shared_bytes(eng));
}

void check_files(const char *what) {
    char path[400];
    snprintf(path, sizeof path, "%s/.local/share/hearth/sessions", world->dir);
    DIR *d = opendir(path);
    for (const struct dirent *it; d && (it = readdir(d));)
        if (*it->d_name != '.' && !strstr(it->d_name, ".damaged") &&
            (strlen(it->d_name) < 5 || strcmp(it->d_name + strlen(it->d_name) - 5, ".json")))
            world_fail("%s leaves the file %s", what, it->d_name);
    if (d) closedir(d);
}

/* --- What a process gives back ---------------------------------------------------------------- */

static long n_allocations;
static long counted_from; /* allocations of answers alone are not the process's */
void check_pause(void) { counted_from = n_allocations; }
void check_resume(void) { n_allocations = counted_from; }
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n) {
    void *p = __real_malloc(n);
    n_allocations += p != NULL;
    return p;
}
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
    void *p = __real_calloc(n, size);
    n_allocations += p != NULL;
    return p;
}
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    void *q = __real_realloc(p, n);
    n_allocations += !p && q;
    return q;
}
int __real_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n) {
    const int rc = __real_posix_memalign(p, align, n);
    n_allocations += !rc;
    return rc;
}
char *__real_realpath(const char *path, char *out);
char *__wrap_realpath(const char *path, char *out);
char *__wrap_realpath(const char *path, char *out) {
    char *p = __real_realpath(path, out);
    n_allocations += p && !out;
    return p;
}
void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p) {
    n_allocations -= p != NULL;
    __real_free(p);
}

struct levels check_levels(void) {
    struct levels l = {.allocations = n_allocations};
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) l.descriptors++;
    if (d) closedir(d);
    return l;
}

void check_equal(const struct levels *before, const char *what) {
    const struct levels after = check_levels();
    if (after.allocations != before->allocations)
        world_fail("%s leaves %ld allocations", what, after.allocations - before->allocations);
    if (after.descriptors != before->descriptors)
        world_fail("%s leaves %d descriptors", what, after.descriptors - before->descriptors);
}
