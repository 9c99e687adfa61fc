/* Upload queues: whatever the order of uploads, uses and evictions, a reader sees the contents that the slot had when
 * the use was enqueued, and a slot's state follows the table in upload.h. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include "engine/experts/resident_experts.h"
#include "engine/transfer/link_meter.h"
#include "engine/transfer/upload.h"
#include "test/unit/parse_config.h"

enum { SCHEDULES = 150, STEPS = 80, SLOTS = 5, WORDS = 2048 };

struct queue_test {
    struct gpu_set *set;
    struct gpu_stream *reader;
    struct upload_queue q;
    struct upload_slot slot[SLOTS];
    int item[SLOTS]; /* contents */
    char *mem[SLOTS];
    uint32_t *source;            /* [STEPS, WORDS] item k: all words are k */
    uint32_t *seen;              /* pinned: [STEPS, WORDS] what use k read */
    int expected[STEPS], n_uses; /* and should have */
    uint64_t seed;
};

static uint32_t draw(struct queue_test *t, uint32_t below) {
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->seed >> 33) % below;
}
static enum slot_state state_of(const struct queue_test *t, int k) { return upload_slot_state(&t->q, &t->slot[k]); }

static void send(struct queue_test *t, int k, int item, bool in_parts) {
    const void *field[2];
    struct copy_range whole = {
        .host = (const char *)(t->source + item * WORDS), .bytes = WORDS * 4, .field = &field[0]};
    struct copy_range half[2] = {whole, whole};
    half[0].bytes = half[1].bytes = WORDS * 2, half[1].host += WORDS * 2, half[1].field = &field[1];
    if (t->slot[k].is_filled) upload_evict(&t->slot[k]);
    assert_true(state_of(t, k) == SLOT_EMPTY || state_of(t, k) == SLOT_EVICTING);
    if (in_parts) {
        assert_int_equal(upload_send(&t->q, &t->slot[k], false, &half[0], 1, t->mem[k], 0, item), 0);
        assert_int_equal(upload_send(&t->q, &t->slot[k], true, &half[1], 1, t->mem[k] + WORDS * 2, 0, item), 0);
        assert_ptr_equal(field[1], t->mem[k] + WORDS * 2);
    } else assert_int_equal(upload_send(&t->q, &t->slot[k], false, &whole, 1, t->mem[k], 0, item), 0);
    assert_ptr_equal(field[0], t->mem[k]);
    t->item[k] = item;
}
static void use(struct queue_test *t, int first, int n) {
    for (int k = first; k < first + n; k++) {
        if (!t->slot[k].is_filled || t->n_uses == STEPS) continue;
        assert_int_equal(upload_wait(&t->q, &t->slot[k], t->reader), 0);
        assert_int_equal(gpu_copy(t->reader, t->seen + t->n_uses * WORDS, t->mem[k], WORDS * 4, GPU_D2H), 0);
        t->expected[t->n_uses++] = t->item[k];
    }
    assert_int_equal(upload_signal(&t->q, t->reader), 0);
    for (int k = first; k < first + n; k++)
        if (t->slot[k].is_filled) upload_release(&t->q, &t->slot[k]);
}
static void settle(struct queue_test *t) {
    assert_int_equal(upload_finish(&t->q), 0);
    assert_int_equal(gpu_stream_sync(t->reader), 0);
    assert_true(upload_is_idle(&t->q));
    for (int k = 0; k < SLOTS; k++) {
        assert_int_equal(state_of(t, k), t->slot[k].is_filled ? SLOT_RESIDENT : SLOT_EMPTY);
        assert_int_equal(upload_has_arrived(&t->q, &t->slot[k]), t->slot[k].is_filled);
    }
}

