/* config.json of families whose layers differ from others by their experts: what is read, derived and refused. */
#include "test/unit/unit.h"

#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "test/unit/parse_config.h"

/* DeepSeek V1: layers with experts by index, and defaults of the vendor's class. */
static void deepseek_v1(void **st) {
    (void)st;
#define V1(more) DENSE("deepseek", ",\"moe_intermediate_size\":64,\"n_routed_experts\":8,\"num_experts_per_tok\":3" more)
    struct config c;
    struct error e = {0};
    if (parse(&c, V1(""), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].moe);
    assert_true(c.attn == ATTN_GQA && c.score == SCORE_SOFTMAX && !c.norm_topk && !c.shared_inter && c.routed_scale == 1 && c.rope.theta == 10000);
    if (parse(&c, V1(",\"first_k_dense_replace\":1,\"moe_layer_freq\":2,\"n_shared_experts\":2,\"norm_topk_prob\":true"), false, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++) assert_true(c.layer[i].moe == (i == 2 || i == 4));
    assert_true(c.norm_topk && c.shared_inter == 128);
    assert_int_equal(parse(&c, V1(",\"scoring_func\":\"sigmoid\""), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "scoring_func"));
    assert_int_equal(parse(&c, V1(",\"routed_scaling_factor\":2.5"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "routed_scaling_factor"));
}

/* Arctic: the published form only, with a dense FFN beside the experts of every layer. */
static void arctic(void **st) {
    (void)st;
#define ARCTIC(more) DENSE("arctic", ",\"num_local_experts\":8,\"moe_token_dropping\":true" more)
#define PUBLISHED    ",\"moe_layer_frequency\":1,\"parallel_attn_mlp_res\":true"
    struct config c;
    struct error e = {0};
    if (parse(&c, ARCTIC(PUBLISHED ",\"use_residual\":true,\"num_experts_per_tok\":2,\"sliding_window\":null"), false, &e)) fail_msg("%s", e.text);
    assert_true(c.reads_early == EARLY_ROUTED && c.layer[4].moe && c.topk == 2 && c.norm_topk && c.moe_inter == 512 && c.shared_inter == 256);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(arctic), cmocka_unit_test(deepseek_v1)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
