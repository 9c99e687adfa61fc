#include "engine/vision/picture_formats.h"

#include <string.h>

#include "base/mem.h"

int picture_fail(const struct picture_source *s, const char *kind, const char *why) {
    return error_set(s->e, ERR_RUNTIME, "%s: damaged %s image: %s", s->what, kind, why);
}

int picture_alloc(const struct picture_source *s, uint32_t width, uint32_t height, struct picture *out) {
    if (!width || !height)
        return error_set(s->e, ERR_RUNTIME, "%s: the image has no pixels (%u x %u)", s->what, width, height);
    if (width > PICTURE_MAX_SIDE || height > PICTURE_MAX_SIDE ||
        (uint64_t)width * (uint64_t)height > PICTURE_MAX_PIXELS)
        return error_set(
            s->e, ERR_RUNTIME,
            "%s: the image has %u x %u pixels, more than hearth decodes (%d million); make it smaller first", s->what,
            width, height, PICTURE_MAX_PIXELS >> 20);
    out->width = (int)width, out->height = (int)height;
    out->rgb = mem_alloc((size_t)width * (size_t)height * 3);
    if (out->rgb) return 0;
    return error_set(s->e, ERR_MEMORY, "%s: no memory for %u x %u pixels", s->what, width, height);
}

/* Source: Pillow, AlphaComposite.c, with a destination that is opaque and white. */
void picture_on_white(uint8_t *rgb, const uint8_t *rgba, size_t n) {
    for (size_t i = 0; i < n; i++, rgb += 3, rgba += 4)
        for (int k = 0; k < 3; k++) {
            const uint32_t alpha = rgba[3], sum = (rgba[k] * alpha + 255 * (255 - alpha) + 128) << 7;
            rgb[k] = (uint8_t)(((sum >> 8) + sum) >> 15);
        }
}

void picture_free(struct picture *p) {
    mem_free(p->rgb);
    *p = (struct picture){0};
}

/* --- Orientation ------------------------------------------------------------------------------ */

static bool begins(const void *data, size_t n, size_t at, const char *mark, size_t length) {
    return n >= at + length && !memcmp((const char *)data + at, mark, length);
}

struct tiff {
    const uint8_t *data;
    size_t n;
    bool is_big_endian;
};
static uint32_t read_number(const struct tiff *t, size_t at, int bytes) {
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint32_t)t->data[at + (size_t)i] << 8 * (t->is_big_endian ? bytes - 1 - i : i);
    return v;
}

int picture_exif_orientation(const uint8_t *data, size_t n) {
    enum { HEADER = 8, ENTRY = 12, TAG_ORIENTATION = 0x112, TYPE_SHORT = 3 };
    if (begins(data, n, 0, "Exif\0\0", 6)) data += 6, n -= 6;
    const struct tiff t = {data, n, begins(data, n, 0, "MM\0*", 4)};
    if (n < HEADER || (!t.is_big_endian && !begins(data, n, 0, "II*\0", 4))) return 1;
    const size_t list = read_number(&t, 4, 4);
    if (list > n - 2) return 1;
    const uint32_t count = read_number(&t, list, 2);
    for (uint32_t i = 0; i < count && list + 2 + (size_t)(i + 1) * ENTRY <= n; i++) {
        const size_t entry = list + 2 + (size_t)i * ENTRY;
        if (read_number(&t, entry, 2) != TAG_ORIENTATION || read_number(&t, entry + 2, 2) != TYPE_SHORT) continue;
        const uint32_t v = read_number(&t, entry + 8, 2);
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}
