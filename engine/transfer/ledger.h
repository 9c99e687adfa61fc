#pragma once
/* Owns a device's memory for weights and KV caches: bytes by class, the order in which memory is reclaimed, and memory
 * whose release is deferred while a prefill reads it. One ledger per device, shared by prefill and decode. Does not own
 * workspaces, and does not decide how much a class may take (experts/budget.h, the modes' plans).
 *
 * States of an entry: free (zeroed), held, and, if it is freed under a lock, retired until the unlock. Any thread may
 * allocate and free; clients, eviction and locks belong to the engine thread. */
#include <pthread.h>

#include "gpu/gpu.h"

/* In reclaim order; a class without a client is not reclaimed. Sets of classes have bit 1 << class. */
enum ledger_class {
    LEDGER_DRAFT,    /* routed experts of a draft: all of a layer */
    LEDGER_CACHED,   /* routed experts in a pool, evictable by score */
    LEDGER_EXPERTS,  /* resident routed experts: all of a layer */
    LEDGER_LAYERS,   /* resident dense parts of layers, LM head */
    LEDGER_KV,       /* copies of sessions' KV caches */
    LEDGER_STREAMED, /* slots of a prefill */
    LEDGER_PAGED,    /* weights of paged batches */
    LEDGER_CLASSES
};
/* Sets of classes: resident weights; what ledger_lock() keeps in place; all that decode holds. */
enum {
    LEDGER_WEIGHTS = 1 << LEDGER_EXPERTS | 1 << LEDGER_LAYERS,
    LEDGER_LOCKABLE = LEDGER_WEIGHTS | 1 << LEDGER_CACHED
};
enum { LEDGER_DECODE = LEDGER_LOCKABLE | 1 << LEDGER_DRAFT | 1 << LEDGER_KV };
enum ledger_need {
    LEDGER_FOR_PREFILL, /* the memory is lent: what gives way returns after the prefill */
    LEDGER_FOR_KV       /* as little as possible gives way, until a session has closed */
};
struct ledger_entry {
    char *at;     /* device; NULL: free */
    size_t bytes; /* as requested */
    enum ledger_class class;
};
struct ledger_client {
    /* frees entries of its class, after queued work; false: there are none */
    bool (*evict)(void *owner, enum ledger_need need);
    void *owner;
};
struct ledger {
    struct gpu *g;
    pthread_mutex_t lock;                            /* protects what follows, except `client` */
    size_t bytes[LEDGER_CLASSES], n[LEDGER_CLASSES]; /* held */
    struct ledger_client client[LEDGER_CLASSES];
    bool is_locked;
    char **retired; /* [n_retired] capacity for all lockable entries, so that freeing cannot fail */
    size_t n_retired, cap_retired;
};
void ledger_open(struct ledger *l, struct gpu *g);
void ledger_close(struct ledger *l); /* all entries are free; safe on a zeroed ledger */
/* Allocates a free entry. ERR_MEMORY. */
int ledger_alloc(struct ledger *l, enum ledger_class class, size_t bytes, struct ledger_entry *out, struct error *e);
/* Frees an entry, or defers that until the unlock; no queued operation may use the memory. A free entry is allowed. */
void ledger_free(struct ledger *l, struct ledger_entry *x);
size_t ledger_bytes(struct ledger *l, unsigned classes); /* held by a set of classes, bit 1 << class */

void ledger_set_client(struct ledger *l, enum ledger_class class, struct ledger_client client);
/* Evicts from the first class in reclaim order that is not locked and has something to evict. Returns whether anything
 * was evicted. */
bool ledger_evict(struct ledger *l, enum ledger_need need);
bool ledger_reclaim(struct ledger *l, size_t free, enum ledger_need need); /* evicts until `free` bytes are free */
/* Until ledger_unlock(), lockable classes are not evicted, and memory that they free stays allocated. Not nested. */
void ledger_lock(struct ledger *l);
void ledger_unlock(struct ledger *l);
