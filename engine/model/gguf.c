#include "engine/model/gguf.h"

#include <stdio.h>
#include <string.h>

/* --- Tensors --- */

#define B "blk.%d."
#define NAMES \
    .embed = "token_embd", .norm = "output_norm", .head = "output", .attn_norm = B "attn_norm", .q = B "attn_q", .k = B "attn_k", .v = B "attn_v", \
    .o = B "attn_output", .q_norm = B "attn_q_norm", .k_norm = B "attn_k_norm", .sinks = B "attn_sinks.weight", .q_a = B "attn_q_a", \
    .q_a_norm = B "attn_q_a_norm", .q_b = B "attn_q_b", .kv_a = B "attn_kv_a_mqa", .kv_a_norm = B "attn_kv_a_norm", .kv_b = B "attn_kv_b", \
    .k_b = B "attn_k_b", .v_b = B "attn_v_b", .router = B "ffn_gate_inp", .router_bias = B "exp_probs_b.bias", .expert_gate = B "ffn_gate_exps", \
    .expert_up = B "ffn_up_exps", .expert_down = B "ffn_down_exps", .shared_gate_proj = B "ffn_gate_shexp", .shared_up = B "ffn_up_shexp", \
    .shared_down = B "ffn_down_shexp", .shared_gate = B "ffn_gate_inp_shexp", .dense_gate = B "ffn_gate", .dense_up = B "ffn_up", .dense_down = B "ffn_down", \
    .delta_qkvz = B "ssm_in", .delta_qkv = B "attn_qkv", .delta_z = B "attn_gate", .delta_ba = B "ssm_ba", .delta_out = B "ssm_out", \
    .delta_conv = B "ssm_conv1d", .delta_rate = B "ssm_a", .delta_dt = B "ssm_dt.bias", .delta_norm = B "ssm_norm"
static const struct tensor_names usual = {NAMES, .ffn_norm = B "ffn_norm"},
                                 around = {NAMES, .ffn_norm = B "ffn_norm", .attn_out_norm = B "post_attention_norm", .ffn_out_norm = B "post_ffw_norm"},
                                 post_norm = {NAMES, .ffn_norm = B "post_attention_norm"}, out_norm = {NAMES, .ffn_norm = B "attn_output_norm"},
                                 kimi = {NAMES,
                                         .ffn_norm = B "ffn_norm",
                                         .kda_q_conv = B "ssm_conv1d_q",
                                         .kda_k_conv = B "ssm_conv1d_k",
                                         .kda_v_conv = B "ssm_conv1d_v",
                                         .kda_beta = B "ssm_beta",
                                         .kda_decay = B "ssm_f_a",
                                         .kda_decay_up = B "ssm_f_b",
                                         .kda_gate = B "ssm_g_a",
                                         .kda_gate_up = B "ssm_g_b",
                                         .mix_rate = B "ssm_a",
                                         .mix_dt = B "ssm_dt.bias",
                                         .mix_norm = B "ssm_norm",
                                         .mix_out = B "attn_output"};

/* --- Metadata as config.json --------------------------------------------------------------------------------------------- */

enum { MAX_MEMBERS = 128 };
struct config_builder {
    struct arena *arena;
    const struct json *meta;
    const struct gguf_facts *facts;
    const char *what, *arch; /* arch: general.architecture, the prefix of its keys */
    struct json *items;      /* [2 * MAX_MEMBERS] */
    uint32_t n;
    struct error *e;
    int rc;
};

static const struct json *meta_of(const struct config_builder *t, const char *key) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", t->arch, key);
    return json_get(t->meta, name);
}

/* The last entry of a name wins: values from the file over defaults. */
static void put_member(struct config_builder *t, const char *key, size_t n, struct json v) {
    uint32_t i = 0;
    if (t->rc) return;
    while (i < t->n && (t->items[2 * i].n != n || memcmp(t->items[2 * i].string, key, n))) i++;
    if (i == MAX_MEMBERS) {
        t->rc = error_set(t->e, ERR_MODEL, "%s: more metadata of '%s' than a model's config has", t->what, t->arch);
        return;
    }
    t->items[2 * i] = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = key};
    t->items[2 * i + 1] = v;
    t->n += i == t->n;
}
static void put_json(struct config_builder *t, const char *key, struct json v) { put_member(t, key, strlen(key), v); }
static void put_int(struct config_builder *t, const char *key, int64_t v) { put_json(t, key, (struct json){.type = JSON_INT, .integer = v}); }
static void put_num(struct config_builder *t, const char *key, double v) { put_json(t, key, (struct json){.type = JSON_FLOAT, .number = v}); }
static void put_bool(struct config_builder *t, const char *key, bool v) { put_json(t, key, (struct json){.type = JSON_BOOL, .boolean = v}); }
static void put_text(struct config_builder *t, const char *key, const char *v) {
    put_json(t, key, (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(v), .string = v});
}

