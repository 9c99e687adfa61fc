/* Lists the tensors of a layer's modules and of the model; params_attention.c and params_ffn.c list those of the
 * blocks. */
#include "engine/weights/params_rows.h"

/* Where gate or up of a routed expert with transposed matrices [hidden, inter] stands in a stored tensor: its
 * columns. */
static struct tensor_slice in_gate_up_columns(const struct config *c, int which) {
    struct tensor_slice s = {
        .total_rows = config_routed_width(c), .step = 1, .stacked = c->layout->experts, .total_cols = c->moe_inter};
    if (c->layout->gate_up == GATE_UP_STACKED) s.total_cols *= 2, s.first_col = which * c->moe_inter;
    return s;
}
static struct tensor_slice in_experts(const struct config *c, int rows) {
    return (struct tensor_slice){.total_rows = rows, .step = 1, .stacked = c->layout->experts};
}

/* Apart from the other modules: each upload of an expert lists these alone. */
static void list_expert(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    if (!c->layer[layer].moe) return;
    const int latent_in = config_routed_width(c);
    const bool up = !c->no_up, bias = c->expert_bias, transposed_down = c->layout->transposed_down,
               transposed_gate_up = c->layout->transposed_gate_up, transposes_gate_up = c->layout->transposes_gate_up;
    const char *bare = c->layout->experts && !c->layout->has_suffix ? "" : ".weight",
               *bare_bias = c->layout->experts && !c->layout->has_suffix ? "_bias" : ".bias";
    const int down_rows = transposed_down ? c->moe_inter : latent_in,
              down_cols = transposed_down ? latent_in : c->moe_inter;
    const int gate_rows = transposed_gate_up ? latent_in : c->moe_inter,
              gate_cols = transposed_gate_up ? c->moe_inter : latent_in;
    const struct tensor_slice gate_in = transposed_gate_up ? in_gate_up_columns(c, 0)
                                                           : params_in_gate_up(c->layout->gate_up, c->layout->experts,
                                                                               c->moe_inter, 0),
                              up_in = transposed_gate_up
                                          ? in_gate_up_columns(c, 1)
                                          : params_in_gate_up(c->layout->gate_up, c->layout->experts, c->moe_inter, 1),
                              down_in = in_experts(c, down_rows), down_bias_in = in_experts(c, latent_in);
    const struct row rows[] = {
        MAT_TRANSPOSED_IN(transposes_gate_up, gate_in, expert, gate, expert_gate, bare, EXPERT, gate_rows, gate_cols,
                          true),
        MAT_TRANSPOSED_IN(transposes_gate_up, up_in, expert, up, expert_up, bare, EXPERT, gate_rows, gate_cols, up),
        MAT_IN(down_in, expert, down, expert_down, bare, EXPERT, down_rows, down_cols, true),
        VEC_IN(gate_in, expert, gate_bias, expert_gate, bare_bias, EXPERT, c->moe_inter, bias),
        VEC_IN(up_in, expert, up_bias, expert_up, bare_bias, EXPERT, c->moe_inter, up && bias),
        VEC_IN(down_bias_in, expert, down_bias, expert_down, bare_bias, EXPERT, latent_in, bias),
    };
    SELECT(rows);
}

void params_order_as_shared(const struct config *c, struct param *list, int n) {
    for (int i = 0; i < n; i++)
        if (list[i].offset != offsetof(struct expert, down))
            list[i].slice = params_in_gate_up(c->layout->dense_gate_up, true, c->moe_inter,
                                              list[i].offset == offsetof(struct expert, up));
}

