/* Tensor parallel: shards of a layer add up to the layer and are split where its formats allow, the cost model predicts
 * what virtual time gives, and the automatic choice is the faster one. With the argument `table` prints the figures of
 * test/bench/NOTES.md instead. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/exec/decode/tp_shard.h"
#include "engine/plan/virtual.h"
#include "test/unit/known.h"

static struct cost_machine machine;

static void shares_are_the_whole(void **st) {
    static const char *const models[] = {"deepseek-v3",  "qwen3-235b",   "glm-4.5-air", "glm-5",
                                         "gpt-oss-120b", "mixtral-8x7b", "dbrx"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            struct tp_shard share[GPU_MAX];
            struct copy_range range[COPY_RANGES_MAX];
            struct layer view;
            char why[160];
            open_known(models[i]);
            const struct config *c = &shape.w.config;
            if (!tp_shard_split(&shape.w, ranks, share, why, sizeof why))
                fail_msg("%s on %d: %s", models[i], ranks, why);
            int heads = 0, kv = 0, dense = 0, shared = 0, last = c->n_layers - 1;
            double bytes = 0, all = 0;
            struct param list[PARAMS_MAX];
            for (int r = 0; r < ranks; r++) {
                struct config own = tp_shard_config(c, &share[r]);
                assert_true(share[r].rank == r && share[r].head0 == heads && share[r].heads > 0);
                if (c->attn == ATTN_GQA)
                    assert_true(share[r].kv_head0 == kv && own.n_heads * c->n_kv_heads == own.n_kv_heads * c->n_heads);
                heads += share[r].heads, kv += share[r].kv_heads, dense += share[r].dense, shared += share[r].shared;
                for (int k = tp_shard_ranges(&own, &share[r], &shape.w, last, &view, range); k-- > 0;)
                    bytes += (double)range[k].bytes;
                assert_int_equal(view.o.cols, own.n_heads * c->v_dim);
                /* without gaps in the shard */
                assert_int_equal(view.o.stride, dtype_bytes((enum dtype)view.o.dtype, (size_t)view.o.cols));
            }
            assert_true(heads == c->n_heads && dense == c->dense_inter && shared == c->shared_inter);
            all = params_bytes(&shape.w.layers[last], list, params_list(c, last, MODULE_LAYER, list));
            /* norms, routers and MLA's latent projections are replicated */
            assert_true(bytes >= all && bytes < all * 1.6);
            if (c->attn == ATTN_GQA) assert_true(kv == c->n_kv_heads && bytes < all * 1.06);
        }
}

static bool cut(int ranks, const char *why_not) {
    struct tp_shard share[GPU_MAX];
    char why[160] = "";
    bool done = tp_shard_split(&shape.w, ranks, share, why, sizeof why);
    if (why_not) assert_non_null(strstr(why, why_not));
    return done;
}
static void unsplittable_models_name_the_reason(void **st) {
    open_known("minimax-m2");
    assert_false(cut(2, "over all heads together"));
    open_known("qwen3-235b");
    assert_true(cut(4, NULL));
    assert_false(cut(5, "4 KV heads for 5 devices"));
    shape.w.layers[7].o.block_cols = 3 * 128; /* one layer is enough: splits would be at 2048, 4096, 6144 */
    assert_false(cut(4, "between blocks"));
    open_known("mixtral-8x7b");
    shape.w.config.streams.n = 2;
    assert_false(cut(2, "residual streams"));
}

