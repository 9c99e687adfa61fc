#include "engine/vision/resample.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { FRACTION_BITS = 32 - 8 - 2 };

/* The weights of one direction: pixel i of the result is the sum of n[i] pixels from first[i] on. */
struct taps {
    int *first, *n;
    int32_t *weight; /* [size, width] */
    int width;
};

static double bilinear(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }
static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void taps_free(struct taps *t) {
    mem_free(t->first);
    mem_free(t->n);
    mem_free(t->weight);
}

static int taps_make(struct taps *t, int from, int to, enum resample_filter filter) {
    const double scale = (double)from / to, stretch = scale < 1 ? 1 : scale,
                 reach = (filter == RESAMPLE_BICUBIC ? 2 : 1) * stretch;
    t->width = (int)ceil(reach) * 2 + 1;
    t->first = mem_alloc((size_t)to * sizeof *t->first);
    t->n = mem_alloc((size_t)to * sizeof *t->n);
    t->weight = mem_calloc((size_t)to * (size_t)t->width, sizeof *t->weight);
    double *w = mem_alloc((size_t)t->width * sizeof *w);
    if (!t->first || !t->n || !t->weight || !w) {
        mem_free(w);
        return ERR_MEMORY;
    }
    for (int i = 0; i < to; i++) {
        const double center = (i + 0.5) * scale, inverse = 1 / stretch;
        int begin = (int)(center - reach + 0.5), end = (int)(center + reach + 0.5);
        double sum = 0;
        if (begin < 0) begin = 0;
        if (end > from) end = from;
        for (int k = 0; k < end - begin; k++) {
            const double x = (k + begin - center + 0.5) * inverse;
            sum += w[k] = filter == RESAMPLE_BICUBIC ? bicubic(x) : bilinear(x);
        }
        for (int k = 0; k < end - begin; k++) {
            const double v = (sum == 0 ? w[k] : w[k] / sum) * (1 << FRACTION_BITS);
            t->weight[(size_t)i * (size_t)t->width + (size_t)k] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
        }
        t->first[i] = begin, t->n[i] = end - begin;
    }
    mem_free(w);
    return 0;
}

/* Sums n pixels that are `step` bytes apart. */
static void sum_pixel(uint8_t *out, const uint8_t *in, size_t step, const int32_t *w, int n) {
    int32_t sum[3] = {1 << (FRACTION_BITS - 1), 1 << (FRACTION_BITS - 1), 1 << (FRACTION_BITS - 1)};
    for (int k = 0; k < n; k++, in += step)
        for (int c = 0; c < 3; c++) sum[c] += in[c] * w[k];
    for (int c = 0; c < 3; c++) {
        const int32_t v = sum[c] >> FRACTION_BITS;
        out[c] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

static void resample_rows(const struct picture *p, const struct taps *t, struct picture *out) {
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++)
            sum_pixel(out->rgb + ((size_t)y * (size_t)out->width + (size_t)x) * 3,
                      p->rgb + ((size_t)y * (size_t)p->width + (size_t)t->first[x]) * 3, 3,
                      t->weight + (size_t)x * (size_t)t->width, t->n[x]);
}
static void resample_columns(const struct picture *p, const struct taps *t, struct picture *out) {
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++)
            sum_pixel(out->rgb + ((size_t)y * (size_t)out->width + (size_t)x) * 3,
                      p->rgb + ((size_t)t->first[y] * (size_t)p->width + (size_t)x) * 3, (size_t)p->width * 3,
                      t->weight + (size_t)y * (size_t)t->width, t->n[y]);
}

/* Pillow 13 resizes columns first where the height shrinks by more than twice what the width does. Found by experiment:
 * the intermediate picture is rounded to 8 bits, so that the order shows. */
static bool columns_come_first(const struct picture *p, int width, int height) {
    return height < p->height && p->height - height > 2 * (p->width - width);
}

