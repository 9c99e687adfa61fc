/* Machine models from text and from measurement: every error names its line and key, the cache is used only when it
 * matches, and a device measures the speeds that it was configured with. */
#include "test/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/numa.h"
#include "cpu/pool.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/datasheet.h"
#include "gpu/gpu.h"

static struct cost_machine m, other;
static char said[4096];
static void on_log(void *ctx, enum log_level level, const char *text) { snprintf(said, sizeof said, "%s", text); }

static const char least[] = "devices = 1\n"
                            "cpu.bw = 40G # all kinds\n"
                            "cpu.rate.ffn.8bit = 1:0.1T 64:0.5T\n"
                            "gpu.bw = 1T\ngpu.h2d = 25G\ngpu0.d2h = 20G\n";

static void keys_of_a_machine_file_set_their_fields(void **st) {
    struct error e = {0};
    char print[CALIBRATE_FINGERPRINT_LEN];
    assert_int_equal(calibrate_parse(&m, least, sizeof least - 1, "x", print, &e), 0);
    assert_int_equal(m.n_domains, 2);
    assert_int_equal(m.domain[1].class, COST_GPU);
    assert_true(!*print);
    for (int k = 0; k < COST_KINDS; k++)
        assert_true(m.domain[0].bw[k].n == 1 && m.domain[0].bw[k].value[0] == 40e9f &&
                    m.domain[1].bw[k].value[0] == 1e12f);
    const struct cost_curve *c = &m.domain[0].rate[COST_FFN][COST_8BIT];
    assert_true(c->n == 2 && c->rows[1] == 64 && c->value[0] == 0.1e12f && c->value[1] == 0.5e12f);
    assert_true(m.domain[1].link[COST_H2D].rate == 25e9 && m.domain[1].link[COST_D2H].rate == 20e9);
    static const char more[] =
        "\r\n  fingerprint=abc \nname = a machine \ndevices=2\nnear = 3\ngpu.bw=1e12\ngpu.h2d=1G\ngpu.d2h = "
        "1G\ngpu1.h2d = "
        "2G\nnear.bw=150G\nnear2.rate.ffn = 256G\ncpu.bw=1G\n"
        "gpu.latency = 4u\ngpu1.prompt_latency = 64:30u 256:80u\ngpu.h2d.latency=1m\ncpu.latency.ffn = 20u\ndram = "
        "1.2T\njoin = 5u\ncpu_chunk = 512";
    assert_int_equal(calibrate_parse(&m, more, sizeof more - 1, "x", print, &e), 0);
    assert_string_equal(print, "abc");
    assert_string_equal(m.name, "a machine");
    assert_int_equal(m.n_domains, 6);
    assert_true(m.domain[1].link[COST_H2D].rate == 1e9 && m.domain[2].link[COST_H2D].rate == 2e9 &&
                fabs(m.domain[2].link[COST_H2D].latency - 1e-3) < 1e-12);
    assert_true(m.domain[5].rate[COST_FFN][COST_4BIT].value[0] == 256e9f && !m.domain[4].rate[COST_FFN][COST_4BIT].n);
    assert_true(m.domain[5].class == COST_NDP && m.cpu_chunk_rows == 512 && m.dram_bw == 1.2e12 &&
                fabs(m.domain[2].latency[COST_ELEM] - 4e-6) < 1e-15);
    assert_true(m.domain[2].prompt_latency.n == 2 && m.domain[2].prompt_latency.value[1] == 80e-6f &&
                !m.domain[1].prompt_latency.n);
}

