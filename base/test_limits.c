#include "base/test_limits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic size_t lowered[TEST_LIMITS];

void test_limits_set(enum test_limit which, size_t size) { atomic_store(&lowered[which], size); }

size_t test_limits_get(enum test_limit which, size_t ordinary) {
    size_t size = atomic_load_explicit(&lowered[which], memory_order_relaxed);
    return size ? size : ordinary;
}
