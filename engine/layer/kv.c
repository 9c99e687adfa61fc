#include <string.h>

#include "engine/base/mem.h"
#include "engine/layer/attention.h"

static size_t page_up(size_t n) { return (n + 4095) & ~(size_t)4095; }

int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]) { return attention_of(c, layer)->cache(c, layer, out); }

struct kv_plane kv_plane_of(const struct cache_desc *d, enum dtype dtype) {
    if (d->fine && dtype == DT_E4M3) dtype = DT_BF16;
    return (struct kv_plane){.heads = d->heads, .dim = d->dim, .dtype = d->dtype ? d->dtype : (uint8_t)dtype};
}
struct kv_rows kv_rows_of(const struct kv_plane *p, int row, int n) {
    size_t heads = (size_t)p->heads, width = heads * (size_t)p->dim;
    return (struct kv_rows){dtype_bytes(p->dtype, width * (size_t)row), dtype_bytes(p->dtype, width * (size_t)n), (size_t)row * heads,
                            p->dtype == DT_E4M3 ? (size_t)n * heads : 0};
}

size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    for (int i = kv_planes(c, layer, d); i-- > 0;) {
        struct kv_plane p = kv_plane_of(&d[i], dtype);
        struct kv_rows one = kv_rows_of(&p, 0, 1);
        size_t every = d[i].every ? (size_t)d[i].every : 1;
        if (!d[i].rows) sum += (one.bytes + one.scales * sizeof(float) + every - 1) / every;
    }
    return sum;
}
size_t kv_token_bytes(const struct config *c, enum dtype dtype) {
    size_t sum = 0;
    for (int i = 0; i < c->n_layers; i++) sum += kv_row_bytes(c, i, dtype);
    return sum;
}

size_t kv_state_bytes(const struct config *c) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        for (int i = kv_planes(c, l, d); i-- > 0;) {
            struct kv_plane p = kv_plane_of(&d[i], DT_NONE);
            if (d[i].rows) sum += kv_rows_of(&p, 0, 1).bytes;
        }
    return sum;
}

int kv_each(const struct kv *kv, int (*fn)(void *ctx, const struct kv_plane *p, const struct kv_place *at), void *ctx) {
    size_t at = 0;
    int rc = 0;
    for (int i = 0; i < kv->n_layers && !rc; i++) {
        struct cache_desc d[CACHE_PLANES];
        int n = kv_planes(kv->c, i, d);
        for (int k = 0; k < n && !rc; k++) {
            struct kv_plane p = kv_plane_of(&d[k], kv->dtype);
            struct kv_place place = {.layer = i, .plane = k, .rows = d[k].rows, .every = d[k].every ? d[k].every : 1, .data = at};
            struct kv_rows all = kv_rows_of(&p, 0, d[k].rows ? d[k].rows : kv->capacity / place.every);
            place.scale = at + page_up(all.bytes);
            at = place.end = place.scale + page_up(all.scales * sizeof(float));
            rc = fn(ctx, &p, &place);
        }
    }
    return rc;
}

static int size_up(void *ctx, const struct kv_plane *p, const struct kv_place *at) { return ((struct kv *)ctx)->size = at->end, 0; }
static int lay(void *ctx, const struct kv_plane *p, const struct kv_place *at) {
    struct kv *kv = ctx;
    struct kv_plane *to = &kv->layer[at->layer].p[at->plane];
    *to = *p;
    to->data = kv->pages + at->data;
    to->scale = at->end > at->scale ? (float *)(kv->pages + at->scale) : NULL;
    return at->rows ? mem_commit(to->data, at->end - at->data) : 0;
}

int kv_open(struct kv *kv, const struct config *c, int capacity, enum dtype dtype, struct error *e) {
    *kv = (struct kv){.c = c, .dtype = dtype, .n_layers = c->n_layers, .capacity = capacity};
    kv_each(kv, size_up, kv);
    kv->pages = mem_pages(kv->size, MEM_RESERVE);
    kv->layer = mem_calloc((size_t)c->n_layers, sizeof *kv->layer);
    if (!kv->pages || !kv->layer || kv_each(kv, lay, kv)) {
        size_t size = kv->size;
        kv_close(kv);
        return error_set(e, ERR_MEMORY, "no address space for a KV cache of %d tokens (%zu MB); take a smaller context with -c", capacity, size >> 20);
    }
    kv->states = kv_state_bytes(c) > 0;
    for (int i = 0; i < KV_STATES; i++) kv->state[i].at = -1;
    return 0;
}

struct reach {
    struct kv *kv;
    int end;
};
static int commit(uint8_t *base, size_t from, size_t to) {
    return page_up(to) > page_up(from) ? mem_commit(base + page_up(from), page_up(to) - page_up(from)) : 0;
}
static int commit_plane(void *ctx, const struct kv_plane *p, const struct kv_place *at) {
    const struct reach *r = ctx;
    uint8_t *base = r->kv->pages;
    if (at->rows) return 0;
    struct kv_rows was = kv_rows_of(p, 0, r->kv->committed / at->every), is = kv_rows_of(p, 0, r->end / at->every);
    int rc = commit(base + at->data, was.bytes, is.bytes);
    return rc ? rc : commit(base + at->scale, was.scales * sizeof(float), is.scales * sizeof(float));
}