#define BOX "channels = 8\nddr = 4800\ncores = 16\nisa = avx2\n"
static void errors_name_line_and_key(void **st) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"nonsense\n", "FILE: line 1: 'nonsense' is not key = value"},
        {"\n\nspeed = 3\n", "FILE: line 3: speed = 3: is not a machine key"},
        {"cpu.bw = fast\n", "FILE: line 1: cpu.bw = fast: is not a number or a curve"},
        {"cpu.bw = 5 6\n", "is not a number or a curve"},
        {"cpu.bw = 1:5 6\n", "is not a number or a curve"},
        {"cpu.bw = 1:\n", "has a row count without a value"},
        {"cpu.bw = 4:1G 2:2G\n", "must have rising rows"},
        {"cpu.bw = 0\n", "values above 0"},
        {"cpu.bw = -1\n", "is not a number"},
        {"cpu.bw = inf\n", "is not a number"},
        {"cpu.bw = nan\n", "is not a number"},
        {"cpu.bw = 0x10\n", "is not a number"},
        {"cpu.bw = 1e99\n", "is not a number"},
        {"cpu.bw = 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:1 11:1 12:1 13:1\n", "has too many points"},
        {"cpu.latency = 1x\n", "cpu.latency = 1x: is not a number"},
        {"cpu.bw.gpu = 1G\n", "is not a machine key"},
        {"gpu0.bw = 1G\n", "gpu0.bw = 1G: is not a machine key"}, /* there is no gpu0 */
        {"devices = 1\ngpu1.bw = 1G\n", "FILE: line 2: gpu1.bw = 1G: is not a machine key"},
        {"devices = 99\n", "FILE: line 1: devices = 99: is not a number of domains that fits"},
        {"devices = -1\n", "domains that fits"},
        {"devices = 1.5\n", "domains that fits"},
        {"devices = 1\ndevices = 2\n", "line 2: devices = 2: is given twice"},
        {"devices = 10\nnear = 10\n", "domains that fits"},
        {"cpu_chunk = 0\n", "must be a whole number"},
        {"cpu_chunk = 1.5\n", "must be a whole number"},
        {"name = "
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\n",
         "is too long"},
        {"", "FILE: cpu.bw.ffn is missing"},
        {"name = \x1b[31m\n", "FILE: not a text file"},
        {"name = \xc2\x9b\n", "FILE: not a text file"},
        {"name = \xff\n", "FILE: not a text file"},
        {"sockets = 2\n", "FILE: channels is missing: memory channels of a socket, such as channels = 8"},
        {"channels = 8\n", "FILE: ddr is missing"},
        {"channels = 8\nddr = 4.8G\n", "is in millions of transfers a second, such as ddr = 4800"},
        {"channels = 8\nddr = 4800\nddr = 4800\n", "FILE: line 3: ddr = 4800: is given twice"},
        {"channels = 1.5\n", "FILE: line 1: channels = 1.5: must be a whole number"},
        {"sockets = 9\n", "FILE: line 1: sockets = 9: must be a whole number that a machine can have"},
        {"cards = 9\n", "FILE: line 1: cards = 9: must be a whole number"},
        {"cores = many\n", "FILE: line 1: cores = many: is not a number"},
        {"channels = 8\nddr = 4800\n", "FILE: cores is missing"},
        {"channels = 8\nddr = 4800\ncores = 16\n", "FILE: isa is missing: isa = avx2, avx512,"},
        {"isa = sse4\n", "FILE: line 1: isa = sse4: is not one of scalar, avx2"},
        {"pcie = 7\n", "FILE: line 1: pcie = 7: is neither a generation (5, 4 x8) nor bytes/s (25G)"},
        {"pcie = 4 x3\n", "is neither a generation"},
        {"pcie = 4 x8 and more\n", "is neither a generation"},
        {"pcie = -25G\n", "is neither a generation"},
        {BOX "cards = 1\n", "FILE: card is missing: card = RTX 5090, or its numbers"},
        {BOX "card = RTX 9999\n", "FILE: card = RTX 9999 is not a known card (RTX 5090, RTX 5080,"},
        {BOX "card = RTX 9999\ncard.memory = 24G\n",
         "FILE: card.bandwidth is missing: the card's memory bandwidth in bytes/s"},
        {BOX "card.memory = 24G\ncard.bandwidth = 1T\n", "FILE: card.bf16 is missing"},
        {BOX "card.memory = 24G\ncard.bandwidth = 1T\ncard.bf16 = 100T\n",
         "FILE: pcie is missing: the generation and lanes"},
        {BOX "devices = 1\n", "FILE: cards already sets the number of devices"},
        {BOX "gpu0.bw = 1G\n", "FILE: line 5: gpu0.bw = 1G: is not a machine key"},
        {"cpu.bw = 1G\ndevices = 1\ngpu.bw = 1G\ngpu.h2d = 1G\n", "FILE: gpu0.d2h is missing"},
        {"cpu.bw.ffn = 1G\ncpu.bw.linear = 1G\n", "FILE: cpu.bw.attention is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error e = {0};
        if (calibrate_parse(&m, cases[i].text, strlen(cases[i].text), "FILE", NULL, &e) != ERR_USAGE)
            fail_msg("taken: %s", cases[i].text);
        if (!strstr(e.text, cases[i].want)) fail_msg("%s: says %s", cases[i].text, e.text);
    }
    struct error e = {0};
    assert_int_equal(calibrate_parse(&m, "cpu.bw = 1\0G\n", 12, "FILE", NULL, &e), ERR_USAGE);
    char line[600];
    memset(line, 'x', sizeof line);
    assert_int_equal(calibrate_parse(&m, line, sizeof line, "FILE", NULL, &e), ERR_USAGE);
    assert_int_equal(calibrate_read(&m, "/nonexistent/machine", &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "paper-a-1, paper-a-2"));
    /* Random, cut and changed bytes cause an error at most. */
    struct buf b = {0};
    assert_true(cost_preset(&other, "paper-c") && !calibrate_write(&other, "f", &b));
    uint32_t seed = 1;
    for (int k = 0; k < 20000; k++) {
        char *text = mem_strndup(b.data, b.len);
        for (int c = 0; c < 3; c++)
            seed = seed * 1664525 + 1013904223, text[(seed >> 8) % b.len] = "=.:0987 \n#TGekgpu1\xff"[(seed >> 3) % 19];
        calibrate_parse(&m, text, (seed >> 8) % (b.len + 1), "FILE", NULL, &e);
        mem_free(text);
    }
    buf_free(&b);
}

