/* System headers of the kernels of one ISA, precompiled once for all of them: parsing <immintrin.h> takes up to a third
 * of their compile time. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
