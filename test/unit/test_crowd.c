/* A device with too little memory for its work. In batches of more sessions than fit, sessions without a device cache
 * run on the CPU with the others, and each answer equals the answer alone. A long prompt during decoding takes the
 * memory of decoding's weights and returns it. On the built-in checkpoint. */
#include "test/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/decode_state.h"
#include "engine/session/engine_state.h"

static void some_caches_have_no_room(void **st) {
    struct engine_params p = {.dir = "ember:",
                              .threads = 2,
                              .cpu_level = CPU_SCALAR + 1,
                              .kv = DT_F32,
                              .gpus = "emu:1,cpu=scalar,mem=20M",
                              .context = 512};
    struct engine *eng;
    struct error e = {0};
    struct session *s[DECODE_MAX_ROWS];
    struct decode_span spans[DECODE_MAX_ROWS];
    int32_t tokens[DECODE_MAX_ROWS], top[DECODE_MAX_ROWS];
    _Atomic int never = 0;
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    struct decode *step = eng->machine.decode;
    size_t vocab = (size_t)engine_info(eng)->vocab;
    float *logits = malloc(DECODE_MAX_ROWS * vocab * sizeof *logits);
    assert_int_equal(decode_resident_layers(step), engine_info(eng)->n_layers);
    for (int i = 0; i < DECODE_MAX_ROWS; i++) { /* caches of zeros with different lengths */
        if (session_open(eng, &s[i], &e)) fail_msg("%s", e.text);
        tokens[i] = 100 + 7 * i;
    }
    for (enum exec_mode cut = DECODE_HYBRID; cut <= DECODE_DUAL; cut++) {
        int mixed = 0, n_dev = 0;
        for (int i = 0; i < DECODE_MAX_ROWS; i++)
            spans[i] = (struct decode_span){.kv = &s[i]->kv, .tokens = &tokens[i], .pos = 300 + i * 37 % 200, .n = 1};
        if (decode_run(step, cut, spans, DECODE_MAX_ROWS, &never, &e)) fail_msg("%s", e.text);
        assert_int_equal(decode_last_exec(step), cut);
        for (int k = 0; k < step->n_micros; k++)
            mixed += step->micro_batch[k].n_dev && step->micro_batch[k].n_dev < step->micro_batch[k].n,
                n_dev += step->micro_batch[k].n_dev;
        assert_int_equal(mixed, cut == DECODE_DUAL ? 2 : 1); /* every micro-batch has rows of both */
        for (int i = 0; i < DECODE_MAX_ROWS; i++) {
            memcpy(logits + (size_t)i * vocab, spans[i].logits, vocab * sizeof *logits);
            top[i] = *spans[i].top;
        }
        int same[DECODE_DUAL] = {0}; /* bit for bit equal: sums on a device have an order of their own */
        for (int i = 0; i < DECODE_MAX_ROWS; i++) {
            bool any = false;
            for (enum exec_mode alone = DECODE_CPU; alone <= DECODE_HYBRID && !any; alone++) {
                if (decode_run(step, alone, &spans[i], 1, &never, &e)) fail_msg("%s", e.text);
                any = !memcmp(logits + (size_t)i * vocab, spans[i].logits, vocab * sizeof *logits) &&
                      top[i] == *spans[i].top;
                same[alone] += any;
            }
            if (!any) fail_msg("row %d is another one alone", i);
        }
        assert_int_equal(same[DECODE_HYBRID], n_dev);
        for (int i = 0; i < DECODE_MAX_ROWS; i++) tokens[i]++;
    }
    for (int i = 0; i < DECODE_MAX_ROWS; i++) session_close(&s[i]);
    engine_close(&eng);
    free(logits);
}

/* --- A prompt whose ring does not fit together with decoding's weights ------------------------ */

enum { LONG = 500, ANSWER = 400 };

