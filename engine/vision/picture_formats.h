#pragma once
/* A picture, and the decoders of its files (picture.h), one file each. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Most bytes of a file, and most pixels of a picture: 192 MB of RGB. */
enum { PICTURE_MAX_BYTES = 64 << 20, PICTURE_MAX_PIXELS = 64 << 20, PICTURE_MAX_SIDE = 65535 };

struct picture {
    uint8_t *rgb; /* [height, width, 3], owned */
    int width, height;
};
void picture_free(struct picture *p);

/* What a decoder gets and gives. */
struct picture_source {
    const uint8_t *data;
    size_t n;
    const char *what; /* names the file in errors */
    struct error *e;
};
/* Each decodes to out->rgb, and sets *orientation to that of EXIF (1 to 8) if the file has one. */
int picture_png(const struct picture_source *s, struct picture *out, int *orientation);
int picture_jpeg(const struct picture_source *s, struct picture *out, int *orientation);
int picture_webp(const struct picture_source *s, struct picture *out, int *orientation);

/* Fails with the file's name, its format, and what is wrong. Returns ERR_RUNTIME. */
int picture_fail(const struct picture_source *s, const char *kind, const char *why);
/* Checks a size from a header and allocates rgb. ERR_RUNTIME, ERR_MEMORY. */
int picture_alloc(const struct picture_source *s, uint32_t width, uint32_t height, struct picture *out);
/* Composites n RGBA pixels onto white: rgb [n, 3]. */
void picture_on_white(uint8_t *rgb, const uint8_t *rgba, size_t n);
/* Reads the orientation of EXIF data that begin with a TIFF header, after "Exif\0\0" or not. 1: none is given. */
int picture_exif_orientation(const uint8_t *data, size_t n);