/* Returns a number, or the value of a per-layer list whose entries are all equal. */
static struct json uniform_value(struct config_builder *t, const char *key, const struct json *v) {
    if (v->type != JSON_ARRAY || !v->n) return *v;
    for (uint32_t i = 1; i < v->n && !t->rc; i++)
        if (v->items[i].type != v->items[0].type || json_num(&v->items[i], 0) != json_num(&v->items[0], 0))
            t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.%s' differs from layer to layer, which hearth does not know of this family", t->what, t->arch,
                              key);
    return v->items[0];
}

/* Keys that correspond to config.json keys. name NULL: read elsewhere in this file, or irrelevant. */
struct row {
    const char *key, *name;
};
static const struct row common[] = {
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"block_count", NULL},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_used_count", "num_experts_per_tok"},
    {"feed_forward_length", "intermediate_size"},
    {"nextn_predict_layers", "num_nextn_predict_layers"},
    {"rope.dimension_count", NULL},
    {"rope.freq_base", "rope_theta"},
    {"rope.scaling.attn_factor", NULL},
    {"rope.scaling.factor", NULL},
    {"rope.scaling.finetuned", NULL},
    {"rope.scaling.original_context_length", NULL},
    {"rope.scaling.type", NULL},
    {"rope.scaling.yarn_beta_fast", NULL},
    {"rope.scaling.yarn_beta_slow", NULL},
    {"rope.scaling.yarn_log_multiplier", NULL},
    {"vocab_size", NULL}, /* redundant: the number of embedding rows */
    {NULL, NULL},
};

static int64_t head_dim(const struct config_builder *t) {
    const struct json *key = meta_of(t, "attention.key_length");
    int64_t heads = json_int(meta_of(t, "attention.head_count"), 0);
    return key ? json_int(key, 0) : heads > 0 ? json_int(meta_of(t, "embedding_length"), 0) / heads : 0;
}

/* Opens an object inside the config. */
static bool open_object(struct config_builder *t, struct config_builder *in) {
    *in = *t;
    in->n = 0;
    if ((in->items = arena_alloc(t->arena, 24 * sizeof *in->items))) return true;
    t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    return false;
}
static void close_object(struct config_builder *t, const struct config_builder *in, const char *key) {
    t->rc = in->rc;
    put_json(t, key, (struct json){.type = JSON_OBJECT, .n = in->n, .items = in->items});
}
static void put_factors(struct config_builder *t, const char *key, const char *tensor, struct gguf_factors f) {
    struct json *v = f.v ? arena_alloc(t->arena, ((size_t)f.n + 1) * sizeof *v) : NULL;
    if (!f.v) return;
    if (!v) t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    for (uint32_t i = 0; v && i < f.n; i++) {
        if (!(f.v[i] > 0) && !t->rc)
            t->rc =
                error_set(t->e, ERR_MODEL, "%s: %s has %g at %u: frequencies are divided by it; hearth takes more than 0", t->what, tensor, (double)f.v[i], i);
        v[i] = (struct json){.type = JSON_FLOAT, .number = (double)f.v[i]};
    }
    put_json(t, key, (struct json){.type = JSON_ARRAY, .n = f.n, .items = v});
}

/* Translates rope.scaling.*, rope.dimension_count and factors; dim: rotary dimensions if the whole head is rotated. */
static void put_rope(struct config_builder *t, int64_t dim) {
    static const struct row rows[] = {
        {"rope.scaling.factor", "factor"},
        {"rope.scaling.original_context_length", "original_max_position_embeddings"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
        {"rope.scaling.attn_factor", "attention_factor"},
    };
    const struct gguf_facts *f = t->facts;
    const struct json *type = meta_of(t, "rope.scaling.type"), *count = meta_of(t, "rope.dimension_count"),
                      *log = meta_of(t, "rope.scaling.yarn_log_multiplier");
    if (count && dim > 0 && json_int(count, 0) != dim) put_num(t, "partial_rotary_factor", (double)json_int(count, 0) / (double)dim);
    const bool plain = !type || json_is(type, "none"), longrope = f->short_factors.v || f->long_factors.v;
    if ((f->freqs.v || longrope) && !plain && !(longrope && json_is(type, "longrope")) && !t->rc)
        t->rc =
            error_set(t->e, ERR_MODEL, "%s: factors of rotary frequencies beside metadata '%s.rope.scaling.type': hearth takes one of them", t->what, t->arch);
    const bool oss = !strcmp(t->arch, "gpt-oss"); /* its config implies YaRN */
    if (plain && !f->freqs.v && !longrope && !oss) return;
    struct config_builder in;
    if (!open_object(t, &in)) return;
    if (longrope) put_text(&in, "rope_type", "longrope");
    else if (f->freqs.v) put_text(&in, "rope_type", "factors");
    else if (plain) put_text(&in, "rope_type", "default");
    else put_json(&in, "rope_type", *type);
    put_factors(&in, "factors", "rope_freqs.weight", f->freqs);
    put_factors(&in, "short_factor", "rope_factors_short.weight", f->short_factors);
    put_factors(&in, "long_factor", "rope_factors_long.weight", f->long_factors);
    if (oss) put_bool(&in, "truncate", false); /* the vendor's value; GGUF has no key for it */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct json *v = meta_of(t, rows[i].key);
        if (v) put_json(&in, rows[i].name, *v);
    }
    if (log) { /* DeepSeek's two factors are equal, or the other one is not stored */
        put_num(&in, "mscale", json_num(log, 0) * 10);
        put_num(&in, "mscale_all_dim", json_num(log, 0) * 10);
    }
    close_object(t, &in, "rope_scaling");
}

