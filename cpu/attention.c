/* Attention in tiles: a block of query rows (tokens x heads that share a KV head) against TILE keys at a time, with the
 * softmax kept up to date on the way (online softmax), so that no row of scores is ever stored whole. KV tiles are
 * widened to float32 once for all rows of the block.
 * Few blocks (decode) would leave threads idle over a long context, so their keys are also cut into chunks of a fixed
 * number; each chunk gives (out, max, sum), and these are merged in rising order of chunk. Both cuts follow from the
 * shape alone, never from the number of threads. */
#include <math.h>
#include <string.h>

#include "cpu/exec.h"

enum { TILE = 64, BLOCK = 32, CHUNK = 512, ENOUGH = 64, /* blocks that need no cut along the keys */
       FEW = 4 /* tokens: decode, and the verification of drafts, keep what BF16 would round away */ };

struct job {
    struct cpu_exec *x;
    const struct op_attention *o;
    int group, heads_per, tokens_per; /* query heads of a KV head; heads and tokens in a block */
    int head_blocks, token_blocks;    /* head blocks of one KV head */
    int chunk, n_chunks;
    bool same; /* v is k's own plane */
    bool bf16; /* keys and values are multiplied as they lie */
    bool split; /* then: queries and probabilities as two BF16 each */
    float *part, *part_ms; /* chunks' partial out [chunk][token][head][v_dim] and (max, sum), when n_chunks > 1 */
    uint8_t *scratch;
    size_t scratch_part;
};

struct scratch { /* of one thread, carved from job.scratch */
    float *k, *v, *out; /* [TILE, k.dim], [TILE, v_dim], [BLOCK, v_dim] */
    float *s;           /* [BLOCK, TILE] */
    uint16_t *q16;      /* [BLOCK, q16_row] instead of k and v where job.bf16 */
};
static int q16_row(const struct job *j) { return (j->o->k.dim + 31) / 32 * 32 * (j->split ? 2 : 1); }
static size_t scratch_bytes(const struct job *j) {
    const struct op_attention *o = j->o;
    size_t floats = (size_t)BLOCK * (size_t)o->v_dim + BLOCK * TILE;
    floats += j->bf16 ? (size_t)(BLOCK * q16_row(j)) / 2 : (size_t)TILE * (size_t)(o->k.dim + o->v_dim);
    return (floats * 4 + 3 * 64 + 63) / 64 * 64;
}
static struct scratch carve(const struct job *j, int thread) {
    struct scratch s;
    s.s = (float *)(j->scratch + (size_t)thread * j->scratch_part);
    s.out = s.s + BLOCK * TILE;
    s.k = s.out + (BLOCK * j->o->v_dim + 15) / 16 * 16;
    s.v = s.k + (TILE * j->o->k.dim + 15) / 16 * 16;
    s.q16 = (uint16_t *)s.k;
    return s;
}

static int64_t q_pos(const struct op_attention *o, int i) { return o->q_pos ? o->q_pos[i] : (int64_t)o->q_pos0 + i; }
/* The keys that token i sees are [*lo, *hi), as indices of rows. */
static void visible(const struct op_attention *o, int i, int *lo, int *hi) {
    int64_t p = q_pos(o, i), end = p - o->k_pos0 + 1, begin = o->window > 0 ? end - o->window : 0;
    *hi = end < 0 ? 0 : end < o->n_keys ? (int)end : o->n_keys;
    *lo = begin < 0 ? 0 : begin < *hi ? (int)begin : *hi;
}

/* Rows [j0, j0 + n) of one head as float32: in place where they are, else widened into buf. Scales are not applied. */
static const float *tile_of(const struct job *j, const struct kv_plane *p, int head, int j0, int n, int dim, float *buf, int *ld) {
    size_t width = (size_t)p->heads * (size_t)p->dim, at = (size_t)j0 * width + (size_t)head * (size_t)p->dim, size = dtype_bytes(p->dtype, 1);
    *ld = p->dtype == DT_F32 ? (int)width : dim;
    if (p->dtype == DT_F32) return (const float *)p->data + at;
    const uint8_t *row = (const uint8_t *)p->data + at * size;
    for (int i = 0; i < n; i++, row += width * size) {
        for (size_t line = 0; line < (size_t)dim * size; line += 64) __builtin_prefetch(row + (size_t)TILE * width * size + line); /* the next tile's */
        j->x->k.widen[p->dtype](buf + i * dim, row, dim);
    }
    return buf;
}

