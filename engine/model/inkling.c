/* Inkling (text): no rotation, but learned biases of scores by distance; short convolutions on keys, values and both
 * blocks' outputs; shared experts inside the router's normalization, stored apart; other heads in layers with a window.
 * Reference: transformers, models/inkling (language model only). */
#include "engine/model/inkling.h"

#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Reads from a list with a name per layer which ones are called `name` rather than `other`; returns false if the key is
 * absent. */
static bool read_named(struct config_reader *r, const char *key, int layers, const char *name, const char *other,
                       bool out[CONFIG_MAX_LAYERS]) {
    const struct json *list = config_get(r, key);
    if (!list) return false;
    if (list->type != JSON_ARRAY || list->n != (uint32_t)layers)
        config_fail(r, "'%s' is not a list of %d", key, layers);
    for (int i = 0; i < layers && !r->rc; i++) {
        out[i] = json_is(json_at(list, (uint32_t)i), name);
        if (!out[i] && !json_is(json_at(list, (uint32_t)i), other))
            config_fail(r, "'%s' of layer %d is neither %s nor %s", key, i, name, other);
    }
    return true;
}

/* Reads which layers have a window: layer_types, or a list of numbers; without them, each layer but every `every`th. */
static void read_local_layers(struct config_reader *r, int layers, int every, bool local[CONFIG_MAX_LAYERS]) {
    const struct json *list = config_get(r, "local_layer_ids");
    if (read_named(r, "layer_types", layers, "hybrid_sliding", "hybrid", local)) return;
    if (list && list->type != JSON_ARRAY) config_fail(r, "'local_layer_ids' is not a list");
    for (int i = 0; i < layers && !list; i++) local[i] = (i + 1) % every;
    for (uint32_t k = 0; list && list->type == JSON_ARRAY && k < list->n; k++) {
        const int64_t i = json_int(json_at(list, k), -1);
        if (i < 0 || i >= layers) config_fail(r, "'local_layer_ids' names layer %lld of %d", (long long)i, layers);
        else local[i] = true;
    }
}

void inkling_read_layers(struct config_reader *r, struct config *c, int layers, const struct inkling_defaults *d) {
    const int window = config_int(r, "sliding_window_size", d->window, 1, 1 << 16),
              extent = config_int(r, "rel_extent", 1024, 1, 1 << 16),
              heads = config_int(r, "num_attention_heads", d->heads, 1, 1024),
              kv = config_int(r, "num_key_value_heads", 8, 1, 1024), dim = config_int(r, "head_dim", 128, 2, 1024),
              near_heads = config_int(r, "swa_num_attention_heads", d->near_heads, 1, 1024),
              near_kv = config_int(r, "swa_num_key_value_heads", d->near_kv, 1, 1024),
              near_dim = config_int(r, "swa_head_dim", 128, 2, 1024);
    bool local[CONFIG_MAX_LAYERS] = {0};
    read_local_layers(r, layers, 6, local);
    for (int i = 0; i < layers && !r->rc; i++) {
        struct layer_config *y = &c->layer[i];
        config_set_heads(r, c, i, local[i] ? near_heads : heads, local[i] ? near_kv : kv);
        y->head_dim = local[i] ? near_dim : dim;
        y->attn_scale = 1 / (d->scales_by_root ? sqrtf((float)y->head_dim) : (float)y->head_dim);
        y->window = local[i] ? window : 0;
        y->extent = local[i] ? window : extent;
    }
    c->head_dim = c->v_dim = dim > near_dim ? dim : near_dim;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
    c->rope = (struct rope_config){.kind = ROPE_DEFAULT, .dim = 2, .theta = 10000, .truncate = true};
}

/* Layers before dense_mlp_idx have a dense FFN; intermediate_size is the experts' where the config has
 * dense_intermediate_size too. */
static void read_ffns(struct config_reader *r, struct config *c, int layers) {
    const int dense = config_int(r, "dense_mlp_idx", 0, 0, CONFIG_MAX_LAYERS),
              inter = config_int(r, "intermediate_size", 24576, 1, 1 << 20);
    const bool has_dense_inter = config_has(r, "dense_intermediate_size");
    c->dense_inter = config_int(r, "dense_intermediate_size", inter, 1, 1 << 20);
    c->moe_inter = has_dense_inter ? inter : config_int(r, "moe_intermediate_size", 3072, 1, 1 << 20);
    config_ignore(r, "moe_intermediate_size");
    c->n_always = config_int(r, "n_shared_experts", 2, 1, 16);
    c->n_experts = config_int(r, "n_routed_experts", 256, 1, 4000) + c->n_always;
    c->topk = config_int(r, "num_experts_per_tok", 6, 1, 48) + c->n_always;
    c->score = SCORE_SIGMOID;
    c->router_bias = c->norm_topk = true;
    c->routed_scale = (float)config_num(r, "route_scale", 8, 0, 1e4);
    if (!config_bool(r, "shared_expert_sink", true))
        config_fail(r, "'shared_expert_sink' is false: the reference always scores the shared experts");
    config_ignore(r, "rms_norm_eps_moe_gate"); /* the reference's router has no norm */
    bool sparse[CONFIG_MAX_LAYERS] = {0};
    const bool named = read_named(r, "mlp_layer_types", layers, "sparse", "dense", sparse);
    for (int i = 0; i < layers; i++) c->layer[i].moe = named ? sparse[i] : i >= dense;
}

