/* The list of tensors against the structs of the layers: everything that is loaded is uploaded with its module, and
 * nothing else. Whether a word is a pointer is asked of the system, not of the list. */
#include "engine/weights/weights_open.h"
#include "test/unit/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/exec/stream/slp_state.h"
#include "engine/experts/disk_prefetch.h"

static const char *const families[] = {"deepseek_v3",
                                       "deepseek_v3_nogroup",
                                       "deepseek_v2_lite",
                                       "qwen3_moe",
                                       "mixtral",
                                       "qwen2_moe",
                                       "glm4_moe",
                                       "minimax_m2",
                                       "gpt_oss",
                                       "phimoe",
                                       "dbrx",
                                       "qwen3_next",
                                       "qwen3_5_moe",
                                       "deepseek_v32",
                                       "glm_moe_dsa",
                                       "deepseek_v4",
                                       "olmoe",
                                       "granitemoe",
                                       "ernie4_5_moe",
                                       "glm4_moe_lite",
                                       "qwen3_vl_moe",
                                       "hunyuan_v1_moe",
                                       "hy_v3",
                                       "dots1",
                                       "bailing_moe_v2",
                                       "mistral4",
                                       "mimo_v2_flash",
                                       "step3p7",
                                       "longcat_flash",
                                       "laguna",
                                       "llama4",
                                       "lfm2_moe",
                                       "minimax",
                                       "granitemoehybrid",
                                       "kimi_linear",
                                       "bailing_hybrid",
                                       "glm5_next",
                                       "gemma4",
                                       "hy_v4",
                                       "inkling",
                                       "qwen4_exp",
                                       "nemotron_h",
                                       "jamba",
                                       "zaya",
                                       "minimax_m3_vl"};
static struct { uintptr_t begin, end; } maps[4096];
static int n_maps;
static char *device; /* addresses that nothing is mapped at */
enum { DEVICE = 1 << 30 };

static void read_maps(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    assert_non_null(f);
    for (n_maps = 0; n_maps < 4096 && fgets(line, sizeof line, f);) {
        unsigned long begin, end;
        char read;
        /* sanitizer shadow memory spans terabytes, and sizes in a struct can look like addresses in it */
        if (sscanf(line, "%lx-%lx %c", &begin, &end, &read) == 3 && read == 'r' && end - begin < 1ul << 40)
            maps[n_maps].begin = begin, maps[n_maps++].end = end;
    }
    fclose(f);
}
static bool on_device(uintptr_t word) { return word >= (uintptr_t)device && word < (uintptr_t)device + DEVICE; }
static bool on_host(uintptr_t word) {
    for (int i = 0; i < n_maps; i++)
        if (word >= maps[i].begin && word < maps[i].end) return !on_device(word);
    return false;
}
static uintptr_t word_at(const void *base, size_t i) {
    uintptr_t word;
    memcpy(&word, (const char *)base + i * sizeof word, sizeof word);
    return word;
}

/* A view as a device gets it. Counts the words of src that point to host memory and those of the view that point to the
 * device. */
static void look(const struct config *c, int layer, unsigned modules, const void *src, void *view, size_t size,
                 int *host, int *there) {
    struct copy_range ranges[COPY_RANGES_MAX];
    int n = copy_ranges_list(c, layer, modules, src, view, ranges), at = 64;
    const bool empty = modules == MODULE_ATTENTION ? c->layer[layer].mixer == MIXER_NONE
                                                   : modules == MODULE_FFN && c->layer[layer].no_ffn;
    assert_true(n >= 0 && n <= COPY_RANGES_MAX && !n == empty);
    for (int i = 0; i < n; i++) {
        assert_true(*ranges[i].field == (const void *)ranges[i].host && on_host((uintptr_t)ranges[i].host) &&
                    ranges[i].bytes);
        *ranges[i].field = device + at, at += 64;
    }
    *host = *there = 0;
    for (size_t i = 0; i < size / sizeof(uintptr_t); i++) {
        *host += on_host(word_at(src, i));
        *there += on_device(word_at(view, i));
        if (on_host(word_at(view, i)))
            fail_msg("%s, layer %d, modules %u: byte %zu of the view points to the host", c->model_type, layer, modules,
                     i * sizeof(uintptr_t));
    }
    assert_int_equal(*there, n);
}

