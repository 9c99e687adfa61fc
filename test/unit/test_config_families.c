/* config.json of families with mixers, indexers or streams of their own: what is read, derived and refused. One
 * function a family, which shares nothing with the next; a second file could only divide them by name. */
#include "engine/layer/kv_planes.h"
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "base/ops.h"
#include "engine/layer/block.h"
#include "engine/model/arch.h"
#include "engine/model/rope.h"
#include "test/unit/parse_config.h"

/* Inkling: other heads and biases in layers with a window, shared experts as the last ones, one layer more than
 * published. */
static void inkling(void **st) {
#define INKLING(more) \
    "{\"model_type\":\"inkling_mm_model\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_" \
    "layers\":4," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":32,\"swa_num_attention_heads\":6,\"swa_num_key_" \
    "value_heads\":2,\"swa_head_dim\":24," \
    "\"sliding_window_size\":32,\"rel_extent\":96,\"d_rel\":8,\"n_routed_experts\":8,\"num_experts_per_tok\":3," \
    "\"intermediate_size\":48," \
    "\"dense_intermediate_size\":200,\"dense_mlp_idx\":1" more "}}"
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c,
                           INKLING(",\"local_layer_ids\":[0,3],\"log_scaling_n_floor\":64,\"unpadded_vocab_size\":300"),
                           false, &e),
                     0);
    assert_true(c.n_layers == 5 && config_is_bare(&c, 4) && config_is_stateful(&c, 4) &&
                !config_has_single_blocks(&c) && c.vocab == 300 && c.embed_rows == 320 && c.embed_norm &&
                c.streams.is_plain);
    assert_true(c.n_experts == 10 && c.n_always == 2 && c.topk == 5 && c.moe_inter == 48 && c.dense_inter == 200 &&
                !c.layer[0].moe && c.layer[1].moe);
    assert_true(c.layer[0].window == 32 && c.layer[0].extent == 32 && c.layer[0].n_heads == 6 &&
                c.layer[0].head_dim == 24 && c.layer[0].n_kv_heads == 2);
    assert_true(!c.layer[1].window && c.layer[1].extent == 96 && c.layer[1].n_heads == 4 && c.layer[1].head_dim == 32 &&
                c.layer[1].attn_scale == 1 / 32.0f);
    assert_true(c.n_heads == 6 && c.head_dim == 32 && c.query_scale.kind == SCALE_SMOOTH && c.query_scale.every == 64 &&
                c.short_taps == 4);
    assert_int_equal(kv_row_bytes(&c, 1, DT_BF16), 2 * 2 * 32);
    /* keys, values, two outputs; the last layer one */
    assert_int_equal(kv_state_bytes(&c), 4 * 3 * (2 * 2 * (2 * 24 + 128) + 2 * 2 * (32 + 128) + 128));
    assert_int_equal(parse(&c,
                           INKLING(",\"layer_types\":[\"hybrid\",\"hybrid_sliding\",\"hybrid\",\"hybrid\"],\"mlp_layer_"
                                   "types\":[\"dense\",\"sparse\",\"dense\",\"sparse\"]"),
                           false, &e),
                     0);
    assert_true(!c.layer[0].window && c.layer[1].window && !c.layer[3].window && c.layer[1].moe && !c.layer[2].moe &&
                c.layer[3].moe);
    assert_int_equal(parse(&c, INKLING(",\"mlp_layer_types\":[\"dense\"]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "not a list of 4"));
    assert_int_equal(parse(&c, INKLING(",\"shared_expert_sink\":false"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "shared_expert_sink"));
    assert_int_equal(parse(&c, INKLING(",\"local_layer_ids\":[4]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 4 of 4"));
}

/* Inkling 2: streams of some layers each, and a source for each of them; layers without a window have inputs of their
 * own for keys and values. */
static void inkling2(void **st) {
#define INKLING2(type, before, more, after) \
    "{\"model_type\":\"" type "\"," before "\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":7,\"num_" \
    "attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":32," \
    "\"swa_num_attention_heads\":6,\"swa_num_key_value_heads\":2,\"swa_head_dim\":24,\"n_routed_experts\":8,\"num_" \
    "experts_per_tok\":3" more "}" after
    struct config c;
    struct error e = {0};
    if (parse(&c,
              INKLING2("inkling2",
                       "\"image_token_id\":9,\"vision_config\":{\"patch_size\":20},\"text_config\":{\"model_type\":"
                       "\"inkling2_text\",",
                       "", "}"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.n_layers == 8 && config_is_bare(&c, 7) && c.streams.n == 3 && c.streams.block_layers == 6 &&
                c.embed_norm && c.vocab == 320);
    for (int i = 0; i < 7; i++)
        assert_true(c.layer[i].moe && c.layer[i].mixes_kv == (i == 5) && c.layer[i].window == (i == 5 ? 0 : 1024));
    assert_true(c.qk_norm == QK_NORM_CLIP && c.projects_sinks && c.v_norm && c.scales_short && c.short_taps == 4 &&
                c.layer[5].extent == 1024);
    assert_true(c.layer[5].attn_scale == 1 / sqrtf(32) && c.query_scale.every == 128000 && c.logit_cap == 30 &&
                c.glu.gate_cap == 4 && c.glu.up_cap == 25);
    if (parse(&c,
              INKLING2("inkling2_text", "",
                       ",\"n_layers_per_attn_res_block\":2,\"unpadded_vocab_size\":300,\"sconv_kernel_size\":3,\"model_"
                       "max_length\":5000,"
                       "\"intermediate_size\":40,\"scoring_func\":\"sqrtsoftplus\"",
                       ""),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.streams.n == 5 && c.vocab == 300 && c.embed_rows == 320 && c.head_is_padded && c.short_taps == 3 &&
                c.max_context == 5000);
    assert_true(c.moe_inter == 40 && c.score == SCORE_SQRT_SOFTPLUS);
    if (parse(&c,
              INKLING2("inkling2_text", "",
                       ",\"quantization_config\":{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,32],\"scale_"
                       "fmt\":\"ue8m0\"}",
                       ""),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.quant.method == QUANT_FLOAT && c.block_rows == 1 && c.block_cols == 32);
    assert_int_equal(parse(&c, INKLING2("inkling2_text", "", ",\"scoring_func\":\"softmax\"", ""), false, &e),
                     ERR_MODEL);
    assert_non_null(strstr(e.text, "scoring_func"));
    assert_int_equal(parse(&c, INKLING2("inkling2_text", "", ",\"log_scaling_n_floor\":0", ""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "log_scaling_n_floor"));
    assert_int_equal(parse(&c, INKLING2("inkling2_text", "", ",\"n_shared_experts\":2", ""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "n_shared_experts"));
}
/* Inkling 2's loop: passes are layers, and the last one's streams come after the place of the pass before. */
static void inkling2_loop(void **st) {
#define LOOPED(more) \
    INKLING2("inkling2_loop_text", "", ",\"n_layers_per_attn_res_block\":2,\"loop_layer_index_start\":2" more, "")
    static const int repeats[] = {0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8},
                     pass[] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0};
    struct config c;
    struct error e = {0};
    if (parse(&c, LOOPED(",\"loop_layer_index_end\":6"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_layers == 16 && config_is_bare(&c, 15) && c.streams.n == 2 + 2 * 2 + 1 &&
                c.streams.message_rank == 64 && c.query_scale.every == 8192);
    for (int i = 0; i < 16; i++) assert_true(c.layer[i].repeats == repeats[i] && c.layer[i].pass == pass[i]);
    assert_true(c.layer[5].mixes_kv && c.layer[9].mixes_kv && c.layer[13].mixes_kv && !c.layer[14].mixes_kv);
    if (parse(&c, LOOPED(",\"loop_config\":{\"core_start\":4,\"core_end\":6,\"num_passes\":2,\"gate_rank\":5}"), false,
              &e))
        fail_msg("%s", e.text);
    assert_true(c.n_layers == 10 && c.streams.loop_from == 4 && c.streams.message_rank == 5 &&
                c.layer[6].repeats == 2 && c.layer[8].repeats == 2);
    assert_int_equal(parse(&c, LOOPED(",\"loop_layer_index_end\":5"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "cuts blocks"));
    assert_int_equal(parse(&c, LOOPED(",\"loop_layer_index_end\":8"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "not within 7 layers"));
    assert_int_equal(
        parse(&c, LOOPED(",\"loop_layer_index_end\":6,\"loop_num_passes\":64,\"num_hidden_layers\":400"), false, &e),
        ERR_MODEL);
}
/* Sources of attention residuals that are more than hearth mixes. */
static void inkling2_sources(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, "{\"model_type\":\"inkling2_text\",\"num_hidden_layers\":130,\"n_layers_per_attn_res_block\":1}",
              false, &e),
        ERR_MODEL);
    assert_non_null(strstr(e.text, "131 sources"));
}

/* A.X K2: gated norms, queries with gates from both latents, groups that count as 0. */
static void axk2(void **st) {
    (void)st;
#define AXK2(more) \
    "{\"model_type\":\"axk2\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":" \
    "4,\"num_key_value_heads\":4," \
    "\"q_lora_rank\":48,\"kv_lora_rank\":40,\"qk_nope_head_dim\":24,\"qk_rope_head_dim\":16,\"v_head_dim\":24," \
    "\"index_head_dim\":32,\"intermediate_size\":" \
    "176," \
    "\"moe_intermediate_size\":40,\"n_routed_experts\":8,\"n_shared_experts\":1,\"num_experts_per_tok\":3,\"max_" \
    "position_embeddings\":8192" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, AXK2(""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_DSA && c.q_raw && c.norm_gate_rank == 16 && c.attn_gate == ATTN_GATE_IN_QUERY &&
                c.n_group == 1 && c.index_heads == 16);
    assert_true(c.rope.interleaved && !c.index_interleaved && !c.layer[0].moe && c.layer[1].moe && c.router_bias &&
                c.norm_topk);
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
    "{\"model_type\":\"minimax_m3_vl\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":" \
    "4,\"num_attention_heads\":8,\"head_" \
    "dim\":32," \
    "\"num_key_value_heads\":4,\"max_position_embeddings\":8192,\"hidden_act\":\"swigluoai\",\"rotary_dim\":16" more \
    "}}"
#define SPARSE(more) \
    ",\"sparse_attention_config\":{\"sparse_attention_freq\":[0,1,0,1],\"sparse_index_dim\":24,\"sparse_num_index_" \
    "heads\":2" more "}"
#define CONVERTED(more) \
    ",\"index_head_dim\":24,\"index_n_heads\":2,\"layer_types\":[\"full_attention\",\"minimax_m3_sparse\",\"full_" \
    "attention\",\"minimax_m3_sparse\"]" more
    static const char *const same[] = {
        MINIMAX_M3(
            ",\"moe_layer_freq\":[0,1,1,1]" SPARSE(",\"sparse_disable_index_value\":[0,1,0,1],\"sparse_block_size\":48,"
                                                   "\"sparse_topk_blocks\":5,\"sparse_local_block\":2")),
        MINIMAX_M3(",\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\"]" CONVERTED(
            ",\"index_block_size\":48,\"index_topk_blocks\":5,\"index_local_blocks\":2"))};
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (parse(&c, same[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.index_by_group && c.index_heads == 2 && c.index_dim == 24 && c.index_block == 48 &&
                    c.index_topk == 4 && c.index_latest == 1);
        for (int l = 0; l < 4; l++)
            assert_true(config_selects_blocks(&c, l) == (l % 2 == 1) && c.layer[l].moe == (l > 0));
        assert_true(c.rope.dim == 16 && c.glu.shift == 1 && c.norm == NORM_RMS_PLUS_ONE &&
                    config_index_entries(&c) == 8);
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
        {MINIMAX_M3(",\"sparse_attention_config\":{\"sparse_attention_freq\":[0,1,0,1],\"sparse_num_index_heads\":3}"),
         "3 heads of the indexer"},
        {MINIMAX_M3(",\"partial_rotary_factor\":0.25" SPARSE("")), "rotary_dim"},
        {MINIMAX_M3(",\"moe_layer_freq\":[0,1,1,1],\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\"]"),
         "differ in layer 1"},
        {MINIMAX_M3(",\"qk_norm_type\":\"per_layer\""), "qk_norm_type"},
        {MINIMAX_M3(",\"layer_types\":[\"a\",\"a\",\"a\",\"a\"]"), "layer_types"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* LongCat-Flash-Lite: rows of its tables of n-grams; files without model_type; LongCat-Flash as before. */
static void longcat_lite(void **st) {
#define LONGCAT_OF(type, more) \
    "{" type "\"vocab_size\":300,\"hidden_size\":128,\"num_layers\":2,\"num_attention_heads\":2,\"max_position_" \
    "embeddings\":8192,\"kv_lora_rank\":32," \
    "\"q_lora_rank\":24,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":16,\"n_routed_experts\":8," \
    "\"moe_topk\":3,\"zero_expert_num\":2," \
    "\"ffn_hidden_size\":96,\"expert_ffn_hidden_size\":32" more "}"
#define NAMELESS(class, more) LONGCAT_OF("\"architectures\":[\"" class "\"],", more)
#define LITE(more)            NAMELESS("LongcatFlashNgramForCausalLM", more)
#define NGRAMS                ",\"emb_neighbor_num\":4,\"emb_split_num\":3"
    struct config c;
    struct error e = {0};
    if (parse(&c, LITE(NGRAMS ",\"ngram_vocab_size_ratio\":2.501"), false, &e)) fail_msg("%s", e.text);
    const struct input_ngrams *g = &c.input_ngrams;
    assert_string_equal(c.model_type, "longcat_flash_ngram");
    assert_true(g->size == 4 && g->per == 3 && g->dim == 14 && g->radix == 300 && c.ngram_end == 2 &&
                config_lookback(&c) == 3 && config_input_hashes(&c) == 9);
    for (int k = 0; k < 9; k++) assert_int_equal(g->rows[k], 751 + 2 * k); /* 2.501 * 300 = 750.3 */
    assert_int_equal(parse(&c, LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"eos_token_id\":[7]"), false, &e), 0);
    assert_true(g->rows[8] == 78 * 300 + 17 && c.ngram_end == 7);
    assert_int_equal(
        parse(&c,
              LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"num_hidden_layers\":4,\"mtp_num_layers\":1,\"use_mla\":1"),
              false, &e),
        0);
    assert_int_equal(parse(&c, LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"num_hidden_layers\":2"), false, &e), 0);
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(parse(&c, NAMELESS("LongcatFlashForCausalLM", ""), false, &e), 0);
    assert_true(!strcmp(c.model_type, "longcat_flash") && !config_lookback(&c));
    assert_int_equal(
        parse(&c, LONGCAT_OF("\"model_type\":\"longcat_flash\",", NGRAMS ",\"ngram_vocab_size_ratio\":3"), false, &e),
        0);
    assert_int_equal(g->rows[0], 901);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {LITE(NGRAMS), "'ngram_vocab_size_ratio' is missing"},
        {LITE(",\"emb_split_num\":4,\"ngram_vocab_size_ratio\":78"), "'emb_neighbor_num' is missing"},
        {LITE(",\"emb_neighbor_num\":4,\"ngram_vocab_size_ratio\":78"), "'emb_split_num' is missing"},
        {LITE(",\"emb_neighbor_num\":1,\"emb_split_num\":4,\"ngram_vocab_size_ratio\":78"), "'emb_neighbor_num' is 1"},
        {LITE(",\"emb_neighbor_num\":6,\"emb_split_num\":7,\"ngram_vocab_size_ratio\":78"),
         "35 hashes of n-grams; hearth takes up to 32"},
        {LITE(NGRAMS ",\"ngram_vocab_size_ratio\":1e8"), "a table of n-grams has 30000000001 rows"},
        {LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"eos_token_id\":[7,8]"),
         "'eos_token_id' lists 2 ids; n-grams end at one"},
        {LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"oe_ignored_token_ids\":[4]"), "oe_ignored_token_ids"},
        {LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"attention_method\":\"LSA\""), "'attention_method' is \"LSA\""},
        {LITE(NGRAMS ",\"ngram_vocab_size_ratio\":78,\"num_hidden_layers\":3"),
         "'num_hidden_layers' is 3; 2 layers have 4 attention blocks"},
        {LONGCAT_OF("\"model_type\":\"longcat_flash\",", NGRAMS), "emb_neighbor_num"},
        {NAMELESS("LongcatCausalLM", NGRAMS), "hearth does not support 'architectures' 'LongcatCausalLM'"},
        {LONGCAT_OF("", NGRAMS), "'model_type' is missing; hearth"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Qwen4-Exp: gated streams, blocks of keys, and the numbers of hashed n-grams. */
static void qwen_4(void **st) {
#define QWEN_4(more) \
    "{\"model_type\":\"qwen4_exp\",\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":4," \
    "\"num_attention_heads\":4,\"head_dim\":48," \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":8192,\"num_experts\":8,\"num_experts_per_tok\":3,\"moe_" \
    "intermediate_size\":32," \
    "\"shared_expert_intermediate_size\":40,\"ngram_size\":3,\"heads_per_ngram\":2,\"ngram_vocab_size_base\":200," \
    "\"ple_embed_dim\":48,\"split_ngram_parts\":" \
    "4," \
    "\"make_ngram_vocab_size_divisible_by\":16" more "}}"
#define BLOCKS \
    ",\"indexer_n_heads\":4,\"indexer_kv_heads\":1,\"indexer_head_dim\":32,\"indexer_compress_ratio\":4,\"indexer_" \
    "budget\":24"
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(
            &c,
            QWEN_4(
                BLOCKS
                ",\"ple_layer_ids\":[3,2],\"eos_token_id\":[304,3],\"hc_lowrank\":24,\"output_gate_type\":\"sigmoid\""),
            false, &e),
        0);
    assert_true(c.streams.n == 4 && c.streams.is_gated && c.streams.rank == 24 && c.delta.sigmoid_gate &&
                c.layer[0].mixer == MIXER_DELTA && !c.layer[3].mixer);
    assert_true(c.index_block == 4 && c.index_topk == 6 && c.layer[0].moe && c.shared_gate && c.norm_topk);
    assert_true(!c.layer[0].ngram && c.layer[1].ngram == 1 && c.layer[2].ngram == 2); /* in the order of layers */
    static const uint32_t primes[] = {211, 223, 227, 229}, next[] = {233, 239, 241, 251};
    for (int i = 0; i < 4; i++) assert_true(c.ngram[0].vocab[i] == primes[i] && c.ngram[1].vocab[i] == next[i]);
    assert_true(c.ngram[0].offset[3] == 211 + 223 + 227 && c.ngram[0].rows == 896 && c.ngram[1].rows == 976 &&
                c.ngram[0].multiplier[0] % 2 == 1);
    assert_int_equal(kv_state_bytes(&c) - 3 * 4 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128),
                     2 * 4 * (2 + 9 * 4 * 128) + 4 * (3 * 32 + 12)); /* and the rotation of an open block */
    static const struct {
        const char *text, *word;
    } bad[] = {
        {QWEN_4(",\"ple_layer_ids\":[2]"), "eos_token_id"},
        {QWEN_4(",\"ple_layer_ids\":[5],\"eos_token_id\":3"), "layer 5 of 4"},
        {QWEN_4(BLOCKS ",\"partial_rotary_factor\":1"), "indexer_head_dim"},
        {QWEN_4(",\"hc_count\":1"), "hc_count"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Gemma 4: two kinds of layers with other heads; the smaller models' vectors of tokens, and layers that take keys. */
static void gemma_4(void **st) {
#define PLAIN ",\"hidden_size_per_layer_input\":0"
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(&c, DENSE("gemma4_text", PLAIN ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1"), false, &e),
        0);
    assert_true(c.layer[0].window == 512 && c.layer[0].head_dim == 256 && c.layer[0].n_kv_heads == 2 &&
                !c.layer[0].v_is_k && !c.layer[0].moe);
    assert_true(!c.layer[4].window && c.layer[4].head_dim == 512 && c.layer[4].n_kv_heads == 1 && c.layer[4].v_is_k &&
                c.head_dim == 512 && c.v_dim == 512);
    assert_true(c.rope.kind == ROPE_PROPORTIONAL && c.rope.dim == 512 && c.rope.turning_pairs == 64 &&
                c.rope.theta == 1e6 && c.second_rope.dim == 256);
    assert_true(c.tied && c.v_norm && c.stream_scale && c.attn_scale == 1 && c.embed_scale == 16 && !c.parallel_dense &&
                c.logit_cap == 0);
    assert_int_equal(parse(&c,
                           DENSE("gemma4_text", PLAIN
                                 ",\"num_global_key_value_heads\":1,\"global_head_dim\":64,\"enable_moe_block\":true,"
                                 "\"num_experts\":8,\"top_k_experts\":2,\"moe_intermediate_size\":64"),
                           false, &e),
                     0);
    /* keys differ from values */
    assert_true(c.layer[4].n_kv_heads == 2 && !c.layer[4].v_is_k && c.head_dim == 256 && c.layer[4].head_dim == 64);
    assert_true(c.parallel_dense && c.layer[0].moe && c.topk == 2 && c.norm_topk && !c.shared_inter &&
                c.dense_inter == 512);
    assert_int_equal(parse(&c,
                           DENSE("gemma4_text", ",\"num_kv_shared_layers\":3,\"use_double_wide_mlp\":true,\"layer_"
                                                "types\":[\"full_attention\",\"sliding_attention\","
                                                "\"full_attention\",\"sliding_attention\",\"full_attention\"]"),
                           false, &e),
                     0);
    /* embedding, and keys and values of both kinds */
    assert_true(c.token_dim == 256 && c.carried == 256 + 2 * 2 * 512 + 2 * 2 * 256);
    assert_true(c.layer[0].passes_kv == KV_PASSED && c.layer[1].passes_kv == KV_PASSED &&
                c.layer[4].passes_kv == KV_TAKEN);
    assert_true(c.layer[2].carried_at == c.layer[0].carried_at && c.layer[3].carried_at == c.layer[1].carried_at &&
                c.layer[3].carried_at != c.layer[2].carried_at);
    assert_true(config_dense_inter(&c, 1) == 512 && config_dense_inter(&c, 2) == 1024);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("gemma4_text", ",\"vocab_size_per_layer_input\":7"), "vocab_size_per_layer_input"},
        /* the only global one */
        {DENSE("gemma4_text", PLAIN ",\"num_kv_shared_layers\":2"), "no layer of the kind of layer 4"},
        {DENSE("gemma4_text", PLAIN ",\"num_kv_shared_layers\":5"), "num_kv_shared_layers"},
        {DENSE("gemma4_text", PLAIN ",\"use_bidirectional_attention\":\"all\""), "use_bidirectional_attention"},
        {DENSE("gemma4_text", PLAIN ",\"attention_bias\":true"), "attention_bias"},
        {DENSE("gemma4_text", PLAIN ",\"per_layer_config\":{\"5\":{\"head_dim\":64}}"), "'per_layer_config.5'"},
        {DENSE("gemma4_text", PLAIN ",\"per_layer_config\":{\"4\":{\"head_dim\":64},\"04\":{}}"),
         "'per_layer_config.04'"},
        {DENSE("gemma4_text", PLAIN ",\"per_layer_config\":{\"4\":{\"intermediate_size\":64}}"),
         "layer 4 has 'intermediate_size'"},
        {DENSE("gemma4_text", PLAIN ",\"per_layer_config\":{\"4\":{\"head_dim\":1}}"),
         "'head_dim' is not a number from 2 to 1024"},
        {DENSE("gemma4_text", PLAIN ",\"per_layer_config\":{\"4\":{\"head_dim\":64},\"1\":{\"head_dim\":64}}"),
         "layer 1 differs"},
        {DENSE("gemma4_text", PLAIN ",\"global_head_dim\":96,\"per_layer_config\":{\"4\":{\"head_dim\":64}}"),
         "'global_head_dim'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* LFM2: layers with attention by number or by name, and the width of FFNs after the adjustment; ERNIE 4.5: defaults. */
static void lfm_2(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse(
            &c,
            DENSE("lfm2", ",\"full_attn_idxs\":[1,3],\"block_ff_dim\":768,\"block_multiple_of\":100,\"block_dim\":256"),
            false, &e),
        0);
    assert_true(c.layer[0].mixer == MIXER_CONV && !c.layer[1].mixer && !c.layer[3].mixer &&
                c.layer[4].mixer == MIXER_CONV && c.conv.taps == 3 && c.tied);
    assert_int_equal(c.dense_inter, 600); /* 512 in hundreds */
    assert_int_equal(parse(&c, DENSE("lfm2", ",\"block_auto_adjust_ff_dim\":false"), false, &e), 0);
    assert_true(c.dense_inter == 512 && !c.layer[0].mixer && !c.layer[4].mixer);
    assert_int_equal(parse(&c, DENSE("ernie4_5", ""), false, &e), 0); /* whose heads have a size that is no quotient */
    assert_true(c.head_dim == 128 && c.rope.interleaved && c.tied && !c.n_experts && c.dense_inter == 512);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {DENSE("lfm2", ",\"full_attn_idxs\":[5]"), "full_attn_idxs"},
        {DENSE("lfm2", ",\"block_dim\":128"), "block_dim"},
        {DENSE("lfm2", ",\"use_pos_enc\":false"), "use_pos_enc"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Layers that are a mixer only or an FFN only, whichever way the config lists them; FFNs without up; experts in a
 * latent space. */
static void layers_of_one_block(void **st) {
#define NEMOTRON(more) \
    DENSE("nemotron_h", ",\"n_routed_experts\":8,\"moe_intermediate_size\":48,\"moe_shared_expert_intermediate_" \
                        "size\":96,\"mamba_num_heads\":16" more)
#define PATTERN ",\"hybrid_override_pattern\":\"M*-E\""
    static const char *const texts[] = {
        NEMOTRON(PATTERN ",\"moe_latent_size\":64,\"time_step_limit\":[0.0,1e38]"),
        NEMOTRON(",\"layers_block_type\":[\"mamba\",\"attention\",\"mlp\",\"moe\"],\"moe_latent_size\":64,\"time_step_"
                 "limit\":[0,{\"__float__\":\"Infinity\"}]")};
    struct config c;
    struct error e = {0};
    for (int i = 0; i < 2; i++) {
        if (parse(&c, texts[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.n_layers == 4 && c.layer[0].mixer == MIXER_MAMBA2 && c.layer[0].no_ffn && !c.layer[1].mixer &&
                    c.layer[1].no_ffn);
        assert_true(c.layer[2].mixer == MIXER_NONE && !c.layer[2].no_ffn && !c.layer[2].moe &&
                    c.layer[3].mixer == MIXER_NONE && c.layer[3].moe);
        assert_true(c.layer[1].rope == LAYER_ROPE_NONE && config_has_states(&c) && config_has_single_blocks(&c) &&
                    !config_is_stateful(&c, 2));
        assert_true(c.no_up && c.glu.is_relu && c.moe_latent == 64 && config_routed_width(&c) == 64 &&
                    c.shared_inter == 96 && c.norm_eps == 1e-5f);
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
        {NEMOTRON(PATTERN ",\"layers_block_type\":[\"linear_attention\",\"full_attention\",\"moe\",\"moe\"]"),
         "differ in layer 2"},
        {NEMOTRON(PATTERN ",\"moe_latent_size\":300"), "moe_latent_size"},
        {NEMOTRON(PATTERN ",\"sliding_window\":64"), "sliding_window"},
        {NEMOTRON(PATTERN ",\"mamba_gain\":2"), "mamba_gain"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Jamba's layers by periods and offsets, and its Mamba-1. */
static void layers_by_period(void **st) {
#define JAMBA(more) \
    DENSE("jamba", ",\"attn_layer_period\":3,\"attn_layer_offset\":1,\"expert_layer_period\":2,\"expert_layer_" \
                   "offset\":1,\"mamba_d_state\":8" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, JAMBA(",\"num_experts\":4,\"mamba_expand\":3,\"mamba_dt_rank\":\"auto\",\"mamba_proj_bias\":true"),
              false, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++)
        assert_true(c.layer[i].mixer == (i % 3 == 1 ? MIXER_ATTENTION : MIXER_MAMBA1) &&
                    c.layer[i].moe == (i % 2 == 1));
    assert_true(c.mamba.head_dim == 3 * c.hidden && c.mamba.rank == 16 && c.mamba.state == 8 && c.mamba.projects_bias &&
                c.mamba.conv_bias);
    assert_true(c.layer[1].rope == LAYER_ROPE_NONE && !c.norm_topk && c.score == SCORE_SOFTMAX && c.topk == 2 &&
                config_has_states(&c));
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
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Sizes that are products of several keys and exceed 31 bits. */
static void oversized(void **st) {
#define LARGE(type, more) \
    "{\"model_type\":\"" type \
    "\",\"vocab_size\":1000,\"hidden_size\":65536,\"num_hidden_layers\":3,\"num_attention_heads\":1024," \
    "\"num_key_value_heads\":1024,\"head_dim\":1024,\"max_position_embeddings\":4096" more "}"
    static const struct {
        const char *text, *word;
    } bad[] = {
        {LARGE("jamba", ",\"attn_layer_period\":3,\"attn_layer_offset\":1,\"num_experts\":1,\"mamba_expand\":64,"
                        "\"mamba_d_state\":1024"),
         "4194304 channels"},
        {LARGE("zaya", ",\"num_experts\":4,\"moe_intermediate_size\":64,\"router_hidden_size\":24,\"cca_time1\":16"),
         "2097152 channels"},
    };
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* ZAYA's convolutions, its router's MLP, and layers that slide and rotate differently. */
static void convolved_attention(void **st) {
#define ZAYA(types, more) \
    "{\"model_type\":\"zaya\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_" \
    "heads\":4,\"num_key_value_heads\":2," \
    "\"max_position_embeddings\":4096,\"layer_types\":[" types \
    "],\"num_experts\":4,\"moe_intermediate_size\":64,\"router_hidden_size\":24" more "}"
#define HYBRID "\"hybrid\",\"hybrid\",\"hybrid\",\"hybrid\""
#define ROPES(more) \
    ",\"rope_parameters\":{\"hybrid\":{\"rope_theta\":5e6,\"partial_rotary_factor\":0.5" more \
    "},\"hybrid_sliding\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}"
    struct config c;
    struct error e = {0};
    if (parse(&c, ZAYA(HYBRID ",\"hybrid_sliding\"", ",\"sliding_window\":32,\"cca_time1\":3" ROPES("")), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_CCA && c.cca.taps[0] == 2 && c.cca.taps[1] == 3 && c.router_inter == 24 &&
                c.merges_stream && c.streams.is_plain);
    assert_true(c.layer[4].window == 32 && c.layer[4].rope == LAYER_ROPE_SECOND && !c.layer[0].window &&
                c.layer[0].rope == LAYER_ROPE_FIRST);
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
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Granite SWA: windows by period or list, and a base of the rotation for each layer. */
static void granite_swa(void **st) {
    (void)st;
#define SWA(more) DENSE("granite_swa", ",\"rope_parameters\":{\"rope_theta\":7000,\"rope_type\":\"default\"}" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, SWA(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++)
        assert_true(c.layer[i].window == (i % 4 ? 128 : 0) && c.layer[i].rope == LAYER_ROPE_FIRST);
    assert_true(c.sinks && c.tied && c.rope.theta == 7000 && fabs(c.norm_eps - 1e-5) < 1e-11);
    if (parse(&c, SWA(",\"layer_rope_theta\":[0,500,9000.5,0,500],\"sliding_window\":40"), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.rope.theta == 500 && c.second_rope.theta == 9000.5 && c.second_rope.dim == 64 &&
                c.layer[3].window == 40);
    for (int i = 0; i < 5; i++)
        assert_true(c.layer[i].rope == (i % 3 == 0 ? LAYER_ROPE_NONE : i == 2 ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST));
    static const struct {
        const char *text, *word;
    } bad[] = {
        {SWA(",\"layer_rope_theta\":[0,1,0,0,0]"), "layer 1"},
        {SWA(",\"layer_rope_theta\":[0,10,20,30,0]"), "two bases"},
        {SWA(",\"layer_rope_theta\":[0,10]"), "list of 5"},
        {SWA(",\"layer_types\":[\"full_attention\"]"), "layer_types"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

/* Flint: windows and dense layers where the config lists none. */
static void flint(void **st) {
    (void)st;
#define FLINT(more) \
    "{\"model_type\":\"flint\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":8,\"max_position_" \
    "embeddings\":8192" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, FLINT(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 8; i++) {
        const bool full = i < 2 || i == 5 || i == 7;
        assert_true(c.layer[i].window == (full ? 0 : 513) &&
                    c.layer[i].rope == (full ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST) && c.layer[i].moe == (i > 1));
    }
    assert_true(c.n_heads == 32 && c.n_kv_heads == 4 && c.head_dim == 128 && c.sinks && c.score == SCORE_SIGMOID &&
                c.norm_topk && !c.shared_gate);
    if (parse(&c, FLINT(",\"mlp_only_layers\":[3],\"decoder_sparse_step\":2"), false, &e)) fail_msg("%s", e.text);
    assert_true(!c.layer[0].moe && c.layer[1].moe && !c.layer[3].moe && c.layer[7].moe);
    assert_int_equal(parse(&c, FLINT(",\"use_sliding_window\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "use_sliding_window"));
}

/* Kolibri 1: windows by period or list; without a window all layers are rotated. */
static void kolibri(void **st) {
    (void)st;
#define KOLIBRI(more) \
    "{\"model_type\":\"kolibri1\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":5,\"max_position_" \
    "embeddings\":8192" more "}"
#define FULL \
    ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_" \
    "attention\"]"
    struct config c;
    struct error e = {0};
    if (parse(&c, KOLIBRI(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++)
        assert_true(c.layer[i].window == (i < 4 ? 513 : 0) &&
                    c.layer[i].rope == (i < 4 ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE));
    assert_true(c.n_heads == 48 && c.n_kv_heads == 4 && c.score == SCORE_SIGMOID_BY_LOGIT && c.router_bias &&
                !c.norm_topk && c.output_norm == OUTPUT_NORM_BLOCKS);
    if (parse(&c, KOLIBRI(FULL), false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[0].rope == LAYER_ROPE_NONE && c.layer[4].rope == LAYER_ROPE_NONE);
    if (parse(&c, KOLIBRI(FULL ",\"sliding_window\":null"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[0].rope == LAYER_ROPE_FIRST && c.layer[4].rope == LAYER_ROPE_FIRST);
    assert_int_equal(parse(&c, KOLIBRI(",\"sliding_window\":null"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "sliding_window"));
    assert_int_equal(parse(&c, KOLIBRI(",\"attention_bias\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "attention_bias"));
}

/* Ministral: windows in listed layers, or in all. */
static void ministral(void **st) {
    (void)st;
#define MINISTRAL(last) \
    DENSE("ministral", ",\"sliding_window\":24,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_" \
                       "attention\",\"sliding_attention\",\"" last "\"]")
    struct config c;
    struct error e = {0};
    if (parse(&c, MINISTRAL("full_attention"), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].window == (i % 2 ? 24 : 0));
    if (parse(&c, DENSE("ministral", ",\"sliding_window\":24"), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].window == 24);
    assert_int_equal(parse(&c, MINISTRAL("chunked_attention"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 4"));
}

/* Arcee: FFNs without a gate. */
static void arcee(void **st) {
    (void)st;
    struct config c;
    struct error e = {0};
    if (parse(&c, DENSE("arcee", ",\"hidden_act\":\"relu2\""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.no_up && c.glu.is_relu && fabs(c.norm_eps - 1e-5) < 1e-11 && c.rope.theta == 10000);
    assert_int_equal(parse(&c, DENSE("arcee", ",\"hidden_act\":\"silu\""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "hidden_act"));
}

/* Command R: the context that it was trained for; Command R+ is refused. */
static void command_r(void **st) {
    (void)st;
    struct config c;
    struct error e = {0};
    if (parse(&c, DENSE("cohere", ",\"model_max_length\":131072"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.max_context == 131072 && c.parallel_block && c.norm == NORM_LAYER && c.rope.interleaved && c.tied &&
                c.logit_scale == 0.0625f);
    assert_int_equal(parse(&c, DENSE("cohere", ",\"use_qk_norm\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "use_qk_norm"));
}

/* Lara Mini: three kinds of layers, by period or list. */
static void lara_mini(void **st) {
    (void)st;
#define LARA(more) \
    "{\"model_type\":\"lara_mini\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":6,\"max_position_" \
    "embeddings\":8192" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, LARA(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 6; i++) {
        const bool delta = i % 5 == 0 || i == 2, full = i == 3;
        assert_true((c.layer[i].mixer == MIXER_DELTA) == delta && c.layer[i].window == (delta || full ? 0 : 512) &&
                    c.layer[i].moe);
        assert_true(delta || c.layer[i].rope == (full ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST));
    }
    assert_true(c.tied && c.n_heads == 16 && c.n_kv_heads == 4 && c.delta.k_heads == 8 && c.delta.v_heads == 16 &&
                c.norm_topk && !c.shared_gate);
#define KINDS(last) \
    ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\",\"sliding_attention\",\"full_" \
    "attention\"" last "]"
    if (parse(&c, LARA(KINDS(",\"sliding_attention\"")), false, &e)) fail_msg("%s", e.text);
    assert_true(!c.layer[0].mixer && c.layer[1].mixer == MIXER_DELTA && c.layer[3].window == 512 &&
                c.layer[5].window == 512);
    assert_int_equal(parse(&c, LARA(KINDS("")), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "not a list of 6"));
    assert_int_equal(parse(&c, LARA(KINDS(",\"chunked_attention\"")), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 5"));
}

/* Beam: layers and rotations by default and by list, and a cap that null removes. */
static void beam(void **st) {
    (void)st;
#define BEAM(more) \
    "{\"model_type\":\"beam\",\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_layers\":8,\"max_position_" \
    "embeddings\":8192" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, BEAM(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 8; i++) {
        const bool full = i == 5 || i == 7;
        assert_true(c.layer[i].window == (full ? 0 : 512) &&
                    c.layer[i].rope == (full ? LAYER_ROPE_NONE : LAYER_ROPE_SECOND) && c.layer[i].moe == (i > 2));
    }
    assert_true(c.n_heads == 48 && c.n_kv_heads == 8 && c.attn_gate == ATTN_GATE_ELEMENT && c.attn_gate_bias &&
                c.divides_stream && c.second_rope.theta == 10000);
    assert_true(c.n_group == 8 && c.topk_group == 4 && c.group_top2 && c.router_bias && c.norm_topk &&
                c.routed_scale == 2.5f && c.logit_cap == 30);
    assert_true(c.query_scale.kind == SCALE_POWER && c.query_scale.no_rope_only && c.query_scale.every == 2048 &&
                c.query_scale.shift == 1);
#define BEAM_ROPES(sliding, full) ",\"rope_parameters\":{\"sliding_attention\":" sliding ",\"full_attention\":" full "}"
    if (parse(&c, BEAM(",\"final_logit_softcapping\":null" BEAM_ROPES("null", "{\"rope_theta\":500}")), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.layer[0].rope == LAYER_ROPE_NONE && c.layer[5].rope == LAYER_ROPE_FIRST && c.rope.theta == 500 &&
                c.logit_cap == 0);
    assert_int_equal(parse(&c, BEAM(",\"rope_parameters\":{\"rope_theta\":500}"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "rope_theta"));
    assert_int_equal(parse(&c, BEAM(",\"n_group\":7"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "7 groups"));
}

/* Youtu-LLM: MLA without experts. */
static void youtu(void **st) {
    (void)st;
#define YOUTU(more) \
    "{\"model_type\":\"youtu\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":3,\"num_attention_" \
    "heads\":4,\"intermediate_size\":512," \
    "\"max_position_embeddings\":4096,\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_" \
    "dim\":24" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, YOUTU(",\"q_lora_rank\":48,\"embedding_initializer_range\":0.02"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_MLA && c.q_lora == 48 && c.head_dim == 48 && c.v_dim == 24 && c.rope.interleaved &&
                c.tied && c.dense_inter == 512);
    assert_true(!c.n_experts && !c.topk && !c.layer[2].moe);
    assert_int_equal(parse(&c, YOUTU(",\"mlp_bias\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "mlp_bias"));
    assert_int_equal(parse(&c, YOUTU(",\"n_routed_experts\":8"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "n_routed_experts"));
}

/* nanochat: norms without weights, and a cap that null removes. */
static void nanochat(void **st) {
    (void)st;
    struct config c;
    struct error e = {0};
    if (parse(&c, "{\"model_type\":\"nanochat\"}", false, &e)) fail_msg("%s", e.text);
    assert_true(c.hidden == 768 && c.n_heads == 6 && c.n_kv_heads == 6 && c.dense_inter == 8192 && c.unit_norms &&
                c.embed_norm_unit && c.logit_cap == 15);
    assert_true(c.rope.backwards && !c.second_rope.backwards && c.qk_norm == QK_NORM_PLAIN && c.qk_norm_after_rope &&
                c.no_up && c.glu.is_relu && !c.tied);
    float f[64];
    rope_frequencies(&c.rope, f);
    assert_true(f[0] == -1 && f[1] < 0 && f[1] > -1);
    if (parse(&c, "{\"model_type\":\"nanochat\",\"final_logit_softcapping\":null,\"attention_bias\":true}", false, &e))
        fail_msg("%s", e.text);
    assert_true(c.logit_cap == 0 && c.qkv_bias && c.o_bias);
    assert_int_equal(parse(&c, "{\"model_type\":\"nanochat\",\"hidden_act\":\"silu\"}", false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "hidden_act"));
}

/* LFM3: layers, rotations and sizes by default; a list of layers with three kinds. */
static void lfm_3(void **st) {
    (void)st;
#define LFM3(more) "{\"model_type\":\"lfm3\"" more "}"
#define LFM3_LAYERS(last, more) \
    LFM3(",\"num_hidden_layers\":3,\"layer_types\":[\"sliding_attention\",\"conv\",\"" last "\"]" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, LFM3(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 24; i++) {
        const bool full = i % 4 == 2, local = i % 4 == 0 && i;
        assert_true(c.layer[i].mixer == (full || local ? MIXER_ATTENTION : MIXER_CONV) &&
                    c.layer[i].window == (local ? 256 : 0) &&
                    c.layer[i].rope == (local ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST));
    }
    assert_true(c.hidden == 2048 && c.head_dim == 128 && c.n_kv_heads == 4 && c.dense_inter == 7680 &&
                c.conv.taps == 7 && !c.conv.bias && c.tied);
    assert_true(c.rope.kind == ROPE_PROPORTIONAL && c.rope.turning_pairs == 32 && c.rope.dim == 128 &&
                c.rope.theta == 1e6 && c.second_rope.theta == 1e4 && c.second_rope.kind == ROPE_DEFAULT &&
                c.attn_gate == ATTN_GATE_HEAD && c.output_norm == OUTPUT_NORM_BLOCKS && c.streams.is_plain);
    if (parse(&c,
              LFM3_LAYERS("full_attention", ",\"use_sandwich_norm\":false,\"use_attention_gate\":false,\"attention_"
                                            "bias\":true,\"sliding_window\":9,"
                                            "\"norm_eps\":0.5,\"rope_parameters\":{\"full_attention\":{\"rope_theta\":"
                                            "77,\"rope_type\":\"default\"}}"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.layer[0].window == 9 && c.layer[1].mixer == MIXER_CONV && c.layer[2].mixer == MIXER_ATTENTION &&
                !c.layer[2].window && c.norm_eps == 0.5f);
    assert_true(!c.attn_gate && !c.output_norm && !c.streams.n && c.qkv_bias && c.o_bias &&
                c.rope.kind == ROPE_DEFAULT && c.rope.theta == 77);
    static const char *const wrong[][2] = {
        {LFM3_LAYERS("mamba", ""), "'layer_types' of layer 2"},
        {LFM3(",\"layer_types\":[\"conv\"]"), "not a list of 24"},
        {LFM3(",\"rope_parameters\":{\"rope_theta\":10000}"), "rope_parameters.rope_theta"},
        {LFM3(",\"new_scale\":3"), "new_scale"},
        {"{\"model_type\":\"lfm3_vl\"}", "text_config"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(&c, wrong[i][0], false, &e), ERR_MODEL);
        if (!strstr(e.text, wrong[i][1])) fail_msg("%s", e.text);
    }
    if (parse(&c,
              "{\"model_type\":\"lfm3_vl\",\"projector_bias\":true,\"vision_config\":{},\"text_config\":{\"model_"
              "type\":\"lfm3\"}}",
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.tied && c.n_layers == 24);
    assert_string_equal(c.names->attn_gate, "model.language_model.layers.%d.self_attn.gate_proj");
}

/* The text model's config is two levels down; the level between describes other parts. */
static void qwen_3_omni(void **st) {
    struct config c;
    struct error e = {0};
#define OMNI(text, between, more) \
    "{\"model_type\":\"qwen3_omni_moe\",\"talker_config\":{},\"code2wav_config\":{},\"tts_eos_token_id\":7,\"thinker_" \
    "config\":{" between "\"audio_config\":{},\"text_config\":{\"vocab_size\":320,\"hidden_size\":128,\"num_hidden_" \
    "layers\":3,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"head_dim\":48,\"intermediate_size\":288,\"moe_intermediate_size\":72,\"num_" \
    "experts\":10,\"num_experts_per_tok\":3," \
    "\"max_position_embeddings\":4096,\"rope_scaling\":{\"mrope_section\":[10,7,7],\"rope_type\":\"default\"}" text \
    "}}" more "}"
    if (parse(&c, OMNI("", "\"position_id_per_seconds\":13,", ""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_experts == 10 && c.topk == 3 && c.norm_topk && c.layer[0].moe && c.qk_norm == QK_NORM_HEAD &&
                !strcmp(c.model_type, "qwen3_omni_moe"));
    assert_string_equal(c.names->router, "thinker.model.layers.%d.mlp.gate");
    if (parse(&c, OMNI(",\"norm_topk_prob\":false", "", ""), false, &e)) fail_msg("%s", e.text);
    assert_false(c.norm_topk);
    static const char *const bad[][2] = {
        {OMNI(",\"new_scale\":3", "", ""), "new_scale"},
        {OMNI("", "", ",\"other_scale\":3"), "other_scale"},
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{}}", "thinker_config.text_config"},
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":3}", "thinker_config.text_config"},
        {"{\"model_type\":\"qwen3_omni_moe\"}", "thinker_config.text_config"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, bad[i][0], false, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, bad[i][1]));
    }
}

/* The one with vision rotates neighbours, and its norms of latents have the epsilon of the others. */
static void hunyuan_4_with_vision(void **st) {
    struct config c;
    struct error e = {0};
#define HY4_VISION(text) \
    "{\"model_type\":\"hy_v4_vl\",\"image_token_id\":5,\"vision_config\":{},\"text_config\":{\"model_type\":\"hy_v4_" \
    "vl_text\",\"vocab_size\":320," \
    "\"hidden_size\":128,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"q_lora_rank\":96,\"kv_lora_rank\":80," \
    "\"qk_nope_head_dim\":24," \
    "\"qk_rope_head_dim\":16,\"v_head_dim\":32,\"index_head_dim\":32,\"index_n_heads\":8,\"intermediate_size\":208," \
    "\"moe_intermediate_size\":48," \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"max_position_embeddings\":4096" text "}}"
    if (parse(&c,
              HY4_VISION(",\"rms_norm_eps\":1e-4,\"rope_parameters\":{\"mrope_section\":[4,2,2],\"rope_theta\":10000}"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.rope.interleaved && c.index_interleaved && c.latent_eps == 1e-4f && c.streams.n == 4 && c.sinks &&
                c.index_rope_last);
    assert_string_equal(c.names->q_a, "model.layers.%d.self_attn.q_a_proj");
    /* the reference ignores both */
    if (parse(&c, HY4_VISION(",\"num_key_value_heads\":2,\"qk_head_dim\":56"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_heads == 4 && c.n_kv_heads == 1 && c.head_dim == 40);
    assert_int_equal(parse(&c, HY4_VISION(",\"new_scale\":3"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "new_scale"));
    assert_int_equal(
        parse(&c, HY4_VISION(",\"layer_types\":[\"indexed_attention\",\"full_attention\",\"a\",\"a\"]"), false, &e),
        ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 1 is not indexed_attention"));
}

/* Step-3.5: keys of the published form and of that of transformers that differ. */
static void step_3(void **st) {
#define STEP_3(more) \
    DENSE("step3p5", ",\"moe_num_experts\":8,\"moe_top_k\":2,\"moe_intermediate_size\":64,\"share_expert_dim\":64," \
                     "\"sliding_window\":8," \
                     "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_" \
                     "attention\",\"full_attention\"]" more)
    static const struct {
        const char *text, *word;
    } bad[] = {
        {STEP_3(",\"n_routed_experts\":9"), "'moe_num_experts' and 'n_routed_experts' differ"},
        {STEP_3(",\"rope_theta\":7,\"rope_parameters\":{\"full_attention\":{}}"), "'rope_theta' and 'rope_parameters'"},
        {STEP_3(",\"rope_parameters\":{\"rope_type\":\"default\"}"), "no object for full_attention"},
        {STEP_3(",\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":{\"rope_type\":\"linear\","
                "\"factor\":2}}"),
         "is scaled"},
        {STEP_3(",\"num_sliding_attention_heads\":6,\"per_layer_config\":{\"1\":{\"num_attention_heads\":8}}"),
         "layer 1 has 8 heads"},
        {STEP_3(",\"num_sliding_attention_heads\":6,\"attention_other_setting\":{\"num_attention_heads\":8}"),
         "'attention_other_setting' 8"},
        {STEP_3(",\"moe_layers_enum\":\"1\",\"mlp_layer_types\":[]"), "mlp_layer_types"},
    };
    struct config c;
    struct error e = {0};
    if (parse(&c, STEP_3(",\"query_pre_attn_scalar\":16"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn_scale == 0.25f && c.head_dim == 64 && c.n_kv_heads == 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(&c, bad[i].text, false, &e) != ERR_MODEL || !strstr(e.text, bad[i].word))
            fail_msg("%s: %s", bad[i].word, e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(inkling),
                                       cmocka_unit_test(qwen_3_omni),
                                       cmocka_unit_test(hunyuan_4_with_vision),
                                       cmocka_unit_test(step_3),
                                       cmocka_unit_test(inkling2),
                                       cmocka_unit_test(inkling2_loop),
                                       cmocka_unit_test(inkling2_sources),
                                       cmocka_unit_test(axk2),
                                       cmocka_unit_test(beam),
                                       cmocka_unit_test(flint),
                                       cmocka_unit_test(arcee),
                                       cmocka_unit_test(command_r),
                                       cmocka_unit_test(ministral),
                                       cmocka_unit_test(kolibri),
                                       cmocka_unit_test(lara_mini),
                                       cmocka_unit_test(granite_swa),
                                       cmocka_unit_test(minimax_m3),
                                       cmocka_unit_test(longcat_lite),
                                       cmocka_unit_test(qwen_4),
                                       cmocka_unit_test(gemma_4),
                                       cmocka_unit_test(lfm_2),
                                       cmocka_unit_test(lfm_3),
                                       cmocka_unit_test(youtu),
                                       cmocka_unit_test(nanochat),
                                       cmocka_unit_test(layers_of_one_block),
                                       cmocka_unit_test(layers_by_period),
                                       cmocka_unit_test(oversized),
                                       cmocka_unit_test(convolved_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
