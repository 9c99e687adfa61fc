/* Plans: a few layers in virtual time extrapolate to all of them, and a plan reports what its runs gave. */
#include "test/unit/unit.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/test_limits.h"
#include "engine/engine.h"
#include "engine/placement/datasheet.h"
#include "engine/placement/search.h"
#include "engine/plan/plan_write.h"
#include "engine/plan/virtual.h"
#include "test/unit/known.h"

static struct cost_machine machine;

static double prefill_beside(enum budget_request experts, enum exec_mode mode, int layers, int n) {
    struct virtual *v;
    struct error e = {0};
    double t;
    if (virtual_open(&v,
                     &(struct virtual_options){
                         .cost = &machine, .w = &shape.w, .kv = DT_BF16, .max_layers = layers, .experts = {experts}},
                     &e))
        fail_msg("%s", e.text);
    if (virtual_prefill(v, mode, n, &t, &e)) fail_msg("%s", e.text);
    const struct virtual_used *u = virtual_used(v);
    const double expert = (double)weights_expert_bytes(&shape.w) / machine.domain[1].link[COST_H2D].rate;
    /* a blend's look-ahead in its last layer is unused */
    const double unused = mode == PREFILL_BLEND ? 2 * expert + 0.02 * u->seconds : 0;
    assert_true(u->seconds > 0 && u->gpu.h2d_s <= u->seconds * 1.001 + unused &&
                u->gpu.arithmetic_s + u->gpu.memory_s <= u->seconds * 1.001);
    virtual_close(&v);
    return t;
}

static double prefill(enum exec_mode mode, int layers, int n) { return prefill_beside(BUDGET_OFF, mode, layers, n); }

