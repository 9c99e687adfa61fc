#include "engine/prefix.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/internal.h"
#include "engine/keep.h"
#include "engine/layer/attention.h"
#include "engine/layer/kv_image.h"

/* Hashes everything besides the tokens that determines a row's bits: the weights (location and modification time), the CPU, the settings, and
 * this build. */
static uint64_t maker_of(const struct engine *e) {
    const struct checkpoint *c = &e->weights.files;
    struct buf b = {0};
    struct stat st;
    char path[4096];
    if (stat("/proc/self/exe", &st)) memset(&st, 0, sizeof st);
    buf_fmt(&b, "%s %llx %lld %lld.%ld %llx\n%s %s %d\n%d %d %d %s %d\n", HEARTH_VERSION, (unsigned long long)st.st_ino, (long long)st.st_size,
            (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)c->fingerprint, cpu_describe(), e->info.level, (int)e->params.kv,
            e->prefill_work.rows, e->nodes.n_nodes, e->params.hugepages, e->params.gpus ? e->params.gpus : "", (int)e->params.prefill);
    for (int i = 0; i < c->n_shards; i++)
        if (!file_join(path, sizeof path, e->dir, c->shards[i].name, NULL) && !stat(path, &st))
            buf_fmt(&b, "%llx %llx %lld %lld.%ld\n", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino, (long long)st.st_size,
                    (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    uint64_t maker = hash64(b.data ? b.data : "", b.len, 0);
    if (b.failed) maker = 0;
    buf_free(&b);
    return maker;
}

void prefix_open(struct engine *e) {
    e->shared.fd = memfd_create("hearth-kv", MFD_CLOEXEC);
    e->shared.maker = maker_of(e);
    if (e->params.kv_dir && e->shared.maker && e->shared.fd >= 0)
        e->keep = keep_open(e->params.kv_dir, e->params.kv_limit, e->shared.maker, (enum dtype)e->params.kv);
}
void prefix_close(struct engine *e) {
    keep_close(&e->keep);
    if (e->shared.fd > 0) close(e->shared.fd);
    e->shared.fd = -1;
}

/* --- Blocks ---------------------------------------------------------------------------------------------------------------------- */

struct prefix_block *prefix_hold(struct prefix_block *b) {
    atomic_fetch_add(&b->refs, 1);
    return b;
}
void prefix_release(struct prefix_block *b) {
    if (!b || atomic_fetch_sub(&b->refs, 1) > 1) return;
    fallocate(b->store->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, b->at, (off_t)b->bytes);
    mem_free(b);
}

int prefix_read(const struct prefix_block *b, size_t at, void *to, size_t n) {
    return pread(b->store->fd, to, n, b->at + (off_t)at) == (ssize_t)n ? 0 : ERR_RUNTIME;
}

/* Copies positions [from, to) of a session's cache to a new block. under: replaces the session's memory with the block; the caller must then
 * hold it. Returns one reference. NULL: no memory. */
static struct prefix_block *freeze(struct session *s, int from, int to, bool under) {
    struct prefix_store *store = &s->engine->shared;
    int state = s->kv.states ? kv_find(&s->kv, to) : -1;
    struct prefix_block *b = store->fd < 0 ? NULL : mem_alloc(sizeof *b);
    if (!b) return NULL;
    *b = (struct prefix_block){
        .store = store, .refs = 1, .at = store->size, .bytes = kv_image_bytes(&s->kv, from, to, state >= 0), .from = from, .to = to, .state = state >= 0};
    if (ftruncate(store->fd, b->at + (off_t)b->bytes) || kv_image_write(&s->kv, from, to, state, store->fd, b->at)) {
        if (ftruncate(store->fd, b->at)) {
        } /* the next block overwrites what was written */
        mem_free(b);
        return NULL;
    }
    store->size = b->at + (off_t)b->bytes;
    if (under) kv_image_under(&s->kv, from, to, state, store->fd, b->at);
    return b;
}

/* Mapped blocks must not be hole-punched. Capacity is reserved before mapping, so that adding the reference cannot fail. */
static int may_hold(struct prefix *p) { return mem_grow(&p->held, &p->cap_held, p->n_held + 1, sizeof *p->held); }
static void hold(struct prefix *p, struct prefix_block *b) { p->held[p->n_held++] = prefix_hold(b); }

static int push(struct prefix *p, int end, uint64_t key) {
    if (mem_grow(&p->ends, &p->cap_ends, p->n + 1, sizeof *p->ends)) return ERR_MEMORY;
    p->ends[p->n++] = (struct prefix_end){.end = end, .key = key};
    return 0;
}

static void count_mapped(struct prefix *p) {
    int n = 0;
    for (size_t i = 0; i < p->n && p->ends[i].block; i++) n = p->ends[i].end;
    atomic_store(&p->mapped, n);
}
int session_shared(const struct session *s) { return atomic_load(&s->prefix.mapped); }
uint64_t engine_shared_bytes(const struct engine *e) {
    struct stat st;
    return e->shared.fd >= 0 && !fstat(e->shared.fd, &st) ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Returns the block of a chunk, created on demand; the session keeps the reference. */
static struct prefix_block *block_of(struct session *s, size_t i) {
    struct prefix *p = &s->prefix;
    struct prefix_end *x = &p->ends[i];
    if (x->block || may_hold(p)) return x->block;
    if ((x->block = freeze(s, i ? p->ends[i - 1].end : 0, x->end, true))) hold(p, x->block);
    count_mapped(p);
    return x->block;
}

static void cut(struct prefix *p, int pos) {
    while (p->n && p->ends[p->n - 1].end > pos) prefix_release(p->ends[--p->n].block);
    while (p->exact > pos) {
        p->exact = 0;
        for (size_t i = 0; i < p->n && p->ends[i].key; i++) p->exact = p->ends[i].end;
    }
    count_mapped(p);
}

void prefix_drop(struct session *s) {
    struct prefix *p = &s->prefix;
    cut(p, 0);
    while (p->n_held) prefix_release(p->held[--p->n_held]);
    mem_free(p->tokens);
    mem_free(p->ends);
    mem_free(p->held);
    *p = (struct prefix){0};
}

/* --- Chunk ends --------------------------------------------------------------------------------------------------------------------- */

int prefix_cut(const struct session *s) {
    enum { SHORT = 256 }; /* tokens; a shorter chunk is not worth its own batch */
    int rows = s->engine->prefill_work.rows, at = s->request.shared / 64 * 64;
    return at % rows >= (rows < SHORT ? 1 : SHORT) ? at : 0;
}
static int next_end(const struct session *s, int pos) { return prefill_end(s->engine->prefill_work.rows, prefix_cut(s), pos); }
bool prefix_exact(const struct session *s) { return s->n_kv == s->prefix.exact; }

static uint64_t key_next(uint64_t key, const int32_t *tokens, int from, int to) {
    uint64_t k = hash64(tokens + from, (size_t)(to - from) * sizeof *tokens, key);
    return k ? k : 1;
}
static uint64_t key_first(const struct session *s) { return hash64(&(uint64_t){config_far(&s->engine->weights.config, s->n)}, 8, s->engine->shared.maker); }

int prefix_keep(const struct session *s, int keep, int n, int flags) {
    const struct prefix *p = &s->prefix;
    int at = 0;
    for (size_t i = 0; i < p->n && p->ends[i].key && p->ends[i].end <= keep; i++) at = p->ends[i].end;
    if (keep < p->exact || flags & REQUEST_AFRESH) return at; /* inside a chunk */
    bool little = keep > at && n - at > s->engine->prefill_work.rows && (keep - at) * 8 <= n - at;
    return little ? at : keep;
}

void prefix_begin(struct session *s) {
    struct prefix *p = &s->prefix;
    cut(p, s->n_kv);
    if (s->n_kv || !p->n_held || kv_image_leave(&s->kv)) return;
    while (p->n_held) prefix_release(p->held[--p->n_held]);
}

void prefix_made(struct session *s) {
    struct prefix *p = &s->prefix;
    uint64_t key = p->exact ? p->ends[p->n - 1].key : key_first(s);
    struct timespec now;
    p->secret = s->request.flags & REQUEST_SECRET;
    if (s->n_kv < next_end(s, p->exact) || mem_grow(&p->tokens, &p->cap, (size_t)s->n_kv, sizeof *p->tokens)) return;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int end; (end = next_end(s, p->exact)) <= s->n_kv; p->exact = end) {
        key = key_next(key, s->tokens, p->exact, end);
        if (push(p, end, key)) return;
        p->ends[p->n - 1].made = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        p->ends[p->n - 1].kept = s->answered > 0; /* recomputed with the answer: session_disk_keys() did not list this key */
        memcpy(p->tokens + p->exact, s->tokens + p->exact, (size_t)(end - p->exact) * sizeof *p->tokens);
    }
}

/* --- Reuse of other sessions' chunks ---------------------------------------------------------------------------------------------- */

/* How many of the wanted chunks session o has, up to the last one at which prefill can resume. */
static size_t common(const struct session *s, const struct prefix_end *want, size_t n, struct session *o) {
    const struct prefix *p = &o->prefix;
    size_t usable = 0;
    for (size_t i = 0; i < n && i < p->n && p->ends[i].key == want[i].key && p->ends[i].end == want[i].end; i++)
        if (!o->kv.states || (p->ends[i].block ? p->ends[i].block->state : kv_find(&o->kv, p->ends[i].end) >= 0)) usable = i + 1;
    if (usable && memcmp(p->tokens, s->tokens, (size_t)want[usable - 1].end * sizeof *p->tokens)) return 0;
    return usable;
}

static struct session *best(struct session *s, const struct prefix_end *want, size_t n, size_t *usable) {
    struct engine *e = s->engine;
    struct session *found = NULL;
    pthread_mutex_lock(&e->lock);
    for (struct session *o = e->sessions; o; o = o->next) {
        size_t k = o == s ? 0 : common(s, want, n, o);
        if (k > *usable) found = o, *usable = k;
    }
    if (found) found->borrowed++;
    pthread_mutex_unlock(&e->lock);
    return found;
}
static void give_back(struct session *o) {
    pthread_mutex_lock(&o->engine->lock);
    o->borrowed--;
    pthread_cond_broadcast(&o->engine->over);
    pthread_mutex_unlock(&o->engine->lock);
}

/* Maps the i-th chunk of o as the next chunk of s. */
static int take_one(struct session *s, struct session *o, size_t i, struct error *e) {
    struct prefix *p = &s->prefix;
    struct prefix_block *b = block_of(o, i);
    int rc = !b || may_hold(p) ? ERR_MEMORY : 0;
    if (!rc) rc = push(p, b->to, o->prefix.ends[i].key);
    if (!rc && (rc = kv_image_map(&s->kv, b->from, b->to, b->state, b->store->fd, b->at, e))) p->n--;
    if (rc) return rc;
    hold(p, b);
    p->ends[p->n - 1].block = prefix_hold(b);
    p->ends[p->n - 1].kept = o->prefix.ends[i].kept;
    p->ends[p->n - 1].made = o->prefix.ends[i].made;
    count_mapped(p);
    return 0;
}

int prefix_name(const struct session *s, struct prefix_keys *out) {
    uint64_t key = key_first(s);
    out->n = 0;
    if (!s->engine->keep || s->request.flags & REQUEST_SECRET) return 0;
    for (int pos = 0, end; (end = next_end(s, pos)) <= s->n; pos = end) {
        if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v)) return ERR_MEMORY;
        out->v[out->n++] = key = key_next(key, s->tokens, pos, end);
    }
    return 0;
}

