/* Members of config.json that no parser reads: which of them are refused, and families that are known by their class or
 * by the keys of a flat config. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "engine/model/arch.h"
#include "test/unit/parse_config.h"
#include "test/unit/unit.h"

struct notes {
    int n;
    char last[400];
};
static void on_note(void *ctx, enum log_level level, const char *text) {
    struct notes *n = ctx;
    n->n++;
    snprintf(n->last, sizeof n->last, "%s", text);
}

/* Parses a Qwen3 model with one more member; returns its key's name if it was refused, and counts notes. */
static int with_member(const char *member, bool force, struct notes *notes, struct error *e) {
    struct config c;
    char text[1000];
    snprintf(text, sizeof text, DENSE("qwen3", ",%s"), member);
    *notes = (struct notes){0};
    log_set(on_note, notes, LOG_INFO);
    const int rc = parse(&c, text, force, e);
    log_set(NULL, NULL, LOG_WARN);
    return rc;
}

static void members_without_effect(void **st) {
    static const char *const silent[] = {"\"transformers_version\":\"5.0\"",
                                         "\"attn_off\":false",
                                         "\"router_null\":null",
                                         "\"rope_none\":0",
                                         "\"norm_empty\":{}",
                                         "\"_attn_scale\":3",
                                         "\"use_qk_norm\":true",
                                         "\"head_dim\":64",
                                         "\"num_layers\":5",
                                         "\"d_model\":256",
                                         "\"norm_eps\":1e-06",
                                         "\"num_kv_heads\":2",
                                         "\"num_experts\":0",
                                         "\"dense_intermediate_size\":512",
                                         "\"n_group\":0",
                                         "\"is_causal\":true",
                                         "\"eos_token_id\":-1",
                                         "\"eos_token_id\":[null,3,-1]"};
    static const char *const noted[] = {"\"unsloth_fixed\":true",
                                        "\"attention_kind\":\"plain\"",
                                        "\"output_gate_type\":\"swish\"",
                                        "\"router_z_loss\":0.001",
                                        "\"vision_config\":{\"layers\":24}",
                                        "\"image_grid\":[336,672]",
                                        "\"what_is_this\":7",
                                        "\"use_cache_kernels\":true",
                                        "\"mtp_head_scale\":2",
                                        "\"attn_options\":{\"kind\":\"a\",\"flags\":null}",
                                        "\"img_token_compression\":{\"method\":2}"};
    struct notes notes;
    struct error e = {0};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        if (with_member(silent[i], false, &notes, &e) || notes.n)
            fail_msg("%s: %s, %d notes", silent[i], e.text, notes.n);
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++)
        if (with_member(noted[i], false, &notes, &e) || notes.n != 1 ||
            !strstr(notes.last, "is unknown to hearth and ignored"))
            fail_msg("%s: %s, %d notes: %s", noted[i], e.text, notes.n, notes.last);
}

static void members_that_may_change_results(void **st) {
    static const char *const refused[][2] = {
        {"\"attn_logit_softcapping\":50", "'attn_logit_softcapping'"},
        {"\"use_parallel_residual\":true", "'use_parallel_residual'"},
        {"\"router_scale\":[1,2]", "'router_scale'"},
        {"\"layer_kinds\":[\"linear\"]", "'layer_kinds'"},
        {"\"attn_options\":{\"kind\":\"a\",\"scale\":2}", "'attn_options'"},
        {"\"rope_scaling\":{\"rope_type\":\"default\",\"stretch\":2}", "'rope_scaling.stretch'"},
        {"\"num_layers\":6", "'num_layers'"},
        {"\"use_qk_norm\":false,\"num_kv_heads\":3", "'num_kv_heads'"},
        {"\"num_experts_per_token\":3", "'num_experts_per_token'"},
        {"\"conv_kernel_size\":4", "'conv_kernel_size'"}};
    struct notes notes;
    struct error e = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (with_member(refused[i][0], false, &notes, &e) != ERR_MODEL || !strstr(e.text, refused[i][1]) ||
            !strstr(e.text, "--force"))
            fail_msg("%s: %s", refused[i][0], e.text);
        e = (struct error){0};
        if (with_member(refused[i][0], true, &notes, &e) || notes.n != 1)
            fail_msg("%s with --force: %s, %d notes", refused[i][0], e.text, notes.n);
    }
    assert_int_equal(with_member("\"rope_scaling\":{\"rope_type\":\"default\",\"note\":\"a\"}", false, &notes, &e), 0);
