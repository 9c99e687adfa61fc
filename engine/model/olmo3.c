/* OLMo 1: dense GQA with layer norms without weights. OLMo 2 and 3: dense GQA with norms after attention and FFN and
 * none before them, and a norm over all heads of q and k. OLMo 3 has a window in most layers, whose rotation is not
 * scaled. Reference: transformers, models/olmo, models/olmo2 and models/olmo3. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_1(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->qkv_clip = (float)config_num(r, "clip_qkv", 0, 1e-6, 1e6);
    c->norm = NORM_LAYER;
    c->unit_norms = true;
    config_read_rope(r, c, c->head_dim, 10000);
}

static void read_layers(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qk_norm = QK_NORM_ALL;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->no_input_norm = true;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static void parse(struct config_reader *r, struct config *c) {
    read_layers(r, c);
    config_read_rope(r, c, c->head_dim, 500000);
}

static void parse_3(struct config_reader *r, struct config *c) {
    read_layers(r, c);
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24);
    const bool listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers && !listed; i++) c->layer[i].window = (i + 1) % 4 ? window : 0;
    config_read_ropes(r, c, 500000, 500000);
    if (!c->second_rope.dim)
        c->second_rope =
            (struct rope_config){.kind = ROPE_DEFAULT, .dim = c->rope.dim, .theta = c->rope.theta, .truncate = true};
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
}

#define L "model.layers.%d."
#define NAMES \
    { \
        NAMES_ATTENTION("model."), \
            .attn_norm = L "post_attention_layernorm", .attn_out_norm = L "post_attention_layernorm", \
            .ffn_out_norm = L "post_feedforward_layernorm", NAMES_QK_NORM("model."), NAMES_DENSE("model.") \
    }
static const char *const olmo[] = {"olmo", NULL};
const struct arch arch_olmo = {.model_types = olmo,
                               .title = "OLMo",
                               .norm_eps = 1e-5,
                               .parse = parse_1,
                               /* the norms have no tensors */
                               .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
static const char *const olmo2[] = {"olmo2", NULL}, *const olmo3[] = {"olmo3", NULL};
const struct arch arch_olmo2 = {
    .model_types = olmo2, .title = "OLMo 2", .norm_eps = 1e-5, .parse = parse, .names = NAMES};
const struct arch arch_olmo3 = {
    .model_types = olmo3, .title = "OLMo 3", .norm_eps = 1e-5, .parse = parse_3, .names = NAMES};
