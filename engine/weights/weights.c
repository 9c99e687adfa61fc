#include "engine/weights/weights.h"

#include <string.h>

#include "base/blocks.h"

void *weights_alloc_repacked(struct weights *w, size_t size) {
    static const size_t slab_bytes = (size_t)1 << 30; /* untouched pages cost nothing */
    struct weights_slab *s = w->n_slabs ? &w->slabs[w->n_slabs - 1] : NULL;
    size = align_up(size, 64);
    if (!s || s->bytes - s->used < size) {
        const size_t bytes = size > slab_bytes ? align_up(size, MEM_PAGE) : slab_bytes;
        if (mem_grow(&w->slabs, &w->cap_slabs, w->n_slabs + 1, sizeof *w->slabs)) return NULL;
        s = &w->slabs[w->n_slabs];
        *s = (struct weights_slab){mem_pages(bytes, 0), bytes, 0};
        if (!s->at) return NULL;
        w->n_slabs++;
    }
    s->used += size;
    return s->at + s->used - size;
}
int weights_ranges(const struct weights *w) { return w->files.n_shards + (int)w->n_slabs; }
struct weights_range weights_range(const struct weights *w, int i) {
    if (i >= w->files.n_shards)
        return (struct weights_range){w->slabs[i - w->files.n_shards].at, w->slabs[i - w->files.n_shards].used, false};
    const struct file_map *m = &w->files.shards[i].map;
    return m->embedded || w->bytes_replaced > w->files.bytes / 2 ? (struct weights_range){.is_file = true}
                                                                 : (struct weights_range){m->data, m->size, true};
}

void weights_close(struct weights *w) {
    checkpoint_close(&w->files);
    for (size_t i = 0; i < w->n_slabs; i++) mem_pages_free(w->slabs[i].at, w->slabs[i].bytes);
    mem_free(w->slabs);
    arena_free(&w->arena);
    *w = (struct weights){0};
}

bool weights_is_ngram_table(const struct weights *w, const uint8_t *at, size_t bytes) {
    for (int k = 0; k < config_input_hashes(&w->config); k++) {
        const uint8_t *table = w->ngram_table[k].data;
        if (at >= table && at + bytes <= table + mat_span(&w->ngram_table[k])) return true;
    }
    for (int i = 0; i < w->config.n_layers; i++) {
        const struct mat *m = &w->layers[i].ngram_table;
        const uint8_t *table = m->data;
        if (table && at >= table && at + bytes <= table + mat_span(m)) return true;
    }
    return false;
}
size_t weights_needed_bytes(const struct weights *w) {
    size_t bytes = w->files.bytes - w->bytes_skipped;
    for (int k = 0; k < config_input_hashes(&w->config); k++) bytes -= mat_bytes(&w->ngram_table[k]);
    for (int i = 0; i < w->config.n_layers; i++) bytes -= mat_bytes(&w->layers[i].ngram_table);
    return bytes;
}
size_t weights_expert_bytes(const struct weights *w) {
    int moe = 0;
    for (int i = 0; i < w->config.n_layers; i++) moe += w->config.layer[i].moe && !w->config.layer[i].pass;
    return moe && w->config.n_experts ? w->bytes_routed / (size_t)moe / (size_t)w->config.n_experts : 0;
}

