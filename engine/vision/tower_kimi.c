/* The tower of Kimi K2.5, MoonViT. Reference: transformers, models/kimi_k25. Its own checkpoints have other names and
 * another order of rotated numbers than published ones, and are not read. */
#include "engine/vision/tower_config.h"

#define B "vision_tower.encoder.blocks.%d."
static const struct tower_names names = {.patch = "vision_tower.patch_embed.proj",
                                         .position = "vision_tower.patch_embed.pos_emb",
                                         .norm1 = B "norm0",
                                         .norm2 = B "norm1",
                                         .qkv = B "wqkv",
                                         .proj = B "wo",
                                         .fc1 = B "mlp.fc0",
                                         .fc2 = B "mlp.fc1",
                                         .last_norm = "vision_tower.encoder.final_layernorm",
                                         .merger_norm = "mm_projector.pre_norm",
                                         .merger_fc1 = "mm_projector.proj.0",
                                         .merger_fc2 = "mm_projector.proj.2"};

/* A number under its published name, or that of transformers. */
static int either(struct config_reader *r, const char *published, const char *saved, int none, int most) {
    return config_int(r, config_has(r, published) ? published : saved, none, 1, most);
}

static int parse(struct tower_config *c, const struct json *root, const char *what, struct error *e) {
    static const int square[] = {2, 2};
    const struct json none = {.type = JSON_OBJECT}, *vision = json_get(root, "vision_config");
    struct config_reader r = {.root = vision ? vision : &none, .what = what, .family = "vision_config", .e = e};
    int merge[2];
    c->names = names;
    c->patch = config_int(&r, "patch_size", 14, 1, 256);
    c->temporal = 1;
    c->hidden = either(&r, "vt_hidden_size", "hidden_size", 1152, 1 << 16);
    c->heads = either(&r, "vt_num_attention_heads", "num_attention_heads", 16, 1 << 10);
    c->depth = either(&r, "vt_num_hidden_layers", "num_hidden_layers", 27, TOWER_LAYERS_MOST);
    c->inter = either(&r, "vt_intermediate_size", "intermediate_size", 4304, 1 << 18);
    c->side = either(&r, "init_pos_emb_height", "pos_emb_height", 64, 1 << 12);
    if (either(&r, "init_pos_emb_width", "pos_emb_width", 64, 1 << 12) != c->side)
        config_fail(&r, "the table of positions is no square");
    if (tower_ints(&r, "merge_kernel_size", square, 2, merge, 2) != 2 || merge[0] != merge[1] || merge[0] < 1 ||
        merge[0] > 16)
        config_fail(&r, "'merge_kernel_size' is not twice one number of 1 to 16");
    c->eps = 1e-5f;
    const char *const eps = config_has(&r, "projector_ln_eps") ? "projector_ln_eps" : "projection_layer_norm_eps";
    if ((float)config_num(&r, eps, 1e-5, 0, 1) != c->eps)
        config_fail(&r, "'%s' is not 1e-5, which the tower's own norms have", eps);
    if (r.rc) return r.rc;
    c->merge = merge[0];
    if (c->hidden % c->heads || c->hidden / c->heads % 4)
        config_fail(&r, "the width does not divide into heads of a multiple of 4");
    c->out = (int)json_int(json_path(root, "text_config.hidden_size"), 0);
    c->theta = json_num(json_path(r.root, "rope_parameters.rope_theta"), 10000);
    c->has_bias = c->has_qkv_bias = c->is_split_patch = c->is_square_table = c->is_interleaved = true;
    c->positions = POSITIONS_CUBIC;
    tower_set_processor(c, 1, 1);
    c->limits.most_patches = 16384, c->limits.most_side = 512;
    return r.rc;
}

const struct tower_family tower_family_kimi_k25 = {
    .model_type = "kimi_k25", .token_key = "media_placeholder_token_id", .image_token = 163605, .parse = parse};
