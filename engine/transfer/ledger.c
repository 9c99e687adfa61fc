#include "engine/transfer/ledger.h"

#include <assert.h>

#include "base/mem.h"

static bool is_lockable(enum ledger_class class) { return 1u << class & LEDGER_LOCKABLE; }

void ledger_open(struct ledger *l, struct gpu *g) {
    *l = (struct ledger){.g = g};
    pthread_mutex_init(&l->lock, NULL);
}
void ledger_close(struct ledger *l) {
    if (!l->g) return;
    assert(!l->is_locked && !l->n_retired);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->retired);
    *l = (struct ledger){0};
}

/* Subtracts an entry from the counts. Returns whether its memory is retired instead of free. */
static bool release(struct ledger *l, const struct ledger_entry *x) {
    pthread_mutex_lock(&l->lock);
    const bool retires = x->at && l->is_locked && is_lockable(x->class);
    assert(l->n[x->class] && l->bytes[x->class] >= x->bytes);
    l->bytes[x->class] -= x->bytes, l->n[x->class]--;
    if (retires) l->retired[l->n_retired++] = x->at;
    pthread_mutex_unlock(&l->lock);
    return retires;
}

/* The lock is not held during calls of the driver, which may wait for streams. */
int ledger_alloc(struct ledger *l, enum ledger_class class, size_t bytes, struct ledger_entry *out, struct error *e) {
    struct ledger_entry x = {.bytes = bytes, .class = class};
    assert(!out->at);
    pthread_mutex_lock(&l->lock);
    size_t lockable = l->n_retired + 1;
    for (int i = 0; i < LEDGER_CLASSES; i++) lockable += is_lockable(i) ? l->n[i] : 0;
    int rc = is_lockable(class) ? mem_grow(&l->retired, &l->cap_retired, lockable, sizeof *l->retired) : 0;
    if (!rc) l->bytes[class] += bytes, l->n[class]++;
    pthread_mutex_unlock(&l->lock);
    if (rc) return error_set(e, ERR_MEMORY, "no memory for a list of resident weights");
    if ((rc = gpu_alloc(l->g, (void **)&x.at, bytes, e))) release(l, &x);
    else *out = x;
    return rc;
}

void ledger_free(struct ledger *l, struct ledger_entry *x) {
    if (x->at && !release(l, x)) gpu_free(l->g, x->at);
    *x = (struct ledger_entry){0};
}

size_t ledger_bytes(struct ledger *l, unsigned classes) {
    size_t sum = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < LEDGER_CLASSES; i++) sum += classes >> i & 1 ? l->bytes[i] : 0;
    pthread_mutex_unlock(&l->lock);
    return sum;
}

void ledger_set_client(struct ledger *l, enum ledger_class class, struct ledger_client client) {
    l->client[class] = client;
}
bool ledger_evict(struct ledger *l, enum ledger_need need) {
    for (int i = 0; i < LEDGER_CLASSES; i++)
        if (l->client[i].evict && !(l->is_locked && is_lockable(i)) && l->client[i].evict(l->client[i].owner, need))
            return true;
    return false;
}
bool ledger_reclaim(struct ledger *l, size_t free, enum ledger_need need) {
    bool any = false;
    while (gpu_mem_free(l->g) < free && ledger_evict(l, need)) any = true;
    return any;
}

void ledger_lock(struct ledger *l) {
    pthread_mutex_lock(&l->lock);
    assert(!l->is_locked);
    l->is_locked = true;
    pthread_mutex_unlock(&l->lock);
}
/* Takes retired memory off the list; NULL: there is none. Another thread's ledger_alloc() may move the list. */
static char *take_retired(struct ledger *l) {
    pthread_mutex_lock(&l->lock);
    char *p = l->n_retired ? l->retired[--l->n_retired] : NULL;
    pthread_mutex_unlock(&l->lock);
    return p;
}
void ledger_unlock(struct ledger *l) {
    pthread_mutex_lock(&l->lock);
    l->is_locked = false;
    pthread_mutex_unlock(&l->lock);
    for (char *p; (p = take_retired(l));) gpu_free(l->g, p);
}
