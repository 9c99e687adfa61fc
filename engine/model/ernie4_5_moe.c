/* ERNIE 4.5 with and without experts, and the language model of ERNIE 4.5 VL: GQA with neighbours rotated; leading
 * dense layers, softmax scores with a selection bias, shared experts. Reference: transformers, models/ernie4_5_moe,
 * models/ernie4_5 and models/ernie4_5_vl_moe. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_common(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    if (!config_has(r, "tie_word_embeddings")) c->tied = true;
    if (config_bool(r, "use_bias", false))
        config_fail(r, "'use_bias' is true: hearth reads no biases of this family's FFNs");
    if (!config_bool(r, "use_rmsnorm", true)) config_fail(r, "'use_rmsnorm' is false: the reference has RMSNorm only");
    c->rope.interleaved = true;
    config_read_rope(r, c, c->head_dim, 500000);
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
}

/* Reads a number into out[0] and out[1], or a list of two: of text and of images. default_value: as in config_int, of
 * text. */
static void read_pair(struct config_reader *r, const char *key, int default_value, int min, int max, int out[2]) {
    const struct json *v = config_get(r, key);
    if (!v || v->type != JSON_ARRAY) {
        out[0] = out[1] = config_int(r, key, default_value, min, max);
        return;
    }
    if (v->n != 2)
        config_fail(r, "'%s' is a list of %u; hearth takes a number, or one for text and one for images", key, v->n);
    for (uint32_t i = 0; i < 2; i++) {
        const int64_t n = json_int(json_at(v, i), INT64_MIN);
        if (n < min || n > max) config_fail(r, "'%s' has a number outside %d to %d", key, min, max);
        out[i] = n < min || n > max ? min : (int)n;
    }
}

static void read_moe_layers(struct config_reader *r, struct config *c) {
    int first[2], last[2];
    read_pair(r, "moe_layer_start_index", 1, 0, CONFIG_MAX_LAYERS, first);
    read_pair(r, "moe_layer_end_index", -1, -1, CONFIG_MAX_LAYERS, last);
    const int every = config_int(r, "moe_layer_interval", 1, 1, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) {
        bool moe[2];
        for (int k = 0; k < 2; k++) moe[k] = i >= first[k] && (last[k] < 0 || i <= last[k]) && (i + 1) % every == 0;
        if (moe[0] != moe[1])
            config_fail(
                r, "layer %d has experts for text or for images only, which hearth does not support of this family", i);
        c->layer[i].moe = moe[0];
    }
}

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const gates[] = {"topk", NULL};
    int experts[2], inter[2];
    config_choice(r, "moe_gate", gates, 0);
    config_ignore(r, "moe_capacity"); /* limits the tokens of an expert in training */
    config_num(r, "moe_norm_min", 1e-12, 0, 1e-6);
    config_bool(r, "moe_use_aux_free", true); /* how the selection bias was trained; the reference always applies it */
    read_pair(r, "moe_num_experts", 0, 1, 4096, experts);
    if (experts[0] != experts[1])
        config_fail(r, "'moe_num_experts' differs: %d for text, %d for images", experts[0], experts[1]);
    c->n_experts = experts[0];
    c->topk = config_int(r, "moe_k", 6, 1, 64);
    read_pair(r, "moe_intermediate_size", 0, 1, 1 << 20, inter);
    c->moe_inter = inter[0];
    c->shared_inter =
        config_int(r, "moe_num_shared_experts", config_is_null(r, "moe_num_shared_experts") ? 0 : 2, 0, 64) *
        c->moe_inter;
    c->score = SCORE_SOFTMAX;
    c->router_bias = c->norm_topk = true;
    c->routed_scale = 1;
}

static void parse(struct config_reader *r, struct config *c) {
    parse_common(r, c);
    read_moe_layers(r, c);
    read_experts(r, c);
}

/* The pairs of a head turn by three positions, which are equal for text; the frequencies stay in their usual order. */
static void parse_vision(struct config_reader *r, struct config *c) {
    /* of images and of training, in the vendor's flat config */
    static const char *const others[] = {"im_patch_id",
                                         "max_text_id",
                                         "pixel_hidden_size",
                                         "spatial_conv_size",
                                         "temporal_conv_size",
                                         "use_temporal_conv",
                                         "rope_3d",
                                         "freq_allocation",
                                         "moe_use_hard_gate",
                                         "moe_dense_experts_token_type_id",
                                         "moe_multimodal_dispatch_use_allgather",
                                         "tensor_parallel_degree"};
    static const char *const scores[] = {"softmax", NULL};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_ignore(r, others[i]);
    config_choice(r, "moe_gate_act", scores, 0);
    if (!config_bool(r, "moe_norm_gate_logits", true))
        config_fail(r, "'moe_norm_gate_logits' is false: the reference always normalizes");
    if (config_num(r, "compression_ratio", 1, 0, 1e6) != 1)
        config_fail(r, "'compression_ratio' is not 1: the reference has none");
    config_skip_vision(r, c);
    parse(r, c);
    config_read_mlp_types(r, c);
    if (c->rope.kind != ROPE_DEFAULT)
        config_fail(r, "'rope_type' is not default: the reference has no other for this family");
}

#define NAMES \
    NAMES_GQA("model."), NAMES_ROUTER("model."), \
        .router_bias = "model.layers.%d.mlp.moe_statics.e_score_correction_bias", NAMES_EXPERTS("model."), \
        NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")
static const char *const types[] = {"ernie4_5_moe", NULL}, *const dense[] = {"ernie4_5", NULL};
const struct arch arch_ernie4_5_moe = {.model_types = types,
                                       .title = "ERNIE 4.5 MoE",
                                       .norm_eps = 1e-5,
                                       .defaults = {.heads = 20, .kv_heads = 4},
                                       .parse = parse,
                                       .names = {NAMES}};
const struct arch arch_ernie4_5 = {.model_types = dense,
                                   .title = "ERNIE 4.5",
                                   .norm_eps = 1e-5,
                                   .defaults = {.heads = 16, .kv_heads = 2, .head_dim = 128},
                                   .parse = parse_common,
                                   .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};

/* transformers' config and the vendor's, over the same tensors. */
static const char *const vision[] = {"ernie4_5_vl_moe", NULL}, *const flat[] = {"ernie4_5_moe_vl", NULL},
                         *const of_images[] = {".mlp.gate.weight_1", NULL};
#define VISION(types_, ...) \
    { \
        .model_types = types_, .title = "ERNIE 4.5 VL", .norm_eps = 1e-5, .parse = parse_vision, .names = {NAMES}, \
        .skipped_tensors = of_images, .layout = {.transposed_router = true, .image_experts = true}, __VA_ARGS__ \
    }
const struct arch arch_ernie4_5_vl_moe =
                      VISION(vision, .text_config_key = "text_config", .defaults = {.heads = 20, .kv_heads = 4}),
                  arch_ernie4_5_moe_vl = VISION(flat);
