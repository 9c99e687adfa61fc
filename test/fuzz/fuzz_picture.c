/* Image files: the decoders of PNG, JPEG and WebP behind their checks, and the resizing of what they give. Whatever the
 * bytes, a picture has the pixels that it says, and an error has a text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/vision/resample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct picture p, small;
    struct error e = {0};
    unsigned sum = 0;
    const int rc = picture_decode(data, size, "f", &p, &e);
    if (rc) {
        if (p.rgb || rc != e.code || !e.text[0]) abort();
        return 0;
    }
    if (p.width < 1 || p.height < 1 || (long long)p.width * p.height > PICTURE_MAX_PIXELS) abort();
    for (size_t i = 0; i < (size_t)p.width * (size_t)p.height * 3; i++) sum += p.rgb[i]; /* all of it was written */
    const struct resample_limits limits = {.factor = 32, .min_pixels = 1024, .max_pixels = 65536};
    int width = p.width, height = p.height;
    if (!resample_smart_size(&limits, &width, &height, &e)) {
        if (width % 32 || height % 32 || width < 32 || height < 32) abort();
        if (!resample_picture(&p, width, height, RESAMPLE_BICUBIC, &small, &e)) picture_free(&small);
    }
    picture_free(&p);
    return sum == 1 ? 0 : 0;
}
