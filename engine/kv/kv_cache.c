#include "engine/kv/kv_cache.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

struct kv_plane kv_plane_of(const struct cache_desc *d, enum dtype dtype) {
    if (d->is_fine && dtype == DT_E4M3) dtype = DT_BF16;
    return (struct kv_plane){.heads = d->heads, .dim = d->dim, .dtype = d->dtype ? d->dtype : (uint8_t)dtype};
}
struct kv_row_range kv_row_range_of(const struct kv_plane *p, int row, int n) {
    size_t heads = (size_t)p->heads, width = heads * (size_t)p->dim;
    return (struct kv_row_range){dtype_bytes(p->dtype, width * (size_t)row), dtype_bytes(p->dtype, width * (size_t)n),
                                 (size_t)row * heads, p->dtype == DT_E4M3 ? (size_t)n * heads : 0};
}

int kv_each_plane(const struct kv *kv, int (*fn)(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at),
                  void *ctx) {
    size_t at = 0;
    int rc = 0;
    for (int i = 0; i < kv->n_layers && !rc; i++) {
        struct cache_desc d[CACHE_PLANES];
        int n = kv->planes(kv->c, i, d);
        for (int k = 0; k < n && !rc; k++) {
            if (d[k].is_taken) continue;
            struct kv_plane p = kv_plane_of(&d[k], kv->dtype);
            struct kv_plane_layout place = {.layer = i,
                                            .plane = k,
                                            .fixed_rows = d[k].fixed_rows,
                                            .tokens_per_row = d[k].tokens_per_row ? d[k].tokens_per_row : 1};
            struct kv_row_range all =
                kv_row_range_of(&p, 0, d[k].fixed_rows ? d[k].fixed_rows : kv->capacity / place.tokens_per_row);
            const size_t grain = all.bytes >= MEM_HUGE_PAGE && !place.fixed_rows ? MEM_HUGE_PAGE : MEM_PAGE;
            place.large_from = grain == MEM_HUGE_PAGE ? kv->large_from : 0;
            place.data = at = align_up(at, grain);
            place.scale = at + align_up(all.bytes, grain);
            at = place.end = place.scale + align_up(all.n_scales * sizeof(float), MEM_PAGE);
            rc = fn(ctx, &p, &place);
        }
    }
    return rc;
}

static int set_size(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct kv *kv = ctx;
    kv->size = at->end, kv->n_planes++, kv->n_large += at->large_from > 0;
    return 0;
}
static int place_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct kv *kv = ctx;
    struct kv_plane *to = &kv->layer[at->layer].p[at->plane];
    *to = *p;
    to->data = kv->pages + at->data;
    to->scale = at->end > at->scale ? (float *)(kv->pages + at->scale) : NULL;
    return at->fixed_rows ? mem_commit(to->data, at->end - at->data) : 0;
}

/* Blocks that are full become large pages. Of the caches that are opened first, which are mostly the only ones, blocks
 * that begin to fill, too: a plane takes nearly 2 MB more than it fills, as long as that is little of the machine's
 * memory. */
static _Atomic size_t early_bytes;
static void take_early(struct kv *kv) {
    enum { SHARE = 32, EARLY = MEM_HUGE_PAGE / 32 };
    const size_t bytes = kv->n_large * MEM_HUGE_PAGE;
    kv->is_early = atomic_fetch_add(&early_bytes, bytes) + bytes <= mem_total() / SHARE;
    if (!kv->is_early) atomic_fetch_sub(&early_bytes, bytes);
    kv->large_from = kv->is_early ? EARLY : MEM_HUGE_PAGE;
}

