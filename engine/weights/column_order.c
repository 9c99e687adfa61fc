#include "engine/weights/column_order.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/scale.h"

static bool is_repacked(const struct weights *w, const void *p) {
    for (size_t i = 0; i < w->n_slabs; i++)
        if ((const uint8_t *)p >= w->slabs[i].at && (const uint8_t *)p < w->slabs[i].at + w->slabs[i].used) return true;
    return false;
}
static size_t order_bytes(const struct mat *m) { return (size_t)m->cols * sizeof *m->order; }

/* Expands m to float32, with the columns in x's order. group: each column's group; NULL: they are side by side. */
static void expand(struct loader *l, struct mat *m, const int32_t *group, const char *why) {
    float *out = loader_alloc_repacked(l, (size_t)m->rows * (size_t)m->cols * sizeof *out);
    if (!out) return;
    l->w->bytes_replaced += mat_bytes(m);
    if (!l->w->is_expanded)
        log_say(LOG_WARN,
                "%s: columns in activation order (desc_act): some weights are expanded to float32, because %s",
                l->w->files.dir, why);
    l->w->is_expanded = true;
    for (int r = 0; r < m->rows; r++) {
        const size_t first = scale_row(m, r);
        const uint8_t *codes = (const uint8_t *)m->data + (size_t)r * m->stride;
        for (int c = 0; c < m->cols; c++) {
            const size_t g = first + (size_t)(group ? group[c] : c / m->block_cols);
            const int code = m->dtype == DT_I4 ? codes[c / 2] >> (c % 2 * 4) & 15 : (int8_t)codes[c] + 128;
            out[(size_t)r * (size_t)m->cols + (size_t)(m->order ? m->order[c] : c)] =
                (float)(code - zero_load(m, g)) * scale_load(m, g);
        }
    }
    *m = (struct mat){.data = out,
                      .stride = (size_t)m->cols * sizeof *out,
                      .rows = m->rows,
                      .cols = m->cols,
                      .row_step = 1,
                      .dtype = DT_F32};
}

/* --- Columns ---------------------------------------------------------------------------------- */

/* Reads and checks each column's group. Returns false if they are in order, or on failure. */
static bool read_groups(struct loader *l, const struct tensor *t, const struct mat *m, int32_t *group) {
    bool in_order = true;
    memcpy(group, t->data, order_bytes(m));
    for (int c = 0; c < m->cols; c++) {
        if (group[c] < 0 || group[c] >= m->scale_stride) {
            char text[96];
            snprintf(text, sizeof text, "it puts column %d into group %d of %d", c, group[c], m->scale_stride);
            loader_fail(l, t, text);
            return false;
        }
        in_order &= group[c] == c / m->block_cols;
    }
    return !in_order;
}

/* Lists the columns by group, keeping their order within a group. start [groups]: scratch. Returns false if a group is
 * not of block_cols columns. */
static bool sort_by_group(const struct mat *m, const int32_t *group, int32_t *start, int32_t *order) {
    memset(start, 0, (size_t)m->scale_stride * sizeof *start);
    for (int c = 0; c < m->cols; c++) {
        const int at = group[c] * m->block_cols + start[group[c]]++;
        if (start[group[c]] > m->block_cols || at >= m->cols) return false;
        order[at] = c;
    }
    return true;
}

/* Moves a matrix's codes and scales into repacked memory. */
static void take_over(struct loader *l, struct mat *m) {
    const size_t row = dtype_bytes(m->dtype, (size_t)m->cols), scales = mat_scale_span(m);
    if (!is_repacked(l->w, m->data)) {
        uint8_t *own = loader_alloc_repacked(l, (size_t)m->rows * row);
        for (int r = 0; own && r < m->rows; r++)
            memcpy(own + (size_t)r * row, (const uint8_t *)m->data + (size_t)r * m->stride, row);
        l->w->bytes_replaced += (size_t)m->rows * m->stride;
        m->data = own, m->stride = row;
    }
    if (!is_repacked(l->w, m->scale)) {
        void *own = loader_alloc_repacked(l, scales);
        if (own) m->scale = memcpy(own, m->scale, scales);
        l->w->bytes_replaced += scales;
    }
}
/* code: scratch, [cols]. */
static void sort_codes(const struct mat *m, uint8_t *code) {
    const int32_t *order = m->order, cols = m->cols;
    for (int r = 0; r < m->rows; r++) {
        uint8_t *row = (uint8_t *)(uintptr_t)m->data + (size_t)r * m->stride;
        if (m->dtype == DT_I8) {
            memcpy(code, row, (size_t)cols);
            for (int c = 0; c < cols; c++) row[c] = code[order[c]];
            continue;
        }
        for (int c = 0; c < cols; c++) code[c] = row[c / 2] >> (c % 2 * 4) & 15;
        for (int c = 0; c + 1 < cols; c += 2) row[c / 2] = (uint8_t)(code[order[c]] | code[order[c + 1]] << 4);
        if (cols % 2) row[cols / 2] = code[order[cols - 1]];
    }
}

