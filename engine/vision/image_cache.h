#pragma once
/* The files that were opened last, and their images: a chat sends its images again with every question. Any thread. */
#include <pthread.h>

#include "engine/vision/image.h"

/* Most images, and bytes of files and pixels together; a larger one is not kept. */
enum { IMAGE_CACHE_MOST = 64, IMAGE_CACHE_BYTES = 128 << 20 };
struct image_cache { /* empty with zeros and a lock */
    pthread_mutex_t lock;
    struct kept_image {
        uint64_t hash; /* of the file */
        void *file;
        size_t n, bytes;
        uint64_t used; /* when: counts calls */
        struct engine_image *image;
    } kept[IMAGE_CACHE_MOST];
    size_t n, bytes;
    uint64_t clock, n_decoded;
};
void image_cache_init(struct image_cache *c);
void image_cache_free(struct image_cache *c);
/* As image_open(); a file with the same bytes as one that is kept is not decoded again. */
int image_cache_open(struct image_cache *c, struct engine_image **out, const struct tower *t, const void *data,
                     size_t n, const char *what, struct error *e);
