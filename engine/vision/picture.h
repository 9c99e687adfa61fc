#pragma once
/* Pictures in files: PNG, JPEG and WebP, recognized by their first bytes, decoded to 8-bit RGB. Files are untrusted: a
 * header is checked before anything is decoded or allocated for it. Alpha is composited onto white, and the
 * orientation that EXIF gives is applied, as transformers' processors do. Sources: Pillow for the arithmetic of alpha
 * and CMYK; EXIF 2.3 for the orientation. Any thread. */
#include "engine/vision/picture_formats.h"

/* Names the format of a file that begins with these bytes: "PNG", "JPEG" or "WebP"; NULL: none that hearth reads. */
const char *picture_kind(const void *data, size_t n);
/* Names the format of an image that hearth does not read ("GIF"), or NULL. */
const char *picture_other_kind(const void *data, size_t n);
/* Decodes a file. what names it in errors. ERR_RUNTIME, ERR_MEMORY. */
int picture_decode(const void *data, size_t n, const char *what, struct picture *out, struct error *e);
