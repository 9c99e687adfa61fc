/* The header of a KV file: any bytes are either a file whose tokens and checksums are in range, or an error that names
 * the file. An input that begins with "seal" is extended to the size it states and gets the right checksum, so that the
 * code after those checks is reached. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv_file.h"

static volatile uint64_t read_sum; /* so that the reads stay in the program */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error e = {0};
    bool seal = size > 4 && !memcmp(data, "seal", 4);
    if (seal) data += 4, size -= 4;
    size_t n = size, need = 0;
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    struct kv_file_head *h = (struct kv_file_head *)copy;
    uint64_t whole = n >= sizeof *h ? h->image_offset + h->image_bytes : n;
    int rc = kv_file_check(copy, n, whole, "fuzz", &need, &e);
    if (!rc && need && seal && need <= 1 << 24) {
        copy = realloc(copy, need), h = (struct kv_file_head *)copy;
        memset(copy + n, 0, need > n ? need - n : 0);
        n = need > n ? need : n;
        if (n >= h->image_offset) kv_file_seal(h);
        rc = kv_file_check(copy, n, whole, "fuzz", &need, &e);
        if (rc || need) abort();
    }
    if (rc && (!e.code || !strstr(e.text, "fuzz"))) abort();
    if (!rc && !need) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < h->to; i++) sum += (uint64_t)kv_file_tokens(h)[i];
        for (uint32_t i = 0; i < h->n_sums; i++) sum += kv_file_sums(h)[i];
        if ((const uint8_t *)(kv_file_sums(h) + h->n_sums) > copy + n) abort();
        read_sum = sum;
    }
    free(copy);
    return 0;
}