int kv_reach(struct kv *kv, int end, struct error *e) {
    enum { AT_ONCE = 1024 }; /* commit in steps, so that decode does not call this for each token */
    if (end <= kv->committed) return 0;
    struct reach r = {kv, (end + AT_ONCE - 1) / AT_ONCE * AT_ONCE};
    if (r.end > kv->capacity) r.end = kv->capacity;
    if (kv_each(kv, commit_plane, &r))
        return error_set(e, ERR_MEMORY, "no memory for a KV cache of %d tokens", end); /* already committed memory is committed again next time */
    kv->committed = r.end;
    return 0;
}

void kv_close(struct kv *kv) {
    mem_pages_free(kv->pages, kv->size);
    mem_free(kv->layer);
    *kv = (struct kv){0};
}

/* --- States -------------------------------------------------------------------------------------------------------------------- */

int kv_find(const struct kv *kv, int pos) { /* prefers a kept one, so that the other can be overwritten */
    int best = -1;
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].at == pos && (best < 0 || kv->state[i].kept)) best = i;
    return best;
}

int kv_floor(const struct kv *kv, int pos) {
    int best = 0;
    for (int i = 0; i < KV_STATES && kv->states; i++)
        if (kv->state[i].at <= pos && kv->state[i].at > best) best = kv->state[i].at;
    return kv->states ? best : pos;
}

void kv_rewind(struct kv *kv, int pos) {
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].at > pos) kv->state[i].at = -1, kv->state[i].kept = false;
}

/* How many more tokens a rewind to this state would recompute without it. */
static int loss(const struct kv *kv, int i) {
    int before = 0;
    for (int k = 0; k < KV_STATES; k++)
        if (kv->state[k].at < kv->state[i].at && kv->state[k].at > before) before = kv->state[k].at;
    return kv->state[i].at - before;
}

/* Returns a row to write to, other than a and b: an unkept one, otherwise the kept one with the smallest loss. */
static int take(struct kv *kv, int a, int b) {
    int best = -1;
    for (int i = 0; i < KV_STATES; i++)
        if (i != a && i != b && !kv->state[i].kept) return kv->state[i].at = -1, i;
    for (int i = 0; i < KV_STATES; i++)
        if (i != a && i != b && (best < 0 || loss(kv, i) < loss(kv, best))) best = i;
    kv->state[best].at = -1, kv->state[best].kept = false;
    return best;
}

struct kv_move kv_begin(struct kv *kv, int pos, int n, int mark) {
    if (!kv->states) return (struct kv_move){-1, -1, 0, -1};
    kv_rewind(kv, pos);
    struct kv_move m = {.from = pos ? kv_find(kv, pos) : -1, .mark = mark < n ? mark : 0, .marked = -1};
    m.to = take(kv, m.from, -1);
    if (m.mark) m.marked = take(kv, m.from, m.to);
    return m;
}

void kv_done(struct kv *kv, const struct kv_move *m, int pos, int n) {
    if (!kv->states) return;
    kv->state[m->to].at = pos + n;
    if (m->mark) kv->state[m->marked].at = pos + m->mark, kv->state[m->marked].kept = true;
}

int kv_put(struct kv *kv, int pos) {
    int i = take(kv, -1, -1);
    kv->state[i].at = pos, kv->state[i].kept = true;
    return i;
}

static int copy_states(void *ctx, const struct kv_plane *p, const struct kv_place *at) {
    struct kv *const *pair = ctx;
    const size_t one = kv_rows_of(p, 0, 1).bytes;
    for (int i = 0; i < at->rows; i++)
        if (pair[1]->state[i].at >= 0) memcpy(pair[0]->pages + at->data + (size_t)i * one, pair[1]->pages + at->data + (size_t)i * one, one);
    return 0;
}
void kv_copy_states(struct kv *to, const struct kv *from) {
    memcpy(to->state, from->state, sizeof to->state);
    if (from->states) kv_each(to, copy_states, (struct kv *[]){to, (struct kv *)from});
}

void kv_try(struct kv *kv, int pos) {
    int base = kv->states && pos ? kv_find(kv, pos) : -1, free = 0, least = -1;
    for (int i = 0; i < KV_STATES; i++) free += i != base && !kv->state[i].kept;
    for (int i = 0; i < KV_STATES && kv->states; i++)
        if (i != base && kv->state[i].kept && (least < 0 || loss(kv, i) < loss(kv, least))) least = i;
    if (kv->states && free < 2) kv->state[least].at = -1, kv->state[least].kept = false;
    if (base >= 0 && !kv->state[base].kept) kv->state[base].kept = kv->state[base].held = true;
}
void kv_return(struct kv *kv, int pos) {
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].held) kv->state[i].kept = kv->state[i].held = false;
    if (kv->states) kv_rewind(kv, pos);
}

void kv_keep(struct kv *kv, int pos) {
    int i = kv->states ? kv_find(kv, pos) : -1;
    if (i >= 0) kv->state[i].kept = true;
}

/* Not the very end: a template may end a prompt with a few tokens that the next turn replaces. */
int kv_mark(int pos, int n) {
    enum { BLOCK = 64, LAST = 16 };
    int at = (pos + n - LAST) / BLOCK * BLOCK - pos;
    return at > 0 ? at : 0;
}