/* A box is the sum of its channels, cores and cards; explicit keys override it, wherever they are in the file. */
static void described_computer_equals_its_preset(void **st) {
    static const char a[] = "name = of paper A\nsockets = 2\nchannels = 12\nddr = 6400\ncores = 32\nisa = "
                            "avx512bf16\nmemory = 1152G\ncards = 2\ncard = NVIDIA GeForce rtx5090\n";
    struct error e = {0};
    if (calibrate_parse(&m, a, sizeof a - 1, "x", NULL, &e)) fail_msg("%s", e.text);
    assert_true(cost_preset(&other, "paper-a-2"));
    assert_int_equal(m.n_devices, 2);
    assert_string_equal(m.name, "of paper A");
    assert_true(fabs(m.dram_bw / other.dram_bw - 1) < 0.01 && m.domain[0].memory == 1152e9);
    for (int d = 0; d < 3; d++) /* the values of this machine's preset, within a tenth */
        for (int k = 0; k < COST_ATTENTION; k++) {
            assert_true(fabs(cost_at(&m.domain[d].bw[k], 1) / cost_at(&other.domain[d].bw[k], 1) - 1) < 0.1);
            for (int rows = 1; rows < 1000; rows *= 3)
                assert_true(fabs(cost_at(cost_rate(&m.domain[d], k, COST_8BIT), rows) /
                                     cost_at(cost_rate(&other.domain[d], k, COST_8BIT), rows) -
                                 1) < 0.1);
        }
    assert_true(fabs(m.domain[2].link[COST_H2D].rate / 57e9 - 1) < 0.001);
    static const char b[] =
        "cpu.bw.ffn = 99G\n" BOX
        "card.memory = 8G\ncard.bandwidth = 100G\ncard.bf16 = 10T\npcie = 4 x8\ngpu.d2h = 3G\njoin = 1u\n";
    if (calibrate_parse(&m, b, sizeof b - 1, "x", NULL, &e)) fail_msg("%s", e.text);
    assert_int_equal(m.n_devices, 1);
    assert_true(m.domain[0].bw[COST_FFN].value[0] == 99e9f &&
                fabs(cost_at(&m.domain[0].bw[COST_LINEAR], 1) / (0.77 * 8 * 8 * 4.8e9) - 1) < 1e-6);
    assert_true(fabs(m.domain[1].link[COST_H2D].rate / (57e9 / 4) - 1) < 1e-9 &&
                m.domain[1].link[COST_D2H].rate == 3e9 && m.hand_off_s == 1e-6);
    /* no FP8: as BF16 */
    assert_true(fabs(cost_at(cost_rate(&m.domain[1], COST_FFN, COST_8BIT), 64) / 7e12 - 1) < 1e-6);
    /* a slot without a card */
    static const char c[] = BOX "pcie = 25G\n";
    assert_int_equal(calibrate_parse(&m, c, sizeof c - 1, "x", NULL, &e), 0);
    assert_int_equal(m.n_devices, 0);
}