static void list_model(const struct config *c, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden;
    const int fope = c->rope.fope_pairs;
    const struct tensor_slice head_in = {.total_rows = c->head_is_padded ? c->embed_rows : 0,
                                         .step = c->head_is_padded};
    const struct row rows[] = {
        MAT(weights, embed, embed, EMBED, c->embed_rows ? c->embed_rows : c->vocab, hidden, true),
        VEC(weights, embed_norm, embed_norm, ".weight", EMBED, hidden, c->embed_norm),
        {{OF(weights, fope[0], fope_cos, EMBED), .suffix = "", .rows = c->n_kv_heads * fope * fope, .table_rows = fope,
          .table_cols = fope},
         fope},
        {{OF(weights, fope[1], fope_sin, EMBED), .suffix = "", .rows = c->n_kv_heads * fope * fope, .table_rows = fope,
          .table_cols = fope},
         fope},
        VEC(weights, rope_alpha, rope_alpha, "", EMBED, c->rope.dim / 2, c->rope_alpha),
        {{OF(weights, norm, norm, HEAD), .suffix = ".weight", .rows = hidden,
          .conversion = c->centered_head_norm ? CONVERT_ADD_ONE : CONVERT_NONE},
         !c->streams.is_gated && !c->unit_norms},
        NORM_GATE(0, weights, norm_gate, norm, HEAD, hidden, c->gates_all_norms),
        VEC(weights, norm_bias, norm, ".bias", HEAD, hidden, c->norm == NORM_LAYER && c->norm_bias),
        {{OF(weights, head, head, HEAD), .suffix = ".weight", .rows = c->vocab, .cols = hidden, .optional = c->tied,
          .slice = head_in},
         true},
        VEC(weights, head_bias, head, ".bias", HEAD, c->vocab, c->head_bias),
    };
    SELECT(rows);
}

static void list_input_ngrams(const struct config *c, unsigned modules, struct param_list *out) {
    const struct input_ngrams *g = &c->input_ngrams;
    for (int k = 0; k < config_input_hashes(c); k++) {
        const struct row rows[] = {
            {{OF(weights, ngram_table[k], input_ngram_table, EMBED), .suffix = ".weight", .rows = g->rows[k],
              .cols = g->dim, .layer_shift = (int16_t)k, .is_table = true},
             true},
            {{OF(weights, ngram_projection[k], input_ngram_projection, EMBED), .suffix = ".weight", .rows = c->hidden,
              .cols = g->dim, .layer_shift = (int16_t)k},
             true},
        };
        SELECT(rows);
    }
}

/* Tensors that merge several streams, or finish the last layer, before the final norm. */
static void list_stream_merge(const struct config *c, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden, last = c->n_layers - 1;
    const struct stream_kind s = params_stream_kind(c);
    const struct row rows[] = {
        GATED(weights, head_gated, STREAM_MERGE, s.gated),
        VEC(weights, head_pool, head_pool, "", STREAM_MERGE, hidden, s.pools && !c->streams.sums_raw),
        POOL(weights, head_pool, STREAM_MERGE, s.pools && c->streams.sums_raw),
        MIX(weights, head_mix, head_mix, STREAM_MERGE, c->streams.n, 1,
            s.mixes && !c->streams.is_averaged && !c->streams.passes_weights),
        NORM_OF(last, weights, last_out_norm, ffn_out_norm, STREAM_MERGE, hidden, params_has_ffn_out_norm(c, last)),
        NORM_GATE(last, weights, last_out_gate, ffn_out, STREAM_MERGE, hidden,
                  params_has_ffn_out_norm(c, last) && c->gates_all_norms),
        VEC_OF(last, weights, last_experts_norm, experts_out_norm, ".weight", STREAM_MERGE, hidden,
               c->parallel_dense && c->layer[last].moe),
        VEC_OF(last, weights, last_scale, stream_scale, "", STREAM_MERGE, 1, c->stream_scale),
        TOKEN_INPUT(last, last, weights, last_token_input, STREAM_MERGE, c->token_dim > 0),
        MERGE(last, weights, last_merge, ffn_merge, STREAM_MERGE, s.merges),
        GATES(last, weights, last_merge, ffn_merge_gate, STREAM_MERGE, s.merge_gates),
    };
    SELECT(rows);
}

int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]) {
    struct param_list list = {.list = out};
    if (modules & MODULE_MODEL)
        list_model(c, modules, &list), list_input_ngrams(c, modules, &list), list_stream_merge(c, modules, &list);
    if (modules & MODULE_ATTENTION) params_attention_list(c, layer, modules, &list);
    if (modules & MODULE_FFN) params_ffn_list(c, layer, modules, &list);
    if (modules & MODULE_EXPERT) list_expert(c, layer, modules, &list);
    return list.n;
}
