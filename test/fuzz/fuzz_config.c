/* config.json. What passes must satisfy the assumptions of the layers. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "engine/layer/block.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/config_parse.h"
#include "engine/model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena a = {.limit = 64u << 20};
    struct json root;
    struct error e = {0};
    static struct config c;
    int rc = json_parse(&a, (const char *)data, size, JSON_PYTHON, "f", &root, &e);
    if (!rc && !(rc = config_parse(&c, &root, "f", false, &e))) {
        if (c.n_layers < 1 || c.n_layers > CONFIG_MAX_LAYERS || c.hidden < 1 || c.n_heads < 1 || c.head_dim < 1)
            abort();
        if (c.n_heads % c.n_kv_heads || c.rope.dim < 2 || c.rope.dim % 2 || c.topk > c.n_experts) abort();
        if (c.rope.dim <= 4096) {
            float f[2048];
            rope_frequencies(&c.rope, f);
        }
        block_expands_mla(&c, 0, 100);
        kv_token_bytes(&c, DT_BF16);
    } else if (rc != e.code || !e.text[0]) abort();
    arena_free(&a);
    return 0;
}
