#include "base/dynlib.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static bool has_all(void *so, const struct dynlib_symbol *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(so, calls[i].name);
        if (!f) return false;
        memcpy(calls[i].to, &f, sizeof f);
    }
    return true;
}

const char *dynlib_load(const char *const *names, const struct dynlib_symbol *calls, size_t n) {
    for (; *names; names++) {
        void *so = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (!so) continue;
        if (has_all(so, calls, n)) return *names;
        dlclose(so);
    }
    return NULL;
}
