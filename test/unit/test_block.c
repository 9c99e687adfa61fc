/* The parts of a block separately: what they add to the residual stream equals what they add together. */
#include "engine/layer/work_open.h"
#include "engine/weights/weights_open.h"
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "engine/layer/block.h"
#include "engine/weights/numa_copy.h"

enum { N = 5 };
/* shared experts and dense layers; a gate; routed experts only */
static const char *const families[] = {"deepseek_v3", "qwen2_moe", "mixtral"};

static void parts(struct exec *x, const struct weights *m, const struct layer *y, int layer, struct work *w) {
    const struct config *c = &m->config;
    size_t size = (size_t)N * (size_t)c->hidden;
    float *whole = calloc(size, sizeof *whole), *routed = calloc(size, sizeof *routed),
          *shared = calloc(size, sizeof *shared);
    double most = 0, off = 0, r = 0, s = 0;
    for (size_t i = 0; i < size; i++) w->x[i] = sinf((float)i * 0.37f + (float)layer);
    *w->first_bad = -1;
    assert_int_equal(block_route(x, c, y, layer, w, N), 0);
    assert_int_equal(block_experts(x, c, y, layer, w, PART_ROUTED_SHARED, whole, N), 0);
    assert_int_equal(block_experts(x, c, y, layer, w, PART_ROUTED, routed, N), 0);
    assert_int_equal(block_experts(x, c, y, layer, w, PART_SHARED, shared, N), 0);
    for (size_t i = 0; i < size; i++) {
        most = fmax(most, fabs(whole[i]));
        off = fmax(off, fabs(whole[i] - (routed[i] + shared[i])));
        r = fmax(r, fabs(routed[i])), s = fmax(s, fabs(shared[i]));
    }
    assert_true(most > 0 && off <= 1e-6 * most);
    assert_true((r > 0) == c->layer[layer].moe && (s > 0) == (!c->layer[layer].moe || c->shared_inter));
    free(whole), free(routed), free(shared);
}

static void test_parts(void **state) {
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (int nodes = 1; nodes <= 2; nodes++) { /* whole, and split as for two memory nodes */
            struct weights m;
            struct error e = {0};
            struct pool *pool;
            struct exec *x;
            struct work w;
            struct weight_state known;
            struct numa_copy *place = NULL;
            struct numa topology;
            char dir[1024];
            snprintf(dir, sizeof dir, SHARED_DIR "/fixtures/%s", families[f]);
            if (access(dir, R_OK)) skip();
            if (weights_open(&m, dir, false, &e) ||
                numa_parse(&topology, nodes > 1 ? "node 1000 0\nnode 1000 1\n" : "node 1000 0-1\n", &e) ||
                pool_open_nodes(&pool, 2, false, &topology, &e) || work_open(&w, &m.config, N, NULL, NULL, NULL, &e))
                fail_msg("%s", e.text);
            assert_non_null(x = cpu_exec_open(pool, CPU_SCALAR, &e));
            if (weight_state_open(&known, &m.config, &e) ||
                (nodes > 1 && numa_copy_open(&place, &m, &topology, true, false, &known, &e)))
                fail_msg("%s", e.text);
            for (int i = 0; i < m.config.n_layers; i++) parts(x, &m, numa_copy_layer(place, &m, i), i, &w);
            numa_copy_close(&place);
            weight_state_close(&known);
            work_close(&w);
            cpu_exec_close(&x);
            pool_close(&pool);
            weights_close(&m);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