static const uint16_t *row16(const struct kv_plane *p, int head, int j0) {
    return (const uint16_t *)p->data + ((size_t)j0 * (size_t)p->heads + (size_t)head) * (size_t)p->dim;
}

struct rows { /* the query rows of a block */
    int n, token[BLOCK], head[BLOCK], lo[BLOCK], hi[BLOCK];
    const float *q[BLOCK];
    float max[BLOCK], sum[BLOCK];
};

static void mask(const struct rows *r, float *s, int j0, int n) {
    for (int i = 0; i < r->n; i++) {
        if (r->lo[i] <= j0 && r->hi[i] >= j0 + n) continue;
        for (int c = 0; c < n; c++)
            if (j0 + c < r->lo[i] || j0 + c >= r->hi[i]) s[i * TILE + c] = -INFINITY;
    }
}
static void times_scale(const struct kv_plane *p, int head, const struct rows *r, float *s, int j0, int n) {
    if (p->dtype != DT_E4M3) return;
    for (int i = 0; i < r->n; i++)
        for (int c = 0; c < n; c++) s[i * TILE + c] *= p->scale[(size_t)(j0 + c) * (size_t)p->heads + (size_t)head];
}

/* One tile of keys for all rows. Rows that see none of it keep what they have. */
static void one_tile(const struct job *j, struct rows *r, const struct scratch *w, int kv_head, int j0, int n) {
    const struct op_attention *o = j->o;
    const struct kernels *k = &j->x->k;
    int ldk = o->k.heads * o->k.dim, ldv = o->v.heads * o->v.dim;
    const float *kt = NULL, *vt = NULL;
    if (!j->bf16) {
        vt = kt = tile_of(j, &o->k, kv_head, j0, n, o->k.dim, w->k, &ldk);
        if (j->same) ldv = ldk;
        else vt = tile_of(j, &o->v, kv_head, j0, n, o->v_dim, w->v, &ldv);
    }
    float corr[BLOCK];
    if (j->bf16) k->qk16(w->s, TILE, w->q16, r->n, row16(&o->k, kv_head, j0), ldk, n, o->k.dim, j->split);
    else k->qk(w->s, TILE, r->q, r->n, kt, ldk, n, o->k.dim, o->scale);
    times_scale(&o->k, kv_head, r, w->s, j0, n);
    mask(r, w->s, j0, n);
    for (int i = 0; i < r->n; i++) {
        float *s = w->s + i * TILE;
        if (r->lo[i] < j0 + n && r->hi[i] > j0 && r->lo[i] < r->hi[i]) corr[i] = k->soft(s, n, &r->max[i], &r->sum[i]);
        else {
            corr[i] = 1;
            memset(s, 0, (size_t)n * 4);
        }
    }
    times_scale(&o->v, kv_head, r, w->s, j0, n);
    if (j->bf16) k->pv16(w->out, o->v_dim, corr, w->s, TILE, r->n, row16(&o->v, kv_head, j0), ldv, n, o->v_dim, j->split, !j->same);
    else k->pv(w->out, o->v_dim, corr, w->s, TILE, r->n, vt, ldv, n, o->v_dim);
}

static void finish(const struct job *j, int token, int head, const float *acc, float max, float sum) {
    const struct op_attention *o = j->o;
    float *out = o->out + (size_t)token * (size_t)o->ldo + (size_t)head * (size_t)o->v_dim;
    float scale = 1;
    if (o->sinks) { /* one more logit, without a value */
        float m = o->sinks[head] > max ? o->sinks[head] : max;
        scale = max > -INFINITY ? expf(max - m) : 0;
        sum = sum * scale + expf(o->sinks[head] - m);
        max = m;
    }
    scale = sum == 0 ? 0 : scale / sum; /* a NaN among the scores must show */
    for (int d = 0; d < o->v_dim; d++) out[d] = acc[d] * scale;
    if (o->lse) o->lse[(size_t)token * (size_t)o->n_heads + (size_t)head] = sum == 0 ? -INFINITY : max + logf(sum);
}

