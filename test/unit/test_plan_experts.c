/* Which routed experts a device keeps, in virtual time: all of some layers, or those of every layer that a usage
 * profile names. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "engine/placement/calibrate.h"
#include "engine/plan/virtual.h"
#include "test/unit/known.h"

static void near(double got, double want, double share) {
    if (!(fabs(got / want - 1) <= share)) fail_msg("%.6g for %.6g", got, want);
}

/* Layers whose experts are all on the card: faster than without, never above what the card's and the host's memory read
 * together, and the cost model's time is virtual time's. */
static double decode_time(const struct cost_machine *m, enum budget_request experts, int *layers) {
    struct virtual *v;
    struct error e = {0};
    double t;
    if (virtual_open(&v, &(struct virtual_options){.cost = m, .w = &shape.w, .kv = DT_BF16, .experts = {experts}}, &e))
        fail_msg("%s", e.text);
    if (virtual_decode(v, DECODE_HYBRID, 1, 1024, &t, NULL, &e)) fail_msg("%s", e.text);
    *layers = decode_expert_layers(virtual_decode_state(v));
    struct cost_model q;
    const struct layer *y = &shape.w.layers[shape.w.config.n_layers - 1];
    cost_model_of(&q, &shape.w.config, (enum dtype)y->o.dtype, (enum dtype)y->experts[0].gate.dtype, DT_BF16);
    const struct cost_decode s = {.mode = DECODE_HYBRID,
                                  .rows = 1,
                                  .keys = 1024,
                                  .n_device_layers = decode_resident_layers(virtual_decode_state(v)),
                                  .n_expert_layers = *layers};
    near(cost_decode(m, &q, &s), t, 0.08);
    virtual_close(&v);
    return t;
}
static void experts_fill_the_card(void **st) {
    static const struct {
        const char *model;
        int least, most; /* layers with resident experts on a card of 32 GB */
        double gain;
    } asked[] = {{"qwen3-30b", 48, 48, 4.5},
                 {"gpt-oss-120b", 14, 20, 1.5},
                 {"glm-4.5-air", 8, 15, 1.2},
                 {"deepseek-v3", 0, 1, 1}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct cost_machine m;
        int layers, none;
        open_known(asked[i].model);
        assert_true(cost_preset(&m, "paper-a-1"));
        /* two channels of DDR5-6000 */
        for (int k = 0; k < COST_KINDS; k++) m.domain[0].bw[k] = (struct cost_curve){1, {1}, {74e9f}};
        m.dram_bw = 96e9, m.n_nodes = 0;
        const double with = decode_time(&m, BUDGET_LAYERS, &layers), without = decode_time(&m, BUDGET_OFF, &none);
        assert_int_equal(none, 0);
        if (layers < asked[i].least || layers > asked[i].most)
            fail_msg("%s: experts of %d layers are resident", asked[i].model, layers);
        if (!(without >= asked[i].gain * with))
            fail_msg("%s: %g ms with %d layers, %g ms without", asked[i].model, with * 1e3, layers, without * 1e3);
        const struct config *c = &shape.w.config;
        int moe = 0;
        for (int l = 0; l < c->n_layers; l++) moe += c->layer[l].moe;
        const double routed = (double)weights_expert_bytes(&shape.w) * c->topk,
                     bound = (double)(moe - layers) * routed / 96e9 + (double)layers * routed / 1792e9;
        if (with < bound)
            fail_msg("%s: %g ms, below the %g ms that reading the chosen experts takes", asked[i].model, with * 1e3,
                     bound * 1e3);
    }
}