static void tell_heads(struct config_builder *t) {
    const struct json *key = meta_of(t, "attention.key_length"), *value = meta_of(t, "attention.value_length");
    if (key) put_json(t, "head_dim", *key);
    if (value && json_int(value, 0) != head_dim(t) && !t->rc)
        t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.attention.value_length' is %lld, keys have %lld: hearth does not know that of this family",
                          t->what, t->arch, (long long)json_int(value, 0), (long long)head_dim(t));
    put_rope(t, head_dim(t));
}

static void tell_qwen2(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "norm_topk_prob", false);
}
static void tell_qwen3(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "norm_topk_prob", true);
}
/* llama.cpp reorders the rows of q and k so that the two elements of a rotated pair are adjacent. */
static void put_llama(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "rope_interleave", true);
}
static const char *llama_family(const struct config_builder *t) { return json_int(meta_of(t, "expert_count"), 0) > 0 ? "mixtral" : "llama"; }

/* --- Models without experts --- */

/* Biases of q, k and v show in the tensors; no family has one of o there. */
static void tell_seed_oss(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "attention_bias", t->facts->qkv_bias);
}
/* layers: those of the largest model, whose scale is by hidden / heads; of the others by the size of a head. */
static void tell_gemma(struct config_builder *t, int64_t layers) {
    const int64_t heads = json_int(meta_of(t, "attention.head_count"), 0), hidden = json_int(meta_of(t, "embedding_length"), 0);
    tell_heads(t);
    put_int(t, "query_pre_attn_scalar", json_int(meta_of(t, "block_count"), 0) == layers && heads > 0 ? hidden / heads : head_dim(t));
}
static void tell_gemma2(struct config_builder *t) { tell_gemma(t, 46); }
static void tell_gemma3(struct config_builder *t) { tell_gemma(t, 62); }
static void tell_phi3(struct config_builder *t) {
    const struct json *window = meta_of(t, "attention.sliding_window");
    tell_heads(t);
    put_bool(t, "lm_head_bias", t->facts->head_bias);
    if (window && json_int(window, 0) > 0) put_json(t, "sliding_window", *window);
}
static const char *olmo_family(const struct config_builder *t) { return meta_of(t, "attention.sliding_window") ? "olmo3" : "olmo2"; }

static const char *deepseek_family(const struct config_builder *t) {
    int64_t gating = json_int(meta_of(t, "expert_gating_func"), 0);
    return gating == 2 || t->facts->router_bias ? "deepseek_v3" : "deepseek_v2";
}
static void tell_deepseek(struct config_builder *t) {
    static const char *const scores[] = {"", "softmax", "sigmoid"};
    bool v3 = !strcmp(deepseek_family(t), "deepseek_v3");
    const struct json *mla = meta_of(t, "attention.key_length_mla"), *key = mla ? mla : meta_of(t, "attention.key_length");
    const struct json *value = mla ? meta_of(t, "attention.value_length_mla") : meta_of(t, "attention.value_length");
    int64_t rope = json_int(meta_of(t, "rope.dimension_count"), 0), gating = json_int(meta_of(t, "expert_gating_func"), v3 ? 2 : 1);
    put_int(t, "num_key_value_heads", json_int(meta_of(t, "attention.head_count"), 0)); /* the file's count is of the latent cache */
    put_int(t, "qk_rope_head_dim", rope);
    put_int(t, "qk_nope_head_dim", json_int(key, 0) - rope);
    put_int(t, "v_head_dim", json_int(value, 0));
    put_rope(t, 0);
    if (gating < 1 || gating > 2) {
        if (!t->rc)
            t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.expert_gating_func' is %lld; hearth knows 1 and 2", t->what, t->arch, (long long)gating);
        return;
    }
    put_text(t, "scoring_func", scores[gating]);
    put_text(t, "topk_method", v3 ? "noaux_tc" : json_int(meta_of(t, "expert_group_count"), 0) > 1 ? "group_limited_greedy" : "greedy");
    if (t->facts->split_kv_b) put_bool(t, "split_kv_b", true);
}