static void check_text_and_back(const char *name) {
    struct buf b = {0};
    struct error e = {0};
    char print[CALIBRATE_FINGERPRINT_LEN];
    assert_int_equal(calibrate_read(&m, name, &e), 0);
    assert_int_equal(calibrate_write(&m, "0123", &b), 0);
    if (calibrate_parse(&other, b.data, b.len, "text", print, &e)) fail_msg("%s", e.text);
    assert_string_equal(print, "0123");
    assert_memory_equal(&m, &other, sizeof m);
    buf_free(&b);
}
/* Every preset that is written is read back bit for bit. */
static void text_and_back(void **st) {
    for (int i = 0; cost_preset_name(i); i++) check_text_and_back(cost_preset_name(i));
    for (int i = 0; datasheet_preset_name(i); i++) {
        char name[64];
        check_text_and_back(datasheet_preset_name(i));
        snprintf(name, sizeof name, "%s+2xrtx5090", datasheet_preset_name(i));
        check_text_and_back(name);
    }
}

/* --- Measuring -------------------------------------------------------------------------------- */

static char dir[] = "/tmp/hearth-calibrate-XXXXXX";
static struct pool *pool;
static struct exec *cpu;
static int setup(void **st) {
    struct error e = {0};
    log_set(on_log, NULL, LOG_DEBUG);
    if (!mkdtemp(dir) || pool_open(&pool, 1, false, &e)) return -1;
    return !(cpu = cpu_exec_open(pool, cpu_level_best(), &e));
}
static int teardown(void **st) {
    char path[64];
    snprintf(path, sizeof path, "%s/machine", dir);
    unlink(path), rmdir(dir);
    cpu_exec_close(&cpu), pool_close(&pool);
    return 0;
}
static struct calibrate_options quick(double seconds) {
    return (struct calibrate_options){
        .cpu = cpu, .threads = 1, .seconds = seconds, .bytes = (size_t)64 << 20, .dir = dir};
}

