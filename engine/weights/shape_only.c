#include "engine/weights/shape_only.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "engine/model/arch.h"
#include "engine/model/rope.h"

static char *reserve(char **at, size_t n) {
    char *p = *at;
    *at += align_up(n, 64);
    return p;
}

static struct mat layout_matrix(char **at, const struct config *c, const struct param *p, enum dtype t) {
    struct mat m = {.stride = dtype_bytes(t, (size_t)p->cols),
                    .rows = p->rows,
                    .cols = p->cols,
                    .row_step = 1,
                    .dtype = (uint8_t)t};
    m.data = reserve(at, m.stride * (size_t)m.rows);
    if (t == DT_E4M3)
        m.block_rows = c->block_rows ? c->block_rows : 128, m.block_cols = c->block_rows ? c->block_cols : 128,
        m.scale_dtype = DT_F32;
    if (t == DT_I4) m.block_rows = 1, m.block_cols = 32, m.scale_dtype = DT_BF16;
    if (t == DT_E2M1) m.block_rows = 1, m.block_cols = 32, m.scale_dtype = DT_E8M0;
    if (!m.block_rows) return m;
    m.scale_stride = (m.cols + m.block_cols - 1) / m.block_cols;
    m.scale = reserve(at, (size_t)((m.rows + m.block_rows - 1) / m.block_rows) * (size_t)m.scale_stride *
                              dtype_bytes((enum dtype)m.scale_dtype, 1));
    return m;
}

/* Lays out the parameters of these modules and sets their fields of base; returns their bytes. */
static size_t layout_modules(char **at, const struct config *c, unsigned modules, void *base, int layer,
                             const struct known_format *f) {
    struct param list[PARAMS_MAX];
    const enum dtype t = modules == MODULE_LAYER ? f->dense : modules == MODULE_EXPERT ? f->gate_up : DT_BF16;
    int n = params_list(c, layer, modules, list);
    for (int i = 0; i < n; i++) {
        const size_t field = list[i].offset;
        const bool is_wide = modules == MODULE_LAYER &&
                             (field == offsetof(struct layer, router) || field == offsetof(struct layer, shared_gate) ||
                              field == offsetof(struct layer, index_weights)),
                   is_down = modules == MODULE_EXPERT && field == offsetof(struct expert, down);
        if (!list[i].cols)
            *params_vector(base, &list[i]) = (float *)(void *)reserve(at, (size_t)list[i].rows * sizeof(float));
        else *params_mat(base, &list[i]) = layout_matrix(at, c, &list[i], is_wide ? DT_BF16 : is_down ? f->down : t);
    }
    return params_bytes(base, list, n);
}

static void layout_all(struct weights *w, char **at, const struct known_format *f) {
    const struct config *c = &w->config;
    w->bytes_dense = w->bytes_routed = 0;
    layout_modules(at, c, MODULE_MODEL, w, 0, f);
    if (c->tied) w->head = w->embed;
    w->bytes_embed = mat_bytes(&w->embed) + (c->tied ? 0 : mat_bytes(&w->head));
    for (int k = 0; k < config_input_hashes(c); k++)
        w->bytes_embed += mat_bytes(&w->ngram_table[k]), w->bytes_dense += mat_bytes(&w->ngram_projection[k]);
    w->inv_freq = (float *)(void *)reserve(at, (size_t)rope_floats(c) * sizeof(float));
    w->rope_mscale[0] = w->rope_mscale[1] = 1;
    for (int l = 0; l < c->n_layers; l++) {
        struct layer *y = &w->layers[l];
        w->bytes_dense += layout_modules(at, c, MODULE_LAYER, y, l, f) - mat_bytes(&y->ngram_table);
        w->bytes_embed += mat_bytes(&y->ngram_table);
        y->dense.glu = config_glu(c, l, false);
        for (int k = 0; k < c->n_experts && y->experts; k++) {
            w->bytes_routed += layout_modules(at, c, MODULE_EXPERT, &y->experts[k], l, f);
            params_set_traits(c, l, &y->experts[k]);
        }
    }
}

int shape_only_open_as(struct shape_only *s, const struct config *c, const struct known_format *f, struct error *e) {
    *s = (struct shape_only){0};
    struct weights *w = &s->w;
    w->config = *c;
    bool ok = (w->layers = arena_calloc(&w->arena, (size_t)c->n_layers, sizeof *w->layers));
    for (int l = 0; l < c->n_layers && ok; l++)
        ok = !c->layer[l].moe ||
             (w->layers[l].experts = arena_calloc(&w->arena, (size_t)c->n_experts, sizeof *w->layers[l].experts));
    size_t *const largest = ok ? arena_calloc(&w->arena, (size_t)c->n_layers, sizeof *largest) : NULL;
    ok = ok && largest;
    char *const base = (char *)(uintptr_t)4096, *at = base; /* the first layout only measures; no address is NULL */
    if (ok) layout_all(w, &at, f);
    s->bytes = (size_t)(at - base);
    if (ok)
        ok = (s->mem = mmap(NULL, s->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) !=
             MAP_FAILED;
    if (!ok) {
        s->mem = NULL;
        shape_only_close(s);
        return error_set(e, ERR_MEMORY, "no address space for the shape of %s", c->arch->title);
    }
    at = s->mem;
    layout_all(w, &at, f);
    for (int l = 0; l < c->n_layers; l++) largest[l] = weights_largest_expert(w, l);
    w->largest_expert = largest;
    return 0;
}

int shape_only_open(struct shape_only *s, const struct config *c, enum dtype dense, enum dtype experts,
                    struct error *e) {
    return shape_only_open_as(s, c, &(struct known_format){.dense = dense, .gate_up = experts, .down = experts}, e);
}

void shape_only_close(struct shape_only *s) {
    if (s->mem) munmap(s->mem, s->bytes);
    arena_free(&s->w.arena);
    *s = (struct shape_only){0};
}