int kv_open(struct kv *kv, const struct config *c, kv_planes_fn planes, int capacity, enum dtype dtype,
            struct error *e) {
    *kv = (struct kv){.c = c, .planes = planes, .dtype = dtype, .n_layers = c->n_layers, .capacity = capacity};
    kv->large_from = 1; /* until set_size has counted the planes */
    kv_each_plane(kv, set_size, kv);
    take_early(kv);
    kv->pages = mem_pages(kv->size, MEM_RESERVE);
    kv->layer = mem_calloc((size_t)c->n_layers, sizeof *kv->layer);
    kv->large = mem_calloc(kv->n_planes, sizeof *kv->large);
    if (!kv->pages || !kv->layer || !kv->large || kv_each_plane(kv, place_plane, kv)) {
        size_t size = kv->size;
        kv_close(kv);
        return error_set(
            e, ERR_MEMORY,
            "no address space for a KV cache of %d tokens (%zu MB); a smaller context needs less (--context)", capacity,
            size >> 20);
    }
    for (int i = 0; i < c->n_layers; i++) {
        struct cache_desc d[CACHE_PLANES];
        for (int k = planes(c, i, d); k-- > 0; kv->has_states |= d[k].fixed_rows > 0)
            if (d[k].is_taken) kv->layer[i].p[k] = kv->layer[c->layer[i].kv_source].p[k];
    }
    for (int i = 0; i < KV_STATES; i++) kv->state[i].pos = -1;
    return 0;
}

struct commit_call {
    struct kv *kv;
    int end;
};
/* Commits the pages of bytes [from, to) at base. A page that begins before `from` is committed already. */
static int commit_range(uint8_t *base, size_t from, size_t to) {
    const size_t begin = align_up(from, MEM_PAGE), end = align_up(to, MEM_PAGE);
    return end > begin ? mem_commit(base + begin, end - begin) : 0;
}
static size_t committed_end(const struct kv_plane_layout *at, size_t bytes) {
    return align_up(bytes, at->large_from ? MEM_HUGE_PAGE : MEM_PAGE);
}
static int commit_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    const struct commit_call *r = ctx;
    uint8_t *base = r->kv->pages;
    if (at->fixed_rows) return 0;
    struct kv_row_range have = kv_row_range_of(p, 0, r->kv->committed / at->tokens_per_row),
                        need = kv_row_range_of(p, 0, r->end / at->tokens_per_row);
    int rc = commit_range(base + at->data, committed_end(at, have.bytes), committed_end(at, need.bytes));
    return rc ? rc : commit_range(base + at->scale, have.n_scales * sizeof(float), need.n_scales * sizeof(float));
}

/* --- Large pages ------------------------------------------------------------------------------ */

/* Keys in small pages, which lie anywhere, are read up to five times as slowly in a virtual machine. A block of 2 MB of
 * a plane becomes a large page when enough of it is in use: at its first touch if a prompt uses so much at once, else
 * by a copy, which takes half a millisecond, so that few are made per call. */
struct enlarge_call {
    struct kv *kv;
    int end, copies; /* that are allowed */
    size_t *large;   /* of the plane that is visited */
    bool is_pending;
};
static int enlarge_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct enlarge_call *r = ctx;
    size_t *large = r->large++;
    if (!at->large_from) return 0;
    const size_t used = kv_row_range_of(p, 0, r->kv->used / at->tokens_per_row).bytes,
                 end = kv_row_range_of(p, 0, r->end / at->tokens_per_row).bytes;
    for (; *large + at->large_from <= end; *large += MEM_HUGE_PAGE) {
        const bool is_used = used > *large;
        if (is_used && r->copies-- <= 0) return r->is_pending = true, 0;
        mem_request_huge(r->kv->pages + at->data + *large, MEM_HUGE_PAGE, is_used);
    }
    return 0;
}
static void enlarge(struct kv *kv, int end) {
    enum { LOOKS = 16, COPIES = 2 }; /* tokens between two looks; per token, at least */
    struct enlarge_call r = {kv, end, COPIES, kv->large};
    if (end > kv->used) r.copies += (end - kv->used) / LOOKS;
    kv_each_plane(kv, enlarge_plane, &r);
    kv->next_look = end + (r.is_pending ? 1 : LOOKS);
}
static int renew_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct kv *kv = ctx;
    const struct kv_row_range rows = kv_row_range_of(p, 0, kv->committed / at->tokens_per_row);
    if (at->fixed_rows) return 0;
    const int rc = rows.bytes ? mem_zero_pages(kv->pages + at->data, committed_end(at, rows.bytes)) : 0;
    return !rc && rows.n_scales
               ? mem_zero_pages(kv->pages + at->scale, align_up(rows.n_scales * sizeof(float), MEM_PAGE))
               : rc;
}
int kv_renew(struct kv *kv) {
    kv->used = kv->next_look = 0;
    memset(kv->large, 0, kv->n_planes * sizeof *kv->large);
    return kv_each_plane(kv, renew_plane, kv);
}

