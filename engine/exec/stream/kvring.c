/* KV of the new positions, layer by layer (context parallel). A rank computes KV of its own stripes into its planes of
 * the cache (two, by layer parity), the loader uploads the positions that the session already has, and the other ranks'
 * stripes travel around a ring, rank r to r + 1: step t brings those of the rank t before this one, while attention
 * over earlier ones runs. Rows travel as they are cached: for MLA the latent, 1.2 KB of BF16, where the expanded keys
 * and values of 128 heads are 160 KB. Expanding on arrival costs flops on each rank, but no time on the bus, which is
 * shared with the weights.
 *
 * Blocks stay in the plane until the layer is done. One plane of all positions thus replaces a pair of travelling
 * buffers: later chunks of queries find them, and nothing is sent twice. Without peer copies a hop goes through the
 * pinned buffer of the block's origin, the rank that computed it, which also fills the session's cache: one download
 * serves both. Receivers read it in ring order; forwarding would only add copies. Stripes after all queries of a
 * receiver (and of the ranks it forwards to) are skipped.
 *
 * No row is overwritten while it is read: a rank writes layer L + 2 after its attention of L + 1, which waited for
 * every block of L + 1, and a rank makes those after it received all of L.
 *
 * A layer that takes another layer's keys and values has their rows in its own plane, since the plane of the source
 * layer is overwritten. The session's cache has them once, from the source layer. */
#include "engine/exec/stream/kvring.h"

#include <string.h>

#include "base/mem.h"
#include "engine/exec/stream/exchange.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp.h"
#include "engine/layer/kv_planes.h"

static int n_planes(const struct slp_rank *r, int layer) {
    struct cache_desc d[CACHE_PLANES];
    return kv_planes(r->p->c, layer, d);
}
static struct cache_desc desc_of(const struct slp_rank *r, int layer, int plane) {
    struct cache_desc d[CACHE_PLANES];
    kv_planes(r->p->c, layer, d);
    return d[plane];
}
static bool is_state(const struct slp_rank *r, int layer, int plane) { return desc_of(r, layer, plane).fixed_rows > 0; }
/* Whether the session's cache has the rows from another layer. */
static bool is_taken(const struct slp_rank *r, int layer, int plane) { return desc_of(r, layer, plane).is_taken; }
bool kvring_has_state(const struct slp_rank *r, int layer) {
    for (int i = n_planes(r, layer); i-- > 0;)
        if (is_state(r, layer, i)) return true;
    return false;
}
/* Rows of a plane that belong to a stripe. A row of several tokens belongs to the stripe of its last token. */
struct stripe_range {
    int first, n; /* rows [first, first + n) of the cache */
    int local;    /* first of them among the rows that the stripe's rank computes */
};
static struct stripe_range stripe_rows(const struct slp_rank *r, int layer, int plane, const struct stripe *s) {
    const struct cache_desc d = desc_of(r, layer, plane);
    const int pos = r->p->job->pos;
    int local = 0;
    for (const struct stripe *t = r->stripe; t < s; t++)
        local += kv_complete_rows(&d, pos + t->first + t->n) - kv_complete_rows(&d, pos + t->first);
    return (struct stripe_range){kv_complete_rows(&d, pos + s->first),
                                 kv_complete_rows(&d, pos + s->first + s->n) - kv_complete_rows(&d, pos + s->first),
                                 local};
}
/* Whether layers a and b have the same plane layout. */
static bool same_layout(const struct slp_rank *r, int a, int b) {
    struct cache_desc x[CACHE_PLANES], y[CACHE_PLANES];
    int n = kv_planes(r->p->c, a, x);
    if (kv_planes(r->p->c, b, y) != n) return false;
    for (int i = 0; i < n; i++)
        if (x[i].heads != y[i].heads || x[i].dim != y[i].dim || x[i].fixed_rows != y[i].fixed_rows ||
            x[i].tokens_per_row != y[i].tokens_per_row || x[i].dtype != y[i].dtype)
            return false;
    return true;
}
/* Returns the rank that computed the block that r receives in that step of the ring: the origin of the block. */
static struct slp_rank *origin_at(const struct slp_rank *r, int step) {
    int n_ranks = r->p->n_ranks;
    return &r->p->rank[(r->id - step + n_ranks) % n_ranks];
}
/* A layer's use of its events, counted from 1. Layers of the same parity share events. */
static uint64_t layer_use(int layer) { return (uint64_t)layer / 2 + 1; }

