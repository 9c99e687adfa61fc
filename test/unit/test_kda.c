/* config.json of the families with Kimi delta attention: which layers have it, both kinds of decay, and what is
 * refused. */
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_check.h"
#include "test/unit/unit.h"

#include "base/ops.h"
#include "engine/exec/stream/slp.h"
#include "engine/kv/kv_cache.h"
#include "test/unit/parse_config.h"

#define MODEL(type, more) \
    "{\"model_type\":\"" type \
    "\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_heads\":4," \
    "\"intermediate_size\":512,\"max_position_embeddings\":4096,\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,\"qk_" \
    "rope_head_dim\":16,\"v_head_dim\":24," \
    "\"num_experts\":8,\"moe_intermediate_size\":64" more "}"
#define KIMI(layers, more) \
    MODEL("kimi_linear", ",\"linear_attn_config\":{\"kda_layers\":" layers \
                         ",\"num_heads\":3,\"head_dim\":20},\"num_experts_per_token\":2" more)
#define NOPE ",\"mla_use_nope\":true"
#define LING(more) \
    MODEL("bailing_hybrid", \
          ",\"layer_group_size\":2,\"head_dim\":20,\"num_experts_per_tok\":2,\"n_group\":1,\"topk_group\":1" more)

static void kimi_counts_layers_from_one(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, KIMI("[1,2,5]", NOPE ",\"model_max_length\":9000,\"moe_renormalize\":false"), false, &e),
                     0);
    assert_true(c.layer[1].mixer == MIXER_KDA && !c.layer[2].mixer && c.layer[4].mixer == MIXER_KDA &&
                c.max_context == 9000 && !c.norm_topk);
    assert_true(c.kda.heads == 3 && c.kda.dim == 20 && c.kda.rank == 20 && c.kda.taps == 4 && c.kda.bound == 0 &&
                c.layer[2].rope == LAYER_ROPE_NONE);
    /* three convolutions of four taps, and the state */
    assert_int_equal(kv_state_bytes(&c), 3 * 4 * (3 * 3 * 3 * 20 + 3 * 20 * 20));
}

static void ling_alternates(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, LING(",\"expert_swiglu_limit_list\":[1,2,3,4,null],\"first_k_dense_replace\":1"), false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_KDA && !c.layer[1].mixer && c.layer[2].mixer == MIXER_KDA);
    assert_int_equal(c.layer[4].mixer, MIXER_ATTENTION); /* in no complete group */
    assert_true(c.kda.heads == 4 && !c.kda.rank && c.kda.bound == -5 && c.attn_gate == ATTN_GATE_HEAD &&
                c.layer[1].rope == LAYER_ROPE_FIRST);
    assert_true(c.layer[0].glu_limit[0] == 0 && c.layer[1].glu_limit[0] == 2 && c.layer[4].glu_limit[0] == 0 &&
                c.glu.clamp_after);
    assert_int_equal(parse(&c,
                           LING(",\"kda_safe_gate\":false,\"partial_rotary_factor\":0.5,\"gated_attention_proj_"
                                "granularity_type\":\"element_wise\""),
                           false, &e),
                     0);
    assert_true(c.kda.bound == 0 && c.rope.dim == 16 && c.attn_gate == ATTN_GATE_ELEMENT);
}

#define GLM(more) \
    "{\"model_type\":\"glm5_next\",\"text_config\":{\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5," \
    "\"num_attention_heads\":4," \
    "\"intermediate_size\":512,\"max_position_embeddings\":4096,\"q_lora_rank\":64,\"kv_lora_rank\":64,\"qk_nope_" \
    "head_dim\":40,\"qk_rope_head_dim\":0," \
    "\"v_head_dim\":24,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64,\"rms_norm_" \
    "eps\":1e-5" more "}}"
#define GLM_LAYERS(layers) \
    ",\"linear_attn_config\":{\"kda_layers\":" layers ",\"num_heads\":3,\"head_dim\":20,\"gate_lower_bound\":-5}"
