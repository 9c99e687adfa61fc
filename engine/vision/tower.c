#include "engine/vision/tower.h"

#include <math.h>
#include <string.h>

#include "engine/layer/rows.h"

enum { CHUNK = 512 }; /* rows of a product: what lies between two products of an FFN is not stored for all patches */

static int n_patches(const struct tower_run *r) { return r->grid_h * r->grid_w; }
static int least(int a, int b) { return a < b ? a : b; }
static size_t product(size_t a, size_t b) { return a * b; }

static double mat_numbers(const struct mat *m) { return (double)m->rows * m->cols; }

/* Row and column of a patch. */
static void place(const struct tower_run *r, int patch, int *row, int *col) {
    const int m = r->tower->config.merge, in_block = patch % (m * m), block = patch / (m * m), blocks = r->grid_w / m;
    *row = block / blocks * m + in_block / m;
    *col = block % blocks * m + in_block % m;
}

void tower_run_close(struct tower_run *r) {
    void *const all[] = {r->x,       r->xn,  r->qkv, r->att, r->mlp, r->ones, r->up,
                         r->clipped, r->cos, r->sin, r->k,   r->v,   r->last};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    *r = (struct tower_run){0};
}

/* Rotation: the first half of the pairs turns by the row, the second by the column. */
static void fill_rotation(struct tower_run *r) {
    const struct tower_config *c = &r->tower->config;
    const int half = c->hidden / c->heads / 2, quarter = half / 2;
    /* pooled towers: [n, quarter] by column, then by row, as the halves of a head turn apart */
    const size_t apart = product((size_t)n_patches(r), (size_t)quarter);
    for (int i = 0; i < n_patches(r); i++) {
        int at[2];
        place(r, i, &at[0], &at[1]);
        for (int j = 0; j < half; j++) {
            const int frequency = c->is_interleaved ? j / 2 : j % quarter,
                      axis = c->is_interleaved ? 1 - j % 2 : j / quarter;
            const float inv_freq = 1 / (float)pow(c->theta, (double)((float)(2 * frequency) / (float)half));
            const double angle = (double)((float)at[c->is_pooled ? 1 - axis : axis] * inv_freq);
            if (c->is_pooled) {
                const size_t k = (size_t)axis * apart + product((size_t)i, (size_t)quarter) + (size_t)frequency;
                r->cos[k] = (float)cos(angle), r->sin[k] = (float)sin(angle);
                continue;
            }
            r->cos[product((size_t)i, (size_t)half) + (size_t)j] = (float)cos(angle);
            r->sin[product((size_t)i, (size_t)half) + (size_t)j] = (float)sin(angle);
        }
    }
}

int tower_run_open(struct tower_run *r, const struct tower *t, const uint8_t *rgb, int grid_h, int grid_w,
                   struct error *e) {
    const struct tower_config *c = &t->config;
    const size_t n = product((size_t)grid_h, (size_t)grid_w), h = (size_t)c->hidden,
                 wide = h * (size_t)(c->merge * c->merge), patch = (size_t)(3 * c->temporal * c->patch * c->patch),
                 half = h / (size_t)c->heads / 2;
    size_t row = (size_t)c->inter > wide ? (size_t)c->inter : wide;
    if (patch > row) row = patch;
    if ((size_t)c->merger_inter > row) row = (size_t)c->merger_inter;
    *r = (struct tower_run){.tower = t, .rgb = rgb, .grid_h = grid_h, .grid_w = grid_w, .layer = -1};
    struct {
        void *to;
        size_t floats;
    } all[] = {{&r->x, n * h},
               {&r->xn, n * h},
               {&r->qkv, n * 3 * h},
               {&r->att, n * h},
               {&r->mlp, CHUNK * row},
               {&r->ones, CHUNK * row},
               {&r->up, c->names.down ? CHUNK * row : 1},
               {&r->clipped, c->is_clipped ? CHUNK * row : 1},
               {&r->cos, n * half},
               {&r->sin, n * half},
               {&r->k, n * h},
               {&r->v, n * h},
               {&r->last, n}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *p = mem_aligned(64, all[i].floats * 4);
        memcpy(all[i].to, &p, sizeof p);
        if (p) continue;
        tower_run_close(r);
        return error_set(e, ERR_MEMORY, "no memory for the vision tower over %zu patches", n);
    }
    for (size_t i = 0; i < n; i++) r->last[i] = (int32_t)n - 1; /* each patch sees all */
    fill_rotation(r);
    return 0;
}

