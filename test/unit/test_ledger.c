/* The ledger of a device's memory: random schedules of allocations, evictions and locks, compared with a model of
 * them. */
#include "unit.h"

#include <stdlib.h>

#include "engine/transfer/ledger.h"

enum { SCHEDULES = 10000, STEPS = 60, ENTRIES = 12, MEMORY = 64 << 10, MOST = 6 << 10 };

/* One owner per class; a client evicts its last entry for KV, all of them for a prefill. */
struct owner {
    struct ledger *l;
    enum ledger_class class;
    struct ledger_entry entry[ENTRIES];
    int n_evictions;
};
struct model {
    struct gpu *g;
    struct ledger l;
    struct owner owner[LEDGER_CLASSES];
    struct ledger_entry retired[LEDGER_CLASSES * ENTRIES * STEPS];
    int n_retired;
    uint64_t seed;
};

static uint32_t draw(struct model *m, uint32_t below) {
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->seed >> 33) % below;
}
static bool is_lockable(enum ledger_class class) {
    return class == LEDGER_CACHED || class == LEDGER_EXPERTS || class == LEDGER_LAYERS;
}
static size_t count(const struct owner *o) {
    size_t n = 0;
    for (int i = 0; i < ENTRIES; i++) n += o->entry[i].at != NULL;
    return n;
}
static void free_entry(struct model *m, struct owner *o, struct ledger_entry *x) {
    if (x->at && m->l.is_locked && is_lockable(o->class)) m->retired[m->n_retired++] = *x;
    ledger_free(&m->l, x);
    assert_null(x->at);
}
static struct model *current;
static bool evict(void *owner, enum ledger_need need) {
    struct owner *o = owner;
    bool any = false;
    assert_false(o->l->is_locked && is_lockable(o->class));
    for (int i = ENTRIES - 1; i >= 0 && !(any && need == LEDGER_FOR_KV); i--)
        if (o->entry[i].at) free_entry(current, o, &o->entry[i]), any = true;
    o->n_evictions += any;
    return any;
}