static void glm_as_saved(void **st) { /* by transformers, which may keep what it read */
    static const char *const differ[] = {",\"linear_num_heads\":4", ",\"linear_head_dim\":24",
                                         ",\"linear_lower_bound\":-4"};
    for (size_t i = 0; i < sizeof differ / sizeof *differ; i++) {
        struct config c;
        struct error e = {0};
        char text[2048];
        const char *const whole = GLM(GLM_LAYERS("[0,2]"));
        snprintf(text, sizeof text, "%.*s%s}}", (int)strlen(whole) - 2, whole, differ[i]);
        assert_int_equal(parse(&c, text, false, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, "'linear_attn_config"));
    }
}
static void glm_selects_blocks(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c,
              GLM(GLM_LAYERS("[0,2]") ",\"index_topk\":26,\"index_kpool\":4,\"swiglu_limit\":2.5,"
                                      "\"indexer_types\":[\"full\",\"full\",\"full\",\"shared\",\"full\"]"),
              false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_KDA && !c.layer[1].mixer && c.kda.bound == -5 && c.kda.rank == 20 &&
                c.attn == ATTN_DSA);
    /* six blocks of four hold 24 of the 26 keys */
    assert_true(c.index_block == 4 && c.index_topk == 6);
    /* layer 2 hands on layer 1's choice */
    static const uint8_t index[] = {INDEX_OWN, INDEX_OWN, INDEX_PREVIOUS, INDEX_PREVIOUS, INDEX_OWN};
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer[i].index, index[i]);
    assert_true(c.layer[1].rope == LAYER_ROPE_NONE && c.qk_rope == 0 && c.head_dim == 40 &&
                c.latent_eps == c.norm_eps && c.glu.limit == 2.5f);
    assert_true(c.streams.n == 4 && c.streams.iters == 20 && c.streams.is_averaged && !c.layer[0].moe &&
                c.layer[1].moe);
}

#define SOLAR(more) \
    "{\"model_type\":\"solar_open2\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_" \
    "heads\":4," \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"intermediate_size\":512,\"max_position_embeddings\":4096,\"n_routed_" \
    "experts\":8," \
    "\"moe_intermediate_size\":64" more "}"
#define SOLAR_KDA(more) \
    ",\"linear_attn_config\":{\"short_conv_kernel_size\":4,\"head_dim\":20,\"num_heads\":3,\"num_kv_heads\":null" more \
    "}"
static void solar_doubles_beta(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c,
                           SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0,4],\"gqa_interval\":3,\"kda_gate_lower_bound\":-5"),
                           false, &e),
                     0);
    assert_true(!c.layer[0].mixer && c.layer[1].mixer == MIXER_KDA && c.layer[3].mixer == MIXER_KDA &&
                !c.layer[4].mixer);
    assert_true(c.kda.heads == 3 && c.kda.dim == 20 && c.kda.rank == 20 && c.kda.bound == 0 && c.kda.doubles_beta &&
                c.attn_gate == ATTN_GATE_ELEMENT);
    assert_true(c.layer[0].rope == LAYER_ROPE_NONE && c.layer[0].moe && c.score == SCORE_SIGMOID && c.topk == 8 &&
                c.router_bias && !c.qkv_bias && !c.qk_norm);
    assert_int_equal(
        parse(
            &c,
            SOLAR(SOLAR_KDA(
                "") ",\"layer_types\":[\"linear_attention\",\"full_attention\",\"linear_attention\",\"full_attention\","
                    "\"linear_attention\"],\"use_rope\":true,\"use_qk_norm\":true,\"use_gqa_gate\":false,"
                    "\"kda_allow_neg_eigval\":false,\"first_k_dense_replace\":1"),
            false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_KDA && !c.layer[1].mixer && !c.kda.doubles_beta && !c.attn_gate &&
                c.qk_norm == QK_NORM_HEAD);
    assert_true(c.layer[1].rope == LAYER_ROPE_FIRST && c.rope.dim == 32 && c.rope.theta == 10000 && !c.layer[0].moe &&
                c.layer[1].moe);
}

