/* Keys and values of the new positions, layer by layer. A rank makes those of its own stripes in its plane of the cache (two,
 * by the layer's parity), the loader brings the positions that the session already has, and with several ranks the stripes of
 * the others come round a ring, rank r to r + 1: step t brings what the rank t before this one has made, while attention over
 * what came before still runs. What is passed is a row as it is cached: under MLA the latent, 1.2 KB of BF16, where expanded
 * keys and values of 128 heads are 160 KB; expanding it on arrival costs each rank flops that it has, not bus time that it
 * shares with the weights.
 *
 * A block stays in the plane until the layer is done, so one plane of all positions takes the place of a pair of travelling
 * buffers: later chunks of queries find it there, and nothing is sent twice. Without peer copies a hop goes through the
 * maker's pinned buffer, from which the session's cache is filled too: one copy out serves both, and a receiver reads there
 * in the ring's order, since passing on what host memory has would only add copies. Stripes that lie behind all queries of
 * a receiver (and of those that it passes them on to) are left out.
 *
 * No row is overwritten before its readers are through: a rank writes layer L + 2 after its attention of L + 1, which waited
 * for every block of L + 1, and a rank makes those after all that it received of L has come. */
#include "engine/pipe/kvring.h"

#include <string.h>

#include "engine/pipe/exchange.h"

#define TRY(call) \
    do { \
        int rc_ = (call); \
        if (rc_) return rc_; \
    } while (0)

static int planes(const struct rank *r, int layer) {
    struct cache_desc d[CACHE_PLANES];
    return kv_planes(r->p->c, layer, d);
}
static struct rank *rank_at(const struct rank *r, int step) { /* who made the block of that step */
    int s = r->p->n_ranks;
    return &r->p->rank[(r->id - step + s) % s];
}
static uint64_t use_of(int layer) { return (uint64_t)layer / 2 + 1; } /* of events by parity */

/* n rows of a plane: its data and its scales. */
struct rows {
    size_t at, bytes, scale_at, scales;
};
static struct rows rows_of(const struct kv_plane *k, int row, int n) {
    size_t heads = (size_t)k->heads, width = heads * (size_t)k->dim;
    struct rows x = {dtype_bytes(k->dtype, width * (size_t)row), dtype_bytes(k->dtype, width * (size_t)n), (size_t)row * heads, (size_t)n * heads};
    if (!k->scale) x.scales = 0;
    return x;
}

/* Keys or values of all rows of this rank in one of its pinned buffers. Virtual time has none: addresses are names there. */
static struct kv_plane host_plane(const struct rank *r, int layer, int which) {
    struct kv_plane k = r->plane[layer % 2][which];
    struct rows all = rows_of(&k, 0, r->n);
    size_t data = (all.bytes + 255) & ~(size_t)255;
    char *at = r->kv_host[layer % 2];
    if (at) at += (size_t)which * (data + all.scales * 4);
    k.data = at;
    k.scale = k.scale && at ? (float *)(at + data) : NULL;
    return k;
}

int kvring_open(struct rank *r, struct error *e) {
    const struct pipe_job *j = r->p->job;
    size_t rows = (size_t)j->pos + (size_t)j->n;
    int rc = 0;
    for (int i = 0; i < 4 && !rc; i++) {
        struct kv_plane *to = &r->plane[i / 2][i % 2];
        const struct kv_plane *like = i % 2 ? &j->v[0] : &j->k[0];
        if (i % 2 && planes(r, 0) == 1) continue;
        *to = *like;
        to->data = NULL;
        to->scale = NULL;
        rc = gpu_alloc(r->g, &to->data, dtype_bytes(like->dtype, rows * (size_t)like->heads * (size_t)like->dim), e);
        if (!rc && like->scale) rc = gpu_alloc(r->g, (void **)&to->scale, rows * (size_t)like->heads * 4, e);
    }
    for (int i = 0; i < 2 && !rc && !j->set->spec.is_virtual; i++) {
        struct rows all = rows_of(&r->plane[0][0], 0, r->n);
        rc = gpu_host_alloc(r->g, (void **)&r->kv_host[i], (size_t)planes(r, 0) * (((all.bytes + 255) & ~(size_t)255) + all.scales * 4), e);
    }
    for (int i = 0; i < 2 && !rc; i++) {
        rc = gpu_pair_open(r->g, &r->kv_on[i], e);
        if (!rc) rc = gpu_pair_open(r->g, &r->kv_off[i], e);
        if (!rc) rc = gpu_pair_open(r->g, &r->kv_read[i], e);
    }
    if (rc || r->p->n_ranks == 1) return rc;
    struct exchange *x = r->exchange;
    for (int i = 0; i < 2 * r->p->n_ranks && !rc; i++) rc = gpu_pair_open(r->g, &x->hop[i % 2][i / 2], e);
    size_t lse = (size_t)r->plan.chunk * (size_t)r->p->c->n_heads * 4;
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->work.lse, lse, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->work.part_lse, lse, e);
    r->work.part_floats = pipe_part_floats(r->p->c, r->plan.chunk);
    return rc ? rc : gpu_alloc(r->g, (void **)&r->work.part, r->work.part_floats * 4, e);
}

