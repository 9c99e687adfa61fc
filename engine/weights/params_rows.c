#include "engine/weights/params_rows.h"

#include <assert.h>

struct tensor_slice params_in_gate_up(enum gate_up order, bool stacked, int inter, int which) {
    struct tensor_slice s = {.total_rows = inter, .step = 1, .stacked = stacked};
    if (order == GATE_UP_STACKED) s.total_rows *= 2, s.first = which * inter;
    if (order == GATE_UP_INTERLEAVED) s.total_rows *= 2, s.first = which, s.step = 2;
    return s;
}

bool params_has_ffn_out_norm(const struct config *c, int layer) {
    return c->output_norm == OUTPUT_NORM_BLOCKS || c->output_norm == OUTPUT_NORM_UNIT ||
           (c->output_norm == OUTPUT_NORM_EXPERTS && c->layer[layer].moe) ||
           (c->output_norm == OUTPUT_NORM_FIRST && !layer);
}

struct stream_kind params_stream_kind(const struct config *c) {
    const bool gated = c->streams.is_gated, pools = c->streams.block_layers > 0, gates = c->merge_temperature > 0;
    return (struct stream_kind){.gated = gated,
                                .pools = pools,
                                .mixes = c->streams.n > 0 && !c->streams.is_plain && !gated && !pools,
                                .merges = c->merges_stream && !gates,
                                .merge_gates = c->merges_stream && gates};
}
struct messages params_messages(const struct config *c, int layer) {
    const struct residual_streams *s = &c->streams;
    return (struct messages){.has = c->layer[layer].pass > 0,
                             .queries = 2 * (s->loop_to - s->loop_from),
                             .first = 2 * (config_stored_layer(c, layer) - s->loop_from),
                             .rank = s->message_rank};
}

void params_select_rows(const struct row *all, size_t n_rows, unsigned modules, struct param_list *out) {
    for (size_t i = 0; i < n_rows; i++) {
        if (!all[i].when || !(all[i].p.module & modules)) continue;
        assert(out->n < PARAMS_MAX);
        out->list[out->n++] = all[i].p;
    }
}
