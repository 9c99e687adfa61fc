/* Nemotron-H and Nemotron 3: each layer is Mamba-2, attention without positions, an MLP or experts, and nothing else.
 * FFNs have no gate, and squared ReLU; the experts of larger models work in a latent space. References: transformers,
 * models/nemotron_h; NVIDIA's modeling_nemotron_h.py. transformers limits Mamba's step in prefill and not in decoding;
 * NVIDIA's code does not limit it unless time_step_limit says so. */
#include <string.h>

#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/rope.h"

enum block { BLOCK_MAMBA, BLOCK_ATTENTION, BLOCK_MLP, BLOCK_MOE };

/* The key that the config has of two names of it. */
static const char *key_of(struct config_reader *r, const char *name, const char *other) {
    return config_has(r, name) || !config_has(r, other) ? name : other;
}

static void set_block(struct config *c, int layer, enum block kind) {
    struct layer_config *l = &c->layer[layer];
    l->mixer = kind == BLOCK_MAMBA ? MIXER_MAMBA2 : kind == BLOCK_ATTENTION ? MIXER_ATTENTION : MIXER_NONE;
    l->no_ffn = l->mixer != MIXER_NONE;
    l->moe = kind == BLOCK_MOE;
}

/* The list of blocks counts the layers, as in the reference: a text of a character per layer, or a list of names. */
static void read_blocks(struct config_reader *r, struct config *c) {
    static const char codes[] = {'M', '*', '-', 'E'};
    static const char *const names[] = {"mamba", "attention", "mlp", "moe"};
    const struct json *text = config_get(r, "hybrid_override_pattern"), *list = config_get(r, "layers_block_type"),
                      *blocks = list ? list : text;
    if (!blocks || blocks->type != (list ? JSON_ARRAY : JSON_STRING) || blocks->n < 1 ||
        blocks->n > CONFIG_MAX_LAYERS) {
        config_fail(r, "neither 'layers_block_type' nor 'hybrid_override_pattern' lists 1 to %d layers",
                    CONFIG_MAX_LAYERS);
        return;
    }
    c->n_layers = (int)blocks->n;
    for (int i = 0; i < c->n_layers; i++) {
        int k = 0;
        while (k < 4 &&
               !(list ? config_is_layer_kind(json_at(list, (uint32_t)i), names[k]) : text->string[i] == codes[k]))
            k++;
        if (list && text && k < 4 &&
            !(text->type == JSON_STRING && (int)text->n == c->n_layers && text->string[i] == codes[k]))
            config_fail(r, "'layers_block_type' and 'hybrid_override_pattern' differ in layer %d", i);
        if (k == 4) config_fail(r, "layer %d is neither mamba (M), attention (*), mlp (-) nor moe (E)", i);
        else set_block(c, i, (enum block)k);
    }
}

static void read_mamba(struct config_reader *r, struct config *c) {
    struct mamba_config *m = &c->mamba;
    static const char *const acts[] = {"silu", NULL};
    m->heads = config_int(r, "mamba_num_heads", 128, 1, 4096);
    m->head_dim = config_int(r, "mamba_head_dim", 64, 1, 4096);
    m->groups = config_int(r, key_of(r, "n_groups", "mamba_n_groups"), 8, 1, 1024);
    m->state = config_int(r, "ssm_state_size", 128, 1, 1024);
    m->taps = config_int(r, key_of(r, "conv_kernel", "mamba_d_conv"), 4, 2, 64);
    m->conv_bias = config_bool(r, key_of(r, "use_conv_bias", "mamba_conv_bias"), true);
    m->projects_bias = config_bool(r, "use_bias", false);
    config_choice(r, "mamba_hidden_act", acts, 0);
    if (m->heads % m->groups) config_fail(r, "%d heads of Mamba do not divide into %d groups", m->heads, m->groups);
    config_check_step_limit(r, key_of(r, "time_step_limit", "mamba_dt_limit"));
}

