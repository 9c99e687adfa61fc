/* The experts of a layer that a device with a pool computes: their pairs of rows and weights, and what its compute
 * stream does with them. Which experts: expert_pool_layer.c, expert_pool_sent.c. */
#include "engine/exec/decode/decode_transfer.h"
#include "engine/exec/decode/expert_pool_internal.h"

void expert_pool_add_to_part(struct expert_pool *x, const struct decode_micro_batch *m, struct device_part *part,
                             struct expert_slot *t, int id) {
    const int topk = x->d->s->c->topk, micro = (int)(m - x->d->s->micro_batch);
    part->slot[part->n] = t, part->begin[part->n++] = part->pairs;
    t->was_used = true;
    for (int r = 0; r < m->n_dev * topk; r++)
        if (m->host.ids[r] == id) {
            x->host_token[micro][part->pairs] = r / topk, x->host_weight[micro][part->pairs++] = m->host.weights[r];
            x->cpu_ids[r] = -1;
        }
}

/* Computes one expert for its n pairs from index `at`: gathers their rows, runs it with the small-batch kernels, adds
 * its output. */
static int run_expert(struct expert_pool *x, const struct work *w, int micro, int layer, const struct expert_slot *t,
                      int at, int n) {
    struct exec *exec = gpu_stream_exec(x->compute);
    const struct expert_io io = decode_expert_io(x->d->s, w);
    const int hidden = io.width;
    TRY(op_run(
        exec, OP_GATHER,
        &(struct op_gather){
            .out = x->expert_in, .x = io.in, .index = x->token[micro] + at, .n = n, .dim = hidden, .ldx = hidden}));
    TRY(op_run(exec, OP_FFN,
               &(struct op_ffn){.y = x->expert_out, .x = x->expert_in, .expert = t->view, .n = n, .hidden = hidden}));
    TRY(expert_io_norm(exec, x->d->s->c, &x->d->layers[layer].view, x->expert_out, n));
    return op_run(exec, OP_SCATTER_ADD,
                  &(struct op_scatter_add){.y = x->y[micro],
                                           .x = x->expert_out,
                                           .index = x->token[micro] + at,
                                           .weight = x->weight[micro] + at,
                                           .n = n,
                                           .dim = hidden,
                                           .ldy = hidden});
}

int expert_pool_begin_parts(struct expert_pool *x, int micro, int layer, int n_rows) {
    const struct decode *s = x->d->s;
    /* Without a queue the host has waited for the rows, so that the previous sum is complete, too. */
    if (s->cpu_queue) TRY(gpu_event_wait(x->ready[micro][layer % 2], x->compute));
    TRY(gpu_fill(x->compute, x->y[micro], 0, (size_t)n_rows * (size_t)config_routed_width(s->c) * 4));
    return gpu_event_record(x->begin[micro], x->compute);
}
int expert_pool_run_part(struct expert_pool *x, int micro, int layer, const struct device_part *part) {
    struct decode_device *d = x->d;
    const int first = part->first_pair;
    const size_t bytes = (size_t)(part->pairs - first) * 4;
    if (!part->n) return 0;
    TRY(gpu_copy(x->compute, x->token[micro] + first, x->host_token[micro] + first, bytes, GPU_H2D));
    TRY(gpu_copy(x->compute, x->weight[micro] + first, x->host_weight[micro] + first, bytes, GPU_H2D));
    int span = trace_begin(d->s->m->trace, x->compute, d->rank, LANE_COMPUTE, "experts", layer, micro);
    for (int i = 0; i < part->n; i++) {
        const int end = i + 1 < part->n ? part->begin[i + 1] : part->pairs;
        TRY(upload_wait(&x->uploads, &part->slot[i]->upload, x->compute));
        TRY(run_expert(x, &d->work[micro], micro, layer, part->slot[i], part->begin[i], end - part->begin[i]));
    }
    trace_end(d->s->m->trace, span, x->compute);
    TRY(upload_signal(&x->uploads, x->compute));
    for (int i = 0; i < part->n; i++) upload_release(&x->uploads, &part->slot[i]->upload);
    return 0;
}
int expert_pool_end_parts(struct expert_pool *x, int micro, int n_rows, bool any) {
    if (any) TRY(gpu_event_record(x->end[micro], x->compute));
    x->timed_rows[micro] = any ? n_rows : 0;
    return gpu_timeline_signal(x->done[micro], ++x->n_done[micro], x->compute);
}