static struct engine *open_with(size_t mem, enum exec_mode prefill, enum exec_mode decode) {
    char gpus[80];
    snprintf(gpus, sizeof gpus, "emu:1,cpu=scalar,h2d=0.1,mem=%zu", mem);
    struct engine *eng;
    struct error e = {0};
    struct engine_params p = {.dir = "ember:",
                              .threads = 1,
                              .cpu_level = CPU_SCALAR + 1,
                              .kv = DT_F32,
                              .gpus = gpus,
                              .context = 2048,
                              .prefill = prefill,
                              .decode = decode,
                              .deterministic = true};
    if (engine_open(&eng, &p, &e)) fail_msg("%s", e.text);
    return eng;
}
static void submit(struct session *s, int n, int max) {
    struct error err = {0};
    static int32_t prompt[LONG];
    for (int i = 0; i < LONG; i++) prompt[i] = (i * 37 + i / 7 + 11) % 500;
    struct request r = {.tokens = prompt,
                        .n = n,
                        .max_tokens = max,
                        .flags = REQ_IGNORE_EOS,
                        .sampling = {.temperature = 1, .top_p = 0.9f, .seed = 3}};
    if (session_submit(s, &r, &err)) fail_msg("%s", err.text);
}
static struct event next(struct engine *eng) {
    struct event ev;
    if (!engine_poll(eng, &ev, 120000)) fail_msg("no event for two minutes");
    if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
    return ev;
}
struct answer {
    int32_t token[ANSWER];
    int n;
    bool over;
    struct turn_stats stats;
};
/* Reads events of two sessions until the turn of one ends or has `most` tokens. */
static void read_until(struct engine *eng, struct session *const *s, struct answer *a, int which, int most) {
    while (!a[which].over && a[which].n != most) {
        struct event ev = next(eng);
        int i = ev.session == s[0] ? 0 : 1;
        if (ev.kind == EVENT_TOKEN) a[i].token[a[i].n++] = ev.token;
        if (ev.kind == EVENT_DONE) a[i].over = true, a[i].stats = ev.stats;
    }
}

static void a_prompt_takes_the_room(void **st) {
    static struct answer alone[2], got[2];
    static const int length[2] = {12, LONG}, most[2] = {ANSWER, 8};
    struct session *s[2];
    struct error e = {0};
    size_t large = (size_t)1 << 30, mem;
    struct engine *eng = open_with(large, PREFILL_SLP, DECODE_HYBRID); /* room for both */
    size_t own = large - gpu_mem_free(eng->machine.gpus->gpu[0]), least, held = 0;
    for (int i = 0; i < 2; i++)
        if (session_open(eng, &s[i], &e)) fail_msg("%s", e.text);
    least = slp_min_bytes(&(struct slp_job){
        .w = &eng->weights, .set = eng->machine.gpus, .ranks = 1, .cache = s[1]->kv.layer, .n = LONG});
    for (int i = 0; i < 2; i++) {
        submit(s[i], length[i], most[i]);
        read_until(eng, s, alone, i, -1);
        assert_string_equal(alone[i].stats.decode_mode, "hybrid");
        if (!i) held = decode_held_bytes(eng->machine.decode, 0);
    }
    for (int i = 0; i < 2; i++) session_close(&s[i]);
    engine_close(&eng);

    int layers;
    for (mem = own + least + (256 << 10);; mem += 64 << 10) { /* room for either one, with all layers */
        eng = open_with(mem, PREFILL_SLP, DECODE_HYBRID);
        layers = decode_resident_layers(eng->machine.decode);
        if (layers == engine_info(eng)->n_layers) break;
        engine_close(&eng);
    }
    print_message("%zu KB: own %zu, held while answering %zu, the prompt takes at least %zu\n", mem >> 10, own >> 10,
                  held >> 10, least >> 10);
    assert_true(own + held + least > mem);
    for (int i = 0; i < 2; i++)
        if (session_open(eng, &s[i], &e)) fail_msg("%s", e.text);
    submit(s[0], length[0], most[0]);
    read_until(eng, s, got, 0, 20);
    assert_true(decode_held_bytes(eng->machine.decode, 0) > 0);
    submit(s[1], length[1], most[1]);
    read_until(eng, s, got, 1, 1);
    int beside = got[0].n - 20;
    read_until(eng, s, got, 1, -1);
    read_until(eng, s, got, 0, -1);
    assert_string_equal(got[1].stats.prefill_mode, "slp");
    assert_non_null(strstr(got[1].stats.prefill_why, "resident weights were evicted"));
    print_message("%d tokens of the other answer beside it; %s\n", beside, got[1].stats.prefill_why);
    assert_true(beside > 0);
    assert_string_equal(got[1].stats.decode_mode, "hybrid"); /* the weights are back */
    assert_true(decode_held_bytes(eng->machine.decode, 0) > 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(got[i].n, alone[i].n);
        assert_memory_equal(got[i].token, alone[i].token, (size_t)got[i].n * sizeof *got[i].token);
        session_close(&s[i]);
    }
    engine_close(&eng);
}

int main(void) {
    file_embed(ember_files);
    const struct CMUnitTest tests[] = {cmocka_unit_test(some_caches_have_no_room),
                                       cmocka_unit_test(a_prompt_takes_the_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
