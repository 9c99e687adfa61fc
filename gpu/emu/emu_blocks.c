/* Operations on the emulated device that find addresses in memory: places, and KV planes in blocks. CPU kernels need
 * contiguous rows, so they get a copy of the rows that an operation reads; stores go block by block. */
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/emu/emu.h"

/* --- Addresses read from memory --------------------------------------------------------------- */

static int read_place(struct emu_stream *s, const struct op_address **at, struct op_address *out) {
    const struct op_address *p = *at;
    *at = NULL;
    if (!p || s->g->spec.is_virtual) return 0;
    if (emu_owns(s->g, p, sizeof *p)) return *out = *p, 1;
    emu_stream_fail(s, ERR_RUNTIME, "an op_address at %p is not memory of the device", (const void *)p);
    return ERR_RUNTIME;
}
static void set_plane_address(struct kv_plane *to, const struct op_address *p) {
    to->data = p->data, to->scale = p->scale, to->blocks = p->blocks;
}
static void set_row_range(struct op_kv_store *a, const struct op_address *p) {
    set_plane_address(&a->plane, p), a->row0 = p->pos;
    if (!a->every) return;
    a->row0 = p->pos / a->every;
    int done = op_completed(p->pos, a->tokens, a->every);
    if (a->n > done) a->n = done;
}
int emu_read_places(struct emu_stream *s, enum op_code code, union op_args *u) {
    struct op_address k, v;
    int r = 0;
    if (code == OP_KV_STORE && (r = read_place(s, &u->kv_store.at, &k)) > 0) set_row_range(&u->kv_store, &k);
    if (code == OP_ROPE_TABLE && (r = read_place(s, &u->rope_table.at, &k)) > 0)
        u->rope_table.pos0 = k.pos / u->rope_table.step * u->rope_table.step;
    if (code == OP_CONV && (r = read_place(s, &u->conv.at, &k)) > 0)
        u->conv.before = k.data ? (const float *)k.data + u->conv.state_at : NULL,
        u->conv.after = (float *)k.after + u->conv.state_at;
    if (code == OP_DELTA && (r = read_place(s, &u->delta.at, &k)) > 0)
        u->delta.before = k.data, u->delta.after = k.after;
    if (code == OP_SCAN && (r = read_place(s, &u->scan.at, &k)) > 0) u->scan.before = k.data, u->scan.after = k.after;
    if (code == OP_COMPRESS && (r = read_place(s, &u->compress.at, &k)) > 0) {
        struct op_compress *a = &u->compress;
        a->before = k.data ? (const float *)k.data + a->state_at : NULL, a->after = (float *)k.after + a->state_at,
        a->pos0 = k.pos;
    }
    if (code == OP_SELECT && (r = read_place(s, &u->select.at, &k)) > 0) {
        struct op_select *a = &u->select;
        set_plane_address(&a->k, &k), a->q_pos0 = k.pos,
                                      a->n_keys = op_seen_step(k.pos + a->n - 1, a->k_pos0, a->k_step, INT_MAX);
    }
    if (code == OP_ATTENTION && (r = read_place(s, &u->attention.at, &k)) > 0 &&
        (r = read_place(s, &u->attention.v_at, &v)) > 0) {
        struct op_attention *a = &u->attention;
        set_plane_address(&a->k, &k), set_plane_address(&a->v, &v);
        a->q_pos0 = k.pos, a->n_keys = op_seen_step(k.pos + a->n - 1, a->k_pos0, a->k_step, INT_MAX);
    }
    return r < 0 ? r : 0;
}

/* --- Planes in blocks ------------------------------------------------------------------------- */

/* Contiguous rows starting at r, before `end`: returns them as a plane, *n their number. NULL: not device memory, which
 * fails the device. */
