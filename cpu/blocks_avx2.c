#include "cpu/simd_avx2.h"

#ifndef ISA
#define ISA avx2
#endif
#include "cpu/blocks_inner.h"
