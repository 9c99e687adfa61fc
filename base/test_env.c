#include "base/test_env.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/test_limits.h"

static int read_fault(const char *s) {
    static const char *const names[FAULT_KINDS] = {"alloc", "open", "read", "write", "sync", "rename"};
    if (!s || !*s) return 0;
    for (int k = 0; k < FAULT_KINDS; k++) {
        size_t n = strlen(names[k]);
        if (strncmp(s, names[k], n) || s[n] != ':') continue;
        char *end;
        long nth = strtol(s + n + 1, &end, 10);
        if (nth < 1 || (*end && *end != '+' && *end != '!')) return -1;
        fault_set((enum fault_kind)k, nth, *end == '+', *end == '!');
        return 0;
    }
    return -1;
}

static int read_limits(const char *s) {
    static const char *const names[] = {"expand", "rows",   "keep",   "wait",  "read",  "pin",   "patience", "layers",
                                        "lag",    "lag_of", "stage",  "ahead", "parts", "spin",  "copy",     "chats",
                                        "slice",  "found",  "differ", "probe", "meter", "walks", "cards",    "start"};
    _Static_assert(sizeof names / sizeof *names == TEST_LIMITS, "each limit has a name");
    while (s && *s) {
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

const char *test_env_read(void) {
    if (read_fault(getenv("HEARTH_FAULT"))) return "HEARTH_FAULT";
    return read_limits(getenv("HEARTH_LIMITS")) ? "HEARTH_LIMITS" : NULL;
}
