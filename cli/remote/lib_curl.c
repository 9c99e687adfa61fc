#include "cli/remote/lib_curl.h"

#include <stdbool.h>

#include "base/dynlib.h"

struct curl_calls curl;

int lib_curl(struct error *e) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    static bool begun;
#define CALL(f) {"curl_" #f, &curl.f},
    const struct dynlib_symbol calls[] = {CURL_CALLS(CALL)};
    if (begun) return 0;
    if (!dynlib_load(names, calls, sizeof calls / sizeof *calls))
        return error_set(e, ERR_RUNTIME,
                         "a remote model needs %s, which was not found; install libcurl4 (apt-get install libcurl4)",
                         names[0]);
    if (curl.global_init(CURL_GLOBAL_DEFAULT)) return error_set(e, ERR_RUNTIME, "%s failed to initialize", names[0]);
    begun = true;
    return 0;
}
