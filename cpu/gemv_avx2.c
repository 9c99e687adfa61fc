#include "cpu/simd_avx2.h"

#include "cpu/gemv_inner.h"
