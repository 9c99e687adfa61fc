/* PNG, by libpng: palettes, grey, 16 bits (whose low halves are dropped), interlaced, with alpha. Colour spaces and
 * gamma are ignored, as Pillow does. */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/vision/picture_formats.h"

struct reader {
    const struct picture_source *s;
    png_structp png;
    png_infop info;
    uint8_t *rows; /* [1 or, interlaced, height][width, 4] */
    size_t at;
    char why[160];
};

static void on_error(png_structp png, const char *why) {
    struct reader *r = png_get_error_ptr(png);
    snprintf(r->why, sizeof r->why, "%s", why);
    png_longjmp(png, 1);
}
static void on_warning(png_structp png, const char *why) {}
static void on_read(png_structp png, png_bytep out, size_t n) {
    struct reader *r = png_get_io_ptr(png);
    if (n > r->s->n - r->at) png_error(png, "the file ends too early");
    memcpy(out, r->s->data + r->at, n);
    r->at += n;
}

static int read_rows(struct reader *r, struct picture *out, int *orientation) {
    const struct picture_source *s = r->s;
    png_structp png = r->png;
    png_read_info(png, r->info);
    const uint32_t width = png_get_image_width(png, r->info), height = png_get_image_height(png, r->info);
    TRY(picture_alloc(s, width, height, out));
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_filler(png, 0xFF, PNG_FILLER_AFTER); /* four channels in any case */
    png_set_interlace_handling(png);
    png_read_update_info(png, r->info);
    if (png_get_rowbytes(png, r->info) != (size_t)width * 4) png_error(png, "rows of an unexpected length");
    const bool is_interlaced = png_get_interlace_type(png, r->info) != PNG_INTERLACE_NONE;
    const size_t row = (size_t)width * 4;
    if (!(r->rows = mem_alloc(row * (is_interlaced ? height : 1))))
        return error_set(s->e, ERR_MEMORY, "%s: no memory for %u x %u pixels", s->what, width, height);
    for (int pass = 0, passes = is_interlaced ? PNG_INTERLACE_ADAM7_PASSES : 1; pass < passes; pass++)
        for (uint32_t y = 0; y < height; y++) {
            uint8_t *to = r->rows + (is_interlaced ? row * y : 0);
            png_read_row(png, to, NULL);
            if (pass == passes - 1) picture_on_white(out->rgb + (size_t)y * (size_t)width * 3, to, width);
        }
    png_read_end(png, r->info);
    png_uint_32 n_exif = 0;
    png_bytep exif = NULL;
    if (png_get_eXIf_1(png, r->info, &n_exif, &exif)) *orientation = picture_exif_orientation(exif, n_exif);
    return 0;
}

/* Returns here when libpng fails. What changes until then belongs to the caller. */
static int read_guarded(struct reader *r, struct picture *out, int *orientation) {
    if (setjmp(png_jmpbuf(r->png))) return picture_fail(r->s, "PNG", r->why);
    return read_rows(r, out, orientation);
}

int picture_png(const struct picture_source *s, struct picture *out, int *orientation) {
    enum { CHUNK_MOST = 8 << 20 };
    struct reader r = {.s = s};
    int rc = ERR_MEMORY;
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    if (r.info) {
        png_set_read_fn(r.png, &r, on_read);
        png_set_user_limits(r.png, 0x7FFFFFFF, 0x7FFFFFFF); /* picture_alloc() has better messages */
        png_set_chunk_malloc_max(r.png, CHUNK_MOST);
        png_set_crc_action(r.png, PNG_CRC_ERROR_QUIT, PNG_CRC_WARN_DISCARD);
        rc = read_guarded(&r, out, orientation);
    } else error_set(s->e, ERR_MEMORY, "%s: no memory", s->what);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    mem_free(r.rows);
    return rc;
}
