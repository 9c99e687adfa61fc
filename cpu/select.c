/* Lightning indexer: scores all keys that a query sees, a tile of keys at a time for several queries together, then selects the best.
 * The order of a (query, key) score's sum is fixed and the selection depends on the scores only, so a query's result does not
 * depend on the batch. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"
#include "engine/base/minifloat.h"

enum {
    TILE = 64,
    TILES = 4,              /* per task */
    TOKENS = 8,             /* per task: they share widened keys */
    HEADS = 32,             /* heads whose products are computed at once */
    SCORES = 64 << 20 >> 2, /* scores per pass; a single query may need more */
};

struct job {
    struct cpu_exec *x;
    const struct op_select *o;
    int token_blocks, first, n; /* queries [first, first + n) of the operation */
    float *score;               /* [n, n_keys] */
    float *tile;                /* per thread: keys [TILE, k.dim], products [HEADS, TILE] */
    size_t tile_part;
};

static int n_seen_keys(const struct op_select *o, int token) { return op_seen_step((int64_t)o->q_pos0 + token, o->k_pos0, o->k_step, o->n_keys); }

/* Keys [j0, j0 + n) as float32, unscaled. */
static const float *keys_of(const struct job *j, int j0, int n, float *buf) {
    const struct kv_plane *p = &j->o->k;
    if (p->dtype == DT_F32) return (const float *)p->data + (size_t)j0 * (size_t)p->dim;
    j->x->k.widen[p->dtype](buf, (const uint8_t *)p->data + dtype_bytes(p->dtype, (size_t)j0 * (size_t)p->dim), n * p->dim);
    return buf;
}

static void score_tile(const struct job *j, int token, const float *keys, int j0, int n, float *products) {
    const struct op_select *o = j->o;
    float sum[TILE] = {0};
    const float *q[HEADS], *weight = o->weight + (size_t)token * (size_t)o->heads;
    for (int h0 = 0; h0 < o->heads; h0 += HEADS) {
        int heads = o->heads - h0 < HEADS ? o->heads - h0 : HEADS;
        for (int h = 0; h < heads; h++) q[h] = o->q + (size_t)token * (size_t)o->ldq + (size_t)(h0 + h) * (size_t)o->k.dim;
        j->x->k.qk(products, TILE, q, heads, keys, o->k.dim, n, o->k.dim, 1);
        for (int h = 0; h < heads; h++)
            for (int c = 0; c < n; c++) {
                float s = products[h * TILE + c];
                sum[c] += weight[h0 + h] * (s < 0 ? 0 : s);
            }
    }
    float *out = j->score + (size_t)(token - j->first) * (size_t)o->n_keys + (size_t)j0;
    for (int c = 0; c < n; c++) out[c] = sum[c] * o->scale * (o->k.dtype == DT_E4M3 ? o->k.scale[j0 + c] : 1);
}

static void score_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_select *o = j->o;
    int t0 = j->first + task % j->token_blocks * TOKENS, t1 = t0 + TOKENS < j->first + j->n ? t0 + TOKENS : j->first + j->n;
    int begin = task / j->token_blocks * TILE * TILES, end = n_seen_keys(o, t1 - 1);
    float *buf = j->tile + (size_t)thread * j->tile_part, *products = buf + (size_t)TILE * (size_t)o->k.dim;
    if (n_seen_keys(o, t1 - 1) <= o->topk) return; /* every query sees at most topk keys */
    for (int j0 = begin; j0 < end && j0 < begin + TILE * TILES; j0 += TILE) {
        int n = end - j0 < TILE ? end - j0 : TILE;
        const float *keys = keys_of(j, j0, n, buf);
        for (int t = t0; t < t1; t++)
            if (n_seen_keys(o, t) > j0) score_tile(j, t, keys, j0, n, products);
    }
}

/* Maps a float to an integer of the same order; NaN ranks lowest. */
static uint32_t rank_of(float v) {
    uint32_t u = f32_bits(v + 0.0f);
    if (isnan(v)) return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The rank of the k-th best, and in *ties how many of that rank are among the best: radix select, eight bits at a time. */
static uint32_t kth_rank(const float *score, int n, int k, int *ties) {
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, digit = 255;
        for (int i = 0; i < n; i++) {
            uint32_t r = rank_of(score[i]);
            if ((r & mask) == prefix) count[r >> shift & 255]++;
        }
        for (; count[digit] < k; digit--) k -= count[digit];
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *ties = k;
    return prefix;
}

static void choose_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_select *o = j->o;
    int token = j->first + task, n = n_seen_keys(o, token), at = 0, ties;
    int32_t *out = o->chosen + (size_t)token * (size_t)o->topk;
    if (n <= o->topk) {
        for (; at < n; at++) out[at] = at;
        for (; at < o->topk; at++) out[at] = -1;
        return;
    }
    const float *score = j->score + (size_t)task * (size_t)o->n_keys;
    uint32_t least = kth_rank(score, n, o->topk, &ties);
    for (int i = 0; i < n && at < o->topk; i++) {
        uint32_t r = rank_of(score[i]);
        if (r > least || (r == least && ties-- > 0)) out[at++] = i;
    }
}

int select_run(struct exec *base, const struct op_select *o) {
    struct job j = {.x = (struct cpu_exec *)base, .o = o};
    int most = o->n_keys > 0 && SCORES / o->n_keys > 1 ? SCORES / o->n_keys : 1, rc = 0;
    if (most > o->n) most = o->n;
    j.tile_part = ((size_t)TILE * (size_t)(o->k.dim + HEADS) + 15) / 16 * 16;
    size_t tiles = j.tile_part * (size_t)pool_threads(j.x->pool);
    if (o->n < 1) return 0;
    if (!(j.tile = exec_workspace(j.x, (tiles + (size_t)most * (size_t)o->n_keys) * sizeof(float)))) return ERR_MEMORY;
    j.score = j.tile + tiles;
    for (; j.first < o->n && !rc; j.first += most) {
        j.n = o->n - j.first < most ? o->n - j.first : most;
        j.token_blocks = (j.n + TOKENS - 1) / TOKENS;
        rc = exec_for_each(j.x, j.token_blocks * ((o->n_keys + TILE * TILES - 1) / (TILE * TILES)), score_task, &j);
        if (!rc) rc = exec_for_each(j.x, j.n, choose_task, &j);
    }
    return rc;
}