/* Lists the layers, counted from 1, whose number of KV heads is 0 (KDA) or not. */
static void put_layers(struct config_builder *in, const struct json *kv_heads, const char *key, bool kda) {
    struct json *layers = arena_alloc(in->arena, ((size_t)kv_heads->n + 1) * sizeof *layers);
    uint32_t n = 0;
    if (!layers) in->rc = error_set(in->e, ERR_MEMORY, "%s: no memory for its metadata", in->what);
    for (uint32_t i = 0; layers && i < kv_heads->n; i++)
        if ((json_int(json_at(kv_heads, i), -1) == 0) == kda) layers[n++] = (struct json){.type = JSON_INT, .integer = i + 1};
    put_json(in, key, (struct json){.type = JSON_ARRAY, .n = n, .items = layers});
}
static void tell_kimi(struct config_builder *t) {
    const struct json *kv_heads = meta_of(t, "attention.head_count_kv"), *dim = meta_of(t, "kda.head_dim"), *taps = meta_of(t, "ssm.conv_kernel");
    struct config_builder in;
    tell_deepseek(t);
    put_bool(t, "mla_use_nope", true);
    if (!t->rc && (!kv_heads || kv_heads->type != JSON_ARRAY))
        t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.attention.head_count_kv' is not a list; it is 0 in layers with Kimi delta attention", t->what,
                          t->arch);
    if (t->rc || !open_object(t, &in)) return;
    put_layers(&in, kv_heads, "kda_layers", true);
    put_layers(&in, kv_heads, "full_attn_layers", false);
    put_int(&in, "num_heads", json_int(meta_of(t, "attention.head_count"), 0));
    if (dim) put_json(&in, "head_dim", *dim);
    if (taps) put_json(&in, "short_conv_kernel_size", *taps);
    close_object(t, &in, "linear_attn_config");
}

static void tell_gpt_oss(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "attention_bias", true);
}
static void tell_glm4(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "attention_bias", t->facts->qkv_bias);
    put_bool(t, "use_qk_norm", t->facts->qk_norm);
}
static void tell_minimax(struct config_builder *t) {
    const struct json *key = meta_of(t, "attention.key_length"), *rotary = meta_of(t, "rope.dimension_count");
    if (key) put_json(t, "head_dim", *key);
    if (rotary) put_json(t, "rotary_dim", *rotary);
    put_rope(t, 0);
}

static const char *granite_family(const struct config_builder *t) {
    return meta_of(t, "expert_shared_feed_forward_length") ? "granitemoeshared" : "granitemoe";
}
static void tell_dots1(struct config_builder *t) {
    tell_heads(t);
    put_bool(t, "norm_topk_prob", false);
    if (json_int(meta_of(t, "expert_gating_func"), 2) != 2 && !t->rc)
        t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.expert_gating_func' is not 2, sigmoid", t->what, t->arch);
}
static void tell_bailing(struct config_builder *t) {
    tell_dots1(t);
    put_text(t, "score_function", "sigmoid");
    put_bool(t, "use_qk_norm", t->facts->qk_norm);
    put_bool(t, "moe_router_enable_expert_bias", t->facts->router_bias);
}