static void test_views(void **state) {
    device = mmap(NULL, DEVICE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(device != MAP_FAILED);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct weights w;
        struct error e = {0};
        char dir[1024];
        snprintf(dir, sizeof dir, SHARED_DIR "/fixtures/%s", families[f]);
        if (access(dir, R_OK)) skip();
        if (weights_open(&w, dir, false, &e)) fail_msg("%s", e.text);
        read_maps();
        for (int i = 0; i < w.config.n_layers; i++) {
            const struct layer *y = &w.layers[i];
            struct layer whole = {0}, attention = {0}, ffn = {0};
            struct expert expert = {0};
            int host, there, a, b;
            if (config_is_bare(&w.config, i)) continue; /* has one tensor, of its attention module */
            look(&w.config, i, MODULE_LAYER, y, &whole, sizeof whole, &host, &there);
            /* every tensor except the array of routed experts, and a table of n-grams, which stays on the host */
            assert_int_equal(host, there + !!y->experts + !!y->ngram_table.data);
            assert_null(whole.ngram_table.data);
            look(&w.config, i, MODULE_ATTENTION, y, &attention, sizeof attention, &host, &a);
            look(&w.config, i, MODULE_FFN, y, &ffn, sizeof ffn, &host, &b);
            assert_int_equal(a + b, there);
            for (int k = 0; y->experts && k < w.config.n_experts; k++) {
                look(&w.config, i, MODULE_EXPERT, &y->experts[k], &expert, sizeof expert, &host, &there);
                assert_int_equal(host, there);
            }
        }
        weights_close(&w);
    }
}

/* One multiplication and one addition per weight and token: the sum over the shapes in the files. */
static void test_flops(void **state) {
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct weights w;
        struct error e = {0};
        char dir[1024];
        snprintf(dir, sizeof dir, SHARED_DIR "/fixtures/%s", families[f]);
        if (access(dir, R_OK)) skip();
        if (weights_open(&w, dir, false, &e)) fail_msg("%s", e.text);
        const struct config *c = &w.config;
        /* of all matrices in the files, by their shapes; routed experts by the fraction that a token uses */
        uint64_t sum = 0;
        for (size_t i = 0; i < w.files.n_tensors; i++) {
            const struct tensor *t = &w.files.tensors[i];
            bool in_layer =
                     strstr(t->name, ".layers.") || strstr(t->name, ".blocks.") || !strncmp(t->name, "layers.", 7),
                 beside = strstr(t->name, "scale") || strstr(t->name, "bias") || strstr(t->name, "conv1d") ||
                          strstr(t->name, "conv.conv") || strstr(t->name, "sconv") || strstr(t->name, "conv_qk") ||
                          strstr(t->name, "ngram_embedding") || strstr(t->name, "A_log") || strstr(t->name, ".ape") ||
                          strstr(t->name, "_ape") || strstr(t->name, "tid2eid");
            if (!t->is_claimed || t->ndim < 2 || !in_layer || beside) continue;
            uint64_t one = t->dtype == DT_U8 || t->dtype == DT_I8 ? 4 : 2; /* two codes per byte */
            for (int d = 0; d < t->ndim; d++) one *= (uint64_t)t->shape[d];
            sum += t->ndim == 3 || (strstr(t->name, "experts.") && !strstr(t->name, "shared"))
                       ? one * (uint64_t)c->topk
                       : one * (uint64_t)c->n_experts;
        }
        assert_int_equal(weights_token_flops(&w), sum / (uint64_t)c->n_experts);
        weights_close(&w);
    }
}

/* A checkpoint whose tables of n-grams are larger than memory, and whose other weights fit. */
static void test_tables(void **state) {
    enum { COLS = 256 };
    const size_t half = mem_available() / 2;
    struct weights w = {
        .config.input_ngrams = {.size = 3, .per = 1, .dim = COLS}, .files.bytes = half + 10, .bytes_skipped = 10};
    assert_false(disk_prefetch_is_needed(&w));
    w.files.bytes += 8 * half;
    assert_true(disk_prefetch_is_needed(&w));
    for (int k = 0; k < 2; k++)
        w.ngram_table[k] = (struct mat){
            .data = &w, .rows = (int)(4 * half / (2 * COLS)), .cols = COLS, .row_step = 1, .dtype = DT_BF16};
    assert_true(weights_needed_bytes(&w) >= half && weights_needed_bytes(&w) < half + 4 * COLS);
    assert_false(disk_prefetch_is_needed(&w));
    /* A table of a layer: the dense weights' bytes are without it. */
    struct layer y = {.ngram_table = w.ngram_table[0]};
    y.ngram_table.stride = 2 * COLS;
    struct weights l = {.config.n_layers = 1, .layers = &y, .files.bytes = 5 * half, .bytes_dense = half};
    assert_true(weights_needed_bytes(&l) >= half && weights_needed_bytes(&l) < half + 4 * COLS);
    assert_int_equal(weights_token_bytes(&l), half);
    assert_true(weights_is_ngram_table(&l, y.ngram_table.data, 4096));
    assert_false(weights_is_ngram_table(&l, (const uint8_t *)y.ngram_table.data + mat_span(&y.ngram_table), 4096));
}

