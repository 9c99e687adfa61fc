#include "cli/lib_mhd.h"

#include "engine/base/library.h"

struct mhd_calls mhd;

int lib_mhd(struct error *e) {
    static const char *const names[] = {"libmicrohttpd.so.12", NULL};
#define CALL(f) {"MHD_" #f, &mhd.f},
    const struct library_call calls[] = {MHD_CALLS(CALL)};
    if (library_load(names, calls, sizeof calls / sizeof *calls)) return 0;
    return error_set(e, ERR_RUNTIME, "--serve needs %s, which was not found; install libmicrohttpd12 (apt-get install libmicrohttpd12)", names[0]);
}
