#pragma once
/* DeepSeek-V3 for virtual time: its config and layers, whose weights are addresses without memory behind them. */
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/model/arch.h"
#include "engine/store/weights.h"

static struct weights model;
static char *at;

static struct mat fp8(int rows, int cols) {
    struct mat m = {.data = at,
                    .stride = (size_t)cols,
                    .rows = rows,
                    .cols = cols,
                    .block_rows = 128,
                    .block_cols = 128,
                    .scale_stride = (cols + 127) / 128,
                    .row_step = 1,
                    .dtype = DT_E4M3,
                    .scale_dtype = DT_F32};
    at += (size_t)rows * (size_t)cols;
    m.scale = at;
    at += (size_t)((rows + 127) / 128) * (size_t)m.scale_stride * 4;
    return m;
}
static struct mat bf16(int rows, int cols) {
    struct mat m = {.data = at, .stride = (size_t)cols * 2, .rows = rows, .cols = cols, .row_step = 1, .dtype = DT_BF16};
    at += m.stride * (size_t)rows;
    return m;
}
static float *floats(int n) {
    float *p = (float *)at;
    at += (size_t)n * 4;
    return p;
}
static struct expert expert(int inter, int hidden) { return (struct expert){fp8(inter, hidden), fp8(inter, hidden), fp8(hidden, inter)}; }

/* layers of them, the first `dense` without experts. */
static void build(int layers, int dense) {
    struct config *c = &model.config;
    *c = (struct config){.arch = &arch_deepseek_v3,
                         .names = &arch_deepseek_v3.names,
                         .layout = &arch_deepseek_v3.layout,
                         .vocab = 129280,
                         .hidden = 7168,
                         .n_layers = layers,
                         .max_context = 163840,
                         .norm_eps = 1e-6f,
                         .attn = ATTN_MLA,
                         .n_heads = 128,
                         .n_kv_heads = 1,
                         .head_dim = 192,
                         .v_dim = 128,
                         .q_lora = 1536,
                         .kv_lora = 512,
                         .qk_nope = 128,
                         .qk_rope = 64,
                         .attn_scale = 0.1f,
                         .rope = {.dim = 64, .interleaved = true},
                         .dense_inter = 18432,
                         .n_experts = 256,
                         .topk = 8,
                         .n_group = 8,
                         .topk_group = 4,
                         .moe_inter = 2048,
                         .shared_inter = 2048,
                         .router_bias = true,
                         .group_top2 = true,
                         .norm_topk = true,
                         .score = SCORE_SIGMOID,
                         .routed_scale = 2.5f};
    if (!at && (at = mmap(NULL, (size_t)800 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) == MAP_FAILED) exit(1);
    arena_free(&model.arena);
    model.layers = arena_calloc(&model.arena, (size_t)layers, sizeof *model.layers);
    model.inv_freq = floats(32);
    model.norm = floats(7168);
    model.embed = bf16(129280, 7168), model.head = bf16(129280, 7168);
    model.rope_mscale = 1;
    for (int l = 0; l < layers; l++) {
        struct layer *y = &model.layers[l];
        c->layer[l].moe = l >= dense;
        struct param list[PARAMS_MAX];
        for (int i = 0, n = params_list(c, l, MODULE_LAYER, list); i < n; i++)
            if (!list[i].cols) *params_vector(y, &list[i]) = floats(list[i].rows);
            else *params_mat(y, &list[i]) = (list[i].at == offsetof(struct layer, router) ? bf16 : fp8)(list[i].rows, list[i].cols);
        if (l < dense) continue;
        y->experts = arena_calloc(&model.arena, 256, sizeof *y->experts);
        for (int e = 0; e < 256; e++) y->experts[e] = expert(2048, 7168);
    }
}
