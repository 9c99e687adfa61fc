/* Operations on few numbers: each with a kernel of its own, or several as the steps of a chain. */
#include "gpu/cuda.h"
#include "gpu/fuse.h"

_Static_assert((int)SCORE_SOFTMAX == CUDA_SOFTMAX && (int)SCORE_SIGMOID == CUDA_SIGMOID &&
                   (int)SCORE_MIXER == CUDA_MIXER && (int)SCORE_SQRT_SOFTPLUS == CUDA_SQRT_SOFTPLUS &&
                   (int)SCORE_SIGMOID_BY_LOGIT == CUDA_SIGMOID_BY_LOGIT,
               "scores");
_Static_assert((int)GATE_SIGMOID == CUDA_GATE_SIGMOID && (int)GATE_SILU == CUDA_GATE_SILU &&
                   (int)GATE_SOFTPLUS == CUDA_GATE_SOFTPLUS && (int)GATE_LINEAR == CUDA_GATE_LINEAR &&
                   (int)GATE_NORMAL == CUDA_GATE_NORMAL,
               "gates");
_Static_assert((int)SCALE_STEPS == CUDA_SCALE_STEPS && (int)SCALE_SMOOTH == CUDA_SCALE_SMOOTH &&
                   (int)SCALE_POWER == CUDA_SCALE_POWER,
               "scales");
_Static_assert((int)OP_CHAIN_MAX <= (int)CUDA_CHAIN_MAX && (int)FUSE_ROWS <= (int)CUDA_CHAIN_ROWS, "chains");

static struct cuda_route route_of(const struct op_route *o) {
    return (struct cuda_route){.ids = o->ids,
                               .weights = o->weights,
                               .logits = o->logits,
                               .bias = o->bias,
                               .table = o->table,
                               .tokens = o->tokens,
                               .n = o->n,
                               .n_experts = o->n_experts,
                               .topk = o->topk,
                               .n_group = o->n_group,
                               .topk_group = o->topk_group,
                               .score = o->score,
                               .group_top2 = o->group_top2,
                               .norm = o->norm,
                               .scale = o->scale,
                               .jitter = o->jitter,
                               .n_idle = o->n_idle,
                               .idle = o->idle,
                               .expert_scale = o->expert_scale,
                               .n_always = o->n_always,
                               .group_zero = o->group_zero,
                               .group_each = o->group_each};
}
static struct cuda_norm norm_of(const struct op_norm *a) {
    return (struct cuda_norm){.out = a->out,
                              .x = a->x,
                              .w = a->w,
                              .bias = a->bias,
                              .w_dtype = a->w_dtype,
                              .rows = a->rows,
                              .dim = a->dim,
                              .ldx = a->ldx,
                              .ldo = a->ldo,
                              .eps = a->eps,
                              .add = a->add,
                              .l2_limit = a->l2_limit,
                              .layer_norm = a->layer_norm,
                              .tag = a->tag,
                              .bad = (int *)a->bad};
}
static struct cuda_kv_store kv_store_of(const struct op_kv_store *a) {
    return (struct cuda_kv_store){cuda_plane_of(&a->plane),           a->x,     a->row0,  a->n, a->ldx,
                                  (const struct cuda_address *)a->at, a->every, a->tokens};
}
static struct cuda_each each_of(float *x, int n, int m, float value) {
    return (struct cuda_each){x, (size_t)n * (size_t)m, value};
}