void kvring_break(struct rank *r) {
    for (int i = 0; i < 2; i++) {
        struct gpu_pair *own[] = {r->kv_on[i], r->kv_off[i], r->kv_read[i]};
        for (int k = 0; k < 3; k++)
            if (own[k]) gpu_pair_break(own[k]);
        for (int k = 0; r->exchange && k < GPU_MAX; k++)
            if (r->exchange->hop[i][k]) gpu_pair_break(r->exchange->hop[i][k]);
    }
}

void kvring_close(struct rank *r) {
    for (int i = 0; i < 2; i++) {
        gpu_pair_close(&r->kv_on[i]);
        gpu_pair_close(&r->kv_off[i]);
        gpu_pair_close(&r->kv_read[i]);
        for (int k = 0; r->exchange && k < GPU_MAX; k++) gpu_pair_close(&r->exchange->hop[i][k]);
        for (int k = 0; k < 2; k++) {
            gpu_free(r->g, r->plane[i][k].data);
            gpu_free(r->g, r->plane[i][k].scale);
        }
        gpu_host_free(r->g, r->kv_host[i]);
    }
    gpu_free(r->g, r->work.lse);
    gpu_free(r->g, r->work.part_lse);
    gpu_free(r->g, r->work.part);
}

/* --- Loader and unloader -------------------------------------------------------------------------------------------------- */

int kvring_prefix(struct rank *r, int layer) {
    const struct pipe_job *j = r->p->job;
    if (!j->pos) return 0;
    if (layer >= 2) TRY(gpu_pair_wait(r->kv_read[layer % 2], use_of(layer) - 1, r->load)); /* the plane's last layer has been read */
    for (int i = 0; i < planes(r, layer); i++) {
        const struct kv_plane *to = &r->plane[layer % 2][i], *from = i ? &j->v[layer] : &j->k[layer];
        struct rows x = rows_of(from, 0, j->pos);
        TRY(loader_send(r, to->data, from->data, x.bytes));
        TRY(loader_send(r, (char *)to->scale, (const char *)from->scale, x.scales * 4));
    }
    return 0;
}

/* A copy between this rank's rows of two planes; in virtual time host has no memory. */
static int copy_out(struct rank *r, const struct kv_plane *to, const struct kv_plane *from, const struct stripe *s) {
    struct rows x = rows_of(from, r->p->job->pos + s->first, s->n), y = rows_of(to, s->row, s->n);
    atomic_fetch_add(&r->p->d2h, x.bytes + x.scales * 4);
    TRY(gpu_copy(r->out, to->data ? (char *)to->data + y.at : NULL, (const char *)from->data + x.at, x.bytes, GPU_D2H));
    return x.scales ? gpu_copy(r->out, to->scale ? to->scale + y.scale_at : NULL, from->scale + x.scale_at, x.scales * 4, GPU_D2H) : 0;
}

int kvring_unload(struct rank *r, int layer) {
    int rc = gpu_pair_wait(r->kv_on[layer % 2], use_of(layer), r->out), span = trace_begin(r->p->trace, r->out, r->id, LANE_UNLOAD, "kv", layer, -1);
    for (int i = 0; i < planes(r, layer) && !rc; i++) {
        struct kv_plane to = host_plane(r, layer, i);
        for (int k = 0; k < r->n_stripes && !rc; k++) rc = copy_out(r, &to, &r->plane[layer % 2][i], &r->stripe[k]);
    }
    trace_end(r->p->trace, span, r->out);
    return rc ? rc : gpu_pair_set(r->kv_off[layer % 2], r->out);
}

int kvring_save(struct rank *r, int layer) {
    const struct pipe_job *j = r->p->job;
    TRY(gpu_event_sync(gpu_pair_event(r->kv_off[layer % 2])));
    for (int i = 0; i < planes(r, layer) && r->kv_host[0] && !atomic_load(&r->p->stop); i++) {
        struct kv_plane from = host_plane(r, layer, i), to = i ? j->v[layer] : j->k[layer];
        for (int k = 0; k < r->n_stripes; k++) {
            const struct stripe *s = &r->stripe[k];
            struct rows x = rows_of(&from, s->row, s->n), y = rows_of(&to, j->pos + s->first, s->n);
            memcpy((char *)to.data + y.at, (const char *)from.data + x.at, x.bytes);
            if (x.scales) memcpy(to.scale + y.scale_at, from.scale + x.scale_at, x.scales * 4);
        }
    }
    return 0;
}

