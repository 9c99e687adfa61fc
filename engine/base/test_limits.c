#include "engine/base/test_limits.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic size_t lowered[TEST_LIMITS];

void test_limits_set(enum test_limit which, size_t size) { atomic_store(&lowered[which], size); }

size_t test_limits_get(enum test_limit which, size_t ordinary) {
    size_t size = atomic_load_explicit(&lowered[which], memory_order_relaxed);
    return size ? size : ordinary;
}

int test_limits_from_env(void) {
    static const char *const names[TEST_LIMITS] = {"expand", "rows", "keep", "wait", "read", "pin", "patience", "layers", "lag", "parts"};
    for (const char *s = getenv("HEARTH_LIMITS"); s && *s;) {
        int which = 0;
        size_t n = strcspn(s, "=");
        while (which < TEST_LIMITS && (strlen(names[which]) != n || strncmp(s, names[which], n))) which++;
        if (which == TEST_LIMITS || s[n] != '=') return -1;
        char *end;
        long size = strtol(s + n + 1, &end, 10);
        if (size < 1 || size > 1 << 30 || (*end && (*end != ',' || !end[1]))) return -1;
        test_limits_set((enum test_limit)which, (size_t)size);
        s = end + (*end == ',');
    }
    return 0;
}
