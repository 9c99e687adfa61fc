#pragma once
/* Base64 as in RFC 4648, section 4. */
#include <stddef.h>

struct buf;
/* Appends n bytes as base64, padded. Failures are b->failed's. */
void base64_put(struct buf *b, const void *data, size_t n);
/* Appends the bytes of a base64 text; blanks and line ends in it are skipped, padding may be absent. Returns 0,
 * ERR_RUNTIME for another character, or ERR_MEMORY. The alphabet of section 5, for URLs, is read too. */
int base64_decode(const char *s, size_t n, struct buf *out);
