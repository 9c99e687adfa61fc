#include "engine/model/overrides.h"

#include <string.h>

/* The number of a layer, which may have leading zeros: "07"; or -1. */
static int64_t layer_number(const struct json *name) {
    int64_t n = 0;
    for (uint32_t i = 0; i < name->n; i++) {
        if (name->string[i] < '0' || name->string[i] > '9' || i >= 9) return -1;
        n = 10 * n + name->string[i] - '0';
    }
    return name->n ? n : -1;
}

void overrides_check(struct config_reader *r, const struct config *c, const char *const *keys) {
    const struct json *all = config_get(r, "per_layer_config");
    bool seen[CONFIG_MAX_LAYERS] = {0};
    if (all && all->type != JSON_OBJECT) config_fail(r, "'per_layer_config' is not an object");
    for (uint32_t i = 0; all && i < all->n && !r->rc; i++) {
        const struct json *name = &all->items[2 * i], *own = name + 1;
        const int64_t layer = layer_number(name);
        if (layer < 0 || layer >= c->n_layers || seen[layer] || own->type != JSON_OBJECT) {
            config_fail(r, "'per_layer_config.%.*s' is not an object of one of %d layers",
                        (int)(name->n < 40 ? name->n : 40), name->string, c->n_layers);
            return;
        }
        seen[layer] = true;
        for (uint32_t k = 0; k < own->n; k++) {
            const struct json *key = &own->items[2 * k];
            bool known = false;
            for (const char *const *o = keys; *o; o++) known |= json_is(key, *o);
            if (!known)
                config_fail(r, "'per_layer_config' of layer %d has '%.*s', unknown to hearth", (int)layer,
                            (int)(key->n < 80 ? key->n : 80), key->string);
        }
    }
}

int overrides_int(struct config_reader *r, const char *key, int layer, int all, int min, int max) {
    const struct json *layers = config_get(r, "per_layer_config");
    for (uint32_t i = 0; layers && layers->type == JSON_OBJECT && i < layers->n; i++) {
        const struct json *name = &layers->items[2 * i],
                          *v = layer_number(name) == layer ? json_get(name + 1, key) : NULL;
        if (!v) continue;
        const int64_t n = json_int(v, INT64_MIN);
        if (n >= min && n <= max) return (int)n;
        config_fail(r, "'per_layer_config' of layer %d: '%s' is not a number from %d to %d", layer, key, min, max);
        break;
    }
    return all;
}
