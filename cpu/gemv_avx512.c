#include "cpu/simd_avx512.h"

#include "cpu/gemv_inner.h"
