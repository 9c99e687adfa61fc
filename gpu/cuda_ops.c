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

/* Keys are split where the blocks would leave SMs idle: the tail of short prompts. With few queries always:
 * chunk_begin. */
static int splits_for(const struct cuda_stream *s, long blocks, long keys, long least) {
    long want = 2L * s->g->n_sms, splits = blocks >= want ? 1 : (want + blocks - 1) / blocks,
         most = (keys + least - 1) / least;
    return (int)(splits < most ? splits : most > 1 ? most : 1);
}
static size_t parts_size(const struct cuda_attention *a) {
    size_t rows = (size_t)a->splits * (size_t)a->o.n * (size_t)a->o.n_heads;
    return a->splits > 1 ? align_up(rows * (size_t)a->o.v_dim * 4, 256) + align_up(rows * 4, 256) : 0;
}
/* Keys that a query may see, those of its list if it has one. */
static int keys_listed(const struct op_attention *o) {
    if (o->chosen_block) return op_seen_blocks(o->n_keys, o->n_chosen, o->chosen_block, o->own_block) + o->chosen_block;
    return o->chosen && o->n_chosen < o->n_keys ? o->n_chosen : o->n_keys;
}
static void parts_at(struct cuda_attention *a, char *space) {
    a->part = (float *)space;
    a->part_lse =
        (float *)(space +
                  align_up((size_t)a->splits * (size_t)a->o.n * (size_t)a->o.n_heads * (size_t)a->o.v_dim * 4, 256));
}

/* Runs attention on tensor cores. Planes that they cannot read as they are (!direct) are converted first, as many KV
 * heads at a time as fit the workspace. */
