#include "engine/exec/stream/exchange.h"

#include "base/mem.h"
#include "engine/exec/stream/slp.h"

int exchange_first_row(const struct slp_rank *r) { return r->exchange ? r->exchange->first_row : 0; }

int exchange_open(struct slp_rank *r, struct error *e) {
    struct slp_run *p = r->p;
    if (p->n_ranks == 1) return 0;
    struct exchange *x = r->exchange = mem_calloc(1, sizeof *x);
    if (!x) return error_set(e, ERR_MEMORY, "no memory for an exchange");
    for (int i = 0; i < r->id; i++) x->first_row += p->rank[i].n;
    /* numbers per token, and per sum of its experts */
    const size_t hidden = (size_t)p->c->hidden, floats = (size_t)config_routed_width(p->c);
    x->is_bf16 = p->job->set->spec.math != GPU_MATH_F32 && floats <= 2 * hidden;
    const size_t element = x->is_bf16 ? 2 : 4, n = (size_t)r->n, topk = (size_t)p->c->topk * 4; /* bytes */
    int rc = gpu_stream_open(r->g, &x->send, "send", true, &p->stop, e);
    if (!rc) rc = gpu_stream_open(r->g, &x->recv, "receive", true, &p->stop, e);
    for (int i = 0; i < EXCHANGE_STEPS && !rc; i++) rc = gpu_pair_open(r->g, &x->ready[i], e);
    for (int i = 0; i < 2 * EXCHANGE_PARTS && !rc; i++) rc = gpu_pair_open(r->g, &x->sent[i % 2][i / 2], e);
    if (!rc) rc = gpu_event_open(r->g, &x->received, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&x->received_sums, n * floats * 4, e);
    if (!rc && x->is_bf16) rc = gpu_alloc(r->g, (void **)&x->bf16_tokens, n * hidden * 2, e);
    if (!rc && x->is_bf16) rc = gpu_alloc(r->g, (void **)&x->bf16_sums, n * floats * 2, e);
    if (p->job->set->spec.is_virtual) return rc; /* host memory is never accessed */
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->tokens, n * hidden * element, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->ids, n * topk, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->weights, n * topk, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&x->sums, (size_t)p->job->n * floats * element, e);
    return rc;
}

void exchange_abort(struct slp_rank *r) {
    struct exchange *x = r->exchange;
    for (int i = 0; x && i < 2; i++)
        if (x->ready[i]) gpu_pair_abort(x->ready[i]);
    for (int i = 0; x && i < 2 * EXCHANGE_PARTS; i++)
        if (x->sent[i % 2][i / 2]) gpu_pair_abort(x->sent[i % 2][i / 2]);
}

void exchange_close(struct slp_rank *r) {
    struct exchange *x = r->exchange;
    if (!x) return;
    gpu_stream_close(&x->send);
    gpu_stream_close(&x->recv);
    for (int i = 0; i < 2; i++) gpu_pair_close(&x->ready[i]);
    for (int i = 0; i < 2 * EXCHANGE_PARTS; i++) gpu_pair_close(&x->sent[i % 2][i / 2]);
    gpu_event_close(&x->received);
    gpu_free(r->g, x->received_sums);
    gpu_free(r->g, x->bf16_tokens);
    gpu_free(r->g, x->bf16_sums);
    gpu_host_free(r->g, x->tokens);
    gpu_host_free(r->g, x->ids);
    gpu_host_free(r->g, x->weights);
    gpu_host_free(r->g, x->sums);
    mem_free(x);
    r->exchange = NULL;
}

bool exchange_are_peers(const struct slp_rank *r, const struct slp_rank *q) {
    return gpu_info(r->g)->peer && gpu_info(q->g)->peer;
}

static bool all_are_peers(const struct slp_rank *r) {
    for (int i = 0; i < r->p->n_ranks; i++)
        if (!exchange_are_peers(r, &r->p->rank[i])) return false;
    return true;
}

/* --- Steps ------------------------------------------------------------------------------------ */

/* The current step. */
static enum exchange_step step_kind(const struct exchange *x) { return (x->steps - 1) % EXCHANGE_STEPS; }
/* The current step's use of its events, counted from 1. */
static uint64_t step_use(const struct exchange *x) { return (x->steps + 1) / EXCHANGE_STEPS; }

/* Begins a step: the compute stream has produced this rank's data. Orders `send` after it. */
static int announce_data(struct slp_rank *r) {
    struct exchange *x = r->exchange;
    x->steps++;
    TRY(gpu_pair_record(x->ready[step_kind(x)], r->compute_stream));
    return gpu_pair_wait(x->ready[step_kind(x)], step_use(x), x->send);
}
/* Records that the part is in host memory once `send` has run what is enqueued. */
static int mark_sent(struct slp_rank *r, int part) {
    return gpu_pair_record(r->exchange->sent[step_kind(r->exchange)][part], r->exchange->send);
}

