/* config.json of each family: what is read, derived and refused. The formulae are checked by hand-worked numbers here
 * and with whole models in golden/. */
#include "engine/layer/kv_planes.h"
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/ops.h"
#include "engine/layer/block.h"
#include "engine/model/arch.h"
#include "engine/model/rope.h"
#include "test/unit/parse_config.h"

#define V3_PLAIN \
    "{\"model_type\":\"deepseek_v3\",\"vocab_size\":129280,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_" \
    "position_embeddings\":163840," \
    "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_" \
    "head_dim\":128,\"qk_rope_head_dim\":64," \
    "\"v_head_dim\":128,\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,\"num_" \
    "experts_per_tok\":8,\"n_group\":8," \
    "\"topk_group\":4,\"n_shared_experts\":1,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"norm_topk_prob\":" \
    "true,\"routed_scaling_factor\":2.5," \
    "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"num_" \
    "nextn_predict_layers\":1,\"eos_token_id\":1," \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,\"beta_fast\":32," \
    "\"beta_slow\":1,\"mscale\":1.0," \
    "\"mscale_all_dim\":1.0}"
#define V3 \
    V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}"
#define GROUPS(...) \
    V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{" __VA_ARGS__ "}}}"
#define GROUP(name, weights) "\"" name "\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}"

static void deepseek_v3_as_published(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, V3 "}", false, &e), 0);
    assert_true(c.attn == ATTN_MLA && c.head_dim == 192 && c.v_dim == 128 && c.shared_inter == 2048 &&
                c.score == SCORE_SIGMOID && c.group_top2);
    assert_true(!c.layer[2].moe && c.layer[3].moe && c.layer[60].moe);
    double m = 0.1 * log(40) + 1;
    assert_true(fabs(c.attn_scale - m * m / sqrt(192)) < 1e-7);
    float f[32];
    assert_true(rope_frequencies(&c.rope, f) == 1.0f); /* mscale / mscale_all_dim */
    /* low = floor(64 ln(4096/(32*2pi)) / (2 ln 1e4)) = 10, high = ceil(... 1 ...) = 23 */
    assert_true(fabsf(f[10] / (float)pow(1e4, -20.0 / 64) - 1) < 1e-6f);
    assert_true(fabsf(f[23] * 40 / (float)pow(1e4, -46.0 / 64) - 1) < 1e-5f);
    double mid = pow(1e4, -32.0 / 64), ramp = 6.0 / 13;
    assert_true(fabs(f[16] - (mid / 40 * ramp + mid * (1 - ramp))) < 1e-8);
    assert_int_equal(kv_token_bytes(&c, DT_BF16), 61 * 576 * 2);
    assert_int_equal(kv_token_bytes(&c, DT_E4M3), 61 * (576 + 4));
    /* Absorbed for decode, expanded for prefill. */
    assert_true(!block_expands_mla(&c, 0, 1) && !block_expands_mla(&c, 0, 8) && block_expands_mla(&c, 0, 512));
}

static void blocks_of_compressed_tensors(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c,
              GROUPS(GROUP("group_0", "\"num_bits\":8,\"type\":\"float\",\"block_structure\":[64,32]") "," GROUP(
                  "a", "\"num_bits\":8")),
              false, &e),
        0);
    assert_true(c.block_rows == 64 && c.block_cols == 32);
    assert_int_equal(
        parse(&c, GROUPS(GROUP("group_0", "\"num_bits\":8,\"type\":\"float\",\"block_structure\":null")), false, &e),
        0);
    assert_true(c.block_rows == 128 && c.block_cols == 128);
}

static void integers_of_each_method(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, GROUPS(GROUP("group_0", "\"num_bits\":4,\"type\":\"int\",\"group_size\":32")), false, &e), 0);
    assert_true(c.quant.method == QUANT_COMPRESSED && c.quant.group == 32);
    assert_int_equal(parse(&c,
                           GROUPS(GROUP("a", "\"num_bits\":4,\"group_size\":32") "," GROUP(
                               "b", "\"num_bits\":8,\"group_size\":128")),
                           false, &e),
                     0);
    assert_int_equal(c.quant.group, 0); /* the shapes tell */
    assert_int_equal(
        parse(&c, V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}", false,
              &e),
        0);
    assert_true(c.quant.method == QUANT_GPTQ && c.quant.group == 128 && c.quant.zeros_minus_one);
    assert_int_equal(
        parse(
            &c,
            V3_PLAIN
            ",\"quantization_config\":{\"quant_method\":\"gptq\",\"group_size\":-1,\"checkpoint_format\":\"gptq_v2\"}}",
            false, &e),
        0);
    assert_true(c.quant.bits == 4 && c.quant.group == 0 && !c.quant.zeros_minus_one);
    assert_int_equal(
        parse(
            &c,
            V3_PLAIN
            ",\"quantization_config\":{\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":64,\"version\":\"gemm\"}}",
            false, &e),
        0);
    assert_true(c.quant.method == QUANT_AWQ && c.quant.group == 64);
}

