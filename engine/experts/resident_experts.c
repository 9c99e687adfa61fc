#include "engine/experts/resident_experts.h"

#include "base/mem.h"

/* Offsets of an expert's fields, by range, with room for the largest expert of the layer. Experts may differ in format.
 * The order is that of the first expert in host memory, so that neighbouring ranges are one copy. */
struct expert_layout {
    size_t at[COPY_RANGES_MAX], stride;
    int order[COPY_RANGES_MAX], n;
};

static void layout_experts(const struct config *c, int layer, const struct expert *from, struct expert_layout *out) {
    struct copy_range ranges[COPY_RANGES_MAX];
    struct expert_params params = {0};
    struct expert view;
    size_t most[COPY_RANGES_MAX] = {0};
    int n_first = 0;
    out->n = 0, out->stride = 0;
    for (int i = c->n_experts - 1; i >= 0; i--) {
        if (i && weights_experts_alike(&from[i], &from[i - 1])) continue;
        n_first = copy_ranges_list_expert(&params, c, layer, &from[i], &view, ranges);
        if (n_first > out->n) out->n = n_first;
        for (int k = 0; k < n_first; k++)
            if (ranges[k].bytes > most[k]) most[k] = ranges[k].bytes;
    }
    for (int k = 0; k < out->n; k++) { /* the first expert's by address, then those that only others have */
        int at = k;
        for (; k < n_first && at > 0 && ranges[out->order[at - 1]].host > ranges[k].host; at--)
            out->order[at] = out->order[at - 1];
        out->order[at] = k;
    }
    for (int k = 0; k < out->n; k++)
        out->at[out->order[k]] = out->stride, out->stride += align_up(most[out->order[k]], 256);
}

size_t resident_experts_bytes(const struct config *c, int layer, const struct expert *from) {
    struct expert_layout layout;
    if (!from) return 0;
    layout_experts(c, layer, from, &layout);
    return layout.stride * (size_t)c->n_experts;
}

int resident_experts_load(struct resident_experts *x, enum ledger_class class, const struct config *c, int layer,
                          const struct expert *from, const int32_t *ids, int n_ids, struct ledger *l,
                          struct stage *stage, struct error *e) {
    struct expert_layout layout;
    struct expert_params params = {0};
    const int n_experts = ids ? n_ids : c->n_experts;
    layout_experts(c, layer, from, &layout);
    int rc = ledger_alloc(l, class, layout.stride * (size_t)n_experts, &x->mem, e);
    if (!rc && !(x->view = mem_calloc((size_t)n_experts, sizeof *x->view)))
        rc = error_set(e, ERR_MEMORY, "no memory for the experts of a device");
    for (int i = 0; i < n_experts && !rc; i++) {
        struct copy_range ranges[COPY_RANGES_MAX];
        struct copy_run runs[COPY_RANGES_MAX];
        char *to = x->mem.at + (size_t)i * layout.stride;
        const int id = ids ? ids[i] : i;
        const int n = copy_ranges_list_expert(&params, c, layer, &from[id], &x->view[i], ranges);
        int n_runs = 0;
        for (int j = 0; j < layout.n; j++) {
            const int k = layout.order[j];
            struct copy_run *last = n_runs ? &runs[n_runs - 1] : NULL;
            if (k >= n) continue;
            *ranges[k].field = to + layout.at[k];
            if (last && ranges[k].host == last->host + last->bytes && layout.at[k] == last->at + last->bytes)
                last->bytes += ranges[k].bytes;
            else
                runs[n_runs++] =
                    (struct copy_run){.host = ranges[k].host, .bytes = ranges[k].bytes, .at = layout.at[k]};
        }
        rc = stage_send(stage, &(struct stage_unit){.runs = runs, .n = n_runs, .to = to, .layer = layer, .item = id});
    }
    x->n = n_experts;
    if (rc) mem_free(x->view), x->view = NULL;
    return rc;
}

void resident_experts_free(struct resident_experts *x, struct ledger *l) {
    ledger_free(l, &x->mem);
    mem_free(x->view);
    *x = (struct resident_experts){0};
}
