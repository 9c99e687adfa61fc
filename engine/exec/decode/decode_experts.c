/* Routed experts that stay on devices, all of a layer: how many layers, their uploads and evictions; and which of a
 * device's routed experts are evicted when its ledger needs memory. The copies themselves: experts/resident_experts.h.
 * Some experts of every layer: pinned_experts.h, expert_pool.h. */
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/decode_reserve.h"
#include "engine/exec/decode/draft_experts.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/exec/decode/pinned_experts.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/placement/layer_assign.h"

const struct expert *decode_device_experts(const struct decode *s, int layer) {
    const struct decode_device *d = decode_device_of((struct decode *)s, layer);
    return !d ? NULL : s->draft ? d->layers[layer].draft.view : d->layers[layer].experts.view;
}
bool decode_sends_experts(const struct decode *s) {
    bool any = false;
    for (int i = 0; i < s->n_dev && s->m->expert_cache.is_sent; i++) any |= s->dev[i].pool_per_layer > 0;
    return any;
}
const struct expert *decode_device_fixed_expert(const struct decode_device *d, int layer, int expert) {
    return d->s->m->expert_cache.is_sent ? NULL : decode_device_expert(d, layer, expert);
}
const struct expert *decode_device_expert(const struct decode_device *d, int layer, int expert) {
    const struct expert *pinned = pinned_experts_view(d, layer, expert);
    return pinned ? pinned : expert_pool_expert(d, layer, expert);
}
int decode_expert_layers(const struct decode *s) {
    int n = 0;
    for (int i = 0; i < s->n_dev; i++) n += s->dev[i].n_expert_layers;
    return n;
}
int decode_device_layers(const struct decode *s, int device, bool with_experts) {
    for (int i = 0; i < s->n_dev && !s->is_tensor_parallel; i++)
        if (s->dev[i].rank == device)
            return with_experts ? s->dev[i].n_expert_layers : s->dev[i].last - s->dev[i].first;
    return 0;
}
/* Whether a device computes a token's routed experts of a layer faster than the CPU, without the hand-off. */
static bool device_experts_pay(const struct runtime *m, int device) {
    if (!m->cost || !m->cost_model || !m->cost_model->n_experts) return true;
    return cost_routed(m->cost, 1 + device, m->cost_model, 1) < cost_routed(m->cost, 0, m->cost_model, 1);
}

/* Bytes that let a prompt of several hundred tokens run fast: rows of activations, and a ring if experts are
 * uploaded. */
static size_t prompt_bytes(const struct decode *s, struct gpu *g) {
    enum { ROWS = 512 };
    const size_t good = work_bytes(s->c, ROWS) / 2 * 3 + PREFILL_RING_SLOTS * expert_pool_slot_bytes(s->m, -1),
                 limit = gpu_info(g)->mem / 8;
    return good < limit ? good : limit;
}

/* Replaces whole layers by pinned experts of every layer where a token is expected to be faster so. */
static void choose_pinned(const struct decode *s, int device, int first, int last, const struct budget_in *in,
                          struct budget_out *out) {
    static const double MIN_GAIN = 1.05; /* of a choice that depends on the profile */
    enum { KEYS = 1024 };
    const struct runtime *m = s->m;
    struct budget_in each = *in;
    struct budget_out pinned;
    double share = 0;
    each.request = BUDGET_EACH;
    budget_split(&each, &pinned);
    if (out->whole_layers == in->layers || pinned.per_layer < 1 || !pinned_experts_are_used(m)) return;
    if (!m->cost || !m->cost_model || !m->cost_model->n_experts || !out->whole_layers) return;
    for (int l = first; l < last; l++)
        if (s->c->layer[l].moe) share += pinned_experts_share(m, l, pinned.per_layer) / in->layers;
    struct cost_decode t = {.mode = DECODE_HYBRID,
                            .rows = 1,
                            .keys = KEYS,
                            .device = device,
                            .n_device_layers = last - first,
                            .n_expert_layers = out->whole_layers};
    const double whole_s = cost_decode(m->cost, m->cost_model, &t);
    t.n_expert_layers = 0, t.resident_share = share;
    const double pinned_s = cost_decode(m->cost, m->cost_model, &t);
    if (pinned_s * MIN_GAIN > whole_s) return;
    snprintf(
        pinned.why, sizeof pinned.why,
        "%d of %d experts of %d layers, %.0f%% of the choices: %.3g ms a token expected, %.3g with all of %d layers",
        pinned.per_layer, in->n_experts, in->layers, 100 * share, pinned_s * 1e3, whole_s * 1e3, out->whole_layers);
    *out = pinned;
}