/* --- Parts ------------------------------------------------------------------------------------ */

struct rows {
    float *y;
    const float *x;
    int n, ldx, ldy;
    bool add;
};
static int linear(struct exec *x, const struct mat *w, const float *bias, struct rows rows) {
    return x->ops->linear(x, &(struct op_linear){.y = rows.y,
                                                 .x = rows.x,
                                                 .bias = bias,
                                                 .w = *w,
                                                 .n = rows.n,
                                                 .ldx = rows.ldx ? rows.ldx : w->cols,
                                                 .ldy = rows.ldy ? rows.ldy : w->rows,
                                                 .accumulate = rows.add,
                                                 .wide = true});
}
static int norm(struct exec *x, const struct tower_config *c, const float *w, const float *bias, float *out,
                const float *in, int rows, int dim) {
    return x->ops->norm(x, &(struct op_norm){.out = out,
                                             .x = in,
                                             .w = w,
                                             .bias = bias,
                                             .rows = rows,
                                             .dim = dim,
                                             .ldx = dim,
                                             .ldo = dim,
                                             .eps = c->eps,
                                             .w_dtype = DT_F32,
                                             .layer_norm = !c->is_rms});
}
/* out = GELU of in: the exact one, or its tanh form. out and in do not overlap. */
static int gelu(struct exec *x, bool is_exact, float *out, const float *in, int n, int m) {
    if (is_exact) TRY(rows_copy(x, out, m, in, m, n, m));
    else TRY(x->ops->fill(x, &(struct op_fill){.x = out, .n = n, .m = m, .value = 1}));
    return rows_gate(x, out, m, in, m, is_exact ? GATE_NORMAL : GATE_GELU_TANH, n, m);
}

/* A fraction of the table's side, as rows of it and their weights (enum tower_positions). */
struct between {
    int n, row[4];
    float weight[4];
};
static float cubic(float distance) {
    const float a = -0.75f;
    return distance <= 1 ? ((a + 2) * distance - (a + 3)) * distance * distance + 1
                         : ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a;
}
static struct between position(const struct tower_config *c, int at, int n) {
    const int side = c->side;
    if (c->positions == POSITIONS_CORNERS) {
        const float source = (float)at * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1), floor = floorf(source);
        const int first = (int)floor;
        const float far = source - floor;
        return (struct between){2, {first, least(first + 1, side - 1)}, {1 - far, far}};
    }
    const float source = ((float)at + 0.5f) * (float)side / (float)n - 0.5f, floor = floorf(source);
    struct between b = {.n = 4};
    for (int k = 0; k < 4; k++) {
        const int row = (int)floor + k - 1;
        b.row[k] = row < 0 ? 0 : least(row, side - 1);
        b.weight[k] = cubic(fabsf(source - floor - (float)(k - 1)));
    }
    return b;
}
static void add_positions(const struct tower_run *r, int first, int n) {
    const struct tower *t = r->tower;
    const struct tower_config *c = &t->config;
    const int h = c->hidden;
    for (int i = first; i < first + n; i++) {
        int row, col;
        place(r, i, &row, &col);
        if (c->positions == POSITIONS_AXES) {
            const float *across = t->position + product((size_t)col, (size_t)h),
                        *down = t->position + product((size_t)(c->side + row), (size_t)h);
            float *to = r->x + product((size_t)i, (size_t)h);
            for (int j = 0; j < h; j++) to[j] += across[j] + down[j];
            continue;
        }
        const struct between down = position(c, row, r->grid_h), across = position(c, col, r->grid_w);
        float *x = r->x + product((size_t)i, (size_t)h);
        const int n_taps = down.n * across.n;
        const float *tap[16];
        float weight[16];
        for (int k = 0; k < n_taps; k++) {
            const int y = k / across.n, z = k % across.n;
            tap[k] = t->position + product((size_t)(down.row[y] * c->side + across.row[z]), (size_t)h);
            weight[k] = down.weight[y] * across.weight[z];
        }
        for (int j = 0; j < h; j++) {
            float sum = tap[0][j] * weight[0];
            for (int k = 1; k < n_taps; k++) sum += tap[k][j] * weight[k];
            x[j] += sum;
        }
    }
}