static void refusals_name_the_key(void **st) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {GROUPS(GROUP("group_0", "\"num_bits\":9,\"type\":\"int\"")), "9 bits"},
        {GROUPS(GROUP("group_0", "\"num_bits\":4,\"type\":\"int\",\"group_size\":31")), "group_size"},
        {GROUPS(GROUP("group_0", "\"block_structure\":[64]")), "block_structure"},
        {GROUPS(GROUP("a", "\"block_structure\":[64,64]") "," GROUP("b", "\"block_structure\":[128,128]")),
         "64 x 64 and of 128 x 128"},
        {V3 ",\"query_pre_attn_scalar\":256}", "query_pre_attn_scalar"},
        {V3 ",\"layer_types\":[\"linear_attention\"]}", "layer_types"},
        {V3 ",\"sliding_window\":128}", "sliding_window"},
        {V3 ",\"hidden_act\":\"relu\"}", "relu"},
        {V3 ",\"qk_head_dim\":100}", "qk_head_dim"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":3}", "gpt2"},
        {"{}", "model_type"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        struct error e = {0};
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, bad[i].word));
    }
    struct config c;
    struct error e = {0};
    /* --force */
    assert_int_equal(parse(&c, V3 ",\"query_pre_attn_scalar\":256}", true, &e), 0);
    /* inactive */
    assert_int_equal(
        parse(&c, V3 ",\"attn_thing\":null,\"other\":false,\"transformers_version\":\"4\",\"_x\":1}", false, &e), 0);
}

/* V3's numbers in another family, with more keys. */
static int parse_as(struct config *c, const char *family, const char *more, struct error *e) {
    static const char v3[] = V3, first[] = "{\"model_type\":\"deepseek_v3\"";
    char text[4096];
    snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s%s}", family, v3 + strlen(first), more);
    return parse(c, text, false, e);
}

/* Hunyuan 4's own: sinks and gates beside MLA, a clamp of the routed experts only, streams that are not mixed. */
static void hunyuan_4(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse_as(&c, "hy_v4", ",\"enable_ihc\":true,\"hc_magnitude\":1.5,\"swiglu_limit\":7", &e), 0);
    assert_true(c.attn == ATTN_DSA && c.index_heads == 16 && c.index_rope_last && !c.index_interleaved &&
                !c.rope.interleaved && c.index_eps == c.norm_eps);
    for (int l = 0; l < 6; l++) assert_int_equal(c.layer[l].index, "FFSSSF"[l] == 'F' ? INDEX_OWN : INDEX_PREVIOUS);
    assert_true(c.sinks && c.attn_gate == ATTN_GATE_ELEMENT && c.attn_gate_kind == GATE_SIGMOID);
    assert_true(c.streams.n == 4 && !c.streams.iters && c.streams.magnitude == 1.5f && c.streams.post_eps == 1e-6f &&
                !c.streams.is_plain);
    assert_true(config_glu(&c, 5, true).limit == 7 && config_glu(&c, 5, false).limit == 0);
    assert_int_equal(parse_as(&c, "hy_v4", ",\"swiglu_limit\":-1", &e), 0);
    assert_true(config_glu(&c, 5, true).limit == 0);
    assert_int_equal(parse_as(&c, "hy_v4", ",\"gated_mla\":false", &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "gated_mla"));
}

