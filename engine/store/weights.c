#include "engine/store/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/half.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/model/arch.h"
#include "engine/model/rope.h"

/* --- One tensor after the other, claimed by name and checked against the config ------------------------------------ */

struct loader {
    struct weights *w;
    struct error *e;
    int rc;
};

static int fail(struct loader *l, const struct tensor *t, const char *what) {
    if (l->rc) return l->rc;
    const struct checkpoint *f = &l->w->files;
    char shape[96] = "";
    for (int i = 0, at = 0; i < t->ndim && at < 80; i++) at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    return l->rc = error_set(l->e, ERR_MODEL, "%s/%s: tensor %s %s [%s]: %s", f->dir, f->shards[t->shard].name, t->name, dtype_name(t->dtype), shape, what);
}

static struct tensor *claim(struct loader *l, const char *name) {
    struct tensor *t = checkpoint_find(&l->w->files, name);
    if (t) t->used = true;
    return t;
}

static void spell(char *buf, size_t cap, const char *pattern, int layer, int expert, const char *ending) {
    char name[400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof name, pattern, layer, expert);
#pragma GCC diagnostic pop
    snprintf(buf, cap, "%s%s", name, ending);
}

/* A vector [n] as float32, in the arena. NULL when it is absent and optional. */
static float *load_vector(struct loader *l, const char *pattern, int layer, const char *ending, int n, bool required) {
    if (l->rc) return NULL;
    char name[512], text[96];
    spell(name, sizeof name, pattern, layer, 0, ending);
    struct tensor *t = claim(l, name);
    if (!t) {
        if (required) l->rc = error_set(l->e, ERR_MODEL, "%s: tensor %s is missing", l->w->files.dir, name);
        return NULL;
    }
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
    if (count != n || t->ndim != 1) {
        snprintf(text, sizeof text, "config.json asks for [%d]", n);
        fail(l, t, text);
        return NULL;
    }
    if (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16) {
        fail(l, t, "a vector must be F32, BF16 or F16");
        return NULL;
    }
    float *out = arena_alloc(&l->w->arena, (size_t)n * sizeof *out);
    if (!out) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its small tensors", l->w->files.dir);
        return NULL;
    }
    struct mat m = {.data = t->data, .rows = 1, .cols = n, .dtype = t->dtype};
    mat_row(&m, 0, out);
    return out;
}

/* Finds how FP8 codes are scaled from the shape of the scale tensor alone: one for all, one a row, or one a block. */
static void attach_scale(struct loader *l, struct mat *m, const struct tensor *t, const struct tensor *s) {
    const struct config *c = &l->w->config;
    if (s->dtype != DT_F32 && s->dtype != DT_BF16 && s->dtype != DT_F16 && s->dtype != DT_E8M0) {
        fail(l, s, "a scale must be F32, BF16, F16 or F8_E8M0");
        return;
    }
    int64_t rows = s->ndim > 0 ? s->shape[0] : 1, cols = s->ndim > 1 ? s->shape[1] : 1;
    int64_t br = (m->rows + c->block_rows - 1) / c->block_rows, bc = (m->cols + c->block_cols - 1) / c->block_cols;
    m->scale = s->data;
    m->scale_dtype = s->dtype;
    if (s->ndim <= 2 && rows == br && cols == bc) m->block_rows = c->block_rows, m->block_cols = c->block_cols;
    else if (s->ndim <= 2 && rows == m->rows && cols == 1) m->block_rows = 1, m->block_cols = m->cols;
    else if (rows == 1 && cols == 1) m->block_rows = m->rows, m->block_cols = m->cols;
    else {
        char text[200];
        snprintf(text, sizeof text, "as the scale of [%d, %d] it must be [%lld, %lld] (blocks of %d x %d), [%d, 1] (one a row) or one number", m->rows, m->cols,
                 (long long)br, (long long)bc, c->block_rows, c->block_cols, m->rows);
        fail(l, s, text);
        return;
    }
    m->scale_stride = (int32_t)(m->block_cols >= m->cols ? 1 : cols);
    if ((uintptr_t)m->scale % dtype_bytes(m->scale_dtype, 1) == 0) return;
    /* Kernels read scales as numbers; a header of odd length leaves the data unaligned, so those few are moved. */
    void *copy = arena_alloc(&l->w->arena, s->size);
    if (!copy) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its scales", l->w->files.dir);
    else m->scale = memcpy(copy, s->data, s->size);
}

