#include "engine/model/kda.h"

#include "engine/model/config_common.h"

/* Sets the mixer of the layers that a list names. */
static void read_list(struct config_reader *r, struct config *c, const char *key, int first, enum mixer kind,
                      bool named[CONFIG_MAX_LAYERS]) {
    const struct json *list = config_get(r, key);
    if (!list || list->type != JSON_ARRAY) {
        config_fail(r, "'linear_attn_config.%s' is not a list of layers", key);
        return;
    }
    for (uint32_t i = 0; i < list->n && !r->rc; i++) {
        const int64_t layer = json_int(json_at(list, i), INT64_MIN);
        if (layer < first || layer >= first + c->n_layers || named[layer - first])
            config_fail(r, "'linear_attn_config.%s' names a layer twice or outside %d to %d", key, first,
                        first + c->n_layers - 1);
        else named[layer - first] = true, c->layer[layer - first].mixer = (uint8_t)kind;
    }
}

/* Reads a number that transformers 5 saves under a name of its own; a config may have both. Returns -1 if it has
 * neither. */
static int read_size(struct config_reader *r, struct config_reader *in, const char *key, const char *saved, int max) {
    const int n = config_has(in, key) ? config_int(in, key, 0, 1, max) : -1;
    if (!config_has(r, saved)) return n;
    const int again = config_int(r, saved, 0, 1, max);
    if (n > 0 && again != n) config_fail(in, "'linear_attn_config.%s' is %d, '%s' %d", key, n, saved, again);
    return again;
}

void kda_read_types(struct config_reader *r, struct config *c, bool is_known) {
    static const char *const kinds[] = {"full_attention", "linear_attention", NULL};
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    for (int i = 0; types && i < c->n_layers && !r->rc; i++) {
        const enum mixer kind = config_layer_choice(r, "layer_types", types, i, kinds) ? MIXER_KDA : MIXER_ATTENTION;
        if (is_known && kind != c->layer[i].mixer)
            config_fail(r, "'layer_types' of layer %d contradicts the other keys that choose its kind", i);
        c->layer[i].mixer = (uint8_t)kind;
    }
}

void kda_read_sizes(struct config_reader *r, struct config *c, struct config_reader *in) {
    c->kda.heads = read_size(r, in, "num_heads", "linear_num_heads", 1024);
    c->kda.dim = c->kda.rank = c->kda.gate_rank = read_size(r, in, "head_dim", "linear_head_dim", DELTA_MAX_K_DIM);
    if (c->kda.heads < 1 || c->kda.dim < 1)
        config_fail(in, "'linear_attn_config.%s' is missing", c->kda.heads < 1 ? "num_heads" : "head_dim");
    const int taps = read_size(r, in, "short_conv_kernel_size", "linear_conv_kernel_dim", 64);
    c->kda.taps = taps < 0 ? 4 : taps;
    if (taps == 1) config_fail(in, "'linear_attn_config.short_conv_kernel_size' is 1; hearth takes 2 to 64");
}

void kda_read_layers(struct config_reader *r, struct config *c, int first) {
    struct config_reader in;
    bool named[CONFIG_MAX_LAYERS] = {0};
    config_open(r, "linear_attn_config", &in);
    if (config_has(&in, "kda_layers") || !config_has(r, "layer_types"))
        read_list(&in, c, "kda_layers", first, MIXER_KDA, named);
    if (config_has(&in, "full_attn_layers")) {
        read_list(&in, c, "full_attn_layers", first, MIXER_ATTENTION, named);
        for (int i = 0; i < c->n_layers && !in.rc; i++)
            if (!named[i])
                config_fail(&in, "'linear_attn_config' names layer %d neither in kda_layers nor in full_attn_layers",
                            first + i);
    }
    kda_read_sizes(r, c, &in);
    c->kda.bound = (float)config_num(&in, "gate_lower_bound", 0, -100, 0);
    if (config_bool(&in, "use_full_rank_gate", false)) c->kda.gate_rank = 0;
    config_close(r, "linear_attn_config", &in);
}
