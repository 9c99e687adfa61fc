/* The device interface on emulated devices, and the pure functions around it: --gpus, cost model, memory plan,
 * copies. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/exec/stream/slp.h"
#include "gpu/op_cost.h"

static int failures;
#define CHECK(ok) \
    do { \
        if (!(ok)) printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #ok), failures++; \
    } while (0)

static void parsing(void) {
    static const char *const good[] = {"none",
                                       "0",
                                       "0,1",
                                       "0,0",
                                       "3,math=f32",
                                       "0,math=fp8,gemm=own",
                                       "0,gemm=cublas",
                                       "emu",
                                       "emu:2",
                                       "emu:2,mem=32G,h2d=57",
                                       "emu:8,virtual,flops=335,attn=147,bw=1520,launch=4",
                                       "emu:2,fail=copy:3@1",
                                       "emu:1,cpu=scalar,threads=2,ring=2,chunk=7,nopeer",
                                       "emu:2,math=bf16",
                                       "0,mem=1.5G"};
    static const char *const bad[] = {"x",
                                      "emu:0",
                                      "emu:9",
                                      "emu:",
                                      "emu:1,",
                                      "emu:1,mem",
                                      "0,math=fp4",
                                      "0,gemm=",
                                      "emu:1,math=fp8",
                                      "emu:1,mem=",
                                      "emu:1,mem=-1",
                                      "emu:1,mem=1X",
                                      "emu:1,fail=copy",
                                      "emu:1,fail=copy:0",
                                      "emu:1,fail=copy:1@1",
                                      "emu:1,cpu=mmx",
                                      "0,virtual",
                                      "0,emu:1",
                                      "0,mem=1G,1",
                                      "emu:1,h2d=nan",
                                      "emu:1,ring=1",
                                      "0,1,2,3,4,5,6,7,0",
                                      "-1",
                                      "emu:1,threads=0",
                                      "emu:1,math=f16",
                                      "emu:1,virtual=1"};
    struct gpu_spec s;
    struct error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        e = (struct error){0};
        if (gpu_spec_parse(&s, good[i], &e)) printf("FAIL '%s': %s\n", good[i], e.text), failures++;
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct error){0};
        if (gpu_spec_parse(&s, bad[i], &e) != ERR_USAGE || !e.text[0])
            printf("FAIL '%s' was taken\n", bad[i]), failures++;
    }
    CHECK(!gpu_spec_parse(&s, "emu:2,mem=32G,h2d=57,fail=die:9@1", &e) && s.n == 2 && s.mem == (size_t)32 << 30 &&
          s.h2d == 57e9 && s.fail == GPU_FAULT_DIE && s.fail_at == 9 && s.fail_rank == 1);
    CHECK(!gpu_spec_parse(&s, NULL, &e) && s.n == 0);
    CHECK(!gpu_spec_parse(&s, "", &e) && s.n == 0);
}

static void costs(void) {
    for (int n = 0; n < 9; n++)
        for (int q0 = 0; q0 < 12; q0 += 3)
            for (int k0 = 0; k0 < 12; k0 += 2)
                for (int keys = 0; keys < 20; keys += 3)
                    for (int window = 0; window < 6; window += 2) {
                        double want = 0;
                        for (int i = 0; i < n; i++)
                            for (int j = 0; j < keys; j++)
                                want += k0 + j <= q0 + i && (!window || k0 + j > q0 + i - window);
                        /* keys that end before the query's window begins are outside the formula */
                        if (window && k0 + keys < q0 + n) continue;
                        if (fabs(want - op_cost_pairs(n, q0, k0, keys, window)) > 1e-9) {
                            printf("FAIL pairs n %d q0 %d k0 %d keys %d window %d: %g, want %g\n", n, q0, k0, keys,
                                   window, op_cost_pairs(n, q0, k0, keys, window), want);
                            failures++;
                            return;
                        }
                    }
    struct op_cost_rates m = {.flops = 1e12, .bw = 1e9, .launch = 1e-6};
    union op_args a = {.add = {.n = 1000, .m = 1000}};
    CHECK(fabs(op_cost_seconds(&m, OP_ADD, &a, NULL) - (1e-6 + 12e6 / 1e9)) < 1e-12);
}

