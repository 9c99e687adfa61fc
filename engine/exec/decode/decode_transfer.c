#include "engine/exec/decode/decode_transfer.h"

#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/layer/work_open.h"

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
    for (const struct work_row *k = work_rows; k->width; k++)
        if (k->reads && k->reads(c, layer)) /* 0 bytes: no copy */
            TRY(gpu_copy(stream, *work_field(to, k), *work_field(from, k), (size_t)n * work_row_bytes(k, c), dir));
    return 0;
}
