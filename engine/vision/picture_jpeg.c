/* JPEG, by libjpeg-turbo: grey, YCbCr, CMYK and YCCK, baseline and progressive. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include "base/mem.h"
#include "engine/vision/picture_formats.h"

struct reader {
    struct jpeg_error_mgr errors; /* first: the library knows the reader by its address */
    struct jpeg_decompress_struct c;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    uint8_t *row; /* [width, 4] */
};

_Noreturn static void on_error(j_common_ptr c) {
    struct reader *r = (struct reader *)c->err;
    c->err->format_message(c, r->why);
    longjmp(r->back, 1);
}
/* A warning says that data are missing or wrong: what is decoded from there on is not the picture. */
static void on_message(j_common_ptr c, int level) {
    if (level < 0) on_error(c);
}
/* A small file may have thousands of scans, each of which costs a pass over all coefficients. */
static void on_progress(j_common_ptr c) {
    enum { SCANS_MOST = 500 };
    struct reader *r = (struct reader *)c->err;
    if (c->is_decompressor && ((j_decompress_ptr)c)->input_scan_number > SCANS_MOST) {
        snprintf(r->why, sizeof r->why, "more than %d scans", SCANS_MOST);
        longjmp(r->back, 1);
    }
}

/* Adobe's CMYK is stored inverted, which Pillow takes for granted. Source: Pillow, Convert.c. */
static void convert_cmyk(uint8_t *rgb, const uint8_t *row, int width) {
    for (int x = 0; x < width; x++, rgb += 3, row += 4)
        for (int k = 0; k < 3; k++) {
            const uint32_t product = (uint32_t)(255 - row[k]) * row[3] + 128, covered = ((product >> 8) + product) >> 8;
            rgb[k] = (uint8_t)(row[3] > covered ? row[3] - covered : 0);
        }
}

static int read_rows(struct reader *r, const struct picture_source *s, struct picture *out, int *orientation) {
    struct jpeg_decompress_struct *c = &r->c;
    jpeg_mem_src(c, s->data, (unsigned long)s->n);
    jpeg_save_markers(c, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(c, TRUE);
    TRY(picture_alloc(s, c->image_width, c->image_height, out));
    const bool is_cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    c->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(c);
    if (!(r->row = mem_alloc((size_t)c->output_width * 4)))
        return error_set(s->e, ERR_MEMORY, "%s: no memory for its rows", s->what);
    while (c->output_scanline < c->output_height) {
        uint8_t *to = out->rgb + (size_t)c->output_scanline * (size_t)c->output_width * 3,
                *into = is_cmyk ? r->row : to;
        jpeg_read_scanlines(c, &into, 1);
        if (is_cmyk) convert_cmyk(to, r->row, (int)c->output_width);
    }
    for (const struct jpeg_marker_struct *m = c->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 && !memcmp(m->data, "Exif\0\0", 6))
            *orientation = picture_exif_orientation(m->data, m->data_length);
    jpeg_finish_decompress(c);
    return 0;
}

/* Returns here when libjpeg fails. What changes until then belongs to the caller. */
static int read_guarded(struct reader *r, const struct picture_source *s, struct picture *out, int *orientation) {
    if (setjmp(r->back)) return picture_fail(s, "JPEG", r->why);
    jpeg_create_decompress(&r->c);
    r->c.progress = &r->progress;
    return read_rows(r, s, out, orientation);
}

int picture_jpeg(const struct picture_source *s, struct picture *out, int *orientation) {
    struct reader r = {.progress = {.progress_monitor = on_progress}};
    r.c.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = on_error;
    r.errors.emit_message = on_message;
    int rc = read_guarded(&r, s, out, orientation);
    jpeg_destroy_decompress(&r.c);
    mem_free(r.row);
    return rc;
}