static void measured_cpu_rates_are_plausible(void **st) {
    struct error e = {0};
    struct calibrate_options o = quick(1.5);
    if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    const struct cost_domain *d = &m.domain[0];
    printf("%s: dram %.1f GB/s; experts %.1f GB/s,", d->name, m.dram_bw * 1e-9,
           (double)d->bw[COST_FFN].value[0] * 1e-9);
    for (int i = 0; i < d->rate[COST_FFN][COST_8BIT].n; i++)
        printf(" %g:%.0fG", (double)d->rate[COST_FFN][COST_8BIT].rows[i],
               (double)d->rate[COST_FFN][COST_8BIT].value[i] * 1e-9);
    printf("; latency %.1f %.1f %.1f %.1f us\n", d->latency[0] * 1e6, d->latency[1] * 1e6, d->latency[2] * 1e6,
           d->latency[3] * 1e6);
    assert_true(m.n_domains == 1 && m.dram_bw > 1e8 && d->rate[COST_FFN][COST_8BIT].n >= 3 &&
                cost_rate(d, COST_FFN, COST_16BIT)->n && cost_rate(d, COST_LINEAR, COST_8BIT)->n &&
                d->rate[COST_ATTENTION][COST_16BIT].n);
    for (int k = 0; k < COST_KINDS; k++)
        assert_true(d->bw[k].n && d->bw[k].value[0] > 1e8f && d->latency[k] > 0 && d->latency[k] < 0.1);
    for (int k = 0; k < COST_KINDS; k++)
        for (int f = 0; f < COST_FORMATS; f++)
            for (int i = 1; i < d->rate[k][f].n; i++)
                assert_true((k == COST_ATTENTION || d->rate[k][f].value[i] >= d->rate[k][f].value[i - 1]) &&
                            d->rate[k][f].rows[i] > d->rate[k][f].rows[i - 1]);
    assert_true(d->rate[COST_ATTENTION][COST_16BIT].n > 1); /* including a prompt's queries */
    assert_true(d->rate_few_rows[COST_8BIT].n > 1 &&
                (double)d->rate_few_rows[COST_8BIT].rows[d->rate_few_rows[COST_8BIT].n - 1] <= BATCH_INVARIANT_ROWS);
    /* The values are those of an operation as it runs: units are right, however busy the machine is. */
    enum { SIDE = 2048, ROWS = 16 };
    uint8_t *weights = mem_calloc(SIDE, SIDE);
    float *x = mem_calloc(ROWS, SIDE * 4), *y = mem_calloc(ROWS, SIDE * 4), scales[16 * 16] = {0};
    struct op_linear op = {.y = y, .x = x, .n = ROWS, .ldx = SIDE, .ldy = SIDE};
    op.w = (struct mat){.data = weights,
                        .scale = scales,
                        .stride = SIDE,
                        .rows = SIDE,
                        .cols = SIDE,
                        .block_rows = 128,
                        .block_cols = 128,
                        .scale_stride = 16,
                        .row_step = 1,
                        .dtype = DT_E4M3,
                        .scale_dtype = DT_F32};
    double real = INFINITY,
           expected = cost_time(
               &m, 0, &(struct cost_item){COST_LINEAR, COST_8BIT, ROWS, SIDE * SIDE, 2.0 * SIDE * SIDE * ROWS, 1});
    for (int i = 0; i < 30; i++) {
        double t = clock_now();
        assert_int_equal(cpu->ops->linear(cpu, &op), 0);
        if ((t = clock_now() - t) < real) real = t;
    }
    printf("16 rows of 2048 x 2048: %.0f us, expected %.0f us\n", real * 1e6, expected * 1e6);
    assert_true(expected < real * 30 && expected > real / 30);
    mem_free(weights), mem_free(x), mem_free(y);
    /* Again, from the cache: identical bits. */
    said[0] = 0;
    if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
    assert_memory_equal(&m, &other, sizeof m);
    assert_true(!said[0]);
}