static struct mat load_matrix(struct loader *l, const char *pattern, int layer, int expert, int rows, int cols, bool required) {
    struct mat m = {0};
    if (l->rc) return m;
    char name[512], text[96];
    spell(name, sizeof name, pattern, layer, expert, ".weight");
    struct tensor *t = claim(l, name);
    if (!t) {
        if (required) l->rc = error_set(l->e, ERR_MODEL, "%s: tensor %s is missing", l->w->files.dir, name);
        return m;
    }
    if (t->ndim != 2 || t->shape[0] != rows || t->shape[1] != cols) {
        snprintf(text, sizeof text, "config.json asks for [%d, %d]", rows, cols);
        fail(l, t, text);
        return m;
    }
    m = (struct mat){.data = t->data, .stride = dtype_bytes(t->dtype, (size_t)cols), .rows = rows, .cols = cols, .row_step = 1, .dtype = t->dtype};
    static const char *const endings[] = {".weight_scale_inv", ".weight_scale", ".scale"};
    struct tensor *s = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !s; i++) {
        spell(name, sizeof name, pattern, layer, expert, endings[i]);
        s = claim(l, name);
    }
    switch (t->dtype) {
    case DT_F32:
    case DT_BF16:
    case DT_F16:
        if (s) fail(l, s, "a scale beside a weight that is not quantised");
        break;
    case DT_E4M3:
        if (!s) fail(l, t, "no scale beside it (.weight_scale_inv or .weight_scale)");
        else attach_scale(l, &m, t, s);
        break;
    default: fail(l, t, "hearth computes with F32, BF16, F16 and F8_E4M3 weights");
    }
    /* Static activation scales of other engines: the weights alone say what to compute. */
    spell(name, sizeof name, pattern, layer, expert, ".input_scale");
    claim(l, name);
    return m;
}

/* The tensors of these modules into their fields of base; returns their bytes. */
static size_t load(struct loader *l, unsigned modules, void *base, int layer, int expert) {
    const struct config *c = &l->w->config;
    struct param list[PARAMS_MAX];
    int n = params_list(c, layer, modules, list);
    for (int i = 0; i < n; i++) {
        const struct param *p = &list[i];
        const char *pattern = *(const char *const *)((const char *)&c->arch->names + p->name);
        if (p->cols) *params_mat(base, p) = load_matrix(l, pattern, layer, expert, p->rows, p->cols, !p->optional);
        else *params_vector(base, p) = load_vector(l, pattern, layer, p->ending, p->rows, !p->optional);
    }
    return l->rc ? 0 : params_bytes(base, list, n);
}

static void load_layer(struct loader *l, int i) {
    struct weights *w = l->w;
    const struct config *c = &w->config;
    struct layer *y = &w->layers[i];
    load(l, MODULE_LAYER, y, i, 0);
    if (l->rc || !c->layer[i].moe) return;
    if (!(y->experts = arena_calloc(&w->arena, (size_t)c->n_experts, sizeof *y->experts))) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its list of experts", w->files.dir);
        return;
    }
    for (int k = 0; k < c->n_experts && !l->rc; k++) w->bytes_routed += load(l, MODULE_EXPERT, &y->experts[k], i, k);
}

