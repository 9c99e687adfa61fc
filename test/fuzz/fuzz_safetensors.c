/* The header of a safetensors file. Whatever the bytes, tensors must be inside the file. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/weights/safetensors.h"

struct file {
    const uint8_t *data;
    size_t size;
};
static int on_tensor(void *ctx, const struct tensor *t) {
    const struct file *f = ctx;
    if (t->data < f->data + 8 || t->size > f->size || t->data > f->data + f->size - t->size || !t->name[0]) abort();
    uint64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= (uint64_t)t->shape[i];
    if (dtype_bytes(t->dtype, n) != t->size) abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error e = {0};
    struct file f = {data, size};
    bool is_mlx = false;
    int rc = safetensors_parse(data, size, "f", on_tensor, &f, &is_mlx, &e);
    if (rc && (rc != e.code || !e.text[0])) abort();
    return 0;
}