static void run_schedule(struct queue_test *t, int threads) {
    _Atomic int stop = 0;
    struct error e = {0};
    const struct stage_options to = {.set = t->set, .g = t->set->gpu[0], .stop = &stop, .threads = threads};
    if (upload_open(&t->q, "uploads", &to, &e)) fail_msg("%s", e.text);
    memset(t->slot, 0, sizeof t->slot);
    t->n_uses = 0;
    for (int i = 0; i < STEPS; i++) {
        const int k = (int)draw(t, SLOTS);
        switch (draw(t, 8)) {
        case 0:
        case 1:
        case 2: send(t, k, i, draw(t, 2)); break;
        case 3:
            if (t->slot[k].is_filled) upload_evict(&t->slot[k]);
            break;
        case 4:
            if (!draw(t, 4)) settle(t);
            break;
        default: use(t, k, 1 + (int)draw(t, (uint32_t)(SLOTS - k))); break;
        }
    }
    settle(t);
    atomic_store(&stop, 1);
    assert_int_equal(upload_finish(&t->q), 0); /* nothing was dropped */
    for (int i = 0; i < t->n_uses; i++)
        for (int w = 0; w < WORDS; w++)
            if (t->seen[i * WORDS + w] != (uint32_t)t->expected[i])
                fail_msg("use %d read item %u, not %d", i, t->seen[i * WORDS + w], t->expected[i]);
    upload_close(&t->q);
}

