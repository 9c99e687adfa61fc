/* config.json of models whose layers differ: compressed keys, keys shared by layers, windows, mixers, and patterns of
 * layers. */
#include "test/unit/unit.h"

#include "engine/layer/block.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/arch.h"
#include "test/unit/parse_config.h"

#define V4 \
    "{\"model_type\":\"deepseek_v4\",\"vocab_size\":129280,\"hidden_size\":4096,\"num_hidden_layers\":6,\"max_" \
    "position_embeddings\":1048576," \
    "\"num_attention_heads\":64,\"num_key_value_heads\":1,\"head_dim\":512,\"q_lora_rank\":1024,\"qk_rope_head_dim\":" \
    "64,\"o_groups\":8,\"o_lora_rank\":1024," \
    "\"index_n_heads\":64,\"index_head_dim\":128,\"index_topk\":512,\"sliding_window\":128,\"n_routed_experts\":256," \
    "\"num_experts_per_tok\":6," \
    "\"n_shared_experts\":1,\"moe_intermediate_size\":2048,\"scoring_func\":\"sqrtsoftplus\",\"routed_scaling_" \
    "factor\":1.5,\"swiglu_limit\":10," \
    "\"num_hash_layers\":3,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-6,\"expert_dtype\":\"fp4\",\"num_" \
    "nextn_predict_layers\":1,\"topk_method\":" \
    "\"noaux_tc\""
#define V4_ROPE \
    ",\"rope_theta\":10000,\"compress_rope_theta\":160000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16," \
    "\"original_max_position_embeddings\":65536," \
    "\"beta_fast\":32,\"beta_slow\":1}"
#define V4_RATIOS ",\"compress_ratios\":[0,0,4,128,4,128,0]"

