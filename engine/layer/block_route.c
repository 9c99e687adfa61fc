/* Routers: the rows that a layer's experts read, and the experts that a token selects. A new kind is a row of
 * router_of(). */
#include "engine/layer/block.h"
#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"
#include "engine/layer/streams.h"

struct router_kind {
    /* From the normed FFN input in w->xn: leaves there what the routed experts read, and in w->ffn_in what the shared
     * ones do where that differs (config_has_ffn_in; a workspace for predictions has no use for it). *in: what the last
     * matrix of the router reads. */
    int (*input)(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                 const float **in);
    /* after the selection; NULL: nothing is left to do */
    int (*finish)(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n);
    /* before attention: keeps rows of its input that input() reads; NULL: it reads none */
    int (*keep)(struct exec *x, const struct config *c, struct work *w, int n);
    bool reads_kept; /* input() reads rows that an earlier layer kept, so it must wait for that layer */
};

static int copy_rows(struct exec *x, const struct config *c, float *to, const float *from, int n) {
    return to ? rows_copy(x, to, c->hidden, from, c->hidden, n, c->hidden) : 0;
}
/* The router and the routed experts read the FFN's input. */
static int plain_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                       const float **in) {
    *in = w->xn;
    return 0;
}

/* Idle experts: adds their input times their weights, which they return. Uses w->kept as scratch, which the layer has
 * read. */
static int add_idle(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    if (!c->n_idle_experts) return 0;
    TRY(rows_weigh(x, w->kept, w->idle, true, n, c->hidden));
    return rows_add(x, w->x, w->kept, n, c->hidden);
}
/* Weighs the chosen expert's input instead of its output. */
static int weigh_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    TRY(copy_rows(x, c, w->ffn_in, w->xn, n));
    TRY(rows_weigh(x, w->xn, w->weights, true, n, c->hidden));
    return x->ops->fill(x, &(struct op_fill){.x = w->weights, .n = n, .m = c->topk, .value = 1});
}

/* LongCat-Flash: both read what an earlier layer has kept. */
static int kept_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                      const float **in) {
    TRY(copy_rows(x, c, w->ffn_in, w->xn, n));
    TRY(copy_rows(x, c, w->xn, w->kept, n));
    return plain_input(x, c, y, w, n, in);
}
static int keep_stream(struct exec *x, const struct config *c, struct work *w, int n) {
    return copy_rows(x, c, w->kept, w->x, n);
}
/* SmallThinker: the router reads the stream before attention. */
static int early_router_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                              const float **in) {
    *in = w->kept;
    return 0;
}
/* Arctic: so do the routed experts, through a norm of their own. */
static int early_experts_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                               const float **in) {
    TRY(copy_rows(x, c, w->ffn_in, w->xn, n));
    TRY(block_norm(x, c, w->xn, c->hidden, w->kept, c->hidden, y->experts_norm, NULL, n, c->hidden));
    return plain_input(x, c, y, w, n, in);
}

static int norm_stream(struct exec *x, const struct config *c, struct work *w, const float *weight, int n) {
    return block_norm(x, c, w->xn, c->hidden, w->streams, c->hidden, weight, NULL, n, c->hidden);
}
/* Gemma 4: computes the parallel dense FFN in w->kept, normed. Router and routed experts have norms of the stream of
 * their own. */
static int parallel_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                          const float **in) {
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->kept, .n = n, .m = c->hidden}));
    TRY(x->ops->experts(
        x, &(struct op_experts){.y = w->kept, .x = w->xn, .shared = &y->parallel_dense, .n = n, .hidden = c->hidden}));
    TRY(block_norm(x, c, w->kept, c->hidden, w->kept, c->hidden, y->dense_out_norm, NULL, n, c->hidden));
    TRY(norm_stream(x, c, w, y->router_norm, n));
    return plain_input(x, c, y, w, n, in);
}
static int parallel_finish(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    return norm_stream(x, c, w, y->experts_norm, n);
}