int prefix_same(void *engine, const struct kv *a, const struct kv *b) {
    struct engine *e = engine;
    const struct prefix *p = NULL, *q = NULL;
    int same = 0;
    pthread_mutex_lock(&e->lock); /* a closing session is not in the list and may be freed */
    for (const struct session *s = e->sessions; s; s = s->next) {
        if (&s->kv == a) p = &s->prefix;
        if (&s->kv == b) q = &s->prefix;
    }
    for (size_t i = 0; p && q && i < p->n && i < q->n && p->ends[i].block && p->ends[i].block == q->ends[i].block; i++) same = p->ends[i].end;
    pthread_mutex_unlock(&e->lock);
    return same;
}

/* Returns the chunks that a prefill of all but the last token would produce. NULL: none, or no memory. */
static struct prefix_end *wanted(const struct session *s, size_t *n) {
    struct prefix want = {0};
    uint64_t key = key_first(s);
    for (int pos = 0, end; (end = next_end(s, pos)) < s->n; pos = end)
        if (push(&want, end, key = key_next(key, s->tokens, pos, end))) break;
    *n = want.n;
    return want.ends;
}

/* Whether prefill can resume at the last chunk end. */
static bool reached(const struct session *s) { return !s->kv.states || !s->prefix.exact || kv_find(&s->kv, s->prefix.exact) >= 0; }

