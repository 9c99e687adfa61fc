/* Operations on few numbers as the steps of one launch, of their own or of the products before them. */
#include <string.h>

#include "gpu/cuda.h"
#include "gpu/fuse.h"

/* The chain with all defaults filled in, and the steps that wait for others marked. */
static struct op_chain prepared(const struct op_chain *a) {
    struct op_chain c = *a;
    for (int i = 0, first = 0; i < c.n; i++) {
        cuda_fill_defaults(c.step[i].code, (union op_args *)&c.step[i].args);
        if (fuse_steps_are_apart(a, first, i)) continue;
        c.step[i].waits = true;
        first = i;
    }
    return c;
}
/* --- Epilogues -------------------------------------------------------------------------------- */

/* The last block has fewer threads than a chain of its own, so it takes the chain only if that is short; and all blocks
 * change one counter. */
enum { LAST_NUMBERS = 8192, LAST_STEPS = 5, LAST_BLOCKS = 2048, LAST_SPACE = 8 << 10 };

static bool is_short(const struct op_chain *c) {
    size_t numbers = 0;
    for (int i = 0; i < c->n; i++) {
        const struct op_step *s = &c->step[i];
        /* each warp takes one token, and a block has at least EPILOGUE_ROWS warps */
        if (s->code == OP_ROUTE && s->args.route.n > EPILOGUE_ROWS) return false;
        numbers += op_numbers(s->code, (const union op_args *)&s->args);
    }
    return c->n <= LAST_STEPS && numbers <= LAST_NUMBERS && cuda_chain_space(c) <= LAST_SPACE;
}

static int launch_chain(struct cuda_stream *s, const struct op_chain *prepared_chain) {
    return cuda_check(s->g, cuda_chain(s->stream, prepared_chain), "chain");
}
int cuda_chain_op(struct cuda_stream *s, const struct op_chain *a) {
    const struct op_chain c = prepared(a);
    if (s->has_down) {
        const struct cuda_epilogue e = {.kind = EPILOGUE_LAST, .chain = c, .tickets = cuda_tickets(s)};
        if (e.tickets && is_short(&c)) return cuda_down_run(s, &e);
        TRY(cuda_down_run(s, NULL));
    }
    return launch_chain(s, &c);
}

/* The numbers of a head if a step works on each head of a product's result and on nothing else that the launch
 * computes; 0: it does not. */
static int head_size(const struct op_step *s, const struct op_linear *l) {
    const struct op_norm *norm = &s->args.norm;
    const struct op_rope *rope = &s->args.rope;
    const struct op_kv_store *store = &s->args.kv_store;
    const int rows = l->n, width = l->w.rows;
    switch (s->code) {
    case OP_NORM: /* its rows are heads, which lie together */
        if (norm->x != l->y || norm->out != l->y || norm->ldx != norm->dim || norm->ldo != norm->dim || norm->w_rows)
            return 0;
        return (rows == 1 || l->ldy == width) && (long)norm->rows * norm->dim == (long)rows * width ? norm->dim : 0;
    case OP_ROPE: /* may turn only a part of each head */
        if (rope->x < l->y || rope->x - l->y + 2 * rope->half > rope->head_ld || rope->n != rows) return 0;
        if (rows > 1 && rope->ld != l->ldy) return 0;
        return (long)rope->heads * rope->head_ld == width ? rope->head_ld : 0;
    case OP_KV_STORE:
        if (store->x != l->y || store->n != rows || store->every || (rows > 1 && store->ldx != l->ldy)) return 0;
        return (long)store->plane.heads * store->plane.dim == width ? store->plane.dim : 0;
    default: return 0;
    }
}
/* Assigns each step to the product on whose heads it works. false: one works on something else, or its heads are not
 * those of whole blocks. */
static bool assign_heads(const struct cuda_stream *s, const struct op_join *j, struct cuda_epilogue *e) {
    int next = 0;
    for (int i = 0; i < e->chain.n; i++) {
        int k = 0, dim = 0;
        while (k < j->n && !(dim = head_size(&e->chain.step[i], &j->linear[k]))) k++;
        if (k == j->n || (e->dim[k] && e->dim[k] != dim) || dim % cuda_join_rows(s, j, k)) return false;
        e->product[i] = k;
        if (e->dim[k]) continue;
        e->dim[k] = dim, e->first[k] = next;
        next += j->linear[k].w.rows / dim;
    }
    return next <= CUDA_TICKETS;
}
static enum epilogue_kind kind_of(const struct cuda_stream *s, const struct op_join *j, struct cuda_epilogue *e) {
    long blocks = 0;
    if (j->linear[0].n > EPILOGUE_ROWS || !cuda_join_is_one(j)) return EPILOGUE_NONE;
    if (assign_heads(s, j, e)) return EPILOGUE_HEADS;
    for (int k = 0; k < j->n; k++) blocks += j->linear[k].w.rows / cuda_join_rows(s, j, k);
    return blocks <= LAST_BLOCKS && is_short(&e->chain) ? EPILOGUE_LAST : EPILOGUE_NONE;
}
int cuda_down_run(struct cuda_stream *s, const struct cuda_epilogue *e) {
    s->has_down = false;
    return cuda_check(s->g, cuda_routed_down(s->stream, &s->down, e), "routed experts");
}
int cuda_settle(struct gpu_stream *base) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (!s->has_down) return 0;
    const int r = cuda_stream_state(s); /* nothing more is launched on a stream that has failed */
    s->has_down = !r;
    if (!r && cuda_check(s->g, cudaSetDevice(s->g->card), "device")) return ERR_RUNTIME;
    return r ? r : cuda_down_run(s, NULL);
}
int cuda_epilogue_op(struct cuda_stream *s, const struct op_epilogue *a) {
    struct cuda_epilogue e = {.rows = a->join.linear[0].n, .chain = prepared(&a->chain), .tickets = cuda_tickets(s)};
    e.kind = e.tickets ? kind_of(s, &a->join, &e) : EPILOGUE_NONE;
    if (e.kind != EPILOGUE_NONE) return cuda_join_run(s, &a->join, &e);
    TRY(a->join.n > 1 ? cuda_join_op(s, &a->join) : cuda_linear_op(s, &a->join.linear[0]));
    return launch_chain(s, &e.chain);
}