/* Writes the pixels of a patch as the convolution takes them: [channel, time, row, column]; each time is the same. */
static void put_patch(const struct tower_run *r, int patch, float *out) {
    const struct tower *t = r->tower;
    const struct tower_config *c = &t->config;
    int row, col;
    place(r, patch, &row, &col);
    for (int k = 0; k < 3; k++)
        for (int time = 0; time < c->temporal; time++)
            for (int y = 0; y < c->patch; y++) {
                const uint8_t *p =
                    r->rgb +
                    (product((size_t)(row * c->patch + y), (size_t)(r->grid_w * c->patch)) + (size_t)(col * c->patch)) *
                        3 +
                    k;
                for (int x = 0; x < c->patch; x++, p += 3) *out++ = t->pixel[k][*p];
            }
}

static int run_patches(struct tower_run *r, struct exec *x) {
    const struct tower *t = r->tower;
    for (int at = 0, n; at < n_patches(r); at += n) {
        n = least(CHUNK, n_patches(r) - at);
        for (int i = 0; i < n; i++) put_patch(r, at + i, r->mlp + product((size_t)i, (size_t)t->patch.cols));
        float *to = r->x + product((size_t)at, (size_t)t->config.hidden);
        TRY(linear(x, &t->patch, t->patch_bias, (struct rows){.y = to, .x = r->mlp, .n = n}));
        if (t->patch_norm) TRY(norm(x, &t->config, t->patch_norm, NULL, to, to, n, t->config.hidden));
        add_positions(r, at, n);
    }
    return 0;
}

static void clip(float *v, size_t n, float least, float most) { /* NaN stays NaN */
    for (size_t i = 0; i < n; i++) v[i] = v[i] < least ? least : v[i] > most ? most : v[i];
}
/* A product whose input and output are clipped, where the tower's are. Rows without gaps. */
static int clipped(struct tower_run *r, struct exec *x, const struct mat *w, const struct tower_clip *c, float *y,
                   const float *in, int rows) {
    const size_t cols = (size_t)w->cols, width = (size_t)w->rows;
    for (int at = 0, n; at < rows; at += n) {
        n = least(CHUNK, rows - at);
        const float *from = in + product((size_t)at, cols);
        float *to = y + product((size_t)at, width);
        if (r->tower->config.is_clipped) {
            memcpy(r->clipped, from, product((size_t)n, cols) * sizeof *from);
            clip(r->clipped, product((size_t)n, cols), c->least_in, c->most_in);
            from = r->clipped;
        }
        TRY(linear(x, w, NULL, (struct rows){.y = to, .x = from, .n = n}));
        if (r->tower->config.is_clipped) clip(to, product((size_t)n, width), c->least_out, c->most_out);
    }
    return 0;
}