void prefix_find(struct session *s) {
    struct prefix *p = &s->prefix;
    if (s->request.logits || s->request.flags & REQUEST_ALONE || !prefix_exact(s) || (s->engine->machine.gpus && s->engine->params.deterministic)) return;
    size_t n, usable = p->n;
    struct prefix_end *want = wanted(s, &n);
    struct session *o = n > usable ? best(s, want, n, &usable) : NULL;
    struct error e;
    while (o && p->n < usable && !take_one(s, o, p->n, &e)) {
        struct prefix_end *x = &p->ends[p->n - 1];
        if (mem_grow(&p->tokens, &p->cap, (size_t)x->end, sizeof *p->tokens)) {
            prefix_release(x->block);
            p->n--;
            break;
        }
        memcpy(p->tokens + p->exact, s->tokens + p->exact, (size_t)(x->end - p->exact) * sizeof *p->tokens);
        p->exact = x->end;
        if (reached(s)) s->n_kv = x->end;
    }
    cut(p, s->n_kv); /* memory ran out before a resumable state */
    if (o) give_back(o);
    mem_free(want);
}

/* --- The disk ---------------------------------------------------------------------------------------------------------------------- */

bool prefix_restore(struct session *s) {
    struct engine *e = s->engine;
    struct prefix *p = &s->prefix;
    int from = p->exact, end = next_end(s, from);
    bool state, found = e->keep && !s->request.logits && !(s->request.flags & REQUEST_ALONE) && s->n_kv <= from && from == (p->n ? p->ends[p->n - 1].end : 0) &&
                        end < s->n && !atomic_load(&s->cancel[atomic_load(&s->live)]);
    uint64_t key = found ? key_next(p->n ? p->ends[p->n - 1].key : key_first(s), s->tokens, from, end) : 0;
    if (found) found = !mem_grow(&p->tokens, &p->cap, (size_t)end, sizeof *p->tokens) && !push(p, end, key);
    if (found && !keep_get(e->keep, e->pool, &s->kv, key, s->tokens, from, end, &state)) found = false, p->n--;
    if (!found) {
        cut(p, s->n_kv);
        return false;
    }
    p->ends[p->n - 1].kept = true;
    memcpy(p->tokens + from, s->tokens + from, (size_t)(end - from) * sizeof *p->tokens);
    p->exact = end;
    if (reached(s)) s->n_kv = end;
    int next = next_end(s, end);
    if (next < s->n) keep_ahead(e->keep, key_next(key, s->tokens, end, next));
    return true;
}

