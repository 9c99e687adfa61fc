#pragma once
/* The formats of whole_lane_*.c: what blocks of 32 columns in 16 bytes are, whatever multiplies them. */
#include "cpu/formats.h"

#define DTYPE FORMAT_DTYPE(FORMAT)
enum {
    FP4 = DTYPE == DT_E2M1 || DTYPE == DT_MXFP4,
    IQ4 = DTYPE == DT_IQ4_NL || DTYPE == DT_IQ4_XS,
    BIAS = FP4   ? 12 /* what codes stand for is no less than -BIAS */
           : IQ4 ? 127
                 : 8,
};