static bool has_layout_of(const struct mat *a, const struct mat *b) {
    return !a->data == !b->data && !a->scale == !b->scale && !a->order == !b->order && a->stride == b->stride &&
           a->rows == b->rows && a->cols == b->cols && a->block_rows == b->block_rows &&
           a->block_cols == b->block_cols && a->scale_stride == b->scale_stride && a->row0 == b->row0 &&
           a->row_step == b->row_step && a->dtype == b->dtype && a->scale_dtype == b->scale_dtype;
}
bool weights_experts_alike(const struct expert *a, const struct expert *b) {
    return has_layout_of(&a->gate, &b->gate) && has_layout_of(&a->up, &b->up) && has_layout_of(&a->down, &b->down);
}
size_t weights_largest_expert(const struct weights *w, int layer) {
    struct param list[PARAMS_MAX];
    const struct layer *y = &w->layers[layer];
    size_t most = 0;
    if (w->largest_expert) return w->largest_expert[layer];
    const int n = y->experts ? params_list(&w->config, layer, MODULE_EXPERT, list) : 0;
    for (int k = 0; n && k < w->config.n_experts; k++) {
        if (k && weights_experts_alike(&y->experts[k], &y->experts[k - 1])) continue;
        const size_t bytes = params_bytes(&y->experts[k], list, n);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Bytes of value experts that a token does not select. */
static size_t idle_value_bytes(const struct weights *w) {
    const struct config *c = &w->config;
    size_t sum = 0;
    for (int i = 0; i < c->n_layers; i++)
        if (config_mixes_values(c, i))
            sum +=
                mat_bytes(&w->layers[i].v) / (size_t)c->n_value_experts * (size_t)(c->n_value_experts - c->value_topk);
    return sum;
}
size_t weights_token_bytes(const struct weights *w) {
    const struct config *c = &w->config;
    size_t routed = c->n_experts ? w->bytes_routed / (size_t)c->n_experts * (size_t)c->topk : 0;
    for (int i = 0; i < c->n_layers; i++)
        routed += c->layer[i].moe && c->layer[i].pass ? weights_expert_bytes(w) * (size_t)c->topk : 0;
    return routed + w->bytes_dense - idle_value_bytes(w) + mat_bytes(&w->head);
}

uint64_t weights_token_flops(const struct weights *w) {
    const struct config *c = &w->config;
    struct param list[PARAMS_MAX];
    uint64_t sum = 0;
    for (int i = 0; i < c->n_layers; i++)
        for (int k = params_list(c, i, MODULE_LAYER | MODULE_EXPERT, list); k-- > 0;)
            if (!list[k].is_table) {
                const uint64_t all = 2 * (uint64_t)list[k].rows * (uint64_t)list[k].cols,
                               used = list[k].used_of[1]
                                          ? all / (uint64_t)list[k].used_of[1] * (uint64_t)list[k].used_of[0]
                                          : all;
                sum += used * (list[k].module == MODULE_EXPERT ? (uint64_t)c->topk : 1);
            }
    return sum;
}

enum dtype weights_dense_dtype(const struct weights *w) {
    for (int i = w->config.n_layers; i-- > 0;)
        if (w->layers[i].o.rows) return (enum dtype)w->layers[i].o.dtype;
    return DT_BF16;
}
enum dtype weights_ffn_dtype(const struct weights *w) {
    for (int i = w->config.n_layers; i-- > 0;) {
        const struct mat *m = w->layers[i].experts ? &w->layers[i].experts[0].gate : &w->layers[i].dense.gate;
        if (m->rows) return (enum dtype)m->dtype;
    }
    return DT_BF16;
}

/* --- --verify --------------------------------------------------------------------------------- */

static bool is_finite_f32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, 4);
    return (u & 0x7f800000) != 0x7f800000;
}
static bool is_finite_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return (h & 0x7c00) != 0x7c00;
}
/* Whether the scales before a tensor's rows are finite numbers; *bad: the first column of the first row whose scale is
 * not. */
static bool heads_finite(const struct tensor *t, size_t begin, size_t end, size_t *bad) {
    const size_t head = dtype_row_head(t->dtype), cols = (size_t)t->shape[t->ndim - 1],
                 row = head + dtype_bytes(t->dtype, cols);
    for (size_t r = (begin + cols - 1) / cols; r * cols < end; r++) {
        const uint8_t *p = t->data + r * row;
        if (head == 4 ? is_finite_f32(p) : is_finite_f16(p)) continue;
        *bad = r * cols;
        return false;
    }
    return true;
}
/* Whether elements [begin, end) of a tensor are finite numbers; *bad: the first that is not. */
static bool all_finite(const struct tensor *t, size_t begin, size_t end, size_t *bad) {
    const uint8_t *p = t->data;
    if (dtype_row_head(t->dtype)) return heads_finite(t, begin, end, bad); /* the rest are integers */
    for (size_t i = begin, step = dtype_block(t->dtype); i < end; i += step) {
        bool ok = true;
        switch (t->dtype) {
        case DT_E4M3: ok = (p[i] & 0x7f) != 0x7f; break;
        case DT_E8M0: ok = p[i] != 255; break;
        case DT_BF16: ok = (p[2 * i + 1] & 0x7f) != 0x7f || !(p[2 * i] & 0x80); break;
        case DT_F16: ok = is_finite_f16(p + 2 * i); break;
        case DT_F32: ok = is_finite_f32(p + 4 * i); break;
        default: ok = blocks_finite(t->dtype, p + dtype_bytes(t->dtype, i));
        }
        if (!ok) {
            *bad = i;
            return false;
        }
    }
    return true;
}

int weights_verify(const struct checkpoint *f, int (*progress)(void *ctx, double share), void *ctx, struct error *e) {
    size_t done = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        size_t count = 1, bad;
        for (int d = 0; d < t->ndim; d++) count *= (size_t)t->shape[d];
        for (size_t at = 0; at < count;) {
            size_t end = count - at > 1u << 20 ? at + (1u << 20) : count;
            if (!all_finite(t, at, end, &bad)) {
                size_t cols = t->ndim > 1 ? (size_t)t->shape[t->ndim - 1] : count;
                return error_set(
                    e, ERR_MODEL,
                    "%s/%s: tensor %s: %s that is not a number at row %zu, column %zu: the file is damaged", f->dir,
                    f->shards[t->shard].name, t->name, dtype_name(t->dtype), bad / cols, bad % cols);
            }
            done += dtype_bytes(t->dtype, end - at);
            at = end;
            if (progress && progress(ctx, (double)done / (double)f->bytes))
                return error_set(e, ERR_CANCELLED, "stopped");
        }
    }
    return 0;
}
