#pragma once
/* FP16 for the emulation: the few names that gpu/ uses. */
#include <math.h>
#include <stdint.h>
#include <string.h>

struct __half {
    uint16_t bits;
};
static inline float __half2float(__half h) {
    int e = h.bits >> 10 & 31, m = h.bits & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
    return h.bits & 0x8000 ? -v : v;
}
