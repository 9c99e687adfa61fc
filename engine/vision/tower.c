#include "engine/vision/tower.h"

#include <math.h>
#include <string.h>

#include "engine/layer/rows.h"

enum { CHUNK = 512 }; /* rows of a product: what lies between two products of an FFN is not stored for all patches */

static int n_patches(const struct tower_run *r) { return r->grid_h * r->grid_w; }
static int least(int a, int b) { return a < b ? a : b; }
static size_t product(size_t a, size_t b) { return a * b; }

/* Row and column of a patch. */
static void place(const struct tower_run *r, int patch, int *row, int *col) {
    const int m = r->tower->config.merge, in_block = patch % (m * m), block = patch / (m * m), blocks = r->grid_w / m;
    *row = block / blocks * m + in_block / m;
    *col = block % blocks * m + in_block % m;
}

void tower_run_close(struct tower_run *r) {
    void *const all[] = {r->x, r->xn, r->qkv, r->att, r->mlp, r->ones, r->cos, r->sin, r->k, r->v, r->last};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    *r = (struct tower_run){0};
}

/* Rotation: the first half of the pairs turns by the row, the second by the column. */
static void fill_rotation(struct tower_run *r) {
    const struct tower_config *c = &r->tower->config;
    const int half = c->hidden / c->heads / 2, quarter = half / 2;
    for (int i = 0; i < n_patches(r); i++) {
        int at[2];
        place(r, i, &at[0], &at[1]);
        for (int j = 0; j < half; j++) {
            const float inv_freq = 1 / (float)pow(c->theta, (double)((float)(2 * (j % quarter)) / (float)half));
            const double angle = (double)((float)at[j / quarter] * inv_freq);
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
    *r = (struct tower_run){.tower = t, .rgb = rgb, .grid_h = grid_h, .grid_w = grid_w, .layer = -1};
    struct {
        void *to;
        size_t floats;
    } all[] = {{&r->x, n * h},         {&r->xn, n * h},         {&r->qkv, n * 3 * h}, {&r->att, n * h},
               {&r->mlp, CHUNK * row}, {&r->ones, CHUNK * row}, {&r->cos, n * half},  {&r->sin, n * half},
               {&r->k, n * h},         {&r->v, n * h},          {&r->last, n}};
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
                                             .layer_norm = true});
}
/* out = GELU of in: the exact one, or its tanh form. out and in do not overlap. */
static int gelu(struct exec *x, bool is_exact, float *out, const float *in, int n, int m) {
    if (is_exact) TRY(rows_copy(x, out, m, in, m, n, m));
    else TRY(x->ops->fill(x, &(struct op_fill){.x = out, .n = n, .m = m, .value = 1}));
    return rows_gate(x, out, m, in, m, is_exact ? GATE_NORMAL : GATE_GELU_TANH, n, m);
}

/* The table's row at a fraction of its side, between two of its rows. The corners of image and table are the same, as
 * in transformers.
 */