/* The CPU in virtual time, computed by hand. Experts of 128 x 256 in 3 matrices at one byte per weight: 98,304 bytes
 * and 196,608 FLOP per row; 8 of them, 2 per token. */
static struct mat bytes_of(int rows, int cols) {
    return (struct mat){
        .data = "", .stride = (size_t)cols, .rows = rows, .cols = cols, .row_step = 1, .dtype = DT_E4M3};
}
static double run_for(struct gpu_stream *s, enum op_code code, const union op_args *a) {
    static double before;
    struct gpu_event *ev;
    struct error e = {0};
    if ((a && op_run(gpu_stream_exec(s), code, a)) || gpu_event_open_timed(gpu_stream_gpu(s), &ev, &e) ||
        gpu_event_record(ev, s) || gpu_event_sync(ev))
        return -1;
    double t = gpu_event_time(ev), took = t - before;
    before = t;
    gpu_event_close(&ev);
    return took;
}
static void processor(void) {
    struct gpu_spec s = {.is_emulated = true,
                         .is_virtual = true,
                         .has_cpu_rank = true,
                         .launch = 1e-6,
                         .bw = 40e9,
                         .attn = 1e12,
                         .bw_rows = {3, {1, 4, 16}, {1e9f, 5e8f, 2e8f}},
                         .flops_rows = {1, {1}, {1e12f}}};
    struct gpu *g, *card;
    struct gpu_stream *a, *b;
    struct gpu_timeline *n, *back;
    struct error e = {0};
    struct expert table[8], dense = {bytes_of(64, 256), bytes_of(64, 256), bytes_of(256, 64)};
    for (int i = 0; i < 8; i++) table[i] = (struct expert){bytes_of(128, 256), bytes_of(128, 256), bytes_of(256, 128)};
    CHECK(gpu_open(&g, &s, 0, &e) == ERR_USAGE && !gpu_open(&g, &s, GPU_HOST, &e) &&
          !gpu_stream_open(g, &a, "host", false, NULL, &e));
    float *nowhere = (float *)64; /* nothing is read, not even the choice */
    union op_args x = {.experts = {.y = nowhere,
                                   .x = nowhere,
                                   .ids = (const int32_t *)nowhere,
                                   .weights = nowhere,
                                   .experts = table,
                                   .n = 1,
                                   .topk = 2,
                                   .n_experts = 8,
                                   .hidden = 256}};
    run_for(a, OP_EXPERTS, NULL);
    double one = 98304, row = 8 * 256; /* bytes of an expert; of a choice's activations */
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) - (1e-6 + 2 * (one + row) / 1e9)) < 1e-11);
    x.experts.n = 2; /* 8 (1 - (6 / 8)^2) = 3.5 experts, 4 / 3.5 rows each */
    double rate = 1e9 * pow(0.5, log(4 / 3.5) / log(4));
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) - (1e-6 + (3.5 * one + 4 * row) / rate)) < 1e-10);
    x.experts.computed_fraction = 0.25f; /* a quarter of them is computed here */
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) - (1e-6 + (0.875 * one + row) / rate)) < 1e-10);
    x.experts.shared = &dense; /* half of an expert, for both tokens: 2 rows */
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) -
               (1e-6 + (0.875 * one + row) / rate + (one / 2 + 2 * row) / (1e9 / sqrt(2)))) < 1e-10);
    x.experts.ids = NULL;
    x.experts.n = 16;
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) - (1e-6 + (one / 2 + 16 * row) / 2e8)) < 1e-10);
    /* experts split by node have whole experts in their shards */
    struct expert half[18];
    for (int i = 0; i < 18; i++) half[i] = (struct expert){bytes_of(64, 256), bytes_of(64, 256), bytes_of(128, 128)};
    const int32_t rows[] = {0, 128, 256};
    struct expert_shards cut = {half, rows, 2};
    x.experts = (struct op_experts){.y = nowhere,
                                    .x = nowhere,
                                    .ids = (const int32_t *)nowhere,
                                    .weights = nowhere,
                                    .experts = table,
                                    .shards = &cut,
                                    .n = 1,
                                    .topk = 2,
                                    .n_experts = 8,
                                    .hidden = 256};
    CHECK(fabs(run_for(a, OP_EXPERTS, &x) - (1e-6 + 2 * (one + row) / 1e9)) < 1e-11);
    /* 16 and more: 0.2 GB/s */
    union op_args l = {
        .linear = {.y = nowhere, .x = nowhere, .w = bytes_of(1000, 1000), .n = 64, .ldx = 1000, .ldy = 1000}};
    CHECK(fabs(run_for(a, OP_LINEAR, &l) - (1e-6 + (1e6 + 64 * 8000) / 2e8)) < 1e-9);
    union op_args t = {.attention = {.out = nowhere,
                                     .q = nowhere,
                                     .k = {nowhere, NULL, 1, 64, DT_BF16},
                                     .v = {(char *)nowhere + 1, NULL, 1, 64, DT_BF16},
                                     .n = 1,
                                     .n_heads = 4,
                                     .v_dim = 64,
                                     .ldq = 256,
                                     .ldo = 256,
                                     .q_pos0 = 999,
                                     .n_keys = 1000,
                                     .scale = 1}}; /* 256 kB at 40 GB/s */
    CHECK(fabs(run_for(a, OP_ATTENTION, &t) - (1e-6 + (256e3 + 2048) / 40e9)) < 1e-10);
    t.attention.v = t.attention.k; /* latents */
    CHECK(fabs(run_for(a, OP_ATTENTION, &t) - (1e-6 + (128e3 + 2048) / 40e9)) < 1e-10);
    CHECK(!gpu_copy(a, nowhere, nowhere, 1000, GPU_H2D) &&
          fabs(run_for(a, OP_ADD, NULL) - (1e-6 + 2000 / 1e9)) < 1e-11);
    /* beside a device with its own clock: rows up, experts, sums down; each copy over the idle link takes 8 us more */
    struct gpu_spec d;
    void *p;
    CHECK(!gpu_spec_parse(&d, "emu:1,virtual,d2h=1,h2d=1,bw=1,launch=1", &e) && !gpu_open(&card, &d, 0, &e) &&
          !gpu_stream_open(card, &b, "card", false, NULL, &e));
    CHECK(!gpu_timeline_open(g, &n, &e) && !gpu_timeline_open(card, &back, &e) && !gpu_alloc(card, &p, 1 << 20, &e));
    struct gpu_event *ev;
    CHECK(!gpu_event_open_timed(card, &ev, &e) && !gpu_event_record(ev, a) && !gpu_event_sync(ev));
    double begin = gpu_event_time(ev);
    gpu_timeline_signal(n, 1, a); /* the card begins when the CPU is done with its last operation */
    gpu_timeline_wait(n, 1, b);
    gpu_copy(b, nowhere, p, 1000000, GPU_D2H);
    gpu_timeline_signal(back, 1, b);
    gpu_timeline_wait(back, 1, a);
    x.experts.shards = NULL;
    op_run(gpu_stream_exec(a), OP_EXPERTS, &x);
    gpu_timeline_signal(n, 2, a);
    gpu_timeline_wait(n, 2, b);
    gpu_copy(b, p, nowhere, 500000, GPU_H2D);
    CHECK(!gpu_event_record(ev, b) && !gpu_event_sync(ev) &&
          fabs(gpu_event_time(ev) - begin - (1e-3 + 1e-6 + 2 * (one + row) / 1e9 + 0.5e-3 + 2 * 8e-6)) < 1e-9);
    gpu_event_close(&ev);
    gpu_stream_close(&a);
    gpu_stream_close(&b);
    gpu_timeline_close(&n);
    gpu_timeline_close(&back);
    gpu_free(card, p);
    gpu_close(&card);
    gpu_close(&g);
}

