#include "engine/exec/decode/decode_reserve.h"

#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"

size_t decode_own_bytes(const struct decode *s) {
    const struct config *c = s->c;
    return DECODE_MICRO_BATCHES * work_bytes(c, DECODE_MAX_ROWS) +
           kv_writeback_rows_bytes(&s->layout, DECODE_MAX_ROWS) +
           (size_t)DECODE_MAX_ROWS * ((size_t)c->vocab + 2 * (size_t)c->hidden) * 4;
}

/* Bytes kept free of resident layers: decode's buffers, KV of 4096 positions or an eighth of the memory, a prefill's
 * ring of 8 experts, and an eighth for everything else. */
size_t decode_reserve_bytes(const struct decode *s, struct gpu *gpu) {
    const struct gpu_info *g = gpu_info(gpu);
    const struct config *c = s->c;
    enum { POSITIONS = 4096, RING_EXPERTS = 8 };
    size_t kv = (size_t)POSITIONS * kv_token_bytes(c, DT_F32) + DEVICE_KV_STATES * kv_state_bytes(c),
           spare = g->mem / 8;
    return decode_own_bytes(s) + (kv < spare ? kv : spare) + RING_EXPERTS * s->m->expert_bytes + spare;
}

size_t decode_least_reserve_bytes(const struct decode *s, struct gpu *g, int n_layers) {
    enum { POSITIONS = 4096 };
    const struct config *c = s->c;
    const size_t mem = gpu_info(g)->mem,
                 kv = (POSITIONS * kv_token_bytes(c, s->kv) + DEVICE_KV_STATES * kv_state_bytes(c)) * (size_t)n_layers /
                      (size_t)c->n_layers;
    /* of expert_pool.c and router_lookahead.c */
    const size_t buffers = (size_t)DECODE_MAX_ROWS * (9 * (size_t)config_row_width(c) + (size_t)c->n_experts) * 4;
    return decode_own_bytes(s) + buffers + (kv < mem / 8 ? kv : mem / 8) + mem / 64;
}
