/* Steps of more sessions than a device has room for: those whose caches are not there go through the processor beside the
 * others, and what each is answered is what it is answered alone. On the built-in checkpoint. */
#include "test/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/ops.h"
#include "engine/ember/ember.h"
#include "engine/internal.h"
#include "engine/step/internal.h"

static void some_caches_have_no_room(void **st) {
    struct engine_params p = {.dir = "ember:", .threads = 2, .cpu_level = CPU_SCALAR + 1, .kv = DT_F32, .gpus = "emu:1,cpu=scalar,mem=48M", .context = 2048};
    struct engine *e;
    struct error err = {0};
    struct session *s[STEP_ROWS];
    struct step_span spans[STEP_ROWS];
    int32_t tokens[STEP_ROWS], top[STEP_ROWS];
    _Atomic int never = 0;
    if (engine_open(&e, &p, &err)) fail_msg("%s", err.text);
    struct step *step = e->machine.step;
    size_t vocab = (size_t)engine_info(e)->vocab;
    float *logits = malloc(STEP_ROWS * vocab * sizeof *logits);
    assert_int_equal(step_resident_layers(step), engine_info(e)->n_layers);
    for (int i = 0; i < STEP_ROWS; i++) { /* caches of nothing but zeros, and of other lengths */
        if (session_open(e, &s[i], &err)) fail_msg("%s", err.text);
        tokens[i] = 100 + 7 * i;
    }
    for (enum step_cut cut = STEP_HYBRID; cut <= STEP_DUAL; cut++) {
        int mixed = 0, n_dev = 0;
        for (int i = 0; i < STEP_ROWS; i++) spans[i] = (struct step_span){.kv = &s[i]->kv, .tokens = &tokens[i], .pos = 1500 + i * 37 % 500, .n = 1};
        if (step_run(step, cut, spans, STEP_ROWS, &never, &err)) fail_msg("%s", err.text);
        assert_int_equal(step_ran(step), cut);
        for (int k = 0; k < step->n_micros; k++) mixed += step->micro[k].n_dev && step->micro[k].n_dev < step->micro[k].n, n_dev += step->micro[k].n_dev;
        assert_int_equal(mixed, cut); /* every part has rows of both */
        for (int i = 0; i < STEP_ROWS; i++) {
            memcpy(logits + (size_t)i * vocab, spans[i].logits, vocab * sizeof *logits);
            top[i] = *spans[i].top;
        }
        int same[STEP_DUAL] = {0}; /* bit by bit: sums on a device have an order of their own */
        for (int i = 0; i < STEP_ROWS; i++) {
            bool any = false;
            for (enum step_cut alone = STEP_CPU; alone <= STEP_HYBRID && !any; alone++) {
                if (step_run(step, alone, &spans[i], 1, &never, &err)) fail_msg("%s", err.text);
                any = !memcmp(logits + (size_t)i * vocab, spans[i].logits, vocab * sizeof *logits) && top[i] == *spans[i].top;
                same[alone] += any;
            }
            if (!any) fail_msg("row %d is another one alone", i);
        }
        assert_int_equal(same[STEP_HYBRID], n_dev);
        for (int i = 0; i < STEP_ROWS; i++) tokens[i]++;
    }
    for (int i = 0; i < STEP_ROWS; i++) session_close(&s[i]);
    engine_close(&e);
    free(logits);
}

int main(void) {
    file_embed(ember_files);
    const struct CMUnitTest tests[] = {cmocka_unit_test(some_caches_have_no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
