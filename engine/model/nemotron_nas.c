/* Nemotron NAS (Llama Nemotron Super and Ultra): Llama whose layers differ in the number of KV heads and in the width
 * of their FFN, and of which some have no attention or no FFN. Reference: mlx-lm, models/nemotron-nas. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* What hearth has no reference of; a false or missing one changes nothing. */
static void refuse_others(struct config_reader *r, const struct json *block, int layer, const char *part) {
    static const char *const others[] = {"replace_with_linear",
                                         "sparsify",
                                         "window_length",
                                         "num_sink_tokens",
                                         "unshifted_sink",
                                         "mamba",
                                         "moe",
                                         "llama4",
                                         "use_prefill_window_in_sink_attention"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct json *v = json_get(block, others[i]);
        if (v && v->type != JSON_NULL && !(v->type == JSON_BOOL && !v->boolean))
            config_fail(r, "'block_configs': '%s' of layer %d's %s is set, which hearth does not support", others[i],
                        layer, part);
    }
}

/* The width of an FFN: two thirds of the hidden size times the multiplier, rounded up to 256. */
static int ffn_width(const struct config *c, double multiplier) {
    const double width = floor(2 * multiplier * c->hidden / 3);
    return width >= 1 && width < 1 << 24 ? (int)ceil(width / 256) * 256 : 0;
}

static bool is_missing(const struct json *block, const char *part) {
    return json_bool(json_get(json_get(block, part), "no_op"), false);
}
/* at: the number of the layer here; `layer` is that of the checkpoint. */
static void read_layer(struct config_reader *r, struct config *c, const struct json *block, int at, int layer) {
    const struct json *attention = json_get(block, "attention"), *ffn = json_get(block, "ffn");
    struct layer_config *y = &c->layer[at];
    y->repeats = at - layer;
    refuse_others(r, attention, layer, "attention");
    refuse_others(r, ffn, layer, "FFN");
    if (is_missing(block, "attention")) y->mixer = MIXER_NONE;
    else {
        const int64_t group = json_int(json_get(attention, "n_heads_in_group"), 0);
        if (group < 1 || group > c->n_heads || c->n_heads % group)
            config_fail(r, "'n_heads_in_group' of layer %d is %lld of %d heads", layer, (long long)group, c->n_heads);
        else config_set_heads(r, c, at, c->n_heads, c->n_heads / group);
    }
    if (is_missing(block, "ffn")) y->no_ffn = true;
    else {
        const int64_t given = json_int(json_get(ffn, "intermediate_size"), 0);
        y->dense_inter =
            given > 0 && given < 1 << 24 ? (int)given : ffn_width(c, json_num(json_get(ffn, "ffn_mult"), 0));
        if (!y->dense_inter) config_fail(r, "'ffn_mult' of layer %d is no width", layer);
        if (y->dense_inter > c->dense_inter) c->dense_inter = y->dense_inter;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"intermediate_size", "num_key_value_heads"}; /* of layers */
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) config_ignore(r, unused[i]);
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only */
    config_read_rope(r, c, c->head_dim, 10000);
    const struct json *blocks = config_layer_list(r, c, "block_configs", false);
    if (!blocks) config_fail(r, "'block_configs' is missing");
    c->n_kv_heads = 1;
    int n = 0;
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *block = json_at(blocks, (uint32_t)i);
        /* a layer without both, as in Ultra, is none */
        if (!is_missing(block, "attention") || !is_missing(block, "ffn")) read_layer(r, c, block, n++, i);
    }
    if (!n) config_fail(r, "'block_configs' has no layer with attention or an FFN");
    else c->n_layers = n;
}

static const char *const types[] = {"nemotron-nas", "nemotron_nas", NULL}, *const classes[] = {"DeciLMForCausalLM",
                                                                                               NULL};
const struct arch arch_nemotron_nas = {.model_types = types,
                                       .architectures = classes,
                                       .title = "Nemotron NAS",
                                       .norm_eps = 1e-5,
                                       .parse = parse,
                                       .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
