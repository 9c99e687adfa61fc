/* config.json of each family: what is read, derived and refused. The formulae are checked by hand-worked numbers here and with
 * whole models in golden/. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/fault.h"
#include "engine/base/ops.h"
#include "engine/layer/block.h"
#include "engine/model/arch.h"
#include "engine/model/rope.h"
#include "test/unit/parse_config.h"

#define V3_PLAIN \
    "{\"model_type\":\"deepseek_v3\",\"vocab_size\":129280,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_position_embeddings\":163840," \
    "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64," \
    "\"v_head_dim\":128,\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"n_group\":8," \
    "\"topk_group\":4,\"n_shared_experts\":1,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5," \
    "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"num_nextn_predict_layers\":1,\"eos_token_id\":1," \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0," \
    "\"mscale_all_dim\":1.0}"
#define V3                   V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}"
#define GROUPS(...)          V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{" __VA_ARGS__ "}}}"
#define GROUP(name, weights) "\"" name "\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}"

static void deepseek_v3_as_published(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, V3 "}", false, &e), 0);
    assert_true(c.attn == ATTN_MLA && c.head_dim == 192 && c.v_dim == 128 && c.shared_inter == 2048 && c.score == SCORE_SIGMOID && c.group_top2);
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
    assert_true(!block_expands_mla(&c, 1) && !block_expands_mla(&c, 8) && block_expands_mla(&c, 512));
}

static void blocks_of_compressed_tensors(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, GROUPS(GROUP("group_0", "\"num_bits\":8,\"type\":\"float\",\"block_structure\":[64,32]") "," GROUP("a", "\"num_bits\":8")), false, &e), 0);
    assert_true(c.block_rows == 64 && c.block_cols == 32);
    assert_int_equal(parse(&c, GROUPS(GROUP("group_0", "\"num_bits\":8,\"type\":\"float\",\"block_structure\":null")), false, &e), 0);
    assert_true(c.block_rows == 128 && c.block_cols == 128);
}

static void integers_of_each_method(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, GROUPS(GROUP("group_0", "\"num_bits\":4,\"type\":\"int\",\"group_size\":32")), false, &e), 0);
    assert_true(c.quant.method == QUANT_COMPRESSED && c.quant.group == 32);
    assert_int_equal(parse(&c, GROUPS(GROUP("a", "\"num_bits\":4,\"group_size\":32") "," GROUP("b", "\"num_bits\":8,\"group_size\":128")), false, &e), 0);
    assert_int_equal(c.quant.group, 0); /* the shapes tell */
    assert_int_equal(parse(&c, V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}", false, &e), 0);
    assert_true(c.quant.method == QUANT_GPTQ && c.quant.group == 128 && c.quant.zeros_minus_one);
    assert_int_equal(parse(&c, V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"gptq\",\"group_size\":-1,\"checkpoint_format\":\"gptq_v2\"}}", false, &e),
                     0);
    assert_true(c.quant.bits == 4 && c.quant.group == 0 && !c.quant.zeros_minus_one);
    assert_int_equal(parse(&c, V3_PLAIN ",\"quantization_config\":{\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":64,\"version\":\"gemm\"}}", false, &e),
                     0);
    assert_true(c.quant.method == QUANT_AWQ && c.quant.group == 64);
}

static void refusals_name_the_key(void **st) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {GROUPS(GROUP("group_0", "\"num_bits\":3,\"type\":\"int\"")), "3 bits"},
        {GROUPS(GROUP("group_0", "\"num_bits\":4,\"type\":\"int\",\"group_size\":31")), "group_size"},
        {GROUPS(GROUP("group_0", "\"block_structure\":[64]")), "block_structure"},
        {GROUPS(GROUP("a", "\"block_structure\":[64,64]") "," GROUP("b", "\"block_structure\":[128,128]")), "64 x 64 and of 128 x 128"},
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
    assert_int_equal(parse(&c, V3 ",\"query_pre_attn_scalar\":256}", true, &e), 0);                                                /* --force */
    assert_int_equal(parse(&c, V3 ",\"attn_thing\":null,\"other\":false,\"transformers_version\":\"4\",\"_x\":1}", false, &e), 0); /* inactive */
}

/* V3's numbers in another family, with more keys. */
static int parse_as(struct config *c, const char *family, const char *more, struct error *e) {
    static const char v3[] = V3, first[] = "{\"model_type\":\"deepseek_v3\"";
    char text[4096];
    snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s%s}", family, v3 + strlen(first), more);
    return parse(c, text, false, e);
}

static void keys_chosen_by_an_indexer(void **st) {
    static const struct {
        const char *family, *more, *owners; /* of the first layers: F has an indexer, S reuses its selection */
    } good[] = {
        {"deepseek_v32", ",\"index_topk\":2048,\"index_n_heads\":64,\"index_head_dim\":128", "FFFFFF"},
        {"glm_moe_dsa", "", "FFFFFF"},
        {"glm_moe_dsa", ",\"index_topk_freq\":4", "FFSSSF"},
        {"glm_moe_dsa", ",\"index_topk_freq\":3,\"index_skip_topk_offset\":3", "FFFSSF"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FSSFSFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"", "FSSFSF"},
    };
    static const struct {
        const char *family, *more, *word;
    } bad[] = {
        {"deepseek_v32", ",\"index_topk_pattern\":\"FS\"", "index_topk_pattern"},
        {"deepseek_v32", ",\"index_head_dim\":32", "index_head_dim"},
        {"deepseek_v32", ",\"layer_types\":[\"full_attention\"]", "layer_types"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FS\"", "index_topk_pattern"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"SFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"", "first layer"},
        {"glm_moe_dsa", ",\"index_topk_pattern\":\"FXFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\"", "layer 1"},
        {"glm_moe_dsa", ",\"index_topk\":0", "index_topk"},
    };
    struct config c;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct error e = {0};
        assert_int_equal(parse_as(&c, good[i].family, good[i].more, &e), 0);
        assert_true(c.attn == ATTN_DSA && c.index_topk == 2048 && c.index_heads == (i ? 32 : 64) && c.index_dim == 128 && c.index_interleaved == (i > 0));
        for (int l = 0; good[i].owners[l]; l++) assert_int_equal(c.layer[l].index, good[i].owners[l] == 'F' ? INDEX_OWN : INDEX_PREVIOUS);
        assert_int_equal(kv_row_bytes(&c, 1, DT_BF16), 2 * (576 + (good[i].owners[1] == 'F' ? 128 : 0)));
        assert_int_equal(kv_row_bytes(&c, 1, DT_E4M3), 576 + 4 + (good[i].owners[1] == 'F' ? 2 * 128 : 0)); /* the indexer's keys stay BF16 */
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error e = {0};
        assert_int_equal(parse_as(&c, bad[i].family, bad[i].more, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, bad[i].word));
    }
}