/* Makes `recv` wait until r may fetch that part of q's data. */
static int wait_part(struct slp_rank *r, struct slp_rank *q, int part) {
    const struct exchange *x = r->exchange, *o = q->exchange;
    return gpu_pair_wait(exchange_are_peers(r, q) ? o->ready[step_kind(x)] : o->sent[step_kind(x)][part], step_use(x),
                         x->recv);
}
/* Copies `bytes` of q's data to dst, on `recv`: from q's device memory if they are peers, else from its host memory. */
static int fetch_part(struct slp_rank *r, struct slp_rank *q, void *dst, const void *device, const void *host,
                      size_t bytes) {
    atomic_fetch_add(&r->p->exchanged, bytes);
    if (exchange_are_peers(r, q)) return gpu_copy_peer(r->exchange->recv, dst, q->g, device, bytes);
    return gpu_copy(r->exchange->recv, dst, host, bytes, GPU_H2D);
}

/* --- SmallEP ---------------------------------------------------------------------------------- */

/* Returns the rows in part k of n rows; *begin: the first. */
static size_t part_rows(size_t n, int k, size_t *begin) {
    *begin = n * (size_t)k / EXCHANGE_PARTS;
    return n * (size_t)(k + 1) / EXCHANGE_PARTS - *begin;
}

/* Conversion between BF16 and float32 rows, with the operations of a one-head KV cache. */
static struct kv_plane bf16_rows(void *data, int width) {
    return (struct kv_plane){.data = data, .heads = 1, .dim = width, .dtype = DT_BF16};
}
static int to_bf16(struct slp_rank *r, void *out, const float *x, int n, int width) {
    struct op_kv_store o = {.plane = bf16_rows(out, width), .x = x, .n = n, .ldx = width};
    return n ? op_run(gpu_stream_exec(r->compute_stream), OP_KV_STORE, &o) : 0;
}
static int from_bf16(struct slp_rank *r, float *out, void *x, int n, int width) {
    struct op_kv_load o = {.plane = bf16_rows(x, width), .out = out, .n = n, .ldo = width};
    return n ? op_run(gpu_stream_exec(r->compute_stream), OP_KV_LOAD, &o) : 0;
}
/* Returns the rows of rank q's tokens in `all`, r's buffer of all ranks' tokens, [all, hidden]. */
static float *rank_rows(const struct slp_rank *r, float *all, const struct slp_rank *q) {
    return all + (size_t)q->exchange->first_row * (size_t)r->p->c->hidden;
}
/* Returns those of q's tokens in r->sum, whose rows may be in the latent space of experts. */
static float *rank_sums(const struct slp_rank *r, const struct slp_rank *q) {
    return r->sum + (size_t)q->exchange->first_row * (size_t)config_routed_width(r->p->c);
}

/* Downloads rows if some rank has no peer access; host is NULL in virtual time. */
static int send_part(struct slp_rank *r, char *host, size_t at, const char *device, size_t bytes) {
    return all_are_peers(r) ? 0 : gpu_copy(r->exchange->send, host ? host + at : NULL, device + at, bytes, GPU_D2H);
}

