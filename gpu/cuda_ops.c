/* Selects the kernel of an operation. Its workspace is sized before anything is enqueued, so that growing it (in the
 * first layer) is the only wait. */
#include <string.h>

#include "base/test_limits.h"
#include "gpu/cuda.h"

/* of keys and values as BF16; larger ones run in groups of heads */
static const size_t ATTENTION_SPACE = (size_t)128 << 20;
/* of partial results of few queries; more run in groups of queries */
static const size_t PARTS_SPACE = (size_t)256 << 20;
static const size_t SELECT_SPACE = (size_t)64 << 20; /* of scores; larger ones run in groups of queries */

_Static_assert(sizeof(struct op_address) == sizeof(struct cuda_address) &&
                   offsetof(struct op_address, pos) == offsetof(struct cuda_address, pos) &&
                   offsetof(struct op_address, after) == offsetof(struct cuda_address, after) &&
                   offsetof(struct op_address, blocks) == offsetof(struct cuda_address, blocks),
               "places");
static const struct cuda_address *to_cuda_place(const struct op_address *p) { return (const struct cuda_address *)p; }
_Static_assert(sizeof(struct kv_block) == sizeof(struct cuda_kv_block) &&
                   offsetof(struct kv_block, mem_index) == offsetof(struct cuda_kv_block, mem_index),
               "blocks");

/* Keys are split where the blocks would leave SMs idle: the tail of short prompts. With few queries always:
 * chunk_begin. */
static int splits_for(const struct cuda_stream *s, long blocks, long keys, long least) {
    long want = 2L * s->g->n_sms, splits = blocks >= want ? 1 : (want + blocks - 1) / blocks,
         most = (keys + least - 1) / least;
    return (int)(splits < most ? splits : most > 1 ? most : 1);
}
static size_t parts_size(const struct cuda_attention *a) {
    size_t rows = (size_t)a->splits * (size_t)a->n * (size_t)a->n_heads;
    return a->splits > 1 ? align_up(rows * (size_t)a->v_dim * 4, 256) + align_up(rows * 4, 256) : 0;
}
/* Keys that a query may see, those of its list if it has one. */
static int keys_listed(const struct op_attention *o) {
    if (o->chosen_block) return op_seen_blocks(o->n_keys, o->n_chosen, o->chosen_block, o->own_block) + o->chosen_block;
    return o->chosen && o->n_chosen < o->n_keys ? o->n_chosen : o->n_keys;
}
static void parts_at(struct cuda_attention *a, char *space) {
    a->part = (float *)space;
    a->part_lse =
        (float *)(space + align_up((size_t)a->splits * (size_t)a->n * (size_t)a->n_heads * (size_t)a->v_dim * 4, 256));
}

/* Runs attention on tensor cores. Planes that they cannot read as they are (!direct) are converted first, as many KV
 * heads at a time as fit the workspace. */
static int attention_mma(struct cuda_stream *s, struct cuda_attention *a, bool direct) {
    int group = a->n_heads / a->k.heads, rows = cuda_attention_mma_rows(a), heads = a->k.heads;
    int k_dim = (a->k.dim + 7) & ~7, v_dim = (a->v_dim + 7) & ~7;
    bool v_in_k = cuda_planes_equal(&a->k, &a->v);
    size_t keys = (size_t)a->n_keys, k_size = direct ? 0 : keys * (size_t)k_dim * 2,
           v_size = direct || v_in_k ? 0 : keys * (size_t)v_dim * 2;
    if (k_size && ATTENTION_SPACE / (k_size + v_size) < (size_t)heads)
        heads = ATTENTION_SPACE < k_size + v_size ? 1 : (int)(ATTENTION_SPACE / (k_size + v_size));
    struct cuda_attention b = *a;
    b.n_heads = heads * group;
    b.splits = a->chunked ? cuda_attention_chunks(a->n_keys)
                          : splits_for(s, ((long)a->n * group + rows - 1) / rows * heads, a->n_keys, 256);
    size_t k_all = align_up(k_size * (size_t)heads, 256), v_all = align_up(v_size * (size_t)heads, 256),
           size = k_all + v_all + parts_size(&b);
    char *space = size ? cuda_workspace(s, size) : NULL;
    if (!space && size) return ERR_RUNTIME;
    if (b.splits > 1) parts_at(&b, space + k_all + v_all);
    for (int h = 0; h < a->k.heads; h += heads) {
        int n_heads = a->k.heads - h < heads ? a->k.heads - h : heads; /* of keys, in this launch */
        size_t skip = (size_t)(h * group);
        b.n_heads = n_heads * group;
        b.q = a->q + skip * (size_t)a->q_dim;
        b.out = a->out + skip * (size_t)a->v_dim;
        b.lse = a->lse ? a->lse + skip : NULL;
        b.sinks = a->sinks ? a->sinks + skip : NULL;
        if (!direct) {
            b.k = (struct cuda_plane){.data = space, .heads = n_heads, .dim = k_dim, .dtype = DT_BF16};
            b.v = v_in_k ? b.k
                         : (struct cuda_plane){.data = space + k_all, .heads = n_heads, .dim = v_dim, .dtype = DT_BF16};
            if (cuda_check(s->g, cuda_plane_to_bf16(s->stream, space, a->k, h, n_heads, a->n_keys, k_dim), "keys"))
                return ERR_RUNTIME;
            if (!v_in_k &&
                cuda_check(s->g, cuda_plane_to_bf16(s->stream, space + k_all, a->v, h, n_heads, a->n_keys, v_dim),
                           "values"))
                return ERR_RUNTIME;
        }
        if (cuda_check(s->g, cuda_attention_mma(s->stream, &b), "attention_mma")) return ERR_RUNTIME;
    }
    return 0;
}