static void keys_chosen_by_an_indexer(void **st) {
    static const struct {
        const char *family, *more, *owners; /* of the first layers: F has an indexer, S reuses its selection */
    } good[] = {
        {"deepseek_v32", ",\"index_topk\":2048,\"index_n_heads\":64,\"index_head_dim\":128", "FFFFFF"},
        {"glm_moe_dsa", "", "FFFFFF"},
        {"glm_moe_dsa", ",\"index_topk_freq\":4", "FFSSSF"},
        {"glm_moe_dsa", ",\"index_topk_freq\":3,\"index_skip_topk_offset\":3", "FFFSSF"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FSSFSFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"",
         "FSSFSF"},
    };
    static const struct {
        const char *family, *more, *word;
    } bad[] = {
        {"deepseek_v32", ",\"index_topk_pattern\":\"FS\"", "index_topk_pattern"},
        {"deepseek_v32", ",\"index_head_dim\":32", "index_head_dim"},
        {"deepseek_v32", ",\"layer_types\":[\"full_attention\"]", "layer_types"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FS\"", "index_topk_pattern"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"SFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"",
         "first layer"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FXFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"",
         "layer 1"},
        {"glm_moe_dsa", ",\"index_topk\":0", "index_topk"},
    };
    struct config c;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct error e = {0};
        assert_int_equal(parse_as(&c, good[i].family, good[i].more, &e), 0);
        assert_true(c.attn == ATTN_DSA && c.index_topk == 2048 && c.index_heads == (i ? 32 : 64) &&
                    c.index_dim == 128 && c.index_interleaved == (i > 0));
        for (int l = 0; good[i].owners[l]; l++)
            assert_int_equal(c.layer[l].index, good[i].owners[l] == 'F' ? INDEX_OWN : INDEX_PREVIOUS);
        assert_int_equal(kv_row_bytes(&c, 1, DT_BF16), 2 * (576 + (good[i].owners[1] == 'F' ? 128 : 0)));
        /* the indexer's keys stay BF16 */
        assert_int_equal(kv_row_bytes(&c, 1, DT_E4M3), 576 + 4 + (good[i].owners[1] == 'F' ? 2 * 128 : 0));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error e = {0};
        assert_int_equal(parse_as(&c, bad[i].family, bad[i].more, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, bad[i].word));
    }
}

static void other_ropes(void **st) {
    struct rope_config r = {.kind = ROPE_LINEAR, .dim = 8, .theta = 100, .factor = 4};
    float f[4];
    assert_true(rope_frequencies(&r, f) == 1 && fabsf(f[0] - 0.25f) < 1e-7f);
    r = (struct rope_config){.kind = ROPE_LLAMA3,
                             .dim = 64,
                             .theta = 500000,
                             .factor = 8,
                             .low_freq = 1,
                             .high_freq = 4,
                             .original_max = 8192};
    float g[32];
    rope_frequencies(&r, g);
    assert_true(g[0] == 1.0f && fabs(g[31] * 8 / pow(500000, -62.0 / 64) - 1) < 1e-5);
    r = (struct rope_config){.kind = ROPE_YARN,
                             .dim = 8,
                             .theta = 100,
                             .factor = 4,
                             .original_max = 64,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .truncate = true};
    assert_true(fabs(rope_frequencies(&r, f) - (0.1 * log(4) + 1)) < 1e-6); /* no mscale given */
}

#define BARE(type, more) BARE_OF(type, "\"num_experts_per_tok\":2", more)
#define BARE_OF(type, topk, more) \
    "{\"model_type\":\"" type \
    "\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":6,\"max_position_embeddings\":512," \
    "\"num_attention_heads\":4,\"intermediate_size\":64," topk "," more "}"
#define ROUTED      "\"moe_intermediate_size\":32,\"n_routed_experts\":16,\"n_shared_experts\":1"
#define ROUTED_ONLY "\"moe_intermediate_size\":32,\"n_routed_experts\":16"
/* As transformers saves MiMo. */
#define SAVED_KINDS ",\"num_key_value_heads\":1,\"layer_types\":[" SIX("\"full_attention\"") "]"
#define NUMBERED    "\"moe_intermediate_size\":32,\"num_experts\":8"

#define LATENT_ONLY \
    "\"q_lora_rank\":32,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"v_head_dim\":16"
#define LATENT LATENT_ONLY "," ROUTED

