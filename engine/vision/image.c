#include "engine/vision/image.h"

#include <string.h>

#include "base/hash.h"

/* Black on the right and below. */
static int pad(struct picture *p, int width, int height, struct error *e) {
    if (p->width == width && p->height == height) return 0;
    struct picture to = {.rgb = mem_calloc((size_t)width * (size_t)height, 3), .width = width, .height = height};
    for (int y = 0; y < p->height && to.rgb; y++)
        memcpy(to.rgb + (size_t)y * (size_t)width * 3, p->rgb + (size_t)y * (size_t)p->width * 3, (size_t)p->width * 3);
    picture_free(p);
    *p = to;
    return to.rgb ? 0 : error_set(e, ERR_MEMORY, "no memory to pad an image to %d x %d pixels", width, height);
}

static int resize(struct engine_image *i, const struct tower *t, const struct picture *p, const char *what,
                  struct error *e) {
    const struct tower_config *c = &t->config;
    struct picture sized;
    int width = p->width, height = p->height, whole_width, whole_height;
    if (c->limits.keeps_ratio) {
        resample_ratio_size(&c->limits, &width, &height);
        whole_width = width, whole_height = height;
    } else if (c->limits.most_patches) resample_padded_size(&c->limits, &width, &height, &whole_width, &whole_height);
    else if (resample_smart_size(&c->limits, &width, &height, e)) return error_prefix(e, "%s", what);
    else whole_width = width, whole_height = height;
    if (resample_picture(p, width, height, (enum resample_filter)c->filter, &sized, e) ||
        pad(&sized, whole_width, whole_height, e))
        return error_prefix(e, "%s", what);
    width = whole_width, height = whole_height;
    i->width = p->width, i->height = p->height;
    i->grid_h = height / c->patch, i->grid_w = width / c->patch;
    i->rows = i->grid_h / c->merge, i->cols = i->grid_w / c->merge;
    i->advance = !t->has_places ? i->rows * i->cols : i->rows > i->cols ? i->rows : i->cols;
    i->rgb = sized.rgb;
    /* files of towers differ in formats: what caches have was made with one of them */
    const uint64_t tower = t->beside ? t->beside->files.fingerprint : 0;
    i->hash = hash64(sized.rgb, (size_t)width * (size_t)height * 3, tower ^ ((uint64_t)width << 32 | (uint64_t)height));
    return 0;
}

int image_open(struct engine_image **out, const struct tower *t, const void *data, size_t n, const char *what,
               struct error *e) {
    struct engine_image *i = mem_calloc(1, sizeof *i);
    struct picture p = {0};
    *out = NULL;
    int rc = i ? picture_decode(data, n, what, &p, e) : error_set(e, ERR_MEMORY, "%s: no memory", what);
    if (!rc) rc = resize(i, t, &p, what, e);
    picture_free(&p);
    if (rc) {
        mem_free(i);
        return rc;
    }
    atomic_store(&i->n_refs, 1);
    *out = i;
    return 0;
}

struct engine_image *image_ref(struct engine_image *i) {
    atomic_fetch_add(&i->n_refs, 1);
    return i;
}
void image_unref(struct engine_image **i) {
    if (*i && atomic_fetch_sub(&(*i)->n_refs, 1) == 1) {
        mem_free((*i)->rgb);
        mem_free(*i);
    }
    *i = NULL;
}

int32_t image_id(const struct engine_image *i, int at) {
    const int32_t below = -2;
    return below - (int32_t)(hash64(&at, sizeof at, i->hash) % 0x7FFFFFFE);
}

int image_batch_end(const struct image_span *s, int n, int pos, int end) {
    for (int k = 0; k < n; k++) {
        const int past = s[k].at + image_tokens(s[k].image);
        if (s[k].at < end && end < past) return s[k].at > pos ? s[k].at : past;
    }
    return end;
}

int image_shift(const struct image_span *s, int n, int pos) {
    int shift = 0;
    for (int k = 0; k < n && s[k].at + image_tokens(s[k].image) <= pos; k++)
        shift += s[k].image->advance - image_tokens(s[k].image);
    return shift;
}

void image_place(const struct image_span *s, int n, int pos, int32_t out[3]) {
    const int first = pos + image_shift(s, n, pos);
    out[0] = out[1] = out[2] = first;
    for (int k = 0; k < n; k++) {
        const int in = pos - s[k].at;
        if (in < 0 || in >= image_tokens(s[k].image)) continue;
        out[0] = first - in;
        out[1] = out[0] + in / s[k].image->cols;
        out[2] = out[0] + in % s[k].image->cols;
    }
}