static struct kv_plane *contiguous_rows(struct emu_stream *s, const struct kv_plane *p, int r, int end, int *n,
                                        struct kv_plane *out) {
    const struct kv_block *b = &p->blocks[r / p->block_rows];
    const size_t first = (size_t)b->mem_index * (size_t)p->block_rows + (size_t)(r % p->block_rows),
                 heads = (size_t)p->heads;
    const size_t row = dtype_bytes(p->dtype, heads * (size_t)p->dim), scales = p->dtype == DT_E4M3 ? heads * 4 : 0;
    *n = p->block_rows - r % p->block_rows < end - r ? p->block_rows - r % p->block_rows : end - r;
    *out = *p;
    out->blocks = NULL;
    out->data = b->mem + p->at + first * row;
    out->scale = scales ? (float *)(b->mem + p->scale_at + first * scales) : NULL;
    if (emu_owns(s->g, out->data, (size_t)*n * row) && (!scales || emu_owns(s->g, out->scale, (size_t)*n * scales)))
        return out;
    emu_stream_fail(s, ERR_RUNTIME, "a KV block at %p is not memory of the device", (const void *)b->mem);
    return NULL;
}

/* Copies rows [0, n) to contiguous memory. */
static int gather_plane(struct emu_stream *s, int which, struct kv_plane *p, int n) {
    const size_t heads = (size_t)p->heads, row = dtype_bytes(p->dtype, heads * (size_t)p->dim),
                 scales = p->dtype == DT_E4M3 ? heads * 4 : 0;
    const size_t scale_at = align_up((size_t)n * row, 64);
    if (!p->blocks) return 0;
    if (mem_grow(&s->contiguous[which], &s->contiguous_size[which], scale_at + (size_t)n * scales + 1, 1))
        return ERR_MEMORY;
    struct kv_plane all = *p, part;
    all.blocks = NULL;
    all.data = s->contiguous[which], all.scale = scales ? (float *)(s->contiguous[which] + scale_at) : NULL;
    for (int r = 0, k; r < n; r += k) {
        if (!contiguous_rows(s, p, r, n, &k, &part)) return ERR_RUNTIME;
        memcpy((char *)all.data + (size_t)r * row, part.data, (size_t)k * row);
        if (scales) memcpy((char *)all.scale + (size_t)r * scales, part.scale, (size_t)k * scales);
    }
    *p = all;
    return 0;
}

static int store_rows(struct emu_stream *s, const struct op_kv_store *a) {
    for (int i = 0, k; i < a->n; i += k) {
        struct op_kv_store part = *a;
        if (!contiguous_rows(s, &a->plane, a->row0 + i, a->row0 + a->n, &k, &part.plane)) return ERR_RUNTIME;
        part.x += (size_t)i * (size_t)a->ldx, part.row0 = 0, part.n = k;
        int r = s->cpu->ops->kv_store(s->cpu, &part);
        if (r) return r;
    }
    return 0;
}

int emu_compute_blocks(struct emu_stream *s, enum op_code code, const union op_args *u) {
    union op_args with;
    int r = 0;
    if (code == OP_KV_STORE && u->kv_store.plane.blocks) return store_rows(s, &u->kv_store);
    memcpy(&with, u, op_size(code));
    if (code == OP_KV_LOAD) r = gather_plane(s, 0, &with.kv_load.plane, with.kv_load.row0 + with.kv_load.n);
    if (code == OP_EXPAND) r = gather_plane(s, 0, &with.expand.latent, with.expand.row0 + with.expand.n);
    if (code == OP_SELECT) r = gather_plane(s, 0, &with.select.k, with.select.n_keys);
    if (code == OP_ATTENTION) {
        struct op_attention *a = &with.attention;
        /* kernels test whether v is k */
        const bool same = a->k.blocks && a->k.blocks == a->v.blocks && a->k.at == a->v.at;
        r = gather_plane(s, 0, &a->k, a->n_keys);
        if (same) a->v = a->k;
        else if (!r) r = gather_plane(s, 1, &a->v, a->n_keys);
    }
    return r ? r : emu_compute(s->cpu, code, &with);
}