/* to = m from (+ bias), rows without gaps. */
static int product(struct exec *x, float *to, const float *from, struct mat m, const float *bias, int n) {
    return x->ops->linear(
        x, &(struct op_linear){
               .y = to, .x = from, .w = m, .bias = bias, .n = n, .ldx = m.cols, .ldy = m.rows, .exact = true});
}
/* A layer of the router's MLP with GELU. */
static int router_layer(struct exec *x, const struct config *c, float *to, const float *from, struct mat m,
                        const float *bias, int n) {
    const int inter = c->router_inter;
    TRY(product(x, to, from, m, bias, n));
    return rows_gate(x, to, inter, to, inter, GATE_NORMAL, n, inter);
}
/* ZAYA1: runs the router's MLP up to its last matrix. Its first layer adds the previous layer's, and is kept for the
 * next one. */
static int mlp_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                     const float **in) {
    const int inter = c->router_inter;
    float *a = w->router_mlp, *b = a + (size_t)n * (size_t)inter;
    TRY(product(x, a, w->xn, y->router_down, y->router_down_bias, n));
    if (y->router_carry) {
        TRY(rows_gate(x, w->carried, inter, y->router_carry, 0, GATE_LINEAR, n, inter));
        TRY(rows_add(x, a, w->carried, n, inter));
    }
    TRY(rows_copy(x, w->carried, inter, a, inter, n, inter));
    TRY(block_norm(x, c, a, inter, a, inter, y->router_mlp_norm, NULL, n, inter));
    TRY(router_layer(x, c, b, a, y->router_fc1, y->router_fc1_bias, n));
    *in = a;
    return router_layer(x, c, a, b, y->router_fc2, y->router_fc2_bias, n);
}

static const struct router_kind *router_of(const struct config *c, int layer) {
    static const struct router_kind kept = {kept_input, add_idle, .reads_kept = true}, mlp = {mlp_input, add_idle},
                                    parallel = {parallel_input, parallel_finish},
                                    early_router = {early_router_input, .keep = keep_stream},
                                    early_experts = {early_experts_input, .keep = keep_stream},
                                    weighed = {plain_input, weigh_input}, plain = {plain_input};
    if (c->layer[layer].routes_kept) return &kept;
    if (c->reads_early) return c->reads_early == EARLY_ROUTER ? &early_router : &early_experts;
    return c->parallel_dense ? &parallel : c->router_inter ? &mlp : c->weighs_input ? &weighed : &plain;
}

/* --- Weights of shared experts ---------------------------------------------------------------- */

/* y = gate . xn (+ bias), or with accumulate y += that; one number a row, in w->shared_weight. */
static int gate_product(struct exec *x, const struct config *c, struct mat gate, const float *bias, struct work *w,
                        int n, bool accumulate) {
    return x->ops->linear(x, &(struct op_linear){.y = w->shared_weight,
                                                 .x = w->xn,
                                                 .w = gate,
                                                 .bias = bias,
                                                 .n = n,
                                                 .ldx = c->hidden,
                                                 .ldy = 1,
                                                 .accumulate = accumulate,
                                                 .exact = true});
}
/* Weighs routed and shared experts by the softmax of two numbers a and b, which is sigmoid(a - b) and sigmoid(b -
 * a). */