/* Lays out a layer's planes consecutively at mem; returns the bytes. mem is NULL in virtual time. */
static size_t lay_out_planes(const struct slp_rank *r, int layer, int rows, int states, char *mem,
                             struct kv_plane out[CACHE_PLANES]) {
    struct cache_desc d[CACHE_PLANES];
    size_t at = 0;
    for (int i = 0, n = kv_planes(r->p->c, layer, d); i < n; i++) {
        out[i] = r->p->job->cache[layer].p[i];
        struct kv_row_range all = kv_row_range_of(&out[i], 0,
                                                  d[i].fixed_rows       ? states
                                                  : d[i].tokens_per_row ? rows / d[i].tokens_per_row + STRIPES
                                                                        : rows);
        out[i].data = mem ? mem + at : NULL;
        at += align_up(all.bytes, 256);
        out[i].scale = mem && all.n_scales ? (float *)(mem + at) : NULL;
        at += align_up(all.n_scales * 4, 256);
    }
    return at;
}
static size_t largest_layer_bytes(const struct slp_rank *r, int rows, int states) {
    struct kv_plane p[CACHE_PLANES];
    size_t largest = 0;
    for (int l = 0; l < r->p->c->n_layers; l++) {
        size_t bytes = lay_out_planes(r, l, rows, states, NULL, p);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}
static int n_positions(const struct slp_rank *r) { return r->p->job->pos + r->p->job->n; }

int kvring_planes(const struct slp_rank *r, int layer, struct kv_plane out[CACHE_PLANES]) {
    lay_out_planes(r, layer, n_positions(r), RANK_STATES, r->kv_mem[layer % 2], out);
    return n_planes(r, layer);
}
/* Lays out the planes of this rank's rows of a layer in one of its pinned buffers; returns how many. */
static int host_planes(const struct slp_rank *r, int layer, struct kv_plane out[CACHE_PLANES]) {
    lay_out_planes(r, layer, r->n, HOST_STATES, r->kv_host[layer % 2], out);
    return n_planes(r, layer);
}

int kvring_open(struct slp_rank *r, struct error *e) {
    const struct slp_job *j = r->p->job;
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++)
        rc = gpu_alloc(r->g, (void **)&r->kv_mem[i], largest_layer_bytes(r, n_positions(r), RANK_STATES), e);
    for (int i = 0; i < 2 && !rc && !j->set->spec.is_virtual; i++)
        rc = gpu_host_alloc(r->g, (void **)&r->kv_host[i], largest_layer_bytes(r, r->n, HOST_STATES), e);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = gpu_pair_open(r->g, &r->kv_computed[i], e);
        if (!rc) rc = gpu_pair_open(r->g, &r->kv_downloaded[i], e);
        if (!rc) rc = gpu_pair_open(r->g, &r->kv_read[i], e);
        for (int k = 0; k < STRIPES && !rc; k++) rc = gpu_pair_open(r->g, &r->state_computed[i][k], e);
    }
    if (rc || r->p->n_ranks == 1) return rc;
    struct exchange *x = r->exchange;
    for (int i = 0; i < 2 * r->p->n_ranks && !rc; i++) rc = gpu_pair_open(r->g, &x->hop[i % 2][i / 2], e);
    size_t lse = (size_t)r->plan.chunk_rows * (size_t)r->p->c->n_heads * 4;
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->work.lse, lse, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->work.piece_lse, lse, e);
    r->work.piece_floats = slp_partial_floats(r->p->c, r->plan.chunk_rows);
    return rc ? rc : gpu_alloc(r->g, (void **)&r->work.piece_out, r->work.piece_floats * 4, e);
}

