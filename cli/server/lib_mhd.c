#include "cli/server/lib_mhd.h"

#include "base/dynlib.h"

struct mhd_calls mhd;

int lib_mhd(struct error *e) {
    static const char *const names[] = {"libmicrohttpd.so.12", NULL};
#define CALL(f) {"MHD_" #f, &mhd.f},
    const struct dynlib_symbol calls[] = {MHD_CALLS(CALL)};
    if (dynlib_load(names, calls, sizeof calls / sizeof *calls)) return 0;
    return error_set(e, ERR_RUNTIME,
                     "--serve needs %s, which was not found; install libmicrohttpd12 (apt-get install libmicrohttpd12)",
                     names[0]);
}