/* Two runs with a few layers predict the time of all: plan.c relies on this. */
static void few_layers_say_what_all_take(void **st) {
    static const struct {
        const char *model;
        enum exec_mode mode;
        int dense, n;
    } cases[] = {{"deepseek-v3", PREFILL_SLP, 3, 2048},   {"deepseek-v3", PREFILL_SLP, 3, 20480},
                 {"deepseek-v3", PREFILL_DSLP, 3, 16384}, {"deepseek-v3", PREFILL_BLEND, 3, 1024},
                 {"deepseek-v3", PREFILL_CPU, 3, 4096},   {"gpt-oss-120b", PREFILL_SLP, 0, 4096},
                 {"gpt-oss-120b", PREFILL_BLEND, 0, 512}, {"mixtral-8x7b", PREFILL_SLP, 0, 8192}};
    assert_true(cost_preset(&machine, "paper-a-2"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_known(cases[i].model);
        double head = cases[i].mode == PREFILL_CPU ? 0 : 2.0 * config.vocab * config.hidden / 947e9,
               few = prefill(cases[i].mode, cases[i].dense + 4, cases[i].n);
        double more = prefill(cases[i].mode, cases[i].dense + 12, cases[i].n),
               all = prefill(cases[i].mode, 0, cases[i].n);
        double said = more + (more - few) / 8 * (config.n_layers - cases[i].dense - 12) + head;
        if (fabs(said / all - 1) > 0.015)
            fail_msg("%s, mode %d, %d tokens: %.4f s from a few layers, %.4f s with all", cases[i].model, cases[i].mode,
                     cases[i].n, said, all);
    }
}

/* In virtual time the order of threads does not matter: the same question gives the same answer to the last bit. */
static void threads_do_not_matter(void **st) {
    static const struct {
        const char *machine, *model;
        enum exec_mode mode;
        int layers, n;
    } cases[] = {{"paper-a-2", "gpt-oss-120b", PREFILL_BLEND, 8, 2048},
                 {"paper-a-2", "gpt-oss-120b", PREFILL_DSLP, 8, 16384},
                 {"paper-b-4t4", "dbrx", PREFILL_BLEND, 8, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(cost_preset(&machine, cases[i].machine));
        open_known(cases[i].model);
        const double t = prefill(cases[i].mode, cases[i].layers, cases[i].n);
        for (int k = 0; k < 3; k++) {
            test_limits_set(TEST_LIMIT_STREAM_LAG_US, 20); /* of some streams, by their addresses */
            test_limits_set(TEST_LIMIT_STREAM_LAG_OF, (size_t)k + 2);
            double again = prefill(cases[i].mode, cases[i].layers, cases[i].n);
            test_limits_set(TEST_LIMIT_STREAM_LAG_US, 0);
            if (again != t)
                fail_msg("%s, mode %d, %d tokens: %.17g s, then %.17g", cases[i].model, cases[i].mode, cases[i].n, t,
                         again);
        }
    }
}

/* Four links, and no transfer before the prompt exists, which dominates a run of few layers; while the CPU finishes its
 * part of a layer, the links fetch the start of the next one: more tokens take no longer. */
static void blends_over_four_links(void **st) {
    const int n[] = {512, 1024, 2048};
    double last = 0;
    assert_true(cost_preset(&machine, "paper-b-4t4"));
    open_known("dbrx");
    for (int i = 0; i < 3; i++) {
        double few = prefill(PREFILL_BLEND, 4, n[i]), more = prefill(PREFILL_BLEND, 12, n[i]),
               all = prefill(PREFILL_BLEND, 0, n[i]);
        double said = more + (more - few) / 8 * (config.n_layers - 12);
        if (fabs(said / all - 1) > 0.03)
            fail_msg("%d tokens: %.4f s from a few layers, %.4f s with all", n[i], said, all);
        if (all < 0.99 * last) fail_msg("%d tokens are read in %.4f s, fewer in %.4f s", n[i], all, last);
        last = all;
    }
}

static void near(double got, double want, double share) {
    if (!(fabs(got / want - 1) <= share)) fail_msg("%.6g for %.6g", got, want);
}
static struct virtual_used used; /* of the last batches */
static void paged(const struct virtual_throughput *q, double *read, double *step) {
    struct virtual *v;
    struct error e = {0};
    if (virtual_open(&v, &(struct virtual_options){.cost = &machine, .w = &shape.w, .kv = DT_BF16}, &e))
        fail_msg("%s", e.text);
    if (virtual_paged(v, q, read, step, &e)) fail_msg("%s", e.text);
    used = *virtual_used(v);
    assert_true(used.gpu.h2d_s <= used.seconds * 1.01 &&
                used.gpu.arithmetic_s + used.gpu.memory_s <= used.seconds * 1.01);
    virtual_close(&v);
}

/* Paper B, section 5.3: a card's turn comes after at least three micro-batches of each layer of the others. The search
 * accounts for that and finds more micro-batches than the eight of 512 that would be best otherwise. */
static void cards_take_turns(void **st) {
    double found[2], read, step;
    open_known("dbrx");
    struct cost_model model;
    cost_model_of(&model, &config, DT_BF16, DT_BF16, DT_BF16);
    for (int i = 0; i < 2; i++) {
        assert_true(cost_preset(&machine, i ? "paper-b-4t4" : "paper-b-2t4"));
        struct search_in in = {.cost = &machine,
                               .model = &model,
                               .prompt_tokens = 77,
                               .answer_tokens = 128,
                               .max_matrix_rows = BATCH_INVARIANT_ROWS};
        struct search_out out;
        search_run(&in, &out);
        assert_true(out.is_found && out.policy.placement == SEARCH_PAGED && out.policy.n_devices == machine.n_devices);
        struct virtual_throughput q = {out.policy.n_rows, out.policy.micro_rows, 77, 128, out.policy.n_devices, -1};
        paged(&q, &read, &step);
        found[i] = q.n_prompts * 128 / (read + 128 * step);
        near(step, out.cost.decode_s, 0.1);
        near(found[i], out.cost.tokens_per_s, 0.15);
        print_message("%d T4: %d in %d, %.4g tok/s, %.4g expected\n", machine.n_devices, q.n_prompts, q.micro_rows,
                      found[i], out.cost.tokens_per_s);
    }
    struct virtual_throughput q = {4096, 512, 77, 128, 4, -1};
    struct search_in in = {.cost = &machine,
                           .model = &model,
                           .prompt_tokens = 77,
                           .answer_tokens = 128,
                           .max_matrix_rows = BATCH_INVARIANT_ROWS};
    struct search_cost c;
    search_cost(&in,
                &(struct search_policy){
                    .n_rows = q.n_prompts, .micro_rows = q.micro_rows, .placement = SEARCH_PAGED, .n_devices = 4},
                &c);
    paged(&q, &read, &step);
    near(step, c.decode_s, 0.1);
    assert_true(found[1] > 1.03 * q.n_prompts * 128 / (read + 128 * step) && found[1] > 1.8 * found[0]);
    /* Ten layers, eight times each: an expert's six parts are in one operation, so its weights are read once; rows are
     * copied six times. */
    const double bytes = 16.0 * (double)weights_expert_bytes(&shape.w) + 512.0 * 4 * 24 * config.hidden;
    near(used.gpu.op_s[OP_GROUP], 10 * 8 * bytes / 300e9, 0.02);
}

/* Paper B, tables 4 and 5: prompts padded to the longest, its policy and its measurements. With our policy, and with
 * its own, virtual time gives at least that; our policy is no worse than its own. The search and virtual time agree. */
static void many_prompts_beside_paper_b(void **st) {
    static const struct {
        const char *machine;
        int n, micro, prompt, answer;
        double published;
    } rows[] = {{"paper-b-t4", 504, 36, 418, 128, 30.12},
                {"paper-b-t4", 936, 36, 256, 50, 26.349},
                {"paper-b-t4", 76, 4, 1984, 64, 4.52},
                {"paper-b-l4", 288, 8, 1984, 64, 12.393},
                {"paper-b-l4", 1500, 100, 256, 50, 105.29}};
    open_known("mixtral-8x7b");
    struct cost_model model;
    cost_model_of(&model, &config, DT_BF16, DT_BF16, DT_BF16);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(cost_preset(&machine, rows[i].machine));
        struct search_in in = {.cost = &machine,
                               .model = &model,
                               .prompt_tokens = rows[i].prompt,
                               .answer_tokens = rows[i].answer,
                               .max_matrix_rows = BATCH_INVARIANT_ROWS};
        struct search_out out;
        double read, step;
        search_run(&in, &out); /* all placements */
        assert_true(out.is_found && out.policy.placement == SEARCH_PAGED);
        struct virtual_throughput q = {out.policy.n_rows, out.policy.micro_rows, rows[i].prompt,
                                       rows[i].answer,    out.policy.n_devices,  -1};
        paged(&q, &read, &step);
        double found = q.n_prompts * (double)q.answer_tokens / (read + q.answer_tokens * step);
        near(step, out.cost.decode_s, 0.1);
        near(found, out.cost.tokens_per_s, 0.15);
        q.n_prompts = rows[i].n, q.micro_rows = rows[i].micro;
        paged(&q, &read, &step);
        double theirs = q.n_prompts * (double)q.answer_tokens / (read + q.answer_tokens * step);
        print_message("%s, %d + %d: published %.2f (%d in %d), by its policy %.1f, by %d in %d %.1f tok/s\n",
                      rows[i].machine, q.prompt_tokens, q.answer_tokens, rows[i].published, q.n_prompts, q.micro_rows,
                      theirs, out.policy.n_rows, out.policy.micro_rows, found);
        assert_true(theirs >= rows[i].published && found >= theirs);
    }
}

static double num(const struct json *j, const char *path) { return json_num(json_path(j, path), NAN); }

static void plan_says_what_ran(void **st) {
    struct buf b = {0};
    struct arena a = {0};
    struct json root;
    struct error e = {0};
    double t;
    struct virtual *v;
    open_known("glm-4.5-air");
    assert_true(cost_preset(&machine, "paper-a-1"));
    if (plan_write(&machine, &shape.w, "GLM", &(struct plan_options){.kv = DT_BF16}, &b, &e)) fail_msg("%s", e.text);
    assert_int_equal(json_parse(&a, b.data, b.len, JSON_UNIQUE, "plan", &root, &e), 0);
    const struct json *rows = json_get(&root, "prefill"), *row = json_at(rows, 2), *decode = json_get(&root, "decode");
    assert_int_equal(rows->n, 9);
    assert_true(num(row, "tokens") == 2048 && !json_path(row, "modes.dslp")); /* one card */
    assert_true(fabs(num(row, "modes.slp") / prefill_beside(BUDGET_AUTO, PREFILL_SLP, 0, 2048) - 1) < 0.015);
    assert_true(fabs(num(row, "modes.cpu") / prefill(PREFILL_CPU, 0, 2048) - 1) < 0.01);
    assert_int_equal(decode->n, 5);
    assert_int_equal(virtual_open(&v, &(struct virtual_options){.cost = &machine, .w = &shape.w, .kv = DT_BF16}, &e),
                     0);
    assert_int_equal(virtual_decode(v, DECODE_HYBRID, 1, 1024, &t, NULL, &e), 0);
    virtual_close(&v);
    assert_true(json_is(json_path(json_at(decode, 0), "mode"), "hybrid") &&
                fabs(num(json_at(decode, 0), "tpot_ms") / (t * 1e3) - 1) < 0.001);
    double last = 0;
    for (uint32_t i = 0; i < decode->n; i++) { /* more sessions never reduce the total, nor slow a prompt beside them */
        double now = num(json_at(decode, i), "tokens_per_s");
        assert_true(now > last * 0.999 &&
                    num(json_at(decode, i), "tpot_beside_prefill_ms") >= num(json_at(decode, i), "tpot_ms") * 0.999);
        assert_true(num(json_at(decode, i), "busy") > 0.3 && num(json_at(decode, i), "busy") <= 1);
        last = now;
    }
    /* The search's policy in virtual time: what is printed of it, and within 15 % of the prediction. */
    const struct json *policy = json_path(&root, "batch.policy");
    assert_true(json_is(json_get(policy, "decode"), "paged"));
    struct virtual_throughput q = {
        (int)num(policy, "prompts"), (int)num(policy, "micro_batch"), 512, 256, (int)num(policy, "cards"), -1};
    double read, step, batch = num(&root, "batch.tokens_per_s");
    paged(&q, &read, &step);
    near(batch, q.n_prompts * 256 / (read + 256 * step), 0.001);
    near(num(&root, "batch.expected_tokens_per_s"), batch, 0.15);
    assert_true(num(policy, "in_a_step") == q.n_prompts && num(policy, "tried") < 20000);
    const struct json *more = json_get(&root, "more");
    assert_int_equal(more->n, 3);
    for (uint32_t i = 0; i < more->n; i++) /* nor does more of a resource take longer */
        for (uint32_t k = 0; k < 2; k++) {
            const struct json *p = json_at(json_get(json_at(more, i), "prefill"), k),
                              *d = json_at(json_get(json_at(more, i), "decode"), k);
            /* rows cross from card to card */
            assert_true(num(p, "seconds") <= num(p, "now") * 1.02 && num(d, "tpot_ms") <= num(d, "now") * 1.005);
            assert_true(num(json_at(more, i), "batch.now") == batch &&
                        num(json_at(more, i), "batch.tokens_per_s") >= 0.97 * batch);
        }
    arena_free(&a);
    buf_free(&b);
}

/* No plan of a desktop is faster than its host memory, link and card memory together at their nominal rates, or puts
 * more on a card than fits; and the card is used: what does not fit is less than a layer. Weights of 16, 8 and 4 bits,
 * each model on one of the machines. sim_plans has larger ones. */
static void plans_stay_within_the_machine(void **st) {
    static const char *const models[] = {"qwen3-30b", "gpt-oss-120b", "glm-4.5-air", "mixtral-8x7b"};
    static const struct {
        const char *card;
        int cards;
        double bw, link;
    } machines[] = {{"RTX 5090", 1, 1792e9, 64e9}, {"RTX 4090", 1, 1008e9, 32e9}, {"RTX 5090", 2, 1792e9, 64e9}};
    const double dram = 96e9;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char why[200];
        struct buf b = {0};
        struct arena a = {0};
        struct json root;
        struct error e = {0};
        const double bw = machines[i % 3].bw;
        struct machine_datasheet d = {.channels = 2,
                                      .ddr = 6000,
                                      .cores = 16,
                                      .memory = 512e9,
                                      .isa = "avx512bf16",
                                      .cards = machines[i % 3].cards};
        memset(&machine, 0, sizeof machine);
        snprintf(d.card, sizeof d.card, "%s", machines[i % 3].card);
        if (!datasheet_machine(&machine, &d, why, sizeof why)) fail_msg("%s", why);
        open_known(models[i]);
        if (plan_write(&machine, &shape.w, models[i], &(struct plan_options){.kv = DT_BF16}, &b, &e))
            fail_msg("%s", e.text);
        assert_int_equal(json_parse(&a, b.data, b.len, JSON_UNIQUE, "plan", &root, &e), 0);
        const struct config *c = &shape.w.config;
        double moe = 0, experts = num(&root, "fits.expert_layers"), expert = (double)weights_expert_bytes(&shape.w),
               layer = expert * c->n_experts, dense = (double)shape.w.bytes_dense,
               all = machine.domain[1].memory * d.cards;
        for (int l = 0; l < c->n_layers; l++) moe += c->layer[l].moe;
        const double resident = experts * layer + dense,
                     least_free = d.cards * (layer + machine.domain[1].memory / 64) + machine.domain[1].memory / 4;
        if (resident > all || (experts < moe && resident < all - least_free - dense / 4))
            fail_msg("%s on %d %s: %g of %g GB, %g of %g layers", models[i], (int)d.cards, d.card, resident * 1e-9,
                     all * 1e-9, experts, moe);
        const struct json *rows = json_get(&root, "decode");
        /* rows of a batch may share experts, but each layer reads those of one row */
        for (uint32_t k = 0; k < rows->n; k++) {
            const double sessions = num(json_at(rows, k), "sessions"), rate = num(json_at(rows, k), "tokens_per_s"),
                         host = (moe - experts) * c->topk * expert / dram,
                         card = (dense + experts * c->topk * expert) / bw;
            const double least = sessions > 1 ? fmax(host, card) : host + card;
            if (rate > sessions / least)
                fail_msg("%s on %s: %g tokens/s for %g sessions, at most %g", models[i], d.card, rate, sessions,
                         sessions / least);
        }
        rows = json_get(&root, "prefill");
        for (uint32_t k = 3; k < rows->n; k++) { /* from 4,096 tokens a stream carries all experts that no card keeps */
            const double rate = fmin(dram, machines[i % 3].link), slp = num(json_at(rows, k), "modes.slp"),
                         dslp = num(json_at(rows, k), "modes.dslp");
            /* a part of the resident ones may have been evicted, too */
            const double streamed = (moe - experts) * layer;
            if (slp < streamed / rate || dslp * d.cards < streamed / rate)
                fail_msg("%s on %s: streamed in %g s", models[i], d.card, slp);
        }
        print_message("%s on %d %s: %g of %g layers, %.1f tokens/s\n", models[i], (int)d.cards, d.card, experts, moe,
                      num(json_at(json_get(&root, "decode"), 0), "tokens_per_s"));
        arena_free(&a);
        buf_free(&b);
    }
}

