/* The tensors of MODULE_FFN, apart from routed experts. */
#include "engine/weights/params_rows.h"

/* Tensors that finish attention and form the input of the FFN from one or more streams. */
static void list_before_ffn(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden, mixes = op_mix_weights(c->streams.n, c->streams.iters),
              parts = op_mix_parts(c->streams.iters), wide = c->streams.n * hidden;
    const struct stream_kind s = params_stream_kind(c);
    const bool ffn = !c->layer[layer].no_ffn, in_norm = !c->no_input_norm && !c->unit_norms && !s.gated,
               gates_ffn = ffn && config_norm_is_gated(c, layer, true),
               out_norm = c->output_norm == OUTPUT_NORM_BLOCKS || c->output_norm == OUTPUT_NORM_FIRST;
    const struct messages messages = params_messages(c, layer);
    const struct row rows[] = {
        GATED(layer, ffn_gated, ROUTER, s.gated),
        MAT(layer, ffn_gated.inject, ffn_gated_inject, ROUTER, c->streams.n, wide, s.gated),
        MIX(layer, ffn_mix, ffn_mix, ROUTER, mixes, parts, s.mixes),
        NORM_OF(0, layer, attn_out_norm, attn_out_norm, ROUTER, hidden, out_norm),
        MERGE(0, layer, attn_merge, attn_merge, ROUTER, s.merges),
        GATES(0, layer, attn_merge, attn_merge_gate, ROUTER, s.merge_gates),
        NORM_GATE(0, layer, attn_out_gate, attn_out, ROUTER, hidden, out_norm && c->gates_all_norms),
        NORM_GATE(0, layer, ffn_norm_gate, ffn_norm, ROUTER, hidden, in_norm && gates_ffn),
        VEC(layer, ffn_pool, ffn_pool, "", ROUTER, hidden, s.pools && ffn && !c->streams.sums_raw),
        POOL(layer, ffn_pool, ROUTER, s.pools && ffn && c->streams.sums_raw),
        MESSAGE(3, message_query, 1, ROUTER),
        NORM_OF(0, layer, ffn_norm, ffn_norm, ROUTER, hidden, in_norm && ffn && !gates_ffn),
        NORM_OF(0, layer, ffn_norm, gated_ffn_norm, ROUTER, hidden, in_norm && gates_ffn),
        VEC(layer, ffn_norm_bias, ffn_norm, ".bias", ROUTER, hidden, ffn && c->norm == NORM_LAYER && c->norm_bias),
    };
    SELECT(rows);
}

