/* GGUF architectures whose layers are alike, except leading dense layers and the recurrent layers of Qwen3-Next. */
#include "engine/model/gguf_layers.h"

#include <math.h>
#include <string.h>

/* A dense FFN beside the experts, which the family reads as a shared expert. */
#define BESIDE_EXPERTS \
    GGUF_ENDS, GGUF_ATTENTION, .ffn_norm = GGUF_LAYER "ffn_norm", .router = GGUF_LAYER "ffn_gate_inp", \
                               .expert_gate = GGUF_LAYER "ffn_gate_exps", .expert_up = GGUF_LAYER "ffn_up_exps", \
                               .expert_down = GGUF_LAYER "ffn_down_exps", .shared_gate_proj = GGUF_LAYER "ffn_gate", \
                               .shared_up = GGUF_LAYER "ffn_up", .shared_down = GGUF_LAYER "ffn_down"
static const struct tensor_names standard_names = {GGUF_NAMES, .ffn_norm = GGUF_LAYER "ffn_norm"},
                                 no_gates = {GGUF_ENDS, GGUF_ATTENTION, .ffn_norm = GGUF_LAYER "ffn_norm",
                                             .dense_gate = GGUF_LAYER "ffn_up", .dense_down = GGUF_LAYER "ffn_down"},
                                 norms_around = {GGUF_NAMES, .ffn_norm = GGUF_LAYER "ffn_norm",
                                                 .attn_out_norm = GGUF_LAYER "post_attention_norm",
                                                 .ffn_out_norm = GGUF_LAYER "post_ffw_norm"},
                                 post_norm = {GGUF_NAMES, .ffn_norm = GGUF_LAYER "post_attention_norm"},
                                 arctic = {BESIDE_EXPERTS, .experts_norm = GGUF_LAYER "ffn_norm_exps"},
                                 grok = {BESIDE_EXPERTS, .attn_out_norm = GGUF_LAYER "attn_output_norm",
                                         .ffn_out_norm = GGUF_LAYER "post_ffw_norm"},
                                 out_norm = {GGUF_NAMES, .ffn_norm = GGUF_LAYER "attn_output_norm"},
                                 qwen35 = {GGUF_NAMES, .ffn_norm = GGUF_LAYER "post_attention_norm",
                                           .delta_b = GGUF_LAYER "ssm_beta", .delta_a = GGUF_LAYER "ssm_alpha"};

static void derive_qwen2(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "norm_topk_prob", false);
}
static void derive_qwen3(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "norm_topk_prob", true);
}
/* llama.cpp reorders the rows of q and k so that the two elements of a rotated pair are adjacent. */
static void put_llama(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "rope_interleave", true);
}
/* Factors of files from before llama.cpp wrote them are those of MiniCPM 2B. */
static void derive_minicpm(struct config_builder *t) {
    const int64_t layers = gguf_build_layers(t), hidden = json_int(gguf_build_meta(t, "embedding_length"), 0);
    put_llama(t);
    gguf_build_num(t, "attention_multiplier", 1 / sqrt((double)gguf_build_head_dim(t)));
    if (!gguf_build_meta(t, "embedding_scale")) gguf_build_num(t, "embedding_multiplier", 12);
    if (!gguf_build_meta(t, "residual_scale")) gguf_build_num(t, "residual_multiplier", 1.4 / sqrt((double)layers));
    if (!gguf_build_meta(t, "logit_scale")) gguf_build_num(t, "logits_scaling", (double)hidden / 256);
}
static const char *llama_family(const struct config_builder *t) {
    return json_int(gguf_build_meta(t, "expert_count"), 0) > 0 ? "mixtral" : "llama";
}

/* --- Models without experts ------------------------------------------------------------------- */

/* Biases of q, k and v show in the tensors; no family has one of o there. */
static void derive_seed_oss(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
}
/* Earlier ChatGLMs have the same layers and write no size of their heads. */
static void derive_chatglm(struct config_builder *t) {
    derive_seed_oss(t);
    gguf_build_int(t, "head_dim", gguf_build_head_dim(t));
    gguf_build_bool(t, "rope_interleave", true);
}
/* GLM-4.1V has sections of places; llama.cpp turns halves of heads there, and orders the rows of q and k so. */
static void derive_glm4_dense(struct config_builder *t) {
    const struct json *sections = gguf_build_meta(t, "rope.dimension_sections");
    derive_seed_oss(t);
    gguf_build_bool(t, "rope_interleave",
                    !(sections && json_int(json_at(sections, 0), 0) > 0 && json_int(json_at(sections, 1), 0) > 0));
}
/* Attention is scaled by hidden / heads in the family's largest model, which has `layers` layers, and by the size of a
 * head in the others. */
