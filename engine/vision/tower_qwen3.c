/* Towers of Qwen3-VL, and of Qwen3.5 and 3.8, which have no deep mergers. Reference: transformers, models/qwen3_vl,
 * models/qwen3_5 and models/qwen4_exp. */
#include <math.h>
#include <string.h>

#include "engine/vision/tower_config.h"

#define V "model.visual."
static const struct tower_names names = {.patch = V "patch_embed.proj",
                                         .position = V "pos_embed",
                                         .norm1 = V "blocks.%d.norm1",
                                         .norm2 = V "blocks.%d.norm2",
                                         .qkv = V "blocks.%d.attn.qkv",
                                         .proj = V "blocks.%d.attn.proj",
                                         .fc1 = V "blocks.%d.mlp.linear_fc1",
                                         .fc2 = V "blocks.%d.mlp.linear_fc2",
                                         .merger_norm = V "merger.norm",
                                         .merger_fc1 = V "merger.linear_fc1",
                                         .merger_fc2 = V "merger.linear_fc2",
                                         .deep_norm = V "deepstack_merger_list.%d.norm",
                                         .deep_fc1 = V "deepstack_merger_list.%d.linear_fc1",
                                         .deep_fc2 = V "deepstack_merger_list.%d.linear_fc2"};

static const struct tower_names names_beside = {.patch = "v.patch_embd",
                                                .position = "v.position_embd",
                                                .norm1 = "v.blk.%d.ln1",
                                                .norm2 = "v.blk.%d.ln2",
                                                .qkv = "v.blk.%d.attn_qkv",
                                                .proj = "v.blk.%d.attn_out",
                                                .fc1 = "v.blk.%d.ffn_up",
                                                .fc2 = "v.blk.%d.ffn_down",
                                                .merger_norm = "v.post_ln",
                                                .merger_fc1 = "mm.0",
                                                .merger_fc2 = "mm.2",
                                                .deep_norm = "v.deepstack.%d.norm",
                                                .deep_fc1 = "v.deepstack.%d.fc1",
                                                .deep_fc2 = "v.deepstack.%d.fc2"};

static int parse_with(struct tower_config *c, const struct json *root, bool has_deep, const char *what,
                      struct error *e) {
    static const int deep[] = {8, 16, 24};
    static const char *const activations[] = {"gelu_pytorch_tanh", NULL};
    const struct json none = {.type = JSON_OBJECT}, *vision = json_get(root, "vision_config");
    struct config_reader r = {.root = vision ? vision : &none, .what = what, .family = "vision_config", .e = e};
    const int positions = config_int(&r, "num_position_embeddings", 2304, 1, 1 << 20);
    c->patch = config_int(&r, "patch_size", 16, 1, 256);
    c->temporal = config_int(&r, "temporal_patch_size", 2, 1, 8);
    c->merge = config_int(&r, "spatial_merge_size", 2, 1, 16);
    c->hidden = config_int(&r, "hidden_size", 1152, 4, 1 << 16);
    c->heads = config_int(&r, "num_heads", 16, 1, 1 << 10);
    c->depth = config_int(&r, "depth", 27, 1, TOWER_LAYERS_MOST);
    c->inter = config_int(&r, "intermediate_size", 4304, 1, 1 << 18);
    c->out = config_int(&r, "out_hidden_size", 3584, 1, 1 << 16);
    c->n_deep = tower_ints(&r, "deepstack_visual_indexes", deep, has_deep ? 3 : 0, c->deep_layer, TOWER_DEEP_MOST);
    c->side = (int)sqrt(positions);
    c->eps = 1e-6f;
    c->theta = json_num(json_path(r.root, "rope_parameters.rope_theta"), 10000);
    c->names = names;
    c->has_bias = c->has_qkv_bias = true;
    tower_set_processor(c, 65536, 16777216);
    config_choice(&r, "hidden_act", activations, 0);
    config_int(&r, "in_channels", 3, 3, 3);
    if (config_is_null(&r, "hidden_act") || config_is_null(&r, "deepstack_visual_indexes"))
        config_fail(&r, "'hidden_act' or 'deepstack_visual_indexes' is null");
    if (r.rc) return r.rc;
    if (c->hidden % c->heads || c->hidden / c->heads % 4)
        config_fail(&r, "'hidden_size' does not divide into 'num_heads' heads of a multiple of 4");
    if (c->side * c->side != positions) config_fail(&r, "'num_position_embeddings' is not a square");
    for (int i = 0; i < c->n_deep; i++)
        if (c->deep_layer[i] < 0 || c->deep_layer[i] >= c->depth)
            config_fail(&r, "'deepstack_visual_indexes' names a layer that the tower lacks");
    if (!has_deep && c->n_deep)
        config_fail(&r, "'deepstack_visual_indexes' is not empty: the reference has no deep mergers");
    return r.rc;
}
static int parse(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    return parse_with(c, root, true, what, e);
}
static int parse_3_5(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    return parse_with(c, root, false, what, e);
}