/* Hunyuan 4's own: sinks and gates beside MLA, a clamp of the routed experts only, streams that are not mixed. */
static void hunyuan_4(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse_as(&c, "hy_v4", ",\"enable_ihc\":true,\"hc_magnitude\":1.5,\"swiglu_limit\":7", &e), 0);
    assert_true(c.attn == ATTN_DSA && c.index_heads == 16 && c.index_rope_last && !c.index_interleaved && !c.rope.interleaved && c.index_eps == c.norm_eps);
    for (int l = 0; l < 6; l++) assert_int_equal(c.layer[l].index, "FFSSSF"[l] == 'F' ? INDEX_OWN : INDEX_PREVIOUS);
    assert_true(c.sinks && c.attn_gate == ATTN_GATE_ELEMENT && c.attn_gate_kind == GATE_SIGMOID);
    assert_true(c.streams.n == 4 && !c.streams.iters && c.streams.magnitude == 1.5f && c.streams.post_eps == 1e-6f && !c.streams.is_plain);
    assert_true(config_glu(&c, 5, true).limit == 7 && config_glu(&c, 5, false).limit == 0);
    assert_int_equal(parse_as(&c, "hy_v4", ",\"swiglu_limit\":-1", &e), 0);
    assert_true(config_glu(&c, 5, true).limit == 0);
    assert_int_equal(parse_as(&c, "hy_v4", ",\"gated_mla\":false", &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "gated_mla"));
}

