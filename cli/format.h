#pragma once
/* Formats amounts for people. All return buf. */
#include <stddef.h>
#include <stdint.h>

const char *format_bytes(uint64_t n, char *buf, size_t cap); /* "32.1 GB" */
