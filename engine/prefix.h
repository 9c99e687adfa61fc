#pragma once
/* Beginnings that sessions have in common: their caches share the memory of these, and who comes later starts behind them.
 *
 * A row of a cache has the bits that its reading gave it, and these depend on the rows read beside it (ops.h). So prompts are read in
 * batches that end where their tokens alone say: at every so many positions, and where the request says that others will go on otherwise.
 * What such batches have made from the first token on is the same in every session with these tokens, bit by bit; only that is
 * shared, and whoever starts behind it answers what it would have answered alone. A session that went on behind an answer of its own,
 * or was forked, has rows besides that only its forks share. With devices the last bits depend on who reads (placement); there that
 * holds with --deterministic, which shares only what the processor has read. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/error.h"

struct engine;
struct kv;
struct session;
struct prefix_store;

struct prefix_block { /* an image (kv_image.h) in the engine's memory file; nobody changes it */
    struct prefix_store *store;
    _Atomic int refs;
    off_t at;
    size_t bytes;
    int from, to;
    bool state; /* the one at `to` is in it */
};
struct prefix_block *prefix_hold(struct prefix_block *b); /* one more reference */
void prefix_release(struct prefix_block *b);              /* NULL is fine; both from any thread */
int prefix_read(const struct prefix_block *b, size_t at, void *to, size_t n);

struct prefix_end {
    int end;
    uint64_t key;               /* hash of all tokens up to here, batch by batch; 0: not as a reading of the tokens would give it */
    struct prefix_block *block; /* the batch that ends here; NULL: it is the session's own memory */
    int64_t made;               /* when, CLOCK_REALTIME in ns */
    bool kept;                  /* it is on disk, is on its way there, or is not worth it */
};
/* Of a session; the engine's thread's. */
struct prefix {
    int32_t *tokens; /* [exact]; those of the ends behind are the session's */
    size_t cap;
    struct prefix_end *ends;
    size_t n, cap_ends;
    int exact;                  /* the last end with a key */
    struct prefix_block **held; /* what its cache has mapped, or had: it stays until it starts anew */
    size_t n_held, cap_held;
    _Atomic int mapped; /* positions whose memory is that of blocks; any thread reads it */
    double token_s;     /* what a token took that was read last */
    bool secret;        /* nothing of it goes to a disk */
};
struct prefix_keys { /* of the ends of a prompt */
    uint64_t *v;
    size_t n, cap;
};
struct prefix_store { /* of an engine */
    int fd;           /* the memory file; -1: the system has none */
    uint64_t maker;   /* what decides a row's bits beside its tokens; 0: not known */
    off_t size;       /* so far; where nobody has anything any more it is a hole */
};

void prefix_open(struct engine *e);  /* after all that decides what a row's bits are */
void prefix_close(struct engine *e); /* after all sessions */
/* How much to keep where tokens [0, keep) are the same, of a request's n: all of it, or, where little is lost, less, so that others can have
 * it; with REQUEST_AFRESH what is exact. */
int prefix_keep(const struct session *s, int keep, int n, int flags);
int prefix_cut(const struct session *s);    /* where a batch of its prompt ends besides (prefill_end); 0: nowhere */
bool prefix_exact(const struct session *s); /* what is there is as reading its tokens gives it */
/* Under which keys what reading all tokens of s makes may come to the disk; none where nothing of it does. ERR_MEMORY. */
int prefix_name(const struct session *s, struct prefix_keys *out);

/* The engine's thread: */
void prefix_begin(struct session *s);                                  /* a turn begins, and keeps s->n_kv tokens */
void prefix_find(struct session *s);                                   /* more of its tokens are there already: s->n_kv grows */
int prefix_same(void *engine, const struct kv *a, const struct kv *b); /* machine.same */
/* The same from disk, the next file: false: there is none, and it goes on from s->n_kv. */
bool prefix_restore(struct session *s);
void prefix_made(struct session *s); /* its tokens were read up to s->n_kv, from where prefix_exact was true */

/* Hands the next batch of some session to the disk; false: there is none. */
bool prefix_save_one(struct engine *e);

void prefix_save_all(struct session *s);                                    /* of one that is to be closed; another thread, not busy */
int prefix_fork(struct session *from, struct session *to, struct error *e); /* a fresh one becomes the same. Another thread; neither is busy */
void prefix_drop(struct session *s);                                        /* it is closed */