static void measurements_are_kept_in_a_cache_file(void **st) {
    struct error e = {0};
    struct calibrate_options o = quick(0.02);
    char path[64], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/machine", dir);
    if (calibrate(&m, &o, &e) || file_read(path, 1 << 20, &text, &n, &e)) fail_msg("%s", e.text);
    o.threads = 7; /* another machine */
    said[0] = 0;
    if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
    assert_non_null(strstr(said, "does not match this machine"));
    o.threads = 1;
    static const char *const damaged[] = {"", "garbage", "fingerprint = x\ncpu.bw = 1G\ncpu.rate.ffn = 1:1:1\n"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(file_write(path, damaged[i], strlen(damaged[i]), &e), 0);
        said[0] = 0;
        if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
        assert_non_null(strstr(said, "measuring again"));
        assert_true(other.dram_bw > 0);
    }
    assert_int_equal(file_write(path, text, n / 2, &e), 0); /* truncated */
    said[0] = 0;
    assert_int_equal(calibrate(&other, &o, &e), 0);
    assert_true(other.dram_bw > 0);
    /* A directory that is not writable: measures anyway. */
    fault_set(FAULT_RENAME, 1, true, false);
    o.force = true, said[0] = 0;
    assert_int_equal(calibrate(&other, &o, &e), 0);
    fault_set(FAULT_RENAME, 0, false, false);
    assert_non_null(strstr(said, "not saved"));
    _Atomic int cancel = 1;
    o.cancel = &cancel;
    assert_int_equal(calibrate(&other, &o, &e), ERR_CANCELLED);
    o.cancel = NULL;
    /* failing allocations: either an error without leaks, or success without that memory */
    for (int nth = 1; nth < 40; nth++) {
        fault_set(FAULT_ALLOC, nth, false, false);
        int rc = calibrate(&other, &o, &e);
        fault_set(FAULT_ALLOC, 0, false, false);
        assert_true(rc == 0 || rc == ERR_MEMORY);
        if (!rc) break;
    }
    mem_free(text);
}

/* In virtual time a device has exactly its configured speeds; slowed in real time approximately. */
static struct gpu *open_gpu(const char *list) {
    struct gpu_spec spec;
    struct gpu *g = NULL;
    struct error e = {0};
    if (gpu_spec_parse(&spec, list, &e) || gpu_open(&g, &spec, 0, &e)) fail_msg("%s", e.text);
    return g;
}
static bool nodes_as_configured(void) {
    return m.node[0].bw_share > 0.58 && m.node[0].bw_share < 0.75 && m.inter_node_bw > 0.7 * 100e6 &&
           m.inter_node_bw < 1.001 * 100e6;
}
/* Three nodes, one without CPUs: each node's share is its measured speed of its own memory, at which it is limited; its
 * speed of another node's memory is the link between them. The result is cached for these nodes only. */