static void skip_media(struct config_reader *r) {
    static const char *const keys[] = {"vision_config",          "audio_config",        "mtp_config",
                                       "image_token_id",         "audio_token_id",      "image_bos_token_id",
                                       "audio_bos_token_id",     "mtp_local_layer_ids", "mtp_hidden_states_first",
                                       "chain_hidden_post_norm", "num_mtp_layers",      "number_of_conv_states"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) config_ignore(r, keys[i]);
}

int inkling_append_bare(struct config_reader *r, struct config *c) {
    const int layers = c->n_layers;
    if (layers == CONFIG_MAX_LAYERS) {
        config_fail(r, "%d layers; hearth takes up to %d", layers, CONFIG_MAX_LAYERS - 1);
        return 0;
    }
    c->layer[c->n_layers++] = (struct layer_config){.mixer = MIXER_NONE, .no_ffn = true};
    return layers;
}

static void parse(struct config_reader *r, struct config *c) {
    /* queries and keys are normed: no root */
    static const struct inkling_defaults defaults = {.window = 512, .heads = 64, .near_heads = 64, .near_kv = 16};
    const int layers = inkling_append_bare(r, c);
    if (!layers) return;
    skip_media(r);
    inkling_read_layers(r, c, layers, &defaults);
    read_ffns(r, c, layers);
    c->rel_dim = config_int(r, "d_rel", 16, 1, 1024);
    c->short_taps = config_int(r, config_either(r, "sconv_kernel_size", "conv_kernel_size"), 4, 2, 64);
    c->qk_norm = QK_NORM_HEAD;
    c->embed_norm = c->ffn_scale = true;
    config_keep_stream(c);
    c->logit_scale = 1 / (float)config_num(r, "logits_mup_width_multiplier", 24, 1e-6, 1e6);
    const int floor = config_int(r, "log_scaling_n_floor", 0, 0, 1 << 24);
    const float alpha = (float)config_num(r, "log_scaling_alpha", 0.1, 0, 1e3);
    if (floor) c->query_scale = (struct query_scale){.slope = alpha, .every = floor, .shift = 1, .kind = SCALE_SMOOTH};
    const int rows = config_int(r, "unpadded_vocab_size", c->vocab, 1, c->vocab); /* rows of the head */
    if (rows < c->vocab) c->embed_rows = c->vocab, c->vocab = rows;
}

#define L "model.llm.layers.%d."
static const char *const types[] = {"inkling_mm_model", NULL}, *const text[] = {"inkling_text", NULL};
const struct arch arch_inkling = {
    .model_types = types,
    .title = "Inkling",
    .defaults = {.vocab = 201024, .hidden = 6144, .layers = 66, .context = 131072},
    .text_config_key = "text_config",
    .parse = parse,
    .names = {.embed = "model.llm.embed",
              .embed_norm = "model.llm.embed_norm",
              .norm = "model.llm.norm",
              .head = "model.llm.unembed",
              .attn_norm = L "attn_norm",
              .ffn_norm = L "mlp_norm",
              .q = L "attn.wq_du",
              .k = L "attn.wk_dv",
              .v = L "attn.wv_dv",
              .o = L "attn.wo_ud",
              .q_norm = L "attn.q_norm",
              .k_norm = L "attn.k_norm",
              .rel = L "attn.wr_du",
              .rel_table = L "attn.rel_logits_proj.proj",
              .k_conv = L "attn.k_sconv",
              .v_conv = L "attn.v_sconv",
              .attn_conv = L "attn_sconv",
              .ffn_conv = L "mlp_sconv",
              .dense_scale = L "mlp.global_scale",
              .dense_gate = L "mlp.w13_dn",
              .dense_up = L "mlp.w13_dn",
              .dense_down = L "mlp.w2_md",
              .router = L "mlp.gate",
              .router_bias = L "mlp.gate.bias",
              .router_scale = L "mlp.gate.global_scale",
              .expert_gate = L "mlp.experts.w13_weight",
              .expert_up = L "mlp.experts.w13_weight",
              .expert_down = L "mlp.experts.w2_weight",
              .shared_gate_proj = L "mlp.shared_experts.shared_w13_weight",
              .shared_up = L "mlp.shared_experts.shared_w13_weight",
              .shared_down = L "mlp.shared_experts.shared_w2_weight"},
    .layout = {.experts = true, .gate_up = GATE_UP_INTERLEAVED, .dense_gate_up = GATE_UP_INTERLEAVED},
};
/* The text model alone, as transformers saves it. */
#define M "model."
#define T M "layers.%d."
const struct arch arch_inkling_text = {
    .model_types = text,
    .title = "Inkling",
    .defaults = {.vocab = 201024, .hidden = 6144, .layers = 66, .context = 131072},
    .parse = parse,
    .names = {NAMES_GQA(M), NAMES_QK_NORM(M), .embed_norm = M "embed_tokens.embed_norm", .rel = T "self_attn.r_proj",
              .rel_table = T "self_attn.rel_logits_proj.proj", .k_conv = T "self_attn.k_sconv.conv1d",
              .v_conv = T "self_attn.v_sconv.conv1d", .attn_conv = T "attn_sconv.conv1d",
              .ffn_conv = T "mlp_sconv.conv1d", .dense_scale = T "mlp.global_scale", NAMES_DENSE(M), NAMES_ROUTER(M),
              .router_bias = T "mlp.gate.e_score_correction_bias", .router_scale = T "mlp.gate.global_scale",
              NAMES_STACKED(M), NAMES_SHARED(M, "shared_experts")},
    .layout = {.experts = true, .gate_up = GATE_UP_STACKED},
};
