/* The output filter: no control sequence gets through, and the result does not depend on how the text is split. The
 * first byte is the length of the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/sanitize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sanitizer whole = {0}, cut = {0};
    struct buf a = {0}, b = {0};
    if (size < 1) return 0;
    size_t step = 1 + data[0] % 7;
    data++;
    size--;
    sanitize_add(&whole, (const char *)data, size, &a);
    sanitize_flush(&whole, &a);
    for (size_t i = 0; i < size; i += step)
        sanitize_add(&cut, (const char *)data + i, i + step < size ? step : size - i, &b);
    sanitize_flush(&cut, &b);
    if (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len))) abort();
    for (size_t i = 0; i < a.len; i++) {
        unsigned char c = (unsigned char)a.data[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) abort();
        if (c == 0xC2 && (unsigned char)a.data[i + 1] < 0xA0) abort();
    }
    buf_free(&a);
    buf_free(&b);
    return 0;
}
