/* Rows of throughput batches: which buffers of a workspace the batch has, which move between devices and the CPU, and
 * what that costs. */
#include <math.h>
#include <string.h>

#include "base/test_limits.h"
#include "engine/exec/throughput/paged_internal.h"
#include "engine/layer/kv_planes.h"

bool paged_is_result(const struct work_row *k) { return k->at == offsetof(struct work, att); }
bool paged_is_selection(const struct work_row *k) {
    return k->at == offsetof(struct work, selected_keys) || k->at == offsetof(struct work, candidates);
}
/* Layers with n-grams, images and places run on the CPU, or not here. */
bool paged_is_batch_row(const struct config *c, const struct work_row *k) {
    const bool is_input = k->at == offsetof(struct work, pos) || k->at == offsetof(struct work, tokens) ||
                          k->at == offsetof(struct work, seq_length);
    return k->width(c) && (is_input || (k->reads && !paged_is_selection(k)));
}
bool paged_moves_in(const struct config *c, int layer, const struct work_row *k) {
    return k->width(c) && block_attends_apart(c, layer) && block_attends(c, layer, k);
}
bool paged_moves(const struct config *c, const struct work_row *k) {
    bool moves = paged_is_result(k) && k->width(c);
    for (int l = 0; l < c->n_layers && !moves; l++) moves = paged_moves_in(c, l, k);
    return moves;
}

/* --- KV rows between device and CPU ----------------------------------------------------------- */

int paged_planes(const struct paged *p, int layer, char *mem, struct kv_plane out[CACHE_PLANES]) {
    struct cache_desc d[CACHE_PLANES];
    int n = kv_planes(p->c, layer, d);
    for (int i = 0; i < n; i++) {
        out[i] = kv_plane_of(&d[i], p->kv);
        if (d[i].fixed_rows) continue;
        struct kv_row_range all = kv_row_range_of(&out[i], 0, p->o.micro);
        out[i].data = mem + p->plane_at[i];
        out[i].scale = all.n_scales ? (float *)(void *)(mem + p->plane_at[i] + align_up(all.bytes, 256)) : NULL;
    }
    return n;
}
void paged_plan_planes(struct paged *p) {
    size_t max_bytes[CACHE_PLANES] = {0};
    for (int l = 0; l < p->c->n_layers; l++) {
        struct cache_desc d[CACHE_PLANES];
        for (int i = kv_planes(p->c, l, d); i-- > 0;) {
            if (d[i].fixed_rows) continue;
            struct kv_plane plane = kv_plane_of(&d[i], p->kv);
            struct kv_row_range r = kv_row_range_of(&plane, 0, p->o.micro);
            size_t bytes = align_up(r.bytes, 256) + align_up(r.n_scales * 4, 256);
            if (bytes > max_bytes[i]) max_bytes[i] = bytes;
        }
    }
    for (int i = 0; i < CACHE_PLANES; i++) p->plane_at[i + 1] = p->plane_at[i] + max_bytes[i];
}

/* --- Starts of prompts ------------------------------------------------------------------------ */

static int start_rows(void) { return (int)test_limits_get(TEST_LIMIT_PAGED_START, SEARCH_START_ROWS); }
int paged_starts_most(int micro) { return micro / start_rows(); }
bool paged_attends_on_device(const struct config *c, int layer, const struct row_extent *t) {
    if (!t->is_start || t->n < start_rows() || !block_attends_apart(c, layer)) return false;
    return !c->index_topk || t->n <= block_few_keys_limit(c, layer); /* what is selected is with the CPU */
}
size_t paged_state_bytes(const struct config *c, int layer) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    if (layer < 0) {
        for (int l = 0; l < c->n_layers; l++)
            if (block_attends_apart(c, l) && paged_state_bytes(c, l) > sum) sum = paged_state_bytes(c, l);
        return sum;
    }
    for (int i = kv_planes(c, layer, d); i-- > 0;) {
        const struct kv_plane plane = kv_plane_of(&d[i], DT_NONE);
        if (d[i].fixed_rows) sum += kv_row_range_of(&plane, 0, 1).bytes;
    }
    return sum;
}
void paged_store_states(const struct config *c, int layer, const struct kv *kv, const struct kv_state_step *step,
                        const char *states) {
    struct cache_desc d[CACHE_PLANES];
    const int n = kv_planes(c, layer, d);
    for (int i = 0; i < n; i++) {
        if (!d[i].fixed_rows) continue;
        const struct kv_plane *to = &kv->layer[layer].p[i];
        const size_t bytes = kv_row_range_of(to, 0, 1).bytes;
        memcpy((char *)to->data + (size_t)step->to_row * bytes, states, bytes);
        if (step->mark) memcpy((char *)to->data + (size_t)step->mark_row * bytes, states + bytes, bytes);
        states += 2 * bytes;
    }
}

/* --- Costs ------------------------------------------------------------------------------------ */

static double kv_bytes(const struct config *c, int layer, enum dtype kv) { /* of a row, between device and CPU */
    return (double)kv_seen_row_bytes(c, layer, kv);
}
static double result_bytes(const struct config *c) {
    double sum = 0;
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_result(k)) sum += (double)work_row_bytes(k, c);
    return sum;
}
void paged_search_rows(const struct config *c, enum dtype kv, struct search_rows *out) {
    enum { ROWS = SEARCH_PREFILL_MICRO_ROWS };
    double most_kv = 0;
    *out = (struct search_rows){
        .states = (double)kv_state_bytes(c), .work = (double)work_bytes(c, ROWS) / ROWS, .start_rows = ROWS};
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_batch_row(c, k)) out->passed += (double)work_row_bytes(k, c);
    for (int l = 0; l < c->n_layers; l++) {
        const bool is_apart = block_attends_apart(c, l);
        const double own = is_apart ? kv_bytes(c, l, kv) : 0;
        double attended = own, result = is_apart ? 0 : out->passed;
        for (const struct work_row *k = work_rows; k->width; k++) {
            if (paged_moves_in(c, l, k)) attended += (double)work_row_bytes(k, c);
            if (!is_apart && k->reads && paged_is_batch_row(c, k) && k->reads(c, l))
                attended += (double)work_row_bytes(k, c);
            if (is_apart && paged_is_result(k)) result += (double)work_row_bytes(k, c);
        }
        out->attended += attended / c->n_layers, out->result += result / c->n_layers;
        out->whole_share += !is_apart / (double)c->n_layers;
        if (own > most_kv) most_kv = own;
        if (c->index_topk && is_apart) out->start_rows = fmin(out->start_rows, block_few_keys_limit(c, l));
    }
    /* three results wait; keys and values that the starts of prompts expand */
    out->work += most_kv + 8.0 * c->topk + PAGED_BUFFERS * result_bytes(c) + (double)block_grown_bytes(c, ROWS) / ROWS;
}
