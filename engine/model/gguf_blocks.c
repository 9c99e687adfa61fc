/* GGUF architectures of dense models whose blocks are not attention and a usual FFN in every layer: Nemotron NAS
 * (deci), Falcon-H1, Apertus, MiniCPM 3. */
#include <string.h>

#include "engine/model/gguf_layers.h"

#define L GGUF_LAYER
static const struct tensor_names standard = {GGUF_NAMES, .ffn_norm = L "ffn_norm"},
                                 ungated = {GGUF_ENDS, GGUF_ATTENTION, .ffn_norm = L "ffn_norm",
                                            .dense_gate = L "ffn_up", .dense_down = L "ffn_down"},
                                 falcon_h1 = {GGUF_NAMES,
                                              .ffn_norm = L "ffn_norm",
                                              .mix_in = L "ssm_in",
                                              .mix_conv = L "ssm_conv1d",
                                              .mix_dt = L "ssm_dt.bias",
                                              .mix_rate = L "ssm_a",
                                              .mix_skip = L "ssm_d",
                                              .mix_norm = L "ssm_norm",
                                              .mix_out = L "ssm_out"};

/* --- Nemotron NAS: heads and widths are lists by layer, in which 0 says that a layer lacks the part -------------- */

static struct json text(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
/* Returns {"no_op": is_missing, name: value}. */
static struct json part_of(struct config_builder *t, bool is_missing, const char *name, int64_t value) {
    struct json *items = arena_alloc(t->arena, 4 * sizeof *items);
    if (!items) {
        t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
        return (struct json){.type = JSON_NULL};
    }
    items[0] = text("no_op"), items[1] = (struct json){.type = JSON_BOOL, .boolean = is_missing};
    items[2] = text(name), items[3] = (struct json){.type = JSON_INT, .integer = value};
    return (struct json){.type = JSON_OBJECT, .n = 2, .items = items};
}
static void derive_deci(struct config_builder *t) {
    const int64_t heads = gguf_layers_largest(t, "attention.head_count", NULL, 0),
                  hidden = json_int(gguf_build_meta(t, "embedding_length"), 0), n = gguf_build_layers(t);
    struct json *blocks = gguf_build_list(t, "block_configs", (uint32_t)n);
    gguf_build_int(t, "num_attention_heads", heads);
    gguf_build_bool(t, "rope_interleave", true); /* llama.cpp's order of heads */
    gguf_build_rope(t, heads > 0 ? hidden / heads : 0);
    for (int64_t i = 0; i < n && blocks && !t->rc; i++) {
        const int64_t own = gguf_layers_at(t, "attention.head_count", i, 0),
                      kv = gguf_layers_at(t, "attention.head_count_kv", i, 0),
                      inter = gguf_layers_at(t, "feed_forward_length", i, 0);
        struct json *items = arena_alloc(t->arena, 4 * sizeof *items);
        if (own && (own != heads || kv < 1))
            gguf_build_fail(t,
                            "layer %lld has %lld heads and %lld KV heads: hearth supports layers with attention like "
                            "the others', or without, and no linear ones",
                            (long long)i, (long long)own, (long long)kv);
        if (!items && !t->rc) t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
        if (t->rc) return;
        items[0] = text("attention"), items[1] = part_of(t, !own, "n_heads_in_group", own ? own / kv : 0);
        items[2] = text("ffn"), items[3] = part_of(t, !inter, "intermediate_size", inter);
        blocks[i] = (struct json){.type = JSON_OBJECT, .n = 2, .items = items};
    }
}

/* --- Others ----------------------------------------------------------------------------------- */

/* The converter multiplies the weights by all factors. */
static void derive_falcon_h1(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_text(t, "mamba_d_head", "auto");
    gguf_build_bool(t, "mamba_conv_bias", t->facts->conv_bias);
    gguf_build_bool(t, "mamba_rms_norm", t->facts->mixer_norm);
    gguf_build_bool(t, "mamba_norm_before_gate", false);
}
/* The numbers of xIELU stand in metadata, as they are published. */
static void derive_apertus(struct config_builder *t) {
    static const char *const numbers[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"};
    gguf_build_attention(t);
    gguf_build_bool(t, "qk_norm", t->facts->qk_norm);
    for (int k = 0; k < 3; k++) {
        const struct json *v = json_get(t->meta, numbers[k]);
        if (v) gguf_build_json(t, numbers[k], *v);
        else gguf_build_fail(t, "metadata '%s' is missing", numbers[k]);
    }
}
/* Factors of rotary frequencies beyond the trained context are not in force within it. */
static void derive_minicpm3(struct config_builder *t) {
    const int64_t rope = json_int(gguf_build_meta(t, "rope.dimension_count"), 0),
                  key = json_int(gguf_build_meta(t, "attention.key_length"), 0);
    gguf_build_int(t, "qk_rope_head_dim", rope);
    gguf_build_int(t, "qk_nope_head_dim", key - rope);
    if (t->facts->short_factors.v)
        gguf_build_rope_by_factors(t, "rope_scaling", t->facts->short_factors, rope / 2, "rope.freq_base");
}

static const struct gguf_key deci_keys[] = {GGUF_HEAD_KEYS,
                                            {"attention.head_count", NULL},
                                            {"attention.head_count_kv", NULL},
                                            {"feed_forward_length", NULL},
                                            {NULL, NULL}},
                             falcon_h1_keys[] = {GGUF_HEAD_KEYS,
                                                 {"ssm.conv_kernel", "mamba_d_conv"},
                                                 {"ssm.group_count", "mamba_n_groups"},
                                                 {"ssm.inner_size", "mamba_d_ssm"},
                                                 {"ssm.state_size", "mamba_d_state"},
                                                 {"ssm.time_step_rank", "mamba_n_heads"},
                                                 {NULL, NULL}},
                             apertus_keys[] = {GGUF_HEAD_KEYS, {NULL, NULL}},
                             minicpm3_keys[] = {GGUF_HEAD_KEYS,
                                                {"attention.kv_lora_rank", "kv_lora_rank"},
                                                {"attention.q_lora_rank", "q_lora_rank"},
                                                {NULL, NULL}};
const struct gguf_arch gguf_blocks[] = {
    {"deci", "nemotron-nas", &standard, deci_keys, derive_deci, NULL},
    {"falcon-h1", "falcon_h1", &falcon_h1, falcon_h1_keys, derive_falcon_h1, NULL},
    {"apertus", "apertus", &ungated, apertus_keys, derive_apertus, NULL},
    {"minicpm3", "minicpm3", &standard, minicpm3_keys, derive_minicpm3, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};
