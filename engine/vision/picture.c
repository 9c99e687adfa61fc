#include "engine/vision/picture.h"

#include <stdio.h>
#include <string.h>

static bool begins(const void *data, size_t n, size_t at, const char *mark, size_t length) {
    return n >= at + length && !memcmp((const char *)data + at, mark, length);
}

const char *picture_kind(const void *data, size_t n) {
    if (begins(data, n, 0, "\x89PNG\r\n\x1A\n", 8)) return "PNG";
    if (begins(data, n, 0, "\xFF\xD8\xFF", 3)) return "JPEG";
    if (begins(data, n, 0, "RIFF", 4) && begins(data, n, 8, "WEBP", 4)) return "WebP";
    return NULL;
}

const char *picture_other_kind(const void *data, size_t n) {
    static const struct {
        const char *name, *mark;
        uint8_t at, length;
    } kinds[] = {{"GIF", "GIF8", 0, 4},           {"TIFF", "II*\0", 0, 4},       {"TIFF", "MM\0*", 0, 4},
                 {"HEIC", "ftypheic", 4, 8},      {"HEIC", "ftypheix", 4, 8},    {"HEIF", "ftypmif1", 4, 8},
                 {"AVIF", "ftypavif", 4, 8},      {"JPEG XL", "\xFF\x0A", 0, 2}, {"JPEG XL", "\0\0\0\x0CJXL ", 0, 8},
                 {"JPEG 2000", "jP  \r\n", 4, 6}, {"Photoshop", "8BPS", 0, 4},   {"QOI", "qoif", 0, 4},
                 {"icon", "\0\0\1\0", 0, 4}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins(data, n, kinds[i].at, kinds[i].mark, kinds[i].length)) return kinds[i].name;
    /* "BM" alone also begins words: the length of the header of a bitmap decides */
    if (begins(data, n, 0, "BM", 2) && n >= 18 && !memcmp((const char *)data + 6, "\0\0\0\0", 4)) return "BMP";
    return NULL;
}

/* Turns a picture upright. Orientations 5 to 8 exchange its sides. */
static int turn(const struct picture_source *s, struct picture *p, int orientation) {
    const bool is_turned = orientation >= 5,
               flips_x = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7,
               flips_y = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    struct picture out;
    if (orientation == 1) return 0;
    TRY(picture_alloc(s, (uint32_t)(is_turned ? p->height : p->width), (uint32_t)(is_turned ? p->width : p->height),
                      &out));
    for (int y = 0; y < out.height; y++)
        for (int x = 0; x < out.width; x++) {
            const int u = flips_x ? out.width - 1 - x : x, v = flips_y ? out.height - 1 - y : y,
                      from_x = is_turned ? v : u, from_y = is_turned ? u : v;
            memcpy(out.rgb + ((size_t)y * (size_t)out.width + (size_t)x) * 3,
                   p->rgb + ((size_t)from_y * (size_t)p->width + (size_t)from_x) * 3, 3);
        }
    picture_free(p);
    *p = out;
    return 0;
}

int picture_decode(const void *data, size_t n, const char *what, struct picture *out, struct error *e) {
    static const struct {
        const char *kind;
        int (*decode)(const struct picture_source *, struct picture *, int *);
    } decoders[] = {{"PNG", picture_png}, {"JPEG", picture_jpeg}, {"WebP", picture_webp}};
    const struct picture_source s = {data, n, what, e};
    const char *kind = picture_kind(data, n), *other = picture_other_kind(data, n);
    int orientation = 1, rc = 0;
    *out = (struct picture){0};
    if (!kind && other)
        return error_set(e, ERR_RUNTIME, "%s: hearth does not read %s images; convert it to PNG, JPEG or WebP first",
                         what, other);
    if (!kind) return error_set(e, ERR_RUNTIME, "%s: not an image that hearth reads (PNG, JPEG or WebP)", what);
    if (n > PICTURE_MAX_BYTES)
        return error_set(e, ERR_RUNTIME, "%s: an image of %zu MB, more than hearth reads (%d MB)", what, n >> 20,
                         PICTURE_MAX_BYTES >> 20);
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++)
        if (!strcmp(kind, decoders[i].kind)) rc = decoders[i].decode(&s, out, &orientation);
    if (!rc) rc = turn(&s, out, orientation);
    if (rc) picture_free(out);
    return rc;
}