/* Resizes one direction into `to`, which has memory for it. */
static void resample_pass(const struct picture *from, const struct taps *t, bool is_columns, struct picture *to) {
    if (from->width == to->width && from->height == to->height)
        memcpy(to->rgb, from->rgb, (size_t)to->width * (size_t)to->height * 3);
    else if (is_columns) resample_columns(from, t, to);
    else resample_rows(from, t, to);
}

int resample_picture(const struct picture *p, int width, int height, enum resample_filter filter, struct picture *out,
                     struct error *e) {
    struct taps across = {0}, down = {0};
    const bool columns_first = columns_come_first(p, width, height);
    struct picture between = {.width = columns_first ? p->width : width, .height = columns_first ? height : p->height};
    between.rgb = mem_alloc((size_t)between.width * (size_t)between.height * 3);
    *out = (struct picture){.rgb = mem_alloc((size_t)width * (size_t)height * 3), .width = width, .height = height};
    int rc = between.rgb && out->rgb ? taps_make(&across, p->width, width, filter) : ERR_MEMORY;
    if (!rc) rc = taps_make(&down, p->height, height, filter);
    if (!rc) {
        resample_pass(p, columns_first ? &down : &across, columns_first, &between);
        resample_pass(&between, columns_first ? &across : &down, !columns_first, out);
    }
    taps_free(&across);
    taps_free(&down);
    picture_free(&between);
    if (!rc) return 0;
    picture_free(out);
    return error_set(e, ERR_MEMORY, "no memory to resize an image to %d x %d pixels", width, height);
}

int resample_smart_size(const struct resample_limits *l, int *width, int *height, struct error *e) {
    enum { RATIO_MOST = 200 };
    const double f = l->factor, grow_by = fmax(f / *width, f / *height), frames = l->frames ? l->frames : 1,
                 most = l->max_pixels / frames, least = l->min_pixels / frames;
    const bool grows = l->grows_sides && grow_by > 1;
    const double w = grows ? floor(*width * grow_by) : *width, h = grows ? floor(*height * grow_by) : *height;
    if (fmax(w, h) / fmin(w, h) > RATIO_MOST)
        return error_set(e, ERR_USAGE,
                         "%d x %d pixels: one side is more than %d times the other, which the model cannot read",
                         *width, *height, RATIO_MOST);
    double to_w = rint(w / f) * f, to_h = rint(h / f) * f; /* halves go to the even number, as in Python */
    if (to_w * to_h > most) {
        const double shrink = sqrt(h * w / most);
        to_h = fmax(f, floor(h / shrink / f) * f), to_w = fmax(f, floor(w / shrink / f) * f);
    } else if (to_w * to_h < least) {
        const double grow = sqrt(least / (h * w));
        to_h = ceil(h * grow / f) * f, to_w = ceil(w * grow / f) * f;
    }
    *width = (int)to_w, *height = (int)to_h;
    return 0;
}

void resample_ratio_size(const struct resample_limits *l, int *width, int *height) {
    const double most = (double)l->most_patches * l->patch * l->patch, by = sqrt(most / ((double)*width * *height)),
                 f = l->factor, longest = floor(most / f / f) * f;
    double w = floor(by * *width / f) * f, h = floor(by * *height / f) * f;
    if (h < f) h = f, w = fmin(floor((double)*width / *height) * f, longest);
    else if (w < f) w = f, h = fmin(floor((double)*height / *width) * f, longest);
    *width = (int)w, *height = (int)h;
}

static int shrunk(int side, double scale, int most) {
    const double to = floor(side * scale);
    return to < 1 ? 1 : to > most ? most : (int)to;
}
static int padded(int side, int factor) { return (side + factor - 1) / factor * factor; }
void resample_padded_size(const struct resample_limits *l, int *width, int *height, int *padded_width,
                          int *padded_height) {
    const int most = l->most_side * l->patch;
    const double patches = fmax(1, *height / l->patch) * fmax(1, *width / l->patch),
                 scale = fmin(fmin(1, sqrt(l->most_patches / patches)),
                              fmin((double)most / *height, (double)most / *width));
    *width = shrunk(*width, scale, most), *height = shrunk(*height, scale, most);
    *padded_width = padded(*width, l->factor), *padded_height = padded(*height, l->factor);
}
