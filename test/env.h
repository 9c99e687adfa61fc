#pragma once
/* Makes a test program obey HEARTH_FAULT and HEARTH_LIMITS (base/test_env.h), as the program itself does. meson.build
 * sets limits for all tests. */
#include <stdio.h>
#include <stdlib.h>

#include "base/test_env.h"

__attribute__((constructor)) static void read_test_env(void) {
    const char *invalid = test_env_read();
    if (invalid) fprintf(stderr, "%s is invalid\n", invalid), exit(2);
}
