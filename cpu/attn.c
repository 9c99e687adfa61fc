/* Attention in tiles: a block of query rows (tokens x heads that share a KV head) against a tile of keys at a time,
 * with an online softmax, so that a row of scores is never stored whole. KV tiles are widened to float32, or copied to
 * contiguous memory, once for all rows of the block. Few rows (decode) form one block over all KV heads, which reads
 * its keys and values sequentially. Their keys are split into chunks, each gives (out, max, sum), and these are merged
 * in rising order of chunk. Both splits depend on the shape only, not on the number of threads. Calls of up to
 * BATCH_INVARIANT_ROWS tokens (decode, verify) do not round to BF16 unless keys are E4M3, whose own rounding is 16
 * times as coarse, and a token's chunks depend on the keys that it sees: masked keys at most add exact zeros. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

enum {
    TILE = 64,  /* keys */
    BLOCK = 32, /* rows */
    /* for prompts, of kernels that multiply 16 rows at a time: an output is loaded and stored, and values are put in
     * order, once per tile and block */
    LARGE_TILE = 256,
    LARGE_BLOCK = 128,
    ENOUGH = 64 /* blocks that need no split of the keys */,
    WIDE = 128 /* rows of a block over all KV heads */,
    WIDE_TOKENS = 4,
    PART_BYTES = 64 << 20 /* limit of partial results; a single token may need more */
};

struct job {
    struct cpu_exec *x;
    const struct op_attention *o;
    int group, heads_per, tokens_per; /* query heads per KV head; of these per block; tokens per block */
    int head_blocks, token_blocks;    /* head blocks per KV head, or 1 if wide */
    int rows, tile;                   /* per block, at most; keys at a time */
    int pitch16, rows16;              /* if bf16: packed rows per KV head of a block, and in all */
    bool wide;                        /* a block has all KV heads */
    int chunk, n_chunks;
    bool same;             /* v is k's own plane */
    bool bf16;             /* keys and values are read as BF16 in place */
    bool split;            /* with bf16: queries and probabilities are the sum of two BF16 */
    float *part, *part_ms; /* partial out [chunk][token][head][v_dim] and (max, sum) of the chunks, if n_chunks > 1 */
    uint8_t *scratch;
    size_t scratch_part;
};

struct scratch {               /* per thread, part of job.scratch */
    float *k, *v, *out;        /* [tile, k.dim], [tile, v_dim], [rows, v_dim] */
    float *s;                  /* [rows, tile], or rows of one KV head */
    uint16_t *k16, *v16, *q16; /* if job.bf16, instead of k and v: [tile, k.dim], [tile, v_dim], [rows16, q16_row] */
};
static int q16_row(const struct job *j) {
    return (j->o->k.dim + 31) / 32 * 32 * (j->split || j->x->k.qk16_uses_tiles || j->x->k.qk16_is_exact ? 2 : 1);
}
static size_t scratch_bytes(const struct job *j) {
    const struct op_attention *o = j->o;
    size_t floats = (size_t)j->rows * (size_t)(o->v_dim + j->tile);
    size_t tiles = (size_t)j->tile * (size_t)(o->k.dim + o->v_dim);
    floats += j->bf16 ? (tiles + (size_t)(j->rows16 * q16_row(j))) / 2 : tiles;
    return (floats * 4 + 4 * 64 + 63) / 64 * 64;
}
static struct scratch thread_scratch(const struct job *j, int thread) {
    struct scratch s;
    s.s = (float *)(j->scratch + (size_t)thread * j->scratch_part);
    s.out = s.s + j->rows * j->tile;
    s.k = s.out + (j->rows * j->o->v_dim + 15) / 16 * 16;
    s.v = s.k + (j->tile * j->o->k.dim + 15) / 16 * 16;
    s.k16 = (uint16_t *)s.k;
    s.v16 = s.k16 + (j->tile * j->o->k.dim + 31) / 32 * 32;
    s.q16 = s.v16 + (j->tile * j->o->v_dim + 31) / 32 * 32;
    return s;
}