static double step(enum gpu_parallel parallel, int sessions, int keys, double *expected) {
    struct virtual *v;
    struct error e = {0};
    double t;
    if (virtual_open(&v,
                     &(struct virtual_options){
                         .cost = &machine, .w = &shape.w, .kv = DT_BF16, .parallel = parallel, .experts = {BUDGET_OFF}},
                     &e))
        fail_msg("%s", e.text);
    if (virtual_decode(v, DECODE_HYBRID, sessions, keys, &t, NULL, &e)) fail_msg("%s", e.text);
    struct cost_model q;
    const struct layer *y = &shape.w.layers[config.n_layers - 1];
    cost_model_of(&q, &config, (enum dtype)y->o.dtype, (enum dtype)y->experts[0].gate.dtype, DT_BF16);
    struct cost_decode s = {.mode = DECODE_HYBRID,
                            .rows = sessions,
                            .keys = keys,
                            .n_device_layers = decode_resident_layers(virtual_decode_state(v)),
                            .ranks = decode_tp_ranks(virtual_decode_state(v))};
    *expected = cost_decode(&machine, &q, &s);
    assert_int_equal(s.n_device_layers, config.n_layers); /* all devices are still in use */
    virtual_close(&v);
    return t;
}
static void machine_of(const char *name, int devices) {
    assert_true(cost_preset(&machine, name));
    for (; machine.n_devices < devices; machine.n_devices++, machine.n_domains++)
        machine.domain[machine.n_devices + 1] = machine.domain[1];
}

static const struct {
    const char *machine, *model;
    int devices, sessions, keys;
    double within; /* by how much the cost model's times may differ */
    /* of the time with layers on separate devices; above 1 where the sums between devices cost more than they save */
    double most;
} asked[] = {
    {"paper-a-2", "deepseek-v3", 2, 1, 1024, 0.025, 0.96},    {"paper-a-2", "deepseek-v3", 2, 1, 32768, 0.025, 0.95},
    {"paper-a-2", "deepseek-v3", 2, 4, 8192, 0.025, 0.98},    {"paper-a-2", "qwen3-235b", 2, 1, 1024, 0.06, 1.03},
    {"paper-a-2", "qwen3-235b", 2, 1, 32768, 0.06, 0.97},     {"paper-a-2", "qwen3-235b", 2, 4, 8192, 0.06, 0.99},
    {"paper-a-2", "gpt-oss-120b", 2, 1, 1024, 0.04, 1.06},    {"paper-a-2", "mixtral-8x7b", 2, 1, 8192, 0.02, 0.995},
    {"paper-b-t4", "mixtral-8x7b", 2, 1, 1024, 0.002, 0.99},  {"paper-b-t4", "mixtral-8x22b", 2, 1, 1024, 0.002, 0.99},
    {"paper-b-t4", "mixtral-8x22b", 4, 1, 1024, 0.002, 0.99}, {"paper-b-t4", "mixtral-8x22b", 4, 8, 1024, 0.002, 0.99},
    {"paper-a-2", "deepseek-v3", 4, 1, 65536, 0.035, 0.95},   {"paper-b-t4", "dbrx", 4, 1, 1024, 0.002, 0.98},
    {"paper-a-2", "kimi-k2", 4, 1, 65536, 0.03, 0.98},        {"paper-a-2", "glm-5", 4, 1, 65536, 0.02, 0.95},
};

/* Seconds of decoding both ways; the cost model is as close to each as the policy needs. */
static void both(size_t i, double t[2]) {
    machine_of(asked[i].machine, asked[i].devices);
    open_known(asked[i].model);
    for (int tensor = 0; tensor < 2; tensor++) {
        double expected;
        t[tensor] =
            step(tensor ? GPU_PARALLEL_TENSOR : GPU_PARALLEL_LAYERS, asked[i].sessions, asked[i].keys, &expected);
        if (fabs(expected / t[tensor] - 1) > asked[i].within)
            fail_msg("%s on %s: expected %g, took %g", asked[i].model, asked[i].machine, expected, t[tensor]);
    }
}
static void all_devices_at_once_are_sooner_done(void **st) {
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        double t[2];
        both(i, t);
        if (!(t[1] < t[0] * asked[i].most))
            fail_msg("%s on %s: %g ms for %g", asked[i].model, asked[i].machine, t[1] * 1e3, t[0] * 1e3);
    }
}

