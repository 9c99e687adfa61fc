#include "engine/session/prefix.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "engine/exec/prefill.h"
#include "engine/kv/kv_disk.h"
#include "engine/kv/kv_image.h"
#include "engine/session/engine_state.h"
#include "engine/session/engine_tasks.h"

/* Hashes everything besides the tokens that determines a row's bits: the weights (location and modification time), the
 * CPU, the settings, and this build. */
static uint64_t compute_fingerprint(const struct engine *eng) {
    const struct checkpoint *c = &eng->weights.files;
    struct buf b = {0};
    struct stat st;
    char path[4096];
    if (stat("/proc/self/exe", &st)) memset(&st, 0, sizeof st);
    buf_fmt(&b, "%s %llx %lld %lld.%ld %llx\n%s %s %d\n%d %d %d %s %d\n", HEARTH_VERSION, (unsigned long long)st.st_ino,
            (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)c->fingerprint,
            cpu_describe(), eng->info.level, (int)eng->params.kv, eng->prefill_work.rows, eng->numa.n_nodes,
            eng->params.hugepages, eng->params.gpus ? eng->params.gpus : "", (int)eng->params.prefill);
    for (int i = 0; i < c->n_shards; i++)
        if (!file_join(path, sizeof path, eng->dir, c->shards[i].name, NULL) && !stat(path, &st))
            buf_fmt(&b, "%llx %llx %lld %lld.%ld\n", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
                    (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    const uint64_t fingerprint = b.failed ? 0 : hash64(b.data ? b.data : "", b.len, 0);
    buf_free(&b);
    return fingerprint;
}

void prefix_open(struct engine *eng) {
    eng->kv_store.fd = memfd_create("hearth-kv", MFD_CLOEXEC);
    eng->kv_store.kv_fingerprint = compute_fingerprint(eng);
    if (eng->params.kv_dir && eng->kv_store.kv_fingerprint && eng->kv_store.fd >= 0)
        eng->kv_disk = kv_disk_open(eng->params.kv_dir, eng->params.kv_limit, eng->kv_store.kv_fingerprint,
                                    (enum dtype)eng->params.kv);
}
void prefix_close(struct engine *eng) {
    kv_disk_close(&eng->kv_disk);
    if (eng->kv_store.fd >= 0) close(eng->kv_store.fd);
    eng->kv_store.fd = -1;
}

/* --- Chunks ----------------------------------------------------------------------------------- */

/* Mapped blocks must not be hole-punched. Capacity is reserved before mapping, so that adding the reference cannot
 * fail. */
static int reserve_mapped(struct prefix *p) {
    return mem_grow(&p->mapped_blocks, &p->mapped_blocks_cap, p->n_mapped_blocks + 1, sizeof *p->mapped_blocks);
}
static void add_mapped(struct prefix *p, struct kv_shared *b) {
    p->mapped_blocks[p->n_mapped_blocks++] = kv_shared_ref(b);
}

static int push_chunk(struct prefix *p, int end, uint64_t key) {
    if (mem_grow(&p->chunks, &p->chunks_cap, p->n_chunks + 1, sizeof *p->chunks)) return ERR_MEMORY;
    p->chunks[p->n_chunks++] = (struct prefix_chunk){.end = end, .key = key};
    return 0;
}

static void count_mapped(struct prefix *p) {
    int n = 0;
    for (size_t i = 0; i < p->n_chunks && p->chunks[i].block; i++) n = p->chunks[i].end;
    atomic_store(&p->n_mapped_tokens, n);
}
int session_shared_tokens(const struct session *s) { return atomic_load(&s->prefix.n_mapped_tokens); }
uint64_t engine_shared_bytes(const struct engine *eng) {
    struct stat st;
    return eng->kv_store.fd >= 0 && !fstat(eng->kv_store.fd, &st) ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Returns the block of a chunk, created on demand; the session keeps the reference. */
static struct kv_shared *get_block(struct session *s, size_t i) {
    struct prefix *p = &s->prefix;
    struct prefix_chunk *x = &p->chunks[i];
    if (x->block || reserve_mapped(p)) return x->block;
    if ((x->block = kv_shared_create(&s->engine->kv_store, &s->kv, i ? p->chunks[i - 1].end : 0, x->end, true)))
        add_mapped(p, x->block);
    count_mapped(p);
    return x->block;
}

static void truncate_chunks(struct prefix *p, int pos) {
    while (p->n_chunks && p->chunks[p->n_chunks - 1].end > pos) kv_shared_unref(p->chunks[--p->n_chunks].block);
    while (p->exact_end > pos) {
        p->exact_end = 0;
        for (size_t i = 0; i < p->n_chunks && p->chunks[i].key; i++) p->exact_end = p->chunks[i].end;
    }
    count_mapped(p);
}

void prefix_free(struct session *s) {
    struct prefix *p = &s->prefix;
    truncate_chunks(p, 0);
    while (p->n_mapped_blocks) kv_shared_unref(p->mapped_blocks[--p->n_mapped_blocks]);
    mem_free(p->tokens);
    mem_free(p->chunks);
    mem_free(p->mapped_blocks);
    *p = (struct prefix){0};
}

/* --- Chunk ends ------------------------------------------------------------------------------- */

/* A chunk shorter than SHORTEST is not worth its own batch. Ends are multiples of GRAIN, so that prompts whose shared
 * parts end a few tokens apart share a chunk. */
int prefix_shared_end(const struct session *s) {
    enum { SHORTEST = 256, GRAIN = 64 }; /* tokens */
    int rows = s->engine->prefill_work.rows, at = s->request.n_shared / GRAIN * GRAIN;
    return at % rows >= (rows < SHORTEST ? 1 : SHORTEST) ? at : 0;
}
static int next_chunk_end(const struct session *s, int pos) {
    const int end = prefill_batch_end(s->engine->prefill_work.rows, prefix_shared_end(s), pos);
    return s->engine->weights.config.sees_whole_images ? image_batch_end(s->images, s->n_images, pos, end) : end;
}
bool prefix_is_exact(const struct session *s) { return s->n_kv == s->prefix.exact_end; }

static uint64_t chunk_key(uint64_t key, const int32_t *tokens, int from, int to) {
    uint64_t k = hash64(tokens + from, (size_t)(to - from) * sizeof *tokens, key);
    return k ? k : 1;
}
static uint64_t root_key(const struct session *s) {
    return hash64(&(uint64_t){config_long_rope(&s->engine->weights.config, s->n_tokens)}, 8,
                  s->engine->kv_store.kv_fingerprint);
}

/* Returns the i-th exact chunk that the prompt keeps, or NULL. Its end may be one that only an earlier prompt's shared
 * part had. */
static const struct prefix_chunk *held_chunk(const struct session *s, size_t i) {
    const struct prefix *p = &s->prefix;
    return i < p->n_chunks && p->chunks[i].key && p->chunks[i].end <= s->n_kv ? &p->chunks[i] : NULL;
}

int prefix_tokens_to_keep(const struct session *s, int keep, int n, int flags) {
    enum { MAX_LOSS = 8 }; /* at most one part in this many of the rest of the prompt is computed again */
    const struct prefix *p = &s->prefix;
    int at = 0; /* end of the last exact chunk within `keep` */
    for (size_t i = 0; i < p->n_chunks && p->chunks[i].key && p->chunks[i].end <= keep; i++) at = p->chunks[i].end;
    if (keep < p->exact_end || flags & REQ_EXACT_PREFIX_ONLY) return at; /* `keep` is inside a chunk */
    bool loses_little = keep > at && n - at > s->engine->prefill_work.rows && (keep - at) * MAX_LOSS <= n - at;
    return loses_little ? at : keep;
}

void prefix_begin_turn(struct session *s) {
    struct prefix *p = &s->prefix;
    truncate_chunks(p, s->n_kv);
    if (s->n_kv || !p->n_mapped_blocks || kv_renew(&s->kv)) return;
    while (p->n_mapped_blocks) kv_shared_unref(p->mapped_blocks[--p->n_mapped_blocks]);
}

void prefix_record(struct session *s) {
    struct prefix *p = &s->prefix;
    uint64_t key = p->exact_end ? p->chunks[p->n_chunks - 1].key : root_key(s);
    p->no_disk = s->request.flags & REQ_NO_DISK_CACHE;
    if (s->n_kv < next_chunk_end(s, p->exact_end) ||
        mem_grow(&p->tokens, &p->tokens_cap, (size_t)s->n_kv, sizeof *p->tokens))
        return;
    for (int end; (end = next_chunk_end(s, p->exact_end)) <= s->n_kv; p->exact_end = end) {
        key = chunk_key(key, s->tokens, p->exact_end, end);
        if (push_chunk(p, end, key)) return;
        if (s->engine->kv_disk) p->chunks[p->n_chunks - 1].n_forgotten = kv_disk_n_forgotten(s->engine->kv_disk, key);
        /* recomputed with the answer: session_disk_keys() did not list this key */
        p->chunks[p->n_chunks - 1].is_saved = s->n_answered > 0;
        memcpy(p->tokens + p->exact_end, s->tokens + p->exact_end, (size_t)(end - p->exact_end) * sizeof *p->tokens);
    }
}

/* --- Reuse of other sessions' chunks ---------------------------------------------------------- */

/* Returns how many of the wanted chunks session o has, up to the last one at which prefill can resume. */
static size_t common_chunks(const struct session *s, const struct prefix_chunk *want, size_t n, struct session *o) {
    const struct prefix *p = &o->prefix;
    size_t usable = 0;
    for (size_t i = 0; i < n && i < p->n_chunks && p->chunks[i].key == want[i].key && p->chunks[i].end == want[i].end;
         i++)
        if (!o->kv.has_states ||
            (p->chunks[i].block ? p->chunks[i].block->has_state : kv_state_find(&o->kv, p->chunks[i].end) >= 0))
            usable = i + 1;
    if (usable && memcmp(p->tokens, s->tokens, (size_t)want[usable - 1].end * sizeof *p->tokens)) return 0;
    return usable;
}

/* Returns the session with the most usable chunks, more than *usable, and borrows it until release_donor(); NULL:
 * none. */
static struct session *find_donor(struct session *s, const struct prefix_chunk *want, size_t n, size_t *usable) {
    struct engine *eng = s->engine;
    struct session *found = NULL;
    pthread_mutex_lock(&eng->lock);
    for (struct session *o = eng->sessions; o; o = o->next) {
        size_t k = o == s ? 0 : common_chunks(s, want, n, o);
        if (k > *usable) found = o, *usable = k;
    }
    if (found) found->n_borrowers++;
    pthread_mutex_unlock(&eng->lock);
    return found;
}
static void release_donor(struct session *o) {
    pthread_mutex_lock(&o->engine->lock);
    o->n_borrowers--;
    pthread_cond_broadcast(&o->engine->ended_cond);
    pthread_mutex_unlock(&o->engine->lock);
}

/* Maps the i-th chunk of o as the next chunk of s. On an error s is unchanged. */
static int map_chunk(struct session *s, struct session *o, size_t i, struct error *e) {
    struct prefix *p = &s->prefix;
    struct kv_shared *b = get_block(o, i);
    int rc = !b || reserve_mapped(p) ? ERR_MEMORY : 0;
    if (!rc) rc = push_chunk(p, b->to, o->prefix.chunks[i].key);
    if (!rc && (rc = kv_image_map(&s->kv, b->from, b->to, b->has_state, b->store->fd, b->offset, e))) p->n_chunks--;
    if (rc) return rc;
    add_mapped(p, b);
    p->chunks[p->n_chunks - 1].block = kv_shared_ref(b);
    p->chunks[p->n_chunks - 1].is_saved = o->prefix.chunks[i].is_saved;
    p->chunks[p->n_chunks - 1].n_forgotten = o->prefix.chunks[i].n_forgotten;
    count_mapped(p);
    return 0;
}

/* Returns the chunks that a prefill of all but the last token would produce. NULL: none, or no memory. */
static struct prefix_chunk *wanted_chunks(const struct session *s, size_t *n) {
    struct prefix want = {0};
    uint64_t key = root_key(s);
    int pos = 0;
    for (size_t i = 0; held_chunk(s, i) && !push_chunk(&want, held_chunk(s, i)->end, held_chunk(s, i)->key); i++)
        pos = held_chunk(s, i)->end, key = held_chunk(s, i)->key;
    for (int end; (end = next_chunk_end(s, pos)) < s->n_tokens; pos = end)
        if (push_chunk(&want, end, key = chunk_key(key, s->tokens, pos, end))) break;
    *n = want.n_chunks;
    return want.chunks;
}

/* Whether prefill can resume at the last chunk end. */
static bool can_resume(const struct session *s) {
    return !s->kv.has_states || !s->prefix.exact_end || kv_state_find(&s->kv, s->prefix.exact_end) >= 0;
}

void prefix_reuse(struct session *s) {
    struct prefix *p = &s->prefix;
    if (s->request.logits || s->request.flags & REQ_NO_PREFIX_REUSE || !prefix_is_exact(s) ||
        (s->engine->machine.gpus && s->engine->params.deterministic))
        return;
    size_t n, usable = p->n_chunks;
    struct prefix_chunk *want = wanted_chunks(s, &n);
    struct session *o = n > usable ? find_donor(s, want, n, &usable) : NULL;
    struct error e;
    while (o && p->n_chunks < usable && !map_chunk(s, o, p->n_chunks, &e)) {
        struct prefix_chunk *x = &p->chunks[p->n_chunks - 1];
        if (mem_grow(&p->tokens, &p->tokens_cap, (size_t)x->end, sizeof *p->tokens)) {
            kv_shared_unref(x->block);
            p->n_chunks--;
            break;
        }
        memcpy(p->tokens + p->exact_end, s->tokens + p->exact_end, (size_t)(x->end - p->exact_end) * sizeof *p->tokens);
        p->exact_end = x->end;
        if (can_resume(s)) s->n_kv = x->end;
    }
    truncate_chunks(p, s->n_kv); /* memory ran out before a resumable state */
    if (o) release_donor(o);
    mem_free(want);
}

int prefix_common_rows(void *engine, const struct kv *a, const struct kv *b) {
    struct engine *eng = engine;
    const struct prefix *p = NULL, *q = NULL;
    int same = 0;
    pthread_mutex_lock(&eng->lock); /* a closing session is not in the list and may be freed */
    for (const struct session *s = eng->sessions; s; s = s->next) {
        if (&s->kv == a) p = &s->prefix;
        if (&s->kv == b) q = &s->prefix;
    }
    for (size_t i = 0;
         p && q && i < p->n_chunks && i < q->n_chunks && p->chunks[i].block && p->chunks[i].block == q->chunks[i].block;
         i++)
        same = p->chunks[i].end;
    pthread_mutex_unlock(&eng->lock);
    return same;
}

/* --- The disk --------------------------------------------------------------------------------- */

int prefix_disk_keys(const struct session *s, struct prefix_keys *out) {
    uint64_t key = root_key(s);
    int pos = 0;
    out->n = 0;
    if (!s->engine->kv_disk || s->request.flags & REQ_NO_DISK_CACHE) return 0;
    for (const struct prefix_chunk *x; (x = held_chunk(s, out->n)); pos = x->end) {
        if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v)) return ERR_MEMORY;
        out->v[out->n++] = key = x->key;
    }
    for (int end; (end = next_chunk_end(s, pos)) <= s->n_tokens; pos = end) {
        if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v)) return ERR_MEMORY;
        out->v[out->n++] = key = chunk_key(key, s->tokens, pos, end);
    }
    return 0;
}