void kvring_abort(struct slp_rank *r) {
    for (int i = 0; i < 2; i++) {
        struct gpu_pair *pairs[] = {r->kv_computed[i], r->kv_downloaded[i], r->kv_read[i]};
        for (int k = 0; k < 3; k++)
            if (pairs[k]) gpu_pair_abort(pairs[k]);
        for (int k = 0; k < STRIPES; k++)
            if (r->state_computed[i][k]) gpu_pair_abort(r->state_computed[i][k]);
        for (int k = 0; r->exchange && k < GPU_MAX; k++)
            if (r->exchange->hop[i][k]) gpu_pair_abort(r->exchange->hop[i][k]);
    }
}

void kvring_close(struct slp_rank *r) {
    for (int i = 0; i < 2; i++) {
        gpu_pair_close(&r->kv_computed[i]);
        gpu_pair_close(&r->kv_downloaded[i]);
        gpu_pair_close(&r->kv_read[i]);
        for (int k = 0; k < STRIPES; k++) gpu_pair_close(&r->state_computed[i][k]);
        for (int k = 0; r->exchange && k < GPU_MAX; k++) gpu_pair_close(&r->exchange->hop[i][k]);
        gpu_free(r->g, r->kv_mem[i]);
        gpu_host_free(r->g, r->kv_host[i]);
    }
    gpu_free(r->g, r->work.lse);
    gpu_free(r->g, r->work.piece_lse);
    gpu_free(r->g, r->work.piece_out);
}

static char *state_address(const struct kv_plane *p, int row) {
    return p->data ? (char *)p->data + kv_row_range_of(p, row, 1).offset : NULL;
}

/* --- Loader and unloader threads -------------------------------------------------------------- */

int kvring_load_prefix(struct slp_rank *r, int layer) {
    const struct slp_job *j = r->p->job;
    if (!j->pos) return 0;
    /* the plane's previous layer has been read */
    if (layer >= 2) TRY(gpu_pair_wait(r->kv_read[layer % 2], layer_use(layer) - 1, r->load_stream));
    /* If that layer had another layout, its rows and states overlap this prefix: their download must be complete, and
     * the other ranks must have read them, which they have once this rank has received all blocks of the layer in
     * between. */
    if (layer >= 2 && !same_layout(r, layer, layer - 2)) {
        TRY(gpu_pair_wait(r->kv_downloaded[layer % 2], layer_use(layer) - 1, r->load_stream));
        if (r->p->n_ranks > 1) TRY(gpu_pair_wait(r->kv_read[(layer - 1) % 2], layer_use(layer - 1), r->load_stream));
    }
    struct kv_plane to[CACHE_PLANES];
    for (int i = kvring_planes(r, layer, to); i-- > 0;) {
        const struct kv_plane *from = &j->cache[layer].p[i];
        if (is_state(r, layer, i)) {
            if (r->n && !r->stripe[0].first)
                TRY(ring_send(r, state_address(&to[i], STATE_BEFORE), state_address(from, j->state_step.from_row),
                              kv_row_range_of(from, 0, 1).bytes));
            continue;
        }
        struct cache_desc d = desc_of(r, layer, i);
        struct kv_row_range x = kv_row_range_of(from, 0, kv_complete_rows(&d, j->pos));
        TRY(ring_send(r, to[i].data, from->data, x.bytes));
        TRY(ring_send(r, (char *)to[i].scale, (const char *)from->scale, x.n_scales * 4));
    }
    return 0;
}

/* Downloads a stripe's rows; the host planes have no memory in virtual time. */
static int download_rows(struct slp_rank *r, const struct kv_plane *to, const struct kv_plane *from,
                         struct stripe_range rows) {
    struct kv_row_range x = kv_row_range_of(from, rows.first, rows.n), y = kv_row_range_of(to, rows.local, rows.n);
    atomic_fetch_add(&r->p->d2h, x.bytes + x.n_scales * 4);
    TRY(gpu_copy(r->unload_stream, to->data ? (char *)to->data + y.offset : NULL, (const char *)from->data + x.offset,
                 x.bytes, GPU_D2H));
    return x.n_scales ? gpu_copy(r->unload_stream, to->scale ? to->scale + y.scale_offset : NULL,
                                 from->scale + x.scale_offset, x.n_scales * 4, GPU_D2H)
                      : 0;
}

/* The session keeps two states per layer: after the last token and at the mark. has_last() and has_mark(): whether this
 * rank makes them. */
