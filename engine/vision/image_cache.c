#include "engine/vision/image_cache.h"

#include <string.h>

#include "base/hash.h"

void image_cache_init(struct image_cache *c) {
    *c = (struct image_cache){0};
    pthread_mutex_init(&c->lock, NULL);
}

static void drop(struct image_cache *c, size_t i) {
    struct kept_image *k = &c->kept[i];
    c->bytes -= k->bytes;
    image_unref(&k->image);
    mem_free(k->file);
    *k = c->kept[--c->n];
}
void image_cache_free(struct image_cache *c) {
    while (c->n) drop(c, c->n - 1);
    pthread_mutex_destroy(&c->lock);
}

/* Returns a reference of the image whose file has these bytes, or NULL. */
static struct engine_image *find(struct image_cache *c, const void *data, size_t n, uint64_t hash) {
    for (size_t i = 0; i < c->n; i++) {
        struct kept_image *k = &c->kept[i];
        if (k->hash != hash || k->n != n || memcmp(k->file, data, n)) continue;
        k->used = ++c->clock;
        return image_ref(k->image);
    }
    return NULL;
}

static void keep(struct image_cache *c, const void *data, size_t n, uint64_t hash, struct engine_image *image,
                 size_t pixels) {
    const size_t bytes = n + pixels;
    void *file = bytes <= IMAGE_CACHE_BYTES ? mem_alloc(n) : NULL;
    if (!file) return;
    while (c->n == IMAGE_CACHE_MOST || c->bytes + bytes > IMAGE_CACHE_BYTES) {
        size_t oldest = 0;
        for (size_t i = 1; i < c->n; i++)
            if (c->kept[i].used < c->kept[oldest].used) oldest = i;
        drop(c, oldest);
    }
    memcpy(file, data, n);
    c->kept[c->n++] = (struct kept_image){
        .hash = hash, .file = file, .n = n, .bytes = bytes, .used = ++c->clock, .image = image_ref(image)};
    c->bytes += bytes;
}

int image_cache_open(struct image_cache *c, struct engine_image **out, const struct tower *t, const void *data,
                     size_t n, const char *what, struct error *e) {
    const uint64_t hash = hash64(data, n, n);
    pthread_mutex_lock(&c->lock);
    *out = find(c, data, n, hash);
    pthread_mutex_unlock(&c->lock);
    if (*out) return 0;
    TRY(image_open(out, t, data, n, what, e)); /* may take a second: without the lock */
    const size_t side = (size_t)t->config.patch,
                 pixels = (size_t)(*out)->grid_h * (size_t)(*out)->grid_w * side * side * 3;
    pthread_mutex_lock(&c->lock);
    c->n_decoded++;
    struct engine_image *other = find(c, data, n, hash); /* another thread was faster */
    if (!other) keep(c, data, n, hash, *out, pixels);
    pthread_mutex_unlock(&c->lock);
    image_unref(&other);
    return 0;
}
