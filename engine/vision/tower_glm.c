/* The tower of GLM-4.5V. Reference: transformers, models/glm4v_moe. */
#include "engine/vision/tower_config.h"

#define V "model.visual."
static const struct tower_names names = {.patch = V "patch_embed.proj",
                                         .patch_norm = V "post_conv_layernorm",
                                         .position = V "embeddings.position_embedding",
                                         .norm1 = V "blocks.%d.norm1",
                                         .norm2 = V "blocks.%d.norm2",
                                         .qkv = V "blocks.%d.attn.qkv",
                                         .proj = V "blocks.%d.attn.proj",
                                         .gate = V "blocks.%d.mlp.gate_proj",
                                         .fc1 = V "blocks.%d.mlp.up_proj",
                                         .fc2 = V "blocks.%d.mlp.down_proj",
                                         .last_norm = V "post_layernorm",
                                         .down = V "downsample",
                                         .merger_proj = V "merger.proj",
                                         .merger_norm = V "merger.post_projection_norm",
                                         .merger_gate = V "merger.gate_proj",
                                         .merger_fc1 = V "merger.up_proj",
                                         .merger_fc2 = V "merger.down_proj"};

static int parse(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    static const char *const activations[] = {"silu", NULL};
    static const double mean[] = {0.48145466, 0.4578275, 0.40821073}, std[] = {0.26862954, 0.26130258, 0.27577711};
    const struct json none = {.type = JSON_OBJECT}, *vision = json_get(root, "vision_config");
    struct config_reader r = {.root = vision ? vision : &none, .what = what, .family = "vision_config", .e = e};
    const int pixels = config_int(&r, "image_size", 336, 1, 1 << 16);
    c->patch = config_int(&r, "patch_size", 14, 1, 256);
    c->temporal = config_int(&r, "temporal_patch_size", 2, 1, 8);
    c->merge = config_int(&r, "spatial_merge_size", 2, 1, 16);
    c->hidden = config_int(&r, "hidden_size", 1536, 4, 1 << 16);
    c->heads = config_int(&r, "num_heads", 12, 1, 1 << 10);
    c->depth = config_int(&r, "depth", 24, 1, TOWER_LAYERS_MOST);
    c->merger_inter = config_int(&r, "intermediate_size", 13696, 1, 1 << 18);
    c->inter = c->out = config_int(&r, "out_hidden_size", 4096, 1, 1 << 16);
    c->eps = (float)config_num(&r, "rms_norm_eps", 1e-5, 0, 1);
    c->has_qkv_bias = config_bool(&r, "attention_bias", false);
    c->is_rms = true;
    c->positions = POSITIONS_CUBIC;
    c->theta = json_num(json_path(r.root, "rope_parameters.rope_theta"), 10000);
    c->names = names;
    config_choice(&r, "hidden_act", activations, 0);
    config_int(&r, "in_channels", 3, 3, 3);
    if (config_is_null(&r, "hidden_act")) config_fail(&r, "'hidden_act' is null");
    if (r.rc) return r.rc;
    c->side = pixels / c->patch;
    if (c->hidden % c->heads || c->hidden / c->heads % 4)
        config_fail(&r, "'hidden_size' does not divide into 'num_heads' heads of a multiple of 4");
    if (c->side < 1) config_fail(&r, "'image_size' is smaller than 'patch_size'");
    tower_set_processor(c, 112 * 112, 28 * 28 * 15000);
    c->limits.frames = c->temporal; /* the limits count the pixels of all times */
    c->limits.grows_sides = true;
    for (int i = 0; i < 3; i++) c->mean[i] = mean[i], c->std[i] = std[i];
    return r.rc;
}

const struct tower_family tower_family_glm4v_moe = {.model_type = "glm4v_moe", .image_token = 151363, .parse = parse};