/* Whether the next chunk, which ends at `end`, may come from the disk: the chunks before it are exact and the turn
 * allows it. */
static bool may_load(struct session *s, int end) {
    const struct prefix *p = &s->prefix;
    const int chunks_end = p->n_chunks ? p->chunks[p->n_chunks - 1].end : 0;
    if (!s->engine->kv_disk || s->request.logits || s->request.flags & REQ_NO_PREFIX_REUSE) return false;
    return s->n_kv <= p->exact_end && p->exact_end == chunks_end && end < s->n_tokens &&
           !atomic_load(session_cancel_flag(s));
}

bool prefix_load_next(struct session *s) {
    struct engine *eng = s->engine;
    struct prefix *p = &s->prefix;
    const int from = p->exact_end, end = next_chunk_end(s, from);
    bool has_state, found = may_load(s, end);
    uint64_t key =
        found ? chunk_key(p->n_chunks ? p->chunks[p->n_chunks - 1].key : root_key(s), s->tokens, from, end) : 0;
    if (found)
        found = !mem_grow(&p->tokens, &p->tokens_cap, (size_t)end, sizeof *p->tokens) && !push_chunk(p, end, key);
    if (found && !kv_disk_read(eng->kv_disk, eng->pool, &s->kv, key, s->tokens, from, end, &has_state))
        found = false, p->n_chunks--;
    if (!found) {
        truncate_chunks(p, s->n_kv);
        return false;
    }
    p->chunks[p->n_chunks - 1].is_saved = true;
    memcpy(p->tokens + from, s->tokens + from, (size_t)(end - from) * sizeof *p->tokens);
    p->exact_end = end;
    if (can_resume(s)) s->n_kv = end;
    int next = next_chunk_end(s, end);
    if (next < s->n_tokens) kv_disk_prefetch(eng->kv_disk, chunk_key(key, s->tokens, end, next));
    return true;
}