struct budget_out decode_experts_budget(const struct decode *s, int device, int first, int last, size_t weights,
                                        const struct layer_assign_in *room) {
    const struct runtime *m = s->m;
    struct gpu *g = m->gpus->gpu[device];
    const size_t least = decode_least_reserve_bytes(s, g, last - first);
    struct budget_out out;
    struct budget_in in = {.free_bytes = room->free_bytes[device],
                           .weight_bytes = weights,
                           .reserve_bytes = least + prompt_bytes(s, g),
                           .least_reserve = least,
                           .n_experts = s->c->n_experts,
                           .request = m->expert_cache.request,
                           .requested = m->expert_cache.n};
    if (m->expert_cache.is_sent) in.reserve_bytes += EXPERT_POOL_TRANSIT * expert_pool_slot_bytes(m, -1);
    for (int l = first; l < last; l++) {
        const size_t bytes = m->expert_cache.request <= BUDGET_EACH && device_experts_pay(m, device)
                                 ? resident_experts_bytes(s->c, l, m->w->layers[l].experts)
                                 : 0;
        in.layers += s->c->layer[l].moe;
        if (s->c->layer[l].moe) in.row_bytes += expert_pool_slot_bytes(m, l);
        if (bytes > in.layer_bytes) in.layer_bytes = bytes;
    }
    budget_split(&in, &out);
    if (in.request == BUDGET_AUTO && out.per_layer && !device_experts_pay(m, device))
        out = (struct budget_out){.why = "no experts: the CPU is expected to be faster"};
    if (in.request == BUDGET_AUTO) choose_pinned(s, device, first, last, &in, &out);
    if (s->cpu_queue && !pinned_experts_are_used(m)) out.per_layer = 0;
    return out;
}

/* Uploads the experts of planned layers that lack them, layer by layer until max_bytes are sent (at least one layer).
 * *n_loaded: planned layers that have them then. ERR_MEMORY: less than `keep` bytes would remain free. */
static int send_layers(struct decode_device *d, struct stage *stage, size_t max_bytes, size_t keep, int *n_loaded,
                       struct error *e) {
    struct runtime *m = d->s->m;
    const struct config *c = d->s->c;
    int32_t ids[SPLIT_EXPERTS];
    for (int i = 0; i < c->n_experts; i++) ids[i] = i;
    for (int l = d->first; l < d->last && *n_loaded < d->n_expert_layers; l++) {
        struct resident_experts *x = &d->layers[l].experts;
        if (!c->layer[l].moe) continue;
        if (!x->view) {
            const struct expert *from = m->w->layers[l].experts;
            const size_t bytes = resident_experts_bytes(c, l, from);
            if (!max_bytes) break;
            if (gpu_mem_free(d->g) < bytes + keep) return error_set(e, ERR_MEMORY, "no room");
            max_bytes -= bytes < max_bytes ? bytes : max_bytes;
            const double begin = clock_now();
            if (!d->s->cpu_queue) TRY(nan_scan_experts(&m->scan, l, ids, c->n_experts, e));
            d->load_check_s += clock_now() - begin;
            TRY(resident_experts_load(x, LEDGER_EXPERTS, c, l, from, NULL, 0, d->ledger, stage, e));
            cpu_count_read(m, x->mem.bytes);
            d->load_bytes += x->mem.bytes;
        }
        ++*n_loaded;
    }
    return 0;
}

/* Whether experts of planned layers are missing. */
static bool lacks_experts(const struct decode_device *d) {
    int n = 0;
    for (int l = d->first; l < d->last; l++) n += d->layers[l].experts.view != NULL;
    return n < d->n_expert_layers;
}