static bool has_last(const struct slp_rank *r) {
    const struct stripe *last = r->n_stripes ? &r->stripe[r->n_stripes - 1] : NULL;
    return last && last->first + last->n == r->p->job->n;
}
static bool has_mark(const struct slp_rank *r) {
    int mark = r->p->job->state_step.mark;
    for (int k = 0; k < r->n_stripes && mark; k++)
        if (r->stripe[k].first < mark && mark <= r->stripe[k].first + r->stripe[k].n) return true;
    return false;
}
static int download_state(struct slp_rank *r, char *to, const char *from, size_t bytes) {
    atomic_fetch_add(&r->p->d2h, bytes);
    return gpu_copy(r->unload_stream, to, from, bytes, GPU_D2H);
}
static int download_states(struct slp_rank *r, const struct kv_plane *to, const struct kv_plane *from) {
    size_t bytes = kv_row_range_of(from, 0, 1).bytes;
    if (has_last(r))
        TRY(download_state(r, state_address(to, HOST_LAST), state_address(from, STATE_STRIPE + r->n_stripes - 1),
                           bytes));
    return has_mark(r) ? download_state(r, state_address(to, HOST_MARK), state_address(from, STATE_MARK), bytes) : 0;
}

int kvring_download(struct slp_rank *r, int layer) {
    int rc = gpu_pair_wait(r->kv_computed[layer % 2], layer_use(layer), r->unload_stream),
        span = trace_begin(r->p->trace, r->unload_stream, r->id, LANE_UNLOAD, "kv", layer, -1);
    struct kv_plane from[CACHE_PLANES], to[CACHE_PLANES];
    kvring_planes(r, layer, from);
    for (int i = 0, n = host_planes(r, layer, to); i < n && !rc; i++) {
        /* with several ranks, other ones may read the download */
        if (is_taken(r, layer, i) && r->p->n_ranks == 1) continue;
        if (is_state(r, layer, i)) rc = download_states(r, &to[i], &from[i]);
        else
            for (int k = 0; k < r->n_stripes && !rc; k++)
                rc = download_rows(r, &to[i], &from[i], stripe_rows(r, layer, i, &r->stripe[k]));
    }
    trace_end(r->p->trace, span, r->unload_stream);
    return rc ? rc : gpu_pair_record(r->kv_downloaded[layer % 2], r->unload_stream);
}

int kvring_save(struct slp_rank *r, int layer) {
    const struct slp_job *j = r->p->job;
    TRY(gpu_event_sync(gpu_pair_event(r->kv_downloaded[layer % 2])));
    struct kv_plane from[CACHE_PLANES];
    for (int i = host_planes(r, layer, from); i-- > 0 && r->kv_host[0] && !atomic_load(&r->p->stop);) {
        const struct kv_plane *to = &j->cache[layer].p[i];
        if (is_taken(r, layer, i)) continue;
        if (is_state(r, layer, i)) {
            size_t bytes = kv_row_range_of(to, 0, 1).bytes;
            if (has_last(r)) memcpy(state_address(to, j->state_step.to_row), state_address(&from[i], HOST_LAST), bytes);
            if (has_mark(r))
                memcpy(state_address(to, j->state_step.mark_row), state_address(&from[i], HOST_MARK), bytes);
            continue;
        }
        for (int k = 0; k < r->n_stripes; k++) {
            struct stripe_range rows = stripe_rows(r, layer, i, &r->stripe[k]);
            struct kv_row_range x = kv_row_range_of(&from[i], rows.local, rows.n),
                                y = kv_row_range_of(to, rows.first, rows.n);
            memcpy((char *)to->data + y.offset, (const char *)from[i].data + x.offset, x.bytes);
            if (x.n_scales) memcpy(to->scale + y.scale_offset, from[i].scale + x.scale_offset, x.n_scales * 4);
        }
    }
    return 0;
}

/* --- The ring, compute thread ----------------------------------------------------------------- */