static int64_t q_pos(const struct op_attention *o, int i) { return o->q_pos ? o->q_pos[i] : (int64_t)o->q_pos0 + i; }
/* The keys that token i sees: [*lo, *hi), indexes of rows or into its list of selected rows. */
static void visible_keys(const struct op_attention *o, int i, int *lo, int *hi) {
    int64_t p = q_pos(o, i), begin = o->window > 0 ? p - o->k_pos0 + 1 - o->window : 0;
    if (o->chunk_keys > 0 && p - p % o->chunk_keys - o->k_pos0 > begin) begin = p - p % o->chunk_keys - o->k_pos0;
    *hi = op_seen_step(o->q_last ? o->q_last[i] : p, o->k_pos0, o->k_step, o->n_keys);
    if (o->chosen_block) *hi = op_seen_blocks(*hi, o->n_chosen, o->chosen_block, o->own_block);
    else if (o->chosen && *hi > o->n_chosen) *hi = o->n_chosen; /* indexes into the list, not rows */
    *lo = begin < 0 ? 0 : begin < *hi ? (int)begin : *hi;
}

/* A head's prefetch of the next tile while it processes this one: `each` bytes per row, n rows a stride apart. In a
 * wide block the shares of all heads cover the tile, in order. */
static struct ahead next_tile_prefetch(const struct job *j, const struct kv_plane *p, int head, int j0, int n,
                                       int dim) {
    const size_t width = (size_t)p->heads * dtype_bytes(p->dtype, (size_t)p->dim),
                 one = dtype_bytes(p->dtype, (size_t)p->dim);
    const uint8_t *next = (const uint8_t *)p->data + (size_t)(j0 + n) * width;
    if (j->wide) return (struct ahead){next + (size_t)n * one * (size_t)head, one, n, (int)one};
    return (struct ahead){next + one * (size_t)head, width, n, (int)dtype_bytes(p->dtype, (size_t)dim)};
}

/* Rows [j0, j0 + n) of one head as float32: in place if stored as such, else widened into buf. Scales are not applied.
 * pick: indexes of the rows to use instead, or NULL. */
static const float *tile_of(const struct job *j, const struct kv_plane *p, int head, int j0, int n, int dim,
                            const int32_t *pick, float *buf, int *ld) {
    size_t width = (size_t)p->heads * (size_t)p->dim, at = (size_t)j0 * width + (size_t)head * (size_t)p->dim,
           size = dtype_bytes(p->dtype, 1);
    *ld = p->dtype == DT_F32 && !pick ? (int)width : dim;
    if (pick) {
        for (int i = 0; i < n; i++)
            j->x->k.widen[p->dtype](
                buf + i * dim,
                (const uint8_t *)p->data + ((size_t)pick[i] * width + (size_t)head * (size_t)p->dim) * size, dim);
        return buf;
    }
    if (p->dtype == DT_F32) return (const float *)p->data + at;
    struct ahead a = next_tile_prefetch(j, p, head, j0, n, dim);
    for (int i = 0; i < n; i++, a.next += a.stride) {
        for (int c = 0; c < a.each; c += 64) __builtin_prefetch(a.next + c);
        j->x->k.widen[p->dtype](buf + i * dim, (const uint8_t *)p->data + (at + (size_t)i * width) * size, dim);
    }
    return buf;
}
/* A tile as BF16, in place if stored as such. Rows at page distance map to few cache sets, so their tile is copied to
 * contiguous memory, unless it is read only once (qk16_uses_tiles). */
static const uint16_t *tile16(const struct job *j, const struct kv_plane *p, int head, int j0, int n, int dim,
                              const int32_t *pick, uint16_t *buf, int *ld) {
    const size_t one = dtype_bytes(p->dtype, (size_t)p->dim), width = (size_t)p->heads * one;
    const uint8_t *first = (const uint8_t *)p->data + (size_t)head * one, *row = first + (size_t)j0 * width;
    const bool widen = p->dtype == DT_E4M3,
               copy = pick || widen || (p->heads > 1 && width % 4096 == 0 && !j->x->k.qk16_uses_tiles);
    *ld = copy ? dim : (int)(width / 2);
    if (!copy) return (const uint16_t *)(const void *)row;
    if (widen && !pick) j->x->k.widen16(buf, row, width, n, dim);
    for (int i = 0; i < n && (pick || !widen); i++, row += width) {
        const uint8_t *from = pick ? first + (size_t)pick[i] * width : row;
        if (widen) j->x->k.widen16(buf + i * dim, from, width, 1, dim);
        else memcpy(buf + i * dim, from, (size_t)dim * 2);
    }
    return buf;
}

struct rows { /* the query rows of a block; rows of a KV head are contiguous */
    int n, token[WIDE], head[WIDE], lo[WIDE], hi[WIDE];
    const float *q[WIDE];
    float max[WIDE], sum[WIDE];
};

