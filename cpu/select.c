/* Lightning indexer: scores all keys that a query sees, a tile of keys at a time for several queries together, then
 * selects the best. With blocks a task scores whole ones, and keeps the score of each one's best key. The order of a
 * (query, key) score's sum is fixed and the selection depends on the scores only, so a query's result does not depend
 * on the batch. */
#include <math.h>
#include <string.h>

#include "base/minifloat.h"
#include "cpu/cpu_exec.h"

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
    int lists, candidates;      /* selections per query; most candidates of a query */
    int keys_per;               /* keys of a task, whole blocks */
    float *score;               /* [n, lists, candidates] */
    float *tile;                /* per thread: keys [TILE, k.dim], products [HEADS, TILE] */
    size_t tile_part;
};

/* A query's candidates: keys, or blocks. */
static int n_candidates(const struct op_select *o, int token) {
    const int seen = op_seen_step((int64_t)o->q_pos0 + token, o->k_pos0, o->k_step, o->n_keys);
    return o->block ? op_listed_blocks(seen, o->block, true) : seen;
}
/* Keys to score for a query. */
static int n_scored_keys(const struct op_select *o, int token) {
    return n_candidates(o, token) * (o->block ? o->block : 1);
}

/* Keys [j0, j0 + n) as float32, unscaled. */
static const float *keys_of(const struct job *j, int j0, int n, float *buf) {
    const struct kv_plane *p = &j->o->k;
    if (p->dtype == DT_F32) return (const float *)p->data + (size_t)j0 * (size_t)p->dim;
    j->x->k.widen[p->dtype](buf, (const uint8_t *)p->data + dtype_bytes(p->dtype, (size_t)j0 * (size_t)p->dim),
                            n * p->dim);
    return buf;
}

static float *scores_of(const struct job *j, int token, int list) {
    return j->score + ((size_t)(token - j->first) * (size_t)j->lists + (size_t)list) * (size_t)j->candidates;
}

/* Stores the sums of n keys from j0 as scores. */
static void store_scores(const struct job *j, int token, int list, const float *sum, int j0, int n) {
    const struct op_select *o = j->o;
    float *out = scores_of(j, token, list);
    for (int c = 0; c < n; c++) {
        const float s = sum[c] * o->scale * (o->k.dtype == DT_E4M3 ? o->k.scale[j0 + c] : 1);
        if (!o->block) out[j0 + c] = s;
        else if ((j0 + c) % o->block == 0) out[(j0 + c) / o->block] = s;
        else out[(j0 + c) / o->block] = fmaxf(out[(j0 + c) / o->block], s);
    }
}

static void score_tile(const struct job *j, int token, const float *keys, int j0, int n, float *products) {
    const struct op_select *o = j->o;
    float sum[TILE] = {0};
    const float *q[HEADS], *weight = o->weight ? o->weight + (size_t)token * (size_t)o->heads : NULL;
    for (int h0 = 0; h0 < o->heads; h0 += HEADS) {
        int heads = o->heads - h0 < HEADS ? o->heads - h0 : HEADS;
        for (int h = 0; h < heads; h++)
            q[h] = o->q + (size_t)token * (size_t)o->ldq + (size_t)(h0 + h) * (size_t)o->k.dim;
        j->x->k.qk(products, TILE, q, heads, keys, o->k.dim, n, o->k.dim, 1);
        for (int h = 0; h < heads && !weight; h++) store_scores(j, token, h0 + h, products + h * TILE, j0, n);
        for (int h = 0; h < heads && weight; h++)
            for (int c = 0; c < n; c++) {
                float s = products[h * TILE + c];
                sum[c] += weight[h0 + h] * (s < 0 ? 0 : s);
            }
    }
    if (weight) store_scores(j, token, 0, sum, j0, n);
}