/* Whether a query of r, or of a rank that r forwards to, sees a position of stripe s of `origin`. */
static bool is_needed(const struct slp_rank *r, const struct slp_rank *origin, const struct stripe *s) {
    const struct slp_run *p = r->p;
    for (int i = r->id; i != origin->id; i = (i + 1) % p->n_ranks) {
        const struct slp_rank *receiver = &p->rank[i];
        const struct stripe *last = receiver->n_stripes ? &receiver->stripe[receiver->n_stripes - 1] : NULL;
        if (last && s->first < last->first + last->n) return true;
    }
    return false;
}

/* Receives a stripe of `origin` from `sender`: from the sender's planes if it is a peer, else from the pinned buffer of
 * the origin. */
static int receive_stripe(struct slp_rank *r, struct slp_rank *origin, const struct slp_rank *sender, int layer,
                          const struct stripe *s) {
    struct gpu_stream *recv = r->exchange->recv;
    struct kv_plane to[CACHE_PLANES], from[CACHE_PLANES];
    bool peer = exchange_are_peers(r, sender);
    if (peer) kvring_planes(sender, layer, from); /* at the same offset */
    else host_planes(origin, layer, from);
    for (int i = 0, n = kvring_planes(r, layer, to); i < n; i++) {
        if (is_state(r, layer, i)) continue;
        struct stripe_range rows = stripe_rows(origin, layer, i, s);
        struct kv_row_range x = kv_row_range_of(&to[i], rows.first, rows.n),
                            y = peer ? x : kv_row_range_of(&from[i], rows.local, rows.n);
        char *data = (char *)to[i].data + x.offset;
        float *scale = to[i].scale ? to[i].scale + x.scale_offset : NULL;
        atomic_fetch_add(&r->p->exchanged, x.bytes + x.n_scales * 4);
        if (peer) {
            TRY(gpu_copy_peer(recv, data, sender->g, (const char *)from[i].data + x.offset, x.bytes));
            if (x.n_scales) TRY(gpu_copy_peer(recv, scale, sender->g, from[i].scale + x.scale_offset, x.n_scales * 4));
        } else {
            TRY(gpu_copy(recv, data, from[i].data ? (const char *)from[i].data + y.offset : NULL, x.bytes, GPU_H2D));
            if (x.n_scales)
                TRY(gpu_copy(recv, scale, from[i].scale ? from[i].scale + y.scale_offset : NULL, x.n_scales * 4,
                             GPU_H2D));
        }
    }
    return 0;
}

int kvring_receive(struct slp_rank *r, int layer) {
    struct exchange *x = r->exchange;
    const struct slp_rank *sender = origin_at(r, 1);
    bool peer = exchange_are_peers(r, sender);
    TRY(gpu_pair_wait(r->kv_computed[layer % 2], layer_use(layer), x->recv)); /* the plane belongs to this layer now */
    for (int step = 1; step < r->p->n_ranks; step++) {
        struct slp_rank *origin = origin_at(r, step);
        struct gpu_pair *ready = !peer       ? origin->kv_downloaded[layer % 2]
                                 : step == 1 ? sender->kv_computed[layer % 2]
                                             : sender->exchange->hop[layer % 2][step - 1];
        TRY(gpu_pair_wait(ready, layer_use(layer), x->recv));
        int span = trace_begin(r->p->trace, x->recv, r->id, LANE_EXCHANGE, "kv", layer, step);
        for (int k = 0; k < origin->n_stripes; k++)
            if (is_needed(r, origin, &origin->stripe[k]))
                TRY(receive_stripe(r, origin, sender, layer, &origin->stripe[k]));
        trace_end(r->p->trace, span, x->recv);
        TRY(gpu_pair_record(x->hop[layer % 2][step], x->recv));
    }
    return 0;
}

int kvring_wait_step(struct slp_rank *r, int layer, int step) {
    return step ? gpu_pair_wait(r->exchange->hop[layer % 2][step], layer_use(layer), r->compute_stream) : 0;
}

/* Adjacent ranges of a step are merged. */
int kvring_ranges(const struct slp_rank *r, int end, struct kvring_range *out) {
    const struct slp_job *j = r->p->job;
    int n = 0;
    if (j->pos) out[n++] = (struct kvring_range){.n = j->pos};
    for (int step = 0; step < r->p->n_ranks; step++) {
        const struct slp_rank *origin = origin_at(r, step);
        for (int k = 0; k < origin->n_stripes; k++) {
            const struct stripe *s = &origin->stripe[k];
            int first = j->pos + s->first, last = s->first + s->n < end ? first + s->n : j->pos + end;
            if (s->first >= end) continue;
            if (n && out[n - 1].step == step && out[n - 1].first + out[n - 1].n == first)
                out[n - 1].n = last - out[n - 1].first;
            else out[n++] = (struct kvring_range){.first = first, .n = last - first, .step = step};
        }
    }
    return n;
}

