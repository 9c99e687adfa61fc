#pragma once
/* Cases of kcheck_streams.c: attention over blocks of keys, and the selection of blocks. */
#include "test/kcheck/levels.h"

/* A query sees the keys of some complete blocks and those after the last complete one. own: those of its own block
 * instead, and each KV head has a list. */
static void check_blocks(int n, int pos, int block, int topk, bool own) {
    enum { HEADS = 4, KV = 2, DIM = 24 };
    begin_case("attention over blocks, %d rows from %d, %d blocks of %d%s", n, pos, topk, block,
               own ? ", own block" : "");
    const int keys = pos + n, lists = own ? KV : 1;
    struct kv_plane k = {vec((size_t)(keys * KV * DIM)), NULL, KV, DIM, DT_F32},
                    v = {vec((size_t)(keys * KV * DIM)), NULL, KV, DIM, DT_F32};
    const float *kx = k.data, *vx = v.data;
    float *q = vec((size_t)(n * HEADS * DIM)), *out = vec((size_t)(n * HEADS * DIM)),
          *was = aligned((size_t)(n * HEADS * DIM) * 4);
    int32_t *chosen = guarded((size_t)(n * lists * topk) * 4);
    for (int i = 0; i < n * lists; i++)
        for (int j = 0, complete = (pos + i / lists + !own) / block; j < topk; j++)
            chosen[i * topk + j] = complete <= topk
                                       ? (j < complete ? j : -1)
                                       : complete - topk + j - (j < topk - 1 - i % lists && complete > topk + 1);
    struct op_attention o = {.out = out,
                             .q = q,
                             .k = k,
                             .v = v,
                             .chosen = chosen,
                             .n_chosen = topk,
                             .chosen_block = block,
                             .own_block = own,
                             .chosen_lists = lists,
                             .n = n,
                             .n_heads = HEADS,
                             .v_dim = DIM,
                             .ldq = HEADS * DIM,
                             .ldo = HEADS * DIM,
                             .q_pos0 = pos,
                             .n_keys = keys,
                             .scale = 0.3f};
    for (int t = 0; t < THREADS; t++) {
        must(execs[t]->ops->attention(execs[t], &o));
        if (!t) memcpy(was, out, (size_t)(n * HEADS * DIM) * 4);
        if (!equal(was, out, (size_t)(n * HEADS * DIM))) wrong("differs between 1 and %d threads", thread_counts[t]);
    }
    double *p = malloc((size_t)keys * sizeof *p);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < HEADS; h++) {
            const int seen = pos + i + 1, tail = (seen - own) / block * block;
            const int32_t *list = chosen + (i * lists + h * lists / HEADS) * topk;
            double sum = 0;
            for (int j = 0; j < keys; j++) {
                bool sees = j >= tail && j < seen;
                for (int m = 0; m < topk; m++) sees |= list[m] >= 0 && j / block == list[m];
                double dot = 0;
                for (int d = 0; d < DIM; d++)
                    dot += (double)q[(i * HEADS + h) * DIM + d] * (double)kx[(j * KV + h / (HEADS / KV)) * DIM + d];
                sum += p[j] = sees ? exp(dot * (double)0.3f) : 0;
            }
            for (int d = 0; d < DIM; d++) {
                double want = 0;
                for (int j = 0; j < keys; j++) want += p[j] * (double)vx[(j * KV + h / (HEADS / KV)) * DIM + d];
                near("output", i, h * DIM + d, out[(i * HEADS + h) * DIM + d], want / sum, 2e-5);
            }
        }
    free(p), free(was);
    drop();
}

/* Each head selects blocks before the query's own by their best keys; sums are exact, and of equal blocks the first are
 * selected. */
static void check_select_blocks(int n, int heads, int dim, int pos, int block, int topk, int latest, uint8_t dtype) {
    begin_case("%s select of blocks, %d rows from %d, %d heads of %d, %d blocks of %d", dtype_name(dtype), n, pos,
               heads, dim, topk, block);
    const int keys = pos + n, most = keys / block + 1;
    struct kv_plane k = {guarded((size_t)(keys * dim) * dtype_bytes(dtype, 1)), vec((size_t)keys), 1, dim, dtype};
    float *kx = vec((size_t)(keys * dim)), *q = vec((size_t)(n * heads * dim));
    for (int i = 0; i < keys * dim; i++) kx[i] = i % dim ? (float)(int)(2 * kx[i]) : 7; /* E4M3 holds these exactly */
    for (int i = 0; i < n * heads * dim; i++) q[i] = i % dim ? (float)(int)(2 * q[i]) : -1;
    must(execs[0]->ops->kv_store(execs[0], &(struct op_kv_store){.plane = k, .x = kx, .n = keys, .ldx = dim}));
    const size_t size = (size_t)(n * heads * topk);
    int32_t *chosen = guarded(size * 4), *was = aligned(size * 4);
    struct op_select o = {.chosen = chosen,
                          .q = q,
                          .k = k,
                          .block = block,
                          .latest = latest,
                          .n = n,
                          .heads = heads,
                          .topk = topk,
                          .ldq = heads * dim,
                          .q_pos0 = pos,
                          .n_keys = keys,
                          .scale = 0.5f};
    for (int t = 0; t < THREADS; t++) {
        must(execs[t]->ops->select(execs[t], &o));
        if (!t) memcpy(was, chosen, size * 4);
        if (memcmp(was, chosen, size * 4)) wrong("differs between 1 and %d threads", thread_counts[t]);
    }
    double *score = malloc((size_t)most * sizeof *score);
    for (int i = 0; i < n * heads; i++) {
        const int complete = (pos + i / heads) / block;
        for (int b = 0; b < complete; b++) {
            score[b] = b >= complete - latest ? INFINITY : -INFINITY;
            for (int j = b * block; j < (b + 1) * block; j++) {
                double dot = 0;
                for (int d = 0; d < dim; d++) dot += (double)q[i * dim + d] * (double)kx[j * dim + d];
                score[b] = fmax(score[b], dot);
            }
        }
        for (int b = 0, at = 0; b < complete || at < topk; b++) {
            int better = 0; /* blocks that come before this one */
            for (int a = 0; a < complete && b < complete; a++)
                better += score[a] > score[b] || (score[a] == score[b] && a < b);
            const int32_t want = b < complete ? b : -1;
            if (better >= topk) continue;
            if (at >= topk || chosen[i * topk + at] != want)
                mismatch("block", i, at, at < topk ? chosen[i * topk + at] : -2, want, 0);
            at++;
        }
    }
    free(score), free(was);
    drop();
}

