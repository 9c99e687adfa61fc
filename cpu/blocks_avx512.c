#include "cpu/simd_avx512.h"

#ifndef ISA
#define ISA avx512
#endif
#include "cpu/blocks_inner.h"
