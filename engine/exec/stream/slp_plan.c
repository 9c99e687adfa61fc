/* Plans device memory for a prompt. Pure. */
#include "engine/exec/stream/slp.h"
#include "engine/layer/work_open.h"

/* Slots of dense modules: as many as DENSE_BUDGET holds, within these limits. */
static const size_t DENSE_BUDGET = (size_t)1 << 30;
enum { MIN_DENSE_SLOTS = 2, MAX_DENSE_SLOTS = 8 };
/* Slots of the expert ring: GOOD_SLOTS keep the bus busy through uneven groups. */
enum { MIN_SLOTS = 2, GOOD_SLOTS = 8 };

const char *slp_why_unsplittable(const struct config *c) {
    /* States go from rank to rank; rows before a stripe do not (dslp in the manual). */
    return c->short_taps ? "its convolutions along the prompt need a neighbour's rows three times per layer, which is "
                           "not built"
                         : NULL;
}

size_t slp_partial_floats(const struct config *c, int chunk) {
    enum { MAX_ROWS = 1024 }; /* longer chunks are merged in parts */
    size_t row_floats = (size_t)c->n_heads * (size_t)c->v_dim, rows = chunk < MAX_ROWS ? (size_t)chunk : MAX_ROWS,
           latent_floats = (size_t)c->n_heads * (size_t)c->kv_lora;
    return row_floats * rows > latent_floats ? row_floats * rows : latent_floats;
}

static bool outlives_chunk(const struct work_row *k, const struct config *c, bool is_split) {
    if (k->life == WORK_QUERIES) return is_split && block_makes_queries_first(c, 0);
    return k->life >= WORK_INPUT || work_is_passed_on(k, c);
}
size_t slp_row_bytes(const struct work_row *k, const struct config *c, size_t n, size_t all, bool is_split) {
    return outlives_chunk(k, c, is_split) ? (k->life == WORK_EXPERTS ? all : n) * work_row_bytes(k, c) : 0;
}

/* Memory that does not depend on the ring: what outlives a chunk, two layers of KV, sorted selections, a chunk's
 * workspace with expanded keys and values. */
static size_t fixed_bytes(const struct config *c, const struct slp_need *in, int chunk, int dense) {
    const size_t n = (size_t)in->n_rows, all = (size_t)in->n_tokens;
    size_t bytes = all * (size_t)c->topk * 8;
    for (const struct work_row *k = work_rows; k->width; k++) bytes += slp_row_bytes(k, c, n, all, all > n);
    if (all > n) /* partial sums of all ranks' tokens; partial attention */
        bytes += all * (size_t)config_row_width(c) * 4 + slp_partial_floats(c, chunk) * 4 +
                 (size_t)chunk * (size_t)c->n_heads * 8;
    bytes += 2 * ((size_t)in->n_positions * in->kv_row_bytes + in->state_bytes) + work_bytes(c, chunk) +
             (size_t)dense * in->dense_bytes + in->reserve;
    return bytes + block_grown_bytes(c, in->n_positions) + (2u << 20); /* rounding of some forty allocations */
}

/* rows: the first that slp_plan() tries; that slp_plan_bytes() counts; the last */
enum { MAX_CHUNK = 8192, GOOD_CHUNK = 2048, MIN_CHUNK = 64 };
static int dense_slots(const struct slp_need *in) {
    const size_t fit = DENSE_BUDGET / (in->dense_bytes ? in->dense_bytes : 1);
    return fit < MIN_DENSE_SLOTS ? MIN_DENSE_SLOTS : fit > MAX_DENSE_SLOTS ? MAX_DENSE_SLOTS : (int)fit;
}
size_t slp_plan_bytes(const struct config *c, const struct slp_need *in, int slots) {
    return fixed_bytes(c, in, in->n_rows < GOOD_CHUNK ? in->n_rows : GOOD_CHUNK, dense_slots(in)) +
           (size_t)slots * in->expert_bytes;
}

/* Fills *p with the largest chunk beside which min_slots fit, and as many slots as then fit, at most max_slots. Returns
 * false if none fits. *need: the bytes with the last chunk tried. */
static bool plan_chunk(struct slp_plan *p, const struct config *c, const struct slp_need *in, size_t have,
                       int min_slots, int max_slots, size_t *need) {
    const int min_chunk = in->chunk ? in->chunk : MIN_CHUNK;
    for (int chunk = in->chunk ? in->chunk : MAX_CHUNK; chunk >= min_chunk; chunk /= 2) {
        const int rows = chunk < in->n_rows ? chunk : in->n_rows > 0 ? in->n_rows : 1;
        const size_t fixed = fixed_bytes(c, in, rows, p->dense_slots);
        *need = fixed + (size_t)min_slots * in->expert_bytes;
        if (*need > have) continue;
        const size_t n_slots = in->expert_bytes ? (have - fixed) / in->expert_bytes : (size_t)max_slots;
        p->chunk_rows = rows;
        p->ring_slots = n_slots > (size_t)max_slots ? max_slots : (int)n_slots;
        p->bytes = fixed + (size_t)p->ring_slots * in->expert_bytes;
        p->own_bytes = p->bytes - in->reserve;
        return true;
    }
    return false;
}

/* Takes smaller chunks before it goes below GOOD_SLOTS. */
int slp_plan(struct slp_plan *p, const struct config *c, const struct slp_need *in, size_t have, struct error *e) {
    size_t need = 0;
    *p = (struct slp_plan){.dense_slots = dense_slots(in)};
    const int max_slots = in->ring ? in->ring : in->n_experts < MIN_SLOTS ? MIN_SLOTS : in->n_experts;
    const int good_slots = in->ring ? in->ring : max_slots < GOOD_SLOTS ? max_slots : GOOD_SLOTS;
    if (plan_chunk(p, c, in, have, good_slots, max_slots, &need)) return 0;
    if (!in->ring && good_slots > MIN_SLOTS && plan_chunk(p, c, in, have, MIN_SLOTS, max_slots, &need)) return 0;
    p->bytes = need;
    return error_set(e, ERR_MEMORY, "%d tokens need %zu MB on the device with the smallest ring, %zu MB are free",
                     in->n_rows, need >> 20, have >> 20);
}

bool slp_selects_few(const struct config *c, int n) {
    const double least = 0.25;
    double unselected = 1; /* expected part of the experts that no token selects, if all are as likely */
    for (int i = 0; i < n && unselected > least; i++) unselected *= 1 - (double)c->topk / c->n_experts;
    return c->n_experts > 0 && unselected > least;
}
