#pragma once
/* Shared libraries that only some commands need, loaded by name when they do: a program that starts many times a minute does not wait for them. */
#include <stddef.h>

struct library_call { /* a function of a library, and where it is to be known */
    const char *name;
    void *to; /* the address of a pointer to a function */
};
/* The first of the names (ended by NULL) under which there is a library with all n functions; it then stays for the life of the process, and
 * the pointers are set. NULL: there is none, and the pointers are not to be used. Not for several threads at once with the same pointers. */
const char *library_load(const char *const *names, const struct library_call *calls, size_t n);
