/* The tower of Gemma 4. Reference: transformers, models/gemma4. Not here: 12B (gemma4_unified), which has none. */
#include "engine/vision/tower_config.h"

#define V "model.vision_tower."
#define L V "encoder.layers.%d."
static const struct tower_names names = {.patch = V "patch_embedder.input_proj",
                                         .position = V "patch_embedder.position_embedding_table",
                                         .norm1 = L "input_layernorm",
                                         .norm1_after = L "post_attention_layernorm",
                                         .norm2 = L "pre_feedforward_layernorm",
                                         .norm2_after = L "post_feedforward_layernorm",
                                         .q = L "self_attn.q_proj.linear",
                                         .k = L "self_attn.k_proj.linear",
                                         .v = L "self_attn.v_proj.linear",
                                         .q_norm = L "self_attn.q_norm",
                                         .k_norm = L "self_attn.k_norm",
                                         .proj = L "self_attn.o_proj.linear",
                                         .gate = L "mlp.gate_proj.linear",
                                         .fc1 = L "mlp.up_proj.linear",
                                         .fc2 = L "mlp.down_proj.linear",
                                         .merger_fc2 = "model.embed_vision.embedding_projection"};

static int32_t token(const struct json *root, const char *key, int32_t none) {
    const int64_t id = json_int(json_get(root, key), none);
    return id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
}

static int parse(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    enum { SOFT_TOKENS = 280 }; /* of an image, where no file says it */
    static const char *const activations[] = {"gelu_pytorch_tanh", NULL};
    const struct json none = {.type = JSON_OBJECT}, *vision = json_get(root, "vision_config");
    struct config_reader r = {.root = vision ? vision : &none, .what = what, .family = "vision_config", .e = e};
    c->patch = config_int(&r, "patch_size", 16, 1, 256);
    c->temporal = 1;
    c->merge = config_int(&r, "pooling_kernel_size", 3, 1, 16);
    c->hidden = config_int(&r, "hidden_size", 768, 4, 1 << 16);
    c->heads = config_int(&r, "num_attention_heads", 12, 1, 1 << 10);
    c->depth = config_int(&r, "num_hidden_layers", 16, 1, TOWER_LAYERS_MOST);
    c->inter = config_int(&r, "intermediate_size", 3072, 1, 1 << 18);
    c->side = config_int(&r, "position_embedding_size", 10240, 1, 1 << 16);
    c->eps = (float)config_num(&r, "rms_norm_eps", 1e-6, 0, 1);
    c->is_clipped = config_bool(&r, "use_clipped_linears", false);
    const bool is_standard = config_bool(&r, "standardize", false);
    if (config_bool(&r, "attention_bias", false)) config_fail(&r, "'attention_bias' is true: the reference has none");
    config_choice(&r, "hidden_activation", activations, 0);
    if (config_int(&r, "num_key_value_heads", 12, 1, 1 << 10) != c->heads)
        config_fail(&r, "'num_key_value_heads' is not 'num_attention_heads': hearth reads no such tower");
    if (config_int(&r, "head_dim", 64, 1, 1 << 10) * c->heads != c->hidden || c->hidden / c->heads % 4)
        config_fail(&r, "'hidden_size' is not that of its heads, or these are no multiple of 4");
    if (r.rc) return r.rc;
    c->names = names;
    if (is_standard) c->names.standard = V "std";
    c->is_rms = c->is_pooled = true;
    c->positions = POSITIONS_AXES;
    c->theta = json_num(json_path(r.root, "rope_parameters.rope_theta"), 100);
    c->out = (int)json_int(json_path(root, "text_config.hidden_size"), 0);
    c->table_token = (int32_t)json_int(json_path(root, "text_config.pad_token_id"), 0);
    c->marks[0] = token(root, "boi_token_id", 255999), c->marks[1] = token(root, "eoi_token_id", 258882);
    tower_set_processor(c, 1, 1 << 28);
    c->limits.keeps_ratio = true;
    c->limits.most_patches = SOFT_TOKENS * c->merge * c->merge;
    return r.rc;
}

const struct tower_family tower_family_gemma4 = {.model_type = "gemma4", .image_token = 258880, .parse = parse};
