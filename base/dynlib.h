#pragma once
/* Shared libraries that only some commands need, loaded by name on first use to keep start-up fast. */
#include <stddef.h>

struct dynlib_symbol { /* a function of a library and the pointer that receives its address */
    const char *name;
    void *to; /* address of a function pointer */
};
/* Loads the first of the names (NULL-terminated) that has all n functions, sets the pointers, and keeps the library for
 * the life of the process. Returns its name. NULL: not found, the pointers are invalid. Do not call concurrently with
 * the same pointers. */
const char *dynlib_load(const char *const *names, const struct dynlib_symbol *calls, size_t n);