/* Host memory as an expert cache in front of a disk: a token takes the time of its disk reads; more memory means
 * fewer. */
static void experts_come_from_a_disk(void **st) {
    struct error e = {0};
    struct arena a = {0};
    double last = INFINITY;
    open_known("qwen3-30b");
    for (double memory = 12e9; memory < 60e9; memory *= 3) {
        struct buf b = {0};
        struct json root;
        assert_true(cost_preset(&machine, "paper-b-t4"));
        machine.domain[0].memory = memory, machine.disk_bw = 3e9;
        if (plan_write(&machine, &shape.w, "Qwen", &(struct plan_options){.kv = DT_BF16}, &b, &e))
            fail_msg("%s", e.text);
        assert_int_equal(json_parse(&a, b.data, b.len, JSON_UNIQUE, "plan", &root, &e), 0);
        double tpot = num(json_at(json_get(&root, "decode"), 0), "tpot_ms"),
               found = num(&root, "fits.disk.chosen_in_memory");
        assert_true(tpot < last);
        last = tpot;
        if (memory < 30e9) {
            double read = (1 - found) * (48 - num(&root, "fits.expert_layers")) * 8 *
                          (double)weights_expert_bytes(&shape.w) / 3e9 * 1e3;
            assert_true(found > num(&root, "fits.disk.experts_in_memory") &&
                        json_is(json_path(json_at(json_get(&root, "decode"), 0), "limit"), "disk"));
            assert_true(tpot > read && tpot < 1.25 * read);
            const double streamed = 1 - num(&root, "fits.expert_layers") / 48,
                         slp = num(json_at(json_get(&root, "prefill"), 3), "modes.slp");
            assert_true(slp > 0.9 * (1 - num(&root, "fits.disk.experts_in_memory")) * streamed * 29e9 / 3e9);
            assert_non_null(strstr(b.data, "twice the memory"));
        } else assert_true(isnan(found));
        buf_free(&b);
    }
    arena_free(&a);
}