/* Returns the index of the first chunk that should be written to disk; p->n: none. */
static size_t unsaved(struct session *s) {
    struct prefix *p = &s->prefix;
    for (size_t i = 0; i < p->n && p->ends[i].key; i++) {
        int from = i ? p->ends[i - 1].end : 0, end = p->ends[i].end;
        if (p->ends[i].kept) continue;
        bool worth = keep_worth(kv_image_bytes(&s->kv, from, end, false), (end - from) * p->token_s, p->ends[p->n - 1].end * p->token_s);
        return worth ? i : p->n; /* chunks after it are useless without it */
    }
    return p->n;
}
/* Writes one chunk. A continuing session keeps its own memory, whose pages may be huge; the copy lives until it is written. */
static bool save_one(struct session *s, bool closes) {
    struct prefix *p = &s->prefix;
    size_t i = p->secret ? p->n : unsaved(s);
    if (i == p->n) return false;
    struct prefix_end *x = &p->ends[i];
    struct prefix_block *b = closes ? block_of(s, i) : x->block, *copy = b ? NULL : freeze(s, i ? p->ends[i - 1].end : 0, x->end, false);
    x->kept = true;
    if (b || copy) keep_put(s->engine->keep, b ? b : copy, x->key, p->tokens, x->made);
    prefix_release(copy);
    return true;
}

