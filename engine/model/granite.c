/* Granite 3: dense GQA with factors on embeddings, scores, what blocks add to the residual stream, and logits. Granite
 * SWA: the same with a sink per head, and windows and rotations by layer. HyperCLOVA X: Granite with norms of what
 * blocks add. Reference: transformers, models/granite, models/granite_swa and models/hyperclovax. */
#include "engine/model/granite.h"

#include <math.h>

#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

void granite_read_factors(struct config_reader *r, struct config *c) {
    c->attn_scale = (float)config_num(r, "attention_multiplier", 1, 1e-9, 1e6);
    c->embed_scale = (float)config_num(r, "embedding_multiplier", 1, 1e-9, 1e6);
    c->residual_scale = (float)config_num(r, "residual_multiplier", 1, 1e-9, 1e6);
    c->logit_scale = (float)(1 / config_num(r, "logits_scaling", 1, 1e-9, 1e9));
}

/* Layers differ in the base of their rotation only, 0: none. */
static void read_thetas(struct config_reader *r, struct config *c) {
    const struct json *list = config_layer_list(r, c, "layer_rope_theta", false);
    double first = 0, second = 0;
    for (int i = 0; list && i < c->n_layers && !r->rc; i++) {
        const double theta = json_num(json_at(list, (uint32_t)i), -1);
        if (theta != 0 && !(theta > 1))
            config_fail(r, "'layer_rope_theta' of layer %d is neither 0 nor a number of more than 1", i);
        if (theta > 0 && first == 0) first = theta;
        if (theta > 0 && theta != first && second == 0) second = theta;
        if (theta > 0 && theta != first && theta != second)
            config_fail(r, "'layer_rope_theta' has more than two bases; hearth takes two");
        c->layer[i].rope = theta == 0 ? LAYER_ROPE_NONE : theta == first ? LAYER_ROPE_FIRST : LAYER_ROPE_SECOND;
    }
    if (second > 0) c->second_rope = c->rope, c->second_rope.theta = second;
    if (first > 0) c->rope.theta = first;
}

void granite_read_swa(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 128, 1, 1 << 24);
    if (config_has(r, "layer_types")) config_read_windows(r, c, window, 0);
    else
        for (int i = 0; i < c->n_layers; i++) c->layer[i].window = i % 4 ? window : 0;
    c->sinks = true;
    read_thetas(r, c);
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
    granite_read_factors(r, c);
}
static void parse_swa(struct config_reader *r, struct config *c) {
    parse(r, c);
    granite_read_swa(r, c);
}

/* HyperCLOVA X: logits are multiplied, and what blocks add may be normed before its factor. */
static void parse_hyperclovax(struct config_reader *r, struct config *c) {
    const bool has_scale = config_has(r, "attention_multiplier");
    parse(r, c);
    if (!has_scale) c->attn_scale = (float)(1 / sqrt(c->head_dim));
    c->logit_scale = (float)config_num(r, "logits_scaling", 1, 1e-9, 1e9);
    if (config_bool(r, "use_post_norm", true)) c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static const char *const hyperclovax[] = {"hyperclovax", NULL};
const struct arch arch_hyperclovax = {.model_types = hyperclovax,
                                      .title = "HyperCLOVA X",
                                      .parse = parse_hyperclovax,
                                      .names = {NAMES_GQA("model."), .attn_out_norm = "model.layers.%d.post_norm1",
                                                .ffn_out_norm = "model.layers.%d.post_norm2", NAMES_DENSE("model.")}};

static const char *const types[] = {"granite", "granite4_vision_text", "granite_docling_text", NULL}, *const swa[] = {
                                                                                                          "granite_swa",
                                                                                                          NULL};
const struct arch arch_granite = {
    .model_types = types, .title = "Granite", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_granite_swa = {
    .model_types = swa,
    .title = "Granite SWA",
    .norm_eps = 1e-5,
    .defaults = {.tied = true, .kv_heads = 4},
    .parse = parse_swa,
    .names = {NAMES_GQA("model."), .sinks = "model.layers.%d.self_attn.sinks", NAMES_DENSE("model.")}};
