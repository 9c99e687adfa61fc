/* Solar Open 2: Kimi delta attention whose updates have a factor of up to 2, in other layers gated GQA without
 * rotation, DeepSeek-V3's experts. Reference: transformers, models/solar_open2 (in its repository, in no release up
 * to 5.24); vLLM, models/solar_open2. */
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/kda.h"

static const struct deepseek_defaults defaults = {.scale = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

/* Reads gqa_layers: the layers with attention, counted from 0. The others have KDA. */
static void read_list(struct config_reader *r, struct config *c, const struct json *list) {
    bool named[CONFIG_MAX_LAYERS] = {0};
    if (list->type != JSON_ARRAY) config_fail(r, "'gqa_layers' is not a list of layers");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].mixer = MIXER_KDA;
    for (uint32_t i = 0; list->type == JSON_ARRAY && i < list->n && !r->rc; i++) {
        const int64_t layer = json_int(json_at(list, i), -1);
        if (layer < 0 || layer >= c->n_layers || named[layer])
            config_fail(r, "'gqa_layers' names a layer twice or outside 0 to %d", c->n_layers - 1);
        else named[layer] = true, c->layer[layer].mixer = MIXER_ATTENTION;
    }
}

/* gqa_interval alone is refused: transformers counts the layers between two with attention, from the first one, vLLM
 * the layers of a group, whose last has it.
 */
static void read_mixers(struct config_reader *r, struct config *c) {
    struct config_reader in;
    const struct json *list = config_get(r, "gqa_layers");
    config_ignore(r, "gqa_interval");
    if (list) read_list(r, c, list);
    else if (!config_has(r, "layer_types"))
        config_fail(r, "'gqa_layers' and 'layer_types' are missing: nothing says which layers have attention");
    kda_read_types(r, c, list);
    config_open(r, "linear_attn_config", &in);
    kda_read_sizes(r, c, &in);
    const int kv = config_int(&in, "num_kv_heads", c->kda.heads, 1, 1024);
    if (kv != c->kda.heads)
        config_fail(&in, "'linear_attn_config.num_kv_heads' is %d, 'num_heads' %d: hearth has as many", kv,
                    c->kda.heads);
    config_close(r, "linear_attn_config", &in);
    if (config_bool(r, "kda_use_full_proj", false))
        config_fail(r, "'kda_use_full_proj' is true: hearth has projections of low rank only");
    config_ignore(r, "kda_gate_lower_bound"); /* an older version read it; the references have no bound */
    c->kda.doubles_beta = config_bool(r, "kda_allow_neg_eigval", true);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = config_bool(r, "use_qk_norm", false) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->attn_gate = config_bool(r, "use_gqa_gate", true) ? ATTN_GATE_ELEMENT : ATTN_GATE_NONE;
    c->attn_gate_kind = GATE_SIGMOID;
    if (config_bool(r, "use_gqa_gate_bias", false))
        config_fail(r, "'use_gqa_gate_bias' is true: hearth has gates without a bias only");
    config_read_rope(r, c, c->head_dim, 10000);
    const bool rotates = config_bool(r, "use_rope", false);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = rotates ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
    read_mixers(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
}

#define L "model.layers.%d."
static const char *const types[] = {"solar_open2", NULL};
const struct arch arch_solar_open2 = {
    .model_types = types,
    .title = "Solar Open 2",
    .norm_eps = 1e-5,
    .defaults = {.topk = 8},
    .parse = parse,
    .names = {NAMES_USUAL("model."), NAMES_QK_NORM("model."), .attn_gate = L "self_attn.g_proj",
              KDA_NAMES(L "self_attn."), KDA_LOW_NAMES(L "self_attn."), NAMES_ROUTER("model."), DEEPSEEK_BIAS_NAME,
              NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")}};
