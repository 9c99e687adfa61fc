#include "engine/weights/loader.h"

#include <stdio.h>
#include <string.h>

int loader_fail(struct loader *l, const struct tensor *t, const char *what) {
    if (l->rc) return l->rc;
    const struct checkpoint *f = &l->w->files;
    char shape[96] = "";
    for (int i = 0, at = 0; i < t->ndim && at < 80; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    return l->rc = error_set(l->e, ERR_MODEL, "%s/%s: tensor %s %s [%s]: %s", f->dir, f->shards[t->shard].name, t->name,
                             dtype_name(t->dtype), shape, what);
}

static struct tensor *claim(struct loader *l, const char *name) {
    struct tensor *t = checkpoint_find(&l->w->files, name);
    if (t && !l->is_optional_part) t->is_claimed = true;
    return t;
}

void loader_name(char *buf, size_t cap, const char *pattern, int layer, int expert, const char *ending) {
    char name[400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof name, pattern, layer, expert);
#pragma GCC diagnostic pop
    snprintf(buf, cap, "%s%s", name, ending);
}

struct tensor *loader_find(struct loader *l, const char *pattern, int layer, int expert, const char *ending) {
    char name[512];
    loader_name(name, sizeof name, pattern, layer, expert, ending);
    struct tensor *t = claim(l, name);
    if (t || !l->w->files.gguf || strcmp(ending, ".weight")) return t;
    loader_name(name, sizeof name, pattern, layer, expert, ""); /* llama.cpp's converter omits it in Falcon-H1 */
    return claim(l, name);
}
void loader_missing(struct loader *l, const char *pattern, int layer, int expert, const char *ending) {
    char name[512];
    loader_name(name, sizeof name, pattern, layer, expert, ending);
    const struct checkpoint *f = &l->w->files;
    const char *file = f->gguf ? f->shards[0].name : ""; /* the name of one of many files helps little */
    if (!l->rc)
        l->rc = error_set(l->e, ERR_MODEL, "%s%s%s: tensor %s is missing", f->dir, *file ? "/" : "", file, name);
}

/* Whether all dimensions but one, which is n, are 1. */
static bool is_vector(const struct tensor *t, int n) {
    int64_t longest = 1, all = 1;
    for (int i = 0; i < t->ndim; i++) longest = t->shape[i] > longest ? t->shape[i] : longest, all *= t->shape[i];
    return longest == n && all == n;
}
bool loader_shape_fits(const struct loader *l, const struct tensor *t, const struct param *p, int rows, int cols,
                       int inner) {
    const int64_t experts = p->slice.stacked ? loader_stacked(l) : 1, *s = t->shape;
    const int own = (cols ? 2 : 1) + inner; /* dimensions without the expert dimension */
    const bool gguf = l->w->files.gguf;
    if (!cols && !p->slice.stacked && t->ndim != 1 && is_vector(t, rows)) return true; /* also a number without one */
    /* by group: norms of Mamba-2 */
    if (gguf && !cols && !p->slice.stacked && t->ndim == 2 && s[0] * s[1] == rows) return true;
    bool apart = t->ndim == own + 1 && p->slice.stacked && s[0] == experts && s[1] == rows,
         together = t->ndim == own && s[0] == rows * experts;
    if (p->slice.stacked && !cols) together = false;
    if (gguf && cols && !p->slice.stacked) together |= t->ndim == 1 && rows == 1;
    if ((gguf || l->w->files.mlx) && cols && !p->slice.stacked) together |= t->ndim == 3 && s[0] * s[1] == rows;
    return (apart || together) && (!cols || inner || s[t->ndim - 1] == cols);
}
bool loader_has_shape(struct loader *l, const struct tensor *t, const struct param *p, int rows, int cols, int inner) {
    if (loader_shape_fits(l, t, p, rows, cols, inner)) return true;
    const int64_t experts = p->slice.stacked ? loader_stacked(l) : 1, *s = t->shape;
    char text[192];
    const char *asks = l->w->files.gguf ? "its metadata asks" : "config.json asks";
    if (p->slice.stacked && cols)
        snprintf(text, sizeof text, "%s for [%lld, %d, %d]", asks, (long long)experts, rows, cols);
    else if (p->slice.stacked) snprintf(text, sizeof text, "%s for [%lld, %d]", asks, (long long)experts, rows);
    else if (cols) snprintf(text, sizeof text, "%s for [%d, %d]", asks, rows, cols);
    else snprintf(text, sizeof text, "%s for [%d]", asks, rows);
    if (p->slice.stacked && t->ndim == 3 && s[1] == cols && s[2] == rows) { /* of families without a variant for them */
        const size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "; hearth supports this family's experts the other way round");
    }
    loader_fail(l, t, text);
    return false;
}

void *loader_alloc_repacked(struct loader *l, size_t size) {
    void *p = l->rc ? NULL : weights_alloc_repacked(l->w, size);
    if (p) l->w->bytes_repacked += size;
    else if (!l->rc) l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its repacked weights", l->w->files.dir);
    return p;
}
