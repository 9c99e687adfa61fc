#include "engine/exec/blend/blend_device.h"

#include <string.h>

#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/layer/expert_io.h"
#include "engine/layer/work_open.h"

/* Fewest slots of a ring. An expert with more rows than MAX_GROUPED_ROWS fills the device alone; smaller ones are
 * computed in groups: of 8, or of 4 uploaded ones, which starts sooner. */
enum { MIN_SLOTS = 4, MAX_GROUPED_ROWS = 256, GROUP_RESIDENT = 8, GROUP_UPLOADED = 4 };

struct gpu_stream *blend_device_stream(const struct blend_device *p) {
    return p->d ? p->d->main : p->own_stream;
}

/* --- Memory ----------------------------------------------------------------------------------- */

static size_t norms_bytes(const struct config *c) { return (size_t)c->n_layers * (size_t)expert_io_norm_floats(c) * 4; }
static size_t rows_bytes(const struct config *c, int rows) { return (size_t)rows * (size_t)config_row_width(c) * 4; }
static size_t pairs_bytes(const struct config *c, int rows) { return (size_t)rows * (size_t)c->topk * 4; }
/* Returns the bytes needed beside the workspace for rows: a minimal ring, what attention over `end` keys grows by, and
 * the operations' own buffers. */
static size_t other_bytes(const struct runtime *m, const struct decode_device *d, int rows, int end) {
    const struct config *c = &m->w->config;
    return MIN_SLOTS * expert_pool_slot_bytes(m, -1) + norms_bytes(c) + (d ? block_grown_bytes(c, end) : 0) +
           work_bytes(c, rows) / 2;
}

/* Returns the bytes for batches of `rows` of a prompt of n tokens at pos; device KV included where the device holds
 * layers. */
static size_t bytes_with_rows(const struct runtime *m, const struct decode_device *d, int pos, int n, int rows) {
    const struct config *c = &m->w->config;
    const int end = pos + n;
    size_t workspace =
        d ? device_kv_bytes(m->decode, d, end < 512 ? 512 : end + 64) + work_bytes(c, rows) : 2 * rows_bytes(c, rows);
    return workspace + other_bytes(m, d, rows, end) + 2 * pairs_bytes(c, rows) + ((size_t)1 << 16); /* rounding */
}
size_t blend_device_min_bytes(const struct runtime *m, const struct decode_device *d, int pos, int n) {
    return bytes_with_rows(m, d, pos, n, n < BLEND_MIN_ROWS ? n : BLEND_MIN_ROWS);
}
size_t blend_device_good_bytes(const struct runtime *m, const struct decode_device *d, int pos, int n, bool has_ring) {
    const int max_rows = (int)test_limits_get(TEST_LIMIT_PREFILL_ROWS, COST_BLEND_ROWS);
    return bytes_with_rows(m, d, pos, n, n < max_rows ? n : max_rows) +
           (has_ring ? PREFILL_RING_SLOTS * expert_pool_slot_bytes(m, -1) : 0);
}

bool blend_device_try_rows(struct blend_device *p, int rows, int end) {
    const struct runtime *m = p->s->m;
    const size_t other = other_bytes(m, p->d, rows, end);
    if (!p->d) return gpu_mem_free(p->g) > other + 2 * (rows_bytes(p->s->c, rows) + pairs_bytes(p->s->c, rows));
    if (!work_open_device(&p->work, p->s->c, rows, p->g, &p->d->main, &(struct error){0}) && gpu_mem_free(p->g) > other)
        return true;
    work_close(&p->work);
    return false;
}

/* Allocates slots while `keep` bytes and a sixteenth of the free memory remain; at least MIN_SLOTS. */
static int open_slots(struct blend_device *p, size_t keep, struct error *e) {
    const int max_slots = p->s->c->n_experts;
    const size_t bytes = expert_pool_slot_bytes(p->s->m, -1);
    p->slots = mem_calloc((size_t)max_slots, sizeof *p->slots);
    p->slot_of = mem_calloc((size_t)p->s->c->n_layers * (size_t)max_slots, sizeof *p->slot_of);
    if (!p->slots || !p->slot_of) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    if (keep < gpu_mem_free(p->g) / 16) keep = gpu_mem_free(p->g) / 16;
    while (p->n_slots < max_slots && (p->n_slots < MIN_SLOTS || gpu_mem_free(p->g) > keep + bytes)) {
        struct expert_slot *t = &p->slots[p->n_slots];
        int rc = ledger_alloc(p->ledger, LEDGER_STREAMED, bytes, &t->mem, e);
        t->layer = -1;
        p->n_slots++;
        if (rc) return rc;
    }
    return 0;
}