static void what_does_not_fit_is_said(void **st) {
    struct buf b = {0};
    struct error e = {0};
    open_known("qwen3-30b");
    assert_true(cost_preset(&machine, "paper-b-t4"));
    machine.domain[0].memory = 16e9;
    assert_int_equal(plan_write(&machine, &shape.w, "Qwen", &(struct plan_options){.kv = DT_BF16}, &b, &e), 0);
    assert_non_null(strstr(b.data, "\"fits\":false"));
    assert_non_null(strstr(b.data, "\"prefill\":[]"));
    buf_free(&b);
    struct engine_params p = {0};
    assert_int_equal(engine_plan(&p, "paper-b-t4", "no-such-model", &b, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "known: deepseek-v3, kimi-k2"));
    assert_int_equal(engine_plan(&p, "no-such-machine", NULL, &b, &e), ERR_USAGE);
    buf_free(&b);
}

/* A bound changes how many sessions decode at once, and nothing else; virtual time confirms it. */
static void a_bound_limits_sessions(void **st) {
    static const double bounds[] = {0, 20, 1e5};
    struct error e = {0};
    struct buf b[sizeof bounds / sizeof *bounds] = {0};
    int last = 0;
    open_known("glm-4.5-air");
    assert_true(cost_preset(&machine, "paper-a-1"));
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        struct arena a = {0};
        struct json root;
        double tpot;
        if (plan_write(&machine, &shape.w, "GLM", &(struct plan_options){.kv = DT_BF16, .max_tpot_s = bounds[i] * 1e-3},
                       &b[i], &e))
            fail_msg("%s", e.text);
        assert_int_equal(json_parse(&a, b[i].data, b[i].len, JSON_UNIQUE, "plan", &root, &e), 0);
        const struct json *bound = json_get(&root, "max_tpot"), *decode = json_get(&root, "decode");
        const int n = (int)num(bound, "sessions");
        if (!i) assert_null(bound);
        else {
            assert_true(n >= last && n <= 16);
            assert_int_equal(json_bool(json_get(bound, "met"), false), num(bound, "tpot_ms") <= bounds[i]);
            assert_true(json_bool(json_get(bound, "met"), false) || n == 1);
            assert_true(fabs(num(bound, "tokens_per_s") * num(bound, "tpot_ms") / (1e3 * n) - 1) < 0.001);
            for (uint32_t k = 0; k < decode->n; k++) { /* of the sessions in the table, those within the bound */
                const double sessions = num(json_at(decode, k), "sessions");
                tpot = num(json_at(decode, k), "tpot_ms");
                assert_true(sessions > n ? tpot > bounds[i] : tpot <= bounds[i] || n == 1);
            }
            last = n;
        }
        /* a paged batch takes seconds */
        assert_int_equal(json_is(json_path(&root, "batch.policy.decode"), "paged"), i != 1);
        arena_free(&a);
    }
    assert_int_equal(last, 16);
    struct arena a = {0}; /* a bound that never binds changes no choice; the order of threads changes times a little */
    struct json free, loose;
    assert_int_equal(json_parse(&a, b[0].data, b[0].len, JSON_UNIQUE, "plan", &free, &e), 0);
    assert_int_equal(json_parse(&a, b[2].data, b[2].len, JSON_UNIQUE, "plan", &loose, &e), 0);
    for (uint32_t k = 0; k < 5; k++) {
        const struct json *one = json_at(json_get(&free, "decode"), k), *other = json_at(json_get(&loose, "decode"), k);
        near(num(one, "tpot_ms"), num(other, "tpot_ms"), 0.01);
        near(num(one, "tpot_beside_prefill_ms"), num(other, "tpot_beside_prefill_ms"), 0.01);
        assert_true(json_is(json_get(one, "mode"), "hybrid") == json_is(json_get(other, "mode"), "hybrid"));
    }
    near(num(&free, "batch.tokens_per_s"), num(&loose, "batch.tokens_per_s"), 0.01);
    arena_free(&a);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) buf_free(&b[i]);
}

