/* Weights of throughput decode: the resident part of a device's layers, and the ring of pages for the rest. */
#include <string.h>

#include "base/mem.h"
#include "engine/exec/throughput/paged_internal.h"

static bool has_layer(const struct paged_weights *w, int layer) { return layer % w->ranks == w->rank; }
static bool has_pages(const struct paged_weights *w, int layer) {
    const struct layer_config *l = &w->m->w->config.layer[layer];
    return has_layer(w, layer) && (w->is_dense ? !l->no_ffn : l->moe);
}
bool paged_weights_has_head(const struct paged_weights *w) { return has_layer(w, w->n_layers - 1); }

/* --- Ranges ----------------------------------------------------------------------------------- */

static bool is_within(const void *field, const void *of, size_t size) {
    return (uintptr_t)field - (uintptr_t)of < size;
}
static bool is_of_dense_ffn(const struct copy_range *r, const struct layer *view) {
    return is_within(r->field, &view->dense, sizeof view->dense);
}

/* Lists what stays on the device of a layer: everything but what is paged. */
static int layer_ranges(const struct paged_weights *w, int layer, struct layer *view, struct copy_range *out) {
    *view = (struct layer){0};
    int n = copy_ranges_list(&w->m->w->config, layer, MODULE_LAYER, &w->m->w->layers[layer], view, out), n_kept = 0;
    for (int i = 0; i < n; i++)
        if (!w->is_dense || !is_of_dense_ffn(&out[i], view)) out[n_kept++] = out[i];
    return n_kept;
}
/* Lists a layer's dense FFN as copy_ranges_list() does a routed expert. */
static int dense_ffn_ranges(const struct paged_weights *w, int layer, struct expert *view, struct copy_range *out) {
    struct layer all = {0};
    int n = copy_ranges_list(&w->m->w->config, layer, MODULE_SHARED, &w->m->w->layers[layer], &all, out), n_kept = 0;
    for (int i = 0; i < n; i++) {
        if (!is_of_dense_ffn(&out[i], &all)) continue;
        const size_t at = (size_t)((const char *)out[i].field - (const char *)&all.dense);
        out[n_kept] = out[i];
        out[n_kept++].field = (const void **)(void *)((char *)view + at);
    }
    *view = all.dense;
    return n_kept;
}
/* Lists an expert's ranges: first *n_gate_up of page PAGE_GATE_UP, then those of PAGE_DOWN. Returns the number of
 * ranges. */
static int expert_ranges(const struct paged_weights *w, int layer, int expert, struct expert *view,
                         struct copy_range out[COPY_RANGES_MAX], int *n_gate_up) {
    struct copy_range all[COPY_RANGES_MAX];
    int n = w->is_dense ? dense_ffn_ranges(w, layer, view, all)
                        : copy_ranges_list(&w->m->w->config, layer, MODULE_EXPERT,
                                           &w->m->w->layers[layer].experts[expert], view, all),
        n_listed = 0;
    for (int page = 0; page < PAGES; page++) {
        for (int i = 0; i < n; i++) {
            bool of_down = is_within(all[i].field, &view->down, sizeof view->down) ||
                           all[i].field == (const void **)&view->down_bias;
            if (of_down == (page == PAGE_DOWN)) out[n_listed++] = all[i];
        }
        if (!page) *n_gate_up = n_listed;
    }
    return n;
}

/* --- Resident weights ------------------------------------------------------------------------- */

static int load_resident(struct paged_weights *w, struct copy_range *ranges, int n, struct ledger_entry *mem,
                         struct error *e) {
    int rc = ledger_alloc(w->ledger, LEDGER_PAGED, copy_ranges_bytes(ranges, n) + 256, mem, e);
    if (rc) return rc;
    if ((rc = upload_send(&w->uploads, &(struct upload_slot){0}, false, ranges, n, mem->at, -1, -1)) && !e->code)
        exec_op_error(rc, e);
    return rc;
}