int kv_commit(struct kv *kv, int end, struct error *e) {
    enum { STEP = 1024 }; /* positions per commit, so that decode commits rarely */
    if (end > kv->committed) {
        struct commit_call r = {kv, (end + STEP - 1) / STEP * STEP};
        if (r.end > kv->capacity) r.end = kv->capacity;
        if (kv_each_plane(kv, commit_plane, &r)) /* pages that are committed already are committed again next time */
            return error_set(e, ERR_MEMORY, "no memory for a KV cache of %d tokens", end);
        kv->committed = r.end;
    }
    if (end >= kv->next_look) enlarge(kv, end);
    if (end > kv->used) kv->used = end;
    return 0;
}

void kv_close(struct kv *kv) {
    mem_pages_free(kv->pages, kv->size);
    mem_free(kv->layer), mem_free(kv->large);
    if (kv->is_early) atomic_fetch_sub(&early_bytes, kv->n_large * MEM_HUGE_PAGE);
    *kv = (struct kv){0};
}

/* --- States ----------------------------------------------------------------------------------- */

int kv_state_find(const struct kv *kv, int pos) { /* prefers a kept one, so that the other can be overwritten */
    int best = -1;
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].pos == pos && (best < 0 || kv->state[i].is_kept)) best = i;
    return best;
}

int kv_resume_pos(const struct kv *kv, int pos) {
    int best = 0;
    for (int i = 0; i < KV_STATES && kv->has_states; i++)
        if (kv->state[i].pos <= pos && kv->state[i].pos > best) best = kv->state[i].pos;
    return kv->has_states ? best : pos;
}

void kv_rewind(struct kv *kv, int pos) {
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].pos > pos) kv->state[i].pos = -1, kv->state[i].is_kept = false;
}

/* Returns how many more tokens a rewind to state i would recompute without it. */
static int rewind_loss(const struct kv *kv, int i) {
    int before = 0;
    for (int k = 0; k < KV_STATES; k++)
        if (kv->state[k].pos < kv->state[i].pos && kv->state[k].pos > before) before = kv->state[k].pos;
    return kv->state[i].pos - before;
}

static unsigned state_bit(int row) { return row < 0 ? 0 : 1u << row; }
/* Evicts the kept state with the smallest loss, other than those of rows in use, which leave one. Returns its row. */
static int evict_kept_state(struct kv *kv, unsigned in_use) {
    int best = -1;
    for (int i = 0; i < KV_STATES; i++)
        if (!(in_use & state_bit(i)) && kv->state[i].is_kept &&
            (best < 0 || rewind_loss(kv, i) < rewind_loss(kv, best)))
            best = i;
    kv->state[best].pos = -1, kv->state[best].is_kept = false;
    return best;
}
/* Returns a row to write to, other than those in use: an unkept one, otherwise an evicted one. */
static int take_state_row(struct kv *kv, unsigned in_use) {
    for (int i = 0; i < KV_STATES; i++)
        if (!(in_use & state_bit(i)) && !kv->state[i].is_kept) return kv->state[i].pos = -1, i;
    return evict_kept_state(kv, in_use);
}
/* Sets the rows of a step whose from_row, in_use and reserved are set. to_row: -1, or one to write to again. */
static void take_step_rows(struct kv *kv, struct kv_state_step *step, int to_row, int n, int mark) {
    step->mark = mark < n ? mark : 0, step->keeps_end = mark > 0 && mark == n, step->mark_row = -1;
    step->in_use |= state_bit(step->from_row);
    step->to_row = to_row < 0 ? take_state_row(kv, step->in_use) : to_row;
    step->in_use |= state_bit(step->to_row);
    if (step->mark) step->mark_row = take_state_row(kv, step->in_use);
    step->in_use |= state_bit(step->mark_row);
    if (step->keeps_end) step->reserved |= state_bit(step->to_row);
}