/* send_layers(), then waits for the uploads and frees what a failure left incomplete. */
static int load_layers(struct decode_device *d, size_t max_bytes, size_t keep, int *n_loaded, struct error *e) {
    struct stage *stage = NULL;
    const double begin = clock_now();
    *n_loaded = 0;
    int rc = decode_device_open_stage(d, &stage, e);
    if (!rc) rc = send_layers(d, stage, max_bytes, keep, n_loaded, e);
    if (stage && (!rc || rc == ERR_MEMORY)) {
        const int flushed = stage_flush(stage);
        rc = flushed ? flushed : rc;
    }
    stage_close(&stage);
    decode_graph_drop(d); /* recorded graphs hand these layers' rows to the CPU */
    const int synced = gpu_stream_sync(d->main);
    for (int l = d->first; l < d->last; l++)
        if (!d->layers[l].experts.view) resident_experts_free(&d->layers[l].experts, d->ledger);
    d->load_s += clock_now() - begin;
    if (d->load_bytes && !lacks_experts(d)) {
        if (!d->s->cpu_queue)
            log_say(LOG_INFO,
                    "device %d: %.2f GB of experts uploaded in %.2f s, %.2f s of it for a search for damaged weights",
                    d->rank, (double)d->load_bytes * 1e-9, d->load_s, d->load_check_s);
        d->load_bytes = 0, d->load_s = d->load_check_s = 0;
    }
    return rc && rc != ERR_MEMORY ? rc : synced ? synced : rc;
}

int decode_experts_load(struct decode_device *d, struct error *e) {
    int n;
    if (!lacks_experts(d)) return 0;
    const int rc = load_layers(d, SIZE_MAX, gpu_info(d->g)->mem / 64, &n, e);
    if (rc != ERR_MEMORY) return rc;
    /* the CPU computes the rest */
    log_say(LOG_INFO, "device %d has room for the experts of %d layers, %d were planned", d->rank, n,
            d->n_expert_layers);
    *e = (struct error){0};
    d->n_expert_layers = n;
    pin_start(d->s->m->gpus->pin);
    return 0;
}

/* Bytes that decode_load_next() uploads at a time: a tenth of a second of its link; one layer in virtual time, or if
 * the link's rate is unknown. */
static size_t unit_bytes(const struct decode_device *d) {
    const struct cost_machine *m = d->s->m->cost;
    const double rate = m && !d->s->cpu_queue ? m->domain[1 + d->rank].link[COST_H2D].rate : 0;
    return rate > 10 ? (size_t)(rate / 10) : 1;
}

int decode_experts_load_next(struct decode *s, size_t keep, bool *more, struct error *e) {
    int rc = 0, n;
    for (int i = 0; i < s->n_dev && !rc && !*more; i++) {
        if (!lacks_experts(&s->dev[i])) continue;
        rc = load_layers(&s->dev[i], unit_bytes(&s->dev[i]), keep, &n, e);
        *more = !rc;
        if (rc == ERR_MEMORY) *e = (struct error){0}, rc = 0;
    }
    return rc;
}

bool decode_experts_evict_layer(struct decode_device *d) {
    for (int l = d->last - 1; l >= d->first && d->layers; l--) {
        struct resident_experts *x = &d->layers[l].experts;
        if (!x->mem.at) continue;
        gpu_stream_sync(d->main); /* queued work and recorded graphs read the experts */
        decode_graph_drop(d);
        resident_experts_free(x, d->ledger);
        return true;
    }
    return false;
}

static bool evict_draft(void *owner, enum ledger_need need) {
    struct decode_device *d = owner;
    if (need == LEDGER_FOR_KV) return draft_experts_evict_layer(d);
    const size_t before = ledger_bytes(d->ledger, 1 << LEDGER_DRAFT);
    draft_experts_close(d);
    return before > 0;
}
static bool evict_cached(void *owner, enum ledger_need need) {
    struct decode_device *d = owner;
    const bool had_pool = d->pool != NULL;
    if (need == LEDGER_FOR_KV) /* experts that somebody asked to pin stay */
        return expert_pool_shrink(d) ||
               (d->s->m->expert_cache.request == BUDGET_AUTO && pinned_experts_evict_layer(d, true));
    expert_pool_close(d);
    return had_pool || pinned_experts_evict_layer(d, false);
}
static bool evict_resident(void *owner, enum ledger_need need) {
    struct decode_device *d = owner;
    const bool has_evicted = decode_experts_evict_layer(d);
    if (has_evicted) pin_start(d->s->m->gpus->pin); /* later prompts upload the evicted experts */
    if (need == LEDGER_FOR_KV) d->n_expert_layers -= has_evicted;
    return has_evicted;
}
void decode_experts_register(struct decode_device *d, bool is_open) {
    static bool (*const evict[])(void *owner, enum ledger_need need) = {
        [LEDGER_DRAFT] = evict_draft, [LEDGER_CACHED] = evict_cached, [LEDGER_EXPERTS] = evict_resident};
    for (size_t i = 0; i < sizeof evict / sizeof *evict; i++)
        ledger_set_client(d->ledger, (enum ledger_class)i, (struct ledger_client){is_open ? evict[i] : NULL, d});
}

