/* The header of a GGUF file, and the config made from its metadata. Whatever the bytes, tensors must be inside the
 * file, and the config must satisfy the assumptions of the layers. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf_file.h"
#include "engine/model/config_parse.h"
#include "engine/model/gguf_config.h"

/* Strings are inside the file, or hearth's own, which end where they say. */
static void look(const struct json *j, const uint8_t *data, size_t size) {
    const uint8_t *s = (const uint8_t *)j->string;
    if (j->type == JSON_STRING && j->n &&
        (s < data || s >= data + size ? strlen(j->string) != j->n : s + j->n > data + size))
        abort();
    for (uint32_t i = 0; i < (j->type == JSON_ARRAY ? j->n : j->type == JSON_OBJECT ? 2 * j->n : 0); i++)
        look(&j->items[i], data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena a = {.limit = 256u << 20};
    struct error e = {0};
    struct gguf g;
    static struct config c;
    struct json root;
    int rc = gguf_parse(&g, &a, data, size, "f", &e);
    if (!rc) {
        look(&g.meta, data, size);
        for (size_t i = 0; i < g.n_tensors; i++) {
            const struct gguf_tensor *t = &g.tensors[i];
            uint64_t n = 1;
            for (int d = 0; d < t->ndim; d++) n *= (uint64_t)t->shape[d];
            if (t->offset > size || t->size > size - t->offset || !t->name[0] || !n ||
                t->size != dtype_bytes(t->dtype, n))
                abort();
        }
        static const float factors[64] = {1, 1.5f, 8, 0, -1, 1e30f};
        struct gguf_factors some = {size & 64 ? factors : NULL, (uint32_t)(size % 64)};
        struct gguf_facts facts = {.vocab = g.n_tensors ? g.tensors[0].shape[0] : 1,
                                   .router_bias = size & 1,
                                   .split_kv_b = size & 2,
                                   .qkv_bias = size & 4,
                                   .gate_up = size & 8,
                                   .qkv = size & 16,
                                   .freqs = size & 32 ? some : (struct gguf_factors){0},
                                   .short_factors = size & 32 ? (struct gguf_factors){0} : some,
                                   .long_factors = some};
        facts.table_rows = (int64_t)(size % 1000);
        for (int i = 0; i < CONFIG_MAX_LAYERS; i++)
            facts.layer[i] = data[(size_t)i % size], facts.gate_rows[i] = data[(size_t)i % size] % 8;
        if (!(rc = gguf_config(&a, &g.meta, &facts, "f", &root, &e)) &&
            !(rc = config_parse(&c, &root, "f", false, &e))) {
            if (c.n_layers < 1 || c.hidden < 1 || c.n_heads < 1 || c.head_dim < 1 || c.n_heads % c.n_kv_heads ||
                c.topk > c.n_experts)
                abort();
            if (c.rope.dim < 2 || c.rope.dim % 2) abort();
            rc = gguf_names(&c, &a, &g.meta, &facts, &e);
        }
    }
    if (rc && (rc != e.code || !e.text[0])) abort();
    arena_free(&a);
    return 0;
}