static bool overlaps(const struct ledger_entry *a, const struct ledger_entry *b) {
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

/* The ledger equals the model, the device has no other memory, and no memory is held twice. */
static void check(struct model *m) {
    const struct ledger_entry *all[LEDGER_CLASSES * ENTRIES];
    size_t sum = 0, retired = 0, n_all = 0;
    for (int c = 0; c < LEDGER_CLASSES; c++) {
        size_t bytes = 0;
        for (int i = 0; i < ENTRIES; i++) {
            const struct ledger_entry *x = &m->owner[c].entry[i];
            if (!x->at) continue;
            assert_int_equal(x->class, c);
            bytes += x->bytes, all[n_all++] = x;
        }
        assert_int_equal(ledger_bytes(&m->l, 1u << c), bytes);
        assert_int_equal(m->l.n[c], count(&m->owner[c]));
        sum += bytes;
    }
    for (int i = 0; i < m->n_retired; i++) retired += m->retired[i].bytes;
    assert_int_equal(ledger_bytes(&m->l, (1u << LEDGER_CLASSES) - 1), sum);
    assert_int_equal(m->l.n_retired, m->n_retired);
    assert_true(m->l.is_locked || !m->n_retired);
    assert_int_equal(gpu_mem_free(m->g), MEMORY - sum - retired);
    for (size_t i = 0; i < n_all; i++) {
        for (size_t k = 0; k < i; k++) assert_false(overlaps(all[i], all[k]));
        for (int k = 0; k < m->n_retired; k++) assert_false(overlaps(all[i], &m->retired[k]));
    }
}

/* What an eviction must take: the first class in reclaim order that has entries and may give way. */
static int expected_victim(const struct model *m) {
    for (int c = LEDGER_DRAFT; c <= LEDGER_EXPERTS; c++)
        if (count(&m->owner[c]) && !(m->l.is_locked && is_lockable(c))) return c;
    return -1;
}
static void evict_one(struct model *m, enum ledger_need need) {
    const int victim = expected_victim(m);
    size_t before[LEDGER_CLASSES];
    for (int c = 0; c < LEDGER_CLASSES; c++) before[c] = count(&m->owner[c]);
    assert_int_equal(ledger_evict(&m->l, need), victim >= 0);
    for (int c = 0; c < LEDGER_CLASSES; c++)
        assert_int_equal(count(&m->owner[c]), c != victim ? before[c] : need == LEDGER_FOR_KV ? before[c] - 1 : 0);
}
static void reclaim(struct model *m, size_t want, enum ledger_need need) {
    const bool enough = gpu_mem_free(m->g) >= want;
    const int victim = expected_victim(m);
    assert_int_equal(ledger_reclaim(&m->l, want, need), !enough && victim >= 0);
    assert_true(gpu_mem_free(m->g) >= want || expected_victim(m) < 0);
}

static void step(struct model *m) {
    struct owner *o = &m->owner[draw(m, LEDGER_CLASSES)];
    struct ledger_entry *x = &o->entry[draw(m, ENTRIES)];
    const enum ledger_need need = draw(m, 2) ? LEDGER_FOR_KV : LEDGER_FOR_PREFILL;
    switch (draw(m, 16)) {
    default:
        if (x->at) free_entry(m, o, x);
        else {
            const size_t bytes = 1 + draw(m, MOST), room = gpu_mem_free(m->g);
            assert_int_equal(ledger_alloc(&m->l, o->class, bytes, x, NULL), bytes <= room ? 0 : ERR_MEMORY);
            assert_int_equal(x->at != NULL, bytes <= room);
        }
        break;
    case 0: evict_one(m, need); break;
    case 1: reclaim(m, draw(m, MEMORY), need); break;
    case 2:
        if (m->l.is_locked) ledger_unlock(&m->l), m->n_retired = 0;
        else ledger_lock(&m->l);
        break;
    }
}

static void random_schedules(void **state) {
    static struct model m;
    struct gpu_spec spec;
    struct error e = {0};
    char list[64];
    snprintf(list, sizeof list, "emu:1,virtual,mem=%d", MEMORY);
    if (gpu_spec_parse(&spec, list, &e) || gpu_open(&m.g, &spec, 0, &e)) fail_msg("%s", e.text);
    current = &m;
    for (int i = 0; i < SCHEDULES; i++) {
        ledger_open(&m.l, m.g);
        m.seed = (uint64_t)i, m.n_retired = 0;
        for (int c = 0; c < LEDGER_CLASSES; c++) {
            m.owner[c] = (struct owner){.l = &m.l, .class = (enum ledger_class)c};
            if (c <= LEDGER_EXPERTS)
                ledger_set_client(&m.l, (enum ledger_class)c, (struct ledger_client){evict, &m.owner[c]});
        }
        for (int k = 0; k < STEPS; k++) step(&m), check(&m);
        for (int c = 0; c < LEDGER_CLASSES; c++)
            for (int k = 0; k < ENTRIES; k++) free_entry(&m, &m.owner[c], &m.owner[c].entry[k]);
        check(&m);
        ledger_unlock(&m.l);
        m.n_retired = 0;
        check(&m);
        ledger_close(&m.l);
    }
    gpu_close(&m.g);
}

/* A prefill's thread claims and frees slots, and layers whose list may grow, while the engine thread loads, locks,
 * reclaims and unlocks. */
static void *stream_slots(void *ledger) {
    struct ledger_entry slot[4] = {0};
    for (int i = 0; i < 5000; i++) {
        struct ledger_entry *x = &slot[i * 7 % 4];
        if (x->at) ledger_free(ledger, x);
        else ledger_alloc(ledger, x < slot + 2 ? LEDGER_STREAMED : LEDGER_LAYERS, 2048, x, NULL);
    }
    for (int i = 0; i < 4; i++) ledger_free(ledger, &slot[i]);
    return NULL;
}
static void a_prefill_beside(void **state) {
    static struct model m;
    struct gpu_spec spec;
    struct error e = {0};
    pthread_t thread;
    if (gpu_spec_parse(&spec, "emu:1,virtual,mem=48K", &e) || gpu_open(&m.g, &spec, 0, &e)) fail_msg("%s", e.text);
    current = &m;
    ledger_open(&m.l, m.g);
    struct owner *o = &m.owner[LEDGER_EXPERTS];
    *o = (struct owner){.l = &m.l, .class = LEDGER_EXPERTS};
    ledger_set_client(&m.l, o->class, (struct ledger_client){evict, o});
    assert_int_equal(pthread_create(&thread, NULL, stream_slots, &m.l), 0);
    for (int i = 0; i < 1000; i++) {
        for (int k = 0; k < ENTRIES; k++)
            if (!o->entry[k].at) ledger_alloc(&m.l, o->class, 4096, &o->entry[k], NULL);
        ledger_lock(&m.l);
        free_entry(&m, o, &o->entry[i % ENTRIES]);
        assert_true(ledger_bytes(&m.l, 1 << LEDGER_STREAMED) <= 4 * 2048);
        ledger_unlock(&m.l);
        m.n_retired = 0;
        ledger_reclaim(&m.l, 24 << 10, LEDGER_FOR_KV);
    }
    pthread_join(thread, NULL);
    for (int k = 0; k < ENTRIES; k++) free_entry(&m, o, &o->entry[k]);
    assert_int_equal(ledger_bytes(&m.l, ~0u), 0);
    assert_int_equal(gpu_mem_free(m.g), 48 << 10);
    ledger_close(&m.l);
    gpu_close(&m.g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_schedules), cmocka_unit_test(a_prefill_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