static void mask_tile(const struct rows *r, int r0, int r1, float *s, int tile, int j0, int n) {
    for (int i = r0; i < r1; i++, s += tile) {
        if (r->lo[i] <= j0 && r->hi[i] >= j0 + n) continue;
        for (int c = 0; c < n; c++)
            if (j0 + c < r->lo[i] || j0 + c >= r->hi[i]) s[c] = -INFINITY;
    }
}
static void apply_kv_scales(const struct job *j, const struct kv_plane *p, int head, int rows, const int32_t *pick,
                            float *s, int j0, int n) {
    if (p->dtype != DT_E4M3) return;
    float by[LARGE_TILE];
    for (int c = 0; c < n; c++) by[c] = p->scale[(size_t)(pick ? pick[c] : j0 + c) * (size_t)p->heads + (size_t)head];
    for (int i = 0; i < rows; i++, s += j->tile) j->x->k.scale(s, s, 1, by, 0, n);
}

/* cap * tanh(s / cap) = 2 * cap * sigmoid(2 * s / cap) - cap. */
static void cap_scores(const struct job *j, int rows, float *s, int n) {
    const float cap = j->o->softcap;
    float twice[LARGE_TILE], at[LARGE_TILE];
    for (int i = 0; i < rows; i++, s += j->tile) {
        for (int c = 0; c < n; c++) at[c] = s[c] * (2 / cap), twice[c] = 2 * cap;
        j->x->k.gate(twice, at, n);
        for (int c = 0; c < n; c++) s[c] = twice[c] - cap;
    }
}

/* Multiplies the scores of late queries (temperature_len). */
static void apply_temperature(const struct job *j, const struct rows *r, int r0, int r1, float *s, int n) {
    for (int i = r0; i < r1; i++, s += j->tile) {
        const int64_t pos = q_pos(j->o, r->token[i]);
        const float by = log2f((float)pos) / log2f((float)j->o->temperature_len);
        for (int c = 0; c < n && pos > j->o->temperature_len; c++) s[c] *= by;
    }
}

/* Adds the bias of each key by its distance from the query. */
static void add_bias(const struct job *j, const struct rows *r, int r0, int r1, const int32_t *pick, float *s, int j0,
                     int n) {
    const struct op_attention *o = j->o;
    for (int i = r0; i < r1; i++, s += j->tile) {
        const float *bias =
            o->bias + ((size_t)r->token[i] * (size_t)o->n_heads + (size_t)r->head[i]) * (size_t)o->extent;
        const int64_t pos = q_pos(o, r->token[i]) - o->k_pos0;
        for (int c = 0; c < n; c++) {
            const int64_t far = pos - (pick ? pick[c] : j0 + c);
            if (far >= 0 && far < o->extent) s[c] += bias[far];
        }
    }
}