static void derive_gemma(struct config_builder *t, int64_t layers) {
    const int64_t heads = json_int(gguf_build_meta(t, "attention.head_count"), 0),
                  hidden = json_int(gguf_build_meta(t, "embedding_length"), 0);
    gguf_build_attention(t);
    gguf_build_int(t, "query_pre_attn_scalar",
                   json_int(gguf_build_meta(t, "block_count"), 0) == layers && heads > 0 ? hidden / heads
                                                                                         : gguf_build_head_dim(t));
}
static void derive_gemma2(struct config_builder *t) { derive_gemma(t, 46); }
static void derive_gemma3(struct config_builder *t) { derive_gemma(t, 62); }
static void derive_phi3(struct config_builder *t) {
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    gguf_build_attention(t);
    gguf_build_bool(t, "lm_head_bias", t->facts->head_bias);
    if (window && json_int(window, 0) > 0) gguf_build_json(t, "sliding_window", *window);
}
static const char *olmo_family(const struct config_builder *t) {
    return json_int(gguf_build_meta(t, "attention.sliding_window"), 0) > 0 ? "olmo3" : "olmo2";
}

static void derive_gpt_oss(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", true);
}
static void derive_glm4(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_build_bool(t, "use_qk_norm", t->facts->qk_norm);
}
static void derive_minimax(struct config_builder *t) {
    const struct json *key = gguf_build_meta(t, "attention.key_length"),
                      *rotary = gguf_build_meta(t, "rope.dimension_count");
    if (key) gguf_build_json(t, "head_dim", *key);
    if (rotary) gguf_build_json(t, "rotary_dim", *rotary);
    gguf_build_rope(t, 0);
}

static const char *granite_family(const struct config_builder *t) {
    return gguf_build_meta(t, "expert_shared_feed_forward_length") ? "granitemoeshared" : "granitemoe";
}
static void derive_dots1(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_bool(t, "norm_topk_prob", false);
    if (json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID) != GATING_SIGMOID && !t->rc)
        t->rc = error_set(t->e, ERR_MODEL, "%s: metadata '%s.expert_gating_func' is not 2, sigmoid", t->what, t->arch);
}
static void derive_bailing(struct config_builder *t) {
    derive_dots1(t);
    gguf_build_text(t, "score_function", "sigmoid");
    gguf_build_bool(t, "use_qk_norm", t->facts->qk_norm);
    gguf_build_bool(t, "moe_router_enable_expert_bias", t->facts->router_bias);
}

/* The shared experts' width is a multiple of a routed expert's; which layers have experts shows in the tensors. */
static const char *ffn_kind(const struct config_builder *t, int64_t layer) {
    return gguf_layers_has(t, layer, GGUF_HAS_ROUTER) ? "sparse" : "dense";
}
static void derive_hy3(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SIGMOID),
                  inter = gguf_layers_at(t, "expert_feed_forward_length", 0, 0),
                  shared = json_int(gguf_build_meta(t, "expert_shared_feed_forward_length"), inter);
    gguf_build_attention(t);
    if (gating < GATING_UNSET || gating > GATING_SIGMOID)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1 and 2", t->arch,
                        (long long)gating);
    if (inter <= 0 || shared % inter)
        gguf_build_fail(t,
                        "metadata '%s.expert_shared_feed_forward_length' is %lld, which is no multiple of "
                        "'expert_feed_forward_length', %lld",
                        t->arch, (long long)shared, (long long)inter);
    else gguf_build_int(t, "n_shared_experts", shared / inter);
    gguf_build_bool(t, "moe_router_use_sigmoid", gating != GATING_SOFTMAX);
    gguf_build_bool(t, "moe_router_enable_expert_bias", t->facts->router_bias);
    gguf_build_bool(t, "qk_norm", t->facts->qk_norm);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_layers_kinds(t, "mlp_layer_types", ffn_kind);
}

/* Ling 1: its router is softmax, and heads are in Llama's order. */
static void derive_ling1(struct config_builder *t) {
    put_llama(t);
    gguf_build_text(t, "score_function", "softmax");
    gguf_build_bool(t, "use_qkv_bias", t->facts->qkv_bias);
    gguf_build_bool(t, "norm_topk_prob", json_bool(gguf_build_meta(t, "expert_weights_norm"), false));
}

static void derive_arctic(struct config_builder *t) {
    put_llama(t);
    gguf_build_int(t, "moe_layer_frequency", 1);
    gguf_build_bool(t, "parallel_attn_mlp_res", true);
}

