#include "engine/weights/numa_shard.h"

#include <string.h>

#include "base/mem.h"
#include "engine/weights/nan_scan.h"

enum { CHUNK = 256 << 10 }; /* bytes that are scanned after their copy, while they are in L2 */

struct expert numa_shard_view(const struct expert *e, struct numa_part inter, struct numa_part hidden) {
    if (!e->gate.data) return (struct expert){0};
    struct expert part = *e;
    part.gate = (e->gate_up_transposed ? mat_cols : mat_rows)(e->gate, inter.first, inter.first + inter.count);
    if (e->up.data)
        part.up = (e->gate_up_transposed ? mat_cols : mat_rows)(e->up, inter.first, inter.first + inter.count);
    part.down = (e->is_transposed ? mat_cols : mat_rows)(e->down, hidden.first, hidden.first + hidden.count);
    if (e->gate_bias) part.gate_bias += inter.first;
    if (e->up_bias) part.up_bias += inter.first;
    if (e->down_bias) part.down_bias += hidden.first;
    return part;
}

/* Returns how many scale block rows m uses, starting at *first. */
static size_t scale_rows(const struct mat *m, size_t *first) {
    *first = (size_t)m->row0 / (size_t)m->block_rows;
    return (size_t)(m->row0 + (m->rows - 1) * m->row_step) / (size_t)m->block_rows - *first + 1;
}
static size_t scale_cols(const struct mat *m) {
    return ((size_t)m->cols + (size_t)m->block_cols - 1) / (size_t)m->block_cols;
}

static void *reserve(uint8_t *base, size_t *at, size_t size) {
    void *p = base ? base + *at : NULL;
    *at += align_up(size, 64);
    return p;
}

struct mat numa_shard_layout(const struct mat *m, uint8_t *base, size_t *at) {
    struct mat to = *m;
    if (!m->data || m->rows < 1 || m->cols < 1) return to;
    to.stride = dtype_bytes(m->dtype, (size_t)m->cols);
    to.data = reserve(base, at, to.stride * (size_t)m->rows);
    if (!m->scale) return to;
    size_t first, rows = scale_rows(m, &first), cols = scale_cols(m);
    to.scale = reserve(base, at, rows * cols * dtype_bytes(m->scale_dtype, 1));
    to.scale_stride = (int32_t)cols;
    to.row0 -= (int32_t)first * m->block_rows;
    return to;
}

struct expert numa_shard_layout_expert(const struct expert *e, uint8_t *base, size_t *at) {
    struct expert to = *e;
    to.gate = numa_shard_layout(&e->gate, base, at);
    to.up = numa_shard_layout(&e->up, base, at);
    to.down = numa_shard_layout(&e->down, base, at);
    return to;
}

bool numa_shard_copy(const struct mat *to, const struct mat *from, int first, int count) {
    bool good = true;
    if (!from->data || from->cols < 1 || count < 1) return true;
    /* adjacent rows are copied together */
    size_t row = to->stride, together = from->stride == row ? CHUNK / row + 1 : 1;
    for (size_t r = (size_t)first, end = r + (size_t)count; r < end; r += together) {
        size_t n = (end - r < together ? end - r : together) * row;
        uint8_t *at = (uint8_t *)to->data + r * row;
        memcpy(at, (const uint8_t *)from->data + r * from->stride, n);
        if (from->dtype == DT_E4M3 && nan_scan_e4m3(at, n)) good = false;
    }
    if (!from->scale || first) return good;
    size_t block, rows = scale_rows(from, &block), size = dtype_bytes(from->scale_dtype, 1),
                  cols = (size_t)to->scale_stride;
    for (size_t b = 0; b < rows; b++)
        memcpy((uint8_t *)to->scale + b * cols * size,
               (const uint8_t *)from->scale + (block + b) * (size_t)from->scale_stride * size, cols * size);
    return good;
}

bool numa_shard_copy_expert(const struct expert *to, const struct expert *from) {
    bool gate = numa_shard_copy(&to->gate, &from->gate, 0, from->gate.rows),
         up = numa_shard_copy(&to->up, &from->up, 0, from->up.rows);
    return numa_shard_copy(&to->down, &from->down, 0, from->down.rows) && gate && up;
}