/* Narrows a call to rows [first, first + n). */
static void take_rows(struct cuda_attention *a, int first, int n) {
    const size_t at = (size_t)first;
    a->out += at * (size_t)a->ldo;
    a->q += at * (size_t)a->ldq;
    if (a->lse) a->lse += at * (size_t)a->lse_ld;
    if (a->q_pos) a->q_pos += at;
    if (a->chosen) a->chosen += at * (size_t)a->chosen_lists * (size_t)a->n_chosen;
    if (a->bias) a->bias += at * (size_t)a->n_heads * (size_t)a->extent;
    a->q_pos0 += first;
    a->first = first;
    a->n = n;
}
static int attention_rows(struct cuda_stream *s, const struct op_attention *o, struct cuda_attention *a) {
    const bool few = s->g->math != GPU_MATH_F32 && o->n_keys > 0 && cuda_attention_few_ready(a);
    /* converting the keys pays off only for many queries */
    bool direct = cuda_attention_mma_direct(a);
    if (!few && s->g->math != GPU_MATH_F32 && o->n_keys > 0 && !o->chosen && !o->bias && cuda_attention_mma_rows(a) &&
        (direct || !a->chunked))
        return attention_mma(s, a, direct);
    int group = o->n_heads / o->k.heads, heads = cuda_attention_f32_heads(a);
    a->splits = a->chunked
                    ? cuda_attention_chunks(keys_listed(o))
                    : splits_for(s, (long)a->n * o->k.heads * ((group + heads - 1) / heads), keys_listed(o), 128);
    if (a->splits > 1) {
        char *space = cuda_workspace(s, parts_size(a));
        if (!space) return ERR_RUNTIME;
        parts_at(a, space);
    }
    return few ? cuda_check(s->g, cuda_attention_few(s->stream, a), "attention_few")
               : cuda_check(s->g, cuda_attention_f32(s->stream, a), "attention_f32");
}

/* Few queries of very many keys: as many rows at a time as have room for their parts. */
static int attention(struct cuda_stream *s, const struct op_attention *o) {
    struct cuda_attention a = {.out = o->out,
                               .q = o->q,
                               .k = cuda_plane_of(&o->k),
                               .v = cuda_plane_of(&o->v),
                               .sinks = o->sinks,
                               .lse = o->lse,
                               .q_pos = o->q_pos,
                               .chosen = o->chosen,
                               .n = o->n,
                               .n_heads = o->n_heads,
                               .q_dim = o->k.dim,
                               .v_dim = o->v_dim,
                               .ldq = o->ldq,
                               .ldo = o->ldo,
                               .lse_ld = o->n_heads,
                               .q_pos0 = o->q_pos0,
                               .k_pos0 = o->k_pos0,
                               .k_step = o->k_step ? o->k_step : 1,
                               .n_keys = o->n_keys,
                               .window = o->window,
                               .chunk_keys = o->chunk_keys,
                               .n_chosen = o->n_chosen,
                               .scale = o->scale,
                               .softcap = o->softcap,
                               .temperature_len = o->temperature_len,
                               .bias = o->bias,
                               .extent = o->extent,
                               .chosen_block = o->chosen_block,
                               .own_block = o->own_block,
                               .chosen_lists = o->chosen_lists ? o->chosen_lists : 1,
                               .chunked = o->n <= CUDA_INVARIANT_ROWS,
                               .at = to_cuda_place(o->at),
                               .v_at = to_cuda_place(o->v_at),
                               .all = o->n,
                               .splits = 1};
    if (o->n < 1) return 0;
    const size_t row =
        (size_t)cuda_attention_chunks(keys_listed(o)) * (size_t)o->n_heads * ((size_t)o->v_dim + 1) * sizeof(float);
    const size_t space = test_limits_get(TEST_LIMIT_ATTENTION_PARTS_BYTES, PARTS_SPACE);
    const int most = !a.chunked || row * (size_t)o->n <= space ? o->n : row > space ? 1 : (int)(space / row);
    for (int at = 0; at < o->n; at += most) {
        struct cuda_attention b = a;
        take_rows(&b, at, o->n - at < most ? o->n - at : most);
        TRY(attention_rows(s, o, &b));
    }
    return 0;
}