/* --- States: passed from stripe to stripe ----------------------------------------------------- */

/* Returns the rank with the stripe before (with `next`: after) this one, and its index there; NULL: there is none. */
static struct slp_rank *neighbour_rank(const struct slp_rank *r, const struct stripe *s, bool next, int *index) {
    for (int i = 0; i < r->p->n_ranks; i++)
        for (int k = 0; k < r->p->rank[i].n_stripes; k++) {
            const struct stripe *other = &r->p->rank[i].stripe[k];
            *index = k;
            if (next ? other->first == s->first + s->n : other->first + other->n == s->first) return &r->p->rank[i];
        }
    return NULL;
}

/* Waits only for earlier stripes, and each rank runs its own in rising order, which prevents a deadlock. A state row is
 * overwritten two layers later, after its readers, as for keys. */
int kvring_state_begin(struct slp_rank *r, int layer, int stripe, int *from) {
    int previous_stripe;
    struct slp_rank *previous = neighbour_rank(r, &r->stripe[stripe], false, &previous_stripe);
    struct kv_plane to[CACHE_PLANES], source[CACHE_PLANES];
    if (!previous) *from = r->p->job->pos ? STATE_BEFORE : -1;
    else *from = STATE_STRIPE + (previous == r ? previous_stripe : stripe);
    if (!previous || previous == r) return 0;
    bool peer = exchange_are_peers(r, previous);
    if (peer) kvring_planes(previous, layer, source);
    else host_planes(previous, layer, source);
    TRY(gpu_pair_wait(previous->state_computed[layer % 2][previous_stripe], layer_use(layer), r->compute_stream));
    for (int i = 0, n = kvring_planes(r, layer, to); i < n; i++) {
        size_t bytes = kv_row_range_of(&to[i], 0, 1).bytes;
        if (!is_state(r, layer, i)) continue;
        atomic_fetch_add(&r->p->exchanged, bytes);
        if (peer)
            TRY(gpu_copy_peer(r->compute_stream, state_address(&to[i], *from), previous->g,
                              state_address(&source[i], STATE_STRIPE + previous_stripe), bytes));
        else
            TRY(gpu_copy(r->compute_stream, state_address(&to[i], *from),
                         state_address(&source[i], HOST_STRIPE + previous_stripe), bytes, GPU_H2D));
    }
    return 0;
}

int kvring_state_mark(struct slp_rank *r, int layer, int stripe) {
    struct kv_plane p[CACHE_PLANES];
    for (int i = 0, n = kvring_planes(r, layer, p); i < n; i++)
        if (is_state(r, layer, i))
            TRY(gpu_copy(r->compute_stream, state_address(&p[i], STATE_MARK),
                         state_address(&p[i], STATE_STRIPE + stripe), kv_row_range_of(&p[i], 0, 1).bytes, GPU_D2D));
    return 0;
}

int kvring_state_publish(struct slp_rank *r, int layer, int stripe) {
    int next_stripe;
    const struct slp_rank *next = neighbour_rank(r, &r->stripe[stripe], true, &next_stripe);
    struct kv_plane to[CACHE_PLANES], from[CACHE_PLANES];
    host_planes(r, layer, to);
    for (int i = 0, n = kvring_planes(r, layer, from); i < n && next && next != r && !exchange_are_peers(r, next);
         i++) {
        size_t bytes = kv_row_range_of(&from[i], 0, 1).bytes;
        if (is_state(r, layer, i))
            TRY(gpu_copy(r->compute_stream, state_address(&to[i], HOST_STRIPE + stripe),
                         state_address(&from[i], STATE_STRIPE + stripe), bytes, GPU_D2H));
    }
    return gpu_pair_record(r->state_computed[layer % 2][stripe], r->compute_stream);
}