static int cancel(void *ctx, double share) { return 1; }
static void a_plan_can_be_stopped(void **st) {
    struct buf b = {0};
    struct error e = {0};
    open_known("qwen3-30b");
    assert_true(cost_preset(&machine, "paper-a-1"));
    assert_int_equal(
        plan_write(&machine, &shape.w, "Qwen", &(struct plan_options){.kv = DT_BF16, .progress = cancel}, &b, &e),
        ERR_CANCELLED);
    shape_only_close(&shape);
    buf_free(&b);
}

/* Threads in virtual time take turns. On one CPU that costs two thirds of what it costs on two. */
static void use_one_cpu(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

int main(void) {
    use_one_cpu();
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_layers_say_what_all_take),
                                       cmocka_unit_test(threads_do_not_matter),
                                       cmocka_unit_test(blends_over_four_links),
                                       cmocka_unit_test(plan_says_what_ran),
                                       cmocka_unit_test(cards_take_turns),
                                       cmocka_unit_test(many_prompts_beside_paper_b),
                                       cmocka_unit_test(plans_stay_within_the_machine),
                                       cmocka_unit_test(experts_come_from_a_disk),
                                       cmocka_unit_test(what_does_not_fit_is_said),
                                       cmocka_unit_test(a_bound_limits_sessions),
                                       cmocka_unit_test(a_plan_can_be_stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