struct between {
    int first, second;
    float weight[2];
};
static struct between position(int at, int n, int side) {
    const float source = (float)at * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1), floor = floorf(source);
    const int first = (int)floor;
    const float far = source - floor;
    return (struct between){first, least(first + 1, side - 1), {1 - far, far}};
}
static void add_positions(const struct tower_run *r, int first, int n) {
    const struct tower *t = r->tower;
    const int h = t->config.hidden, side = t->config.side;
    for (int i = first; i < first + n; i++) {
        int row, col;
        place(r, i, &row, &col);
        const struct between down = position(row, r->grid_h, side), across = position(col, r->grid_w, side);
        float *x = r->x + product((size_t)i, (size_t)h);
        const float *corner[4], weight[4] = {down.weight[0] * across.weight[0], down.weight[0] * across.weight[1],
                                             down.weight[1] * across.weight[0], down.weight[1] * across.weight[1]};
        for (int k = 0; k < 4; k++)
            corner[k] =
                t->position +
                product((size_t)((k < 2 ? down.first : down.second) * side + (k % 2 ? across.second : across.first)),
                        (size_t)h);
        for (int j = 0; j < h; j++) {
            float sum = corner[0][j] * weight[0];
            for (int k = 1; k < 4; k++) sum += corner[k][j] * weight[k];
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
        TRY(linear(x, &t->patch, t->patch_bias,
                   (struct rows){.y = r->x + product((size_t)at, (size_t)t->config.hidden), .x = r->mlp, .n = n}));
        add_positions(r, at, n);
    }
    return 0;
}

static int run_attention(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    const int n = n_patches(r), h = c->hidden, dim = h / c->heads;
    TRY(norm(x, c, y->norm1, y->norm1_bias, r->xn, r->x, n, h));
    TRY(linear(x, &y->qkv, y->qkv_bias, (struct rows){.y = r->qkv, .x = r->xn, .n = n}));
    for (int part = 0; part < 2; part++)
        TRY(x->ops->rope(x, &(struct op_rope){.x = r->qkv + (size_t)(part * h),
                                              .cos = r->cos,
                                              .sin = r->sin,
                                              .n = n,
                                              .heads = c->heads,
                                              .ld = 3 * h,
                                              .head_ld = dim,
                                              .half = dim / 2}));
    /* Each head has a plane of its own: in one of all heads a head's keys are pages apart. */
    for (int i = 0; i < c->heads; i++) {
        const size_t plane = product((size_t)i * (size_t)n, (size_t)dim);
        const struct kv_plane k = {.data = (float *)r->k + plane, .heads = 1, .dim = dim, .dtype = DT_F32},
                              v = {.data = (float *)r->v + plane, .heads = 1, .dim = dim, .dtype = DT_F32};
        float *q = r->qkv + (size_t)(i * dim);
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = k, .x = q + h, .n = n, .ldx = 3 * h}));
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = v, .x = q + 2 * h, .n = n, .ldx = 3 * h}));
        TRY(x->ops->attention(x, &(struct op_attention){.out = r->att + (size_t)(i * dim),
                                                        .q = q,
                                                        .k = k,
                                                        .v = v,
                                                        .q_pos = r->last,
                                                        .n = n,
                                                        .n_heads = 1,
                                                        .v_dim = dim,
                                                        .ldq = 3 * h,
                                                        .ldo = h,
                                                        .n_keys = n,
                                                        .scale = 1 / sqrtf((float)dim)}));
    }
    return linear(x, &y->proj, y->proj_bias, (struct rows){.y = r->x, .x = r->att, .n = n, .add = true});
}

static int run_ffn(struct tower_run *r, struct exec *x, const struct tower_layer *y) {
    const struct tower_config *c = &r->tower->config;
    TRY(norm(x, c, y->norm2, y->norm2_bias, r->xn, r->x, n_patches(r), c->hidden));
    for (int at = 0, n; at < n_patches(r); at += n) {
        const size_t from = product((size_t)at, (size_t)c->hidden);
        n = least(CHUNK, n_patches(r) - at);
        TRY(linear(x, &y->fc1, y->fc1_bias, (struct rows){.y = r->mlp, .x = r->xn + from, .n = n}));
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

int tower_run_step(struct tower_run *r, struct exec *x, float *rows) {
    const struct tower *t = r->tower;
    const int at = r->layer;
    if (at < 0) TRY(run_patches(r, x));
    else if (at == t->config.depth) TRY(run_merger(r, x, &t->merger, false, 0, rows));
    else {
        TRY(run_attention(r, x, &t->layers[at]));
        TRY(run_ffn(r, x, &t->layers[at]));
        for (int k = 0; k < t->config.n_deep; k++)
            if (t->config.deep_layer[k] == at) TRY(run_merger(r, x, &t->deep[k], true, 1 + k, rows));
    }
    return r->layer++ < t->config.depth;
}