#define LING25(more) \
    MODEL("bailing_hybrid", ",\"layer_group_size\":2,\"head_dim\":20,\"num_experts_per_tok\":2,\"n_group\":1,\"topk_" \
                            "group\":1,\"rope_theta\":6000000," \
                            "\"num_key_value_heads\":2" more)
#define LIGHTNING ",\"group_norm_size\":2,\"partial_rotary_factor\":0.5"
static void ling_with_lightning(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c,
              LING25(LIGHTNING
                     ",\"use_qk_norm\":true,\"rotary_dim\":10,\"linear_silu\":false,\"first_k_dense_replace\":1"),
              false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_LIGHTNING && !c.layer[1].mixer && c.layer[2].mixer == MIXER_LIGHTNING &&
                !c.layer[4].mixer);
    assert_true(c.lightning.heads == 4 && c.lightning.dim == 20 && c.lightning.norm_groups == 2 &&
                c.lightning.is_rotated && c.lightning.qk_norm);
    assert_true(c.layer[0].rope == LAYER_ROPE_SECOND && c.second_rope.dim == 10 && !c.second_rope.interleaved &&
                c.second_rope.theta == 6e6);
    assert_true(c.layer[1].rope == LAYER_ROPE_FIRST && c.rope.dim == 16 && c.rope.interleaved && !c.attn_gate &&
                c.score == SCORE_SIGMOID && c.router_bias);
    assert_int_equal(kv_state_bytes(&c), 2 * 4 * 4 * 20 * 20);
    /* twice the same key */
    assert_int_equal(parse(&c, LING25(LIGHTNING ",\"kda_safe_gate\":true,\"num_key_value_heads\":4"), false, &e),
                     ERR_MODEL);
    assert_int_equal(parse(&c, LING(",\"group_norm_size\":1,\"kda_safe_gate\":true"), true, &e), 0);
    assert_int_equal(c.layer[0].mixer, MIXER_KDA);
}

#define RING(more) \
    "{\"model_type\":\"bailing_moe_linear\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_" \
    "attention_heads\":4," \
    "\"num_key_value_heads\":2,\"head_dim\":20,\"intermediate_size\":512,\"max_position_embeddings\":4096,\"num_" \
    "experts\":8,\"num_experts_per_tok\":2," \
    "\"moe_intermediate_size\":64,\"n_group\":1,\"topk_group\":1,\"layer_group_size\":2" more "}"
static void ring_with_gqa(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, RING(LIGHTNING ",\"first_k_dense_replace\":1,\"linear_silu\":false"), false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_LIGHTNING && !c.layer[1].mixer && c.n_kv_heads == 2 &&
                c.qk_norm == QK_NORM_HEAD && c.attn == ATTN_GQA);
    assert_true(c.layer[0].rope == LAYER_ROPE_FIRST && c.rope.dim == 10 && !c.second_rope.dim &&
                c.rope.theta == 600000 && !c.rope.interleaved);
    assert_int_equal(parse(&c, RING(LIGHTNING ",\"use_qkv_bias\":true"), false, &e), ERR_MODEL);
}

#define K3(linear, more) \
    "{\"model_type\":\"kimi_k3\",\"media_placeholder_token_id\":5,\"image_placeholder\":\"x\",\"ignore_index\":-100," \
    "\"vision_config\":{}," \
    "\"tie_word_embeddings\":false,\"text_config\":" MODEL( \
        "kimi_linear", ",\"linear_attn_config\":{\"kda_layers\":[1,2,4],\"full_attn_layers\":[3,5]," \
                       "\"num_heads\":3,\"head_dim\":20,\"gate_lower_bound\":-5.0" linear \
                       "},\"num_experts_per_token\":2,\"hidden_act\":\"situ\",\"rms_norm_eps\":1e-5" NOPE more) "}"
