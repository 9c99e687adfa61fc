#pragma once
/* FP16 for the emulation: the few names that gpu/ uses. */
#include <math.h>
#include <stdint.h>
#include <string.h>

struct __half {
    uint16_t bits;
};
static inline float __half2float(__half h) {
    const uint32_t mag = h.bits & 0x7fff, u = mag << 13; /* 2^112 corrects the bias */
    float v;
    memcpy(&v, &u, sizeof v);
    v = mag > 0x7c00 ? NAN : mag == 0x7c00 ? INFINITY : v * 0x1p112f;
    return h.bits & 0x8000 ? -v : v;
}
