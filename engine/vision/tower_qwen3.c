/* Qwen3-VL's towers, of the dense model and of the MoE. Reference: transformers, models/qwen3_vl. */
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

static int parse(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    static const int64_t deep[] = {8, 16, 24};
    struct tower_reader r = {.root = json_get(root, "vision_config"), .what = what, .e = e};
    const int64_t positions = tower_int(&r, "num_position_embeddings", 2304, 1, 1 << 20);
    c->patch = (int)tower_int(&r, "patch_size", 16, 1, 256);
    c->temporal = (int)tower_int(&r, "temporal_patch_size", 2, 1, 8);
    c->merge = (int)tower_int(&r, "spatial_merge_size", 2, 1, 16);
    c->hidden = (int)tower_int(&r, "hidden_size", 1152, 4, 1 << 16);
    c->heads = (int)tower_int(&r, "num_heads", 16, 1, 1 << 10);
    c->depth = (int)tower_int(&r, "depth", 27, 1, TOWER_LAYERS_MOST);
    c->inter = (int)tower_int(&r, "intermediate_size", 4304, 1, 1 << 18);
    c->out = (int)tower_int(&r, "out_hidden_size", 3584, 1, 1 << 16);
    c->n_deep = tower_ints(&r, "deepstack_visual_indexes", deep, 3, c->deep_layer, TOWER_DEEP_MOST);
    c->side = (int)floor(sqrt((double)positions));
    c->eps = 1e-6f;
    c->theta = json_num(json_path(r.root, "rope_parameters.rope_theta"), 10000);
    c->names = names;
    tower_word(&r, "hidden_act", "gelu_pytorch_tanh");
    if (tower_int(&r, "in_channels", 3, 1, 4) != 3) tower_fail(&r, "'in_channels' is not 3");
    if (c->hidden % c->heads || c->hidden / c->heads % 4)
        tower_fail(&r, "'hidden_size' does not divide into 'num_heads' heads of a multiple of 4");
    if ((int64_t)c->side * c->side != positions) tower_fail(&r, "'num_position_embeddings' is not a square");
    for (int i = 0; i < c->n_deep; i++)
        if (c->deep_layer[i] < 0 || c->deep_layer[i] >= c->depth)
            tower_fail(&r, "'deepstack_visual_indexes' names a layer that the tower lacks");
    return r.rc;
}

const struct tower_family tower_family_qwen3_vl = {.model_type = "qwen3_vl", .parse = parse},
                          tower_family_qwen3_vl_moe = {.model_type = "qwen3_vl_moe", .parse = parse};