/* Returns a small operation's arguments as a step. */
static struct cuda_step step_of(enum op_code code, const union op_args *u) {
    switch (code) {
    case OP_NORM: return (struct cuda_step){CUDA_STEP_NORM, .norm = norm_of(&u->norm)};
    case OP_ROPE: {
        const struct op_rope *a = &u->rope;
        return (struct cuda_step){CUDA_STEP_ROPE, .rope = {.x = a->x,
                                                           .cos = a->cos,
                                                           .sin = a->sin,
                                                           .n = a->n,
                                                           .heads = a->heads,
                                                           .ld = a->ld,
                                                           .head_ld = a->head_ld,
                                                           .half = a->half,
                                                           .interleaved = a->interleaved,
                                                           .inverse = a->inverse}};
    }
    case OP_KV_STORE: return (struct cuda_step){CUDA_STEP_KV_STORE, .kv_store = kv_store_of(&u->kv_store)};
    case OP_ROUTE: return (struct cuda_step){CUDA_STEP_ROUTE, .route = route_of(&u->route)};
    case OP_ADD: {
        const struct op_add *a = &u->add;
        return (struct cuda_step){CUDA_STEP_ADD, .add = {a->y, a->x, a->n, a->m, a->ldx ? a->ldx : a->m}};
    }
    case OP_SIGMOID:
        return (struct cuda_step){CUDA_STEP_SIGMOID, .each = each_of(u->sigmoid.x, u->sigmoid.n, u->sigmoid.m, 0)};
    case OP_CLIP:
        return (struct cuda_step){CUDA_STEP_CLIP, .each = each_of(u->clip.x, u->clip.n, u->clip.m, u->clip.limit)};
    case OP_FILL:
        return (struct cuda_step){CUDA_STEP_FILL, .each = each_of(u->fill.x, u->fill.n, u->fill.m, u->fill.value)};
    case OP_SOFTCAP:
        return (struct cuda_step){CUDA_STEP_SOFTCAP,
                                  .each = each_of(u->softcap.x, u->softcap.n, u->softcap.m, u->softcap.cap)};
    case OP_COPY: {
        const struct op_copy *a = &u->copy;
        return (struct cuda_step){CUDA_STEP_COPY, .copy = {.y = a->y,
                                                           .x = a->x,
                                                           .n = a->n,
                                                           .heads = a->heads,
                                                           .dim = a->dim,
                                                           .ldx = a->ldx,
                                                           .ldy = a->ldy,
                                                           .head_ldx = a->head_ldx,
                                                           .head_ldy = a->head_ldy}};
    }
    case OP_GATE: {
        const struct op_gate *a = &u->gate;
        return (struct cuda_step){CUDA_STEP_GATE, .gate = {.y = a->y,
                                                           .g = a->g,
                                                           .n = a->n,
                                                           .heads = a->heads,
                                                           .dim = a->dim,
                                                           .ldy = a->ldy,
                                                           .ldg = a->ldg,
                                                           .head_ldy = a->head_ldy,
                                                           .head_ldg = a->head_ldg,
                                                           .kind = a->kind,
                                                           .per_head = a->per_head}};
    }
    case OP_SCALE: {
        const struct op_scale *a = &u->scale;
        return (struct cuda_step){CUDA_STEP_SCALE, .scale = {.x = a->x,
                                                             .pos = a->pos,
                                                             .n = a->n,
                                                             .m = a->m,
                                                             .ld = a->ld,
                                                             .every = a->every,
                                                             .shift = a->shift,
                                                             .by = a->by,
                                                             .slope = a->slope,
                                                             .kind = a->kind,
                                                             .slopes = a->slopes,
                                                             .bases = a->bases,
                                                             .dim = a->dim}};
    }
    case OP_CONV: {
        const struct op_conv *a = &u->conv;
        return (struct cuda_step){CUDA_STEP_CONV, .conv = {.out = a->out,
                                                           .x = a->x,
                                                           .w = a->w,
                                                           .before = a->before,
                                                           .after = a->after,
                                                           .n = a->n,
                                                           .channels = a->channels,
                                                           .taps = a->taps,
                                                           .ldx = a->ldx,
                                                           .ldo = a->ldo,
                                                           .at = (const struct cuda_address *)a->at,
                                                           .bias = a->bias,
                                                           .is_linear = a->is_linear,
                                                           .is_peek = a->is_peek,
                                                           .delay = a->delay,
                                                           .past = op_conv_past(a),
                                                           .state_at = a->state_at}};
    }
    default:
        return (struct cuda_step){CUDA_STEP_TRANSFER,
                                  .transfer = {u->transfer.dst, u->transfer.src, u->transfer.size / 4}};
    }
}

int cuda_chain_op(struct cuda_stream *s, const struct op_chain *a) {
    struct cuda_chain c = {.n = a->n};
    for (int i = 0, first = 0; i < a->n; i++) {
        c.step[i] = step_of(a->step[i].code, (const union op_args *)&a->step[i].args);
        if (fuse_steps_are_apart(a, first, i)) continue;
        c.step[i].waits = 1;
        first = i;
    }
    return cuda_check(s->g, cuda_chain_run(s->stream, &c), "chain");
}

static bool is_empty(const struct cuda_step *p) {
    switch (p->kind) {
    case CUDA_STEP_NORM: return p->norm.rows < 1;
    case CUDA_STEP_ROPE: return p->rope.n < 1;
    case CUDA_STEP_KV_STORE: return p->kv_store.n < 1;
    case CUDA_STEP_ROUTE: return p->route.n < 1;
    case CUDA_STEP_ADD: return p->add.n < 1;
    case CUDA_STEP_COPY: return p->copy.n < 1;
    case CUDA_STEP_GATE: return p->gate.n < 1;
    case CUDA_STEP_SCALE: return p->scale.n < 1;
    case CUDA_STEP_CONV: return p->conv.n < 1;
    case CUDA_STEP_TRANSFER: return !p->transfer.n;
    default: return !p->each.n;
    }
}
int cuda_small_op(struct cuda_stream *s, enum op_code code, const union op_args *u) {
    const struct cuda_step p = step_of(code, u);
    cudaError_t r = cudaSuccess;
    if (is_empty(&p)) return 0;
    switch ((enum cuda_step_kind)p.kind) {
    case CUDA_STEP_NORM: r = cuda_norm(s->stream, &p.norm); break;
    case CUDA_STEP_ROPE: r = cuda_rope(s->stream, &p.rope); break;
    case CUDA_STEP_KV_STORE: r = cuda_kv_store(s->stream, &p.kv_store); break;
    case CUDA_STEP_ROUTE: r = cuda_route_tokens(s->stream, &p.route); break;
    case CUDA_STEP_ADD: r = cuda_add(s->stream, &p.add); break;
    case CUDA_STEP_SIGMOID: r = cuda_sigmoid(s->stream, &p.each); break;
    case CUDA_STEP_CLIP: r = cuda_clip(s->stream, &p.each); break;
    case CUDA_STEP_FILL: r = cuda_fill(s->stream, &p.each); break;
    case CUDA_STEP_SOFTCAP: r = cuda_softcap(s->stream, &p.each); break;
    case CUDA_STEP_COPY: r = cuda_copy(s->stream, &p.copy); break;
    case CUDA_STEP_GATE: r = cuda_gate(s->stream, &p.gate); break;
    case CUDA_STEP_SCALE: r = cuda_scale(s->stream, &p.scale); break;
    case CUDA_STEP_CONV: r = cuda_conv_rows(s->stream, &p.conv); break;
    case CUDA_STEP_TRANSFER: r = cuda_chain_run(s->stream, &(struct cuda_chain){.n = 1, .step = {p}}); break;
    }
    return cuda_check(s->g, r, op_name(code));
}
