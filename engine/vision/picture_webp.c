/* WebP, by libwebp: still pictures, with and without loss, with alpha. */
#include <string.h>
#include <webp/decode.h>

#include "base/mem.h"
#include "engine/vision/picture_formats.h"

/* Finds the chunk EXIF. Chunks: four letters, length, data, a byte if the length is odd. */
static int find_orientation(const struct picture_source *s) {
    for (size_t at = 12; at + 8 <= s->n;) {
        const uint8_t *p = s->data + at;
        const size_t n = (size_t)p[4] | (size_t)p[5] << 8 | (size_t)p[6] << 16 | (size_t)p[7] << 24;
        if (n > s->n - at - 8) break;
        if (!memcmp(p, "EXIF", 4)) return picture_exif_orientation(p + 8, n);
        at += 8 + n + (n & 1);
    }
    return 1;
}

int picture_webp(const struct picture_source *s, struct picture *out, int *orientation) {
    WebPBitstreamFeatures f;
    if (WebPGetFeatures(s->data, s->n, &f) != VP8_STATUS_OK)
        return picture_fail(s, "WebP", "its header cannot be read");
    if (f.has_animation)
        return error_set(s->e, ERR_RUNTIME, "%s: an animated WebP image; save one picture of it as PNG first", s->what);
    TRY(picture_alloc(s, (uint32_t)f.width, (uint32_t)f.height, out));
    const size_t n = (size_t)f.width * (size_t)f.height;
    *orientation = find_orientation(s);
    if (!f.has_alpha)
        return WebPDecodeRGBInto(s->data, s->n, out->rgb, n * 3, f.width * 3)
                   ? 0
                   : picture_fail(s, "WebP", "its data are wrong, or end too early");
    uint8_t *rgba = mem_alloc(n * 4);
    if (!rgba) return error_set(s->e, ERR_MEMORY, "%s: no memory for %d x %d pixels", s->what, f.width, f.height);
    int rc = WebPDecodeRGBAInto(s->data, s->n, rgba, n * 4, f.width * 4)
                 ? 0
                 : picture_fail(s, "WebP", "its data are wrong, or end too early");
    if (!rc) picture_on_white(out->rgb, rgba, n);
    mem_free(rgba);
    return rc;
}
