/* Names of models on a hub, labels of GGUF files, and which of several quants is proposed. */
#include "cli/hub/hub_choice.h"
#include "cli/options/hub_name.h"
#include "test/unit/unit.h"

static void test_names(void **state) {
    struct hub_name n;
    static const char *const valid[][3] = {{"Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", ""},
                                           {"a/b", "a/b", ""},
                                           {"unsloth/Qwen3-GGUF:UD-Q4_K_XL", "unsloth/Qwen3-GGUF", "UD-Q4_K_XL"},
                                           {"o/n_1.5:file name.gguf", "o/n_1.5", "file name.gguf"}};
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) {
        assert_true(hub_name_parse(valid[i][0], &n));
        assert_string_equal(n.repo, valid[i][1]);
        assert_string_equal(n.quant, valid[i][2]);
    }
    static const char *const invalid[] = {"",      "a",       "a/",         "/a",    "a/b/c", "a/b:",   "../b",
                                          "a/..",  ".a/b",    "a/b-",       "a/b.",  "-a/b",  "a--b/c", "a..b/c",
                                          "a b/c", "a/b:q:r", "a/b?x",      "~/x",   "./x",   "a/b\n",  "a/b:\n",
                                          "ä/b",   "a/b#c",   "http://x/y", "a\\b/c"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        if (hub_name_parse(invalid[i], &n)) fail_msg("'%s' is taken for a name", invalid[i]);
}

static void test_labels(void **state) {
    static const char *const files[][2] = {{"Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", "Q4_K_M"},
                                           {"qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"},
                                           {"Qwen3-235B-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL"},
                                           {"UD-IQ1_S/DeepSeek-R1-UD-IQ1_S-00002-of-00004.gguf", "UD-IQ1_S"},
                                           {"Q8_0/model-00001-of-00002.gguf", "Q8_0"},
                                           {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                           {"gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"},
                                           {"model-BF16.gguf", "BF16"},
                                           {"model.i1-IQ3_XXS.gguf", "IQ3_XXS"},
                                           {"model.Q5_0.gguf", "Q5_0"},
                                           {"TQ1_0/model-TQ1_0.gguf", "TQ1_0"},
                                           {"gemma-3-27b-it-qat-q4_0.gguf", "Q4_0"},
                                           {"model-fp16.gguf", "FP16"},
                                           {"Model-F32-Q6_K.gguf", "Q6_K"},
                                           {"ggml-model.gguf", "ggml-model"},
                                           {"Qwen-7B.gguf", "Qwen-7B"},
                                           {"a/b/plain-00001-of-00002.gguf", "plain"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char label[HUB_QUANT_MAX];
        hub_name_label(files[i][0], label, sizeof label);
        assert_string_equal(label, files[i][1]);
    }
    assert_int_equal(hub_name_match("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", "ud-q4_k_xl"), 3);
    assert_int_equal(hub_name_match("f/m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"), 3);
    assert_int_equal(hub_name_match("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", "q4_k_xl"), 2);
    assert_int_equal(hub_name_match("m-Q4_K_M.gguf", "Q4_K_M", "q4"), 1);
    assert_int_equal(hub_name_match("m-Q4_K_M.gguf", "Q4_K_M", "q5"), 0);
    static const char *const weights[] = {"a.gguf", "x/a-Q4_0.gguf", "a-00001-of-00003.gguf"},
                             *const others[] = {"mmproj-F16.gguf", "x/model-mmproj-f16.gguf",
                                                "a.imatrix.gguf",  "a-00002-of-00003.gguf",
                                                "a.safetensors",   ".gguf",
                                                "a.gguf.part"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) assert_true(hub_name_is_weights(weights[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(hub_name_is_weights(others[i]));
}

static const uint64_t GB = 1000000000;

/* Returns the label that is proposed among quants of a model of 30 GB in 8 bits. */
static const char *proposed(uint64_t memory_gb, double rate_gb, double share) {
    static struct hub_quant v[] = {{.label = "Q2_K"}, {.label = "Q3_K_M"}, {.label = "Q4_K_M"}, {.label = "Q5_K_M"},
                                   {.label = "Q6_K"}, {.label = "Q8_0"},   {.label = "BF16"}};
    static const unsigned gb[] = {11, 15, 18, 21, 25, 32, 61};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i].bytes = gb[i] * GB;
    const struct hub_quants q = {.v = v, .n = sizeof v / sizeof *v};
    return v[hub_choice_propose(&q, memory_gb * GB, rate_gb * (double)GB, share)].label;
}

static void test_proposals(void **state) {
    assert_string_equal(proposed(128, 80, 0.1), "Q8_0"); /* fast enough in 8 bits, and never 16 */
    assert_string_equal(proposed(30, 80, 0.1), "Q6_K");  /* the largest that fits with room to spare */
    assert_string_equal(proposed(128, 250, 1), "Q6_K");  /* dense: 10 tokens per second */
    assert_string_equal(proposed(128, 80, 1), "Q4_K_M"); /* none is fast: the usual one */
    assert_string_equal(proposed(17, 80, 1), "Q3_K_M");  /* or what fits below it */
    assert_string_equal(proposed(128, 0, 0), "Q4_K_M");  /* unknown speed */
    assert_string_equal(proposed(8, 80, 0.1), "Q2_K");   /* nothing fits: the smallest */
    struct hub_quant plain[] = {{.label = "BF16", .bytes = GB}, {.label = "F32", .bytes = 2 * GB}};
    assert_int_equal(hub_choice_propose(&(struct hub_quants){.v = plain, .n = 2}, 64 * GB, 0, 0), 1);
    struct hub_quant cut[] = {{.label = "Q4_K_M", .bytes = GB, .missing = "x"}, {.label = "BF16", .bytes = 2 * GB}};
    assert_int_equal(hub_choice_propose(&(struct hub_quants){.v = cut, .n = 2}, 64 * GB, 0, 0), 1);
    assert_int_equal(hub_choice_propose(&(struct hub_quants){.v = cut, .n = 1}, 64 * GB, 0, 0), 1); /* none is whole */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_labels),
                                       cmocka_unit_test(test_proposals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