static int load_dense(struct paged_weights *w, const _Atomic int *cancel, struct error *e) {
    struct copy_range ranges[COPY_RANGES_MAX];
    int rc = 0;
    for (int l = 0; l < w->n_layers && !rc; l++) {
        if (cancel && atomic_load(cancel)) return error_set(e, ERR_CANCELLED, "stopped");
        if (!has_layer(w, l)) continue;
        if (!w->m->cpu_queue && (rc = nan_scan_dense(&w->m->scan, l, e))) return rc;
        rc = load_resident(w, ranges, layer_ranges(w, l, &w->views[l], ranges), &w->mem[l], e);
    }
    static const enum module ends[ENDS] = {MODULE_STREAM_MERGE, MODULE_HEAD};
    for (int i = 0; i < ENDS && !rc && paged_weights_has_head(w); i++) {
        const int n = copy_ranges_list(&w->m->w->config, 0, ends[i], w->m->w, &w->head, ranges);
        if (n) rc = load_resident(w, ranges, n, &w->head_mem[i], e);
    }
    return rc;
}

/* Finds the largest page sizes of all experts. */
static void measure_pages(struct paged_weights *w) {
    struct copy_range ranges[COPY_RANGES_MAX];
    struct expert view;
    int n_gate_up = 0;
    for (int l = 0; l < w->n_layers; l++)
        for (int k = 0; k < w->n_experts && has_pages(w, l); k++) {
            int n = expert_ranges(w, l, k, &view, ranges, &n_gate_up);
            size_t gate_up_bytes = copy_ranges_bytes(ranges, n_gate_up),
                   down_bytes = copy_ranges_bytes(ranges + n_gate_up, n - n_gate_up);
            if (gate_up_bytes > w->page_bytes[PAGE_GATE_UP]) w->page_bytes[PAGE_GATE_UP] = gate_up_bytes;
            if (down_bytes > w->page_bytes[PAGE_DOWN]) w->page_bytes[PAGE_DOWN] = down_bytes;
        }
}

/* Splits memory into resident experts, spread evenly over the layers, and a ring. fraction: of all experts to keep
 * resident; < 0: as many as fit beside a ring of two layers, which never stalls. A ring of one layer is the minimum. */
static int plan_memory(struct paged_weights *w, const struct paged_weights_options *o, struct error *e) {
    const double fraction = o->share;
    size_t expert_bytes = w->page_bytes[PAGE_GATE_UP] + w->page_bytes[PAGE_DOWN] + 256, free_bytes = gpu_mem_free(w->g),
           reserve = free_bytes / 64 + o->grown_bytes;
    size_t slots = expert_bytes ? (free_bytes - (reserve < free_bytes ? reserve : free_bytes)) / expert_bytes : 0,
           per_layer = (size_t)w->n_experts, layers = (size_t)w->n_paged_layers, n_all = layers * per_layer;
    size_t n_resident = fraction < 0 ? 0 : (size_t)(fraction * (double)n_all + 0.5);
    if (!layers) return 0;
    while (fraction < 0 && n_resident < n_all && n_resident + 1 + 2 * (per_layer - (n_resident + 1) / layers) <= slots)
        n_resident++;
    if (n_resident > n_all) n_resident = n_all;
    size_t n_streamed = per_layer - n_resident / layers; /* of the layer with the fewest resident ones */
    size_t free_slots = slots > n_resident ? slots - n_resident : 0;
    if (free_slots < n_streamed || slots < n_resident)
        return error_set(e, ERR_MEMORY,
                         "a layer's %s %zu MB on the device beside %zu MB of resident ones, %zu MB are free",
                         w->is_dense ? "FFN needs" : "experts need", n_streamed * expert_bytes >> 20,
                         n_resident * expert_bytes >> 20, free_bytes >> 20);
    w->n_resident = (int)n_resident;
    w->ring = (int)(free_slots < 2 * n_streamed ? free_slots : 2 * n_streamed);
    for (int l = 0, i = 0; l < w->n_layers; l++) {
        if (!has_pages(w, l)) continue;
        w->resident_at[l] = (int)((size_t)i * n_resident / layers);
        w->resident[l] = (int)((size_t)++i * n_resident / layers) - w->resident_at[l];
    }
    return 0;
}