static void copies(void) {
    static char memory[4096];
    struct copy_run runs[8];
    const void *field;
    size_t bytes;
    struct copy_range r[] = {{memory + 1000, 24, &field},
                             {memory + 10, 90, &field},
                             {memory + 100, 100, &field},
                             {memory + 1010, 4, &field},
                             {memory + 1025, 5, &field}};
    CHECK(copy_runs_merge(r, 5, runs, &bytes) == 3); /* 10..200, 1000..1024, 1025..1030 */
    CHECK(runs[0].host == memory + 10 && runs[0].bytes == 190 && runs[1].bytes == 24 && runs[2].bytes == 5);
    for (int i = 0; i < 3; i++) CHECK(runs[i].at % 256 == 0);
    for (int i = 0; i < 5; i++) {
        bool inside = false;
        for (int k = 0; k < 3; k++)
            inside |= r[i].host >= runs[k].host && r[i].host + r[i].bytes <= runs[k].host + runs[k].bytes &&
                      r[i].at - runs[k].at == (size_t)(r[i].host - runs[k].host);
        CHECK(inside && r[i].at + r[i].bytes <= bytes);
    }
}

/* Matrices of a file whose data starts anywhere can be read 16 bytes at once on the device; a part that breaks the
 * alignment of those behind it costs a second copy, a small one does not. */