static void read_ffns(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"relu2", NULL};
    bool moe = false;
    config_choice(r, "mlp_hidden_act", acts, 0);
    c->no_up = true;
    c->glu = (struct glu){.is_relu = true};
    c->dense_inter = config_int(r, "intermediate_size", 21504, 1, 1 << 20);
    if (config_bool(r, "mlp_bias", false))
        config_fail(r, "'mlp_bias' is true; hearth supports Nemotron's FFNs without biases");
    for (int i = 0; i < c->n_layers; i++) moe |= c->layer[i].moe;
    const int experts = config_int(r, "n_routed_experts", 8, 1, 4096),
              topk = config_int(r, "num_experts_per_tok", 2, 1, 64),
              inter = config_int(r, "moe_intermediate_size", 7688, 1, 1 << 20),
              shared = config_int(r, "moe_shared_expert_intermediate_size", 7688, 1, 1 << 20);
    if (moe) c->n_experts = experts, c->topk = topk, c->moe_inter = inter, c->shared_inter = shared;
    if (config_has(r, "moe_latent_size")) c->moe_latent = config_int(r, "moe_latent_size", 0, 1, c->hidden);
    c->norm_topk = config_bool(r, "norm_topk_prob", true);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 1, 0, 1e6);
    c->score = SCORE_SIGMOID;
    deepseek_groups(r, c, 1, 1);
}

static void parse(struct config_reader *r, struct config *c) {
    /* Kernels, training, parts that hearth skips; n_shared_experts, expand, mamba_proj_bias and rotation, which the
     * reference does not read. */
    static const char *const unused[] = {"chunk_size",
                                         "mamba_chunk_size",
                                         "expand",
                                         "mamba_expand",
                                         "mamba_proj_bias",
                                         "mamba_ssm_cache_dtype",
                                         "use_mamba_kernels",
                                         "time_step_min",
                                         "time_step_max",
                                         "time_step_floor",
                                         "time_step_rank", /* of Mamba-1 */
                                         "mamba_dt_min",
                                         "mamba_dt_max",
                                         "mamba_dt_init_floor",
                                         "rescale_prenorm_residual",
                                         "residual_in_fp32",
                                         "num_logits_to_keep",
                                         "moe_shared_expert_overlap",
                                         "n_shared_experts",
                                         "norm_eps",
                                         "mtp_hybrid_override_pattern",
                                         "mtp_layers_block_type",
                                         "partial_rotary_factor",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         "attention_head_dim",
                                         NULL};
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
    config_read_gqa(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    if (config_has(r, "sliding_window"))
        config_fail(r, "'sliding_window' is set; hearth supports Nemotron's attention over all keys");
    read_blocks(r, c);
    rope_set_none(c);
    read_mamba(r, c);
    if (!r->rc) read_ffns(r, c);
}

#define L "backbone.layers.%d."
static const char *const types[] = {"nemotron_h", NULL};
static const char *const aliases[][2] = {{"rms_norm_eps", "layer_norm_epsilon"}, {NULL, NULL}};
const struct arch arch_nemotron_h = {
    .model_types = types,
    .title = "Nemotron-H",
    .norm_eps = 1e-5,
    .defaults =
        {.vocab = 131072, .hidden = 4096, .layers = 1, .context = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128},
    .parse = parse,
    .key_aliases = aliases,
    .names = {.embed = "backbone.embeddings",
              .norm = "backbone.norm_f",
              .head = "lm_head",
              .attn_norm = L "norm",
              .ffn_norm = L "norm",
              .q = L "mixer.q_proj",
              .k = L "mixer.k_proj",
              .v = L "mixer.v_proj",
              .o = L "mixer.o_proj",
              .mix_in = L "mixer.in_proj",
              .mix_conv = L "mixer.conv1d",
              .mix_rate = L "mixer.A_log",
              .mix_dt = L "mixer.dt_bias",
              .mix_skip = L "mixer.D",
              .mix_norm = L "mixer.norm",
              .mix_out = L "mixer.out_proj",
              .router = L "mixer.gate",
              .router_bias = L "mixer.gate.e_score_correction_bias",
              .expert_gate = L "mixer.experts.%d.up_proj",
              .expert_down = L "mixer.experts.%d.down_proj",
              .routed_in = L "mixer.fc1_latent_proj",
              .routed_out = L "mixer.fc2_latent_proj",
              .shared_gate_proj = L "mixer.shared_experts.up_proj",
              .shared_down = L "mixer.shared_experts.down_proj",
              .dense_gate = L "mixer.up_proj",
              .dense_down = L "mixer.down_proj"},
};