/* --- The ring, from the compute thread ------------------------------------------------------------------------------------ */

/* A query of r sees a position of s, or one of a rank that gets s from r does. */
static bool wanted(const struct rank *r, const struct rank *maker, const struct stripe *s) {
    const struct pipe *p = r->p;
    for (int i = r->id; i != maker->id; i = (i + 1) % p->n_ranks) {
        const struct rank *q = &p->rank[i];
        const struct stripe *last = q->n_stripes ? &q->stripe[q->n_stripes - 1] : NULL;
        if (last && s->first < last->first + last->n) return true;
    }
    return false;
}

static int receive_stripe(struct rank *r, struct rank *maker, const struct rank *before, int layer, const struct stripe *s) {
    struct gpu_stream *recv = r->exchange->recv;
    for (int i = 0; i < planes(r, layer); i++) {
        const struct kv_plane *to = &r->plane[layer % 2][i];
        struct rows x = rows_of(to, r->p->job->pos + s->first, s->n);
        char *data = (char *)to->data + x.at;
        float *scale = to->scale ? to->scale + x.scale_at : NULL;
        atomic_fetch_add(&r->p->exchanged, x.bytes + x.scales * 4);
        if (exchange_peers(r, before)) { /* the same place there */
            const struct kv_plane *from = &before->plane[layer % 2][i];
            TRY(gpu_copy_peer(recv, data, before->g, (const char *)from->data + x.at, x.bytes));
            if (x.scales) TRY(gpu_copy_peer(recv, scale, before->g, from->scale + x.scale_at, x.scales * 4));
        } else {
            struct kv_plane from = host_plane(maker, layer, i);
            struct rows y = rows_of(&from, s->row, s->n);
            TRY(gpu_copy(recv, data, from.data ? (const char *)from.data + y.at : NULL, x.bytes, GPU_H2D));
            if (x.scales) TRY(gpu_copy(recv, scale, from.scale ? from.scale + y.scale_at : NULL, x.scales * 4, GPU_H2D));
        }
    }
    return 0;
}

int kvring_receive(struct rank *r, int layer) {
    struct exchange *x = r->exchange;
    const struct rank *before = rank_at(r, 1);
    bool peer = exchange_peers(r, before);
    TRY(gpu_pair_wait(r->kv_on[layer % 2], use_of(layer), x->recv)); /* the plane is this layer's from here on */
    for (int step = 1; step < r->p->n_ranks; step++) {
        struct rank *maker = rank_at(r, step);
        struct gpu_pair *ready = !peer ? maker->kv_off[layer % 2] : step == 1 ? before->kv_on[layer % 2] : before->exchange->hop[layer % 2][step - 1];
        TRY(gpu_pair_wait(ready, use_of(layer), x->recv));
        int span = trace_begin(r->p->trace, x->recv, r->id, LANE_EXCHANGE, "kv", layer, step);
        for (int k = 0; k < maker->n_stripes; k++)
            if (wanted(r, maker, &maker->stripe[k])) TRY(receive_stripe(r, maker, before, layer, &maker->stripe[k]));
        trace_end(r->p->trace, span, x->recv);
        TRY(gpu_pair_set(x->hop[layer % 2][step], x->recv));
    }
    return 0;
}

int kvring_arrived(struct rank *r, int layer, int step) { return step ? gpu_pair_wait(r->exchange->hop[layer % 2][step], use_of(layer), r->main) : 0; }

/* Pieces that touch become one. */
int kvring_pieces(const struct rank *r, int end, struct kvring_piece *out) {
    const struct pipe_job *j = r->p->job;
    int n = 0;
    if (j->pos) out[n++] = (struct kvring_piece){.n = j->pos};
    for (int step = 0; step < r->p->n_ranks; step++) {
        const struct rank *maker = rank_at(r, step);
        for (int k = 0; k < maker->n_stripes; k++) {
            const struct stripe *s = &maker->stripe[k];
            int first = j->pos + s->first, last = s->first + s->n < end ? first + s->n : j->pos + end;
            if (s->first >= end) continue;
            if (n && out[n - 1].step == step && out[n - 1].first + out[n - 1].n == first) out[n - 1].n = last - out[n - 1].first;
            else out[n++] = (struct kvring_piece){.first = first, .n = last - first, .step = step};
        }
    }
    return n;
}