/* One tile of keys of a KV head for rows [r0, r1). Rows that see no key of it are unchanged. */
static void attend_tile(const struct job *j, struct rows *r, int r0, int r1, const struct scratch *w, int kv_head,
                        int j0, int n) {
    const struct op_attention *o = j->o;
    const struct kernels *k = &j->x->k;
    int ldk, ldv;
    const float *kt = NULL, *vt = NULL;
    const uint16_t *k16 = NULL, *v16 = NULL;
    int32_t listed[LARGE_TILE];
    const int lists = o->chosen_lists ? o->chosen_lists : 1, list = r->token[r0] * lists + kv_head * lists / o->k.heads;
    const int32_t *pick = o->chosen ? o->chosen + (size_t)list * (size_t)o->n_chosen + j0 : NULL;
    if (o->chosen_block) {
        const int seen = op_seen_step(q_pos(o, r->token[r0]), o->k_pos0, 1, o->n_keys);
        for (int c = 0; c < n; c++)
            listed[c] = j0 + c < r->hi[r0]
                            ? op_listed_key(pick - j0, seen, o->n_chosen, o->chosen_block, o->own_block, j0 + c)
                            : 0;
        pick = listed;
    }
    if (j->bf16) v16 = k16 = tile16(j, &o->k, kv_head, j0, n, o->k.dim, pick, w->k16, &ldk);
    else vt = kt = tile_of(j, &o->k, kv_head, j0, n, o->k.dim, pick, w->k, &ldk);
    if (j->same) ldv = ldk;
    else if (j->bf16) v16 = tile16(j, &o->v, kv_head, j0, n, o->v_dim, pick, w->v16, &ldv);
    else vt = tile_of(j, &o->v, kv_head, j0, n, o->v_dim, pick, w->v, &ldv);
    struct ahead ak = {0}, av = {0};
    if (!pick) ak = next_tile_prefetch(j, &o->k, kv_head, j0, n, o->k.dim);
    if (!pick && !j->same) av = next_tile_prefetch(j, &o->v, kv_head, j0, n, o->v_dim);
    float corr[WIDE], *out = w->out + (size_t)r0 * (size_t)o->v_dim;
    const int rows = r1 - r0;
    if (j->bf16)
        k->qk16(w->s, j->tile, w->q16 + (size_t)(r0 / rows * j->pitch16) * (size_t)q16_row(j), rows, k16, ldk, n,
                o->k.dim, j->split, &ak);
    else k->qk(w->s, j->tile, r->q + r0, rows, kt, ldk, n, o->k.dim, o->scale);
    apply_kv_scales(j, &o->k, kv_head, rows, pick, w->s, j0, n);
    if (o->softcap > 0) cap_scores(j, rows, w->s, n);
    if (o->temperature_len > 1) apply_temperature(j, r, r0, r1, w->s, n);
    if (o->bias) add_bias(j, r, r0, r1, pick, w->s, j0, n);
    mask_tile(r, r0, r1, w->s, j->tile, j0, n);
    for (int i = r0; i < r1; i++) {
        float *s = w->s + (i - r0) * j->tile;
        if (r->lo[i] < j0 + n && r->hi[i] > j0 && r->lo[i] < r->hi[i])
            corr[i - r0] = k->soft(s, n, &r->max[i], &r->sum[i]);
        else {
            corr[i - r0] = 1;
            memset(s, 0, (size_t)n * 4);
        }
    }
    apply_kv_scales(j, &o->v, kv_head, rows, pick, w->s, j0, n);
    if (j->bf16) k->pv16(out, o->v_dim, corr, w->s, j->tile, rows, v16, ldv, n, o->v_dim, j->split, &av);
    else k->pv(out, o->v_dim, corr, w->s, j->tile, rows, vt, ldv, n, o->v_dim);
}

static void store_output(const struct job *j, int token, int head, const float *acc, float max, float sum) {
    const struct op_attention *o = j->o;
    float *out = o->out + (size_t)token * (size_t)o->ldo + (size_t)head * (size_t)o->v_dim;
    float scale = 1;
    if (o->sinks) { /* one more logit, without a value */
        float m = o->sinks[head] > max ? o->sinks[head] : max;
        scale = max > -INFINITY ? expf(max - m) : 0;
        sum = sum * scale + expf(o->sinks[head] - m);
        max = m;
    }
    scale = sum == 0 ? 0 : scale / sum; /* NaN scores must propagate */
    for (int d = 0; d < o->v_dim; d++) out[d] = acc[d] * scale;
    if (o->lse) o->lse[(size_t)token * (size_t)o->n_heads + (size_t)head] = sum == 0 ? -INFINITY : max + logf(sum);
}