static void open_as(const char *name, const char *format) {
    struct error e = {0};
    if (known_model_config(known_model_find(name), &config, &e)) fail_msg("%s: %s", name, e.text);
    shape_only_close(&shape);
    if (shape_only_open_as(&shape, &config, known_format_find(format), &e)) fail_msg("%s: %s", name, e.text);
}
/* A profile in which the expert of rank i of each layer was chosen 1 / i^skew as often as the first. */
static struct usage_profile *open_profile(double skew) {
    struct usage_profile *u;
    struct error e = {0};
    const struct config *c = &shape.w.config;
    if (usage_profile_open(&u, c, NULL, 1, &e)) fail_msg("%s", e.text);
    for (int l = 0; l < c->n_layers; l++)
        for (int x = 0; x < c->n_experts; x++)
            u->before[l * c->n_experts + (x * 7 + l) % c->n_experts] = (uint32_t)(1e5 * pow(x + 1, -skew));
    return u;
}
struct choice {
    double seconds, cost_s, share; /* cost_s: by the cost model */
    int layers;
    char why[640];
};
static struct choice choose(const struct cost_machine *m, struct expert_cache experts, struct usage_profile *u) {
    struct choice x;
    struct virtual *v;
    struct error e = {0};
    struct cost_model q;
    usage_profile_pin(u, 0);
    if (virtual_open(
            &v, &(struct virtual_options){.cost = m, .w = &shape.w, .kv = DT_BF16, .experts = experts, .usage = u}, &e))
        fail_msg("%s", e.text);
    if (virtual_decode(v, DECODE_HYBRID, 1, 1024, &x.seconds, NULL, &e)) fail_msg("%s", e.text);
    const struct decode *d = virtual_decode_state(v);
    x.layers = decode_expert_layers(d), x.share = decode_pinned_share(d);
    snprintf(x.why, sizeof x.why, "%s", decode_placement_why(d));
    cost_model_of(&q, &shape.w.config, weights_dense_dtype(&shape.w), weights_ffn_dtype(&shape.w), DT_BF16);
    const struct cost_decode s = {.mode = DECODE_HYBRID,
                                  .rows = 1,
                                  .keys = 1024,
                                  .n_device_layers = decode_resident_layers(d),
                                  .n_expert_layers = x.layers,
                                  .resident_share = x.share};
    x.cost_s = cost_decode(m, &q, &s);
    virtual_close(&v);
    return x;
}
/* Whole layers, or the experts of every layer that the profile names, whichever is faster; where no layer fits, some
 * experts are used all the same. */
static void the_profile_chooses(void **st) {
    static const struct {
        const char *machine, *model, *format;
        double skew;
        bool is_pinned;
        double gain; /* over whole layers */
    } asked[] = {{"desktop-ddr5-96+rtx4090", "qwen3-30b", "fp8", 0, false, 1},
                 {"desktop-ddr5-96+rtx4090", "qwen3-30b", "fp8", 0.8, true, 1.5},
                 {"desktop-ddr5-64+rtx3060", "qwen3.6-35b", "q4_k_m", 0.8, true, 1.15},
                 {"desktop-ddr5-192+rtx5090", "gpt-oss-120b", "mxfp4", 0.8, true, 1.3},
                 {"epyc-9004-12ch+rtx4090", "deepseek-v3", "fp8", 0.8, true, 1.03}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct cost_machine m;
        struct error e = {0};
        if (calibrate_read(&m, asked[i].machine, &e)) fail_msg("%s", e.text);
        open_as(asked[i].model, asked[i].format);
        struct usage_profile *u = open_profile(asked[i].skew);
        const struct choice by_evidence = choose(&m, (struct expert_cache){BUDGET_AUTO, .is_pinned = true}, u),
                            layers = choose(&m, (struct expert_cache){BUDGET_LAYERS}, u),
                            pinned = choose(&m, (struct expert_cache){BUDGET_EACH, .is_pinned = true}, u);
        if ((by_evidence.share > 0) != asked[i].is_pinned || (by_evidence.share > 0 && by_evidence.layers))
            fail_msg("%s, %s: %s", asked[i].machine, asked[i].model, by_evidence.why);
        /* the cost model knows pinned experts as well as whole layers */
        near(pinned.cost_s / pinned.seconds, layers.cost_s / layers.seconds, 0.08);
        const double best = pinned.seconds < layers.seconds ? pinned.seconds : layers.seconds;
        if (by_evidence.seconds > best * 1.06 || layers.seconds < asked[i].gain * by_evidence.seconds)
            fail_msg("%s, %s: %.3g ms chosen, %.3g with layers, %.3g pinned", asked[i].machine, asked[i].model,
                     by_evidence.seconds * 1e3, layers.seconds * 1e3, pinned.seconds * 1e3);
        printf("%s, %s, skew %g: %.3g ms with %d layers, %.3g with %.0f %% of the choices pinned\n", asked[i].machine,
               asked[i].model, asked[i].skew, layers.seconds * 1e3, layers.layers, pinned.seconds * 1e3,
               100 * pinned.share);
        usage_profile_close(&u);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_fill_the_card), cmocka_unit_test(the_profile_chooses)};
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    shape_only_close(&shape);
    return rc;
}