/* Inkling: other heads and biases in layers with a window, shared experts as the last ones, one layer more than published. */
static void inkling(void **st) {
#define INKLING(more) \
    "{\"model_type\":\"inkling_mm_model\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":4," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":32,\"swa_num_attention_heads\":6,\"swa_num_key_value_heads\":2,\"swa_head_dim\":24," \
    "\"sliding_window_size\":32,\"rel_extent\":96,\"d_rel\":8,\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"intermediate_size\":48," \
    "\"dense_intermediate_size\":200,\"dense_mlp_idx\":1" more "}}"
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, INKLING(",\"local_layer_ids\":[0,3],\"log_scaling_n_floor\":64,\"unpadded_vocab_size\":300"), false, &e), 0);
    assert_true(c.n_layers == 5 && config_is_bare(&c, 4) && config_is_stateful(&c, 4) && !config_has_single_blocks(&c) && c.vocab == 300 &&
                c.embed_rows == 320 && c.embed_norm && c.streams.is_plain);
    assert_true(c.n_experts == 10 && c.n_always == 2 && c.topk == 5 && c.moe_inter == 48 && c.dense_inter == 200 && !c.layer[0].moe && c.layer[1].moe);
    assert_true(c.layer[0].window == 32 && c.layer[0].extent == 32 && c.layer[0].n_heads == 6 && c.layer[0].head_dim == 24 && c.layer[0].n_kv_heads == 2);
    assert_true(!c.layer[1].window && c.layer[1].extent == 96 && c.layer[1].n_heads == 4 && c.layer[1].head_dim == 32 && c.layer[1].attn_scale == 1 / 32.0f);
    assert_true(c.n_heads == 6 && c.head_dim == 32 && c.query_scale.smooth && c.query_scale.every == 64 && c.short_taps == 4);
    assert_int_equal(kv_row_bytes(&c, 1, DT_BF16), 2 * 2 * 32);
    assert_int_equal(kv_state_bytes(&c), 4 * 3 * (2 * 2 * (2 * 24 + 128) + 2 * 2 * (32 + 128) + 128)); /* keys, values, two outputs; the last layer one */
    assert_int_equal(
        parse(&c,
              INKLING(",\"layer_types\":[\"hybrid\",\"hybrid_sliding\",\"hybrid\",\"hybrid\"],\"mlp_layer_types\":[\"dense\",\"sparse\",\"dense\",\"sparse\"]"),
              false, &e),
        0);
    assert_true(!c.layer[0].window && c.layer[1].window && !c.layer[3].window && c.layer[1].moe && !c.layer[2].moe && c.layer[3].moe);
    assert_int_equal(parse(&c, INKLING(",\"mlp_layer_types\":[\"dense\"]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "not a list of 4"));
    assert_int_equal(parse(&c, INKLING(",\"shared_expert_sink\":false"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "shared_expert_sink"));
    assert_int_equal(parse(&c, INKLING(",\"local_layer_ids\":[4]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 4 of 4"));
}

/* A.X K2: gated norms, queries with gates from both latents, groups that count as 0. */
static void axk2(void **st) {
    (void)st;
#define AXK2(more) \
    "{\"model_type\":\"axk2\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":4," \
    "\"q_lora_rank\":48,\"kv_lora_rank\":40,\"qk_nope_head_dim\":24,\"qk_rope_head_dim\":16,\"v_head_dim\":24,\"index_head_dim\":32,\"intermediate_size\":" \
    "176," \
    "\"moe_intermediate_size\":40,\"n_routed_experts\":8,\"n_shared_experts\":1,\"num_experts_per_tok\":3,\"max_position_embeddings\":8192" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, AXK2(""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_DSA && c.q_raw && c.norm_gate_rank == 16 && c.attn_gate == ATTN_GATE_IN_QUERY && c.n_group == 1 && c.index_heads == 16);
    assert_true(c.rope.interleaved && !c.index_interleaved && !c.layer[0].moe && c.layer[1].moe && c.router_bias && c.norm_topk);
    if (parse(&c, AXK2(",\"n_group\":4,\"topk_group\":2,\"gated_norm_rank\":5"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_group == 4 && c.topk_group == 2 && c.group_zero && c.norm_gate_rank == 5);
    assert_int_equal(parse(&c, AXK2(",\"n_group\":4"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "topk_group"));
    assert_int_equal(parse(&c, AXK2(",\"gated_norm_rank\":0"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "gated_norm_rank"));
}

/* MiniMax-M3: the indexer as published and as transformers writes it, and options that hearth refuses. */
static void minimax_m3(void **st) {
    (void)st;
#define MINIMAX_M3(more) \
    "{\"model_type\":\"minimax_m3_vl\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_" \
    "dim\":32," \
    "\"num_key_value_heads\":4,\"max_position_embeddings\":8192,\"hidden_act\":\"swigluoai\",\"rotary_dim\":16" more "}}"
#define SPARSE(more) ",\"sparse_attention_config\":{\"sparse_attention_freq\":[0,1,0,1],\"sparse_index_dim\":24,\"sparse_num_index_heads\":2" more "}"
#define CONVERTED(more) \
    ",\"index_head_dim\":24,\"index_n_heads\":2,\"layer_types\":[\"full_attention\",\"minimax_m3_sparse\",\"full_attention\",\"minimax_m3_sparse\"]" more
    static const char *const same[] = {
        MINIMAX_M3(",\"moe_layer_freq\":[0,1,1,1]" SPARSE(
            ",\"sparse_disable_index_value\":[0,1,0,1],\"sparse_block_size\":48,\"sparse_topk_blocks\":5,\"sparse_local_block\":2")),
        MINIMAX_M3(",\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\"]" CONVERTED(
            ",\"index_block_size\":48,\"index_topk_blocks\":5,\"index_local_blocks\":2"))};
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (parse(&c, same[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.index_by_group && c.index_heads == 2 && c.index_dim == 24 && c.index_block == 48 && c.index_topk == 4 && c.index_latest == 1);
        for (int l = 0; l < 4; l++) assert_true(config_selects_blocks(&c, l) == (l % 2 == 1) && c.layer[l].moe == (l > 0));
        assert_true(c.rope.dim == 16 && c.glu.shift == 1 && c.norm == NORM_RMS_PLUS_ONE && config_index_entries(&c) == 8);
    }
    assert_int_equal(parse(&c, MINIMAX_M3(SPARSE(",\"use_sparse_attention\":false")), false, &e), 0);
    assert_true(!c.index_topk && !config_selects_blocks(&c, 1));
    static const struct {
        const char *text, *word;
    } bad[] = {
        {MINIMAX_M3(SPARSE(",\"sparse_disable_index_value\":[0,1,0,0]")), "sparse_disable_index_value"},
        {MINIMAX_M3(SPARSE(",\"sparse_init_block\":1")), "sparse_init_block"},
        {MINIMAX_M3(SPARSE(",\"sparse_score_type\":\"mean\"")), "sparse_score_type"},
        {MINIMAX_M3(SPARSE(",\"sparse_local_block\":0")), "local blocks"},
        {MINIMAX_M3(SPARSE(",\"sparse_topk_blocks\":1")), "one block"},
        {MINIMAX_M3(SPARSE(",\"sparse_topk_blocks\":3,\"sparse_local_block\":4")), "4 local blocks of 3"},
        {MINIMAX_M3(SPARSE(",\"sparse_nonesuch\":1")), "sparse_nonesuch"},
        {MINIMAX_M3(",\"sparse_attention_config\":{\"sparse_attention_freq\":[0,1,0,1],\"sparse_num_index_heads\":3}"), "3 heads of the indexer"},
        {MINIMAX_M3(",\"partial_rotary_factor\":0.25" SPARSE("")), "rotary_dim"},
        {MINIMAX_M3(",\"qk_norm_type\":\"per_layer\""), "qk_norm_type"},
        {MINIMAX_M3(",\"layer_types\":[\"a\",\"a\",\"a\",\"a\"]"), "layer_types"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Qwen4-Exp: gated streams, blocks of keys, and the numbers of hashed n-grams. */
static void qwen_4(void **st) {
#define QWEN_4(more) \
    "{\"model_type\":\"qwen4_exp\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"head_dim\":48," \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":8192,\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_intermediate_size\":32," \
    "\"shared_expert_intermediate_size\":40,\"ngram_size\":3,\"heads_per_ngram\":2,\"ngram_vocab_size_base\":200,\"ple_embed_dim\":48,\"split_ngram_parts\":" \
    "4," \
    "\"make_ngram_vocab_size_divisible_by\":16" more "}}"
#define BLOCKS ",\"indexer_n_heads\":4,\"indexer_kv_heads\":1,\"indexer_head_dim\":32,\"indexer_compress_ratio\":4,\"indexer_budget\":24"
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, QWEN_4(BLOCKS ",\"ple_layer_ids\":[3,2],\"eos_token_id\":[304,3],\"hc_lowrank\":24,\"output_gate_type\":\"sigmoid\""), false, &e), 0);
    assert_true(c.streams.n == 4 && c.streams.is_gated && c.streams.rank == 24 && c.delta.sigmoid_gate && c.layer[0].mixer == MIXER_DELTA && !c.layer[3].mixer);
    assert_true(c.index_block == 4 && c.index_topk == 6 && c.layer[0].moe && c.shared_gate && c.norm_topk);
    assert_true(!c.layer[0].ngram && c.layer[1].ngram == 1 && c.layer[2].ngram == 2); /* in the order of layers */
    static const uint32_t primes[] = {211, 223, 227, 229}, next[] = {233, 239, 241, 251};
    for (int i = 0; i < 4; i++) assert_true(c.ngram[0].vocab[i] == primes[i] && c.ngram[1].vocab[i] == next[i]);
    assert_true(c.ngram[0].offset[3] == 211 + 223 + 227 && c.ngram[0].rows == 896 && c.ngram[1].rows == 976 && c.ngram[0].multiplier[0] % 2 == 1);
    assert_int_equal(kv_state_bytes(&c) - 3 * 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128), 2 * 4 * (2 + 9 * 4 * 128) + 4 * 3 * 32);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {QWEN_4(",\"ple_layer_ids\":[2]"), "eos_token_id"},
        {QWEN_4(",\"ple_layer_ids\":[5],\"eos_token_id\":3"), "layer 5 of 4"},
        {QWEN_4(BLOCKS ",\"partial_rotary_factor\":1"), "indexer_head_dim"},
        {QWEN_4(",\"hc_count\":1"), "hc_count"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

#define V4 \
    "{\"model_type\":\"deepseek_v4\",\"vocab_size\":129280,\"hidden_size\":4096,\"num_hidden_layers\":6,\"max_position_embeddings\":1048576," \
    "\"num_attention_heads\":64,\"num_key_value_heads\":1,\"head_dim\":512,\"q_lora_rank\":1024,\"qk_rope_head_dim\":64,\"o_groups\":8,\"o_lora_rank\":1024," \
    "\"index_n_heads\":64,\"index_head_dim\":128,\"index_topk\":512,\"sliding_window\":128,\"n_routed_experts\":256,\"num_experts_per_tok\":6," \
    "\"n_shared_experts\":1,\"moe_intermediate_size\":2048,\"scoring_func\":\"sqrtsoftplus\",\"routed_scaling_factor\":1.5,\"swiglu_limit\":10," \
    "\"num_hash_layers\":3,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-6,\"expert_dtype\":\"fp4\",\"num_nextn_predict_layers\":1,\"topk_method\":" \
    "\"noaux_tc\""
#define V4_ROPE \
    ",\"rope_theta\":10000,\"compress_rope_theta\":160000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":65536," \
    "\"beta_fast\":32,\"beta_slow\":1}"
#define V4_RATIOS ",\"compress_ratios\":[0,0,4,128,4,128,0]"

static void keys_of_several_tokens(void **st) {
    static const char *const same[] = {
        /* in the vendor's form, and in transformers' */
        V4 V4_ROPE V4_RATIOS "}",
        V4 V4_ROPE ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"compressed_sparse_attention\",\"heavily_compressed_attention\","
                   "\"compressed_sparse_attention\",\"heavily_compressed_attention\"],\"mlp_layer_types\":[\"hash_moe\",\"hash_moe\",\"hash_moe\",\"moe\","
                   "\"moe\",\"moe\"],"
                   "\"compress_rates\":{\"compressed_sparse_attention\":4,\"heavily_compressed_attention\":128}}",
        V4 V4_RATIOS ",\"rope_parameters\":{\"main\":{\"rope_type\":\"default\",\"rope_theta\":10000,\"partial_rotary_factor\":0.125},\"compress\":{"
                     "\"rope_type\":\"yarn\",\"rope_theta\":160000,\"partial_rotary_factor\":0.125,\"factor\":16,\"original_max_position_embeddings\":65536,"
                     "\"beta_fast\":32,"
                     "\"beta_slow\":1,\"attention_factor\":1.0}}}",
    };
    static const int ratios[] = {0, 0, 4, 128, 4, 128};
    static const struct {
        const char *more, *word;
    } bad[] = {
        {V4_ROPE ",\"compress_ratios\":[0,0,4,128,4]", "compress_ratios"},
        {V4_ROPE ",\"compress_ratios\":[0,0,8,128,4,128]", "layer 2"},
        {V4_ROPE ",\"layer_types\":[\"full_attention\",\"\",\"\",\"\",\"\",\"\"]", "layer 0"},
        {V4_ROPE V4_RATIOS ",\"mlp_layer_types\":[\"dense\",\"moe\",\"moe\",\"moe\",\"moe\",\"moe\"]", "mlp_layer_types"},
        {V4_ROPE V4_RATIOS ",\"norm_topk_prob\":false", "norm_topk_prob"},
        {V4_ROPE V4_RATIOS ",\"attention_bias\":true", "attention_bias"},
        {V4_ROPE V4_RATIOS ",\"mlp_bias\":true", "mlp_bias"},
        {V4_RATIOS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16,\"attention_factor\":2}", "compressed keys"},
        {V4_RATIOS ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":16,\"low_freq_factor\":1,\"high_freq_factor\":4}", "compressed keys"},
    };
    struct config c;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct error e = {0};
        if (parse(&c, same[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.attn == ATTN_COMPRESSED && c.streams.n == 4 && c.streams.iters == 20 && c.sinks && c.score == SCORE_SQRT_SOFTPLUS && c.glu.limit == 10);
        assert_true(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000 && c.rope.dim == 64 && c.rope.interleaved);
        assert_true(c.second_rope.kind == ROPE_YARN && c.second_rope.theta == 160000 && c.second_rope.dim == 64 && c.second_rope.attention_factor == 1);
        for (int l = 0; l < 6; l++) {
            assert_true(c.layer[l].ratio == ratios[l] && c.layer[l].overlap == (ratios[l] == 4) && c.layer[l].hashed == (l < 3) && c.layer[l].moe);
            assert_int_equal(c.layer[l].window, 128);
        }
        assert_int_equal(kv_row_bytes(&c, 0, DT_BF16), 1024);
        assert_int_equal(kv_row_bytes(&c, 2, DT_BF16), 1024 + 256 + 64);
        assert_int_equal(kv_row_bytes(&c, 2, DT_E4M3), 516 + 129 + 64); /* the indexer's keys stay BF16 */
        assert_int_equal(kv_row_bytes(&c, 3, DT_BF16), 1024 + 8);
        assert_int_equal(kv_state_bytes(&c), 4 * (2 * 6 * (512 + 128) + 2 * 3 * 512));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error e = {0};
        char text[4096];
        snprintf(text, sizeof text, "%s%s}", V4, bad[i].more);
        assert_int_equal(parse(&c, text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

#define QWEN2 \
    "{\"model_type\":\"qwen2_moe\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":4,\"max_position_embeddings\":512," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_experts\":8," \
    "\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":48,\"sliding_window\":64"

static void windows_only_where_in_force(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, QWEN2 ",\"use_sliding_window\":false,\"max_window_layers\":2}", false, &e), 0);
    assert_true(c.layer[0].window == 0 && c.qkv_bias && c.shared_gate && c.head_dim == 16);
    assert_int_equal(parse(&c, QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":3}", false, &e), 0);
    assert_true(c.layer[0].window == 64 && !c.layer[1].window && c.layer[2].window == 64 && !c.layer[3].window);
    assert_int_equal(parse(&c, QWEN2 ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}", false, &e), 0);
    assert_true(!c.layer[0].moe && c.layer[1].moe && !c.layer[2].moe && !c.layer[3].moe);
    assert_int_equal(parse(&c, QWEN2 ",\"mlp_only_layers\":[4]}", false, &e), ERR_MODEL);
    assert_int_equal(parse(&c, QWEN2 ",\"num_key_value_heads_\":3}", false, &e), ERR_MODEL);
}

#define TEXT3_5 \
    "\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":6,\"max_position_embeddings\":512,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"head_dim\":32,\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":48," \
    "\"rope_parameters\":{\"rope_theta\":10000000,\"rope_type\":\"default\",\"mrope_section\":[11,11,10],\"mrope_interleaved\":true}"
#define NEXT "{\"model_type\":\"qwen3_next\"," TEXT3_5
#define WITH_VISION(text, more) \
    "{\"model_type\":\"qwen3_5_moe\",\"image_token_id\":5,\"vision_config\":{\"depth\":2},\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"," TEXT3_5 text \
    "}" more "}"

static void linear_attention_where_it_is_asked_for(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, NEXT "}", false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_DELTA && c.layer[2].mixer && !c.layer[3].mixer && c.layer[4].mixer); /* every fourth layer has full attention */
    assert_true(c.rope.dim == 8 && c.delta.v_heads == 32 && c.delta.k_heads == 16 && c.delta.k_dim == 128 && c.delta.taps == 4 && c.delta.fused);
    assert_int_equal(kv_token_bytes(&c, DT_BF16), 2 * 2 * 32 * 2);
    assert_int_equal(kv_state_bytes(&c), 5 * 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128));
    assert_int_equal(parse(&c, NEXT ",\"full_attention_interval\":2,\"partial_rotary_factor\":0.5}", false, &e), 0);
    assert_true(c.layer[0].mixer && !c.layer[1].mixer && c.rope.dim == 16);
    assert_int_equal(parse(&c, WITH_VISION("", ",\"tie_word_embeddings\":true"), false, &e), 0);
    assert_true(c.tied && !c.delta.fused && c.norm_topk && !strcmp(c.model_type, "qwen3_5_moe"));
    static const struct {
        const char *text, *word;
    } bad[] = {
        {NEXT ",\"layer_types\":[\"full_attention\"]}", "layer_types"},
        {NEXT ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"mamba\"]}", "layer 5"},
        {NEXT ",\"attn_output_gate\":false}", "attn_output_gate"},
        {NEXT ",\"linear_num_key_heads\":7}", "32 value heads"},
        {NEXT ",\"linear_conv_kernel_dim\":200}", "linear_conv_kernel_dim"},
        {NEXT ",\"mamba_ssm_dtype\":\"bfloat16\"}", "mamba_ssm_dtype"},
        {WITH_VISION(",\"new_thing\":3", ""), "new_thing"},
        {WITH_VISION("", ",\"other_thing\":3"), "other_thing"},
        {WITH_VISION(",\"mlp_only_layers\":[2]", ""), "mlp_only_layers"},
        {"{\"model_type\":\"qwen3_5_moe\"," TEXT3_5 "}", "text_config"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct error){0};
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

static void other_ropes(void **st) {
    struct rope_config r = {.kind = ROPE_LINEAR, .dim = 8, .theta = 100, .factor = 4};
    float f[4];
    assert_true(rope_frequencies(&r, f) == 1 && fabsf(f[0] - 0.25f) < 1e-7f);
    r = (struct rope_config){.kind = ROPE_LLAMA3, .dim = 64, .theta = 500000, .factor = 8, .low_freq = 1, .high_freq = 4, .original_max = 8192};
    float g[32];
    rope_frequencies(&r, g);
    assert_true(g[0] == 1.0f && fabs(g[31] * 8 / pow(500000, -62.0 / 64) - 1) < 1e-5);
    r = (struct rope_config){.kind = ROPE_YARN, .dim = 8, .theta = 100, .factor = 4, .original_max = 64, .beta_fast = 32, .beta_slow = 1, .truncate = true};
    assert_true(fabs(rope_frequencies(&r, f) - (0.1 * log(4) + 1)) < 1e-6); /* no mscale given */
}

#define BARE(type, more) BARE_OF(type, "\"num_experts_per_tok\":2", more)
#define BARE_OF(type, topk, more) \
    "{\"model_type\":\"" type "\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":6,\"max_position_embeddings\":512," \
    "\"num_attention_heads\":4,\"intermediate_size\":64," topk "," more "}"
#define ROUTED      "\"moe_intermediate_size\":32,\"n_routed_experts\":16,\"n_shared_experts\":1"
#define ROUTED_ONLY "\"moe_intermediate_size\":32,\"n_routed_experts\":16"
#define NUMBERED    "\"moe_intermediate_size\":32,\"num_experts\":8"
#define LATENT      "\"q_lora_rank\":32,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,\"v_head_dim\":16," ROUTED

/* Copied by hand from transformers' configuration classes, which supply the defaults of keys that a config omits. */
static void what_a_config_leaves_out(void **st) {
    static const struct {
        const char *text;
        double eps, theta, scale;
        int dense, groups, best;
        bool norm;
    } want[] = {
        {BARE("deepseek_v3", LATENT), 1e-6, 10000, 2.5, 3, 8, 4, true},
        {BARE("deepseek_v32", LATENT), 1e-6, 10000, 2.5, 3, 8, 4, true},
        {BARE("glm_moe_dsa", LATENT), 1e-5, 10000, 2.5, 3, 1, 1, true},
        {BARE("deepseek_v2", LATENT), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("glm4_moe", ROUTED), 1e-5, 10000, 1, 1, 1, 1, true},
        {BARE("mixtral", "\"num_local_experts\":8"), 1e-5, 1e6, 1, 0, 1, 1, true},
        {BARE("phimoe", "\"num_local_experts\":8"), 1e-5, 1e6, 1, 0, 1, 1, false},
        {BARE("gpt_oss", "\"num_local_experts\":8"), 1e-5, 150000, 1, 0, 1, 1, true},
        {BARE("minimax_m2", "\"num_local_experts\":8,\"rotary_dim\":16"), 1e-6, 5e6, 1, 0, 1, 1, true},
        {BARE("qwen3_moe", "\"num_experts\":8,\"moe_intermediate_size\":32"), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("qwen2_moe", "\"num_experts\":8,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32"), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("olmoe", "\"num_experts\":8"), 1e-5, 10000, 1, 0, 1, 1, false},
        {BARE("granitemoe", "\"num_local_experts\":8"), 1e-6, 10000, 1, 0, 1, 1, true},
        {BARE_OF("ernie4_5_moe", "\"moe_k\":2", "\"moe_num_experts\":8,\"moe_intermediate_size\":32"), 1e-5, 500000, 1, 1, 1, 1, true},
        {BARE("glm4_moe_lite", LATENT), 1e-5, 10000, 1.8, 1, 1, 1, true},
        {BARE("solar_open", ROUTED), 1e-5, 1e6, 1, 0, 1, 1, true},
        {BARE("dots1", ROUTED), 1e-6, 10000, 1, 0, 1, 1, false},
        {BARE("hy_v3", NUMBERED), 1e-5, 11158840, 1, 1, 1, 1, true},
        {BARE("bailing_moe_v2", NUMBERED), 1e-6, 600000, 1, 0, 1, 1, true},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2", NUMBERED), 1e-5, 10000, 1, 0, 1, 1, true},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32"), 1e-6, 500000, 1, 1, 1, 1, true},
        {BARE("axk1", LATENT), 1e-6, 10000, 2.5, 1, 8, 4, true},
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":1", "\"num_local_experts\":8"), 1e-5, 500000, 1, 0, 1, 1, false},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct config c;
        struct error e = {0};
        if (parse(&c, want[i].text, false, &e)) fail_msg("%s: %s", want[i].text, e.text);
        int dense = 0, groups = c.n_group > 1 ? c.n_group : 1, best = c.topk_group > 1 ? c.topk_group : 1;
        while (!c.layer[dense].moe) dense++;
        if (fabs(c.norm_eps / want[i].eps - 1) > 1e-6 || c.rope.theta != want[i].theta || fabs(c.routed_scale - want[i].scale) > 1e-6 ||
            dense != want[i].dense || groups != want[i].groups || best != want[i].best || c.norm_topk != want[i].norm)
            fail_msg("%s: eps %g theta %g scale %g dense %d groups %d of which %d, norm %d", c.model_type, (double)c.norm_eps, c.rope.theta,
                     (double)c.routed_scale, dense, groups, best, c.norm_topk);
        if (!strcmp(c.model_type, "gpt_oss")) assert_true(c.rope.kind == ROPE_YARN && c.rope.factor == 32 && c.rope.original_max == 4096 && !c.rope.truncate);
        else assert_true(c.rope.kind == ROPE_DEFAULT);
    }
}

/* Layers that differ in heads, rotation, windows and activation. */
static void layers_of_several_kinds(void **st) {
    struct config c;
    struct error e = {0};
    static const char laguna[] =
        BARE("laguna",
             NUMBERED ",\"shared_expert_intermediate_size\":32,\"num_key_value_heads\":2,\"num_attention_heads_per_layer\":[4,6,6,6,4,6],"
                      "\"sliding_window\":40,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
                      "\"full_attention\",\"sliding_attention\"],\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5,\"partial_rotary_factor\":0.5},"
                      "\"sliding_attention\":{\"rope_theta\":1e4}},\"gating\":\"per-element\",\"moe_router_logit_softcapping\":30");
    if (parse(&c, laguna, false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_heads == 6 && config_heads(&c, 0) == 4 && config_heads(&c, 1) == 6 && config_kv_heads(&c, 1) == 2);
    assert_true(c.rope.dim == 8 && c.second_rope.dim == 16 && c.second_rope.theta == 1e4 && c.layer[0].rope == LAYER_ROPE_FIRST);
    assert_true(c.layer[1].rope == LAYER_ROPE_SECOND && c.layer[1].window == 40 && !c.layer[4].window);
    assert_true(c.attn_gate == ATTN_GATE_ELEMENT && c.attn_gate_kind == GATE_SOFTPLUS && c.router_cap == 30);
    static const char llama4[] = BARE_OF("llama4_text", "\"num_experts_per_tok\":1",
                                         "\"num_local_experts\":8,\"attention_chunk_size\":48,\"attn_temperature_tuning\":4,\"moe_layers\":[1,3,5]");
    if (parse(&c, llama4, false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[0].chunk_keys == 48 && c.layer[3].chunk_keys == 0 && c.layer[3].rope == LAYER_ROPE_NONE && !c.layer[0].moe && c.layer[5].moe);
    assert_true(c.query_scale.every == 8192 && c.query_scale.shift == 1 && c.query_scale.no_rope_only && c.weighs_input && c.qk_norm == QK_NORM_UNIT);
    static const char mimo[] =
        BARE("mimo_v2_flash",
             ROUTED_ONLY ",\"head_dim\":24,\"v_head_dim\":16,\"num_key_value_heads\":1,\"swa_num_key_value_heads\":2,\"sliding_window\":8,"
                         "\"hybrid_layer_pattern\":[0,1,1,1,1,0],\"moe_layer_freq\":[0,1,1,1,1,1],\"swa_rope_theta\":100,\"attention_value_scale\":0.5");
    if (parse(&c, mimo, false, &e)) fail_msg("%s", e.text);
    assert_true(c.v_dim == 16 && c.v_scale == 0.5f && config_kv_heads(&c, 0) == 1 && config_kv_heads(&c, 1) == 2 && c.layer[1].window == 9);
    assert_true(c.layer[0].no_sinks && !c.layer[1].no_sinks && c.second_rope.theta == 100 && !c.layer[0].moe && c.layer[1].moe);
    assert_int_equal(kv_row_bytes(&c, 1, DT_F32), 2 * (24 + 16) * 4);
    static const char hunyuan[] =
        BARE_OF("hunyuan_v1_moe", "\"moe_topk\":[2,2,2,2,2,2]", NUMBERED ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0,\"factor\":1.0}");
    if (parse(&c, hunyuan, false, &e)) fail_msg("%s", e.text);
    assert_true(c.topk == 2 && c.rope.kind == ROPE_DEFAULT && fabs(c.rope.theta / (10000 * pow(1000, 16.0 / 14)) - 1) < 1e-9);
}

static void options_that_no_published_model_uses(void **st) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":2", "\"num_local_experts\":8"), "num_experts_per_tok"},
        {BARE_OF("llama4_text", "\"num_experts_per_tok\":1", "\"num_local_experts\":8,\"no_rope_layers\":[1,0]"), "no_rope_layers"},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":[2,2,2,2,2,3]", NUMBERED), "moe_topk"},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2", NUMBERED ",\"use_cla\":true"), "use_cla"},
        {BARE_OF("hunyuan_v1_moe", "\"moe_topk\":2", NUMBERED ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}"), "alpha"},
        {BARE_OF("ernie4_5_moe", "\"moe_k\":2", "\"moe_num_experts\":8,\"moe_intermediate_size\":32,\"use_bias\":true"), "use_bias"},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32,\"num_attention_heads_per_layer\":[4,3,4,4,4,4],\"num_key_value_heads\":2"),
         "layer 1"},
        {BARE("laguna", NUMBERED ",\"shared_expert_intermediate_size\":32,\"gating\":false"), "gating"},
        {BARE("mimo_v2_flash", ROUTED_ONLY), "hybrid_layer_pattern"},
        {BARE("mimo_v2_flash", ROUTED_ONLY ",\"hybrid_layer_pattern\":[0,1,1,1,1,0],\"swa_head_dim\":32"), "swa_head_dim"},
        {BARE("hy_v3", NUMBERED ",\"expert_hidden_dim\":64"), "expert_hidden_dim"},
        {BARE("bailing_moe", NUMBERED ",\"norm_head\":true"), "norm_head"},
        {BARE("olmoe", "\"num_experts\":8,\"clip_qkv\":-1"), "clip_qkv"},
        {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"nonesuch\"}}", "mistral3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct config c;
        struct error e = {0};
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Published configs of models without experts, as sparse as they are. */
static void dense_families(void **st) {
    struct config c;
    struct error e = {0};
    static const char gemma3[] = "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"mm_tokens_per_image\":256,\"text_config\":{\"hidden_size\":2560,"
                                 "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,"
                                 "\"rope_type\":\"linear\"},\"sliding_window\":1024},\"vision_config\":{\"hidden_size\":1152}}";
    assert_int_equal(parse(&c, gemma3, false, &e), 0);
    assert_true(c.vocab == 262208 && c.n_heads == 8 && c.n_kv_heads == 4 && c.head_dim == 256 && c.tied && c.n_experts == 0 && c.max_context == 131072);
    assert_true(c.norm == NORM_RMS_PLUS_ONE && c.qk_norm == QK_NORM_HEAD && c.output_norm && c.streams.is_plain && c.glu.cubic > 0 && c.n_eos == 2);
    assert_true(c.embed_scale == 50.5f && fabsf(c.attn_scale - 0.0625f) < 1e-7f && c.score_cap == 0 && c.logit_cap == 0); /* sqrt(2560) = 50.596 in BF16 */
    assert_true(c.rope.kind == ROPE_LINEAR && c.rope.theta == 1e6 && c.second_rope.kind == ROPE_DEFAULT && c.second_rope.theta == 1e4);
    for (int i = 0; i < 34; i++)
        assert_true(c.layer[i].window == (i % 6 == 5 ? 0 : 1024) && c.layer[i].rope == (i % 6 == 5 ? LAYER_ROPE_FIRST : LAYER_ROPE_SECOND) && !c.layer[i].moe);

#define DENSE(type, more) \
    "{\"model_type\":\"" type "\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"intermediate_size\":512,\"max_position_embeddings\":4096" more "}"
    assert_int_equal(parse(&c, DENSE("qwen2", ",\"use_sliding_window\":true,\"sliding_window\":64,\"max_window_layers\":3"), false, &e), 0);
    assert_true(c.qkv_bias && !c.o_bias && !c.layer[2].window && c.layer[3].window == 64 && c.layer[4].window == 64);
    assert_int_equal(parse(&c, DENSE("smollm3", ""), false, &e), 0);
    assert_true(c.tied && c.layer[2].rope == LAYER_ROPE_FIRST && c.layer[3].rope == LAYER_ROPE_NONE && c.layer[4].rope == LAYER_ROPE_FIRST);
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

/* K-EXAONE's layers by a pattern; Cohere's leading dense layers have one of their own. */
static void layers_by_pattern(void **st) {
    struct config c;
    struct error e = {0};
#define EXPERTS ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64"
    assert_int_equal(parse(&c, DENSE("exaone_moe", EXPERTS ",\"num_shared_experts\":1,\"sliding_window\":128,\"sliding_window_pattern\":\"LLG\""), false, &e),
                     0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(c.layer[i].window, i % 3 == 2 ? 0 : 128);
        assert_int_equal(c.layer[i].rope, i % 3 == 2 ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST);
        assert_int_equal(c.layer[i].moe, i > 0);
    }
    assert_int_equal(parse(&c,
                           DENSE("cohere2_moe", ",\"num_experts\":8,\"num_experts_per_tok\":2,\"num_shared_experts\":1,\"first_k_dense_replace\":2,"
                                                "\"prefix_dense_intermediate_size\":700,\"sliding_window\":16,\"sliding_window_pattern\":3"),
                           false, &e),
                     0);
    static const int windows[] = {0, 0, 16, 16, 0};
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer[i].window, windows[i]);
    assert_true(c.layer[0].rope == LAYER_ROPE_FIRST && c.layer[4].rope == LAYER_ROPE_NONE && c.dense_inter == 700 && c.moe_inter == 512 && !c.layer[1].moe);
    assert_true(c.parallel_block && c.routed_scale == 0.5f && c.shared_scale == 0.5f && c.norm == NORM_LAYER && c.rope.interleaved);
}

/* Mixers with a state instead of keys, by layer. */
static void mixers_by_layer(void **st) {
#define CONV            ",\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"conv\",\"conv\"],\"num_experts\":8,\"num_experts_per_tok\":2"
#define MAMBA(more)     ",\"layer_types\":[\"mamba\",\"attention\",\"mamba\",\"mamba\",\"mamba\"],\"mamba_n_heads\":16,\"mamba_expand\":2" more
#define LIGHTNING(more) ",\"attn_type_list\":[0,1,0,0,0],\"num_local_experts\":8,\"num_experts_per_tok\":2" more
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, DENSE("lfm2_moe", CONV ",\"conv_L_cache\":5,\"tie_embedding\":false"), false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_CONV && !c.layer[1].mixer && c.conv.taps == 5 && !c.tied && !c.layer[1].moe && c.layer[2].moe && c.router_bias);
    assert_int_equal(
        parse(&c, DENSE("granitemoehybrid", MAMBA(",\"mamba_d_head\":\"auto\",\"num_local_experts\":0,\"shared_intermediate_size\":48")), false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_MAMBA2 && c.layer[1].rope == LAYER_ROPE_NONE && c.mamba.head_dim * 16 == 2 * c.hidden && !c.layer[0].moe &&
                c.dense_inter == 48);
    assert_int_equal(parse(&c, DENSE("minimax_m1", LIGHTNING(",\"postnorm\":true,\"layernorm_mlp_alpha\":3,\"layernorm_linear_attention_beta\":2")), false, &e),
                     0);
    assert_true(c.layer[0].mixer == MIXER_LIGHTNING && !c.layer[1].mixer && c.norms_stream && c.layer[0].branch[1].stream == 3 &&
                c.layer[0].branch[0].output == 2);
    assert_true(c.layer[1].branch[0].output == 1);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("lfm2_moe", ",\"num_experts\":8,\"num_experts_per_tok\":2"), "layer_types"},
        {DENSE("granitemoehybrid", MAMBA(",\"mamba_d_head\":7")), "mamba_expand"},
        {DENSE("granitemoehybrid", MAMBA(",\"mamba_n_groups\":3")), "groups"},
        {DENSE("granitemoehybrid", MAMBA(",\"position_embedding_type\":\"alibi\"")), "position_embedding_type"},
        {DENSE("minimax_text_01", LIGHTNING("")), "postnorm"},
        {DENSE("minimax_text_01", ",\"attn_type_list\":[0,1,2,0,0],\"num_local_experts\":8,\"num_experts_per_tok\":2,\"postnorm\":true"), "layer 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Gemma 4: two kinds of layers with other heads, and what hearth refuses of its smaller models. */
static void gemma_4(void **st) {
#define PLAIN ",\"hidden_size_per_layer_input\":0"
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, DENSE("gemma4_text", PLAIN ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1"), false, &e), 0);
    assert_true(c.layer[0].window == 512 && c.layer[0].head_dim == 256 && c.layer[0].n_kv_heads == 2 && !c.layer[0].v_is_k && !c.layer[0].moe);
    assert_true(!c.layer[4].window && c.layer[4].head_dim == 512 && c.layer[4].n_kv_heads == 1 && c.layer[4].v_is_k && c.head_dim == 512 && c.v_dim == 512);
    assert_true(c.rope.kind == ROPE_PROPORTIONAL && c.rope.dim == 512 && c.rope.turning_pairs == 64 && c.rope.theta == 1e6 && c.second_rope.dim == 256);
    assert_true(c.tied && c.v_norm && c.stream_scale && c.attn_scale == 1 && c.embed_scale == 16 && !c.dense_beside && c.logit_cap == 0);
    assert_int_equal(parse(&c,
                           DENSE("gemma4_text", PLAIN ",\"num_global_key_value_heads\":1,\"global_head_dim\":64,\"enable_moe_block\":true,"
                                                      "\"num_experts\":8,\"top_k_experts\":2,\"moe_intermediate_size\":64"),
                           false, &e),
                     0);
    assert_true(c.layer[4].n_kv_heads == 2 && !c.layer[4].v_is_k && c.head_dim == 256 && c.layer[4].head_dim == 64); /* keys differ from values */
    assert_true(c.dense_beside && c.layer[0].moe && c.topk == 2 && c.norm_topk && !c.shared_inter && c.dense_inter == 512);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("gemma4_text", ""), "hidden_size_per_layer_input"},
        {DENSE("gemma4_text", PLAIN ",\"num_kv_shared_layers\":2"), "num_kv_shared_layers"},
        {DENSE("gemma4_text", PLAIN ",\"use_bidirectional_attention\":\"all\""), "use_bidirectional_attention"},
        {DENSE("gemma4_text", PLAIN ",\"attention_bias\":true"), "attention_bias"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Layers that are a mixer only or an FFN only, whichever way the config lists them; FFNs without up; experts in a latent space. */
static void layers_of_one_block(void **st) {
#define NEMOTRON(more) \
    DENSE("nemotron_h", ",\"n_routed_experts\":8,\"moe_intermediate_size\":48,\"moe_shared_expert_intermediate_size\":96,\"mamba_num_heads\":16" more)
#define PATTERN ",\"hybrid_override_pattern\":\"M*-E\""
    static const char *const texts[] = {
        NEMOTRON(PATTERN ",\"moe_latent_size\":64,\"time_step_limit\":[0.0,1e38]"),
        NEMOTRON(
            ",\"layers_block_type\":[\"mamba\",\"attention\",\"mlp\",\"moe\"],\"moe_latent_size\":64,\"time_step_limit\":[0,{\"__float__\":\"Infinity\"}]")};
    struct config c;
    struct error e = {0};
    for (int i = 0; i < 2; i++) {
        if (parse(&c, texts[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.n_layers == 4 && c.layer[0].mixer == MIXER_MAMBA2 && c.layer[0].no_ffn && !c.layer[1].mixer && c.layer[1].no_ffn);
        assert_true(c.layer[2].mixer == MIXER_NONE && !c.layer[2].no_ffn && !c.layer[2].moe && c.layer[3].mixer == MIXER_NONE && c.layer[3].moe);
        assert_true(c.layer[1].rope == LAYER_ROPE_NONE && config_has_states(&c) && config_has_single_blocks(&c) && !config_is_stateful(&c, 2));
        assert_true(c.no_up && c.glu.is_relu && c.moe_latent == 64 && config_routed_width(&c) == 64 && c.shared_inter == 96 && c.norm_eps == 1e-5f);
        struct param list[PARAMS_MAX];
        assert_int_equal(params_list(&c, 0, MODULE_FFN, list), 0);
        assert_int_equal(params_list(&c, 2, MODULE_ATTENTION, list), 0);
        assert_int_equal(params_list(&c, 3, MODULE_EXPERT, list), 2);
    }
    assert_int_equal(parse(&c, NEMOTRON(PATTERN), false, &e), 0);
    assert_true(!c.moe_latent && config_routed_width(&c) == 256);
    assert_int_equal(parse(&c, NEMOTRON(",\"hybrid_override_pattern\":\"M*-\""), false, &e), 0);
    assert_int_equal(c.n_experts, 0);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {NEMOTRON(""), "layers_block_type"},
        {NEMOTRON(",\"hybrid_override_pattern\":\"M*X\""), "layer 2"},
        {NEMOTRON(",\"layers_block_type\":[\"mamba\",3]"), "layer 1"},
        {NEMOTRON(PATTERN ",\"n_groups\":3"), "groups"},
        {NEMOTRON(PATTERN ",\"mlp_bias\":true"), "mlp_bias"},
        {NEMOTRON(PATTERN ",\"mlp_hidden_act\":\"silu\""), "mlp_hidden_act"},
        {NEMOTRON(PATTERN ",\"time_step_limit\":[0.0,0.1]"), "time_step_limit"},
        {NEMOTRON(PATTERN ",\"moe_latent_size\":300"), "moe_latent_size"},
        {NEMOTRON(PATTERN ",\"sliding_window\":64"), "sliding_window"},
        {NEMOTRON(PATTERN ",\"mamba_gain\":2"), "mamba_gain"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Jamba's layers by periods and offsets, and its Mamba-1. */
static void layers_by_period(void **st) {
#define JAMBA(more) \
    DENSE("jamba", ",\"attn_layer_period\":3,\"attn_layer_offset\":1,\"expert_layer_period\":2,\"expert_layer_offset\":1,\"mamba_d_state\":8" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, JAMBA(",\"num_experts\":4,\"mamba_expand\":3,\"mamba_dt_rank\":\"auto\",\"mamba_proj_bias\":true"), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].mixer == (i % 3 == 1 ? MIXER_ATTENTION : MIXER_MAMBA1) && c.layer[i].moe == (i % 2 == 1));
    assert_true(c.mamba.head_dim == 3 * c.hidden && c.mamba.rank == 16 && c.mamba.state == 8 && c.mamba.projects_bias && c.mamba.conv_bias);
    assert_true(c.layer[1].rope == LAYER_ROPE_NONE && !c.norm_topk && c.score == SCORE_SOFTMAX && c.topk == 2 && config_has_states(&c));
    assert_int_equal(parse(&c, JAMBA(",\"num_experts\":1,\"mamba_dt_rank\":5"), false, &e), 0);
    assert_true(!c.n_experts && !c.layer[1].moe && c.mamba.rank == 5);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("jamba", ",\"attn_layer_period\":3,\"attn_layer_offset\":3"), "attn_layer_offset"},
        {JAMBA(",\"mamba_inner_layernorms\":false"), "mamba_inner_layernorms"},
        {JAMBA(",\"sliding_window\":64"), "sliding_window"},
        {JAMBA(",\"mamba_gain\":2"), "mamba_gain"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* ZAYA's convolutions, its router's MLP, and layers that slide and rotate differently. */
static void convolved_attention(void **st) {
#define ZAYA(types, more) \
    "{\"model_type\":\"zaya\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"max_position_embeddings\":4096,\"layer_types\":[" types "],\"num_experts\":4,\"moe_intermediate_size\":64,\"router_hidden_size\":24" more "}"
#define HYBRID "\"hybrid\",\"hybrid\",\"hybrid\",\"hybrid\""
#define ROPES(more) \
    ",\"rope_parameters\":{\"hybrid\":{\"rope_theta\":5e6,\"partial_rotary_factor\":0.5" more \
    "},\"hybrid_sliding\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}"
    struct config c;
    struct error e = {0};
    if (parse(&c, ZAYA(HYBRID ",\"hybrid_sliding\"", ",\"sliding_window\":32,\"cca_time1\":3" ROPES("")), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_CCA && c.cca.taps[0] == 2 && c.cca.taps[1] == 3 && c.router_inter == 24 && c.merges_stream && c.streams.is_plain);
    assert_true(c.layer[4].window == 32 && c.layer[4].rope == LAYER_ROPE_SECOND && !c.layer[0].window && c.layer[0].rope == LAYER_ROPE_FIRST);
    assert_true(c.rope.theta == 5e6 && c.rope.dim == 32 && c.second_rope.theta == 1e4 && c.second_rope.dim == 16);
    assert_true(c.tied && c.topk == 1 && config_n_choices(&c) == 5 && c.layer[0].moe);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {ZAYA(HYBRID ",\"full\"", ""), "layer 4"},
        {ZAYA(HYBRID ",\"hybrid_sliding\"", ""), "sliding window"},
        {ZAYA(HYBRID, ""), "layer_types"},
        {ZAYA(HYBRID ",\"hybrid\"", ",\"cca_time0\":1,\"cca_time1\":1"), "cca_time0"},
        {ZAYA(HYBRID ",\"hybrid\"", ",\"num_experts_per_tok\":2"), "num_experts_per_tok"},
        {ZAYA(HYBRID ",\"hybrid\"", ",\"attention_bias\":true"), "attention_bias"},
        {ZAYA(HYBRID ",\"hybrid\"", ",\"lm_head_bias\":true"), "lm_head_bias"},
        {ZAYA(HYBRID ",\"hybrid\"", ROPES(",\"wavelength\":3")), "wavelength"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(deepseek_v3_as_published),
                                       cmocka_unit_test(gemma_4),
                                       cmocka_unit_test(hunyuan_4),
                                       cmocka_unit_test(inkling),
                                       cmocka_unit_test(qwen_4),
                                       cmocka_unit_test(minimax_m3),
                                       cmocka_unit_test(axk2),
                                       cmocka_unit_test(mixers_by_layer),
                                       cmocka_unit_test(layers_of_one_block),
                                       cmocka_unit_test(layers_by_period),
                                       cmocka_unit_test(convolved_attention),
                                       cmocka_unit_test(blocks_of_compressed_tensors),
                                       cmocka_unit_test(integers_of_each_method),
                                       cmocka_unit_test(refusals_name_the_key),
                                       cmocka_unit_test(keys_chosen_by_an_indexer),
                                       cmocka_unit_test(windows_only_where_in_force),
                                       cmocka_unit_test(other_ropes),
                                       cmocka_unit_test(what_a_config_leaves_out),
                                       cmocka_unit_test(keys_of_several_tokens),
                                       cmocka_unit_test(linear_attention_where_it_is_asked_for),
                                       cmocka_unit_test(layers_of_several_kinds),
                                       cmocka_unit_test(options_that_no_published_model_uses),
                                       cmocka_unit_test(dense_families),
                                       cmocka_unit_test(layers_by_pattern)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
