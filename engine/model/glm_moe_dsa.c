/* GLM-5: DeepSeek-V3.2 with one expert group, where some layers reuse the key selection of the layer before. Reference: transformers, models/glm_moe_dsa. */
#include "engine/model/deepseek.h"

/* Reads which layers have their own indexer: a list of "full" and "shared", a string of F and S, or every `freq`th layer after a given one. */
static void read_index_sharing(struct config_reader *r, struct config *c) {
    const struct json *types = config_get(r, "indexer_types"), *pattern = config_get(r, "index_topk_pattern"), *list = types ? types : pattern;
    int freq = config_int(r, "index_topk_freq", 1, 0, CONFIG_MAX_LAYERS), offset = config_int(r, "index_skip_topk_offset", 2, 0, CONFIG_MAX_LAYERS);
    bool text = list && list->type == JSON_STRING;
    if (list && ((!text && list->type != JSON_ARRAY) || (int)list->n < c->n_layers)) {
        config_fail(r, "'%s' does not say which of %d layers choose", types ? "indexer_types" : "index_topk_pattern", c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        int behind = i - offset + 1 > 0 ? i - offset + 1 : 0;
        const struct json *one = text || !list ? NULL : json_at(list, (uint32_t)i);
        bool own = text ? list->string[i] == 'F' : list ? json_is(one, "full") : behind % (freq > 1 ? freq : 1) == 0;
        bool known = own || (text ? list->string[i] == 'S' : !list || json_is(one, "shared"));
        if (!known) config_fail(r, "layer %d neither chooses keys (full, F) nor takes over a choice (shared, S)", i);
        else if (!i && !own) config_fail(r, "the first layer is to take over a choice of keys, and there is none before it");
        c->layer[i].index = own ? INDEX_OWN : INDEX_PREVIOUS;
    }
}

static const struct deepseek_defaults defaults = {.scale = 2.5, .dense = 3, .norm = true, .groups = 1, .best = 1};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    deepseek_indexer(r, c, 32, true);
    if (!r->rc) read_index_sharing(r, c);
}

static const char *const types[] = {"glm_moe_dsa", NULL};
const struct arch arch_glm_moe_dsa = {
    .model_types = types, .title = "GLM-5", .norm_eps = 1e-5, .parse = parse, .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME, DEEPSEEK_INDEX_NAMES}};