static bool harmless_tensor(const char *name) {
    static const char *const parts[] = {"rotary_emb.inv_freq", ".k_scale", ".v_scale", ".q_scale"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

/* What nobody claimed is either a part that hearth leaves alone on purpose (prediction layers, other towers), or a sign that
 * the layers compute something this family's file does not know of. */
static void check_left_over(struct loader *l, bool force) {
    struct weights *w = l->w;
    for (size_t i = 0; i < w->files.n_tensors && !l->rc; i++) {
        const struct tensor *t = &w->files.tensors[i];
        if (t->used) continue;
        w->n_skipped++;
        w->bytes_skipped += t->size;
        int k, at = 0;
        if (sscanf(t->name, "model.layers.%d.%n", &k, &at) == 1 && at) {
            if (k >= w->config.n_layers) w->n_mtp++;
            else if (!harmless_tensor(t->name)) {
                if (force) log_say(LOG_WARN, "%s: tensor %s is unknown to hearth and ignored", w->files.dir, t->name);
                else fail(l, t, "hearth does not know what it is for in this family; --force ignores it");
            }
        } else if (!strncmp(t->name, "mtp.", 4)) w->n_mtp++;
    }
}

static int read_config(struct weights *w, const char *dir, bool force, struct error *e) {
    char path[4096], *text = NULL;
    size_t n;
    int rc = file_join(path, sizeof path, dir, "config.json", e);
    if (rc) return rc;
    if (!file_is_dir(dir)) return error_set(e, ERR_MODEL, "%s: no such directory; -m takes a checkpoint directory as published", dir);
    if (!file_exists(path)) return error_set(e, ERR_MODEL, "%s: missing; -m takes a checkpoint directory as published", path);
    if ((rc = file_read(path, 4u << 20, &text, &n, e))) return rc;
    struct arena a = {0};
    struct json root;
    rc = json_parse(&a, text, n, JSON_UNIQUE, path, &root, e);
    if (!rc) rc = config_parse(&w->config, &root, path, force, e);
    arena_free(&a);
    mem_free(text);
    return rc;
}

int weights_open(struct weights *w, const char *dir, bool force, struct error *e) {
    *w = (struct weights){0};
    struct loader l = {.w = w, .e = e};
    struct config *c = &w->config;
    if ((l.rc = read_config(w, dir, force, e)) || (l.rc = checkpoint_open(&w->files, dir, e))) goto out;
    load(&l, MODULE_MODEL, w, 0, 0);
    if (c->tied) w->head = w->embed;
    w->layers = arena_calloc(&w->arena, (size_t)c->n_layers, sizeof *w->layers);
    int half = c->rope.dim / 2;
    w->inv_freq = arena_alloc(&w->arena, (size_t)half * sizeof(float));
    if (!w->layers || !w->inv_freq) {
        l.rc = error_set(e, ERR_MEMORY, "%s: no memory for its layers", dir);
        goto out;
    }
    w->rope_mscale = rope_frequencies(&c->rope, w->inv_freq);
    for (int i = 0; i < c->n_layers && !l.rc; i++) load_layer(&l, i);
    if (l.rc) goto out;
    check_left_over(&l, force);
    w->bytes_embed = mat_bytes(&w->embed) + (c->tied ? 0 : mat_bytes(&w->head));
    w->bytes_dense = w->files.bytes - w->bytes_skipped - w->bytes_routed - w->bytes_embed;
out:
    if (l.rc) weights_close(w);
    return l.rc;
}

void weights_close(struct weights *w) {
    checkpoint_close(&w->files);
    arena_free(&w->arena);
    *w = (struct weights){0};
}

size_t weights_expert_bytes(const struct weights *w) {
    int moe = 0;
    for (int i = 0; i < w->config.n_layers; i++) moe += w->config.layer[i].moe;
    return moe && w->config.n_experts ? w->bytes_routed / (size_t)moe / (size_t)w->config.n_experts : 0;
}

size_t weights_token_bytes(const struct weights *w) {
    const struct config *c = &w->config;
    size_t routed = c->n_experts ? w->bytes_routed / (size_t)c->n_experts * (size_t)c->topk : 0;
    return routed + w->bytes_dense + mat_bytes(&w->head);
}

uint64_t weights_token_flops(const struct weights *w) {
    const struct config *c = &w->config;
    struct param list[PARAMS_MAX];
    uint64_t sum = 0;
    for (int i = 0; i < c->n_layers; i++)
        for (int k = params_list(c, i, MODULE_LAYER | MODULE_EXPERT, list); k-- > 0;)
            sum += 2 * (uint64_t)list[k].rows * (uint64_t)list[k].cols * (list[k].module == MODULE_EXPERT ? (uint64_t)c->topk : 1);
    return sum;
}

/* --- --verify -------------------------------------------------------------------------------------------------------- */

static bool all_finite(const struct tensor *t, size_t begin, size_t end, size_t *bad) {
    const uint8_t *p = t->data;
    for (size_t i = begin; i < end; i++) {
        bool ok = true;
        uint16_t h;
        uint32_t u;
        switch (t->dtype) {
        case DT_E4M3: ok = (p[i] & 0x7f) != 0x7f; break;
        case DT_E8M0: ok = p[i] != 255; break;
        case DT_BF16:
            memcpy(&h, p + 2 * i, 2);
            ok = (h & 0x7f80) != 0x7f80;
            break;
        case DT_F16:
            memcpy(&h, p + 2 * i, 2);
            ok = (h & 0x7c00) != 0x7c00;
            break;
        case DT_F32:
            memcpy(&u, p + 4 * i, 4);
            ok = (u & 0x7f800000) != 0x7f800000;
            break;
        }
        if (!ok) {
            *bad = i;
            return false;
        }
    }
    return true;
}

int weights_verify(const struct weights *w, int (*progress)(void *ctx, double share), void *ctx, struct error *e) {
    const struct checkpoint *f = &w->files;
    size_t done = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        size_t count = 1, bad;
        for (int d = 0; d < t->ndim; d++) count *= (size_t)t->shape[d];
        for (size_t at = 0; at < count;) {
            size_t end = count - at > 1u << 20 ? at + (1u << 20) : count;
            if (!all_finite(t, at, end, &bad)) {
                size_t cols = t->ndim > 1 ? (size_t)t->shape[t->ndim - 1] : count;
                return error_set(e, ERR_MODEL, "%s/%s: tensor %s: %s that is not a number at row %zu, column %zu: the file is damaged", f->dir,
                                 f->shards[t->shard].name, t->name, dtype_name(t->dtype), bad / cols, bad % cols);
            }
            done += dtype_bytes(t->dtype, end - at);
            at = end;
            if (progress && progress(ctx, (double)done / (double)f->bytes)) return error_set(e, ERR_CANCELLED, "stopped");
        }
    }
    return 0;
}