#define FIVE(one) one "," one "," one "," one "," one
    struct config c; /* a family whose parser reads no kinds of layers */
    assert_int_equal(parse(&c, DENSE("llama", ",\"layer_types\":[" FIVE("\"full_attention\"") "]"), false, &e), 0);
    assert_int_equal(parse(&c, DENSE("llama", ",\"layer_types\":[" FIVE("\"sliding_attention\"") "]"), false, &e),
                     ERR_MODEL);
    e = (struct error){0};
    assert_int_equal(with_member("\"is_causal\":false", true, &notes, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "hearth computes causal attention"));
    e = (struct error){0};
    assert_int_equal(with_member("\"eos_token_id\":\"3\"", true, &notes, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "'eos_token_id' is not a whole number"));
}

static int parse_python(struct config *c, const char *text, struct error *e) {
    struct arena a = {0};
    struct json j;
    int rc = json_parse(&a, text, strlen(text), JSON_PYTHON, "config.json", &j, e);
    if (!rc) rc = config_parse(c, &j, "config.json", false, e);
    arena_free(&a);
    return rc;
}
static void files_that_python_writes(void **st) {
    struct config c;
    struct error e = {0};
    assert_int_equal(
        parse_python(&c, DENSE("qwen3", ",\"a_loss\":[NaN,-Infinity],\"hidden_size\":9,\"hidden_size\":128"), &e), 0);
    assert_int_equal(c.hidden, 128);
    assert_int_equal(parse_python(&c, DENSE("qwen3", ",\"rms_norm_eps\":NaN"), &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "'rms_norm_eps' is not a number"));
    e = (struct error){0};
    assert_int_equal(parse_python(&c, DENSE("qwen3", ",\"rope_theta\":Infinity"), &e), ERR_MODEL);
    e = (struct error){0};
    assert_int_equal(parse_python(&c, DENSE("qwen3", ",\"hidden_size\":Infinity"), &e), ERR_MODEL);
    e = (struct error){0};
    assert_int_equal(parse(&c, DENSE("qwen3", ",\"a_loss\":NaN"), false, &e), ERR_MODEL); /* strict JSON lacks it */
}

static void families_by_other_names(void **st) {
#define CLASS(name) ",\"architectures\":[\"" name "\"]"
    struct config c;
    struct error e = {0};
    assert_int_equal(parse(&c, DENSE("somebody_else", CLASS("Qwen3ForCausalLM")), false, &e), 0);
    assert_string_equal(c.arch->title, "Qwen3");
    assert_int_equal(parse(&c, DENSE("mimo", CLASS("MiMoForCausalLM") ",\"num_nextn_predict_layers\":1"), false, &e),
                     0);
    assert_true(c.qkv_bias && !c.n_mtp && c.qk_norm == QK_NORM_NONE);
    assert_int_equal(parse(&c, DENSE("somebody_else", CLASS("Qwen3ForSomethingElse")), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "somebody_else"));
    e = (struct error){0};
    assert_int_equal(parse(&c, DENSE("paligemma", CLASS("Gemma2ForCausalLM")), false, &e), ERR_MODEL);
    e = (struct error){0};
    assert_int_equal(parse(&c, DENSE("qwen3_vl", ""), false, &e), 0); /* without text_config */
    assert_true(c.n_layers == 5 && c.qk_norm == QK_NORM_HEAD);
    assert_int_equal(parse(&c, DENSE("qwen3", ",\"quantization_config\":{\"quant_algo\":\"FP8\"}"), false, &e), 0);
    assert_int_equal(c.quant.method, QUANT_MODELOPT);
    assert_int_equal(parse(&c, DENSE("qwen3", ",\"quantization_config\":{\"bits\":4}"), false, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "'quantization_config.quant_method' is missing"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_without_effect), cmocka_unit_test(members_that_may_change_results),
        cmocka_unit_test(files_that_python_writes), cmocka_unit_test(families_by_other_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