static void copies_are_aligned(void) {
    static char memory[65536];
    struct copy_run runs[8];
    const void *field;
    size_t bytes;
    for (int shift = 0; shift < 16; shift++) {
        char *const base = memory + shift;
        struct copy_range even[] = {{base, 8192, &field}, {base + 8192, 64, &field}, {base + 8256, 16384, &field}};
        CHECK(copy_runs_merge(even, 3, runs, &bytes) == 1);
        for (int i = 0; i < 3; i++) CHECK(even[i].at % 16 == 0);
        struct copy_range odd[] = {
            {base, 8192, &field}, {base + 8192, 4, &field}, {base + 8196, 16384, &field}, {base + 24580, 12, &field}};
        CHECK(copy_runs_merge(odd, 4, runs, &bytes) == 2 && runs[1].host == base + 8196);
        CHECK(odd[0].at % 16 == 0 && odd[2].at % 16 == 0 && odd[3].at == odd[2].at + 16384 && odd[3].at + 12 <= bytes);
    }
}

static void plans(void) {
    struct config c = {.hidden = 7168,
                       .n_layers = 61,
                       .attn = ATTN_MLA,
                       .n_heads = 128,
                       .n_kv_heads = 1,
                       .head_dim = 192,
                       .v_dim = 128,
                       .q_lora = 1536,
                       .kv_lora = 512,
                       .qk_nope = 128,
                       .qk_rope = 64,
                       .rope = {.dim = 64},
                       .n_experts = 256,
                       .topk = 8};
    struct slp_need d = {.n_experts = 256,
                         .expert_bytes = 44040192 + 10752,
                         .dense_bytes = 396u << 20,
                         .kv_row_bytes = 1152,
                         .reserve = 768u << 20};
    struct slp_plan p, last = {0};
    struct error e = {0};
    for (int gb = 60; gb > 0; gb--) { /* less memory never gives a longer ring, nor more than there is */
        d.n_rows = d.n_positions = d.n_tokens = 131072;
        int rc = slp_plan(&p, &c, &d, (size_t)gb << 30, &e);
        if (rc) {
            CHECK(rc == ERR_MEMORY && gb < 16);
            break;
        }
        CHECK(p.bytes <= (size_t)gb << 30 && p.ring_slots >= 2 && p.ring_slots <= 256 && p.chunk_rows >= 64 &&
              p.dense_slots >= 2);
        if (last.ring_slots && last.chunk_rows == p.chunk_rows) CHECK(p.ring_slots <= last.ring_slots);
        last = p;
    }
    CHECK(!slp_plan(&p, &c, &d, (size_t)32 << 30, &e) && p.ring_slots >= 2); /* 128K tokens fit a 32 GB card */
    d.n_rows = d.n_positions = d.n_tokens = 4096;
    CHECK(!slp_plan(&p, &c, &d, (size_t)32 << 30, &e) && p.ring_slots == 256);
    d.ring = 3;
    CHECK(!slp_plan(&p, &c, &d, (size_t)32 << 30, &e) && p.ring_slots == 3);
    CHECK(slp_selects_few(&c, 1) && slp_selects_few(&c, 43) && !slp_selects_few(&c, 44)); /* (1 - 8 / 256)^44 = 0.247 */
    c.n_experts = c.topk = 0;
    CHECK(!slp_selects_few(&c, 1));
}