/* Returns the index of the first chunk that should be written to disk; p->n: none. */
static size_t first_unsaved(struct session *s) {
    struct prefix *p = &s->prefix;
    for (size_t i = 0; i < p->n_chunks && p->chunks[i].key; i++) {
        int from = i ? p->chunks[i - 1].end : 0, end = p->chunks[i].end;
        if (p->chunks[i].is_saved) continue;
        bool worth = kv_disk_is_worth(kv_image_bytes(&s->kv, from, end, false), (end - from) * p->token_s,
                                      p->chunks[p->n_chunks - 1].end * p->token_s);
        return worth ? i : p->n_chunks; /* chunks after it are useless without it */
    }
    return p->n_chunks;
}
/* Writes one chunk. A continuing session keeps its own memory, whose pages may be huge; the copy lives until it is
 * written. */
static bool save_chunk(struct session *s, bool closes) {
    struct prefix *p = &s->prefix;
    size_t i = p->no_disk ? p->n_chunks : first_unsaved(s);
    if (i == p->n_chunks) return false;
    struct prefix_chunk *x = &p->chunks[i];
    struct kv_shared *b = closes ? get_block(s, i) : x->block,
                     *copy = b ? NULL
                               : kv_shared_create(&s->engine->kv_store, &s->kv, i ? p->chunks[i - 1].end : 0, x->end,
                                                  false);
    x->is_saved = true;
    if (b || copy) kv_disk_write(s->engine->kv_disk, b ? b : copy, x->key, p->tokens, x->n_forgotten);
    kv_shared_unref(copy);
    return true;
}