static void score_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_select *o = j->o;
    int t0 = j->first + task % j->token_blocks * TOKENS,
        t1 = t0 + TOKENS < j->first + j->n ? t0 + TOKENS : j->first + j->n;
    int begin = task / j->token_blocks * j->keys_per, end = n_scored_keys(o, t1 - 1);
    float *buf = j->tile + (size_t)thread * j->tile_part, *products = buf + (size_t)TILE * (size_t)o->k.dim;
    if (n_candidates(o, t1 - 1) <= o->topk) return; /* all are selected for every query */
    if (end > begin + j->keys_per) end = begin + j->keys_per;
    for (int j0 = begin; j0 < end; j0 += TILE) {
        int n = end - j0 < TILE ? end - j0 : TILE;
        const float *keys = keys_of(j, j0, n, buf);
        for (int t = t0; t < t1; t++)
            if (n_scored_keys(o, t) > j0) score_tile(j, t, keys, j0, n, products);
    }
}

/* Maps a float to an integer of the same order; NaN ranks lowest. */
static uint32_t rank_of(float v) {
    uint32_t u = f32_bits(v + 0.0f);
    if (isnan(v)) return 0;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The rank of the k-th best, and in *ties how many of that rank are among the best: radix select, eight bits at a
 * time. */
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

/* Excludes keys outside the listed blocks, whose list is full. n: visible keys; the block of the last one is not in the
 * list. */
static void limit_keys(const struct op_select *o, int token, float *score, int n) {
    const int32_t *list = o->among + (size_t)token * (size_t)o->n_among;
    const int own = op_listed_blocks(n, o->among_block, true);
    if (own <= o->n_among) return; /* all are listed */
    for (int k = 0, at = 0; k <= o->n_among; k++) {
        const int block = k < o->n_among ? list[k] : own;
        for (; at < block * o->among_block; at++) score[at] = -INFINITY;
        at += o->among_block;
    }
}

static void choose_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_select *o = j->o;
    int token = j->first + task / j->lists, n = n_candidates(o, token), at = 0, ties;
    int32_t *out = o->chosen + ((size_t)j->first * (size_t)j->lists + (size_t)task) * (size_t)o->topk;
    if (n <= o->topk) {
        for (; at < n; at++) out[at] = at;
        for (; at < o->topk; at++) out[at] = -1;
        return;
    }
    float *score = scores_of(j, token, task % j->lists);
    if (o->among) limit_keys(o, token, score, n);
    for (int i = 1; i <= o->latest; i++) score[n - i] = INFINITY;
    uint32_t least = kth_rank(score, n, o->topk, &ties);
    for (int i = 0; i < n && at < o->topk; i++) {
        uint32_t r = rank_of(score[i]);
        if (r > least || (r == least && ties-- > 0)) out[at++] = i;
    }
}

int cpu_select(struct exec *base, const struct op_select *o) {
    struct job j = {.x = (struct cpu_exec *)base,
                    .o = o,
                    .lists = op_select_lists(o),
                    .candidates = o->block ? o->n_keys / o->block : o->n_keys,
                    .keys_per = TILE * TILES};
    const int row = j.lists * j.candidates;
    int most = row > 0 && SCORES / row > 1 ? SCORES / row : 1, rc = 0;
    if (most > o->n) most = o->n;
    j.tile_part = ((size_t)TILE * (size_t)(o->k.dim + HEADS) + 15) / 16 * 16;
    size_t tiles = j.tile_part * (size_t)pool_threads(j.x->pool);
    if (o->n < 1) return 0;
    if (!(j.tile = cpu_exec_workspace(j.x, (tiles + (size_t)most * (size_t)row) * sizeof(float)))) return ERR_MEMORY;
    j.score = j.tile + tiles;
    if (o->block) j.keys_per = (j.keys_per + o->block - 1) / o->block * o->block;
    for (; j.first < o->n && !rc; j.first += most) {
        j.n = o->n - j.first < most ? o->n - j.first : most;
        j.token_blocks = (j.n + TOKENS - 1) / TOKENS;
        rc = cpu_exec_for_each(j.x, j.token_blocks * ((o->n_keys + j.keys_per - 1) / j.keys_per), score_task, &j);
        if (!rc) rc = cpu_exec_for_each(j.x, j.n * j.lists, choose_task, &j);
    }
    return rc;
}