struct kv_state_step kv_state_begin(struct kv *kv, int pos, int n, int mark) {
    struct kv_state_step step = {.from_row = -1, .to_row = -1, .mark_row = -1};
    if (!kv->has_states) return step;
    kv_rewind(kv, pos);
    if (pos) step.from_row = kv_state_find(kv, pos);
    step.reserved = state_bit(step.from_row);
    take_step_rows(kv, &step, -1, n, mark);
    return step;
}
/* Two rows in turn, besides the first one's and one that is kept. */
struct kv_state_step kv_state_continue(struct kv *kv, const struct kv_state_step *before, int n, int mark) {
    if (!kv->has_states) return *before;
    struct kv_state_step step = {.from_row = before->to_row, .in_use = before->in_use, .reserved = before->reserved};
    const bool is_free = before->from_row >= 0 && !(before->reserved & state_bit(before->from_row));
    take_step_rows(kv, &step, is_free ? before->from_row : -1, n, mark);
    return step;
}

void kv_state_commit(struct kv *kv, const struct kv_state_step *step, int pos, int n) {
    if (!kv->has_states) return;
    kv->state[step->to_row].pos = pos + n;
    if (step->keeps_end) kv->state[step->to_row].is_kept = true;
    if (step->mark) kv->state[step->mark_row].pos = pos + step->mark, kv->state[step->mark_row].is_kept = true;
}

int kv_state_add(struct kv *kv, int pos) {
    int i = take_state_row(kv, 0);
    kv->state[i].pos = pos, kv->state[i].is_kept = true;
    return i;
}

struct state_copy {
    struct kv *to;
    const struct kv *from;
};
static int copy_states(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    const struct state_copy *k = ctx;
    const size_t bytes = kv_row_range_of(p, 0, 1).bytes;
    for (int i = 0; i < at->fixed_rows; i++)
        if (k->from->state[i].pos >= 0)
            memcpy(k->to->pages + at->data + (size_t)i * bytes, k->from->pages + at->data + (size_t)i * bytes, bytes);
    return 0;
}
void kv_state_copy_all(struct kv *to, const struct kv *from) {
    memcpy(to->state, from->state, sizeof to->state);
    if (from->has_states) kv_each_plane(to, copy_states, &(struct state_copy){to, from});
}

void kv_state_try(struct kv *kv, int pos) {
    int base = kv->has_states && pos ? kv_state_find(kv, pos) : -1, free = 0;
    for (int i = 0; i < KV_STATES; i++) free += i != base && !kv->state[i].is_kept;
    for (; kv->has_states && free < 2; free++) evict_kept_state(kv, state_bit(base));
    if (base >= 0 && !kv->state[base].is_kept) kv->state[base].is_kept = kv->state[base].kept_by_try = true;
}
void kv_state_undo(struct kv *kv, int pos) {
    for (int i = 0; i < KV_STATES; i++)
        if (kv->state[i].kept_by_try) kv->state[i].is_kept = kv->state[i].kept_by_try = false;
    if (kv->has_states) kv_rewind(kv, pos);
}

void kv_state_keep(struct kv *kv, int pos) {
    int i = kv->has_states ? kv_state_find(kv, pos) : -1;
    if (i >= 0) kv->state[i].is_kept = true;
}

/* The mark is before the very end: a template may end a prompt with a few tokens that the next turn replaces (LAST
 * allows for 16). It is at a multiple of GRAIN positions, so that prompts that differ in their last tokens have a state
 * at the same position. */
int kv_state_mark(int pos, int n) {
    enum { GRAIN = 64, LAST = 16 };
    int at = (pos + n - LAST) / GRAIN * GRAIN - pos;
    return at > 0 ? at : 0;
}
