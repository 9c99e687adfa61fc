/* config.json of families whose layers differ from others by their experts: what is read, derived and refused. One
 * function a family, as in test_config_families.c; a second file could only divide them by name. */
#include "engine/layer/attention_kinds.h"
#include "engine/layer/kv_planes.h"
#include "test/unit/unit.h"

#include "base/ops.h"
#include "engine/layer/attention.h"
#include "engine/model/arch.h"
#include "test/unit/parse_config.h"

/* DeepSeek V1: layers with experts by index, and defaults of the vendor's class. */
static void deepseek_v1(void **st) {
    (void)st;
#define V1(more) \
    DENSE("deepseek", ",\"moe_intermediate_size\":64,\"n_routed_experts\":8,\"num_experts_per_tok\":3" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, V1(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].moe);
    assert_true(c.attn == ATTN_GQA && c.score == SCORE_SOFTMAX && !c.norm_topk && !c.shared_inter &&
                c.routed_scale == 1 && c.rope.theta == 10000);
    if (parse(&c,
              V1(",\"first_k_dense_replace\":1,\"moe_layer_freq\":2,\"n_shared_experts\":2,\"norm_topk_prob\":true"),
              false, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].moe == (i == 2 || i == 4));
    assert_true(c.norm_topk && c.shared_inter == 128);
    assert_int_equal(parse(&c, V1(",\"scoring_func\":\"sigmoid\""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "scoring_func"));
    assert_int_equal(parse(&c, V1(",\"routed_scaling_factor\":2.5"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "routed_scaling_factor"));
}

/* Klear: the published config, whose routed_scaling_factor no reader uses. */
static void klear(void **st) {
    (void)st;
#define KLEAR(more) \
    "{\"model_type\":\"Klear\",\"attention_bias\":false,\"attention_dropout\":0.0,\"decoder_sparse_step\":1,\"eos_" \
    "token_id\":[151645,151643]," \
    "\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,\"intermediate_size\":8064,\"max_" \
    "position_embeddings\":65536," \
    "\"mlp_only_layers\":[],\"moe_aux_loss_coeff\":0.0001,\"moe_intermediate_size\":896,\"norm_topk_prob\":true," \
    "\"num_attention_heads\":32," \
    "\"num_experts\":256,\"num_hidden_layers\":32,\"num_key_value_heads\":4,\"output_router_logits\":false,\"rms_" \
    "norm_eps\":1e-05," \
    "\"rope_scaling\":null,\"rope_theta\":500000.0,\"router_aux_loss_coef\":0.001,\"sliding_window\":null,\"tie_word_" \
    "embeddings\":false," \
    "\"use_cache\":true,\"use_sliding_window\":false,\"vocab_size\":151936" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, KLEAR(",\"n_shared_experts\":2,\"num_experts_per_tok\":8,\"routed_scaling_factor\":2.5"), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.head_dim == 64 && c.qk_norm == QK_NORM_HEAD && !c.qkv_bias && c.layer[0].moe &&
                c.shared_inter == 1792 && c.topk == 8);
    assert_true(c.score == SCORE_SIGMOID && c.router_bias && c.norm_topk && c.shared_gate && c.mixes_shared &&
                c.routed_scale == 1);
    assert_int_equal(parse(&c, KLEAR(",\"num_experts_per_tok\":8"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "n_shared_experts"));
    assert_int_equal(parse(&c, KLEAR(",\"n_shared_experts\":1"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "num_experts_per_tok"));
}

/* openPangu-Ultra-MoE: the first version's own names of keys, version 1.1's, and what neither has. */
static void openpangu(void **st) {
    (void)st;
#define PANGU(more) \
    "{\"model_type\":\"pangu_ultra_moe\",\"vocab_size\":153600,\"hidden_size\":7680,\"intermediate_size\":18432," \
    "\"moe_intermediate_size\":2048," \
    "\"num_hidden_layers\":61,\"num_attention_heads\":128,\"num_key_value_heads\":128,\"num_experts_per_tok\":8," \
    "\"norm_topk_prob\":true," \
    "\"routed_scaling_factor\":2.5,\"hidden_act\":\"silu\",\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05," \
    "\"rope_theta\":25600000," \
    "\"attention_dropout\":0.0,\"bos_token_id\":0,\"eos_token_id\":1,\"num_mtp_layers\":1,\"tie_word_embeddings\":" \
    "false" more "}"
#define PANGU_FIRST \
    ",\"attention_q_lora_dim\":1536,\"attention_kv_lora_dim\":512,\"attention_qk_dim\":128,\"attention_qk_rope_dim\":" \
    "64,\"attention_v_dim\":96," \
    "\"num_routed_experts\":256,\"num_shared_experts\":1,\"num_dense_layers\":3"
#define PANGU_LATER \
    ",\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":96," \
    "\"n_routed_experts\":256," \
    "\"n_shared_experts\":1,\"first_k_dense_replace\":3"
    static const char *const known[] = {PANGU(PANGU_FIRST ",\"sandwich_norm\":true"),
                                        PANGU(PANGU_LATER ",\"sandwich_norm\":true")};
    struct config c;
    struct error e = {0};
    for (int i = 0; i < 2; i++) {
        if (parse(&c, known[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.attn == ATTN_MLA && c.q_lora == 1536 && c.kv_lora == 512 && c.head_dim == 192 && c.v_dim == 96 &&
                    c.rope.interleaved);
        assert_true(c.n_experts == 256 && c.shared_inter == 2048 && !c.layer[2].moe && c.layer[3].moe &&
                    c.score == SCORE_SIGMOID && c.n_group == 1);
        assert_true(!c.router_bias && c.output_norm == OUTPUT_NORM_BLOCKS && c.streams.is_plain && c.n_mtp == 1 &&
                    c.rope.theta == 25600000);
    }
    if (parse(&c, PANGU(PANGU_LATER ",\"sandwich_norm\":true,\"router_enable_expert_bias\":true"), false, &e))
        fail_msg("%s", e.text);
    assert_true(c.router_bias);
    static const char *const refused[][2] = {
        {PANGU(PANGU_FIRST), "sandwich_norm"},
        {PANGU(PANGU_FIRST ",\"sandwich_norm\":true,\"q_lora_rank\":1535"), "q_lora_rank"},
        {PANGU(PANGU_LATER ",\"sandwich_norm\":true,\"attention_bias\":true"), "attention_bias"},
        {PANGU(PANGU_LATER ",\"sandwich_norm\":true,\"param_sink_number\":128"), "param_sink_number"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(parse(&c, refused[i][0], false, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, refused[i][1]));
    }
}

/* GigaChat 3.5: the published sizes; layers by either list; options of the vendor's code that no published model
 * has. */
static void gigachat35(void **st) {
    (void)st;
#define GIGACHAT(more) \
    "{\"model_type\":\"gigachat3_5\",\"vocab_size\":128256,\"hidden_size\":7168,\"intermediate_size\":18432,\"moe_" \
    "intermediate_size\":2048," \
    "\"num_attention_heads\":64,\"num_key_value_heads\":64,\"n_shared_experts\":1,\"n_routed_experts\":256,\"routed_" \
    "scaling_factor\":2.5,\"kv_lora_rank\":" \
    "512," \
    "\"q_lora_rank\":1536,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"qk_nope_head_dim\":128,\"qk_head_dim\":192," \
    "\"head_dim\":64,\"n_group\":1," \
    "\"topk_group\":1,\"num_experts_per_tok\":8,\"first_k_dense_replace\":3,\"norm_topk_prob\":true,\"scoring_func\":" \
    "\"sigmoid\",\"aux_loss_alpha\":0.0001," \
    "\"max_position_embeddings\":262144,\"rms_norm_eps\":1e-06,\"optimizer_eps\":1e-20,\"rope_interleave\":true," \
    "\"attention_dropout\":0.0,\"num_nextn_" \
    "predict_layers\":3,\"nextn_is_sparse\":false," \
    "\"attention_distillation\":false,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_conv_kernel_" \
    "dim\":4," \
    "\"linear_num_key_heads\":32,\"linear_num_value_heads\":64," \
    "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":100000,\"factor\":8.0,\"original_max_position_" \
    "embeddings\":32768}" more "}"
#define GIGACHAT_LAYERS ",\"num_hidden_layers\":5,\"full_attention_layers\":[3]"
#define GIGACHAT_TYPES(fourth) \
    ",\"num_hidden_layers\":5,\"layer_types\":[\"linear_attention\",\"linear_attention\",\"linear_attention\"," \
    "\"" fourth "\",\"linear_attention\"]"
    static const char *const known[] = {GIGACHAT(GIGACHAT_LAYERS
                                                 ",\"swiglu_limit\":10.0,\"norm_type\":\"ZeroCenteredGatedNorm\","
                                                 "\"layernorm_type\":\"pre_post\",\"gated_attention\":true,"
                                                 "\"layernorm_gating_weight\":2.0,\"use_mla_scaling_factor\":true,"
                                                 "\"linear_attention_type\":\"Qwen3NextGatedDeltaNet\","
                                                 "\"linear_gating_type\":\"gated_rmsnorm_sigmoid_zero_centered\","
                                                 "\"linear_sigmoid_gate_scale\":2.0,\"linear_use_short_conv\":true,"
                                                 "\"attention_type\":\"LlamaLatentAttention\",\"num_krope_heads\":1,"
                                                 "\"output_gate_type\":\"sigmoid\",\"use_shared_expert_sigmoid\":false,"
                                                 "\"linear_use_legacy_qkvz_layout\":false,"
                                                 "\"linear_attn_o_norm_eps\":null"),
                                        GIGACHAT(GIGACHAT_LAYERS), GIGACHAT(GIGACHAT_TYPES("attention")),
                                        GIGACHAT(GIGACHAT_TYPES("full_attention") ",\"full_attention_layers\":[3]")};
    struct config c;
    struct error e = {0};
    for (int i = 0; i < 4; i++) {
        if (parse(&c, known[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.attn == ATTN_MLA && c.layer[2].mixer == MIXER_DELTA && c.layer[3].mixer == MIXER_ATTENTION &&
                    c.layer[4].mixer == MIXER_DELTA);
        assert_true(c.attn_gate == ATTN_GATE_ELEMENT && c.scales_latents && c.norm_gate_rank == 16 &&
                    c.norm_gate_scale == 2 && c.gates_all_norms);
        assert_true(c.centered_norms && c.centered_head_norm && c.output_norm == OUTPUT_NORM_BLOCKS &&
                    c.latent_eps == 1e-6f && c.glu.limit == 10);
        assert_true(c.delta.fused && c.delta.sigmoid_gate && c.delta.norm_centered && c.delta.norm_scale == 2 &&
                    c.delta.v_heads == 64);
        assert_true(!c.layer[2].moe && c.layer[3].moe && c.score == SCORE_SIGMOID && c.router_bias && c.n_group == 1 &&
                    c.rope.kind == ROPE_YARN);
    }
    if (parse(&c,
              GIGACHAT(GIGACHAT_LAYERS
                       ",\"swiglu_limit\":null,\"gated_attention\":false,\"use_mla_scaling_factor\":false"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.glu.limit == 0 && c.attn_gate == ATTN_GATE_NONE && !c.scales_latents);
    static const char *const refused[][2] = {
        {GIGACHAT(",\"num_hidden_layers\":5"), "full_attention_layers"},
        {GIGACHAT(",\"num_hidden_layers\":5,\"full_attention_layers\":[5]"), "names layer 5 of 5"},
        {GIGACHAT(",\"num_hidden_layers\":5,\"full_attention_layers\":3"), "not a list"},
        {GIGACHAT(GIGACHAT_TYPES("linear_attention") ",\"full_attention_layers\":[3]"), "differ in layer 3"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"norm_type\":\"ZeroCenteredRMSNorm\""), "norm_type"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"layernorm_type\":\"pre\""), "layernorm_type"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"linear_gating_type\":\"sigmoid_gate\""), "linear_gating_type"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"linear_use_short_conv\":false"), "linear_use_short_conv"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"use_shared_expert_sigmoid\":true"), "use_shared_expert_sigmoid"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"num_krope_heads\":2"), "num_krope_heads"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"linear_attn_o_norm_eps\":1e-5"), "linear_attn_o_norm_eps"},
        {GIGACHAT(GIGACHAT_LAYERS ",\"linear_use_legacy_qkvz_layout\":true"), "linear_use_legacy_qkvz_layout"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!parse(&c, refused[i][0], false, &e)) fail_msg("%s: accepted", refused[i][1]);
        if (!strstr(e.text, refused[i][1])) fail_msg("%s: %s", refused[i][1], e.text);
    }
}

/* Intern-S1-Pro: the published sizes, inside the model that also sees and hears; FoPE's keys, which other families do
 * not have. */
static void interns1_pro(void **st) {
    (void)st;
#define INTERN_TYPE(type, rope, more) \
    "{\"model_type\":\"" type \
    "\",\"vocab_size\":155008,\"hidden_size\":4096,\"num_hidden_layers\":94,\"intermediate_size\":12288," \
    "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":128,\"attention_bias\":false,\"attention_" \
    "dropout\":0.0,\"num_experts\":512," \
    "\"moe_intermediate_size\":1536,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"rope_" \
    "theta\":5000000," \
    "\"max_position_embeddings\":262144,\"rms_norm_eps\":1e-06,\"hidden_act\":\"silu\",\"initializer_range\":0.02," \
    "\"rope_scaling\":{\"rope_type\":\"default\"" rope "}" more "}"
#define INTERN(rope, more) INTERN_TYPE("interns1_pro_text", rope, more)
#define FOPE               ",\"fope_init_factor\":0.5,\"fope_sep_head\":true"
#define INTERN_GROUPS      ",\"num_experts_per_tok\":8,\"router_n_groups\":8"
    struct config c;
    struct error e = {0};
    if (parse(&c,
              "{\"model_type\":\"interns1_pro\",\"vision_config\":{\"depth\":24},\"ts_config\":{\"layers\":2},\"image_"
              "token_id\":151655,\"text_config\":" INTERN(FOPE ",\"num_inv_freq\":null", INTERN_GROUPS) "}",
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.is_part && c.attn == ATTN_GQA && c.qk_norm == QK_NORM_HEAD && c.rope.fope_pairs == 45 &&
                c.rope.dim == 128);
    assert_true(c.n_group == 8 && c.topk_group == 8 && c.group_each && c.topk == 8 && c.norm_topk &&
                c.score == SCORE_SOFTMAX);
    if (parse(&c, INTERN(FOPE ",\"num_inv_freq\":20", ""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.rope.fope_pairs == 20 && !c.group_each && c.n_group == 0 && c.topk == 8);
    static const char *const refused[][2] = {
        {INTERN("", INTERN_GROUPS), "FoPE"},
        {INTERN(",\"fope_sep_head\":false", INTERN_GROUPS), "fope_sep_head"},
        {INTERN(FOPE ",\"num_inv_freq\":65", INTERN_GROUPS), "num_inv_freq"},
        {INTERN(FOPE, ",\"num_experts_per_tok\":6,\"router_n_groups\":8"), "do not divide"},
        {INTERN(FOPE ",\"partial_rotary_factor\":0.5", INTERN_GROUPS), "64 dimensions"},
        {INTERN_TYPE("qwen3_moe", FOPE, ",\"num_experts_per_tok\":8"), "fope_init_factor"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!parse(&c, refused[i][0], false, &e)) fail_msg("%s: accepted", refused[i][1]);
        if (!strstr(e.text, refused[i][1])) fail_msg("%s: %s", refused[i][1], e.text);
    }
}

/* Pangu-Pro-MoE: as many groups as experts a token, factors of experts, dense layers only with their width. */
static void pangu_pro(void **st) {
    (void)st;
#define PRO(topk, more) \
    "{\"model_type\":\"PanguProMoE\",\"vocab_size\":153376,\"hidden_size\":5120,\"moe_intermediate_size\":1344,\"num_" \
    "hidden_layers\":48," \
    "\"num_attention_heads\":40,\"num_key_value_heads\":8,\"num_experts\":64,\"num_experts_per_tok\":" topk \
    ",\"hidden_act\":\"silu\"," \
    "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,\"rope_theta\":16000000,\"norm_topk_prob\":true," \
    "\"shared_expert_intermediate_size\":5376,\"tie_word_embeddings\":false" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, PRO("8", ""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.attn == ATTN_GQA && c.head_dim == 128 && c.n_kv_heads == 8 && c.qkv_bias && c.o_bias &&
                c.rope.theta == 16000000);
    assert_true(c.n_experts == 64 && c.topk == 8 && c.n_group == 8 && c.group_each && c.expert_scale && !c.norm_topk &&
                c.score == SCORE_SOFTMAX);
    assert_true(c.layer[0].moe && c.layer[47].moe && c.shared_inter == 5376 && !c.shared_gate);
    if (parse(&c, PRO("8", ",\"intermediate_size\":5376,\"mlp_only_layers\":[2]"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.layer[1].moe && !c.layer[2].moe && c.dense_inter == 5376);
    static const char *const refused[][2] = {{PRO("7", ""), "64 experts do not divide among 7 groups"},
                                             {PRO("8", ",\"mlp_only_layers\":[2]"), "layer 2 is dense"},
                                             {PRO("8", ",\"param_sink_number\":128"), "param_sink_number"},
                                             {PRO("8", ",\"routed_scaling_factor\":2.5"), "routed_scaling_factor"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(parse(&c, refused[i][0], false, &e), ERR_MODEL);
        if (!strstr(e.text, refused[i][1])) fail_msg("%s", e.text);
    }
}

/* Step3: the language model alone, and inside the model that also sees. */
static void step3(void **st) {
    (void)st;
#define STEP3(groups, layers, more) \
    "{\"model_type\":\"step3_text\",\"vocab_size\":128815,\"hidden_size\":7168,\"intermediate_size\":18432,\"num_" \
    "hidden_layers\":61," \
    "\"num_attention_heads\":64,\"num_attention_groups\":" groups \
    ",\"head_dim\":256,\"max_position_embedding\":65536,\"max_seq_len\":65536," \
    "\"rms_norm_eps\":1e-05,\"moe_intermediate_size\":5120,\"moe_num_experts\":48,\"moe_top_k\":3,\"rope_theta\":" \
    "500000,\"rope_scaling\":null," \
    "\"share_expert_dim\":5120,\"norm_expert_weight\":false,\"use_moe\":true,\"moe_every_n_layer\":1," layers more "}"
#define STEP3_LOW ",\"share_q_dim\":2048"
    static const char *const known[] = {
        STEP3("1", "\"moe_layers_enum\":\"4,5,59\"", STEP3_LOW), STEP3("1", "\"moe_layers_enum\":[4,5,59]", STEP3_LOW),
        "{\"model_type\":\"step3_vl\",\"vision_config\":{\"width\":1792},\"image_token_id\":128001,\"image_token_len\":"
        "169,\"projector_bias\":false,"
        "\"understand_projector_stride\":2,\"use_im_start_end\":true,\"vision_select_layer\":-1,\"text_config\":" STEP3(
            "1", "\"moe_layers_enum\":\"4,5,59\"", STEP3_LOW) "}"};
    struct config c;
    struct error e = {0};
    for (int i = 0; i < 3; i++) {
        if (parse(&c, known[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.attn == ATTN_GQA && c.n_kv_heads == 1 && c.q_lora == 2048 && c.head_dim == 256 &&
                    c.max_context == 65536 && !c.rope.interleaved);
        assert_true(c.n_experts == 48 && c.topk == 3 && c.shared_inter == 5120 && !c.norm_topk &&
                    c.score == SCORE_SOFTMAX && c.norm_eps == 1e-5f);
        assert_true(!c.layer[3].moe && c.layer[4].moe && c.layer[5].moe && !c.layer[6].moe && c.layer[59].moe &&
                    !c.layer[60].moe);
    }
    if (parse(&c, STEP3("1", "\"hidden_act\":\"silu\"", STEP3_LOW), false, &e)) fail_msg("%s", e.text);
    assert_true(!c.layer[0].moe && c.layer[1].moe && c.layer[60].moe);
    static const char *const refused[][2] = {
        {STEP3("2", "\"moe_layers_enum\":\"4\"", STEP3_LOW), "num_attention_groups"},
        {STEP3("1", "\"moe_layers_enum\":\"4\"", ""), "share_q_dim"},
        {STEP3("1", "\"moe_layers_enum\":\"4;5\"", STEP3_LOW), "moe_layers_enum"},
        {STEP3("1", "\"moe_layers_enum\":[-1]", STEP3_LOW), "moe_layers_enum"},
        {STEP3("1", "\"moe_layers_enum\":\"4\"", STEP3_LOW ",\"use_qk_norm\":true"), "use_qk_norm"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(parse(&c, refused[i][0], false, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, refused[i][1]));
    }
}

/* Arctic: the published form only, with a dense FFN beside the experts of every layer. */
static void arctic(void **st) {
    (void)st;
#define ARCTIC(more) DENSE("arctic", ",\"num_local_experts\":8,\"moe_token_dropping\":true" more)
#define PUBLISHED    ",\"moe_layer_frequency\":1,\"parallel_attn_mlp_res\":true"
    struct config c;
    struct error e = {0};
    if (parse(&c, ARCTIC(PUBLISHED ",\"use_residual\":true,\"num_experts_per_tok\":2,\"sliding_window\":null"), false,
              &e))
        fail_msg("%s", e.text);
    assert_true(c.reads_early == EARLY_ROUTED && c.layer[4].moe && c.topk == 2 && c.norm_topk && c.moe_inter == 512 &&
                c.shared_inter == 256);
    assert_true(config_keeps_rows(&c) && config_has_ffn_in(&c, 0) && c.rope.theta == 1000000 && c.norm_eps == 1e-5f);
    if (parse(&c, ARCTIC(PUBLISHED), false, &e)) fail_msg("%s", e.text);
    assert_true(c.topk == 1 && !c.norm_topk);
    assert_int_equal(parse(&c, ARCTIC(",\"parallel_attn_mlp_res\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "moe_layer_frequency"));
    assert_int_equal(parse(&c, ARCTIC(",\"moe_layer_frequency\":1"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "parallel_attn_mlp_res"));
    assert_int_equal(parse(&c, ARCTIC(PUBLISHED ",\"sliding_window\":64"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "sliding_window"));
}

/* SmallThinker: layers by lists, or all alike; the older form of its config has keys of parts that no model has. */
static void smallthinker(void **st) {
    (void)st;
#define THINKER(more) \
    "{\"model_type\":\"smallthinker\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":4,\"model_name\":" \
    "\"x\"," \
    "\"moe_enable_secondary_experts\":false,\"moe_num_secondary_experts\":0,\"moe_shared_primary_experts\":0,\"dense_" \
    "ffn_hidden_size\":4096" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, THINKER(""), false, &e)) fail_msg("%s", e.text);
    assert_true(c.reads_early == EARLY_ROUTER && c.score == SCORE_SIGMOID_BY_LOGIT && c.norm_topk && c.glu.is_relu &&
                c.tied && c.n_experts == 32 && c.topk == 4);
    for (int i = 0; i < 4; i++)
        assert_true(c.layer[i].moe && !c.layer[i].window && c.layer[i].rope == LAYER_ROPE_FIRST &&
                    !config_has_ffn_in(&c, i));
    if (parse(&c,
              THINKER(",\"rope_layout\":[0,1,1,1],\"sliding_window_layout\":[0,1,0,1],\"moe_primary_router_apply_"
                      "softmax\":true"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.score == SCORE_SOFTMAX && c.layer[0].rope == LAYER_ROPE_NONE && c.layer[1].rope == LAYER_ROPE_FIRST &&
                c.layer[1].window == 4096 && !c.layer[2].window);
    assert_int_equal(parse(&c, THINKER(",\"rope_layout\":[1]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "not a list of 4"));
    assert_int_equal(parse(&c, THINKER(",\"moe_layer_layout\":[1,1,0,1]"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 2"));
    assert_int_equal(parse(&c, THINKER(",\"moe_enable_early_router\":false"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "moe_enable_early_router"));
    assert_int_equal(parse(&c, THINKER(",\"moe_secondary_expert_size\":64"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "moe_secondary_expert_size"));
}

/* Grok: the defaults are the first generation's; the second has a dense FFN, and attention that cools with the
 * position. */
static void grok(void **st) {
    (void)st;
#define GROK(more) DENSE("grok", "" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, GROK(",\"num_experts\":6,\"max_attn_value\":20"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_experts == 6 && c.topk == 2 && c.moe_inter == 512 && !c.shared_inter && c.norm_topk &&
                c.score_cap == 20 && c.router_cap == 30);
    assert_true(c.logit_cap == 0 && c.embed_scale > 78 && c.logit_scale < 0.58f &&
                c.output_norm == OUTPUT_NORM_BLOCKS && c.streams.is_plain && c.glu.cubic > 0);
#define SECOND \
    ",\"residual_moe\":true,\"moe_intermediate_size\":64,\"rope_type\":\"original\",\"scaling_factor\":16,\"sliding_" \
    "window_size\":-1"
    if (parse(&c, GROK(SECOND ",\"attn_temperature_len\":1024"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.moe_inter == 64 && c.shared_inter == 512 && !c.norm_topk && c.shared_scale == c.routed_scale &&
                c.temperature_len == 1024);
    if (parse(&c, GROK(SECOND ",\"moe_router_renormalize\":true"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.norm_topk && !c.temperature_len);
    assert_int_equal(parse(&c, GROK(",\"attn_temperature_len\":1"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "attn_temperature_len"));
    assert_int_equal(parse(&c, GROK(",\"rope_type\":\"yarn_log\""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "rope_type"));
    assert_int_equal(parse(&c, GROK(",\"sliding_window_size\":64"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "sliding_window_size"));
    assert_int_equal(parse(&c, GROK(",\"rope_rotate_half_dims\":true"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "rope_rotate_half_dims"));
}

/* Dots 3 Note: two sizes of MLA, as published or listed by layer; the model's are the largest. */
static void dots3_note(void **st) {
    (void)st;
#define DOTS(type, more) \
    "{\"model_type\":\"" type "\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":7,\"intermediate_" \
    "size\":512,\"n_routed_experts\":8," \
    "\"num_experts_per_tok\":3,\"moe_intermediate_size\":64" more "}"
    struct config c;
    struct error e = {0};
    if (parse(&c, DOTS("dots3_note", ",\"vision_config\":{},\"audio_config\":{}"), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 7; i++) {
        const bool window = i >= 2 && i != 5;
        const struct mla_sizes a = config_mla(&c, i);
        assert_true(c.layer[i].window == (window ? 512 : 0) && c.layer[i].index == (window ? INDEX_NONE : INDEX_OWN) &&
                    c.layer[i].moe == (i > 0));
        assert_true(a.heads == (window ? 64 : 128) && a.kv_lora == (window ? 1024 : 512) && a.rope == 64 &&
                    a.nope == (window ? 192 : 128) && a.v_dim == 128);
        assert_true(a.dim == a.nope + a.rope && a.latent == a.kv_lora + a.rope &&
                    attention_of(&c, i) == (window ? &attention_mla : &attention_dsa));
    }
    assert_true(c.n_heads == 128 && c.kv_lora == 1024 && c.head_dim == 256 && c.n_kv_heads == 1 &&
                c.shared_inter == 1536 && c.rope.theta == 8e7 && c.second_rope.theta == 5e4 && c.router_bias &&
                c.scales_latents && c.k_rope_norm);
#define LISTED \
    ",\"layer_types\":[\"indexed_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_" \
    "attention\",\"full_attention\"," \
    "\"full_attention\"],\"num_attention_heads\":4,\"num_key_value_heads\":4,\"sliding_window\":9"
    if (parse(&c,
              DOTS("dots3_note_text", LISTED ",\"per_layer_config\":{\"2\":{\"num_attention_heads\":2,\"num_key_value_"
                                             "heads\":2,\"v_head_dim\":40}}"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(c.layer[0].index == INDEX_OWN && c.layer[1].index == INDEX_NONE && !c.layer[1].window &&
                c.layer[2].window == 9);
    assert_true(config_mla(&c, 2).heads == 2 && config_mla(&c, 2).v_dim == 40 && config_mla(&c, 2).kv_lora == 512 &&
                c.v_dim == 128 && c.n_heads == 4);
    assert_int_equal(parse(&c,
                           DOTS("dots3_note_text", LISTED ",\"per_layer_config\":{\"2\":{\"num_attention_heads\":3}}"),
                           false, &e),
                     0);
    assert_int_equal(
        parse(&c, DOTS("dots3_note_text", LISTED ",\"per_layer_config\":{\"2\":{\"hidden_size\":3}}"), false, &e),
        ERR_MODEL);
    assert_non_null(strstr(e.text, "hidden_size"));
    assert_int_equal(parse(&c, DOTS("dots3_note", ",\"swa_head_dim\":250,\"swa_qk_rope_head_dim\":64"), false, &e),
                     ERR_MODEL);
    assert_non_null(strstr(e.text, "layer 2"));
    assert_int_equal(parse(&c, DOTS("dots3_note", ",\"k_rope_only_layernorm\":false"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "k_rope_only_layernorm"));
    assert_int_equal(parse(&c, DOTS("dots3_note", ",\"attention_gate_type\":\"elementwise\""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "attention_gate_type"));
    assert_int_equal(parse(&c, DOTS("dots3_note", ",\"rope_scaling\":{\"type\":\"yarn\"}"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "rope_scaling"));
}

/* Layers that take latents use the rows of their source: in memory, in bytes, and on a device with some of the layers,
 * which holds them once. */
static void taken_rows(const struct config *c) {
    struct cache_desc d[CACHE_PLANES];
    struct error e = {0};
    struct kv kv;
    if (kv_open(&kv, c, kv_planes, 1024, DT_BF16, &e)) fail_msg("%s", e.text);
    for (int i = 0, planes = 0; i < 6; i++) {
        planes += kv_planes(c, i, d);
        assert_true(d[0].is_taken == (i >= 3) &&
                    (kv.layer[i].p[0].data == kv.layer[c->layer[i].kv_source].p[0].data) == (i >= 3 || !i));
        if (i == 5) assert_true(planes == 10 && !d[1].is_taken && kv.layer[5].p[1].data != kv.layer[2].p[1].data);
    }
    /* three latents, four indexers' keys */
    assert_int_equal(kv_token_bytes(c, DT_BF16), 2 * (576 + 512 + 576 + 4 * 128));
    assert_int_equal(kv.size, 1024 * kv_token_bytes(c, DT_BF16));
    assert_true(kv_row_bytes(c, 4, DT_BF16) == 0 && kv_seen_row_bytes(c, 4, DT_BF16) == 2 * 512 &&
                kv_seen_row_bytes(c, 5, DT_BF16) == 2 * (576 + 128));
    kv_close(&kv);
    kv_planes(c, 5, d);
    assert_true(kv_plane_owner(c, 0, 5, &d[0]) == 2 && kv_plane_owner(c, 3, 5, &d[0]) == 3 &&
                kv_plane_owner(c, 4, 5, &d[0]) == 5);
    assert_true(kv_plane_owner(c, 0, 5, &d[1]) == 5 && kv_plane_owner(c, 0, 4, &d[0]) == 1 &&
                kv_plane_owner(c, 2, 4, &d[0]) == 4);
}

/* Mistral Large 4: layers without rotation, and layers that take the latents of the last source of their kind. */
static void mistral_large4(void **st) {
    (void)st;
#define LARGE(more) \
    "{\"model_type\":\"mistral_large4\",\"vision_config\":{},\"text_config\":{\"model_type\":\"mistral_large4_text\"," \
    "\"num_hidden_layers\":6" more "}}"
    struct config c;
    struct error e = {0};
    if (parse(&c, "{\"model_type\":\"mistral_large4\",\"text_config\":{}}", false, &e)) fail_msg("%s", e.text);
    assert_true(c.n_layers == 72 && c.max_context == 1 << 20);
    if (parse(&c, LARGE(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 6; i++) {
        const struct mla_sizes a = config_mla(&c, i);
        assert_true(a.rope == (i == 3 ? 0 : 64) && a.nope == (i == 3 ? 128 : 64) && a.dim == 128 &&
                    a.latent == 512 + a.rope && a.heads == 64);
        assert_true(c.layer[i].index == INDEX_OWN && c.layer[i].passes_kv == KV_OWN && c.layer[i].moe == (i > 0));
    }
    assert_true(c.hidden == 6144 && c.vocab == 204800 && c.rope.kind == ROPE_YARN && c.rope.attention_factor == 1 &&
                c.rope.original_max == 512);
    assert_true(c.n_experts == 128 && c.topk == 4 && c.shared_inter == 6144 && c.score == SCORE_SOFTMAX &&
                c.norm_topk && c.logit_cap == 30 && !c.carried);
#define KINDS ",\"no_rope_layers\":[1,0,1,1,0,1,1,1]"
    if (parse(&c,
              LARGE(KINDS ",\"kv_source_layers\":[0,1,2,2,1,2],\"indexer_types\":[\"full\",\"shared\",\"full\","
                          "\"full\",\"shared\",\"full\"]"),
              false, &e))
        fail_msg("%s", e.text);
    static const uint8_t passes[] = {KV_OWN, KV_PASSED, KV_PASSED, KV_TAKEN, KV_TAKEN, KV_TAKEN};
    for (int i = 0; i < 6; i++)
        assert_true(c.layer[i].passes_kv == passes[i] && c.layer[i].no_qk_rope == (i == 1 || i == 4));
    assert_true(c.carried == 512 + 576 && c.layer[1].carried_at == 0 && c.layer[4].carried_at == 0 &&
                c.layer[5].carried_at == 512 && c.layer[3].carried_at == 512);
    taken_rows(&c);
    static const struct {
        const char *keys, *why;
    } bad[] = {
        {",\"kv_source_layers\":[0,1,2,3,4]", "not a list of 6"},
        {",\"kv_source_layers\":[0,1,2,3,4,6]", "layer 5 is 6"},
        {",\"kv_source_layers\":[0,1,2,-1,4,5]", "layer 3 is -1"},
        {",\"kv_source_layers\":[0,0,1,3,4,5]", "layer 2 is 1"},     /* takes latents itself */
        {",\"kv_source_layers\":[0,1,2,0,4,5]", "rotates its keys"}, /* layer 3 does not rotate */
        {",\"kv_source_layers\":[0,0,2,3,2,0]", "layer 5 is 0"},     /* layer 2 passes some since */
        {",\"kv_source_layers\":[0,1,2,3,4,\"x\"]", "layer 5 is not a number"},
        {",\"no_rope_layers\":[1,1]", "no_rope_layers"},
        {",\"indexer_types\":[\"shared\",\"full\",\"full\",\"full\",\"full\",\"full\"]", "first layer"},
        {",\"layer_types\":[\"full_attention\",\"a\",\"a\",\"a\",\"a\",\"a\"]", "layer_types"},
        {",\"q_lora_rank\":64", "q_lora_rank"},
        {",\"norm_topk_prob\":false", "norm_topk_prob"},
        {",\"index_head_dim\":32", "index_head_dim"},
        {",\"num_key_value_heads\":8", "num_key_value_heads"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text, LARGE("%s"), bad[i].keys);
        assert_int_equal(parse(&c, text, false, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].why)) fail_msg("%s: %s", bad[i].keys, e.text);
    }
}

/* Muse Spark and Muse Glimmer: every fourth layer from the last is unrotated and has no window, unless the config lists
 * layers. */
static void muse(void **st) {
    (void)st;
#define MUSE(type, more) \
    "{\"model_type\":\"" type "\",\"vision_config\":{},\"projector_hidden_size\":4096,\"out_hidden_size\":6144," \
    "\"text_config\":{\"model_type\":\"" type \
    "_text\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":6" more "}}"
    struct config c;
    struct error e = {0};
    if (parse(&c, MUSE("muse_spark", ""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 6; i++)
        assert_true(c.layer[i].moe && c.layer[i].window == (i == 1 || i == 5 ? 0 : 2048) &&
                    c.layer[i].rope == (i == 1 || i == 5 ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST));
    assert_true(c.head_dim == 64 && c.n_heads == 128 && c.n_kv_heads == 16 && c.qk_norm == QK_NORM_PLAIN &&
                c.head_out_norm && c.attn_scale > 0.684f && c.attn_scale < 0.6842f &&
                c.attn_gate == ATTN_GATE_ELEMENT && c.embed_norm_unit && c.centered_norms && c.norm == NORM_RMS);
    assert_true(c.n_experts == 256 && c.topk == 8 && c.moe_inter == 4096 && c.score == SCORE_SIGMOID &&
                c.router_scale == c.logit_scale && c.expert_out_norm && c.output_norm == OUTPUT_NORM_UNIT &&
                c.output_eps == 1e-8f && c.merge_temperature == 0.3f && c.logit_cap == 20);
    if (parse(&c,
              MUSE("muse_spark", ",\"mlp_layer_types\":[\"dense\",\"dense\",\"dense\",\"dense\",\"dense\",\"dense\"]"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(!c.n_experts && !c.topk && !c.moe_latent && c.dense_inter == 16384);
    if (parse(&c,
              MUSE("muse_glimmer",
                   ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
                   "\"full_attention\","
                   "\"sliding_attention\"],\"layer_rope_theta\":[500000,0,0,500000.0,0,0],\"sliding_window\":9"),
              false, &e))
        fail_msg("%s", e.text);
    assert_true(!c.n_experts && c.output_norm == OUTPUT_NORM_BLOCKS && !c.merges_stream && !c.head_out_norm &&
                c.dense_inter == 19968 && c.layer[5].window == 9 && c.layer[5].rope == LAYER_ROPE_NONE &&
                c.layer[3].rope == LAYER_ROPE_FIRST && c.rope.theta == 500000);
    static const char *const wrong[][2] = {
        {MUSE("muse_spark", ",\"layer_rope_theta\":[0,10000,0,0,0,0]"), "'layer_rope_theta' of layer 1"},
        {MUSE("muse_spark", ",\"layer_rope_theta\":[0,0]"), "list of 6"},
        {MUSE("muse_spark", ",\"sliding_window\":null"), "'sliding_window' is null"},
        {MUSE("muse_spark", ",\"moe_hidden_size\":0"), "moe_hidden_size"},
        {MUSE("muse_spark", ",\"final_logit_softcapping\":0"), "final_logit_softcapping"},
        {MUSE("muse_glimmer", ",\"hidden_activation\":\"relu\""), "hidden_activation"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(&c, wrong[i][0], false, &e), ERR_MODEL);
        if (!strstr(e.text, wrong[i][1])) fail_msg("%s", e.text);
    }
}

/* ERNIE 4.5 VL: transformers' config and the vendor's, with numbers for text and for images, give the same model. */
static void ernie_vision(void **st) {
    (void)st;
#define ERNIE_TEXT \
    "\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":5,\"num_attention_heads\":8,\"num_key_value_" \
    "heads\":2,\"intermediate_size\":512," \
    "\"max_position_embeddings\":4096,\"moe_intermediate_size\":[96,32]"
#define ERNIE_NESTED(text, more) \
    "{\"model_type\":\"ernie4_5_vl_moe\",\"image_start_token_id\":7,\"vision_config\":{},\"text_config\":{" ERNIE_TEXT \
        text "}" more "}"
#define ERNIE_FLAT(more) \
    "{\"model_type\":\"ernie4_5_moe_vl\",\"im_patch_id\":7,\"rope_3d\":true,\"freq_allocation\":20,\"vision_config\":" \
    "{},\"moe_num_experts\":[12,12]" \
    "," ERNIE_TEXT more "}"
    static const char *const same[] = {
        ERNIE_NESTED(",\"moe_num_experts\":12,\"rope_parameters\":{\"mrope_section\":[6,6,4],\"rope_theta\":500000}",
                     ""),
        ERNIE_FLAT(",\"moe_layer_start_index\":[1,1],\"moe_layer_end_index\":[5,4],\"moe_gate\":\"topk\"")};
    struct config c;
    struct error e = {0};
    for (size_t i = 0; i < 2; i++) {
        if (parse(&c, same[i], false, &e)) fail_msg("%s", e.text);
        assert_true(c.n_experts == 12 && c.topk == 6 && c.moe_inter == 96 && c.shared_inter == 192 && c.tied &&
                    c.rope.interleaved && c.rope.theta == 500000);
        for (int l = 0; l < 5; l++) assert_true(c.layer[l].moe == (l > 0));
        assert_true(c.layout->transposed_router && c.layout->image_experts && c.router_bias && c.norm_topk &&
                    c.score == SCORE_SOFTMAX);
    }
    if (parse(&c,
              ERNIE_NESTED(
                  ",\"moe_num_experts\":12,\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"dense\",\"sparse\"]",
                  ",\"tie_word_embeddings\":false"),
              false, &e))
        fail_msg("%s", e.text);
    for (int l = 0; l < 5; l++) assert_true(c.layer[l].moe == (l % 2 == 0));
    assert_false(c.tied);
    static const char *const wrong[][2] = {
        {ERNIE_NESTED(",\"moe_num_experts\":[12,8]", ""), "12 for text, 8 for images"},
        {ERNIE_NESTED(",\"moe_num_experts\":[12]", ""), "'moe_num_experts' is a list of 1"},
        {ERNIE_NESTED(",\"moe_num_experts\":[12,\"8\"]", ""), "'moe_num_experts' has a number outside"},
        {ERNIE_NESTED("", ""), "'moe_num_experts' is missing"},
        {ERNIE_NESTED(",\"moe_num_experts\":12,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}", ""),
         "'rope_type'"},
        {ERNIE_NESTED(",\"moe_num_experts\":12,\"new_scale\":3", ""), "new_scale"},
        {ERNIE_FLAT(",\"moe_layer_end_index\":[4,2]"), "layer 3 has experts for text or for images only"},
        {ERNIE_FLAT(",\"moe_gate_act\":\"sigmoid\""), "moe_gate_act"},
        {ERNIE_FLAT(",\"moe_norm_gate_logits\":false"), "moe_norm_gate_logits"},
        {ERNIE_FLAT(",\"compression_ratio\":0.5"), "compression_ratio"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(parse(&c, wrong[i][0], false, &e), ERR_MODEL);
        if (!strstr(e.text, wrong[i][1])) fail_msg("%s", e.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ernie_vision), cmocka_unit_test(arctic),      cmocka_unit_test(deepseek_v1),
        cmocka_unit_test(klear),        cmocka_unit_test(openpangu),   cmocka_unit_test(pangu_pro),
        cmocka_unit_test(interns1_pro), cmocka_unit_test(gigachat35),  cmocka_unit_test(step3),
        cmocka_unit_test(dots3_note),   cmocka_unit_test(grok),        cmocka_unit_test(mistral_large4),
        cmocka_unit_test(muse),         cmocka_unit_test(smallthinker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