static int attention_mma(struct cuda_stream *s, struct cuda_attention *a, bool direct) {
    int group = a->o.n_heads / a->o.k.heads, rows = cuda_attention_mma_rows(a), heads = a->o.k.heads;
    int k_dim = (a->o.k.dim + 7) & ~7, v_dim = (a->o.v_dim + 7) & ~7;
    bool v_in_k = kv_planes_equal(&a->o.k, &a->o.v);
    size_t keys = (size_t)a->o.n_keys, k_size = direct ? 0 : keys * (size_t)k_dim * 2,
           v_size = direct || v_in_k ? 0 : keys * (size_t)v_dim * 2;
    if (k_size && ATTENTION_SPACE / (k_size + v_size) < (size_t)heads)
        heads = ATTENTION_SPACE < k_size + v_size ? 1 : (int)(ATTENTION_SPACE / (k_size + v_size));
    struct cuda_attention b = *a;
    b.o.n_heads = heads * group;
    b.splits = a->chunked ? cuda_attention_chunks(a->o.n_keys)
                          : splits_for(s, ((long)a->o.n * group + rows - 1) / rows * heads, a->o.n_keys, 256);
    size_t k_all = align_up(k_size * (size_t)heads, 256), v_all = align_up(v_size * (size_t)heads, 256),
           size = k_all + v_all + parts_size(&b);
    char *space = size ? cuda_workspace(s, size) : NULL;
    if (!space && size) return ERR_RUNTIME;
    if (b.splits > 1) parts_at(&b, space + k_all + v_all);
    for (int h = 0; h < a->o.k.heads; h += heads) {
        int n_heads = a->o.k.heads - h < heads ? a->o.k.heads - h : heads; /* of keys, in this launch */
        size_t skip = (size_t)(h * group);
        b.o.n_heads = n_heads * group;
        b.o.q = a->o.q + skip * (size_t)a->q_dim;
        b.o.out = a->o.out + skip * (size_t)a->o.v_dim;
        b.o.lse = a->o.lse ? a->o.lse + skip : NULL;
        b.o.sinks = a->o.sinks ? a->o.sinks + skip : NULL;
        if (!direct) {
            b.o.k = (struct kv_plane){.data = space, .heads = n_heads, .dim = k_dim, .dtype = DT_BF16};
            b.o.v = v_in_k ? b.o.k
                           : (struct kv_plane){.data = space + k_all, .heads = n_heads, .dim = v_dim, .dtype = DT_BF16};
            if (cuda_check(s->g, cuda_plane_to_bf16(s->stream, space, a->o.k, h, n_heads, a->o.n_keys, k_dim), "keys"))
                return ERR_RUNTIME;
            if (!v_in_k &&
                cuda_check(s->g, cuda_plane_to_bf16(s->stream, space + k_all, a->o.v, h, n_heads, a->o.n_keys, v_dim),
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
    a->o.out += at * (size_t)a->o.ldo;
    a->o.q += at * (size_t)a->o.ldq;
    if (a->o.lse) a->o.lse += at * (size_t)a->lse_ld;
    if (a->o.q_pos) a->o.q_pos += at;
    if (a->o.chosen) a->o.chosen += at * (size_t)a->o.chosen_lists * (size_t)a->o.n_chosen;
    if (a->o.bias) a->o.bias += at * (size_t)a->o.n_heads * (size_t)a->o.extent;
    a->o.q_pos0 += first;
    a->first = first;
    a->o.n = n;
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
                    : splits_for(s, (long)a->o.n * o->k.heads * ((group + heads - 1) / heads), keys_listed(o), 128);
    if (a->splits > 1) {
        char *space = cuda_workspace(s, parts_size(a));
        if (!space) return ERR_RUNTIME;
        parts_at(a, space);
    }
    a->tickets = few && a->splits > 1 ? cuda_tickets(s) : NULL;
    return few ? cuda_check(s->g, cuda_attention_few(s->stream, a), "attention_few")
               : cuda_check(s->g, cuda_attention_f32(s->stream, a), "attention_f32");
}

/* Few queries of very many keys: as many rows at a time as have room for their parts. */
int cuda_attention_op(struct cuda_stream *s, const struct op_attention *o) {
    struct cuda_attention a = {.o = *o,
                               .q_dim = o->k.dim,
                               .lse_ld = o->n_heads,
                               .chunked = o->n <= BATCH_INVARIANT_ROWS,
                               .all = o->n,
                               .splits = 1};
    if (o->n < 1) return 0;
    if (o->q_last) return ERR_RUNTIME; /* CPU only */
    cuda_fill_defaults(OP_ATTENTION, (union op_args *)&a.o);
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
int cuda_select_op(struct cuda_stream *s, const struct op_select *o) {
    const int candidates = o->block ? o->n_keys / o->block : o->n_keys, lists = op_select_lists(o),
              keys = o->block && o->weight ? o->n_keys : 0;
    size_t row = ((size_t)(candidates > 0 ? candidates : 1) * (size_t)lists + (size_t)keys) * sizeof(float);
    int most = SELECT_SPACE / row < 1 ? 1 : SELECT_SPACE / row < (size_t)o->n ? (int)(SELECT_SPACE / row) : o->n;
    float *score = o->n < 1 ? NULL : cuda_workspace(s, (size_t)most * row);
    if (!score && o->n > 0) return ERR_RUNTIME;
    struct cuda_select a = {.o = *o,
                            .all = o->n,
                            .lists = lists,
                            .candidates = candidates,
                            .score = score,
                            .key_score = keys ? score + (size_t)most * (size_t)(candidates > 0 ? candidates : 1) : NULL,
                            .keys = keys};
    cuda_fill_defaults(OP_SELECT, (union op_args *)&a.o);
    for (int at = 0; at < o->n; at += most) {
        struct cuda_select b = a;
        b.first = at;
        b.o.n = o->n - at < most ? o->n - at : most;
        b.o.chosen += (size_t)at * (size_t)lists * (size_t)o->topk;
        b.o.q += (size_t)at * (size_t)o->ldq;
        if (o->weight) b.o.weight += (size_t)at * (size_t)o->heads;
        if (o->among) b.o.among += (size_t)at * (size_t)o->n_among;
        b.o.q_pos0 += at;
        if (cuda_check(s->g, cuda_select_keys(s->stream, &b), "select")) return ERR_RUNTIME;
    }
    return 0;
}

static void fill_plane(struct kv_plane *p) {
    const uint64_t rows = (uint64_t)p->block_rows;
    p->inverse = rows > 1 ? (uint32_t)(((1ull << 32) + rows - 1) / rows) : 0;
}
void cuda_fill_defaults(enum op_code code, union op_args *a) {
    switch (code) {
    case OP_EMBED: a->embed.scale = a->embed.scale != 0 ? a->embed.scale : 1; break;
    case OP_KV_STORE: fill_plane(&a->kv_store.plane); break;
    case OP_KV_LOAD: fill_plane(&a->kv_load.plane); break;
    case OP_EXPAND: fill_plane(&a->expand.latent); break;
    case OP_ATTENTION:
        fill_plane(&a->attention.k), fill_plane(&a->attention.v);
        a->attention.k_step = a->attention.k_step ? a->attention.k_step : 1;
        a->attention.chosen_lists = a->attention.chosen_lists ? a->attention.chosen_lists : 1;
        break;
    case OP_SELECT:
        fill_plane(&a->select.k);
        a->select.k_step = a->select.k_step ? a->select.k_step : 1;
        break;
    case OP_ROUTE: a->route.n_group = a->route.n_group < 1 ? 1 : a->route.n_group; break;
    case OP_ADD: a->add.ldx = a->add.ldx ? a->add.ldx : a->add.m; break;
    case OP_CONV: a->conv.past = op_conv_past(&a->conv); break;
    case OP_MIX: a->mix.magnitude = a->mix.magnitude > 0 ? a->mix.magnitude : 2; break;
    default: break;
    }
}

/* Runs the one kernel of an operation. */
static int run_kernel(struct cuda_stream *s, enum op_code code, const union op_args *u) {
    cudaError_t r = cudaSuccess;
    union op_args own;
    if (!op_numbers(code, u) && code != OP_SORT) return 0; /* sorting nothing stores empty groups */
    memcpy(&own, u, op_size(code));
    cuda_fill_defaults(code, &own);
    switch (code) {
#define RUN_HOST(name, CODE)
#define RUN_KERNEL(name, CODE) \
    case OP_##CODE: \
        r = cuda_##name(s->stream, &own.name); \
        break;
#define RUN_SMALL(name, CODE)     RUN_KERNEL(name, CODE)
#define X(name, CODE, class, ...) RUN_##class(name, CODE)
        OPS_ALL(X)
#undef X
    default: return ERR_RUNTIME;
    }
    return cuda_check(s->g, r, op_name(code));
}

int cuda_run_op(struct op_exec *x, enum op_code code, const union op_args *u) {
    struct cuda_stream *s = (struct cuda_stream *)x;
    struct cuda *g = s->g;
    if (s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed)) return s->has_down = false, ERR_CANCELLED;
    if (g->base.b->error(&g->base, NULL)) return s->has_down = false, ERR_RUNTIME;
    if (cuda_check(g, cudaSetDevice(g->card), "device")) return ERR_RUNTIME;
    if (s->has_down && code != OP_CHAIN) TRY(cuda_down_run(s, NULL));
    switch (code) {
#define RUN_OP_SMALL(name, CODE)
#define RUN_OP_KERNEL(name, CODE)
#define RUN_OP_HOST(name, CODE) \
    case OP_##CODE: \
        return cuda_##name##_op(s, &u->name);
#define X(name, CODE, class, ...) RUN_OP_##class(name, CODE)
        OPS_ALL(X)
#undef X
    default: return run_kernel(s, code, u);
    }
}