static int mix_shared(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    TRY(gate_product(x, c, mat_rows(y->shared_gate, 1, 2), y->shared_gate_bias + 1, w, n, false));
    TRY(rows_scale(x, w->shared_weight, -1, n, 1));
    TRY(gate_product(x, c, mat_rows(y->shared_gate, 0, 1), y->shared_gate_bias, w, n, true));
    TRY(x->ops->gate(x, &(struct op_gate){.y = w->weights,
                                          .g = w->shared_weight,
                                          .n = n,
                                          .heads = 1,
                                          .dim = c->topk,
                                          .ldy = c->topk,
                                          .ldg = 1,
                                          .kind = GATE_SIGMOID,
                                          .per_head = true}));
    return rows_scale(x, w->shared_weight, -1, n, 1);
}
/* Computes the shared experts' weights of rows. */
static int weigh_shared(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    if (c->shared_scale > 0)
        return x->ops->fill(x, &(struct op_fill){.x = w->shared_weight, .n = n, .m = 1, .value = c->shared_scale});
    if (!c->shared_gate) return 0;
    if (c->mixes_shared) TRY(mix_shared(x, c, y, w, n));
    else TRY(gate_product(x, c, y->shared_gate, NULL, w, n, false));
    return x->ops->sigmoid(x, &(struct op_sigmoid){.x = w->shared_weight, .n = n, .m = 1});
}

/* --- The selection ---------------------------------------------------------------------------- */

/* Selects the experts of n rows by the router's input `in`. */
static int select_experts(struct exec *x, const struct config *c, const struct layer *y, struct work *w,
                          const float *in, int n) {
    const int logits = config_n_choices(c);
    TRY(product(x, w->router, in, y->router, y->router_shift, n));
    if (c->router_scale > 0) TRY(rows_scale(x, w->router, c->router_scale, n, logits));
    if (c->router_cap > 0)
        TRY(x->ops->softcap(x, &(struct op_softcap){.x = w->router, .n = n, .m = logits, .cap = c->router_cap}));
    return x->ops->route(x, &(struct op_route){.ids = w->ids,
                                               .weights = w->weights,
                                               .logits = w->router,
                                               .bias = y->router_bias,
                                               .expert_scale = y->expert_scale,
                                               .n_always = c->n_always,
                                               .table = (const int32_t *)y->router_table,
                                               .tokens = w->tokens,
                                               .vocab = c->vocab,
                                               .n = n,
                                               .n_experts = c->n_experts,
                                               .n_idle = c->n_idle_experts,
                                               .idle = w->idle,
                                               .topk = c->topk,
                                               .n_group = c->n_group,
                                               .group_each = c->group_each,
                                               .topk_group = c->topk_group,
                                               .score = c->score,
                                               .group_top2 = c->group_top2,
                                               .group_zero = c->group_zero,
                                               .norm = c->norm_topk,
                                               .scale = c->routed_scale,
                                               .jitter = c->router_jitter});
}

int block_keep_early(struct exec *x, const struct config *c, int layer, struct work *w, int n) {
    const struct router_kind *k = router_of(c, layer);
    return c->layer[layer].moe && k->keep ? k->keep(x, c, w, n) : 0;
}

int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const float *in;
    if (c->layer[layer].no_ffn) return 0;
    TRY(streams_of(c)->input(x, c, y, 2 * layer + 1, w, NULL, 0, n));
    op_show(x, layer, "ffn_norm", w->xn, n, c->hidden);
    if (c->layer[layer].keeps_input) TRY(copy_rows(x, c, w->kept, w->xn, n));
    if (!c->layer[layer].moe) return 0;
    const struct router_kind *k = router_of(c, layer);
    TRY(k->input(x, c, y, w, n, &in));
    TRY(select_experts(x, c, y, w, in, n));
    op_show(x, layer, "router", w->router, n, config_n_choices(c));
    op_show(x, layer, "expert_weights", w->weights, n, c->topk);
    if (k->finish) TRY(k->finish(x, c, y, w, n));
    return weigh_shared(x, c, y, w, n);
}

bool block_predicts_route(const struct config *c, int layer) {
    return c->layer[layer].moe && !c->streams.n && !router_of(c, layer)->reads_kept;
}
int block_predict_route(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                        float *stream, int n) {
    struct work p = *w;
    p.x = stream, p.ffn_in = NULL;
    TRY(block_keep_early(x, c, layer, &p, n));
    return block_route(x, c, y, layer, &p, n);
}