static void block_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_attention *o = j->o;
    struct scratch w = thread_scratch(j, thread);
    struct rows r;
    int chunk = task % j->n_chunks, block = task / j->n_chunks, columns = j->wide ? 1 : j->head_blocks * o->k.heads;
    int head_block = block % columns, token_block = block / columns, lo = o->n_keys, hi = 0;
    int kv0 = j->wide ? 0 : head_block / j->head_blocks, kv1 = j->wide ? o->k.heads : kv0 + 1,
        h0 = j->wide ? 0 : head_block % j->head_blocks * j->heads_per;
    r.n = 0;
    for (int kv = kv0; kv < kv1; kv++) {
        const int first = r.n;
        for (int t = token_block * j->tokens_per; t < o->n && t < (token_block + 1) * j->tokens_per; t++)
            for (int h = h0; h < j->group && h < h0 + j->heads_per; h++) {
                int i = r.n++, head = kv * j->group + h;
                r.token[i] = t, r.head[i] = head;
                r.q[i] = o->q + (size_t)t * (size_t)o->ldq + (size_t)head * (size_t)o->k.dim;
                r.max[i] = -INFINITY, r.sum[i] = 0;
                if (j->bf16)
                    j->x->k.qk16_pack(w.q16, (kv - kv0) * j->pitch16 + i - first, r.q[i], o->k.dim, o->scale, j->split);
                visible_keys(o, t, &r.lo[i], &r.hi[i]);
                if (r.lo[i] < r.hi[i]) lo = r.lo[i] < lo ? r.lo[i] : lo, hi = r.hi[i] > hi ? r.hi[i] : hi;
            }
    }
    memset(w.out, 0, (size_t)r.n * (size_t)o->v_dim * 4);
    int begin = chunk * j->chunk, end = j->n_chunks > 1 ? begin + j->chunk : o->n_keys;
    end = end < hi ? end : hi;
    begin = begin > lo / j->tile * j->tile ? begin : lo / j->tile * j->tile;
    for (int j0 = begin; j0 < end && !cpu_exec_is_cancelled(j->x); j0 += j->tile)
        for (int kv = kv0, each = r.n / (kv1 - kv0); kv < kv1; kv++)
            attend_tile(j, &r, (kv - kv0) * each, (kv - kv0 + 1) * each, &w, kv, j0,
                        end - j0 < j->tile ? end - j0 : j->tile);
    for (int i = 0; i < r.n; i++) {
        if (j->n_chunks == 1) {
            store_output(j, r.token[i], r.head[i], w.out + (size_t)i * (size_t)o->v_dim, r.max[i], r.sum[i]);
            continue;
        }
        size_t at = ((size_t)chunk * (size_t)o->n + (size_t)r.token[i]) * (size_t)o->n_heads + (size_t)r.head[i];
        memcpy(j->part + at * (size_t)o->v_dim, w.out + (size_t)i * (size_t)o->v_dim, (size_t)o->v_dim * 4);
        j->part_ms[2 * at] = r.max[i];
        j->part_ms[2 * at + 1] = r.sum[i];
    }
}

/* Merges the chunks of one (token, head). */
static void merge_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_attention *o = j->o;
    float *acc = thread_scratch(j, thread).out, max = -INFINITY, sum = 0;
    size_t step = (size_t)o->n * (size_t)o->n_heads;
    memset(acc, 0, (size_t)o->v_dim * 4);
    for (int c = 0; c < j->n_chunks; c++) max = fmaxf(max, j->part_ms[2 * ((size_t)c * step + (size_t)task)]);
    for (int c = 0; c < j->n_chunks; c++) {
        size_t at = (size_t)c * step + (size_t)task;
        if (j->part_ms[2 * at + 1] == 0) continue;
        float f = expf(j->part_ms[2 * at] - max);
        sum += j->part_ms[2 * at + 1] * f;
        j->x->k.axpy(acc, f, j->part + at * (size_t)o->v_dim, o->v_dim);
    }
    store_output(j, task / o->n_heads, task % o->n_heads, acc, max, sum);
}

/* Keys per chunk: small enough for parallelism, large enough that merging is cheap. */
static int keys_per_chunk(int n_keys) {
    int chunk = TILE;
    while (n_keys / chunk >= (chunk < 256 ? 32 : 128)) chunk *= 2;
    return chunk;
}

/* Most keys that a token attends to. */
static int max_keys(const struct op_attention *o) {
    if (o->chosen_block) return op_seen_blocks(o->n_keys, o->n_chosen, o->chosen_block, o->own_block) + o->chosen_block;
    return o->chosen && o->n_chosen < o->n_keys ? o->n_chosen : o->n_keys;
}

static bool reads_as_bf16(const struct job *j, const struct kv_plane *p) {
    return j->x->k.qk16 && (p->dtype == DT_BF16 || (p->dtype == DT_E4M3 && j->x->k.widen16));
}

/* Splits tokens and heads into blocks of at most `rows` rows, or into one of all. Returns the number of blocks. */
static int split_into_blocks(struct job *j, int rows) {
    const struct op_attention *o = j->o;
    j->heads_per = j->group < rows || j->wide ? j->group : rows;
    /* tokens with their own selection share no tile */
    j->tokens_per = j->wide ? o->n : o->chosen ? 1 : rows / j->heads_per;
    j->rows = j->wide ? o->n * o->n_heads : rows;
    j->head_blocks = (j->group + j->heads_per - 1) / j->heads_per;
    j->token_blocks = (o->n + j->tokens_per - 1) / j->tokens_per;
    return j->token_blocks * (j->wide ? 1 : j->head_blocks * o->k.heads);
}
/* Short windows would leave most of a large tile masked. */
static bool takes_large_tiles(const struct job *j, bool few) {
    const int seen = j->o->window > 0 ? j->o->window : j->o->chunk_keys;
    return j->x->k.qk16_uses_tiles && j->bf16 && !few && !j->wide && (seen <= 0 || seen >= 4 * LARGE_TILE);
}