/* As many queries at a time as have room for their scores in the workspace. */
static int select_keys(struct cuda_stream *s, const struct op_select *o) {
    const int candidates = o->block ? o->n_keys / o->block : o->n_keys, lists = op_select_lists(o),
              keys = o->block && o->weight ? o->n_keys : 0;
    size_t row = ((size_t)(candidates > 0 ? candidates : 1) * (size_t)lists + (size_t)keys) * sizeof(float);
    int most = SELECT_SPACE / row < 1 ? 1 : SELECT_SPACE / row < (size_t)o->n ? (int)(SELECT_SPACE / row) : o->n;
    float *score = o->n < 1 ? NULL : cuda_workspace(s, (size_t)most * row);
    if (!score && o->n > 0) return ERR_RUNTIME;
    for (int at = 0; at < o->n; at += most) {
        struct cuda_select a = {.chosen = o->chosen + (size_t)at * (size_t)lists * (size_t)o->topk,
                                .q = o->q + (size_t)at * (size_t)o->ldq,
                                .weight = o->weight ? o->weight + (size_t)at * (size_t)o->heads : NULL,
                                .k = cuda_plane_of(&o->k),
                                .n = o->n - at < most ? o->n - at : most,
                                .heads = o->heads,
                                .topk = o->topk,
                                .ldq = o->ldq,
                                .q_pos0 = o->q_pos0 + at,
                                .k_pos0 = o->k_pos0,
                                .k_step = o->k_step ? o->k_step : 1,
                                .n_keys = o->n_keys,
                                .scale = o->scale,
                                .block = o->block,
                                .latest = o->latest,
                                .lists = lists,
                                .candidates = candidates,
                                .score = score,
                                .key_score =
                                    keys ? score + (size_t)most * (size_t)(candidates > 0 ? candidates : 1) : NULL,
                                .keys = keys,
                                .among = o->among ? o->among + (size_t)at * (size_t)o->n_among : NULL,
                                .n_among = o->n_among,
                                .among_block = o->among_block,
                                .at = to_cuda_place(o->at),
                                .first = at,
                                .all = o->n};
        if (cuda_check(s->g, cuda_select_keys(s->stream, &a), "select")) return ERR_RUNTIME;
    }
    return 0;
}

_Static_assert((int)CUDA_INVARIANT_ROWS == (int)BATCH_INVARIANT_ROWS,
               "a device keeps bits for as many rows as the CPU");
_Static_assert((int)DELTA_GATED == CUDA_DELTA_GATED && (int)DELTA_MAMBA2 == CUDA_DELTA_MAMBA2 &&
                   (int)DELTA_LIGHTNING == CUDA_DELTA_LIGHTNING && (int)DELTA_CHANNELS == CUDA_DELTA_CHANNELS &&
                   (int)DELTA_MAX_K_DIM == CUDA_DELTA_MAX_K_DIM,
               "rules");
static int delta(struct cuda_stream *s, const struct op_delta *o) {
    struct cuda_delta d = {.out = o->out,
                           .q = o->q,
                           .k = o->k,
                           .v = o->v,
                           .b = o->b,
                           .a = o->a,
                           .rate = o->rate,
                           .dt = o->dt,
                           .before = o->before,
                           .after = o->after,
                           .n = o->n,
                           .k_heads = o->k_heads,
                           .v_heads = o->v_heads,
                           .k_dim = o->k_dim,
                           .v_dim = o->v_dim,
                           .ldx = o->ldx,
                           .ldg = o->ldg,
                           .ldo = o->ldo,
                           .at = to_cuda_place(o->at),
                           .skip = o->skip,
                           .slope = o->slope,
                           .bound = o->bound,
                           .rule = o->rule,
                           .is_tiled = o->is_tiled,
                           .doubles_beta = o->doubles_beta};
    if (o->n < 1) return 0;
    return cuda_check(s->g, o->k_dim > CUDA_DELTA_MAX_K_DIM ? cudaErrorNotSupported : cuda_delta_rows(s->stream, &d),
                      "delta");
}