bool prefix_save_one(struct engine *eng) {
    struct session *found = NULL;
    if (!eng->kv_disk) return false;
    pthread_mutex_lock(&eng->lock);
    for (struct session *s = eng->sessions; s && !found; s = s->next)
        if (!s->prefix.no_disk && first_unsaved(s) < s->prefix.n_chunks) found = s, s->n_borrowers++;
    pthread_mutex_unlock(&eng->lock);
    if (!found) return false;
    save_chunk(found, false);
    release_donor(found);
    return true;
}

static int save_session(void *session) {
    while (save_chunk(session, true)) {
    }
    return 0;
}
void prefix_save_all(struct session *s) {
    if (!s->engine->kv_disk || s->prefix.no_disk || first_unsaved(s) == s->prefix.n_chunks) return;
    if (s->engine->started) engine_run_on_thread(s->engine, save_session, s);
    else save_session(s); /* the engine thread has ended */
}

/* --- Forks ------------------------------------------------------------------------------------ */

struct fork_call {
    struct session *from, *to;
    struct error *e;
};
static int fork_run(void *arg) {
    const struct fork_call *f = arg;
    struct session *from = f->from, *to = f->to;
    struct prefix *p = &from->prefix, *q = &to->prefix;
    int rc = 0;
    truncate_chunks(p, from->n_kv); /* a turn that was cancelled in the queue left chunks of the turn before it */
    if (from->n_kv > (p->n_chunks ? p->chunks[p->n_chunks - 1].end : 0)) rc = push_chunk(p, from->n_kv, 0);
    if (!rc) rc = mem_grow(&q->tokens, &q->tokens_cap, (size_t)p->exact_end, sizeof *q->tokens);
    if (!rc) rc = mem_grow(&to->tokens, &to->tokens_cap, (size_t)from->n_kv + 1, sizeof *to->tokens);
    for (size_t i = 0; i < p->n_chunks && !rc; i++) rc = map_chunk(to, from, i, f->e);
    if (!rc) kv_state_copy_all(&to->kv, &from->kv);
    if (!rc && p->exact_end) memcpy(q->tokens, p->tokens, (size_t)p->exact_end * sizeof *q->tokens);
    if (!rc && from->n_kv) memcpy(to->tokens, from->tokens, (size_t)from->n_kv * sizeof *to->tokens);
    if (rc) return error_set(f->e, rc, "no memory to share a KV cache of %d tokens", from->n_kv);
    q->exact_end = p->exact_end, q->token_s = p->token_s, q->no_disk = p->no_disk;
    to->n_kv = to->n_tokens = from->n_kv;
    to->is_long_rope = from->is_long_rope;
    return 0;
}
int prefix_fork(struct session *from, struct session *to, struct error *e) {
    return engine_run_on_thread(from->engine, fork_run, &(struct fork_call){from, to, e});
}