/* --- Reports ---------------------------------------------------------------------------------- */

double decode_pinned_share(const struct decode *s) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < s->n_dev; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last && s->dev[i].pinned_per_layer; l++)
            if (s->c->layer[l].moe) sum += s->dev[i].pinned_share, n++;
    return n ? sum / n : 0;
}
double decode_sent_share(const struct decode *s) {
    enum { ENOUGH = 1000 }; /* choices */
    uint64_t selected = 0, hits = 0;
    double expected = 0;
    for (int i = 0; i < s->n_dev; i++) {
        selected += s->dev[i].n_selected, hits += s->dev[i].n_hits;
        expected += decode_experts_choices(&s->dev[i]) / s->n_dev;
    }
    return selected < ENOUGH ? expected : (double)hits / (double)selected;
}
uint64_t decode_pinned_experts(const struct decode *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->n_dev && s->m->expert_cache.is_pinned; i++)
        if (s->dev[i].pinned_hash) hash = hash64(&s->dev[i].pinned_hash, sizeof s->dev[i].pinned_hash, hash);
    return hash;
}
int decode_expert_devices(const struct decode *s, struct decode_expert_device out[GPU_MAX]) {
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        out[i] = (struct decode_expert_device){.rank = d->rank, .selected = d->n_selected, .hits = d->n_hits};
        out[i].cached = expert_pool_count(d, &out[i].cached_bytes);
        out[i].pinned = pinned_experts_count(d, &out[i].pinned_bytes);
        for (int l = d->first; l < d->last; l++) {
            out[i].layers += s->c->layer[l].moe;
            out[i].resident_layers += d->layers[l].experts.view != NULL;
            out[i].resident_bytes += d->layers[l].experts.mem.bytes;
        }
    }
    return s->n_dev;
}

/* Returns the sum of the n largest shares; overwrites them. */
static double largest_shares(float *share, int n_experts, int n) {
    double sum = 0;
    for (; n > 0; n--) {
        int best = 0;
        for (int i = 1; i < n_experts; i++)
            if (share[i] > share[best]) best = i;
        sum += (double)share[best], share[best] = -1;
    }
    return sum;
}
double decode_experts_choices(const struct decode_device *d) {
    const struct config *c = d->s->c;
    float *share = mem_alloc((size_t)c->n_experts * sizeof *share + 1);
    double sum = 0;
    int n_moe = 0;
    for (int l = d->first; l < d->last; l++) {
        if (!c->layer[l].moe || n_moe++ < d->planned_expert_layers) continue;
        if (d->pinned_per_layer) {
            sum += pinned_experts_share(d->s->m, l, d->pinned_per_layer);
            continue;
        }
        const bool has_profile = share && usage_profile_shares(d->s->m->usage, l, share);
        sum += has_profile ? largest_shares(share, c->n_experts, d->pool_per_layer)
                           : (double)d->pool_per_layer / c->n_experts;
    }
    mem_free(share);
    return n_moe ? (sum + d->planned_expert_layers) / n_moe : 0;
}

/* Why devices do not compute the routed experts of all MoE layers. is_all_resident: the attention of all of these
 * layers is on devices. */