int cuda_run_op(struct op_exec *x, enum op_code code, const union op_args *u) {
    struct cuda_stream *s = (struct cuda_stream *)x;
    struct cuda *g = s->g;
    cudaError_t r = cudaSuccess;
    if (s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed)) return ERR_CANCELLED;
    if (g->base.b->error(&g->base, NULL)) return ERR_RUNTIME;
    if (cuda_check(g, cudaSetDevice(g->card), "device")) return ERR_RUNTIME;
    switch (code) {
    case OP_EMBED:
        if (!cuda_mat_is_supported(u->embed.table.dtype)) r = cudaErrorNotSupported;
        else if (u->embed.n > 0)
            r = cuda_embed(s->stream, u->embed.out, u->embed.ids, u->embed.table, u->embed.n,
                           u->embed.scale != 0 ? u->embed.scale : 1);
        break;
    case OP_NORM:
    case OP_ROPE:
    case OP_KV_STORE:
    case OP_ROUTE:
    case OP_ADD:
    case OP_SIGMOID:
    case OP_CLIP:
    case OP_FILL:
    case OP_SOFTCAP:
    case OP_COPY:
    case OP_GATE:
    case OP_SCALE:
    case OP_CONV:
    case OP_TRANSFER: return cuda_small_op(s, code, u);
    case OP_CHAIN: return cuda_chain_op(s, &u->chain);
    case OP_JOIN: return cuda_join_op(s, &u->join);
    case OP_LINEAR: return cuda_linear_op(s, &u->linear);
    case OP_ROPE_TABLE: {
        const struct op_rope_table *a = &u->rope_table;
        struct cuda_rope_table t = {.cos = a->cos,
                                    .sin = a->sin,
                                    .pos = a->pos,
                                    .inv_freq = a->inv_freq,
                                    .length = a->length,
                                    .n = a->n,
                                    .half = a->half,
                                    .longest = a->longest,
                                    .total = a->total,
                                    .pos0 = a->pos0,
                                    .step = a->step,
                                    .mscale = a->mscale,
                                    .long_mscale = a->long_mscale,
                                    .at = to_cuda_place(a->at)};
        if (a->n > 0) r = cuda_rope_table(s->stream, &t);
        break;
    }
    case OP_KV_LOAD: {
        const struct op_kv_load *a = &u->kv_load;
        if (a->n > 0) r = cuda_kv_load(s->stream, cuda_plane_of(&a->plane), a->out, a->row0, a->n, a->ldo);
        break;
    }
    case OP_EXPAND: return cuda_expand_op(s, &u->expand);
    case OP_ATTENTION: return attention(s, &u->attention);
    case OP_SELECT: return select_keys(s, &u->select);
    case OP_EXPERTS: return cuda_experts_op(s, &u->experts);
    case OP_DELTA: return delta(s, &u->delta);
    case OP_SCAN: {
        const struct op_scan *a = &u->scan;
        const struct cuda_scan c = {.out = a->out,
                                    .x = a->x,
                                    .a = a->a,
                                    .b = a->b,
                                    .c = a->c,
                                    .rate = a->rate,
                                    .dt = a->dt,
                                    .skip = a->skip,
                                    .before = a->before,
                                    .after = a->after,
                                    .n = a->n,
                                    .channels = a->channels,
                                    .state = a->state,
                                    .ldx = a->ldx,
                                    .lda = a->lda,
                                    .ldbc = a->ldbc,
                                    .ldo = a->ldo,
                                    .at = to_cuda_place(a->at)};
        if (a->n > 0) r = cuda_scan_rows(s->stream, &c);
        break;
    }
    case OP_COMPRESS: {
        const struct op_compress *a = &u->compress;
        struct cuda_compress c = {.out = a->out,
                                  .kv = a->kv,
                                  .gate = a->gate,
                                  .bias = a->bias,
                                  .before = a->before,
                                  .after = a->after,
                                  .n = a->n,
                                  .pos0 = a->pos0,
                                  .ratio = a->ratio,
                                  .dim = a->dim,
                                  .ldx = a->ldx,
                                  .overlap = a->overlap,
                                  .n_entries = op_compressed(a),
                                  .at = to_cuda_place(a->at),
                                  .state_at = a->state_at};
        if (a->n > 0) r = cuda_compress_rows(s->stream, &c);
        break;
    }
    case OP_NGRAM: {
        const struct op_ngram *a = &u->ngram;
        struct cuda_ngram c = {.rows = a->rows,
                               .tokens = a->tokens,
                               .before = a->before,
                               .after = a->after,
                               .n = a->n,
                               .size = a->size,
                               .per = a->per,
                               .end = a->end,
                               .ids = a->ids,
                               .passes_end = a->passes_end};
        memcpy(c.multiplier, a->multiplier, sizeof c.multiplier), memcpy(c.vocab, a->vocab, sizeof c.vocab),
            memcpy(c.offset, a->offset, sizeof c.offset);
        if (a->n > 0) r = cuda_ngram_rows(s->stream, &c);
        break;
    }
    case OP_ROUND: {
        const struct op_round *a = &u->round;
        if (a->block < 1 || a->m % a->block) r = cudaErrorInvalidValue;
        else if (a->n > 0) r = cuda_round_rows(s->stream, a->x, a->n, a->m, a->ld, a->block, a->kind);
        break;
    }
    case OP_RELATE: {
        const struct op_relate *a = &u->relate;
        if (a->n > 0) r = cuda_relate(s->stream, a->out, a->x, a->y, a->n * a->heads, a->dim, a->scale);
        break;
    }
    case OP_POOL: {
        const struct op_pool *a = &u->pool;
        struct cuda_pool c = {{0},        {0},          a->streams,   a->x,         a->n,
                              a->hidden,  a->n_streams, a->n_sources, a->n_queries, a->into,
                              a->skip_at, a->skip,      a->begins,    a->sums_raw,  a->eps};
        memcpy(c.out, a->out, sizeof c.out), memcpy(c.query, a->query, sizeof c.query);
        if (a->n_sources < 1 || a->n_sources > POOL_SOURCES_MOST || a->n_queries > POOL_QUERIES_MOST)
            r = cudaErrorNotSupported;
        else if (a->n > 0) r = cuda_pool_streams(s->stream, &c);
        break;
    }
    case OP_SPREAD: {
        const struct op_spread *a = &u->spread;
        if (a->n > 0) r = cuda_spread(s->stream, a->streams, a->x, a->post, a->n, a->hidden, a->n_streams);
        break;
    }
    case OP_MIX: {
        const struct op_mix *a = &u->mix;
        struct cuda_mix c = {.in = a->in,
                             .out = a->out,
                             .streams = a->streams,
                             .post = a->post,
                             .mix = a->mix,
                             .base = a->base,
                             .scale = a->scale,
                             .n = a->n,
                             .hidden = a->hidden,
                             .n_streams = a->n_streams,
                             .iters = a->iters,
                             .eps = a->eps,
                             .norm_eps = a->norm_eps,
                             .magnitude = a->magnitude > 0 ? a->magnitude : 2.0f,
                             .post_eps = a->post_eps,
                             .earlier = a->earlier,
                             .ld_earlier = a->ld_earlier};
        if (a->n_streams > CUDA_MAX_RESIDUAL_STREAMS) r = cudaErrorNotSupported;
        else if (a->n > 0) r = cuda_mix_streams(s->stream, &c);
        break;
    }
    case OP_SORT: {
        const struct op_sort *a = &u->sort;
        r = cuda_sort(s->stream, a->offset, a->token, a->weight, a->ids, a->weights, a->n, a->topk, a->first, a->last);
        break;
    }
    case OP_GATHER:
        if (u->gather.n > 0)
            r = cuda_gather(s->stream, u->gather.out, u->gather.x, u->gather.index, u->gather.n, u->gather.dim,
                            u->gather.ldx);
        break;
    case OP_FFN: return cuda_ffn_op(s, &u->ffn);
    case OP_GROUP: return cuda_group_op(s, &u->group);
    case OP_SCATTER_ADD: {
        const struct op_scatter_add *a = &u->scatter_add;
        if (a->n > 0) r = cuda_scatter_add(s->stream, a->y, a->x, a->index, a->weight, a->n, a->dim, a->ldy);
        break;
    }
    case OP_MERGE: {
        const struct op_merge *a = &u->merge;
        if (a->n > 0)
            r = cuda_merge(s->stream, a->out, a->lse, a->out2, a->lse2, a->n, a->heads, a->dim, a->ldo, a->ldo2);
        break;
    }
    case OP_COUNT: return ERR_RUNTIME;
    }
    return cuda_check(g, r, op_name(code));
}