static void memory(void) {
    struct gpu_spec s;
    struct gpu *g;
    struct gpu_stream *a;
    struct error e = {0};
    void *p, *q;
    char host[64];
    CHECK(!gpu_spec_parse(&s, "emu:1,mem=1M", &e) && !gpu_open(&g, &s, 0, &e) &&
          !gpu_stream_open(g, &a, "a", false, NULL, &e));
    CHECK(!gpu_alloc(g, &p, 600 << 10, &e) && gpu_alloc(g, &q, 600 << 10, &e) == ERR_MEMORY && strstr(e.text, "free"));
    CHECK(gpu_mem_free(g) == 424 << 10);
    /* unwritten memory is NaN */
    CHECK(!gpu_copy(a, host, p, sizeof host, GPU_D2H) && !gpu_stream_sync(a) && isnan(*(float *)host));
    CHECK(!gpu_copy(a, (char *)p + (600 << 10) - 8, host, 64, GPU_H2D) && gpu_stream_sync(a) == ERR_RUNTIME &&
          gpu_error(g, &e) && strstr(e.text, "not memory"));
    CHECK(gpu_copy(a, host, p, 1, GPU_D2H) == ERR_RUNTIME); /* failed until cleared */
    const unsigned began = gpu_n_cleared(g);
    CHECK(gpu_error_since(g, began, &e) == ERR_RUNTIME && strstr(e.text, "not memory"));
    /* its owner may not have noticed yet */
    CHECK(!gpu_clear(g, &e) && gpu_stream_sync(a) == ERR_RUNTIME);
    /* who shares the device learns of it */
    CHECK(!gpu_error(g, &e) && gpu_error_since(g, began, &e) == ERR_RUNTIME && strstr(e.text, "several tasks"));
    CHECK(!gpu_clear(g, &e) && gpu_n_cleared(g) == began + 1 && !gpu_error_since(g, began + 1, &e));
    gpu_stream_close(&a);
    CHECK(!gpu_stream_open(g, &a, "a", false, NULL, &e) && !gpu_copy(a, host, p, 1, GPU_D2H) && !gpu_stream_sync(a));
    gpu_free(g, p);
    CHECK(!gpu_copy(a, p, host, 1, GPU_H2D) && gpu_stream_sync(a) == ERR_RUNTIME); /* after free */
    CHECK(!gpu_clear(g, &e));
    gpu_free(g, host);
    CHECK(gpu_error(g, &e) == ERR_RUNTIME);
    gpu_stream_close(&a);
    gpu_close(&g);
}

/* As on a card, freed memory is reused for blocks of more than half its size, and its content is undefined for the new
 * owner; the allocation time is charged.
 */
static void memory_stays(void) {
    enum { MB = 1 << 20 };
    struct gpu_spec s;
    struct gpu *g;
    struct gpu_stream *a;
    struct error e = {0};
    void *p, *q, *r, *t;
    float host[16] = {0};
    CHECK(!gpu_spec_parse(&s, "emu:1,mem=32M,bw=10", &e) && !gpu_open(&g, &s, 0, &e) &&
          !gpu_stream_open(g, &a, "a", false, NULL, &e));
    CHECK(!gpu_alloc(g, &p, 8 * MB, &e) && !gpu_alloc(g, &q, 8 * MB, &e));
    CHECK(!gpu_fill(a, p, 0, 8 * MB) && !gpu_stream_sync(a));
    gpu_free(g, p);
    CHECK(gpu_mem_free(g) == 24 * MB && !gpu_alloc(g, &r, 6 * MB, &e) && r == p && gpu_mem_free(g) == 18 * MB);
    CHECK(!gpu_copy(a, host, r, sizeof host, GPU_D2H) && !gpu_stream_sync(a) && isnan(host[0]));
    /* only its own bytes */
    CHECK(!gpu_copy(a, (char *)r + 6 * MB, host, 4, GPU_H2D) && gpu_stream_sync(a) == ERR_RUNTIME && !gpu_clear(g, &e));
    gpu_free(g, r);
    gpu_stream_close(&a);
    CHECK(!gpu_stream_open(g, &a, "a", false, NULL, &e) && !gpu_copy(a, p, host, 4, GPU_H2D) &&
          gpu_stream_sync(a) == ERR_RUNTIME && !gpu_clear(g, &e));
    CHECK(!gpu_alloc(g, &t, 4 * MB, &e) && gpu_alloc(g, &r, 24 * MB, &e) == ERR_MEMORY &&
          !gpu_alloc(g, &r, 20 * MB, &e) && gpu_mem_free(g) == 0);
    CHECK(gpu_stats(g).alloc_s > 0);
    gpu_stream_close(&a);
    gpu_close(&g);
}