/* Selections of blocks by weighted scores, and of keys of these blocks and of the query's latest. Sums are exact. */
static void check_select_among(int n, int pos, int step, int block, int n_blocks, int topk) {
    enum { HEADS = 3, DIM = 24 };
    begin_case("select among blocks, %d rows from %d, keys %d apart, %d keys of %d blocks of %d", n, pos, step, topk,
               n_blocks, block);
    const int keys = (pos + n) / step, ld = HEADS * DIM;
    float *q = vec((size_t)(n * ld)), *weight = vec((size_t)(n * HEADS)), *data = vec((size_t)((keys + 1) * DIM));
    for (int i = 0; i < n * ld; i++) q[i] = (float)(int)(2 * q[i]);
    for (int i = 0; i < n * HEADS; i++) weight[i] = (float)(int)(4 * weight[i]);
    for (int i = 0; i < keys * DIM; i++) data[i] = (float)(int)(2 * data[i]);
    int32_t *list = guarded((size_t)(n * n_blocks) * 4), *chosen = guarded((size_t)(n * topk) * 4);
    struct op_select o = {.chosen = list,
                          .q = q,
                          .weight = weight,
                          .k = {.data = data, .heads = 1, .dim = DIM, .dtype = DT_F32},
                          .block = block,
                          .n = n,
                          .heads = HEADS,
                          .topk = n_blocks,
                          .ldq = ld,
                          .q_pos0 = pos,
                          .k_pos0 = step - 1,
                          .k_step = step,
                          .n_keys = keys,
                          .scale = 0.5f};
    must(execs[1]->ops->select(execs[1], &o));
    o.among = list, o.n_among = n_blocks, o.among_block = block, o.block = 0, o.chosen = chosen, o.topk = topk;
    must(execs[2]->ops->select(execs[2], &o));
    double *score = malloc((size_t)(keys + 1) * sizeof *score), *best = malloc((size_t)(keys + 1) * sizeof *best);
    for (int i = 0; i < n; i++) {
        const int seen = (pos + i + 1) / step, own = seen > 0 ? (seen - 1) / block : 0;
        for (int b = 0; b < own; b++) best[b] = -INFINITY;
        for (int j = 0; j < seen; j++) {
            score[j] = 0;
            for (int h = 0; h < HEADS; h++) {
                double dot = 0;
                for (int d = 0; d < DIM; d++) dot += (double)q[i * ld + h * DIM + d] * (double)data[j * DIM + d];
                score[j] += (double)weight[i * HEADS + h] * fmax(dot, 0);
            }
            if (j / block < own) best[j / block] = fmax(best[j / block], score[j]);
        }
        int at = 0;
        for (int b = 0; b < own; b++) {
            int better = 0; /* blocks that come before this one */
            for (int a = 0; a < own; a++) better += best[a] > best[b] || (best[a] == best[b] && a < b);
            if (better < n_blocks && list[i * n_blocks + at++] != b)
                mismatch("block", i, at - 1, list[i * n_blocks + at - 1], b, 0);
            for (int j = b * block; j < (b + 1) * block && better >= n_blocks; j++) score[j] = -INFINITY;
        }
        for (; at < n_blocks; at++)
            if (list[i * n_blocks + at] != -1) mismatch("padding of blocks", i, at, list[i * n_blocks + at], -1, 0);
        at = 0;
        for (int j = 0; j < seen; j++) {
            int better = 0;
            for (int a = 0; a < seen; a++) better += score[a] > score[j] || (score[a] == score[j] && a < j);
            if (better < topk && chosen[i * topk + at++] != j)
                mismatch("key", i, at - 1, chosen[i * topk + at - 1], j, 0);
        }
        for (; at < topk; at++)
            if (chosen[i * topk + at] != -1) mismatch("padding of keys", i, at, chosen[i * topk + at], -1, 0);
    }
    free(score), free(best);
    drop();
}
