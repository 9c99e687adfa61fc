/* model.safetensors.index.json. No file name may lead out of the directory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/weights/safetensors.h"

static int on_pair(void *ctx, const char *tensor, size_t nt, const char *file, size_t nf) {
    if (!nf || file[0] == '.' || memchr(file, '/', nf) || memchr(file, 0, nf)) abort();
    return 0;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error e = {0};
    int rc = safetensors_index((const char *)data, size, "f", on_pair, NULL, &e);
    if (rc && (rc != e.code || !e.text[0])) abort();
    return 0;
}