/* Queries, keys and values of matrices of their own, [n, hidden] each, normed by head, and turned. */
static int project_apart(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    const int n = n_patches(r), h = c->hidden, dim = h / c->heads;
    const struct mat *const mats[] = {&y->q, &y->k, &y->v};
    const float *const norms[] = {y->q_norm, y->k_norm, NULL};
    for (int part = 0; part < 3; part++) {
        float *to = r->qkv + product((size_t)part * (size_t)n, (size_t)h);
        TRY(clipped(r, x, mats[part], &y->clip[TOWER_Q + part], to, r->xn, n));
        TRY(norm(x, c, norms[part], NULL, to, to, n * c->heads, dim));
        for (int axis = 0; axis < 2 && part < 2; axis++) {
            const size_t table = product((size_t)(axis * n), (size_t)(dim / 4));
            TRY(x->ops->rope(x, &(struct op_rope){.x = to + axis * (dim / 2),
                                                  .cos = r->cos + table,
                                                  .sin = r->sin + table,
                                                  .n = n,
                                                  .heads = c->heads,
                                                  .ld = h,
                                                  .head_ld = dim,
                                                  .half = dim / 4}));
        }
    }
    return 0;
}
static int project_joined(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    const int n = n_patches(r), h = c->hidden, dim = h / c->heads;
    TRY(linear(x, &y->qkv, y->qkv_bias, (struct rows){.y = r->qkv, .x = r->xn, .n = n}));
    for (int part = 0; part < 2; part++)
        TRY(x->ops->rope(x, &(struct op_rope){.x = r->qkv + (size_t)(part * h),
                                              .cos = r->cos,
                                              .sin = r->sin,
                                              .n = n,
                                              .heads = c->heads,
                                              .ld = 3 * h,
                                              .head_ld = dim,
                                              .half = dim / 2,
                                              .interleaved = c->is_interleaved}));
    return 0;
}

static int run_attention(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    const bool is_apart = y->q.data;
    const int n = n_patches(r), h = c->hidden, dim = h / c->heads, ld = is_apart ? h : 3 * h;
    const size_t next = is_apart ? product((size_t)n, (size_t)h) : (size_t)h; /* from queries to keys to values */
    TRY(norm(x, c, y->norm1, y->norm1_bias, r->xn, r->x, n, h));
    TRY(is_apart ? project_apart(r, x, y) : project_joined(r, x, y));
    /* Each head has a plane of its own: in one of all heads a head's keys are pages apart. */
    for (int i = 0; i < c->heads; i++) {
        const size_t plane = product((size_t)i * (size_t)n, (size_t)dim);
        const struct kv_plane k = {.data = (float *)r->k + plane, .heads = 1, .dim = dim, .dtype = DT_F32},
                              v = {.data = (float *)r->v + plane, .heads = 1, .dim = dim, .dtype = DT_F32};
        float *q = r->qkv + (size_t)(i * dim);
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = k, .x = q + next, .n = n, .ldx = ld}));
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = v, .x = q + 2 * next, .n = n, .ldx = ld}));
        TRY(x->ops->attention(x, &(struct op_attention){.out = r->att + (size_t)(i * dim),
                                                        .q = q,
                                                        .k = k,
                                                        .v = v,
                                                        .q_pos = r->last,
                                                        .n = n,
                                                        .n_heads = 1,
                                                        .v_dim = dim,
                                                        .ldq = ld,
                                                        .ldo = h,
                                                        .n_keys = n,
                                                        .scale = y->q_norm ? 1 : 1 / sqrtf((float)dim)}));
    }
    if (y->norm1_after) {
        TRY(clipped(r, x, &y->proj, &y->clip[TOWER_PROJ], r->xn, r->att, n));
        TRY(norm(x, c, y->norm1_after, NULL, r->xn, r->xn, n, h));
        return rows_add(x, r->x, r->xn, n, h);
    }
    return linear(x, &y->proj, y->proj_bias, (struct rows){.y = r->x, .x = r->att, .n = n, .add = true});
}

/* An FFN with a gate by GELU, whose output is normed. */
static int run_ffn_between(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    const int all = n_patches(r), h = c->hidden;
    TRY(norm(x, c, y->norm2, NULL, r->xn, r->x, all, h));
    for (int at = 0, n; at < all; at += n) {
        const size_t from = product((size_t)at, (size_t)h);
        n = least(CHUNK, all - at);
        TRY(clipped(r, x, &y->fc1, &y->clip[TOWER_FC1], r->mlp, r->xn + from, n));
        TRY(clipped(r, x, &y->gate, &y->clip[TOWER_GATE], r->ones, r->xn + from, n));
        TRY(rows_gate(x, r->mlp, c->inter, r->ones, c->inter, GATE_GELU_TANH, n, c->inter));
        TRY(clipped(r, x, &y->fc2, &y->clip[TOWER_FC2], r->att + from, r->mlp, n));
    }
    TRY(norm(x, c, y->norm2_after, NULL, r->att, r->att, all, h));
    return rows_add(x, r->x, r->att, all, h);
}