/* DBRX's config has two nested objects: attention and experts. */
static void put_nested(struct config_builder *in, const struct config_builder *t, const char *key, const char *name) {
    const struct json *v = meta_of(t, key);
    if (v) put_json(in, name, *v);
}
static void tell_dbrx(struct config_builder *t) {
    struct config_builder in;
    const struct json *eps = meta_of(t, "attention.layer_norm_epsilon");
    put_rope(t, head_dim(t));
    if (eps && (float)json_num(eps, 0) != 1e-5f && !t->rc)
        t->rc = error_set(t->e, ERR_MODEL, "%s: metadata 'dbrx.attention.layer_norm_epsilon' is %g; the reference has 1e-5", t->what, json_num(eps, 0));
    if (!open_object(t, &in)) return;
    put_nested(&in, t, "attention.head_count_kv", "kv_n_heads");
    put_nested(&in, t, "attention.clamp_kqv", "clip_qkv");
    put_nested(&in, t, "rope.freq_base", "rope_theta");
    close_object(t, &in, "attn_config");
    if (!open_object(t, &in)) return;
    put_nested(&in, t, "feed_forward_length", "ffn_hidden_size");
    put_nested(&in, t, "expert_count", "moe_num_experts");
    put_nested(&in, t, "expert_used_count", "moe_top_k");
    close_object(t, &in, "ffn_config");
}
static void tell_phimoe(struct config_builder *t) {
    const struct json *window = meta_of(t, "attention.sliding_window");
    tell_heads(t);
    put_bool(t, "attention_bias", t->facts->qkv_bias);
    put_bool(t, "lm_head_bias", t->facts->head_bias);
    if (window && json_int(window, 0) > 0) put_json(t, "sliding_window", *window);
}
static void tell_qwen3next(struct config_builder *t) {
    const struct json *inner = meta_of(t, "ssm.inner_size"), *layers = meta_of(t, "attention.recurrent_layers");
    int64_t heads = json_int(meta_of(t, "ssm.time_step_rank"), 0), n = json_int(meta_of(t, "block_count"), 0) - json_int(meta_of(t, "nextn_predict_layers"), 0);
    tell_heads(t);
    put_bool(t, "norm_topk_prob", true);
    if (heads > 0) put_int(t, "linear_value_head_dim", json_int(inner, 0) / heads);
    if (!layers || layers->type != JSON_ARRAY || n < 0 || layers->n < n) return;
    struct json *types = arena_alloc(t->arena, ((size_t)n + 1) * sizeof *types);
    if (!types) t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    for (uint32_t i = 0; types && i < n; i++) {
        const char *name = json_bool(json_at(layers, i), false) ? "linear_attention" : "full_attention";
        types[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
    put_json(t, "layer_types", (struct json){.type = JSON_ARRAY, .n = (uint32_t)n, .items = types});
}

#define DEEPSEEK_ROWS \
    {"attention.head_count_kv", NULL}, {"attention.key_length", NULL}, {"attention.key_length_mla", NULL}, {"attention.kv_lora_rank", "kv_lora_rank"}, \
        {"attention.q_lora_rank", "q_lora_rank"}, {"attention.value_length", NULL}, {"attention.value_length_mla", NULL}, \
        {"expert_count", "n_routed_experts"}, {"expert_gating_func", NULL}, {"expert_group_count", "n_group"}, {"expert_group_used_count", "topk_group"}, \
        {"expert_shared_count", "n_shared_experts"}, {"expert_weights_norm", "norm_topk_prob"}, {"expert_weights_scale", "routed_scaling_factor"}, { \
        "leading_dense_block_count", "first_k_dense_replace" \
    }
static const struct row olmoe_keys[] = {{"attention.key_length", NULL}, {"attention.value_length", NULL}, {"expert_count", "num_experts"}, {NULL, NULL}},
                        qwen3vl_keys[] = {{"attention.key_length", NULL},    {"attention.value_length", NULL},
                                          {"expert_count", "num_experts"},   {"n_deepstack_layers", NULL}, /* of images */
                                          {"rope.dimension_sections", NULL}, {NULL, NULL}},
                        granitemoe_keys[] = {{"attention.key_length", NULL},
                                             {"attention.scale", "attention_multiplier"},
                                             {"attention.value_length", NULL},
                                             {"embedding_scale", "embedding_multiplier"},
                                             {"expert_count", "num_local_experts"},
                                             {"expert_shared_feed_forward_length", "shared_intermediate_size"},
                                             {"logit_scale", "logits_scaling"},
                                             {"residual_scale", "residual_multiplier"},
                                             {NULL, NULL}},
                        ernie_keys[] = {{"attention.key_length", NULL},
                                        {"attention.value_length", NULL},
                                        {"expert_count", "moe_num_experts"},
                                        {"expert_shared_count", "moe_num_shared_experts"},
                                        {"expert_shared_feed_forward_length", NULL},
                                        {"expert_used_count", "moe_k"},
                                        {"interleave_moe_layer_step", "moe_layer_interval"},
                                        {"leading_dense_block_count", "moe_layer_start_index"},
                                        {NULL, NULL}},
                        hunyuan_keys[] = {{"attention.key_length", NULL},
                                          {"attention.value_length", NULL},
                                          {"expert_count", "num_experts"},
                                          {"expert_shared_count", "num_shared_expert"},
                                          {"expert_shared_feed_forward_length", NULL},
                                          {"expert_used_count", "moe_topk"},
                                          {NULL, NULL}},
                        bailing_keys[] = {{"attention.key_length", NULL},
                                          {"attention.value_length", NULL},
                                          {"expert_count", "n_routed_experts"},
                                          {"expert_gating_func", NULL},
                                          {"expert_group_count", "n_group"},
                                          {"expert_group_used_count", "topk_group"},
                                          {"expert_shared_count", "n_shared_experts"},
                                          {"expert_shared_feed_forward_length", NULL},
                                          {"expert_weights_norm", "norm_topk_prob"},
                                          {"expert_weights_scale", "routed_scaling_factor"},
                                          {"leading_dense_block_count", "first_k_dense_replace"},
                                          {NULL, NULL}},
                        qwen2_keys[] = {{"attention.key_length", NULL},
                                        {"attention.value_length", NULL},
                                        {"expert_count", "num_experts"},
                                        {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                                        {NULL, NULL}},
                        qwen3_keys[] = {{"attention.key_length", NULL},
                                        {"attention.value_length", NULL},
                                        {"expert_count", "num_experts"},
                                        {"expert_weights_norm", "norm_topk_prob"},
                                        {NULL, NULL}},
                        llama_keys[] = {{"attention.key_length", NULL}, {"attention.value_length", NULL}, {"expert_count", "num_local_experts"}, {NULL, NULL}},
                        heads_keys[] = {{"attention.key_length", NULL}, {"attention.value_length", NULL}, {NULL, NULL}},
                        window_keys[] = {{"attention.key_length", NULL},
                                         {"attention.sliding_window", "sliding_window"},
                                         {"attention.value_length", NULL},
                                         {"attn_logit_softcapping", "attn_logit_softcapping"},
                                         {"final_logit_softcapping", "final_logit_softcapping"},
                                         {"rope.freq_base_swa", "rope_local_base_freq"},
                                         {NULL, NULL}},
                        phi3_keys[] = {{"attention.key_length", NULL}, {"attention.sliding_window", NULL}, {"attention.value_length", NULL}, {NULL, NULL}},
                        granite_keys[] = {{"attention.key_length", NULL},
                                          {"attention.scale", "attention_multiplier"},
                                          {"attention.value_length", NULL},
                                          {"embedding_scale", "embedding_multiplier"},
                                          {"logit_scale", "logits_scaling"},
                                          {"residual_scale", "residual_multiplier"},
                                          {NULL, NULL}},
                        gpt_oss_keys[] = {{"attention.key_length", NULL},
                                          {"attention.sliding_window", "sliding_window"},
                                          {"attention.value_length", NULL},
                                          {"expert_count", "num_local_experts"},
                                          {"expert_feed_forward_length", "intermediate_size"},
                                          {"feed_forward_length", NULL},
                                          {NULL, NULL}},
                        glm4_keys[] = {{"attention.key_length", NULL},
                                       {"attention.value_length", NULL},
                                       {"expert_count", "n_routed_experts"},
                                       {"expert_gating_func", NULL},
                                       {"expert_group_count", "n_group"},
                                       {"expert_group_used_count", "topk_group"},
                                       {"expert_shared_count", "n_shared_experts"},
                                       {"expert_weights_norm", "norm_topk_prob"},
                                       {"expert_weights_scale", "routed_scaling_factor"},
                                       {"leading_dense_block_count", "first_k_dense_replace"},
                                       {NULL, NULL}},
                        dbrx_keys[] = {{"attention.clamp_kqv", NULL},
                                       {"attention.head_count_kv", NULL},
                                       {"attention.layer_norm_epsilon", NULL},
                                       {"expert_count", NULL},
                                       {"expert_used_count", NULL},
                                       {"feed_forward_length", NULL},
                                       {"rope.freq_base", NULL},
                                       {NULL, NULL}},
                        phimoe_keys[] = {{"attention.key_length", NULL},
                                         {"attention.sliding_window", NULL},
                                         {"attention.value_length", NULL},
                                         {"expert_count", "num_local_experts"},
                                         {NULL, NULL}},
                        qwen3next_keys[] = {{"attention.key_length", NULL},
                                            {"attention.recurrent_layers", NULL},
                                            {"attention.value_length", NULL},
                                            {"expert_count", "num_experts"},
                                            {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                                            {"full_attention_interval", "full_attention_interval"},
                                            {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                                            {"ssm.group_count", "linear_num_key_heads"},
                                            {"ssm.inner_size", NULL},
                                            {"ssm.state_size", "linear_key_head_dim"},
                                            {"ssm.time_step_rank", "linear_num_value_heads"},
                                            {NULL, NULL}},
                        minimax_keys[] = {{"attention.key_length", NULL},
                                          {"attention.value_length", NULL},
                                          {"expert_count", "num_local_experts"},
                                          {"expert_feed_forward_length", "intermediate_size"},
                                          {"expert_gating_func", NULL},
                                          {"feed_forward_length", NULL},
                                          {NULL, NULL}},
                        deepseek_keys[] = {DEEPSEEK_ROWS, {NULL, NULL}},
                        kimi_keys[] = {DEEPSEEK_ROWS, {"kda.head_dim", NULL}, {"ssm.conv_kernel", NULL}, {NULL, NULL}};

/* llama.cpp's name, the family, its tensor names, and derived values. */
static const struct known {
    const char *name, *model_type; /* NULL: family() decides */
    const struct tensor_names *names;
    const struct row *keys;
    void (*tell)(struct config_builder *t);
    const char *(*family)(const struct config_builder *t);
} table[] = {
    {"dbrx", "dbrx", &out_norm, dbrx_keys, tell_dbrx, NULL},
    {"deepseek2", NULL, &usual, deepseek_keys, tell_deepseek, deepseek_family},
    {"glm4moe", "glm4_moe", &post_norm, glm4_keys, tell_glm4, NULL},
    {"gpt-oss", "gpt_oss", &post_norm, gpt_oss_keys, tell_gpt_oss, NULL},
    {"llama", NULL, &usual, llama_keys, put_llama, llama_family},
    {"minimax-m2", "minimax_m2", &usual, minimax_keys, tell_minimax, NULL},
    {"phimoe", "phimoe", &usual, phimoe_keys, tell_phimoe, NULL},
    {"qwen2moe", "qwen2_moe", &usual, qwen2_keys, tell_qwen2, NULL},
    {"qwen3moe", "qwen3_moe", &usual, qwen3_keys, tell_qwen3, NULL},
    {"qwen3next", "qwen3_next", &post_norm, qwen3next_keys, tell_qwen3next, NULL},
    {"olmoe", "olmoe", &usual, olmoe_keys, tell_qwen2, NULL},
    {"granitemoe", NULL, &usual, granitemoe_keys, put_llama, granite_family},
    {"ernie4_5-moe", "ernie4_5_moe", &usual, ernie_keys, tell_heads, NULL},
    {"qwen3vlmoe", "qwen3_moe", &usual, qwen3vl_keys, tell_qwen3, NULL},
    {"hunyuan-moe", "hunyuan_v1_moe", &usual, hunyuan_keys, tell_heads, NULL},
    {"dots1", "dots1", &usual, glm4_keys, tell_dots1, NULL},
    {"bailingmoe2", "bailing_moe_v2", &usual, bailing_keys, tell_bailing, NULL},
    {"qwen2", "qwen2", &usual, heads_keys, tell_heads, NULL},
    {"qwen3", "qwen3", &usual, heads_keys, tell_heads, NULL},
    {"gemma2", "gemma2", &around, window_keys, tell_gemma2, NULL},
    {"gemma3", "gemma3_text", &around, window_keys, tell_gemma3, NULL},
    {"phi3", "phi3", &usual, phi3_keys, tell_phi3, NULL},
    {"smollm3", "smollm3", &usual, heads_keys, put_llama, NULL},
    {"glm4", "glm4", &around, heads_keys, tell_seed_oss, NULL},
    {"olmo2", NULL, &around, window_keys, tell_heads, olmo_family},
    {"seed_oss", "seed_oss", &post_norm, heads_keys, tell_seed_oss, NULL},
    {"granite", "granite", &usual, granite_keys, put_llama, NULL},
    {"kimi-linear", "kimi_linear", &kimi, kimi_keys, tell_kimi, NULL},
};

static const struct known *find_known(const struct json *meta) {
    const struct json *arch = json_get(meta, "general.architecture");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (json_is(arch, table[i].name)) return &table[i];
    return NULL;
}

int gguf_names(struct config *c, struct arena *a, const struct json *meta, const struct gguf_facts *f, struct error *e) {
    struct tensor_names *names = arena_alloc(a, sizeof *names);
    struct layout *layout = arena_alloc(a, sizeof *layout);
    if (!names || !layout) return error_set(e, ERR_MEMORY, "no memory for the names of tensors");
    *names = *find_known(meta)->names;
    *layout = (struct layout){.experts = true, .has_suffix = true, .qkv = f->qkv && !c->delta.taps, .gate_up = f->gate_up ? GATE_UP_STACKED : GATE_UP_SEPARATE};
    if (layout->qkv) names->q = names->k = names->v = B "attn_qkv";
    if (f->gate_up) names->expert_gate = names->expert_up = B "ffn_gate_up_exps";
    layout->dense_gate_up = c->n_experts ? GATE_UP_SEPARATE : c->arch->layout.dense_gate_up; /* shared experts are split */
    if (layout->dense_gate_up) names->dense_gate = names->dense_up;
    if (c->norm == NORM_RMS_PLUS_ONE) c->norm = NORM_RMS; /* the files' weights include the 1 */
    if (c->delta.taps) {                                  /* q, k, v and z are split unless the file is old */
        c->delta.fused = f->delta_in, c->delta.fused_ba = true;
    }
    c->delta.rates_converted = true;
    c->names = names;
    c->layout = layout;
    return 0;
}

void gguf_list(char *buf, size_t cap) {
    for (size_t i = 0, at = 0; i < sizeof table / sizeof *table && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%s", i ? ", " : "", table[i].name);
}

/* Tokens that end a turn regardless of the metadata: llama.cpp stops at them. */
static bool ends_turn(const struct json *s) {
    static const char *const names[] = {"<|eot_id|>",         "<|im_end|>",    "<|end|>", "<|return|>", "<|call|>",
                                        "<end_of_turn>",      "<|endoftext|>", "< EOT >", "_<EOT>",     "<｜end▁of▁sentence｜>",
                                        "<end_of_utterance>", "<|eom_id|>",    "[EOT]",   "[EOS]",      "<EOT>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(s, names[i])) return true;
    return false;
}

static void put_tokens(struct config_builder *t) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    const struct json *tokens = json_get(t->meta, "tokenizer.ggml.tokens"), *types = json_get(t->meta, "tokenizer.ggml.token_type"),
                      *bos = json_get(t->meta, "tokenizer.ggml.bos_token_id");
    struct json *ids = arena_alloc(t->arena, CONFIG_MAX_EOS * sizeof *ids);
    uint32_t n = 0;
    if (!ids) {
        t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
        return;
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const struct json *id = json_get(t->meta, ends[i]);
        if (id) ids[n++] = *id;
    }
    for (uint32_t i = 0; tokens && tokens->type == JSON_ARRAY && i < tokens->n && n < CONFIG_MAX_EOS; i++) {
        bool there = !ends_turn(&tokens->items[i]) || (types && json_int(json_at(types, i), 3) != 3 && json_int(json_at(types, i), 3) != 4);
        for (uint32_t k = 0; k < n; k++) there |= json_int(&ids[k], -1) == i;
        if (!there) ids[n++] = (struct json){.type = JSON_INT, .integer = i};
    }
    if (n) put_json(t, "eos_token_id", (struct json){.type = JSON_ARRAY, .n = n, .items = ids});
    if (bos) put_json(t, "bos_token_id", *bos);
}

/* Keys with a family-specific name in config.json. */
static void apply_key_aliases(struct config_builder *t) {
    const struct arch *arch = arch_find(&t->items[1], NULL); /* model_type is the first entry */
    for (int k = 0; arch && arch->key_aliases && arch->key_aliases[k][0]; k++)
        for (uint32_t i = 0; i < t->n; i++)
            if (json_is(&t->items[2 * i], arch->key_aliases[k][0]))
                t->items[2 * i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(arch->key_aliases[k][1]), .string = arch->key_aliases[k][1]};
}

int gguf_config(struct arena *a, const struct json *meta, const struct gguf_facts *f, const char *what, struct json *config, struct error *e) {
    const struct json *arch = json_get(meta, "general.architecture");
    const struct known *k = find_known(meta);
    if (!k) {
        char all[400];
        gguf_list(all, sizeof all);
        if (!arch || arch->type != JSON_STRING) return error_set(e, ERR_MODEL, "%s: metadata 'general.architecture' is missing; hearth knows %s", what, all);
        return error_set(e, ERR_MODEL, "%s: the architecture '%.*s' is unknown to hearth (llama.cpp may run it); of GGUF it knows %s", what,
                         (int)(arch->n < 60 ? arch->n : 60), arch->string, all);
    }
    struct config_builder t = {.arena = a, .meta = meta, .facts = f, .what = what, .arch = k->name, .e = e};
    if (!(t.items = arena_alloc(a, 2 * MAX_MEMBERS * sizeof *t.items))) return error_set(e, ERR_MEMORY, "%s: no memory for its metadata", what);
    put_text(&t, "model_type", k->family ? k->family(&t) : k->model_type);
    put_int(&t, "vocab_size", f->vocab);
    put_int(&t, "num_hidden_layers", json_int(meta_of(&t, "block_count"), 0) - json_int(meta_of(&t, "nextn_predict_layers"), 0));
    put_bool(&t, "tie_word_embeddings", f->tied);
    put_tokens(&t);
    k->tell(&t);
    size_t prefix = strlen(t.arch);
    for (uint32_t i = 0; i < meta->n && !t.rc; i++) {
        const struct json *key = &meta->items[2 * i], *v = key + 1;
        if (key->n <= prefix + 1 || memcmp(key->string, t.arch, prefix) || key->string[prefix] != '.') continue;
        const struct row *r = NULL, *lists[] = {k->keys, common};
        for (int l = 0; l < 2 && !r; l++)
            for (const struct row *at = lists[l]; at->key && !r; at++)
                if (key->n - prefix - 1 == strlen(at->key) && !memcmp(key->string + prefix + 1, at->key, strlen(at->key))) r = at;
        if (!r) put_member(&t, key->string, key->n, *v);
        else if (r->name) put_json(&t, r->name, uniform_value(&t, r->key, v));
    }
    apply_key_aliases(&t);
    *config = (struct json){.type = JSON_OBJECT, .n = t.n, .items = t.items};
    return t.rc;
}
