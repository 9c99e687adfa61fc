#include "engine/experts/resident_experts.h"

#include "engine/base/mem.h"

/* Offsets of an expert's fields, by range, with room for the largest expert of the layer. Experts may differ in format. */
struct expert_layout {
    size_t at[COPY_RANGES_MAX], stride;
};

static int expert_ranges(const struct weights *w, int layer, int expert, struct expert *view, struct copy_range out[COPY_RANGES_MAX]) {
    return copy_ranges_list(&w->config, layer, MODULE_EXPERT, &w->layers[layer].experts[expert], view, out);
}

static void layout_experts(const struct weights *w, int layer, struct expert_layout *out) {
    struct copy_range ranges[COPY_RANGES_MAX];
    struct expert view;
    size_t most[COPY_RANGES_MAX] = {0};
    for (int i = 0; i < w->config.n_experts; i++)
        for (int n = expert_ranges(w, layer, i, &view, ranges); n-- > 0;)
            if (ranges[n].bytes > most[n]) most[n] = ranges[n].bytes;
    out->stride = 0;
    for (int k = 0; k < COPY_RANGES_MAX; k++) out->at[k] = out->stride, out->stride += align_up(most[k], 256);
}

size_t resident_experts_bytes(const struct weights *w, int layer) {
    struct expert_layout layout;
    if (!w->layers[layer].experts) return 0;
    layout_experts(w, layer, &layout);
    return layout.stride * (size_t)w->config.n_experts;
}

int resident_experts_load(struct resident_experts *x, const struct weights *w, int layer, struct ledger *l, struct stage *stage, struct error *e) {
    struct expert_layout layout;
    const int n_experts = w->config.n_experts;
    layout_experts(w, layer, &layout);
    int rc = ledger_alloc(l, LEDGER_EXPERTS, layout.stride * (size_t)n_experts, &x->mem, e);
    if (!rc && !(x->view = mem_calloc((size_t)n_experts, sizeof *x->view))) rc = error_set(e, ERR_MEMORY, "no memory for the experts of a device");
    for (int i = 0; i < n_experts && !rc; i++) {
        struct copy_range ranges[COPY_RANGES_MAX];
        struct copy_run runs[COPY_RANGES_MAX];
        char *to = x->mem.at + (size_t)i * layout.stride;
        const int n = expert_ranges(w, layer, i, &x->view[i], ranges);
        for (int k = 0; k < n; k++) {
            runs[k] = (struct copy_run){.host = ranges[k].host, .bytes = ranges[k].bytes, .at = layout.at[k]};
            *ranges[k].field = to + layout.at[k];
        }
        rc = stage_send(stage, &(struct stage_unit){.runs = runs, .n = n, .to = to, .layer = layer, .item = i});
    }
    if (rc) resident_experts_free(x, l);
    return rc;
}

void resident_experts_free(struct resident_experts *x, struct ledger *l) {
    ledger_free(l, &x->mem);
    mem_free(x->view);
    *x = (struct resident_experts){0};
}