static void memory_nodes(void **st) {
    static const char text[] = "node 4096 0\nnode 2048 1\nnode 1024 -\nspeed 0 600 200\nspeed 1 100 300\n";
    struct error e = {0};
    struct numa nodes;
    struct pool *threads = NULL;
    struct exec *exec = NULL;
    struct calibrate_options o = quick(0.02);
    if (numa_parse(&nodes, text, &e) || pool_open_nodes(&threads, 2, true, &nodes, &e) ||
        !(exec = cpu_exec_open(threads, CPU_AVX2, &e)))
        fail_msg("%s", e.text);
    assert_int_equal(pool_nodes(threads), 3);
    o.cpu = exec, o.pool = threads, o.nodes = &nodes, o.threads = 2, o.force = true;
    for (int tries = 0; tries < 8 && !nodes_as_configured(); tries++) /* a busy machine only slows reads down */
        if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    o.force = false;
    printf("memory nodes: shares %.3f %.3f %.3f, %.0f MB/s between\n", m.node[0].bw_share, m.node[1].bw_share,
           m.node[2].bw_share, m.inter_node_bw / 1e6);
    assert_true(m.n_nodes == 3 && m.node[2].bw_share == 0 && m.node[2].rate_share == 0 &&
                m.node[1].memory == 2048.0 * (1 << 20));
    assert_true(fabs(m.node[0].bw_share + m.node[1].bw_share - 1) < 1e-9 && m.node[0].rate_share == 0.5 &&
                nodes_as_configured());
    assert_true(cost_at(&m.domain[0].bw[COST_LINEAR], 1) >= cost_at(&m.domain[0].bw[COST_FFN], 1));
    said[0] = 0;
    if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
    assert_memory_equal(&m, &other, sizeof m);
    nodes.memory[1] *= 2;
    if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
    assert_non_null(strstr(said, "does not match this machine"));
    assert_true(other.node[1].memory == 4096.0 * (1 << 20));
    nodes.n_nodes = 1;
    if (calibrate(&other, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(other.n_nodes, 0);
    cpu_exec_close(&exec), pool_close(&threads);
}

static void devices(void **st) {
    struct error e = {0};
    struct calibrate_options o = quick(0.3);
    const char *list = "emu:1,virtual,h2d=57,d2h=40,flops=300,attn=100,bw=1500,launch=4";
    struct gpu *g = open_gpu(list);
    o.gpu = &g, o.n_gpus = 1, o.gpus = list, o.dir = NULL;
    if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    gpu_close(&g);
    const struct cost_domain *d = &m.domain[1];
    assert_true(m.n_devices == 1 && d->class == COST_GPU);
    assert_true(fabs(d->link[COST_H2D].rate / 57e9 - 1) < 0.01 && fabs(d->link[COST_D2H].rate / 40e9 - 1) < 0.01);
    double four =
        cost_expert(&m, 1, &(struct cost_model){.expert_bytes = 44.05e6, .expert_flops = 88.08e6, .experts = COST_8BIT},
                    4096, COST_MANY_ROWS);
    assert_true(fabs(four / (88.08e6 * 4096 / 300e12) - 1) < 0.1);
    double one =
        cost_expert(&m, 1, &(struct cost_model){.expert_bytes = 44.05e6, .expert_flops = 88.08e6, .experts = COST_8BIT},
                    1, COST_MANY_ROWS);
    assert_true(fabs(one / (44.05e6 / 1500e9) - 1) < 0.1);
    for (int k = 0; k < COST_KINDS; k++)
        if (!(fabs(d->latency[k] - 4e-6) < 1e-6)) fail_msg("kind %d: %g s", k, d->latency[k]);
    assert_true(fabs((double)cost_at(&d->rate[COST_ATTENTION][COST_16BIT], 256) / 100e12 - 1) < 0.1);
    /* A device so slow that there is time for one row only: its read speed is no rate of more rows. */
    list = "emu:1,virtual,mem=1G,h2d=2,d2h=1,flops=0.05,bw=2,launch=200";
    g = open_gpu(list);
    o.gpus = list;
    if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    gpu_close(&g);
    for (int f = COST_16BIT; f <= COST_8BIT; f++)
        assert_true(cost_at(cost_rate(d, COST_LINEAR, (enum cost_format)f), 512) >
                    0.5 * cost_at(&d->rate[COST_FFN][COST_8BIT], 512));
    assert_true(fabs((double)cost_at(&d->rate[COST_FFN][COST_8BIT], 64) / 0.05e12 - 1) < 0.1);
    list = "emu:1,mem=1G,h2d=2,d2h=1,flops=0.05,bw=2,launch=200";
    g = open_gpu(list);
    o.gpus = list;
    if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    gpu_close(&g);
    printf("emulated, slowed: h2d %.2f GB/s, d2h %.2f, latency %.0f us, hand-off %.0f us\n",
           d->link[COST_H2D].rate * 1e-9, d->link[COST_D2H].rate * 1e-9, d->latency[COST_FFN] * 1e6,
           m.hand_off_s * 1e6);
    /* never faster; how much slower depends on the machine */
    assert_true(d->link[COST_H2D].rate < 2.1e9 && d->link[COST_D2H].rate < 1.05e9);
    assert_true(d->latency[COST_FFN] > 190e-6);
    g = open_gpu("emu:1,mem=64M");
    assert_int_equal(calibrate(&m, &o, &e), ERR_MEMORY);
    assert_non_null(strstr(e.text, "are free, calibration needs"));
    gpu_close(&g);
    static const char *const faults[] = {"emu:1,virtual,fail=copy:3", "emu:1,virtual,fail=launch:5",
                                         "emu:1,virtual,fail=alloc:2", "emu:1,virtual,fail=die:9"};
    for (size_t i = 0; i < 4; i++) {
        g = open_gpu(faults[i]);
        memset(&e, 0, sizeof e);
        int rc = calibrate(&m, &o, &e);
        gpu_close(&g);
        if (!rc || !e.text[0]) fail_msg("%s: %d %s", faults[i], rc, e.text);
    }
}

/* Attention of the H100 that was measured: 256 queries over 1,024 keys took 88 us, of which the arithmetic is some 15.
 * A prompt of 8,000 is charged for its arithmetic, and short ones for the time that they take. */
static void attention_has_a_latency_and_a_rate(void **st) {
    struct error e = {0};
    struct calibrate_options o = quick(0.3);
    struct gpu_spec spec;
    struct gpu *g = NULL;
    const char *list = "emu:1,virtual,mem=8G,h2d=57,d2h=40,flops=600,attn=10,bw=2900,launch=4";
    if (gpu_spec_parse(&spec, list, &e)) fail_msg("%s", e.text);
    spec.attn_rows = (struct gpu_curve){4, {1, 64, 256, 2048}, {10e12f, 42.5e12f, 42.5e12f, 250e12f}};
    if (gpu_open(&g, &spec, 0, &e)) fail_msg("%s", e.text);
    o.gpu = &g, o.n_gpus = 1, o.gpus = list, o.dir = NULL;
    if (calibrate(&m, &o, &e)) fail_msg("%s", e.text);
    gpu_close(&g);
    static const struct {
        double queries, keys, least, most; /* seconds */
    } cases[] = {
        {64, 1024, 24e-6, 36e-6},     /* 1.04 GFLOP at 42.5 TFLOP/s, and the launch */
        {256, 1024, 85e-6, 97e-6},    /* 3.76 GFLOP likewise */
        {2048, 4096, 380e-6, 440e-6}, /* 103 at 250 */
        {8000, 8000, 1.5e-3, 2.3e-3}, /* 524 at 308, the rate between the two; 12.3 ms at 42.5 */
        {256, 32768, 0.4e-3, 0.6e-3}, /* 137 at 308 and the latency; a rate by queries alone makes it 3.2 ms */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double n = cases[i].queries, pairs = n * (cases[i].keys - (n - 1) / 2);
        const double t = cost_time(
            &m, 1, &(struct cost_item){COST_ATTENTION, COST_16BIT, n, cases[i].keys * 2048, pairs * 32 * 512, 1});
        printf("attention of %g queries over %g keys: %.3g ms\n", n, cases[i].keys, t * 1e3);
        if (t < cases[i].least || t > cases[i].most) fail_msg("%g queries: %g s", n, t);
    }
    struct buf b = {0};
    assert_int_equal(calibrate_write(&m, NULL, &b), 0);
    assert_int_equal(calibrate_parse(&other, b.data, b.len, "text", NULL, &e), 0);
    assert_memory_equal(&m.domain[1].prompt_latency, &other.domain[1].prompt_latency,
                        sizeof m.domain[1].prompt_latency);
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_of_a_machine_file_set_their_fields),
                                       cmocka_unit_test(errors_name_line_and_key),
                                       cmocka_unit_test(described_computer_equals_its_preset),
                                       cmocka_unit_test(text_and_back),
                                       cmocka_unit_test(measured_cpu_rates_are_plausible),
                                       cmocka_unit_test(measurements_are_kept_in_a_cache_file),
                                       cmocka_unit_test(memory_nodes),
                                       cmocka_unit_test(devices),
                                       cmocka_unit_test(attention_has_a_latency_and_a_rate)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
