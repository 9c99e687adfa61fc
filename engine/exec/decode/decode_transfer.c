#include "engine/exec/decode/decode_transfer.h"

#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"

/* Whether the CPU reads the rows that a device sends for a layer's experts: to compute some, or to record what routers
 * select. */
bool decode_cpu_reads_rows(const struct decode *s, int layer) {
    return s->c->layer[layer].moe && (s->draft || s->m->routing || !decode_device_experts(s, layer));
}

size_t decode_latent_bytes(const struct decode *s, int n) { return (size_t)n * (size_t)s->c->moe_latent * 4; }

int decode_download_inputs(struct decode_device *d, struct decode_micro_batch *m, int layer) {
    struct decode *s = d->s;
    const struct work *w = decode_device_work(d, m);
    if (!decode_cpu_reads_rows(s, layer)) return 0;
    size_t topk = (size_t)m->n_dev * (size_t)s->c->topk * 4;
    if (decode_hands_latent(s)) {
        struct exec *x = decode_device_exec(d);
        TRY(block_routed_input(x, s->c, &d->layers[layer].view, w->xn, w->routed_in, m->n_dev));
        TRY(x->ops->fill(x, &(struct op_fill){.x = w->routed_sum, .n = m->n_dev, .m = s->c->moe_latent}));
        TRY(gpu_transfer(d->main, m->host.routed_in, w->routed_in, decode_latent_bytes(s, m->n_dev), GPU_D2H));
    } else TRY(gpu_transfer(d->main, m->host.xn, w->xn, decode_device_row_bytes(s, m->n_dev), GPU_D2H));
    TRY(gpu_transfer(d->main, m->host.ids, w->ids, topk, GPU_D2H));
    TRY(gpu_transfer(d->main, m->host.weights, w->weights, topk, GPU_D2H));
    if (!s->m->routing && !d->pool) return 0;
    return gpu_transfer(d->main, m->host.router, w->router, (size_t)m->n_dev * (size_t)config_n_choices(s->c) * 4,
                        GPU_D2H);
}

int decode_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from,
                 int n, int layer, enum gpu_dir dir) {
    const size_t streams = layer < c->n_layers ? (size_t)c->streams.n : 0;
    const size_t rows_bytes = (size_t)n * (size_t)c->hidden * 4;
    const bool ends = layer == c->n_layers, reuses_keys = !ends && config_reuses_selection(c, layer);
    TRY(gpu_copy(stream, to->x, from->x, rows_bytes, dir));
    TRY(gpu_copy(stream, to->streams, from->streams, streams * rows_bytes, dir)); /* 0 bytes: no copy */
    TRY(gpu_copy(stream, to->post, from->post, (size_t)n * streams * sizeof(float), dir));
    TRY(gpu_copy(stream, to->carried, from->carried, ends ? 0 : (size_t)n * (size_t)c->carried * sizeof(float), dir));
    TRY(gpu_copy(stream, to->candidates, from->candidates,
                 ends ? 0 : (size_t)n * (size_t)c->candidate_blocks * sizeof(int32_t), dir));
    TRY(gpu_copy(stream, to->kept, from->kept,
                 layer < c->n_layers && (c->layer[layer].routes_kept || c->parallel_dense) ? rows_bytes : 0, dir));
    return gpu_copy(stream, to->selected_keys, from->selected_keys,
                    reuses_keys ? (size_t)n * (size_t)c->index_topk * sizeof(int32_t) : 0, dir);
}