/* a feeds b through events, a thousand times over one buffer; without ordering in real time, bytes are lost. */
static void ordering(void) {
    struct gpu_spec s;
    struct gpu *g;
    struct gpu_stream *a, *b;
    struct gpu_event *full, *empty;
    struct error e = {0};
    void *p;
    static int in[1000], out[1000];
    CHECK(!gpu_spec_parse(&s, "emu:1", &e) && !gpu_open(&g, &s, 0, &e) &&
          !gpu_stream_open(g, &a, "a", false, NULL, &e) && !gpu_stream_open(g, &b, "b", false, NULL, &e));
    CHECK(!gpu_event_open_timed(g, &full, &e) && !gpu_event_open_timed(g, &empty, &e) && !gpu_alloc(g, &p, 4, &e));
    for (int i = 0; i < 1000; i++) {
        in[i] = i;
        gpu_event_wait(empty, a);
        gpu_copy(a, p, &in[i], 4, GPU_H2D);
        gpu_event_record(full, a);
        gpu_event_wait(full, b);
        gpu_copy(b, &out[i], p, 4, GPU_D2H);
        gpu_event_record(empty, b);
    }
    CHECK(!gpu_stream_sync(b) && !memcmp(in, out, sizeof in));
    gpu_event_close(&full);
    gpu_event_close(&empty);
    gpu_stream_close(&a);
    gpu_stream_close(&b);
    gpu_free(g, p);
    gpu_close(&g);
}

static void clocks(void) { /* virtual time: 1 GB at 1 GB/s, then an operation on it, then another stream that waited */
    struct gpu_spec s;
    struct gpu *g;
    struct gpu_stream *a, *b;
    struct gpu_event *ev;
    struct error e = {0};
    void *p;
    CHECK(!gpu_spec_parse(&s, "emu:1,virtual,h2d=1,bw=1,launch=1", &e) && !gpu_open(&g, &s, 0, &e));
    CHECK(!gpu_stream_open(g, &a, "a", false, NULL, &e) && !gpu_stream_open(g, &b, "b", true, NULL, &e) &&
          !gpu_event_open_timed(g, &ev, &e));
    /* no real memory, but a limit */
    CHECK(!gpu_alloc(g, &p, (size_t)30 << 30, &e) && gpu_alloc(g, &(void *){0}, (size_t)3 << 30, &e) == ERR_MEMORY);
    gpu_copy(a, p, NULL, 1000000000, GPU_H2D);
    gpu_event_record(ev, a);
    gpu_event_wait(ev, b);
    gpu_stream_exec(b)->ops->sigmoid(gpu_stream_exec(b), &(struct op_sigmoid){.x = p, .n = 1000, .m = 125000});
    CHECK(!gpu_stream_sync(a) && fabs(gpu_event_time(ev) - 1) < 1e-9);
    gpu_event_record(ev, b);
    CHECK(!gpu_stream_sync(b) && fabs(gpu_event_time(ev) - (2 + 1e-6)) < 1e-9);
    gpu_event_close(&ev);
    gpu_stream_close(&a);
    gpu_stream_close(&b);
    gpu_free(g, p);
    gpu_close(&g);
}

static void *breaker(void *pair) {
    gpu_pair_abort(pair);
    return NULL;
}
static void pairs(void) {
    struct gpu_spec s;
    struct gpu *g;
    struct gpu_stream *a;
    struct gpu_pair *p;
    struct error e = {0};
    pthread_t t;
    CHECK(!gpu_spec_parse(&s, "emu:1", &e) && !gpu_open(&g, &s, 0, &e) &&
          !gpu_stream_open(g, &a, "a", false, NULL, &e) && !gpu_pair_open(g, &p, &e));
    CHECK(!gpu_pair_record(p, a) && !gpu_pair_wait(p, 1, a));
    CHECK(!pthread_create(&t, NULL, breaker, p) && gpu_pair_wait(p, 2, a) == ERR_CANCELLED);
    pthread_join(t, NULL);
    gpu_stream_sync(a);
    gpu_pair_close(&p);
    gpu_stream_close(&a);
    gpu_close(&g);
}

int main(void) {
    parsing();
    costs();
    processor();
    copies();
    copies_are_aligned();
    plans();
    memory();
    memory_stays();
    ordering();
    clocks();
    pairs();
    printf("%d failed\n", failures);
    return failures != 0;
}