static int run_ffn(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    TRY(norm(x, c, y->norm2, y->norm2_bias, r->xn, r->x, n_patches(r), c->hidden));
    for (int at = 0, n; at < n_patches(r); at += n) {
        const size_t from = product((size_t)at, (size_t)c->hidden);
        n = least(CHUNK, n_patches(r) - at);
        TRY(linear(x, &y->fc1, y->fc1_bias, (struct rows){.y = r->mlp, .x = r->xn + from, .n = n}));
        if (y->gate.data) {
            TRY(linear(x, &y->gate, NULL, (struct rows){.y = r->ones, .x = r->xn + from, .n = n}));
            TRY(rows_gate(x, r->mlp, c->inter, r->ones, c->inter, GATE_SILU, n, c->inter));
            TRY(linear(x, &y->fc2, y->fc2_bias, (struct rows){.y = r->x + from, .x = r->mlp, .n = n, .add = true}));
            continue;
        }
        TRY(gelu(x, false, r->ones, r->mlp, n, c->inter));
        TRY(linear(x, &y->fc2, y->fc2_bias, (struct rows){.y = r->x + from, .x = r->ones, .n = n, .add = true}));
    }
    return 0;
}

/* Merges the patches of each token into row number `which` of it. */
static int run_merger(struct tower_run *r, struct exec *x, const struct tower_merger *m, bool is_deep, int which,
                      float *rows) {
    const struct tower_config *c = &r->tower->config;
    const int block = c->merge * c->merge, wide = c->hidden * block, tokens = n_patches(r) / block,
              normed = is_deep ? wide : c->hidden, ld = tower_row_floats(r->tower);
    const struct tower *t = r->tower;
    if (!is_deep && t->last_norm) TRY(norm(x, c, t->last_norm, t->last_norm_bias, r->x, r->x, n_patches(r), c->hidden));
    TRY(norm(x, c, m->norm, m->norm_bias, r->xn, r->x, is_deep ? tokens : n_patches(r), normed));
    for (int at = 0, n; at < tokens; at += n) {
        n = least(CHUNK, tokens - at);
        TRY(linear(x, &m->fc1, m->fc1_bias,
                   (struct rows){.y = r->mlp, .x = r->xn + product((size_t)at, (size_t)wide), .n = n}));
        TRY(gelu(x, true, r->ones, r->mlp, n, wide));
        TRY(linear(x, &m->fc2, m->fc2_bias,
                   (struct rows){.y = rows + product((size_t)at, (size_t)ld) + (size_t)(which * c->out),
                                 .x = r->ones,
                                 .n = n,
                                 .ldy = ld}));
    }
    return 0;
}

/* Means of the patches of each token, which are normed and projected. */
static int run_pool(struct tower_run *r, struct exec *x, const struct tower_merger *m, float *rows) {
    const struct tower *t = r->tower;
    const struct tower_config *c = &t->config;
    const int cells = c->merge * c->merge, h = c->hidden, tokens = n_patches(r) / cells;
    const float by = sqrtf((float)h);
    for (int i = 0; i < tokens; i++)
        for (int j = 0; j < h; j++) {
            const float *from = r->x + product((size_t)(i * cells), (size_t)h) + j;
            float sum = 0;
            for (int k = 0; k < cells; k++) sum += from[product((size_t)k, (size_t)h)] / (float)cells;
            sum *= by;
            r->xn[product((size_t)i, (size_t)h) + (size_t)j] =
                t->standard_bias ? (sum - t->standard_bias[j]) * t->standard_scale[j] : sum;
        }
    TRY(norm(x, c, NULL, NULL, r->xn, r->xn, tokens, h));
    return linear(x, &m->fc2, NULL, (struct rows){.y = rows, .x = r->xn, .n = tokens});
}