/* Tokens whose chunks have `chunk` keys. */
static int run_tokens(struct exec *base, const struct op_attention *o, int chunk, bool few) {
    struct job j = {.x = (struct cpu_exec *)base, .o = o, .group = o->n_heads / o->k.heads};
    j.same = o->v.data == o->k.data && o->v.heads == o->k.heads && o->v.dim == o->k.dim && o->v.dtype == o->k.dtype;
    j.wide = o->n <= (o->chosen ? 1 : WIDE_TOKENS) && o->n * o->n_heads <= WIDE;
    j.bf16 = reads_as_bf16(&j, &o->k) && reads_as_bf16(&j, &o->v);
    if (j.x->k.qk16_uses_tiles && (o->k.dim > ATTN_AMX_DIM || o->v_dim > ATTN_AMX_DIM)) j.bf16 = false;
    const bool is_large = takes_large_tiles(&j, few);
    j.tile = is_large ? LARGE_TILE : TILE;
    int rows_per = is_large ? LARGE_BLOCK : BLOCK, blocks;
    while ((blocks = split_into_blocks(&j, rows_per)) < ENOUGH && rows_per > BLOCK) rows_per /= 2;
    j.chunk = chunk;
    const int keys = max_keys(o);
    j.n_chunks = (blocks >= ENOUGH && !few) || keys <= j.chunk ? 1 : (keys + j.chunk - 1) / j.chunk;
    const int each = j.wide ? o->n * j.group : j.rows;
    j.pitch16 = (each + 15) / 16 * 16;
    j.rows16 = j.wide ? j.pitch16 * o->k.heads : j.pitch16;
    j.split = few && o->k.dtype != DT_E4M3;
    j.scratch_part = scratch_bytes(&j);
    size_t scratch = j.scratch_part * (size_t)pool_threads(j.x->pool), rows = (size_t)o->n * (size_t)o->n_heads;
    size_t part = j.n_chunks > 1 ? rows * (size_t)j.n_chunks * 4 : 0;
    j.scratch = cpu_exec_workspace(j.x, scratch + part * (size_t)(o->v_dim + 2));
    if (!j.scratch) return ERR_MEMORY;
    j.part = (float *)(j.scratch + scratch);
    j.part_ms = (float *)(j.scratch + scratch + part * (size_t)o->v_dim);
    int rc = cpu_exec_for_each(j.x, blocks * j.n_chunks, block_task, &j);
    if (!rc && j.n_chunks > 1) rc = cpu_exec_for_each(j.x, (int)rows, merge_task, &j);
    return rc;
}

int cpu_attention(struct exec *base, const struct op_attention *o) {
    int rc = 0, lo, hi;
    if (o->n > BATCH_INVARIANT_ROWS) return run_tokens(base, o, keys_per_chunk(max_keys(o)), false);
    for (int i = 0, n; !rc && i < o->n; i += n) { /* consecutive tokens with the same chunk length: mostly all */
        struct op_attention part = *o;
        visible_keys(o, i, &lo, &hi);
        if (!o->chosen_block) part.n_keys = hi;
        const int chunk = keys_per_chunk(hi);
        const size_t each = (size_t)(hi / chunk + 1) * (size_t)o->n_heads * (size_t)(o->v_dim + 2) * sizeof(float);
        for (n = 1; i + n < o->n && (size_t)n * each < PART_BYTES; n++) {
            visible_keys(o, i + n, &lo, &hi);
            if (keys_per_chunk(hi) != chunk) break;
            part.n_keys = hi > part.n_keys ? hi : part.n_keys;
        }
        part.n = n, part.q_pos0 += i;
        part.out += (ptrdiff_t)i * o->ldo, part.q += (ptrdiff_t)i * o->ldq;
        if (o->q_pos) part.q_pos += i;
        if (o->q_last) part.q_last += i;
        if (o->chosen) part.chosen += (ptrdiff_t)i * o->n_chosen * (o->chosen_lists ? o->chosen_lists : 1);
        if (o->lse) part.lse += (ptrdiff_t)i * o->n_heads;
        rc = run_tokens(base, &part, chunk, true);
    }
    return rc;
}
