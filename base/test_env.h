#pragma once
/* Environment variables for tests of the whole binary. Only builds with -Dtesting read them, because HEARTH_FAULT can
 * kill the process. */

/* Reads HEARTH_FAULT, e.g. "write:3", "alloc:100+" (forever), "rename:1!" (kill), see fault.h; and HEARTH_LIMITS, e.g.
 * "expand=4096,rows=48", see test_limits.h. Returns NULL, or the name of a variable with an invalid value. */
const char *test_env_read(void);
