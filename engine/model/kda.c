#include "engine/model/kda.h"

/* Sets the mixer of the layers that a list names. */
static void read_list(struct config_reader *r, struct config *c, const char *key, int first, enum mixer kind, bool named[CONFIG_MAX_LAYERS]) {
    const struct json *list = config_get(r, key);
    if (!list || list->type != JSON_ARRAY) {
        config_fail(r, "'linear_attn_config.%s' is not a list of layers", key);
        return;
    }
    for (uint32_t i = 0; i < list->n && !r->rc; i++) {
        const int64_t layer = json_int(json_at(list, i), INT64_MIN);
        if (layer < first || layer >= first + c->n_layers || named[layer - first])
            config_fail(r, "'linear_attn_config.%s' names a layer twice or outside %d to %d", key, first, first + c->n_layers - 1);
        else named[layer - first] = true, c->layer[layer - first].mixer = (uint8_t)kind;
    }
}

void kda_read_layers(struct config_reader *r, struct config *c, int first) {
    struct config_reader in;
    bool named[CONFIG_MAX_LAYERS] = {0};
    config_open(r, "linear_attn_config", &in);
    read_list(&in, c, "kda_layers", first, MIXER_KDA, named);
    if (config_has(&in, "full_attn_layers")) {
        read_list(&in, c, "full_attn_layers", first, MIXER_ATTENTION, named);
        for (int i = 0; i < c->n_layers && !in.rc; i++)
            if (!named[i]) config_fail(&in, "'linear_attn_config' names layer %d neither in kda_layers nor in full_attn_layers", first + i);
    }
    c->kda.heads = config_int(&in, "num_heads", 0, 1, 1024);
    c->kda.dim = c->kda.rank = config_int(&in, "head_dim", 0, 1, DELTA_MAX_K_DIM);
    c->kda.taps = config_int(&in, "short_conv_kernel_size", 4, 2, 64);
    c->kda.bound = (float)config_num(&in, "gate_lower_bound", 0, -100, 0);
    config_close(r, "linear_attn_config", &in);
}