static int upload_norms(struct blend_device *p, struct error *e) {
    const struct config *c = p->s->c;
    const size_t width = (size_t)expert_io_norm_floats(c);
    if (!width) return 0;
    TRY(gpu_alloc(p->g, (void **)&p->expert_norms, norms_bytes(c), e));
    for (int l = 0; l < c->n_layers; l++) {
        const float *norm = p->s->m->w->layers[l].expert_out_norm;
        if (norm) TRY(gpu_copy(blend_device_stream(p), p->expert_norms + (size_t)l * width, norm, width * 4, GPU_H2D));
    }
    return gpu_stream_sync(blend_device_stream(p));
}

int blend_device_alloc(struct blend_device *p, int rows, int end, bool alone, struct error *e) {
    const struct config *c = p->s->c;
    const size_t hidden = rows_bytes(c, rows), pairs = pairs_bytes(c, rows);
    int rc = p->d && !p->work.g ? work_open_device(&p->work, c, rows, p->g, &p->d->main, e) : 0;
    if (!rc) rc = gpu_alloc(p->g, (void **)&p->token, pairs, e);
    if (!rc) rc = gpu_alloc(p->g, (void **)&p->weight, pairs, e);
    if (!rc && !p->d) rc = gpu_alloc(p->g, (void **)&p->xn, hidden, e);
    if (!rc && !p->d) rc = gpu_alloc(p->g, (void **)&p->y, hidden, e);
    /* scratch: the residual stream is in another device's workspace while this one helps */
    if (p->d) p->xn = p->work.xn, p->y = p->work.x;
    if (!rc) rc = gpu_host_alloc(p->g, (void **)&p->pair_token, pairs, e);
    if (!rc) rc = gpu_host_alloc(p->g, (void **)&p->pair_weight, pairs, e);
    if (!rc && !alone) rc = gpu_host_alloc(p->g, (void **)&p->sum, hidden, e);
    if (!rc) rc = upload_norms(p, e);
    return rc ? rc
              : open_slots(p, other_bytes(p->s->m, p->d, rows, end) - MIN_SLOTS * expert_pool_slot_bytes(p->s->m, -1),
                           e);
}

int blend_device_open(struct blend_device *p, struct error *e) {
    struct runtime *m = p->s->m;
    p->stop = p->d ? &p->d->stop : &p->own_stop;
    int rc = p->d ? 0 : gpu_stream_open(p->g, &p->own_stream, "blend", true, p->stop, e);
    /* streams opened afterwards inherit its clock */
    if (p->d && gpu_info(p->g)->is_virtual) gpu_stream_sync(p->d->main);
    const struct stage_options to = {.set = m->gpus,
                                     .g = p->g,
                                     .stop = p->stop,
                                     .threads = stage_threads(m->gpus, m->w),
                                     .trace = m->trace,
                                     .rank = p->rank,
                                     .is_metered = true};
    if (!rc) rc = upload_open(&p->uploads, "link", &to, e);
    if (!rc) rc = gpu_timeline_open(p->g, &p->summed, e);
    if (!rc) cost_table_fill(&p->table, m->cost, 1 + p->rank, m->cost_model, COST_MANY_ROWS);
    return rc;
}

void blend_device_close(struct blend_device *p) {
    if (blend_device_stream(p)) gpu_stream_sync(blend_device_stream(p));
    upload_close(&p->uploads);
    work_close(&p->work);
    for (int i = 0; i < p->n_slots; i++) ledger_free(p->ledger, &p->slots[i].mem);
    gpu_free(p->g, p->token), gpu_free(p->g, p->weight), gpu_free(p->g, p->expert_norms);
    if (!p->d) gpu_free(p->g, p->xn), gpu_free(p->g, p->y);
    gpu_host_free(p->g, p->pair_token), gpu_host_free(p->g, p->pair_weight), gpu_host_free(p->g, p->sum);
    gpu_timeline_close(&p->summed);
    gpu_stream_close(&p->own_stream);
    mem_free(p->slots), mem_free(p->slot_of);
}

