/* Virtual time keeps to the machine it simulates: host memory, links, hand-offs and the math of the cards. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "engine/placement/calibrate.h"
#include "engine/plan/virtual.h"
#include "engine/transfer/gpu_set.h"
#include "gpu/backend.h"
#include "test/unit/known.h"

static struct cost_machine machine;
static struct virtual *v;

static void open_virtual(const char *name, const char *model, int layers) {
    struct error e = {0};
    open_known(model);
    if (calibrate_read(&machine, name, &e)) fail_msg("%s", e.text);
    const struct virtual_options o = {
        .cost = &machine, .w = &shape.w, .kv = DT_BF16, .max_layers = layers, .experts = {BUDGET_OFF}};
    if (virtual_open(&v, &o, &e)) fail_msg("%s", e.text);
}
static double prefill(enum exec_mode mode, int n) {
    struct error e = {0};
    double t;
    if (virtual_prefill(v, mode, n, &t, &e)) fail_msg("%s", e.text);
    return t;
}

/* CPU and links together never read more than host memory delivers, also where each alone could take nearly all of
 * it. */
static void host_memory_serves_all(void **st) {
    static const char *const machines[] = {"desktop-ddr5-192+rtx5090", "desktop-ddr5-192+2xrtx5090",
                                           "epyc-9004-12ch+2xrtx4090"};
    static const char *const models[] = {"gpt-oss-120b", "glm-4.5-air"};
    double most = 0;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
            open_virtual(machines[m], models[k], 6);
            for (int n = 64; n <= 4096; n *= 8)
                for (int mode = PREFILL_BLEND; mode <= PREFILL_DSLP; mode++) {
                    if (mode == PREFILL_DSLP && machine.n_devices < 2) continue;
                    const double t = prefill((enum exec_mode)mode, n) - machine.prefill_start_s,
                                 share = virtual_used(v)->host_bytes / (t * machine.dram_bw);
                    if (share > 1)
                        fail_msg("%s on %s, %s of %d tokens: %.2f of host memory's bandwidth", models[k], machines[m],
                                 exec_mode_name(mode), n, share);
                    most = fmax(most, share);
                }
            virtual_close(&v);
        }
    printf("at most %.2f of host memory's bandwidth\n", most);
    assert_true(most > 0.6); /* and the limit is felt */
}

/* Decode batches keep to host memory and to the cards' memory, with experts on cards and without. */
static void memories_serve_decoding(void **st) {
    static const char *const machines[] = {"desktop-ddr5-96+rtx5090", "desktop-ddr5-192+2xrtx3090",
                                           "epyc-9004-12ch+rtx4090"};
    static const char *const models[] = {"gpt-oss-120b", "qwen3-30b"};
    struct error e = {0};
    double most[2] = {0};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t k = 0; k < sizeof models / sizeof *models; k++)
            for (int pool = 0; pool < 2; pool++) {
                open_known(models[k]);
                if (calibrate_read(&machine, machines[m], &e)) fail_msg("%s", e.text);
                if (virtual_open(&v,
                                 &(struct virtual_options){.cost = &machine,
                                                           .w = &shape.w,
                                                           .kv = DT_BF16,
                                                           .experts = {pool ? BUDGET_AUTO : BUDGET_OFF}},
                                 &e))
                    fail_msg("%s", e.text);
                for (int mode = DECODE_CPU; mode <= DECODE_DUAL; mode++)
                    for (int n = 2; n <= 8; n *= 4) {
                        double t;
                        if (virtual_decode(v, (enum exec_mode)mode, n, 1024, &t, NULL, &e)) fail_msg("%s", e.text);
                        const struct virtual_used *u = virtual_used(v);
                        const double share[2] = {u->host_bytes / (u->seconds * machine.dram_bw),
                                                 u->gpu.memory_s / (u->seconds * machine.n_devices)};
                        for (int i = 0; i < 2; i++) {
                            if (share[i] > 1)
                                fail_msg("%s on %s, %s of %d sessions: %.2f of the %s memory", models[k], machines[m],
                                         exec_mode_name((enum exec_mode)mode), n, share[i], i ? "cards'" : "host's");
                            most[i] = fmax(most[i], share[i]);
                        }
                    }
                virtual_close(&v);
            }
    printf("at most %.2f of host memory's bandwidth and %.2f of the cards'\n", most[0], most[1]);
    assert_true(most[0] > 0.6 && most[1] > 0.4); /* and the limits are felt */
}

/* Prompts of a model that was trained with FP8 activations are read with products in FP8. Those of another, and of one
 * whose indexer chooses keys, have the BF16 rate unless the card is asked for FP8. */
static void products_follow_the_math(void **st) {
    double t[3];
    for (int i = 0; i < 3; i++) {
        struct error e = {0};
        open_virtual(i == 2 ? "paper-a-1-fp8" : "paper-a-1", "deepseek-v3", 4);
        assert_true(shape.w.config.quant.fp8_activations);
        virtual_close(&v);
        shape.w.config.quant.fp8_activations = i > 0;
        const struct virtual_options o = {
            .cost = &machine, .w = &shape.w, .kv = DT_BF16, .max_layers = 4, .experts = {BUDGET_OFF}};
        if (virtual_open(&v, &o, &e)) fail_msg("%s", e.text);
        t[i] = prefill(PREFILL_SLP, 32768) - machine.prefill_start_s;
        virtual_close(&v);
    }
    assert_true(t[2] < 0.9 * t[0] && t[2] > 147.0 / 335 * t[0]); /* attention is BF16 in all */
    assert_true(fabs(t[1] / t[2] - 1) < 0.01);
    open_known("deepseek-v3.2");
    assert_true(shape.w.config.quant.fp8_activations && !config_reads_in_fp8(&shape.w.config));
}