static const char *limit_of_experts(const struct decode *s, bool pays, bool is_all_resident) {
    if (s->is_tensor_parallel) return "each device has a shard of every layer";
    if (s->m->expert_cache.request == BUDGET_OFF) return "none were to be kept on devices";
    if (!pays) return "a device would be slower";
    return is_all_resident ? "devices have room for no more" : "devices have no room for all layers";
}
void decode_experts_summary(const struct decode *s, char *out, size_t cap) {
    /* MoE layers; with attention on devices; with experts planned there; devices with pools, with pinned experts */
    int n_moe = 0, n_moe_resident = 0, n_planned = 0, n_pools = 0, n_pinned = 0;
    bool pays = false;
    for (int l = 0; l < s->c->n_layers; l++)
        n_moe += s->c->layer[l].moe, n_moe_resident += l < s->n_resident && s->c->layer[l].moe;
    for (int i = 0; i < s->n_dev; i++)
        n_planned += s->dev[i].planned_expert_layers, n_pools += s->dev[i].pool_per_layer > 0,
            n_pinned += s->dev[i].pinned_per_layer > 0;
    for (int i = 0; i < s->n_dev; i++) pays |= device_experts_pay(s->m, s->dev[i].rank);
    *out = 0;
    if (!s->n_dev || !n_moe) return;
    const char *why = limit_of_experts(s, pays, n_moe_resident == n_moe);
    if (n_planned == n_moe) snprintf(out, cap, "devices compute all routed experts, since they have room for them");
    else if (n_pinned)
        snprintf(out, cap, "devices compute the routed experts that are pinned there, the CPU the others");
    else if (decode_sends_experts(s))
        snprintf(out, cap, "devices compute all routed experts, and those that they lack are sent");
    else if (n_pools) snprintf(out, cap, "devices compute the routed experts that they cache, the CPU the others");
    else if (n_planned)
        snprintf(out, cap, "the CPU computes the routed experts of %d of %d layers, since %s", n_moe - n_planned, n_moe,
                 why);
    else snprintf(out, cap, "the CPU computes all routed experts, since %s", why);
}

/* --- Record of selected experts --------------------------------------------------------------- */

/* A pick is one expert that a row selected. */
static size_t picks_per_layer(const struct decode *s) { return (size_t)DECODE_MAX_ROWS * (size_t)s->c->topk; }
static size_t record_index(const struct decode *s, int micro, int layer) {
    return ((size_t)micro * (size_t)s->c->n_layers + (size_t)layer) * picks_per_layer(s);
}
static bool is_recorded(const struct decode_device *d, int layer) {
    return d->s->c->layer[layer].moe && !d->s->draft && d->layers[layer].experts.view;
}

int decode_experts_record_open(struct decode_device *d, struct error *e) {
    for (int micro = 0; micro < DECODE_MICRO_BATCHES; micro++) d->own_ids[micro] = d->work[micro].ids;
    if (!d->n_expert_layers) return 0;
    return gpu_alloc(d->g, (void **)&d->layer_ids, record_index(d->s, DECODE_MICRO_BATCHES, 0) * sizeof *d->layer_ids,
                     e);
}
void decode_experts_record_close(struct decode_device *d) {
    for (int micro = 0; micro < DECODE_MICRO_BATCHES; micro++)
        if (d->own_ids[micro]) d->work[micro].ids = d->own_ids[micro];
    gpu_free(d->g, d->layer_ids);
    d->layer_ids = NULL;
}

void decode_experts_record_layer(struct decode_device *d, struct work *w, int micro, int layer) {
    w->ids =
        is_recorded(d, layer) && d->layer_ids ? d->layer_ids + record_index(d->s, micro, layer) : d->own_ids[micro];
}

int decode_experts_record_download(struct decode_device *d) {
    const struct decode *s = d->s;
    const size_t bytes = (size_t)(d->last - d->first) * picks_per_layer(s) * sizeof *s->layer_ids;
    for (int micro = 0; micro < s->n_micros && d->layer_ids && !s->draft; micro++) {
        const size_t first_pick = record_index(s, micro, d->first);
        if (s->micro_batch[micro].n_dev)
            TRY(gpu_copy(d->main, s->layer_ids + first_pick, d->layer_ids + first_pick, bytes, GPU_D2H));
    }
    return 0;
}

void decode_experts_record_count(struct decode *s) {
    for (int i = 0; i < s->n_dev; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last && s->dev[i].layer_ids; l++)
            for (int micro = 0; micro < s->n_micros && is_recorded(&s->dev[i], l); micro++) {
                const int32_t *ids = s->layer_ids + record_index(s, micro, l);
                for (int pick = 0; pick < s->micro_batch[micro].n_dev * s->c->topk; pick++)
                    if (ids[pick] >= 0 && ids[pick] < s->c->n_experts)
                        s->expert_rows[(size_t)l * (size_t)s->c->n_experts + (size_t)ids[pick]]++;
                s->dev[i].n_selected += (uint64_t)(s->micro_batch[micro].n_dev * s->c->topk);
                s->dev[i].n_hits += (uint64_t)(s->micro_batch[micro].n_dev * s->c->topk);
            }
}
