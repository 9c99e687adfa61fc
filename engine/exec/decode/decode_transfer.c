#include "engine/exec/decode/decode_transfer.h"

#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/layer/work_open.h"

/* Whether the CPU reads the rows that a device sends for a layer's experts: to compute some, or to record what routers
 * select. */
bool decode_cpu_reads_rows(const struct decode *s, int layer) {
    return s->c->layer[layer].moe && (s->draft || s->m->routing || !decode_device_experts(s, layer));
}

struct expert_io decode_expert_io(const struct decode *s, const struct work *w) {
    return s->is_tensor_parallel ? (struct expert_io){s->c->hidden, w->xn, w->x} : expert_io_of(s->c, w, w->x);
}

int decode_download_inputs(struct decode_device *d, struct decode_micro_batch *m, int layer) {
    struct decode *s = d->s;
    const struct work *w = decode_device_work(d, m);
    if (!decode_cpu_reads_rows(s, layer)) return 0;
    size_t topk = (size_t)m->n_dev * (size_t)s->c->topk * 4;
    const struct expert_io io = decode_expert_io(s, w), host = decode_expert_io(s, &m->host);
    if (!s->is_tensor_parallel) TRY(expert_io_begin(decode_device_exec(d), s->c, &d->layers[layer].view, w, m->n_dev));
    TRY(gpu_transfer(d->main, host.in, io.in, (size_t)m->n_dev * (size_t)io.width * 4, GPU_D2H));
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