/* Grok-2 has a dense FFN beside the experts. */
static void derive_grok(struct config_builder *t) {
    gguf_build_attention(t);
    gguf_build_num(t, "attn_output_multiplier", 0.08838834764831845); /* of files without the key, which are Grok-1's */
    gguf_build_bool(t, "residual_moe", gguf_layers_has(t, 0, GGUF_HAS_FFN));
    if (json_is(gguf_build_meta(t, "rope.scaling.type"), "yarn") && !gguf_build_meta(t, "rope.scaling.yarn_beta_fast"))
        gguf_build_fail(
            t, "metadata '%s.rope.scaling.yarn_beta_fast' is missing: Grok's default is not that of other families",
            t->arch);
}

/* DeepSeek V1's files omit the norm of the weights, because no published model has it. */
static void derive_deepseek_v1(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SOFTMAX);
    if (gating != GATING_SOFTMAX)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1, softmax", t->arch,
                        (long long)gating);
    put_llama(t);
    gguf_build_bool(t, "norm_topk_prob", false);
}

/* DBRX's config has two nested objects: attention and experts. */
static void put_nested(struct config_builder *in, const struct config_builder *t, const char *key, const char *name) {
    const struct json *v = gguf_build_meta(t, key);
    if (v) gguf_build_json(in, name, *v);
}
static void derive_dbrx(struct config_builder *t) {
    struct config_builder in;
    const struct json *eps = gguf_build_meta(t, "attention.layer_norm_epsilon");
    gguf_build_rope(t, gguf_build_head_dim(t));
    if (eps && (float)json_num(eps, 0) != 1e-5f && !t->rc)
        t->rc =
            error_set(t->e, ERR_MODEL, "%s: metadata 'dbrx.attention.layer_norm_epsilon' is %g; the reference has 1e-5",
                      t->what, json_num(eps, 0));
    if (!gguf_build_open(t, &in)) return;
    put_nested(&in, t, "attention.head_count_kv", "kv_n_heads");
    put_nested(&in, t, "attention.clamp_kqv", "clip_qkv");
    put_nested(&in, t, "rope.freq_base", "rope_theta");
    gguf_build_close(t, &in, "attn_config");
    if (!gguf_build_open(t, &in)) return;
    put_nested(&in, t, "feed_forward_length", "ffn_hidden_size");
    put_nested(&in, t, "expert_count", "moe_num_experts");
    put_nested(&in, t, "expert_used_count", "moe_top_k");
    gguf_build_close(t, &in, "ffn_config");
}
static void derive_phimoe(struct config_builder *t) {
    const struct json *window = gguf_build_meta(t, "attention.sliding_window");
    gguf_build_attention(t);
    gguf_build_bool(t, "attention_bias", t->facts->qkv_bias);
    gguf_build_bool(t, "lm_head_bias", t->facts->head_bias);
    if (window && json_int(window, 0) > 0) gguf_build_json(t, "sliding_window", *window);
}
void gguf_build_qwen3next(struct config_builder *t) {
    const struct json *inner = gguf_build_meta(t, "ssm.inner_size"),
                      *layers = gguf_build_meta(t, "attention.recurrent_layers");
    int64_t heads = json_int(gguf_build_meta(t, "ssm.time_step_rank"), 0),
            n = json_int(gguf_build_meta(t, "block_count"), 0) -
                json_int(gguf_build_meta(t, "nextn_predict_layers"), 0);
    gguf_build_attention(t);
    if (json_int(gguf_build_meta(t, "expert_count"), 0) > 0) gguf_build_bool(t, "norm_topk_prob", true);
    if (heads > 0) gguf_build_int(t, "linear_value_head_dim", json_int(inner, 0) / heads);
    if (!layers || layers->type != JSON_ARRAY || n < 0 || layers->n < n) return;
    struct json *types = arena_alloc(t->arena, ((size_t)n + 1) * sizeof *types);
    if (!types) t->rc = error_set(t->e, ERR_MEMORY, "%s: no memory for its metadata", t->what);
    for (uint32_t i = 0; types && i < n; i++) {
        const char *name = json_bool(json_at(layers, i), false) ? "linear_attention" : "full_attention";
        types[i] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(name), .string = name};
    }
    gguf_build_json(t, "layer_types", (struct json){.type = JSON_ARRAY, .n = (uint32_t)n, .items = types});
}