/* Copied by hand from transformers' configuration classes, which supply the defaults of keys that a config omits. */
static void what_a_config_leaves_out(void **st) {
    static const struct {
        const char *text;
        double eps, theta, scale;
        int dense, groups, best;
        bool norm;
    } want[] = {
        {BARE("deepseek_v3", LATENT), 1e-6, 10000, 2.5, 3, 8, 4, true},
        {BARE("joyai_llm_flash", LATENT), 1e-6, 10000, 2.5, 3, 8, 4, true},
        {BARE("deepseek_v32", LATENT), 1e-6, 10000, 2.5, 3, 8, 4, true},
        {BARE("glm_moe_dsa", LATENT), 1e-5, 10000, 2.5, 3, 1, 1, true},
        {BARE("deepseek_v2", LATENT), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("glm4_moe", ROUTED), 1e-5, 10000, 1, 1, 1, 1, true},
        {BARE("mixtral", "\"num_key_value_heads\":2,\"num_local_experts\":8"), 1e-5, 1e6, 1, 0, 1, 1, true},
        {BARE("phimoe", "\"num_local_experts\":8"), 1e-5, 1e6, 1, 0, 1, 1, false},
        {BARE("gpt_oss", "\"num_local_experts\":8"), 1e-5, 150000, 1, 0, 1, 1, true},
        {BARE("minimax_m2", "\"num_local_experts\":8,\"rotary_dim\":16"), 1e-6, 5e6, 1, 0, 1, 1, true},
        {BARE("qwen3_moe", "\"num_experts\":8,\"moe_intermediate_size\":32"), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("qwen2_moe", "\"num_experts\":8,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32"),
         1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("olmoe", "\"num_experts\":8"), 1e-5, 10000, 1, 0, 1, 1, false},
        {BARE("flex_olmo", "\"num_experts\":8"), 1e-6, 500000, 1, 0, 1, 1, false},
        {BARE("granitemoe", "\"num_local_experts\":8"), 1e-6, 10000, 1, 0, 1, 1, true},
        {BARE_OF("ernie4_5_moe", "\"moe_k\":2", "\"moe_num_experts\":8,\"moe_intermediate_size\":32"), 1e-5, 500000, 1,
         1, 1, 1, true},
        {BARE("glm4_moe_lite", LATENT), 1e-5, 10000, 1.8, 1, 1, 1, true},
        {BARE("solar_open", ROUTED), 1e-5, 1e6, 1, 0, 1, 1, true},
        {BARE("dots1", ROUTED), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("hy_v3", NUMBERED), 1e-5, 11158840, 2.826, 1, 1, 1, true},
        {BARE("bailing_moe_v2", NUMBERED), 1e-6, 600000, 1, 0, 1, 1, true},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2", NUMBERED), 1e-5, 10000, 1, 0, 1, 1, true},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32"), 1e-6, 500000, 1, 1, 1, 1, true},
        {BARE_OF("aria_text", "\"moe_topk\":2", "\"moe_num_experts\":8"), 1e-6, 10000, 1, 0, 1, 1, true},
        {BARE("axk1", LATENT), 1e-6, 10000, 2.5, 1, 8, 4, true},
        {BARE("bailing_hybrid",
              LATENT_ONLY ",\"head_dim\":16,\"layer_group_size\":3,\"moe_intermediate_size\":32,\"num_experts\":16"),
         1e-6, 6e6, 2.5, 2, 8, 4, true},
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":1", "\"num_local_experts\":8"), 1e-5, 500000, 1, 0, 1, 1,
         false},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct config c;
        struct error e = {0};
        if (parse(&c, want[i].text, false, &e)) fail_msg("%s: %s", want[i].text, e.text);
        int dense = 0, groups = c.n_group > 1 ? c.n_group : 1, best = c.topk_group > 1 ? c.topk_group : 1;
        while (!c.layer[dense].moe) dense++;
        if (fabs(c.norm_eps / want[i].eps - 1) > 1e-6 || c.rope.theta != want[i].theta ||
            fabs(c.routed_scale - want[i].scale) > 1e-6 || dense != want[i].dense || groups != want[i].groups ||
            best != want[i].best || c.norm_topk != want[i].norm)
            fail_msg("%s: eps %g theta %g scale %g dense %d groups %d of which %d, norm %d", c.model_type,
                     (double)c.norm_eps, c.rope.theta, (double)c.routed_scale, dense, groups, best, c.norm_topk);
        if (!strcmp(c.model_type, "gpt_oss"))
            assert_true(c.rope.kind == ROPE_YARN && c.rope.factor == 32 && c.rope.original_max == 4096 &&
                        !c.rope.truncate);
        else assert_true(c.rope.kind == ROPE_DEFAULT);
    }
}

