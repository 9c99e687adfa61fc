/* Built-in architectures have the parameter counts and the bytes that their vendors publish. */
#include "test/unit/unit.h"

#include <math.h>

#include "engine/weights/params.h"
#include "test/unit/known.h"

static double count(const struct config *c, int layer, unsigned modules) {
    struct param list[PARAMS_MAX];
    double sum = 0;
    for (int n = params_list(c, layer, modules, list); n-- > 0;)
        sum += (double)list[n].rows * (list[n].cols ? list[n].cols : 1);
    return sum;
}
/* Of tables of which a token reads a few rows: vendors do not count them as active. */
static double count_tables(const struct config *c, int layer, unsigned modules) {
    struct param list[PARAMS_MAX];
    double sum = 0;
    for (int n = params_list(c, layer, modules, list); n-- > 0;)
        sum += list[n].is_table ? (double)list[n].rows * list[n].cols : 0;
    return sum;
}

/* Within 2 % of the total and 4 % of the active ones, which vendors round more coarsely, and count with the embedding
 * and the head, with one of them or without. */
static void models_have_their_parameters(void **st) {
    for (int i = 0; known_model_at(i); i++) {
        const struct known_model *k = known_model_at(i);
        struct error e = {0};
        if (known_model_config(k, &config, &e)) fail_msg("%s", e.text);
        double total = count(&config, 0, MODULE_MODEL), active = total - count_tables(&config, 0, MODULE_MODEL);
        for (int l = 0; l < config.n_layers; l++) {
            double layer = count(&config, l, MODULE_LAYER), expert = count(&config, l, MODULE_EXPERT);
            total += layer + expert * config.n_experts;
            active += layer + expert * config.topk - count_tables(&config, l, MODULE_LAYER);
        }
        double table = (double)config.vocab * config.hidden; /* GLM's counts include neither */
        if (config.tied) total -= table, active -= table;
        if (fabs(total / (k->total * 1e9) - 1) > 0.02)
            fail_msg("%s: %.2f B parameters, said to have %g", k->title, total / 1e9, k->total);
        double off = INFINITY;
        for (int tables = 0; tables < 3; tables++)
            off = fmin(off, fabs((active - tables * table) / (k->active * 1e9) - 1));
        if (off > 0.04)
            fail_msg("%s: %.2f B active with tables of %.2f B in and out, said to be %g", k->title, active / 1e9,
                     table / 1e9, k->active);
    }
    assert_ptr_equal(known_model_find("Qwen3 235B-A22B"), known_model_find("qwen3-235b"));
    assert_null(known_model_find("gpt-5"));
}

static void shapes_have_their_bytes(void **st) {
    open_known("deepseek-v3");
    double all = (double)(shape.w.bytes_routed + shape.w.bytes_dense + shape.w.bytes_embed);
    assert_true(all > 671e9 && all < 676e9); /* published: 689 GB with the prediction layer's 14.6 */
    assert_int_equal(weights_expert_bytes(&shape.w), 3 * (7168 * 2048 + (7168 / 128) * (2048 / 128) * 4)); /* 44 MB */
    open_known("gpt-oss-120b");
    all = (double)(shape.w.bytes_routed + shape.w.bytes_dense + shape.w.bytes_embed);
    assert_true(all > 64e9 && all < 66.5e9); /* published: 65.2 GB */
    open_known("longcat-flash-lite");        /* its tables, which a token does not read, are 62.8 GB */
    all = (double)(shape.w.bytes_routed + shape.w.bytes_dense + shape.w.bytes_embed);
    assert_true(all > 136e9 && all < 138e9 && shape.w.bytes_embed > 64e9 && weights_token_bytes(&shape.w) < 10e9);
    open_known("dbrx");
    assert_true(shape.w.layers[0].experts[0].is_transposed);
}

/* Bits per weight of whole models, as the files that people trade have them; embedding and head stay at 16 bits
 * here. */
static void formats_have_their_bytes(void **st) {
    static const struct {
        const char *format;
        double bits;
    } asked[] = {{"bf16", 16},  {"fp8", 8.1},     {"int4", 5.1}, {"q8_0", 8.6},
                 {"q6_k", 6.7}, {"Q4_K_M", 4.95}, {"q2_k", 3.2}, {"iq2_xxs", 2.6}};
    struct error e = {0};
    static struct config c;
    const struct known_model *const k = known_model_find("qwen3-30b");
    assert_int_equal(known_model_config(k, &c, &e), 0);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct shape_only s;
        if (shape_only_open_as(&s, &c, known_format_find(asked[i].format), &e)) fail_msg("%s", e.text);
        const double bits = (double)(s.w.bytes_dense + s.w.bytes_routed + s.w.bytes_embed) * 8 / (k->total * 1e9);
        if (fabs(bits / asked[i].bits - 1) > 0.03) fail_msg("%s: %.2f bits per weight", asked[i].format, bits);
        shape_only_close(&s);
    }
    assert_null(known_format_find("q9"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_have_their_parameters),
                                       cmocka_unit_test(shapes_have_their_bytes),
                                       cmocka_unit_test(formats_have_their_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
