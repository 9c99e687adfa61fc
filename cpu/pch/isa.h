/* What kernels of one ISA include from the system, precompiled once for all of them: parsing <immintrin.h> takes a third of their compile time. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
