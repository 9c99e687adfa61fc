#pragma once
/* SHA-256, and the SHA-1 by which git names a file, from the cryptographic library that libcurl uses: libcrypto or
 * GnuTLS, loaded on first use. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { DIGEST_HEX = 65 }; /* most bytes of a digest as text, with its NUL */

/* ERR_RUNTIME: neither library is installed. Call before the other functions. */
int digest_load(struct error *e);
/* Begins a digest. git_size < 0: SHA-256; otherwise the name that git gives a file of that size. NULL: no memory. */
void *digest_begin(int64_t git_size);
int digest_add(void *digest, const void *data, size_t n); /* 0, or ERR_RUNTIME when the library fails */
/* Writes the digest in hexadecimal and frees it. out NULL: only frees it; a digest of NULL is valid then. */
int digest_end(void *digest, char out[DIGEST_HEX]);