/* Each rank reads whole latents, for its share of the heads: what more keys cost is nearly the same as in virtual
 * time. */
static void latents_are_replicated(void **st) {
    static const char *const models[] = {"deepseek-v3", "kimi-k2"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        double few, many, expected_few, expected_many;
        machine_of("paper-a-2", 4);
        open_known(models[i]);
        few = step(GPU_PARALLEL_TENSOR, 1, 8192, &expected_few);
        many = step(GPU_PARALLEL_TENSOR, 1, 65536, &expected_many);
        if (fabs((expected_many - expected_few) / (many - few) - 1) > 0.03)
            fail_msg("%s: 57,344 more keys take %g ms, expected %g", models[i], (many - few) * 1e3,
                     (expected_many - expected_few) * 1e3);
    }
}

/* Two cards with a fraction of the memory, at a fraction of the bandwidth. */
static int chosen(double memory, double bandwidth, char why[480]) {
    struct virtual *v;
    struct error e = {0};
    machine_of("paper-a-2", 2);
    for (int k = 1; k <= 2; k++) {
        machine.domain[k].memory *= memory;
        for (int kind = 0; kind < COST_KINDS; kind++)
            for (int i = 0; i < machine.domain[k].bw[kind].n; i++)
                machine.domain[k].bw[kind].value[i] *= (float)bandwidth;
    }
    if (virtual_open(
            &v, &(struct virtual_options){.cost = &machine, .w = &shape.w, .kv = DT_BF16, .experts = {BUDGET_OFF}}, &e))
        fail_msg("%s", e.text);
    int ranks = decode_tp_ranks(virtual_decode_state(v));
    snprintf(why, 480, "%s", decode_placement_why(virtual_decode_state(v)));
    assert_int_equal(decode_can_blend(virtual_decode_state(v)), ranks == 1);
    virtual_close(&v);
    return ranks;
}
static void cost_model_chooses_between_layers_and_shards(void **st) {
    char why[480];
    open_known("deepseek-v3");
    assert_int_equal(chosen(1, 1, why), 1); /* one card holds the model: the other is left to prompts */
    assert_null(strstr(why, "parallel"));
    assert_int_equal(chosen(0.4, 1, why), 1); /* prompts are read much faster with whole layers */
    assert_non_null(strstr(why, "not tensor parallel: prefill of 1024 tokens in"));
    assert_int_equal(chosen(0.4, 0.125, why), 2); /* where decoding depends more on the cards than on the CPU */
    assert_non_null(strstr(why, "(tensor parallel)"));
}

static void table(void) {
    printf("%-12s%-16s%8s%10s%8s%12s%12s%8s%12s%12s\n", "machine", "model", "devices", "sessions", "keys", "layers ms",
           "tensor ms", "gain", "expected", "expected");
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        double expected[2];
        machine_of(asked[i].machine, asked[i].devices);
        open_known(asked[i].model);
        double a = step(GPU_PARALLEL_LAYERS, asked[i].sessions, asked[i].keys, &expected[0]),
               b = step(GPU_PARALLEL_TENSOR, asked[i].sessions, asked[i].keys, &expected[1]);
        printf("%-12s%-16s%8d%10d%8d%12.2f%12.2f%8.3f%12.2f%12.2f\n", asked[i].machine, asked[i].model,
               asked[i].devices, asked[i].sessions, asked[i].keys, a * 1e3, b * 1e3, a / b, expected[0] * 1e3,
               expected[1] * 1e3);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_the_whole),
        cmocka_unit_test(unsplittable_models_name_the_reason),
        cmocka_unit_test(all_devices_at_once_are_sooner_done),
        cmocka_unit_test(latents_are_replicated),
        cmocka_unit_test(cost_model_chooses_between_layers_and_shards),
    };
    if (argc > 1 && !strcmp(argv[1], "table")) return table(), 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