static void keys_of_several_tokens(void **st) {
    static const char *const same[] = {
        /* in the vendor's form, and in transformers' */
        V4 V4_ROPE V4_RATIOS "}",
        V4 V4_ROPE ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"compressed_sparse_attention\","
                   "\"heavily_compressed_attention\","
                   "\"compressed_sparse_attention\",\"heavily_compressed_attention\"],\"mlp_layer_types\":[\"hash_"
                   "moe\",\"hash_moe\",\"hash_moe\",\"moe\","
                   "\"moe\",\"moe\"],"
                   "\"compress_rates\":{\"compressed_sparse_attention\":4,\"heavily_compressed_attention\":128}}",
        V4 V4_RATIOS ",\"rope_parameters\":{\"main\":{\"rope_type\":\"default\",\"rope_theta\":10000,\"partial_rotary_"
                     "factor\":0.125},\"compress\":{"
                     "\"rope_type\":\"yarn\",\"rope_theta\":160000,\"partial_rotary_factor\":0.125,\"factor\":16,"
                     "\"original_max_position_embeddings\":65536,"
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
        {V4_ROPE V4_RATIOS ",\"mlp_layer_types\":[\"dense\",\"moe\",\"moe\",\"moe\",\"moe\",\"moe\"]",
         "mlp_layer_types"},
        {V4_ROPE V4_RATIOS ",\"norm_topk_prob\":false", "norm_topk_prob"},
        {V4_ROPE V4_RATIOS ",\"layer_types\":[" SIX("\"sliding_attention\"") "]", "'layer_types' differ in layer 2"},
        {V4_ROPE V4_RATIOS ",\"mlp_layer_types\":[" SIX("\"moe\"") "]", "'mlp_layer_types' differ in layer 0"},
        {V4_ROPE V4_RATIOS ",\"partial_rotary_factor\":0.25", "partial_rotary_factor"},
        {V4_RATIOS ",\"rope_parameters\":{\"main\":{\"partial_rotary_factor\":0.25},\"compress\":{}}",
         "rotate 128 dimensions"},
        {V4_ROPE V4_RATIOS ",\"attention_bias\":true", "attention_bias"},
        {V4_ROPE V4_RATIOS ",\"mlp_bias\":true", "mlp_bias"},
        {V4_RATIOS ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":16,\"attention_factor\":2}", "compressed keys"},
        {V4_RATIOS ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":16,\"low_freq_factor\":1,\"high_freq_factor\":4}",
         "compressed keys"},
    };
    struct config c;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct error e = {0};
        if (parse(&c, same[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.attn == ATTN_COMPRESSED && c.streams.n == 4 && c.streams.iters == 20 && c.sinks &&
                    c.score == SCORE_SQRT_SOFTPLUS && c.glu.limit == 10);
        assert_true(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000 && c.rope.dim == 64 && c.rope.interleaved);
        assert_true(c.second_rope.kind == ROPE_YARN && c.second_rope.theta == 160000 && c.second_rope.dim == 64 &&
                    c.second_rope.attention_factor == 1);
        for (int l = 0; l < 6; l++) {
            assert_true(c.layer[l].ratio == ratios[l] && c.layer[l].overlap == (ratios[l] == 4) &&
                        c.layer[l].hashed == (l < 3) && c.layer[l].moe);
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

#define TWENTY(one) \
    one "," one "," one "," one "," one "," one "," one "," one "," one "," one "," one "," one "," one "," one \
        "," one "," one "," one "," one "," one "," one
#define V41_RATIOS "0,0,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2," TWENTY("1") ",0,0,0"
/* As published; `more` replaces keys of the text model. */
static int parse_v41(struct config *c, const char *ratios, const char *sources, const char *indexers, const char *more,
                     struct error *e) {
    static char text[8192];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"DeepseekV41ForCausalLM\"],\"model_type\":\"deepseek_v41\",\"dtype\":\"bfloat16\","
             "\"bos_token_id\":0,\"eos_token_id\":1,"
             "\"pad_token_id\":2,\"image_token_id\":129264,\"quantization_config\":{\"quant_method\":\"fp8\","
             "\"activation_scheme\":\"dynamic\","
             "\"weight_block_size\":[32,32],\"scale_fmt\":\"ue8m0\",\"expert_dtype\":\"fp4\"},\"vision_config\":{"
             "\"model_type\":\"deepseek_v41_vision\"},"
             "\"text_config\":{\"model_type\":\"deepseek_v41_text\",\"vocab_size\":129280,\"hidden_size\":5120,\"moe_"
             "intermediate_size\":2304,"
             "\"num_hidden_layers\":40,\"num_attention_heads\":64,\"num_key_value_heads\":1,\"head_dim\":512,\"qk_rope_"
             "head_dim\":64,\"q_lora_rank\":1280,"
             "\"o_lora_rank\":1024,\"o_groups\":8,\"hidden_act\":\"silu\",\"swiglu_limit\":10.0,\"rms_norm_eps\":1e-20,"
             "\"attention_bias\":false,"
             "\"max_position_embeddings\":1048576,\"rope_theta\":10000,\"rope_scaling\":{\"rope_type\":\"yarn\","
             "\"factor\":16,\"beta_fast\":32,"
             "\"beta_slow\":1,\"original_max_position_embeddings\":65536},\"n_routed_experts\":384,\"n_shared_"
             "experts\":1,\"num_experts_per_tok\":6,"
             "\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":\"noaux_tc\",\"norm_topk_prob\":true,\"routed_scaling_"
             "factor\":1.5,\"sliding_window\":128,"
             "\"compress_ratios\":[%s],\"compress_rope_theta\":160000,\"kv_source_layer_ids\":[%s],\"index_source_"
             "layer_ids\":[%s],\"index_n_heads\":32,"
             "\"index_head_dim\":128,\"index_topk\":512,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-06,"
             "\"engram_max_ngram_size\":4,"
             "\"engram_vocab_size\":16000000,\"engram_n_heads\":8,\"engram_head_dim\":256,\"engram_pad_token_id\":2,"
             "\"num_nextn_predict_layers\":3,"
             "\"dspark_block_size\":5,\"dspark_noise_token_id\":128799,\"dspark_target_layer_ids\":[37,38,39],\"dspark_"
             "markov_rank\":256,"
             "\"dspark_n_routed_experts\":128,\"dspark_num_experts_per_tok\":3%s}}",
             ratios, sources, indexers, more);
    return parse(c, text, false, e);
}
#define V41_BLOCKS ",\"candidate_source_layer_id\":20,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8"
#define V41_NGRAMS \
    ",\"engram_layer_ids\":[1,14],\"engram_num_embeddings\":[384006168,384016682],\"engram_compressed_vocab_size\":" \
    "99092"
#define V41_SOURCES "2,8,14,20", "2,8,14,20,24,28,32,36"
static void keys_that_layers_share(void **st) {
    /* Drawn by numpy.random.default_rng(10007 * layer). */
    static const uint64_t multipliers[2][4] = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                               {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    static const struct {
        const char *ratios, *sources, *indexers, *more, *word;
    } bad[] = {
        {"0,0,2", V41_SOURCES, "", "'compress_ratios' is not a list of 40"},
        {V41_RATIOS, "2,8,8", "2,8", "", "'kv_source_layer_ids' is not a rising list"},
        {V41_RATIOS, "2,8,20", "2,40", "", "'index_source_layer_ids' is not a rising list"},
        {V41_RATIOS, "2,8,14,20", "2,8,20", "", "layer 14 is in 'kv_source_layer_ids', but not"},
        {V41_RATIOS, "8,14,20", "8,14,20", "", "layer 2 has 'compress_ratios' 2, but no layer up to it"},
        {V41_RATIOS, "2,8,14", "2,8,14", "", "layer 20 has 'compress_ratios' 1, its source of keys, layer 14, 2"},
        {V41_RATIOS, "1,2,8,14,20", "1,2,8,14,20", "", "layer 1 has a source of keys"},
        {V41_RATIOS, V41_SOURCES,
         ",\"candidate_source_layer_id\":21,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8",
         "which is not in 'index_source"},
        {V41_RATIOS, V41_SOURCES,
         ",\"candidate_source_layer_id\":14,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8",
         "whose keys are not its own"},
        {V41_RATIOS, V41_SOURCES,
         ",\"candidate_source_layer_id\":20,\"candidate_topk_blocks\":64,\"candidate_block_size\":8",
         "too few to select 512"},
        {V41_RATIOS, V41_SOURCES,
         ",\"engram_layer_ids\":[1,14],\"engram_num_embeddings\":[384006168,384016681],\"engram_compressed_vocab_"
         "size\":9",
         "384016682"},
        {V41_RATIOS, V41_SOURCES, ",\"engram_layer_ids\":[1],\"engram_num_embeddings\":[384006168]",
         "'engram_compressed_vocab_size' is missing"},
        {V41_RATIOS, V41_SOURCES, ",\"num_hash_layers\":0,\"engram_layer\":1", "engram_layer"},
    };
    struct config c;
    struct error e = {0};
    if (parse_v41(&c, V41_RATIOS, V41_SOURCES, V41_BLOCKS V41_NGRAMS, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_COMPRESSED && c.streams.n == 4 && c.streams.passes_weights &&
                c.qk_norm == QK_NORM_NONE && c.block_rows == 32 && c.norm_eps == 1e-20f);
    assert_true(c.second_rope.kind == ROPE_YARN && c.second_rope.factor == 16 && c.carried == 512 + 128 + 4 &&
                c.candidate_blocks == 2047 && c.candidate_keys == 8);
    for (int i = 0, source = -1; i < 40; i++) {
        const struct layer_config *y = &c.layer[i];
        const bool own = i == 2 || i == 8 || i == 14 || i == 20, indexer = own || (i > 20 && i % 4 == 0);
        source = own ? i : source;
        assert_true(y->ratio == (i < 2    ? 0
                                 : i < 20 ? 2
                                          : 1) &&
                    !y->overlap && !y->hashed && y->moe && y->window == 128);
        assert_int_equal(y->passes_kv, i < 2 ? KV_OWN : own ? KV_PASSED : KV_TAKEN);
        if (i >= 2) assert_true(y->kv_source == source && y->index == (indexer ? INDEX_OWN : INDEX_PREVIOUS));
        assert_true(y->lists_blocks == (i == 20) && y->limits_keys == (i > 20 && indexer) &&
                    y->ngram == (i == 1    ? 1
                                 : i == 14 ? 2
                                           : 0));
        assert_int_equal(kv_row_bytes(&c, i, DT_BF16), 1024 + (own ? (1024 + 256) / y->ratio : 0));
    }
    assert_int_equal(kv_state_bytes(&c), 4 * (3 * 3 * 512 + 2 * 3));
    for (int i = 0; i < 2; i++) {
        const struct ngram_config *g = &c.ngram[i];
        assert_true(g->size == 4 && g->per == 8 && g->dim == 6144 && g->taps == 1);
        for (int k = 0; k < 4; k++) assert_true(g->multiplier[k] == multipliers[i][k]);
    }
    assert_true(c.ngram[1].rows == 384016682 && c.ngram[1].vocab[23] == 16000889 && c.ngram[0].vocab[0] == 16000057 &&
                c.ngram[0].vocab[1] == 16000079 && c.ngram_numbers == 99092);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse_v41(&c, bad[i].ratios, bad[i].sources, bad[i].indexers, bad[i].more, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

#define QWEN2 \
    "{\"model_type\":\"qwen2_moe\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":4,\"max_position_" \
    "embeddings\":512," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"moe_intermediate_size\":32,\"num_" \
    "experts\":8," \
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
    "\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":6,\"max_position_embeddings\":512,\"num_attention_" \
    "heads\":4,\"num_key_value_heads\":2," \
    "\"head_dim\":32,\"moe_intermediate_size\":32,\"num_experts\":8,\"num_experts_per_tok\":2,\"shared_expert_" \
    "intermediate_size\":48," \
    "\"rope_parameters\":{\"rope_theta\":10000000,\"rope_type\":\"default\",\"mrope_section\":[11,11,10],\"mrope_" \
    "interleaved\":true}"
#define NEXT "{\"model_type\":\"qwen3_next\"," TEXT3_5
#define WITH_VISION(text, more) \
    "{\"model_type\":\"qwen3_5_moe\",\"image_token_id\":5,\"vision_config\":{\"depth\":2},\"text_config\":{\"model_" \
    "type\":\"qwen3_5_moe_text\"," TEXT3_5 text "}" more "}"

static void linear_attention_where_it_is_asked_for(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, NEXT "}", false, &e), 0);
    /* every fourth layer has full attention */
    assert_true(c.layer[0].mixer == MIXER_DELTA && c.layer[2].mixer && !c.layer[3].mixer && c.layer[4].mixer);
    assert_true(c.rope.dim == 8 && c.delta.v_heads == 32 && c.delta.k_heads == 16 && c.delta.k_dim == 128 &&
                c.delta.taps == 4 && c.delta.fused);
    assert_int_equal(kv_token_bytes(&c, DT_BF16), 2 * 2 * 32 * 2);
    assert_int_equal(kv_state_bytes(&c), 5 * 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128));
    assert_int_equal(parse(&c, NEXT ",\"full_attention_interval\":2,\"partial_rotary_factor\":0.5}", false, &e), 0);
    assert_true(c.layer[0].mixer && !c.layer[1].mixer && c.rope.dim == 16);
    assert_int_equal(parse(&c, WITH_VISION("", ",\"tie_word_embeddings\":true"), false, &e), 0);
    assert_true(c.tied && !c.delta.fused && c.norm_topk && !strcmp(c.model_type, "qwen3_5_moe"));
    assert_int_equal(
        parse(&c, WITH_VISION(",\"tie_word_embeddings\":true", ",\"tie_word_embeddings\":false"), false, &e), 0);
    assert_true(c.tied); /* of files from before transformers 5 */
    assert_int_equal(
        parse(&c, WITH_VISION(",\"tie_word_embeddings\":false", ",\"tie_word_embeddings\":false"), false, &e), 0);
    assert_false(c.tied);
#define DENSE3_5 \
    "\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":6,\"num_attention_heads\":4,\"num_key_value_heads\":" \
    "2,\"head_dim\":32,\"intermediate_size\":" \
    "96,\"max_position_embeddings\":512"
    assert_int_equal(parse(&c,
                           "{\"model_type\":\"qwen3_5\",\"vision_config\":{},\"text_config\":{\"model_type\":\"qwen3_5_"
                           "text\"," DENSE3_5 "}}",
                           false, &e),
                     0);
    assert_true(!c.n_experts && !c.layer[0].moe && c.dense_inter == 96 && c.layer[0].mixer == MIXER_DELTA &&
                !c.layer[3].mixer && c.rope.dim == 8 && !c.delta.fused);
    assert_true(c.rope.section[0] == 11 && c.rope.section[1] == 10);
    assert_int_equal(parse(&c, "{\"model_type\":\"qwen3_5_text\",\"num_experts\":8," DENSE3_5 "}", false, &e),
                     ERR_MODEL);
    assert_non_null(strstr(e.text, "num_experts"));
    assert_int_equal(parse(&c,
                           "{\"model_type\":\"qwen3_vl\",\"vision_config\":{},\"text_config\":{\"model_type\":\"qwen3_"
                           "vl_text\"," DENSE3_5 "}}",
                           false, &e),
                     0);
    assert_true(c.qk_norm == QK_NORM_HEAD && !c.layer[0].mixer && c.rope.dim == 32 && c.dense_inter == 96);
    assert_true(c.rope.section[0] == 20 && c.rope.section[1] == 20); /* images turn by defaults, too */
    static const struct {
        const char *text, *word;
    } bad[] = {
        {NEXT ",\"layer_types\":[\"full_attention\"]}", "layer_types"},
        {NEXT ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_"
              "attention\",\"mamba\"]}",
         "layer 5"},
        {NEXT ",\"attn_output_gate\":false}", "attn_output_gate"},
        {NEXT ",\"linear_num_key_heads\":7}", "32 value heads"},
        {NEXT ",\"linear_conv_kernel_dim\":200}", "linear_conv_kernel_dim"},
        {NEXT ",\"mamba_ssm_dtype\":\"bfloat16\"}", "mamba_ssm_dtype"},
        {WITH_VISION(",\"new_scale\":3", ""), "new_scale"},
        {WITH_VISION("", ",\"other_scale\":3"), "other_scale"},
        {WITH_VISION(",\"mlp_only_layers\":[2]", ""), "mlp_only_layers"},
        {"{\"model_type\":\"qwen3_5_moe\"}", "text_config"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct error){0};
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* K-EXAONE's layers by a pattern; Cohere's leading dense layers have one of their own. */
static void layers_by_pattern(void **st) {
    struct config c;
    struct error e = {0};
#define EXPERTS ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64"
    assert_int_equal(parse(&c,
                           DENSE("exaone_moe", EXPERTS
                                 ",\"num_shared_experts\":1,\"sliding_window\":128,\"sliding_window_pattern\":\"LLG\""),
                           false, &e),
                     0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(c.layer[i].window, i % 3 == 2 ? 0 : 128);
        assert_int_equal(c.layer[i].rope, i % 3 == 2 ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST);
        assert_int_equal(c.layer[i].moe, i > 0);
    }
    assert_int_equal(
        parse(&c,
              DENSE("cohere2_moe",
                    ",\"num_experts\":8,\"num_experts_per_tok\":2,\"num_shared_experts\":1,\"first_k_dense_replace\":2,"
                    "\"prefix_dense_intermediate_size\":700,\"sliding_window\":16,\"sliding_window_pattern\":3"),
              false, &e),
        0);
    static const int windows[] = {0, 0, 16, 16, 0};
    for (int i = 0; i < 5; i++) assert_int_equal(c.layer[i].window, windows[i]);
    assert_true(c.layer[0].rope == LAYER_ROPE_FIRST && c.layer[4].rope == LAYER_ROPE_NONE && c.dense_inter == 700 &&
                c.moe_inter == 512 && !c.layer[1].moe);
    assert_true(c.parallel_block && c.routed_scale == 0.5f && c.shared_scale == 0.5f && c.norm == NORM_LAYER &&
                c.rope.interleaved);
    assert_int_equal(parse(&c, DENSE("cohere2", ",\"sliding_window\":16,\"layer_switch\":3"), false, &e), 0);
    for (int i = 0; i < 5; i++)
        assert_true(c.layer[i].window == (i == 2 ? 0 : 16) &&
                    c.layer[i].rope == (i == 2 ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST));
    assert_true(c.parallel_block && c.norm == NORM_LAYER && c.rope.interleaved && c.tied && !c.n_experts);
    assert_int_equal(
        parse(&c, DENSE("exaone4", ",\"sliding_window\":16,\"sliding_window_pattern\":\"LLG\""), false, &e), 0);
    assert_true(c.layer[2].rope == LAYER_ROPE_NONE && c.layer[3].window == 16 && c.no_input_norm &&
                c.output_norm == OUTPUT_NORM_BLOCKS && !c.n_experts);
    assert_int_equal(parse(&c, DENSE("exaone4", ",\"sliding_window\":null"), false, &e), 0);
    assert_true(!c.layer[0].window && c.layer[4].rope == LAYER_ROPE_FIRST);
    static const char with_vision[] =
        "{\"model_type\":\"exaone4_5\",\"image_token_id\":67,\"vision_config\":{},\"text_config\":" DENSE(
            "exaone4_5_text", ",\"sliding_window\":16,\"sliding_window_pattern\":\"LLG\"") "}";
    if (parse(&c, with_vision, false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[2].rope == LAYER_ROPE_NONE && c.layer[3].window == 16 && c.no_input_norm && !c.tied);
    assert_string_equal(c.names->attn_out_norm, "model.language_model.layers.%d.post_attention_layernorm");
    assert_int_equal(parse(&c, "{\"model_type\":\"exaone4_5\"}", false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "text_config"));
}

/* Mixers with a state instead of keys, by layer. */
static void mixers_by_layer(void **st) {
#define CONV \
    ",\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"conv\",\"conv\"],\"num_experts\":8,\"num_experts_per_" \
    "tok\":2"
#define MAMBA(more) \
    ",\"layer_types\":[\"mamba\",\"attention\",\"mamba\",\"mamba\",\"mamba\"],\"mamba_n_heads\":16,\"mamba_expand\":" \
    "2" more
#define LINEAR          "\"linear_attention\""
#define LIGHTNING(more) ",\"attn_type_list\":[0,1,0,0,0],\"num_local_experts\":8,\"num_experts_per_tok\":2" more
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, DENSE("lfm2_moe", CONV ",\"conv_L_cache\":5,\"tie_embedding\":false"), false, &e), 0);
    assert_true(c.layer[0].mixer == MIXER_CONV && !c.layer[1].mixer && c.conv.taps == 5 && !c.tied && !c.layer[1].moe &&
                c.layer[2].moe && c.router_bias);
    assert_int_equal(
        parse(&c,
              DENSE("granitemoehybrid",
                    MAMBA(",\"mamba_d_head\":\"auto\",\"num_local_experts\":0,\"shared_intermediate_size\":48")),
              false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_MAMBA2 && c.layer[1].rope == LAYER_ROPE_NONE &&
                c.mamba.head_dim * 16 == 2 * c.hidden && !c.layer[0].moe && c.dense_inter == 48);
    assert_int_equal(
        parse(&c,
              DENSE("minimax_m1",
                    LIGHTNING(",\"postnorm\":true,\"layernorm_mlp_alpha\":3,\"layernorm_linear_attention_beta\":2")),
              false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_LIGHTNING && !c.layer[1].mixer && c.norms_stream &&
                c.layer[0].branch[1].stream == 3 && c.layer[0].branch[0].output == 2);
    assert_true(c.layer[1].branch[0].output == 1);
    assert_int_equal(parse(&c, DENSE("minimax", LIGHTNING(",\"rotary_dim\":32")), false, &e), 0);
    assert_int_equal(c.rope.dim, 32);
    assert_int_equal(parse(&c, DENSE("minimax", LIGHTNING("")), false, &e), 0);
    assert_int_equal(c.rope.dim, c.head_dim);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("lfm2_moe", ",\"num_experts\":8,\"num_experts_per_tok\":2"), "layer_types"},
        {DENSE("granitemoehybrid", MAMBA(",\"mamba_d_head\":7")), "mamba_expand"},
        {DENSE("granitemoehybrid", MAMBA(",\"mamba_n_groups\":3")), "groups"},
        {DENSE("granitemoehybrid", MAMBA(",\"time_step_limit\":[0.0,0.1]")), "time_step_limit"},
        {DENSE("granitemoehybrid", MAMBA(",\"position_embedding_type\":\"alibi\"")), "position_embedding_type"},
        {DENSE("minimax_text_01", LIGHTNING("")), "postnorm"},
        {DENSE("minimax", LIGHTNING(",\"mlp_alpha_factor\":2,\"layernorm_mlp_alpha\":3")),
         "'layernorm_mlp_alpha' and 'mlp_alpha_factor' differ"},
        {DENSE("minimax", LIGHTNING(",\"layer_types\":[" LINEAR "," LINEAR "," LINEAR "," LINEAR "," LINEAR "]")),
         "'layer_types' differ in layer 1"},
        {DENSE("minimax_text_01",
               ",\"attn_type_list\":[0,1,2,0,0],\"num_local_experts\":8,\"num_experts_per_tok\":2,\"postnorm\":true"),
         "layer 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i].text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].word)) fail_msg("%s: %s", bad[i].word, e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_several_tokens),      cmocka_unit_test(keys_that_layers_share),
        cmocka_unit_test(windows_only_where_in_force), cmocka_unit_test(linear_attention_where_it_is_asked_for),
        cmocka_unit_test(layers_by_pattern),           cmocka_unit_test(mixers_by_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