static char copied[] = "hearth-params-XXXXXX";
static const char *const copied_files[] = {"config.json", "model.safetensors.index.json",
                                           "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

/* Copies a fixture to files that no other test maps, so that they can be dropped from the page cache. */
static bool copy_fixture(void) {
    for (size_t i = 0; i < 4; i++) {
        char from[1024], to[1024], *data;
        size_t n;
        snprintf(from, sizeof from, SHARED_DIR "/fixtures/qwen3_moe/%s", copied_files[i]);
        snprintf(to, sizeof to, "%s/%s", copied, copied_files[i]);
        if (file_read(from, 16 << 20, &data, &n, NULL)) return false;
        const int fd = open(to, O_WRONLY | O_CREAT | O_EXCL, 0644);
        assert_true(fd >= 0 && !file_write_all(fd, data, n) && !fsync(fd)); /* dirty pages cannot be dropped */
        close(fd);
        mem_free(data);
    }
    return true;
}
static void drop_weights(const struct weights *w) {
    for (int i = 0; i < w->files.n_shards; i++) file_map_drop(w->files.shards[i].map.data, w->files.shards[i].map.size);
}
static void read_weights(const struct weights *w) {
    for (int i = 0; i < w->files.n_shards; i++)
        assert_int_equal(file_map_touch(w->files.shards[i].map.data, w->files.shards[i].map.size), 0);
}
/* Of the copied weights, which user may read: selected experts are requested as long as they are not in memory. */
static void look_for_missing(uid_t user) {
    const uid_t own = geteuid();
    struct weights w;
    struct weight_state state;
    struct disk_prefetch *f;
    struct error e = {0};
    if (user != own && (seteuid(user) || prctl(PR_SET_DUMPABLE, 1))) skip(); /* else /proc/self is root's */
    if (weights_open(&w, copied, false, &e)) fail_msg("%s", e.text);
    assert_int_equal(file_map_tells_cached(w.files.shards[0].map.data), user == own);
    assert_int_equal(weight_state_open(&state, &w.config, &e), 0);
    if (disk_prefetch_open(&f, &w, &state, score_policies, &e)) fail_msg("%s", e.text);
    const int32_t ids[] = {3, -1, 5};
    drop_weights(&w);
    const uint8_t *missing = disk_prefetch_selected(f, 0, ids, 3);
    if (missing) assert_true(missing[3] && missing[5] && !missing[4]);
    else print_message("SKIPPED: this file system keeps all pages\n");
    if (user != own) assert_non_null(missing); /* no page is mapped */
    read_weights(&w);
    assert_null(disk_prefetch_selected(f, 0, ids, 3));
    struct disk_prefetch_counts counts;
    disk_prefetch_counts(f, &counts);
    assert_int_equal(counts.selected, 4);
    assert_int_equal(counts.missing, missing ? 2 : 0);
    disk_prefetch_close(&f);
    weight_state_close(&state);
    weights_close(&w);
    if (user != own) assert_int_equal(seteuid(own), 0);
}
static void test_missing(void **state) {
    assert_non_null(mkdtemp(copied));
    assert_int_equal(chmod(copied, 0755), 0);
    const bool has_files = copy_fixture();
    if (has_files) look_for_missing(geteuid());
    if (has_files && !geteuid()) look_for_missing(65534);
    for (size_t i = 0; i < 4; i++) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", copied, copied_files[i]);
        unlink(name);
    }
    rmdir(copied);
    if (!has_files) skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_views), cmocka_unit_test(test_flops),
                                       cmocka_unit_test(test_tables), cmocka_unit_test(test_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