bool prefix_save_one(struct engine *e) {
    struct session *found = NULL;
    if (!e->keep) return false;
    pthread_mutex_lock(&e->lock);
    for (struct session *s = e->sessions; s && !found; s = s->next)
        if (!s->prefix.secret && unsaved(s) < s->prefix.n) found = s, s->borrowed++;
    pthread_mutex_unlock(&e->lock);
    if (!found) return false;
    save_one(found, false);
    give_back(found);
    return true;
}

static int save_all(void *session) {
    while (save_one(session, true)) {
    }
    return 0;
}
void prefix_save_all(struct session *s) {
    if (!s->engine->keep || s->prefix.secret || unsaved(s) == s->prefix.n) return;
    if (s->engine->started) engine_run(s->engine, save_all, s);
    else save_all(s); /* the engine thread has ended */
}

/* --- Forks ------------------------------------------------------------------------------------------------------------------------- */

struct fork {
    struct session *from, *to;
    struct error *e;
};
static int fork_run(void *arg) {
    const struct fork *f = arg;
    struct session *a = f->from, *b = f->to;
    struct prefix *p = &a->prefix, *q = &b->prefix;
    int last = p->n ? p->ends[p->n - 1].end : 0, rc = 0;
    cut(p, a->n_kv);
    if (a->n_kv > last) rc = push(p, a->n_kv, 0);
    if (!rc) rc = mem_grow(&q->tokens, &q->cap, (size_t)p->exact, sizeof *q->tokens);
    if (!rc) rc = mem_grow(&b->tokens, &b->cap, (size_t)a->n_kv + 1, sizeof *b->tokens);
    for (size_t i = 0; i < p->n && !rc; i++) rc = take_one(b, a, i, f->e);
    if (!rc) kv_copy_states(&b->kv, &a->kv);
    if (!rc && p->exact) memcpy(q->tokens, p->tokens, (size_t)p->exact * sizeof *q->tokens);
    if (!rc) memcpy(b->tokens, a->tokens, (size_t)a->n_kv * sizeof *b->tokens);
    if (rc) return error_set(f->e, rc, "no memory to share a KV cache of %d tokens", a->n_kv);
    q->exact = p->exact, q->token_s = p->token_s, q->secret = p->secret;
    b->n_kv = b->n = a->n_kv;
    b->far = a->far;
    return 0;
}
int prefix_fork(struct session *from, struct session *to, struct error *e) { return engine_run(from->engine, fork_run, &(struct fork){from, to, e}); }
