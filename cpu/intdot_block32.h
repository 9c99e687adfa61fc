#pragma once
/* Properties of the intdot_block32_* and intdot_block16_* formats: blocks of 32 columns in 16 bytes, or of 16 in eight,
 * on any ISA. */
#include "cpu/formats.h"

#define DTYPE FORMAT_DTYPE(FORMAT)
#ifdef ZEROS /* built with FORMAT i4, for DT_F32Z scales of 128 columns */
enum { HAS_ZEROS = 1 };
#else
enum { HAS_ZEROS = 0 };
#endif
enum {
    FP4 = DTYPE == DT_E2M1 || DTYPE == DT_MXFP4 || DTYPE == DT_NVFP4,
    IQ4 = DTYPE == DT_IQ4_NL || DTYPE == DT_IQ4_XS,
    /* a byte's nibbles are two neighbouring columns, low first; scales are stored separately */
    NEIGHBOURS = DTYPE == DT_E2M1 || DTYPE == DT_I4,
    FIVE = DTYPE == DT_Q5_0 || DTYPE == DT_Q5_1, /* fifth bits in four bytes before the nibbles */
    HAS_MIN =
        /* a minimum beside the scale, or minus the zero point times the scale; codes are not negative */
    DTYPE == DT_Q4_1 || DTYPE == DT_Q5_1 || HAS_ZEROS,
    BIAS = FP4       ? 12 /* decoded codes are at least -BIAS */
           : IQ4     ? 127
           : HAS_MIN ? 0
           : FIVE    ? 16
                     : 8,
};