static void block_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_attention *o = j->o;
    struct scratch w = carve(j, thread);
    struct rows r = {0};
    int chunk = task % j->n_chunks, block = task / j->n_chunks;
    int head_block = block % (j->head_blocks * o->k.heads), token_block = block / (j->head_blocks * o->k.heads);
    int kv_head = head_block / j->head_blocks, h0 = head_block % j->head_blocks * j->heads_per;
    int lo = o->n_keys, hi = 0;
    for (int t = token_block * j->tokens_per; t < o->n && t < (token_block + 1) * j->tokens_per; t++)
        for (int h = h0; h < j->group && h < h0 + j->heads_per; h++) {
            int i = r.n++, head = kv_head * j->group + h;
            r.token[i] = t, r.head[i] = head;
            r.q[i] = o->q + (size_t)t * (size_t)o->ldq + (size_t)head * (size_t)o->k.dim;
            r.max[i] = -INFINITY, r.sum[i] = 0;
            if (j->bf16) j->x->k.qk16_pack(w.q16 + (size_t)i * (size_t)q16_row(j), r.q[i], o->k.dim, o->scale, j->split);
            visible(o, t, &r.lo[i], &r.hi[i]);
            if (r.lo[i] < r.hi[i]) lo = r.lo[i] < lo ? r.lo[i] : lo, hi = r.hi[i] > hi ? r.hi[i] : hi;
        }
    memset(w.out, 0, (size_t)r.n * (size_t)o->v_dim * 4);
    int begin = chunk * j->chunk, end = j->n_chunks > 1 ? begin + j->chunk : o->n_keys;
    end = end < hi ? end : hi;
    begin = begin > lo / TILE * TILE ? begin : lo / TILE * TILE;
    for (int j0 = begin; j0 < end && !exec_stopped(j->x); j0 += TILE) one_tile(j, &r, &w, kv_head, j0, end - j0 < TILE ? end - j0 : TILE);
    for (int i = 0; i < r.n; i++) {
        if (j->n_chunks == 1) {
            finish(j, r.token[i], r.head[i], w.out + (size_t)i * (size_t)o->v_dim, r.max[i], r.sum[i]);
            continue;
        }
        size_t at = ((size_t)chunk * (size_t)o->n + (size_t)r.token[i]) * (size_t)o->n_heads + (size_t)r.head[i];
        memcpy(j->part + at * (size_t)o->v_dim, w.out + (size_t)i * (size_t)o->v_dim, (size_t)o->v_dim * 4);
        j->part_ms[2 * at] = r.max[i];
        j->part_ms[2 * at + 1] = r.sum[i];
    }
}

/* Joins the chunks of one (token, head). */
static void merge_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_attention *o = j->o;
    float *acc = carve(j, thread).out, max = -INFINITY, sum = 0;
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
    finish(j, task / o->n_heads, task % o->n_heads, acc, max, sum);
}

int attention_run(struct exec *base, const struct op_attention *o) {
    struct job j = {.x = (struct cpu_exec *)base, .o = o, .group = o->n_heads / o->k.heads};
    j.same = o->v.data == o->k.data && o->v.heads == o->k.heads && o->v.dim == o->k.dim && o->v.dtype == o->k.dtype;
    j.heads_per = j.group < BLOCK ? j.group : BLOCK;
    j.tokens_per = BLOCK / j.heads_per;
    j.head_blocks = (j.group + j.heads_per - 1) / j.heads_per;
    j.token_blocks = (o->n + j.tokens_per - 1) / j.tokens_per;
    int blocks = j.token_blocks * j.head_blocks * o->k.heads;
    j.chunk = CHUNK;
    j.n_chunks = blocks >= ENOUGH || o->n_keys <= CHUNK ? 1 : (o->n_keys + CHUNK - 1) / CHUNK;
    j.bf16 = j.x->k.qk16 && o->k.dtype == DT_BF16 && o->v.dtype == DT_BF16;
    j.split = o->n <= FEW;
    j.scratch_part = scratch_bytes(&j);
    size_t scratch = j.scratch_part * (size_t)pool_threads(j.x->pool), rows = (size_t)o->n * (size_t)o->n_heads;
    size_t part = j.n_chunks > 1 ? rows * (size_t)j.n_chunks * 4 : 0;
    j.scratch = exec_space(j.x, scratch + part * (size_t)(o->v_dim + 2));
    if (!j.scratch) return ERR_MEMORY;
    j.part = (float *)(j.scratch + scratch);
    j.part_ms = (float *)(j.scratch + scratch + part * (size_t)o->v_dim);
    int rc = exec_each(j.x, blocks * j.n_chunks, block_task, &j);
    if (!rc && j.n_chunks > 1) rc = exec_each(j.x, (int)rows, merge_task, &j);
    return rc;
}