/* Returns the list in memory of its own, or that of the matrix loaded before, if they are equal: both then take the
 * same x. */
static const int32_t *keep_order(struct loader *l, const int32_t *order, int cols) {
    const size_t size = (size_t)cols * sizeof *order;
    if (l->order && l->order_cols == cols && !memcmp(l->order, order, size)) {
        l->w->bytes_repacked += size; /* as mat_bytes() counts them */
        return l->order;
    }
    int32_t *own = loader_alloc_repacked(l, size);
    if (!own) return NULL;
    l->order_cols = cols;
    return l->order = memcpy(own, order, size);
}

void column_order_load(struct loader *l, struct mat *m, const struct tensor *t) {
    if (!t || l->rc) return;
    if (t->dtype != DT_I32 || t->ndim != 1 || t->shape[0] != m->cols) {
        char text[64];
        snprintf(text, sizeof text, "it must be I32 [%d]", m->cols);
        loader_fail(l, t, text);
        return;
    }
    const size_t cols = (size_t)m->cols, groups = (size_t)m->scale_stride;
    int32_t *group = mem_alloc((3 * cols + groups) * sizeof *group), *order = group + cols, *start = order + cols;
    uint8_t *code = (uint8_t *)(start + groups);
    if (!group) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory to sort its columns", l->w->files.dir);
    else if (read_groups(l, t, m, group)) {
        if (!sort_by_group(m, group, start, order)) expand(l, m, group, "groups differ in their number of columns");
        else if (take_over(l, m), !l->rc && (m->order = keep_order(l, order, m->cols)))
            m->x_cols = m->cols, sort_codes(m, code);
    }
    mem_free(group);
}

/* --- Matrices that depend on each other ------------------------------------------------------- */

static bool can_move_rows(const struct weights *w, const struct mat *m) {
    return is_repacked(w, m->data) && !m->row0 && m->row_step == 1 &&
           (!m->scale || (m->block_rows == 1 && is_repacked(w, m->scale)));
}
/* Row i becomes what row order[i] was. */
static void move_rows(struct loader *l, const void *rows, size_t row, int n, const int32_t *order) {
    uint8_t *to = (uint8_t *)(uintptr_t)rows, *copy = row ? mem_alloc((size_t)n * row) : NULL;
    if (!row) return;
    if (!copy) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory to sort its rows", l->w->files.dir);
        return;
    }
    memcpy(copy, to, (size_t)n * row);
    for (int i = 0; i < n; i++) memcpy(to + (size_t)i * row, copy + (size_t)order[i] * row, row);
    mem_free(copy);
}

static void settle_expert(struct loader *l, struct expert *e) {
    struct mat *const in[] = {&e->gate, &e->up}, *down = &e->down;
    if (e->up.data && e->gate.order != e->up.order)
        for (int i = 0; i < 2; i++)
            if (in[i]->order) expand(l, in[i], NULL, "gate and up differ in their order");
    if (!down->order) return;
    if (e->gate_bias || e->up_bias || !can_move_rows(l->w, &e->gate) || (e->up.data && !can_move_rows(l->w, &e->up))) {
        expand(l, down, NULL, "the rows of gate and up cannot be sorted");
        return;
    }
    for (int i = 0; i < 2 && in[i]->data && !l->rc; i++) {
        move_rows(l, in[i]->data, in[i]->stride, in[i]->rows, down->order);
        move_rows(l, in[i]->scale, in[i]->scale ? (size_t)in[i]->scale_stride * dtype_bytes(in[i]->scale_dtype, 1) : 0,
                  in[i]->rows, down->order);
    }
    l->w->bytes_replaced += order_bytes(down);
    down->order = NULL, down->x_cols = 0;
}

void column_order_settle(struct loader *l, unsigned modules, void *base) {
    if (l->rc) return;
    if (modules & MODULE_EXPERT) settle_expert(l, base);
    if (modules & MODULE_EMBED && ((struct weights *)base)->embed.order)
        expand(l, &((struct weights *)base)->embed, NULL, "the embedding is a table");
    if (!(modules & MODULE_ATTENTION)) return;
    struct layer *y = base;
    struct mat *const by_head[] = {&y->kv_b, &y->k_b, &y->v_b, &y->o_a};
    for (size_t i = 0; i < sizeof by_head / sizeof *by_head; i++)
        if (by_head[i]->order) expand(l, by_head[i], NULL, "they are multiplied head by head");
    settle_expert(l, &y->dense);
    settle_expert(l, &y->parallel_dense);
}