static void random_uploads(void **state) {
    static struct queue_test t;
    struct error e = {0};
    if (gpu_set_open(&t.set, "emu:1,mem=64M", &e) ||
        gpu_stream_open(t.set->gpu[0], &t.reader, "reader", true, NULL, &e))
        fail_msg("%s", e.text);
    struct gpu *g = t.set->gpu[0];
    if (gpu_host_alloc(g, (void **)&t.seen, STEPS * WORDS * 4, &e) ||
        gpu_host_alloc(g, (void **)&t.source, STEPS * WORDS * 4, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < STEPS * WORDS; i++) t.source[i] = (uint32_t)(i / WORDS);
    for (int k = 0; k < SLOTS; k++)
        if (gpu_alloc(g, (void **)&t.mem[k], WORDS * 4, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < SCHEDULES; i++) t.seed = (uint64_t)i, run_schedule(&t, i % 2 ? 2 : 0);
    for (int k = 0; k < SLOTS; k++) gpu_free(g, t.mem[k]);
    gpu_stream_close(&t.reader);
    gpu_host_free(g, t.seen), gpu_host_free(g, t.source);
    gpu_set_close(&t.set);
}

/* A link of 1 GB/s is seen as one, by its median and whether or not staging threads feed it; small uploads say
 * nothing. */
static void a_meter_times_uploads(void **state) {
    enum { BYTES = 2 << 20, UNITS = 24 };
    struct gpu_set *set;
    struct error e = {0};
    _Atomic int stop = 0;
    char *host = calloc(1, BYTES), *to = NULL;
    if (!host || gpu_set_open(&set, "emu:1,mem=64M,h2d=1", &e) || gpu_alloc(set->gpu[0], (void **)&to, BYTES, &e))
        fail_msg("%s", e.text);
    for (int threads = 0; threads < 3; threads += 2)
        for (int is_small = 0; is_small < 2; is_small++) {
            struct stage *stage;
            struct gpu_stream *stream;
            double bytes = 0, seconds = 0;
            if (gpu_stream_open(set->gpu[0], &stream, "link", false, &stop, &e)) fail_msg("%s", e.text);
            const struct stage_options o = {
                .set = set, .g = set->gpu[0], .stream = stream, .stop = &stop, .threads = threads, .is_metered = true};
            if (stage_open(&stage, &o, &e)) fail_msg("%s", e.text);
            const struct copy_run run = {.host = host, .bytes = is_small ? BYTES / 4 : BYTES};
            for (int i = 0; i < UNITS; i++) {
                assert_int_equal(stage_send(stage, &(struct stage_unit){.runs = &run, .n = 1, .to = to}), 0);
                if (!i) assert_false(stage_take_speed(stage, &bytes, &seconds)); /* one unit is no median */
                assert_int_equal(stage_flush(stage) || gpu_stream_sync(stream), 0);
            }
            if (is_small) assert_false(stage_take_speed(stage, &bytes, &seconds));
            else {
                assert_true(stage_take_speed(stage, &bytes, &seconds));
                printf("%d threads: %.0f bytes in %.3g ms\n", threads, bytes, seconds * 1e3);
                assert_true(fabs(bytes - BYTES) < 1);
                assert_true(seconds > 1e-3 && seconds < 20e-3); /* 2.1 ms; the last copy alone where others feed it */
                assert_false(stage_take_speed(stage, &bytes, &seconds));
            }
            stage_close(&stage);
            gpu_stream_close(&stream);
        }
    gpu_free(set->gpu[0], to);
    gpu_set_close(&set);
    free(host);
    struct link_meter m = {.n = 7, .seconds = {5, 90, 1, 3, 2}, .per_byte = {5e-6, 90e-6, 1e-6, 3e-6, 4e-6}};
    double bytes = 0, seconds = 0;
    pthread_mutex_init(&m.lock, NULL);
    assert_true(link_meter_take(&m, &bytes, &seconds)); /* neither the one that took 90 s nor the fastest */
    assert_true(fabs(seconds - 2) < 1e-9 && fabs(bytes - 0.5e6) < 1);
    assert_false(link_meter_take(&m, &bytes, &seconds));
    pthread_mutex_destroy(&m.lock);
}

/* Whatever the order of an expert's matrices in host memory, neighbours without a gap cross the link in one copy. */
static void neighbouring_matrices_are_one_copy(void **state) {
    enum { HIDDEN = 256, INTER = 128, EXPERTS = 3, WORDS_EACH = HIDDEN * INTER };
    static uint16_t host[EXPERTS][3][WORDS_EACH], got[WORDS_EACH];
    static struct config c;
    struct expert from[EXPERTS] = {0};
    struct resident_experts x = {0};
    struct gpu_set *set;
    struct gpu_stream *stream;
    struct stage *stage;
    struct error e = {0};
    _Atomic int stop = 0;
    if (parse(&c,
              "{\"model_type\":\"qwen3_moe\",\"vocab_size\":1000,\"hidden_size\":256,\"num_hidden_layers\":1,\"num_"
              "attention_heads\":4,"
              "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":512,\"moe_intermediate_size\":128,\"num_"
              "experts\":3,"
              "\"num_experts_per_tok\":2,\"max_position_embeddings\":4096,\"norm_topk_prob\":true}",
              true, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < EXPERTS; i++) {
        struct mat *const m[3] = {&from[i].down, &from[i].gate, &from[i].up}; /* as in a file with sorted names */
        for (int k = 0; k < 3; k++) {
            for (int w = 0; w < WORDS_EACH; w++) host[i][k][w] = (uint16_t)(w * 7 + k * 1000 + i);
            const int rows = k ? INTER : HIDDEN, cols = k ? HIDDEN : INTER;
            *m[k] = (struct mat){.data = host[i][k],
                                 .stride = (size_t)cols * 2,
                                 .rows = rows,
                                 .cols = cols,
                                 .row_step = 1,
                                 .dtype = DT_BF16};
        }
    }
    if (gpu_set_open(&set, "emu:1,mem=64M", &e) || gpu_stream_open(set->gpu[0], &stream, "link", false, &stop, &e))
        fail_msg("%s", e.text);
    if (stage_open(&stage, &(struct stage_options){.set = set, .g = set->gpu[0], .stream = stream, .stop = &stop}, &e))
        fail_msg("%s", e.text);
    const uint64_t before = gpu_stats(set->gpu[0]).n_copies;
    assert_int_equal(resident_experts_load(&x, LEDGER_EXPERTS, &c, 0, from, NULL, 0, &set->ledger[0], stage, &e), 0);
    assert_int_equal(stage_flush(stage) || gpu_stream_sync(stream), 0);
    assert_int_equal(gpu_stats(set->gpu[0]).n_copies - before, EXPERTS);
    for (int i = 0; i < EXPERTS; i++) {
        const void *const m[3] = {x.view[i].down.data, x.view[i].gate.data, x.view[i].up.data};
        for (int k = 0; k < 3; k++) {
            assert_int_equal(gpu_copy(stream, got, m[k], sizeof got, GPU_D2H) || gpu_stream_sync(stream), 0);
            assert_memory_equal(got, host[i][k], sizeof got);
        }
    }
    resident_experts_free(&x, &set->ledger[0]);
    stage_close(&stage);
    gpu_stream_close(&stream);
    gpu_set_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_uploads), cmocka_unit_test(a_meter_times_uploads),
                                       cmocka_unit_test(neighbouring_matrices_are_one_copy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
