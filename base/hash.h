#pragma once
/* 64-bit hash of bytes (XXH3), for tables and checksums; not cryptographic. */
#include <stddef.h>
#include <stdint.h>
uint64_t hash64(const void *data, size_t size, uint64_t seed);