/* The second kind of struct tower_merger. */
static int run_joining_merger(struct tower_run *r, struct exec *x, const struct tower_merger *m, float *rows) {
    const struct tower_config *c = &r->tower->config;
    const int wide = m->down.cols, out = c->out, tokens = n_patches(r) / (c->merge * c->merge), inter = c->merger_inter;
    struct tower_config plain = *c;
    plain.is_rms = false, plain.eps = 1e-5f; /* of PyTorch's LayerNorm */
    TRY(norm(x, c, r->tower->last_norm, NULL, r->xn, r->x, n_patches(r), c->hidden));
    for (int at = 0, n; at < tokens; at += n) {
        n = least(CHUNK, tokens - at);
        TRY(linear(x, &m->down, m->down_bias,
                   (struct rows){.y = r->ones, .x = r->xn + product((size_t)at, (size_t)wide), .n = n}));
        TRY(linear(x, &m->proj, NULL, (struct rows){.y = r->mlp, .x = r->ones, .n = n}));
        TRY(norm(x, &plain, m->norm, m->norm_bias, r->mlp, r->mlp, n, out));
        TRY(gelu(x, true, r->ones, r->mlp, n, out));
        TRY(linear(x, &m->fc1, NULL, (struct rows){.y = r->up, .x = r->ones, .n = n}));
        TRY(linear(x, &m->gate, NULL, (struct rows){.y = r->mlp, .x = r->ones, .n = n}));
        TRY(rows_gate(x, r->up, inter, r->mlp, inter, GATE_SILU, n, inter));
        TRY(linear(x, &m->fc2, NULL, (struct rows){.y = rows + product((size_t)at, (size_t)out), .x = r->up, .n = n}));
    }
    return 0;
}

static double mats_of(const struct tower_merger *m) {
    return mat_numbers(&m->fc1) + mat_numbers(&m->fc2) + mat_numbers(&m->down) + mat_numbers(&m->proj) +
           mat_numbers(&m->gate);
}
struct tower_work tower_work(const struct tower *t, int n) {
    const struct tower_config *c = &t->config;
    double layers = 0, mergers = mats_of(&t->merger);
    for (int i = 0; i < c->depth; i++) {
        const struct tower_layer *y = &t->layers[i];
        layers += mat_numbers(&y->qkv) + mat_numbers(&y->proj) + mat_numbers(&y->fc1) + mat_numbers(&y->fc2) +
                  mat_numbers(&y->gate) + mat_numbers(&y->q) + mat_numbers(&y->k) + mat_numbers(&y->v);
    }
    for (int i = 0; i < c->n_deep; i++) mergers += mats_of(&t->deep[i]);
    return (struct tower_work){.flops = 2 * n * (mat_numbers(&t->patch) + layers + mergers / (c->merge * c->merge)),
                               .attention_flops = 4.0 * n * n * c->hidden * c->depth,
                               .bytes = (double)t->bytes,
                               .products = 4 * c->depth + 2,
                               .attention_calls = c->heads * c->depth};
}

int tower_run_step(struct tower_run *r, struct exec *x, float *rows) {
    const struct tower *t = r->tower;
    const int at = r->layer;
    if (at < 0) TRY(run_patches(r, x));
    else if (at == t->config.depth)
        TRY(t->config.is_pooled   ? run_pool(r, x, &t->merger, rows)
            : t->merger.down.data ? run_joining_merger(r, x, &t->merger, rows)
                                  : run_merger(r, x, &t->merger, false, 0, rows));
    else {
        TRY(run_attention(r, x, &t->layers[at]));
        TRY(t->layers[at].norm2_after ? run_ffn_between(r, x, &t->layers[at]) : run_ffn(r, x, &t->layers[at]));
        for (int k = 0; k < t->config.n_deep; k++)
            if (t->config.deep_layer[k] == at) TRY(run_merger(r, x, &t->deep[k], true, 1 + k, rows));
    }
    return r->layer++ < t->config.depth;
}