static int parse_gguf(struct tower_config *c, const struct json *meta, const char *what, struct error *e) {
    struct config_reader r = {.root = meta, .what = what, .family = "clip", .e = e};
    const struct json *deep = json_get(meta, "clip.vision.is_deepstack_layers");
    c->patch = config_int(&r, "clip.vision.patch_size", 0, 1, 256);
    c->temporal = 2;
    c->merge = config_int(&r, "clip.vision.spatial_merge_size", 2, 1, 16);
    c->hidden = config_int(&r, "clip.vision.embedding_length", 0, 4, 1 << 16);
    c->heads = config_int(&r, "clip.vision.attention.head_count", 0, 1, 1 << 10);
    c->depth = config_int(&r, "clip.vision.block_count", 0, 1, TOWER_LAYERS_MOST);
    c->inter = config_int(&r, "clip.vision.feed_forward_length", 0, 1, 1 << 18);
    c->out = config_int(&r, "clip.vision.projection_dim", 0, 1, 1 << 16);
    c->eps = (float)config_num(&r, "clip.vision.attention.layer_norm_epsilon", 1e-6, 0, 1);
    const int pixels = config_int(&r, "clip.vision.image_size", 0, 1, 1 << 16);
    if (config_bool(&r, "clip.use_silu", false)) config_fail(&r, "'clip.use_silu' is true: the reference has GELU");
    if (r.rc) return r.rc;
    c->side = pixels / c->patch;
    c->theta = 10000;
    c->names = names_beside;
    c->has_bias = c->has_qkv_bias = c->is_split_patch = c->is_deep_by_layer = true;
    for (uint32_t i = 0; deep && deep->type == JSON_ARRAY && i < deep->n && !r.rc; i++) {
        if (!json_bool(json_at(deep, i), false)) continue;
        if (c->n_deep == TOWER_DEEP_MOST || i >= (uint32_t)c->depth)
            config_fail(&r, "'clip.vision.is_deepstack_layers' names more layers than hearth has deep mergers for");
        else c->deep_layer[c->n_deep++] = (int)i;
    }
    if (c->hidden % c->heads || c->hidden / c->heads % 4 || pixels % c->patch)
        config_fail(&r, "heads, or a table of positions, of broken sizes");
    tower_set_processor(c, 65536, 16777216);
    return r.rc ? r.rc : tower_read_clip(c, meta, what, e);
}
const struct tower_projector tower_projector_qwen3 = {
    .type = "qwen3vl_merger", .mark = "<|image_pad|>", .parse = parse_gguf};

#define FAMILY(type, token, parser) \
    { .model_type = type, .image_token = token, .parse = parser }
const struct tower_family tower_family_qwen3_vl = FAMILY("qwen3_vl", 151655, parse),
                          tower_family_qwen3_vl_moe = FAMILY("qwen3_vl_moe", 151655, parse),
                          tower_family_qwen3_5 = FAMILY("qwen3_5", 248056, parse_3_5),
                          tower_family_qwen3_5_moe = FAMILY("qwen3_5_moe", 248056, parse_3_5),
                          tower_family_qwen4_exp = FAMILY("qwen4_exp", 248056, parse_3_5);