int exchange_tokens(struct slp_rank *r, int layer) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    size_t topk = (size_t)p->c->topk, n = (size_t)r->n, row = (size_t)x->first_row, begin,
           row_bytes = (size_t)p->c->hidden * (x->is_bf16 ? 2 : 4);
    if (x->is_bf16) TRY(to_bf16(r, x->bf16_tokens, rank_rows(r, r->rows.xn, r), r->n, p->c->hidden));
    TRY(announce_data(r));
    TRY(send_part(r, (char *)x->ids, 0, (const char *)(r->rows.ids + row * topk), n * topk * 4));
    TRY(send_part(r, (char *)x->weights, 0, (const char *)(r->rows.weights + row * topk), n * topk * 4));
    for (int k = 0; k < EXCHANGE_PARTS; k++) {
        size_t rows = part_rows(n, k, &begin);
        TRY(send_part(r, x->tokens, begin * row_bytes,
                      x->is_bf16 ? (const char *)x->bf16_tokens : (const char *)rank_rows(r, r->rows.xn, r),
                      rows * row_bytes));
        TRY(mark_sent(r, k));
    }
    int span = trace_begin(p->trace, x->recv, r->id, LANE_EXCHANGE, "tokens", layer, -1);
    for (int k = 0; k < EXCHANGE_PARTS; k++)
        for (int step = 1; step < p->n_ranks; step++) {
            struct slp_rank *q = &p->rank[(r->id + step) % p->n_ranks];
            struct exchange *o = q->exchange;
            size_t rows = part_rows((size_t)q->n, k, &begin), first = (size_t)o->first_row, at = begin * row_bytes;
            const char *from = x->is_bf16 ? (const char *)o->bf16_tokens : (const char *)rank_rows(q, q->rows.xn, q);
            TRY(wait_part(r, q, k));
            if (!k)
                TRY(fetch_part(r, q, r->rows.ids + first * topk, q->rows.ids + first * topk, o->ids,
                               (size_t)q->n * topk * 4));
            if (!k)
                TRY(fetch_part(r, q, r->rows.weights + first * topk, q->rows.weights + first * topk, o->weights,
                               (size_t)q->n * topk * 4));
            TRY(fetch_part(r, q, (char *)rank_rows(r, x->is_bf16 ? r->sum : r->rows.xn, q) + at, from + at,
                           o->tokens ? o->tokens + at : NULL, rows * row_bytes));
        }
    trace_end(p->trace, span, x->recv);
    TRY(gpu_event_record(x->received, x->recv));
    TRY(gpu_event_wait(x->received, r->compute_stream));
    for (int i = 0; i < p->n_ranks && x->is_bf16; i++)
        if (i != r->id)
            TRY(from_bf16(r, rank_rows(r, r->rows.xn, &p->rank[i]), rank_rows(r, r->sum, &p->rank[i]), p->rank[i].n,
                          p->c->hidden));
    return 0;
}

/* The rows of rank q's sums that r sends, in BF16 at the beginning of the rows of xn that q's tokens had. */
static const char *sent_sums(const struct slp_rank *r, const struct slp_rank *q) {
    return (const char *)(r->exchange->is_bf16 ? rank_rows(r, r->rows.xn, q) : rank_sums(r, q));
}

int exchange_sums(struct slp_rank *r, float *out, int layer) {
    struct slp_run *p = r->p;
    struct exchange *x = r->exchange;
    const int floats = config_routed_width(p->c);
    size_t n = (size_t)r->n, begin, row_bytes = (size_t)floats * (x->is_bf16 ? 2 : 4);
    for (int i = 0; i < p->n_ranks && x->is_bf16; i++)
        if (i != r->id)
            TRY(to_bf16(r, rank_rows(r, r->rows.xn, &p->rank[i]), rank_sums(r, &p->rank[i]), p->rank[i].n, floats));
    TRY(announce_data(r));
    for (int k = 0; k < EXCHANGE_PARTS; k++) {
        for (int i = 0; i < p->n_ranks; i++) {
            const struct slp_rank *q = &p->rank[i];
            size_t rows = part_rows((size_t)q->n, k, &begin);
            char *host = x->sums ? x->sums + (size_t)q->exchange->first_row * row_bytes : NULL;
            if (q != r) TRY(send_part(r, host, begin * row_bytes, sent_sums(r, q), rows * row_bytes));
        }
        TRY(mark_sent(r, k));
    }
    for (int i = 0; i < p->n_ranks; i++) {
        struct slp_rank *q = &p->rank[i];
        const float *part = rank_sums(r, r);
        if (q != r) {
            char *to = x->is_bf16 ? (char *)x->bf16_sums : (char *)x->received_sums;
            const char *from = sent_sums(q, r), *host = q->exchange->sums;
            int span = trace_begin(p->trace, x->recv, r->id, LANE_EXCHANGE, "sums", layer, i);
            for (int k = 0; k < EXCHANGE_PARTS; k++) {
                size_t rows = part_rows(n, k, &begin), at = begin * row_bytes;
                TRY(wait_part(r, q, k));
                TRY(fetch_part(r, q, to + at, from + at, host ? host + (size_t)x->first_row * row_bytes + at : NULL,
                               rows * row_bytes));
            }
            trace_end(p->trace, span, x->recv);
            TRY(gpu_event_record(x->received, x->recv));
            TRY(gpu_event_wait(x->received, r->compute_stream));
            if (x->is_bf16) TRY(from_bf16(r, x->received_sums, x->bf16_sums, r->n, floats));
            part = x->received_sums;
        }
        if (n)
            TRY(op_run(gpu_stream_exec(r->compute_stream), OP_ADD,
                       &(struct op_add){.y = out, .x = part, .n = r->n, .m = floats}));
        if (q == r || !n) continue;
        TRY(gpu_event_record(x->received, r->compute_stream)); /* received_sums may be overwritten afterwards */
        TRY(gpu_event_wait(x->received, x->recv));
    }
    return 0;
}
