#pragma once
/* Which routed experts devices keep for a checkpoint, as hearth --tune has measured it: a small file per checkpoint,
 * for one machine and its devices. The file is untrusted: one that cannot be read counts as missing. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct tuned {
    char choice[32];  /* as --expert-cache */
    char why[160];    /* what was measured */
    bool is_of_other; /* measured on another machine, or with other devices: choice does not count */
};
/* machine: a line that differs between machines. False: there is no file in dir. */
bool tuned_read(const char *dir, uint64_t fingerprint, const char *machine, struct tuned *out);
/* ERR_RUNTIME, ERR_MEMORY */
int tuned_write(const char *dir, uint64_t fingerprint, const char *machine, const char *choice, const char *why,
                struct error *e);