/* A number that config.json leaves out is the family's; null says that there is none. */
static void left_out_or_null(void **st) {
    struct config c;
    struct error e = {0};
    if (parse(&c, BARE_OF("glm4", "\"num_key_value_heads\":2", "\"attention_bias\":false"), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.norm_eps == 1.5625e-7f);
    if (parse(&c, BARE("deepseek_v3", LATENT_ONLY "," ROUTED_ONLY), false, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.shared_inter, 32);
    if (parse(&c, BARE("deepseek_v3", LATENT_ONLY "," ROUTED_ONLY ",\"n_shared_experts\":null"), false, &e))
        fail_msg("%s", e.text);
    assert_int_equal(c.shared_inter, 0);
    if (parse(&c, BARE("mimo_v2_flash", ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,0,0,0,0,0]"), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.v_scale == 0.707f);
    if (parse(
            &c,
            BARE("mimo_v2_flash", ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,0,0,0,0,0],\"attention_value_scale\":null"),
            false, &e))
        fail_msg("%s", e.text);
    assert_true(c.v_scale == 1);
    if (parse(&c, BARE("qwen3_next", NUMBERED ",\"shared_expert_intermediate_size\":32"), false, &e))
        fail_msg("%s", e.text);
    assert_int_equal(c.n_kv_heads, 2);
}

/* Copied by hand from transformers' configuration classes, as above. */
static void heads_and_experts_left_out(void **st) {
    (void)st;
#define NO_TOPK(type, more) BARE_OF(type, "\"use_cache\":true", more)
    static const struct {
        const char *text;
        int topk;
    } experts[] = {
        {NO_TOPK("mixtral", "\"num_key_value_heads\":2,\"num_local_experts\":12"), 2},
        {NO_TOPK("qwen2_moe", "\"num_experts\":12,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32"),
         4},
        {NO_TOPK("qwen3_moe", "\"num_experts\":12,\"moe_intermediate_size\":32"), 8},
        {NO_TOPK("qwen3_next",
                 "\"num_experts\":12,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32"),
         10},
        {NO_TOPK("ernie4_5_moe", "\"num_key_value_heads\":2,\"moe_num_experts\":12,\"moe_intermediate_size\":32"), 6},
        {NO_TOPK("minimax_m2", "\"num_local_experts\":12,\"rotary_dim\":16"), 8},
        {NO_TOPK("deepseek_v3", LATENT), 8},
        {NO_TOPK("glm4_moe", ROUTED), 8},
        {NO_TOPK("glm4_moe_lite", LATENT), 4},
        {NO_TOPK("cohere2_moe", "\"num_experts\":12,\"prefix_dense_intermediate_size\":64"), 2},
        {NO_TOPK("afmoe", "\"num_experts\":12,\"moe_intermediate_size\":32"), 6},
        {NO_TOPK("mimo_v2_flash", ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,0,0,0,0,0]"), 8},
    };
#define NO_HEADS(type, more) \
    "{\"model_type\":\"" type \
    "\",\"vocab_size\":100,\"hidden_size\":640,\"num_hidden_layers\":2,\"max_position_embeddings\":512," \
    "\"intermediate_size\":64," more "}"
    static const struct {
        const char *text;
        int heads, kv_heads;
    } attention[] = {
        {NO_HEADS("mixtral", "\"num_local_experts\":8"), 32, 8},
        {NO_HEADS("qwen2_moe", "\"num_experts\":8,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32"),
         16, 16},
        {NO_HEADS("ernie4_5_moe", "\"moe_num_experts\":8,\"moe_intermediate_size\":32"), 20, 4},
        {NO_HEADS("ernie4_5", "\"use_bias\":false"), 16, 2},
    };
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        if (parse(&c, experts[i].text, false, &e)) fail_msg("%s: %s", experts[i].text, e.text);
        if (c.topk != experts[i].topk) fail_msg("%s: %d experts a token", c.model_type, c.topk);
    }
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++) {
        if (parse(&c, attention[i].text, false, &e)) fail_msg("%s: %s", attention[i].text, e.text);
        if (c.n_heads != attention[i].heads || c.n_kv_heads != attention[i].kv_heads)
            fail_msg("%s: %d heads, %d", c.model_type, c.n_heads, c.n_kv_heads);
    }
    assert_int_equal(parse(&c, NO_TOPK("dots1", ROUTED), false, &e), ERR_MODEL); /* whose class has no such number */
    assert_non_null(strstr(e.text, "'num_experts_per_tok' is missing"));
}

/* Layers that differ in heads, rotation, windows and activation. */
static void layers_of_several_kinds(void **st) {
    struct config c;
    struct error e = {0};
    static const char laguna[] = BARE(
        "laguna", NUMBERED
        ",\"shared_expert_intermediate_size\":32,\"num_key_value_heads\":2,\"num_attention_heads_per_layer\":[4,6,6,6,"
        "4,6],"
        "\"sliding_window\":40,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\","
        "\"sliding_attention\","
        "\"full_attention\",\"sliding_attention\"],\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5,"
        "\"partial_rotary_factor\":0.5},"
        "\"sliding_attention\":{\"rope_theta\":1e4}},\"gating\":\"per-element\",\"moe_router_logit_softcapping\":30");
    if (parse(&c, laguna, false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_heads == 6 && config_heads(&c, 0) == 4 && config_heads(&c, 1) == 6 && config_kv_heads(&c, 1) == 2);
    assert_true(c.rope.dim == 8 && c.second_rope.dim == 16 && c.second_rope.theta == 1e4 &&
                c.layer[0].rope == LAYER_ROPE_FIRST);
    assert_true(c.layer[1].rope == LAYER_ROPE_SECOND && c.layer[1].window == 40 && !c.layer[4].window);
    assert_true(c.attn_gate == ATTN_GATE_ELEMENT && c.attn_gate_kind == GATE_SOFTPLUS && c.router_cap == 30);
    static const char llama4[] = BARE_OF(
        "llama4_text", "\"num_experts_per_tok\":1",
        "\"num_local_experts\":8,\"attention_chunk_size\":48,\"attn_temperature_tuning\":4,\"moe_layers\":[1,3,5]");
    if (parse(&c, llama4, false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[0].chunk_keys == 48 && c.layer[3].chunk_keys == 0 && c.layer[3].rope == LAYER_ROPE_NONE &&
                !c.layer[0].moe && c.layer[5].moe);
    assert_true(c.query_scale.every == 8192 && c.query_scale.shift == 1 && c.query_scale.no_rope_only &&
                c.weighs_input && c.qk_norm == QK_NORM_UNIT);
    static const char mimo[] =
        BARE("mimo_v2_flash", ROUTED_ONLY ",\"head_dim\":24,\"v_head_dim\":16,\"num_key_value_heads\":1,\"swa_num_key_"
                                          "value_heads\":2,\"sliding_window\":8,"
                                          "\"hybrid_layer_pattern\":[0,1,1,1,1,0],\"moe_layer_freq\":[0,1,1,1,1,1],"
                                          "\"swa_rope_theta\":100,\"attention_value_scale\":0.5");
    if (parse(&c, mimo, false, &e)) fail_msg("%s", e.text);
    assert_true(c.v_dim == 16 && c.v_scale == 0.5f && config_kv_heads(&c, 0) == 1 && config_kv_heads(&c, 1) == 2 &&
                c.layer[1].window == 9);
    assert_true(c.layer[0].no_sinks && !c.layer[1].no_sinks && c.second_rope.theta == 100 && !c.layer[0].moe &&
                c.layer[1].moe);
    assert_int_equal(kv_row_bytes(&c, 1, DT_F32), 2 * (24 + 16) * 4);
    static const char pieces[] =
        BARE("mimo_v2", ROUTED_ONLY ",\"head_dim\":24,\"v_head_dim\":16,\"num_key_value_heads\":2,\"swa_num_key_value_"
                                    "heads\":4,\"sliding_window\":8,\"audio_config\":{},"
                                    "\"hybrid_layer_pattern\":[0,1,1,1,1,0],\"moe_layer_freq\":[0,1,1,1,1,1],"
                                    "\"attention_value_scale\":0.612,\"vision_config\":{},"
                                    "\"attention_projection_layout\":\"fused_qkv\",\"moe_router_dtype\":\"bfloat16\","
                                    "\"routed_scaling_factor\":null");
    if (parse(&c, pieces, false, &e)) fail_msg("%s", e.text);
    assert_true(c.qkv_pieces == 2 && c.layout->qkv && !strcmp(c.names->k, c.names->q) && c.v_scale == 0.612f &&
                c.routed_scale == 1);
    static const char hunyuan[] =
        BARE_OF("hunyuan_v1_moe", "\"moe_topk\":[2,2,2,2,2,2]",
                NUMBERED ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0,\"factor\":1.0}");
    if (parse(&c, hunyuan, false, &e)) fail_msg("%s", e.text);
    assert_true(c.topk == 2 && c.rope.kind == ROPE_DEFAULT &&
                fabs(c.rope.theta / (10000 * pow(1000, 16.0 / 14)) - 1) < 1e-9);
    /* without its factor, rotations change where the trained context ends */
    static const char other[] = BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2",
                                        NUMBERED ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0,"
                                                 "\"original_max_position_embeddings\":32}");
    if (parse(&c, other, false, &e)) fail_msg("%s", e.text);
    assert_true(c.max_context == 32 && c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000);
}

#define DBRX(attention, experts, more) \
    "{\"model_type\":\"dbrx\",\"vocab_size\":100,\"d_model\":64,\"n_heads\":4,\"n_layers\":2,\"max_seq_len\":64," \
    "\"attn_config\":{" attention "},\"ffn_config\":{" experts "}," more "}"
#define MIMO   ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,1,1,1,1,0]"
#define PIECES ",\"attention_value_scale\":1,\"attention_projection_layout\":\"fused_qkv\""
static void options_that_no_published_model_uses(void **st) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":2", "\"num_local_experts\":8"), "num_experts_per_tok"},
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":1", "\"num_local_experts\":8,\"no_rope_layers\":[1,0]"),
         "no_rope_layers"},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":[2,2,2,2,2,3]", NUMBERED), "moe_topk"},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2", NUMBERED ",\"use_cla\":true"), "use_cla"},
        {DBRX("\"rope_theta\":5e5", "", "\"rope_parameters\":{\"rope_theta\":1e4}"), "attn_config.rope_theta"},
        {DBRX("\"kv_n_heads\":2", "", "\"num_key_value_heads\":4"), "kv_n_heads"},
        {DBRX("", "\"hidden_size\":128", "\"use_cache\":true"), "ffn_config.hidden_size"},
        {DBRX("", "\"id2label\":{},\"top_p\":1,\"gain\":2", "\"use_cache\":true"), "ffn_config.gain"},
        {BARE_OF("ernie4_5_moe", "\"moe_k\":2", "\"moe_num_experts\":8,\"moe_intermediate_size\":32,\"use_bias\":true"),
         "use_bias"},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32,\"num_attention_heads_per_layer\":[4,3,4,4,4,"
                                 "4],\"num_key_value_heads\":2"),
         "layer 1"},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32,\"gating\":false"), "gating"},
        {BARE("param2moe", NUMBERED ",\"n_group\":2"), "n_group"},
        {BARE("mimo_v2", MIMO), "attention_value_scale"},
        {BARE("mimo_v2", MIMO ",\"attention_value_scale\":1,\"attention_projection_layout\":\"sliced\""),
         "attention_projection_layout"},
        {BARE("mimo_v2", MIMO PIECES ",\"num_key_value_heads\":4,\"swa_num_key_value_heads\":2"),
         "layer 1 do not divide"},
        {BARE("mimo_v2",
              MIMO PIECES ",\"num_key_value_heads\":2,\"swa_num_key_value_heads\":2,\"attention_bias\":true"),
         "attention_bias"},
        {BARE("mimo_v2_flash", ROUTED_ONLY), "hybrid_layer_pattern"},
        {BARE("mimo_v2_flash", ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,1,1,1,1,0],\"swa_head_dim\":32"),
         "swa_head_dim"},
        {BARE("mimo_v2_flash", ROUTED_ONLY SAVED_KINDS ",\"hybrid_layer_pattern\":[0,1,1,1,1,0]"),
         "'layer_types' differ in layer 1"},
        {BARE("mimo_v2_flash",
              ROUTED_ONLY SAVED_KINDS ",\"moe_layer_freq\":[0,1,1,1,1,1],\"mlp_layer_types\":[" SIX("\"sparse\"") "]"),
         "differ in layer 0"},
        {BARE("mimo_v2_flash", ROUTED_ONLY SAVED_KINDS ",\"sliding_window\":40,\"sliding_window_size\":40"),
         "'sliding_window_size' makes it 41"},
        {BARE("mimo_v2_flash", ROUTED_ONLY SAVED_KINDS ",\"swa_num_key_value_heads\":1"),
         "key-value heads in layers with a window"},
        {BARE("mimo_v2_flash", ROUTED_ONLY SAVED_KINDS
              ",\"swa_rope_theta\":7,\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":{}}"),
         "swa_rope_theta"},
        {BARE("cohere2_moe",
              "\"num_experts\":8,\"first_k_dense_replace\":1,\"mlp_layer_types\":[" SIX("\"sparse\"") "]"),
         "differ in layer 0"},
        {BARE("hy_v3", NUMBERED ",\"expert_hidden_dim\":64"), "expert_hidden_dim"},
        {BARE("bailing_moe", NUMBERED ",\"norm_head\":true"), "norm_head"},
        {BARE("olmoe", "\"num_experts\":8,\"clip_qkv\":-1"), "clip_qkv"},
        {BARE_OF("aria_text", "\"moe_topk\":2", "\"mlp_bias\":true"), "mlp_bias"},
        {BARE_OF("aria_text", "\"moe_topk\":2", "\"hidden_act\":\"gelu_pytorch_tanh\""), "hidden_act"},
        {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"nonesuch\"}}", "mistral3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        struct error e = {0};
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Published configs of models without experts, as sparse as they are. */
static void dense_families(void **st) {
    struct config c;
    struct error e = {0};
    static const char gemma3[] =
        "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"mm_tokens_per_image\":256,\"text_config\":{\"hidden_"
        "size\":2560,"
        "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,\"rope_scaling\":{"
        "\"factor\":8.0,"
        "\"rope_type\":\"linear\"},\"sliding_window\":1024},\"vision_config\":{\"hidden_size\":1152}}";
    assert_int_equal(parse(&c, gemma3, false, &e), 0);
    assert_true(c.vocab == 262208 && c.n_heads == 8 && c.n_kv_heads == 4 && c.head_dim == 256 && c.tied &&
                c.n_experts == 0 && c.max_context == 131072);
    assert_true(c.norm == NORM_RMS_PLUS_ONE && c.qk_norm == QK_NORM_HEAD && c.output_norm && c.streams.is_plain &&
                c.glu.cubic > 0 && c.n_eos == 2);
    /* sqrt(2560) = 50.596 in BF16 */
    assert_true(c.embed_scale == 50.5f && fabsf(c.attn_scale - 0.0625f) < 1e-7f && c.score_cap == 0 &&
                c.logit_cap == 0);
    assert_true(c.rope.kind == ROPE_LINEAR && c.rope.theta == 1e6 && c.second_rope.kind == ROPE_DEFAULT &&
                c.second_rope.theta == 1e4);
    for (int i = 0; i < 34; i++)
        assert_true(c.layer[i].window == (i % 6 == 5 ? 0 : 1024) &&
                    c.layer[i].rope == (i % 6 == 5 ? LAYER_ROPE_FIRST : LAYER_ROPE_SECOND) && !c.layer[i].moe);
    assert_int_equal(parse(&c,
                           DENSE("qwen2", ",\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":3"),
                           false, &e),
                     0);
    assert_true(c.qkv_bias && !c.o_bias && !c.layer[2].window && c.layer[3].window == 64 && c.layer[4].window == 64);
    assert_int_equal(parse(&c, DENSE("smollm3", ""), false, &e), 0);
    assert_true(c.tied && c.layer[2].rope == LAYER_ROPE_FIRST && c.layer[3].rope == LAYER_ROPE_NONE &&
                c.layer[4].rope == LAYER_ROPE_FIRST);
    assert_int_equal(parse(&c, DENSE("gemma2", ",\"final_logit_softcapping\":null"), false, &e), 0);
    assert_true(c.score_cap == 50 && c.logit_cap == 0 && c.layer[0].window == 4096 && !c.layer[1].window);
    assert_int_equal(parse(&c, DENSE("granite", ",\"residual_multiplier\":0.5,\"logits_scaling\":8"), false, &e), 0);
    assert_true(c.residual_scale == 0.5f && c.logit_scale == 0.125f);
    assert_int_equal(parse(&c, DENSE("olmo2", ""), false, &e), 0);
    assert_true(c.no_input_norm && c.output_norm && c.qk_norm == QK_NORM_ALL);
    assert_int_equal(parse(&c, DENSE("llama", ",\"mlp_bias\":true,\"attention_bias\":true"), false, &e), 0);
    assert_true(c.dense_bias && c.qkv_bias && c.o_bias && !c.tied);
    assert_int_equal(parse(&c, DENSE("smollm3", ",\"no_rope_layers\":[1,1,2,0,1]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "'no_rope_layers' of layer 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(deepseek_v3_as_published),
                                       cmocka_unit_test(blocks_of_compressed_tensors),
                                       cmocka_unit_test(integers_of_each_method),
                                       cmocka_unit_test(refusals_name_the_key),
                                       cmocka_unit_test(keys_chosen_by_an_indexer),
                                       cmocka_unit_test(hunyuan_4),
                                       cmocka_unit_test(other_ropes),
                                       cmocka_unit_test(what_a_config_leaves_out),
                                       cmocka_unit_test(left_out_or_null),
                                       cmocka_unit_test(heads_and_experts_left_out),
                                       cmocka_unit_test(layers_of_several_kinds),
                                       cmocka_unit_test(options_that_no_published_model_uses),
                                       cmocka_unit_test(dense_families)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