#define FULL ",\"use_full_rank_gate\":true"
#define SITU ",\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0"
#define K3_ALL \
    ",\"attn_res_block_size\":2,\"routed_expert_hidden_size\":96,\"latent_moe_use_norm\":true,\"mla_use_output_" \
    "gate\":true,\"num_shared_experts\":2"
static void k3_reads_earlier_layers(void **st) {
    struct config c;
    struct error e = {0};
    if (parse(&c, K3(FULL, SITU K3_ALL), false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[1].mixer == MIXER_KDA && !c.layer[2].mixer && c.layer[3].mixer == MIXER_KDA &&
                c.kda.rank == 20 && !c.kda.gate_rank);
    assert_true(c.kda.rates_are_padded && c.kda.bound == -5 && c.attn_gate == ATTN_GATE_ELEMENT &&
                c.attn_gate_kind == GATE_SIGMOID);
    assert_true(c.streams.block_layers == 2 && c.streams.n == 4 && c.streams.sums_raw && c.streams.eps == c.norm_eps &&
                c.norm_eps == 1e-5f);
    assert_true(c.moe_latent == 96 && c.routed_sum_norm && c.shared_inter == 128 && c.glu.gate_cap == 4 &&
                c.glu.up_cap == 25 && c.routed_scale == 1);
    if (parse(&c, K3(FULL, SITU), false, &e)) fail_msg("%s", e.text); /* without the options */
    assert_true(!c.streams.n && !c.moe_latent && !c.routed_sum_norm && !c.attn_gate && !c.shared_inter);
    if (parse(&c,
              K3(FULL, ",\"activation_situ_beta\":0,\"activation_situ_linear_beta\":2,\"latent_moe_use_norm\":true"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.glu.gate_cap == 1 && c.glu.up_cap == 2 && !c.routed_sum_norm);
}
static void k3_parts_need_the_whole_sum(void **st) {
    struct config c;
    struct error e = {0};
    if (parse(&c, K3(FULL, SITU K3_ALL), false, &e)) fail_msg("%s", e.text);
    assert_null(slp_why_unsplittable(&c)); /* several devices add their parts before the sum is normed */
    struct config convolved = c;
    convolved.short_taps = 4; /* unlike states, rows before a stripe do not go from device to device */
    assert_non_null(strstr(slp_why_unsplittable(&convolved), "three times per layer, which is not built"));
}

#define KINDS "[\"linear_attention\",\"full_attention\",\"linear_attention\",\"full_attention\",\"linear_attention\"]"
static void refusals_name_the_key(void **st) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {KIMI("[1,2,6]", NOPE), "kda_layers"},
        {KIMI("[1,2,2]", NOPE), "kda_layers"},
        {KIMI("[0,2]", NOPE), "kda_layers"},
        {KIMI("3", NOPE), "kda_layers"},
        {KIMI("[1],\"full_attn_layers\":[2,3,4]", NOPE), "layer 5"},
        {KIMI("[1],\"gate\":2", NOPE), "linear_attn_config.gate"},
        {KIMI("[1]", ",\"mla_use_nope\":false"), "mla_use_nope"},
        {KIMI("[1]", NOPE ",\"use_grouped_topk\":false,\"num_expert_group\":2"), "use_grouped_topk"},
        {KIMI("[1,2,5]", NOPE ",\"linear_num_heads\":4"), "linear_num_heads"},
        {KIMI("[1,2,5]", NOPE ",\"linear_head_dim\":24"), "linear_head_dim"},
        {KIMI("[1,2,5]", NOPE ",\"layer_types\":" KINDS), "layer 1"},
        {MODEL("kimi_linear", ",\"num_experts_per_token\":2,\"layer_types\":" KINDS), "num_heads' is missing"},
        {GLM(GLM_LAYERS("[0,5]")), "kda_layers"},
        {GLM(GLM_LAYERS("[0]") ",\"layer_types\":[\"linear_attention\",0,0,0,0]"), "layer 1"},
        {GLM(GLM_LAYERS("[0]") ",\"index_kpool\":1"), "index_kpool"},
        {GLM(GLM_LAYERS("[0]") ",\"index_kpool_always_select_tail\":false"), "index_kpool_always_select_tail"},
        {GLM(GLM_LAYERS("[0]") ",\"mhc\":false"), "mhc"},
        {GLM(GLM_LAYERS("[0]") ",\"indexer_types\":[\"full\",\"shared\",\"full\",\"full\",\"full\"]"), "layer 1"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_interval\":3"), "'gqa_layers' and 'layer_types' are missing"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0,0]"), "gqa_layers"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[5]"), "gqa_layers"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":1"), "not a list"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0],\"layer_types\":" KINDS), "layer 0"},
        {SOLAR(",\"gqa_layers\":[0]"), "num_heads' is missing"},
        {SOLAR(",\"gqa_layers\":[0],\"linear_attn_config\":{\"num_heads\":4,\"head_dim\":20,\"num_kv_heads\":2}"),
         "num_kv_heads"},
        {SOLAR(SOLAR_KDA(",\"gate_lower_bound\":-5") ",\"gqa_layers\":[0]"), "linear_attn_config.gate_lower_bound"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0],\"kda_use_full_proj\":true"), "kda_use_full_proj"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0],\"use_gqa_gate_bias\":true"), "use_gqa_gate_bias"},
        {SOLAR(SOLAR_KDA("") ",\"gqa_layers\":[0],\"hc_rate\":4"), "hc_rate"},
        {LING25(",\"group_norm_size\":3,\"partial_rotary_factor\":0.5"), "group_norm_size"},
        {LING25(",\"group_norm_size\":2"), "partial_rotary_factor"},
        {LING25(LIGHTNING ",\"rotary_dim\":8"), "rotary_dim"},
        {LING25(LIGHTNING ",\"linear_silu\":true"), "linear_silu"},
        {LING25(LIGHTNING ",\"linear_rope\":false"), "linear_rope"},
        {LING25(LIGHTNING ",\"use_bias\":true"), "biases"},
        {LING25(LIGHTNING ",\"full_attention_type\":\"gqa\""), "full_attention_type"},
        {LING25(LIGHTNING ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}"), "rope_scaling"},
        {K3("", SITU), "use_full_rank_gate"},
        {KIMI("[1],\"use_full_rank_gate\":true", NOPE), "use_full_rank_gate"},
        {K3(FULL, ",\"activation_situ_beta\":4"), "activation_situ_linear_beta"},
        {K3(FULL, SITU ",\"attn_res_block_size\":0"), "attn_res_block_size"},
        {K3(FULL, SITU ",\"attention_bias\":true"), "attention_bias"},
        {K3(FULL, SITU ",\"routed_expert_hidden_size\":0"), "routed_expert_hidden_size"},
        {LING(",\"no_kda_lora\":false"), "no_kda_lora"},
        {LING(",\"gated_attention_proj_granularity_type\":\"none\""), "element_wise"},
        {LING(",\"use_qkv_bias\":true"), "biases"},
        {LING(",\"linear_head_dim\":24"), "linear_head_dim"},
        {LING(",\"short_conv_kernel_size\":4,\"linear_conv_kernel_dim\":3"), "linear_conv_kernel_dim"},
        {LING(",\"layer_types\":" KINDS), "layer 4"},
        {LING(",\"share_expert_swiglu_limit_list\":[1,2]"), "share_expert_swiglu_limit_list"},
    };
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kimi_counts_layers_from_one),
                                       cmocka_unit_test(ling_alternates),
                                       cmocka_unit_test(glm_selects_blocks),
                                       cmocka_unit_test(glm_as_saved),
                                       cmocka_unit_test(solar_doubles_beta),
                                       cmocka_unit_test(ling_with_lightning),
                                       cmocka_unit_test(ring_with_gqa),
                                       cmocka_unit_test(k3_reads_earlier_layers),
                                       cmocka_unit_test(k3_parts_need_the_whole_sum),
                                       cmocka_unit_test(refusals_name_the_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