/* --- Uploads ---------------------------------------------------------------------------------- */

struct expert_slot *blend_device_slot(struct blend_device *p, int layer, int expert) {
    struct expert_slot *t = &p->slots[p->slot_of[(size_t)layer * (size_t)p->s->c->n_experts + (size_t)expert]];
    return t->layer == layer && t->expert == expert ? t : NULL;
}

const struct expert *blend_device_expert(struct blend_device *p, int layer, int expert) {
    struct expert_slot *t = blend_device_slot(p, layer, expert);
    return t ? &t->view : p->d ? decode_device_fixed_expert(p->d, layer, expert) : NULL;
}

struct expert_slot *blend_device_free_slot(struct blend_device *p, int layer) {
    for (int i = 0; i < p->n_slots; i++) {
        struct expert_slot *t = &p->slots[(p->next_slot + i) % p->n_slots];
        if (t->layer == layer) continue;
        p->next_slot = (p->next_slot + i + 1) % p->n_slots;
        return t;
    }
    return NULL;
}

int blend_device_upload(struct blend_device *p, struct expert_slot *t, int layer, int expert) {
    TRY(upload_expert(&p->uploads, t, p->s->m->w, layer, expert));
    p->slot_of[(size_t)layer * (size_t)p->s->c->n_experts + (size_t)expert] = (int16_t)(t - p->slots);
    cpu_count_read(p->s->m, p->s->m->expert_bytes);
    return 0;
}

int blend_device_run_experts(struct blend_device *p, int layer, const int16_t *order, int n_present, int n,
                             const int32_t *n_pairs, const float *x, float *y) {
    const struct config *c = p->s->c;
    struct gpu_stream *main = blend_device_stream(p);
    int next = n_present, at = 0;
    for (int i = 0; i < n;) {
        struct expert_slot *slots[OP_GROUP_MAX], *t, *last = NULL;
        for (; next < n && (t = blend_device_free_slot(p, layer)); next++)
            TRY(blend_device_upload(p, t, layer, order[next]));
        struct op_group g = {.y = y,
                             .x = x,
                             .token = p->token,
                             .weight = p->weight,
                             .hidden = config_routed_width(c),
                             .wide = config_needs_wide_activations(c)};
        if (p->expert_norms) g.norm = p->expert_norms + (size_t)layer * (size_t)g.hidden, g.eps = config_output_eps(c);
        for (int max_group = i < n_present ? GROUP_RESIDENT : GROUP_UPLOADED;
             i < n && g.n < max_group && (i < n_present || i < next); i++) {
            if (g.n && n_pairs[order[i]] > MAX_GROUPED_ROWS) break;
            slots[g.n] = blend_device_slot(p, layer, order[i]); /* NULL: decode's pool holds it */
            g.expert[g.n] = *blend_device_expert(p, layer, order[i]);
            g.begin[g.n] = at;
            at += n_pairs[order[i]];
            g.begin[++g.n] = at;
            if ((t = slots[g.n - 1]) && (!last || t->upload.loaded_value > last->upload.loaded_value)) last = t;
            if (n_pairs[order[i]] > MAX_GROUPED_ROWS) {
                i++;
                break;
            }
        }
        if (last) TRY(upload_wait(&p->uploads, &last->upload, main)); /* uploads arrive in order */
        int span = trace_begin(p->s->m->trace, main, p->rank, LANE_COMPUTE, "experts", layer, -1);
        TRY(op_run(gpu_stream_exec(main), OP_GROUP, &g));
        trace_end(p->s->m->trace, span, main);
        TRY(upload_signal(&p->uploads, main));
        for (int k = 0; k < g.n; k++)
            if (slots[k]) upload_release(&p->uploads, &slots[k]->upload), upload_evict_expert(slots[k]);
    }
    return 0;
}