/* An engine's devices read prompts in FP8 if all of them can, unless the list says how to compute. */
static void devices_choose_their_math(void **st) {
    static const char *const lists[] = {"emu:2,mem=64M", "emu:2,mem=64M,math=bf16"};
    open_known("deepseek-v3");
    for (int i = 0; i < 2; i++) {
        struct gpu_set *set;
        struct error e = {0};
        if (gpu_set_open(&set, lists[i], &e)) fail_msg("%s", e.text);
        for (int able = 0; able <= 2; able++) {
            for (int k = 0; k < 2; k++) set->gpu[k]->info.has_fp8 = k < able;
            gpu_set_choose_math(set, &shape.w.config);
            assert_int_equal(set->reads_in_fp8, able == 2 && !i);
        }
        shape.w.config.quant.fp8_activations = false;
        gpu_set_choose_math(set, &shape.w.config);
        assert_false(set->reads_in_fp8);
        shape.w.config.quant.fp8_activations = true;
        gpu_set_close(&set);
    }
}

/* Paper A's bound on the first token, with the defaults: 32K on one card and 45K on two within 30 s. */
static void long_documents_are_read_within_30_s(void **st) {
    static const struct {
        const char *machine;
        enum exec_mode mode;
        int n;
    } rows[] = {{"paper-a-1", PREFILL_SLP, 32768}, {"paper-a-2", PREFILL_DSLP, 45 * 1024}};
    for (size_t i = 0; i < 2; i++) {
        open_virtual(rows[i].machine, "deepseek-v3", 0);
        const double t = prefill(rows[i].mode, rows[i].n);
        printf("%s: %d tokens of DeepSeek-V3 in %.1f s\n", rows[i].machine, rows[i].n, t);
        virtual_close(&v);
        assert_true(t > 20 && t <= 30);
    }
}

/* Each layer with experts on the CPU takes two hand-offs. */
static void hand_offs_take_time(void **st) {
    struct error e = {0};
    double t[2];
    for (int on = 0; on < 2; on++) {
        open_virtual("paper-a-1", "deepseek-v3", 10);
        machine.hand_off_s = on ? 15e-6 : 0;
        virtual_close(&v);
        if (virtual_open(&v,
                         &(struct virtual_options){
                             .cost = &machine, .w = &shape.w, .kv = DT_BF16, .max_layers = 10, .experts = {BUDGET_OFF}},
                         &e) ||
            virtual_decode(v, DECODE_HYBRID, 1, 100, &t[on], NULL, &e))
            fail_msg("%s", e.text);
        virtual_close(&v);
    }
    const double want = 7 * 2 * 15e-6; /* three of the ten layers are dense */
    if (!(fabs(t[1] - t[0] - want) < 0.2 * want))
        fail_msg("hand-offs take %.1f us, by hand %.1f", (t[1] - t[0]) * 1e6, want * 1e6);
}

/* Attention is computed session by session: the cost model follows virtual time from one session to eight. */
static void sessions_add_up(void **st) {
    static const char *const rows[][2] = {{"paper-a-1", "deepseek-v3"}, {"desktop-ddr5-96+rtx5090", "gpt-oss-120b"}};
    struct error e = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int mode = DECODE_CPU; mode <= DECODE_HYBRID; mode++) {
            double one = 0;
            for (int n = 1; n <= 8; n *= 2) {
                struct cost_model q;
                double t;
                open_known(rows[i][1]);
                if (calibrate_read(&machine, rows[i][0], &e) ||
                    virtual_open(&v, &(struct virtual_options){.cost = &machine, .w = &shape.w, .kv = DT_BF16}, &e) ||
                    virtual_decode(v, (enum exec_mode)mode, n, 1024, &t, NULL, &e))
                    fail_msg("%s", e.text);
                const struct cost_decode s = {.mode = (enum exec_mode)mode,
                                              .rows = n,
                                              .keys = 1024,
                                              .n_device_layers = decode_resident_layers(virtual_decode_state(v)),
                                              .n_expert_layers = decode_expert_layers(virtual_decode_state(v))};
                cost_model_of(&q, &shape.w.config, weights_dense_dtype(&shape.w), weights_ffn_dtype(&shape.w), DT_BF16);
                const double expected = cost_decode(&machine, &q, &s);
                virtual_close(&v);
                if (n == 1) one = expected / t;
                if (fabs(expected / t / one - 1) > 0.04)
                    fail_msg("%s, %s, %d sessions: %.2f ms, the cost model expects %.2f", rows[i][1],
                             exec_mode_name((enum exec_mode)mode), n, t * 1e3, expected * 1e3);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(host_memory_serves_all),
                                       cmocka_unit_test(memories_serve_decoding),
                                       cmocka_unit_test(products_follow_the_math),
                                       cmocka_unit_test(devices_choose_their_math),
                                       cmocka_unit_test(long_documents_are_read_within_30_s),
                                       cmocka_unit_test(hand_offs_take_time),
                                       cmocka_unit_test(sessions_add_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