/* The router is softmax, which the published config does not say either. */
static void derive_mistral4(struct config_builder *t) {
    const int64_t gating = json_int(gguf_build_meta(t, "expert_gating_func"), GATING_SOFTMAX);
    if (gating != GATING_SOFTMAX)
        gguf_build_fail(t, "metadata '%s.expert_gating_func' is %lld; hearth supports 1, softmax", t->arch,
                        (long long)gating);
    gguf_build_mla(t);
}

static const struct gguf_key
    olmoe_keys[] = {{"attention.key_length", NULL},
                    {"attention.value_length", NULL},
                    {"expert_count", "num_experts"},
                    {NULL, NULL}},
    qwen3vl_keys[] = {{"attention.key_length", NULL},
                      {"attention.value_length", NULL},
                      /* of images */
                      {"expert_count", "num_experts"},
                      {"n_deepstack_layers", NULL},
                      {"rope.dimension_sections", NULL},
                      {NULL, NULL}},
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
    hy3_keys[] = {GGUF_HEAD_KEYS,
                  GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                  {"expert_shared_count", NULL},
                  {"expert_shared_feed_forward_length", NULL},
                  {"leading_dense_block_count", NULL},
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
    llama_keys[] = {{"attention.key_length", NULL},
                    {"attention.value_length", NULL},
                    {"expert_count", "num_local_experts"},
                    {NULL, NULL}},
    glm4_dense_keys[] = {GGUF_HEAD_KEYS, {"rope.dimension_sections", NULL}, {NULL, NULL}},
    heads_keys[] = {{"attention.key_length", NULL}, {"attention.value_length", NULL}, {NULL, NULL}},
    nemotron_keys[] = {{"attention.key_length", NULL},
                       {"attention.layer_norm_epsilon", "norm_eps"},
                       {"attention.value_length", NULL},
                       {NULL, NULL}},
    window_keys[] = {{"attention.key_length", NULL},
                     {"attention.sliding_window", "sliding_window"},
                     {"attention.value_length", NULL},
                     {"attn_logit_softcapping", "attn_logit_softcapping"},
                     {"final_logit_softcapping", "final_logit_softcapping"},
                     {"rope.freq_base_swa", "rope_local_base_freq"},
                     {NULL, NULL}},
    phi3_keys[] = {{"attention.key_length", NULL},
                   {"attention.sliding_window", NULL},
                   {"attention.value_length", NULL},
                   {NULL, NULL}},
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
    qwen3next_keys[] = {GGUF_QWEN3NEXT_KEYS, {NULL, NULL}},
    minimax_keys[] = {{"attention.key_length", NULL},
                      {"attention.value_length", NULL},
                      {"expert_count", "num_local_experts"},
                      {"expert_feed_forward_length", "intermediate_size"},
                      {"expert_gating_func", NULL},
                      {"feed_forward_length", NULL},
                      {NULL, NULL}},
    mistral3_keys[] = {{"attention.key_length", NULL},
                       {"attention.temperature_length", NULL},
                       {"attention.temperature_scale", NULL},
                       {"attention.value_length", NULL},
                       {NULL, NULL}},
    mistral4_keys[] = {GGUF_DEEPSEEK_KEYS,
                       {"attention.temperature_length", NULL},
                       {"attention.temperature_scale", NULL},
                       {"expert_shared_feed_forward_length", NULL},
                       {NULL, NULL}},
    grok_keys[] = {GGUF_HEAD_KEYS,
                   {"attention.output_scale", "attn_output_multiplier"},
                   {"attention.temperature_length", "attn_temperature_len"},
                   {"attn_logit_softcapping", "attn_logit_softcapping"},
                   {"embedding_scale", "embedding_multiplier_scale"},
                   {"expert_count", "num_local_experts"},
                   {"final_logit_softcapping", "final_logit_softcapping"},
                   {"logit_scale", "output_multiplier_scale"},
                   {"router_logit_softcapping", "router_logit_softcapping"},
                   {NULL, NULL}},
    deepseek_v1_keys[] = {GGUF_HEAD_KEYS,
                          GGUF_ROUTER_KEYS("n_routed_experts", "routed_scaling_factor", "norm_topk_prob"),
                          {"expert_shared_count", "n_shared_experts"},
                          {"leading_dense_block_count", "first_k_dense_replace"},
                          {NULL, NULL}},
    deepseek_keys[] = {GGUF_DEEPSEEK_KEYS,
                       {"attention.temperature_length", NULL},
                       {"attention.temperature_scale", NULL},
                       {NULL, NULL}};

const struct gguf_arch gguf_archs[] = {
    {"dbrx", "dbrx", &out_norm, dbrx_keys, derive_dbrx, NULL},
    {"deepseek2", NULL, &standard_names, deepseek_keys, gguf_build_deepseek, gguf_build_deepseek_family},
    {"deepseek", "deepseek", &standard_names, deepseek_v1_keys, derive_deepseek_v1, NULL},
    {"arctic", "arctic", &arctic, llama_keys, derive_arctic, NULL},
    {"grok", "grok", &grok, grok_keys, derive_grok, NULL},
    {"glm4moe", "glm4_moe", &post_norm, glm4_keys, derive_glm4, NULL},
    {"gpt-oss", "gpt_oss", &post_norm, gpt_oss_keys, derive_gpt_oss, NULL},
    {"llama", NULL, &standard_names, llama_keys, put_llama, llama_family},
    {"minimax-m2", "minimax_m2", &standard_names, minimax_keys, derive_minimax, NULL},
    {"phimoe", "phimoe", &standard_names, phimoe_keys, derive_phimoe, NULL},
    {"qwen2moe", "qwen2_moe", &standard_names, qwen2_keys, derive_qwen2, NULL},
    {"qwen3moe", "qwen3_moe", &standard_names, qwen3_keys, derive_qwen3, NULL},
    {"qwen3next", "qwen3_next", &post_norm, qwen3next_keys, gguf_build_qwen3next, NULL},
    {"qwen35moe", "qwen3_5_moe_text", &qwen35, qwen3next_keys, gguf_build_qwen3next, NULL},
    {"qwen35", "qwen3_5_text", &qwen35, qwen3next_keys, gguf_build_qwen3next, NULL},
    {"olmoe", "olmoe", &standard_names, olmoe_keys, derive_qwen2, NULL},
    {"granitemoe", NULL, &standard_names, granitemoe_keys, put_llama, granite_family},
    {"ernie4_5-moe", "ernie4_5_moe", &standard_names, ernie_keys, gguf_build_attention, NULL},
    {"qwen3vlmoe", "qwen3_moe", &standard_names, qwen3vl_keys, derive_qwen3, NULL},
    {"hunyuan-moe", "hunyuan_v1_moe", &standard_names, hunyuan_keys, gguf_build_attention, NULL},
    {"hunyuan-dense", "hunyuan_v1_dense", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"dots1", "dots1", &standard_names, glm4_keys, derive_dots1, NULL},
    {"bailingmoe2", "bailing_moe_v2", &standard_names, bailing_keys, derive_bailing, NULL},
    {"bailingmoe", "bailing_moe", &standard_names, bailing_keys, derive_ling1, NULL},
    {"hy_v3", "hy_v3", &standard_names, hy3_keys, derive_hy3, NULL},
    {"qwen2", "qwen2", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"qwen2vl", "qwen2", &standard_names, qwen3vl_keys, gguf_build_attention, NULL},
    {"internlm2", "llama", &standard_names, heads_keys, put_llama, NULL},
    {"chatglm", "glm", &standard_names, heads_keys, derive_chatglm, NULL},
    {"exaone", "llama", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"qwen3", "qwen3", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"ernie4_5", "ernie4_5", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"qwen3vl", "qwen3", &standard_names, qwen3vl_keys, gguf_build_attention, NULL},
    {"gemma", "gemma", &standard_names, heads_keys, gguf_build_attention, NULL},
    {"gemma2", "gemma2", &norms_around, window_keys, derive_gemma2, NULL},
    {"gemma3", "gemma3_text", &norms_around, window_keys, derive_gemma3, NULL},
    {"phi3", "phi3", &standard_names, phi3_keys, derive_phi3, NULL},
    {"smollm3", "smollm3", &standard_names, heads_keys, put_llama, NULL},
    {"glm4", "glm4", &norms_around, glm4_dense_keys, derive_glm4_dense, NULL},
    {"olmo2", NULL, &norms_around, window_keys, gguf_build_attention, olmo_family},
    {"seed_oss", "seed_oss", &post_norm, heads_keys, derive_seed_oss, NULL},
    {"arcee", "arcee", &no_gates, heads_keys, put_llama, NULL},
    {"granite", "granite", &standard_names, granite_keys, put_llama, NULL},
    {"minicpm", "granite", &standard_names, granite_keys, derive_minicpm, NULL},
    {"nemotron", "nemotron", &no_gates, nemotron_keys, derive_seed_oss, NULL},
    {"mistral3", "ministral3", &standard_names, mistral3_keys, put_llama, NULL},
    {"mistral4", "mistral4", &standard_names, mistral4_keys, derive_mistral4, NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};