static int load_experts(struct paged_weights *w, const _Atomic int *cancel, struct error *e) {
    struct copy_range ranges[COPY_RANGES_MAX];
    const size_t n_resident = (size_t)w->n_resident;
    int rc = 0, n_gate_up;
    w->table = mem_calloc(n_resident + (size_t)w->ring + 1, sizeof *w->table);
    w->resident_mem = mem_calloc(n_resident + 1, sizeof *w->resident_mem);
    w->slots = mem_calloc((size_t)w->ring + 1, sizeof *w->slots);
    if (!w->table || !w->resident_mem || !w->slots) return error_set(e, ERR_MEMORY, "no memory for a page table");
    for (int page = 0; page < PAGES && !rc && w->ring; page++)
        rc = ledger_alloc(w->ledger, LEDGER_PAGED, (size_t)w->ring * w->page_bytes[page], &w->pages[page], e);
    for (int l = 0; l < w->n_layers && !rc; l++)
        for (int32_t k = 0; k < w->n_experts && has_pages(w, l) && !rc; k++) {
            if (cancel && atomic_load(cancel)) return error_set(e, ERR_CANCELLED, "stopped");
            if (!w->is_dense && !w->m->cpu_queue && (rc = nan_scan_experts(&w->m->scan, l, &k, 1, e))) return rc;
            size_t at = (size_t)w->resident_at[l] + (size_t)k;
            if (k < w->resident[l])
                rc = load_resident(w, ranges, expert_ranges(w, l, k, &w->table[at], ranges, &n_gate_up),
                                   &w->resident_mem[at], e);
        }
    return rc;
}

/* --- The ring --------------------------------------------------------------------------------- */

static int open_uploads(struct paged_weights *w, struct error *e) {
    const struct stage_options to = {.set = w->m->gpus,
                                     .g = w->g,
                                     .stop = w->stop,
                                     .threads = stage_threads(w->m->gpus, w->m->w),
                                     .trace = w->m->trace,
                                     .rank = gpu_info(w->g)->rank};
    w->sent = w->freed_until = w->layer_base = 0;
    w->next_layer = w->next_expert = -1;
    return upload_open(&w->uploads, "pages", &to, e);
}
int paged_weights_reset(struct paged_weights *w, struct error *e) {
    upload_close(&w->uploads);
    memset(w->slots, 0, (size_t)w->ring * sizeof *w->slots);
    return open_uploads(w, e);
}

uint64_t paged_weights_streamed(const struct paged_weights *w, int layer) {
    return has_pages(w, layer) ? (uint64_t)(w->n_experts - w->resident[layer]) : 0;
}
/* Returns the next layer of which something is streamed; `layer` itself if no other is. */
static int next_streamed_layer(const struct paged_weights *w, int layer) {
    for (int i = 0; i < w->n_layers; i++)
        if (paged_weights_streamed(w, layer = (layer + 1) % w->n_layers)) return layer;
    return layer;
}
uint64_t paged_weights_next_streamed(const struct paged_weights *w, int layer) {
    return paged_weights_streamed(w, next_streamed_layer(w, layer));
}

/* Moves to the next streamed expert. Not called if all of a device's experts are resident. */
static void next_streamed_expert(struct paged_weights *w) {
    if (w->next_layer >= 0 && ++w->next_expert < w->n_experts) return;
    w->next_layer = next_streamed_layer(w, w->next_layer);
    w->next_expert = w->resident[w->next_layer];
}

int paged_weights_send(struct paged_weights *w, uint64_t until) {
    struct copy_range ranges[COPY_RANGES_MAX];
    while (w->sent < until && w->sent < w->freed_until + (uint64_t)w->ring) {
        int n_gate_up;
        next_streamed_expert(w);
        size_t slot = (size_t)(w->sent % (uint64_t)w->ring);
        struct expert *view = &w->table[(size_t)w->n_resident + slot];
        int n = expert_ranges(w, w->next_layer, w->next_expert, view, ranges, &n_gate_up);
        char *to[PAGES];
        for (int page = 0; page < PAGES; page++) to[page] = w->pages[page].at + slot * w->page_bytes[page];
        w->sent++;
        TRY(upload_send(&w->uploads, &w->slots[slot], false, ranges, n_gate_up, to[PAGE_GATE_UP], w->next_layer,
                        w->next_expert));
        TRY(upload_send(&w->uploads, &w->slots[slot], true, ranges + n_gate_up, n - n_gate_up, to[PAGE_DOWN],
                        w->next_layer, w->next_expert));
        atomic_fetch_add(&w->m->bytes_read,
                         w->is_dense ? w->page_bytes[PAGE_GATE_UP] + w->page_bytes[PAGE_DOWN] : w->m->expert_bytes);
    }
    return 0;
}

