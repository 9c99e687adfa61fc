#pragma once
/* Resizes pictures bit for bit as Pillow does. Source: Pillow, Resample.c (8 bits per channel, two passes, coefficients
 * of 22 fraction bits). Pure. */
#include "engine/vision/picture.h"

enum resample_filter { RESAMPLE_BILINEAR, RESAMPLE_BICUBIC };
/* Sets *out to the picture in another size, with antialiasing. ERR_MEMORY. */
int resample_picture(const struct picture *p, int width, int height, enum resample_filter filter, struct picture *out,
                     struct error *e);

/* Chooses the size to which Qwen's processors bring a picture: both sides multiples of `factor`, min to max pixels, the
 * aspect ratio about as it was. Source: transformers, models/qwen2_vl, smart_resize(). ERR_USAGE: one side is more
 * than 200 times the other. */
struct resample_limits {
    int factor;
    double min_pixels, max_pixels;
    int frames;       /* pictures in time whose pixels the limits count; 0: one */
    bool grows_sides; /* a side below factor grows to it first (GLM-4.5V) */
    /* not 0: resample_padded_size() counts squares of `patch` pixels, at most so many, and along a side, instead */
    int most_patches, most_side, patch;
    bool keeps_ratio; /* resample_ratio_size() counts most_patches */
};
/* Chooses the largest size of at most most_patches squares whose sides have about the aspect ratio of the picture's and
 * are multiples of `factor`. Source: transformers, models/gemma4, get_aspect_ratio_preserving_size(). */
void resample_ratio_size(const struct resample_limits *l, int *width, int *height);
int resample_smart_size(const struct resample_limits *l, int *width, int *height, struct error *e);
/* Chooses the size to which Kimi K2.5's processor shrinks a picture, and that to which it pads it on the right and
 * below with black, whose sides are multiples of `factor`. Source: transformers, models/kimi_k25, navit_resize(). */
void resample_padded_size(const struct resample_limits *l, int *width, int *height, int *padded_width,
                          int *padded_height);