/* The router, and a dense FFN beside the experts. */
static void list_router(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    if (!c->layer[layer].moe) return;
    const bool parallel = c->parallel_dense, mlp = c->router_inter, latent_moe = c->moe_latent,
               images = c->layout->image_experts;
    const int hidden = c->hidden, inner = c->router_inter, latent_in = config_routed_width(c),
              choices = config_n_choices(c), dense_inter = config_dense_inter(c, layer);
    const enum gate_up order = c->layout->dense_gate_up;
    const struct tensor_slice ffn_gate = params_in_gate_up(order, false, dense_inter, 0),
                              ffn_up = params_in_gate_up(order, false, dense_inter, 1),
                              routed = {.total_rows = choices - c->n_always, .step = 1}, same = {.total_rows = 1};
    const struct row rows[] = {
        MAT_IN(ffn_gate, layer, parallel_dense.gate, dense_gate, ".weight", ROUTER, dense_inter, hidden, parallel),
        MAT_IN(ffn_up, layer, parallel_dense.up, dense_up, ".weight", ROUTER, dense_inter, hidden, parallel),
        MAT(layer, parallel_dense.down, dense_down, ROUTER, hidden, dense_inter, parallel),
        VEC(layer, dense_out_norm, dense_out_norm, ".weight", ROUTER, hidden, parallel),
        {{OF(layer, router_norm, router_norm, ROUTER), .suffix = "", .rows = hidden,
          .factor = 1 / sqrtf((float)hidden)},
         parallel},
        VEC(layer, expert_scale, expert_scale, "", ROUTER, c->n_experts, parallel || c->expert_scale),
        VEC(layer, experts_norm, experts_norm, ".weight", ROUTER, hidden, parallel || c->reads_early == EARLY_ROUTED),
        MAT(layer, router_down, router_down, ROUTER, inner, hidden, mlp),
        VEC(layer, router_down_bias, router_down, ".bias", ROUTER, inner, mlp),
        VEC(layer, router_carry, router_carry, "", ROUTER, inner, mlp && layer > 0),
        VEC(layer, router_mlp_norm, router_mlp_norm, ".weight", ROUTER, inner, mlp),
        MAT(layer, router_fc1, router_fc1, ROUTER, inner, inner, mlp),
        VEC(layer, router_fc1_bias, router_fc1, ".bias", ROUTER, inner, mlp),
        MAT(layer, router_fc2, router_fc2, ROUTER, inner, inner, mlp),
        VEC(layer, router_fc2_bias, router_fc2, ".bias", ROUTER, inner, mlp),
        {{OF(layer, router, router, ROUTER), .suffix = ".weight", .rows = choices, .cols = mlp ? inner : hidden,
          .is_transposed = c->layout->transposed_router},
         true},
        VEC(layer, router_shift, router, ".bias", ROUTER, choices, c->router_shift),
        VEC_IN(routed, layer, router_bias, router_bias, "", ROUTER, choices,
               c->router_bias && !c->layer[layer].hashed && !images),
        {{OF(layer, router_bias, router_bias, ROUTER), .suffix = "", .rows = c->n_experts, .table_cols = c->n_experts,
          .slice = {.total_rows = 2 * c->n_experts, .step = 1}},
         c->router_bias && images},
        VEC_IN(same, layer, expert_scale, router_scale, "", ROUTER, c->n_experts, c->ffn_scale),
        {{OF(layer, router_table, router_table, ROUTER), .suffix = "", .rows = c->vocab * c->topk,
          .table_cols = c->topk, .conversion = CONVERT_EXPERT_IDS},
         c->layer[layer].hashed},
        MAT(layer, shared_gate, shared_gate, ROUTER, c->mixes_shared ? 2 : 1, hidden, c->shared_gate),
        VEC(layer, shared_gate_bias, shared_gate, ".bias", ROUTER, 2, c->mixes_shared),
        MAT(layer, routed_in, routed_in, ROUTER, latent_in, hidden, latent_moe),
        NORM_OF(0, layer, routed_in_norm, routed_in_norm, ROUTER, latent_in, latent_moe && c->names->routed_in_norm),
        NORM_OF(0, layer, expert_out_norm, expert_out_norm, ROUTER, latent_in, latent_moe && c->expert_out_norm),
        VEC(layer, routed_sum_norm, routed_sum_norm, ".weight", ROUTER, latent_in, c->routed_sum_norm),
        MAT(layer, routed_out, routed_out, ROUTER, hidden, latent_in, latent_moe),
    };
    SELECT(rows);
}

/* A dense FFN or the shared expert. */
static void list_dense(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const bool moe = c->layer[layer].moe, dense = !moe && !c->layer[layer].no_ffn, shared = moe && c->shared_inter,
               up = !c->no_up, bias = dense && c->dense_bias,
               xielu = dense && c->learned_xielu && !(c->layer[layer].xielu[2] > 0);
    const int hidden = c->hidden, dense_inter = config_dense_inter(c, layer),
              inter = moe && !c->parallel_dense ? c->shared_inter : dense_inter;
    const struct tensor_slice ffn_gate = params_in_gate_up(c->layout->dense_gate_up, false, inter, 0),
                              ffn_up = params_in_gate_up(c->layout->dense_gate_up, false, inter, 1);
    const struct row rows[] = {
        MAT_IN(ffn_gate, layer, dense.gate, dense_gate, ".weight", SHARED, dense_inter, hidden, dense),
        MAT_IN(ffn_up, layer, dense.up, dense_up, ".weight", SHARED, dense_inter, hidden, dense && up),
        MAT(layer, dense.down, dense_down, SHARED, hidden, dense_inter, dense),
        VEC_IN(ffn_gate, layer, dense.gate_bias, dense_gate, ".bias", SHARED, dense_inter, bias),
        VEC_IN(ffn_up, layer, dense.up_bias, dense_up, ".bias", SHARED, dense_inter, bias && up),
        VEC(layer, dense.down_bias, dense_down, ".bias", SHARED, hidden, bias),
        VEC(layer, xielu[0], xielu[0], "", SHARED, 1, xielu),
        VEC(layer, xielu[1], xielu[1], "", SHARED, 1, xielu),
        {{OF(layer, xielu[2], xielu[2], SHARED), .suffix = "", .rows = 1, .optional = true}, xielu},
        MAT_IN(ffn_gate, layer, dense.gate, shared_gate_proj, ".weight", SHARED, c->shared_inter, hidden, shared),
        MAT_IN(ffn_up, layer, dense.up, shared_up, ".weight", SHARED, c->shared_inter, hidden, shared && up),
        MAT(layer, dense.down, shared_down, SHARED, hidden, c->shared_inter, shared),
    };
    SELECT(rows);
}

void params_ffn_list(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    list_before_ffn(c, layer, modules, out);
    list_router(c, layer, modules, out);
    list_dense(c, layer, modules, out);
}
