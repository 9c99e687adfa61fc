/* DeepSeek-V3.2: V3 with attention over the keys that a lightning indexer selects. Reference: the vendor's
 * inference/model.py and transformers, models/deepseek_v32. Both the vendor's rounding to FP8 and its Hadamard rotation
 * are omitted; the scores are the same without. */
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

void deepseek_indexer(struct config_reader *r, struct config *c, int heads, bool interleaved) {
    static const char *const attentions[] = {"indexed_attention", "deepseek_sparse_attention", NULL};
    c->attn = ATTN_DSA;
    c->index_heads = config_int(r, "index_n_heads", heads, 1, 1024);
    c->index_dim = config_int(r, "index_head_dim", 128, 2, 1024);
    c->index_topk = config_int(r, "index_topk", 2048, 1, 1 << 20);
    c->index_interleaved = config_bool(r, "indexer_rope_interleave", interleaved);
    if (!c->q_lora) config_fail(r, "'q_lora_rank' is missing: the indexer's queries are made from it");
    if (!r->rc && c->rope.dim > c->index_dim)
        config_fail(r, "'index_head_dim' is %d, of which %d are to be rotated", c->index_dim, c->rope.dim);
    const struct json *attention = config_layer_list(r, c, "layer_types", true);
    config_read_mlp_types(r, c);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        if (attention) config_layer_choice(r, "layer_types", attention, i, attentions);
        c->layer[i].index = INDEX_OWN;
    }
}

void deepseek_index_sharing(struct config_reader *r, struct config *c, int every) {
    const struct json *types = config_get(r, "indexer_types"), *pattern = config_get(r, "index_topk_pattern"),
                      *list = types ? types : pattern;
    int freq = config_int(r, "index_topk_freq", every, 0, CONFIG_MAX_LAYERS),
        offset = config_int(r, "index_skip_topk_offset", 2, 0, CONFIG_MAX_LAYERS);
    bool is_text = list && list->type == JSON_STRING;
    if (list && ((!is_text && list->type != JSON_ARRAY) || (int)list->n < c->n_layers)) {
        config_fail(r, "'%s' does not say which of %d layers choose", types ? "indexer_types" : "index_topk_pattern",
                    c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        int after = i - offset + 1 > 0 ? i - offset + 1 : 0; /* layers after the first ones, which all select */
        const struct json *one = is_text || !list ? NULL : json_at(list, (uint32_t)i);
        bool selects = after % (freq > 1 ? freq : 1) == 0;
        if (is_text) selects = list->string[i] == 'F';
        else if (list) selects = json_is(one, "full");
        bool known = selects || (is_text ? list->string[i] == 'S' : !list || json_is(one, "shared"));
        if (!known) config_fail(r, "layer %d neither chooses keys (full, F) nor takes over a choice (shared, S)", i);
        else if (!i && !selects)
            config_fail(r, "the first layer is to take over a choice of keys, and there is none before it");
        c->layer[i].index = selects ? INDEX_OWN : INDEX_PREVIOUS;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &deepseek_v3_defaults);
    deepseek_router(r, c, &deepseek_v3_defaults);
    deepseek_indexer(r, c, 64, false);
}

static const char *const types[] = {"deepseek_v32", NULL};
const struct arch arch_deepseek_v32 = {.model_types = types,
                                       .title = "DeepSeek-V3.2",
                                       .defaults = {.topk = 8},
                                       .parse = parse,
                                       .names = {DEEPSEEK_NAMES, DEEPSEEK_BIAS_NAME, DEEPSEEK_INDEX_NAMES}};