int paged_weights_use(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream, struct expert *view) {
    const int n_resident = w->resident[layer];
    if (expert < n_resident) {
        *view = w->table[w->resident_at[layer] + expert];
        return 0;
    }
    uint64_t count = w->layer_base + (uint64_t)(expert - n_resident);
    TRY(paged_weights_send(w, count + 1));
    if (w->sent <= count) return ERR_RUNTIME; /* the ring is smaller than a layer: paged_weights_open prevents it */
    *view = w->table[(size_t)w->n_resident + (size_t)(count % (uint64_t)w->ring)];
    return upload_wait(&w->uploads, &w->slots[count % (uint64_t)w->ring], stream);
}

int paged_weights_free(struct paged_weights *w, int layer, int expert, struct gpu_stream *stream) {
    uint64_t until = w->layer_base + (uint64_t)(expert > w->resident[layer] ? expert - w->resident[layer] : 0);
    if (until <= w->freed_until) return 0;
    TRY(upload_signal(&w->uploads, stream));
    for (; w->freed_until < until; w->freed_until++) {
        struct upload_slot *t = &w->slots[w->freed_until % (uint64_t)w->ring];
        upload_release(&w->uploads, t), upload_evict(t);
    }
    return 0;
}

/* --- Opening ---------------------------------------------------------------------------------- */

int paged_weights_open(struct paged_weights *w, struct runtime *m, struct gpu *g, const _Atomic int *stop,
                       const struct paged_weights_options *o, const _Atomic int *cancel, struct error *e) {
    const struct config *c = &m->w->config;
    *w = (struct paged_weights){.m = m,
                                .g = g,
                                .ledger = &m->gpus->ledger[o->rank],
                                .stop = stop,
                                .rank = o->rank,
                                .ranks = o->ranks,
                                .is_dense = !c->n_experts,
                                .n_layers = c->n_layers,
                                .n_experts = c->n_experts ? c->n_experts : 1,
                                .head = *m->w};
    for (int l = 0; l < c->n_layers; l++) w->n_paged_layers += has_pages(w, l);
    w->views = mem_calloc((size_t)c->n_layers, sizeof *w->views);
    w->mem = mem_calloc((size_t)c->n_layers, sizeof *w->mem);
    w->resident = mem_calloc((size_t)c->n_layers, sizeof *w->resident);
    w->resident_at = mem_calloc((size_t)c->n_layers, sizeof *w->resident_at);
    int rc = w->views && w->mem && w->resident && w->resident_at
                 ? open_uploads(w, e)
                 : error_set(e, ERR_MEMORY, "no memory for the layers of a device");
    if (!rc) rc = load_dense(w, cancel, e);
    measure_pages(w);
    if (!rc) rc = plan_memory(w, o, e);
    if (!rc) rc = load_experts(w, cancel, e);
    if (!rc && (rc = upload_finish(&w->uploads)) && !e->code && !gpu_error(g, e)) exec_op_error(rc, e);
    if (rc) paged_weights_close(w);
    return rc;
}

void paged_weights_close(struct paged_weights *w) {
    upload_close(&w->uploads);
    for (int l = 0; l < w->n_layers && w->mem; l++) ledger_free(w->ledger, &w->mem[l]);
    for (int i = 0; i < w->n_resident && w->resident_mem; i++) ledger_free(w->ledger, &w->resident_mem[i]);
    for (int page = 0; page < PAGES; page++) ledger_free(w->ledger, &w->pages[page]);
    for (int i = 0; i < ENDS; i++) ledger_free(w->ledger, &w->head_mem[i]);
    mem_free(w->views), mem_free(w->mem), mem_free(w->table), mem_free(w->slots), mem_free(w->resident_mem),
        mem_free(w->resident), mem_free(w->resident_at);
    *w = (struct paged_weights){0};
}
