/* The tensors of MODULE_ATTENTION: attention or another mixer of tokens, and its input. */
#include "engine/weights/params_rows.h"

/* Rows [first, first + rows) of q, k and v if they are one tensor. */
static struct tensor_slice in_qkv(const struct config *c, int layer, int first) {
    const int dim = config_head_dim(c, layer),
              all = config_heads(c, layer) * dim + config_kv_heads(c, layer) * (dim + config_v_dim(c, layer));
    const int pieces = c->qkv_pieces > 1 ? c->qkv_pieces : 1;
    return c->layout->qkv
               ? (struct tensor_slice){.total_rows = all, .first = first / pieces, .step = 1, .pieces = pieces}
               : (struct tensor_slice){0};
}
/* Rows from `first` of gated DeltaNet's inputs if they are one tensor. */
static struct tensor_slice in_delta(const struct config *c, int first) {
    const struct delta_config *d = &c->delta;
    const int all = 2 * (d->k_heads * d->k_dim + d->v_heads * d->v_dim + d->v_heads);
    return c->layout->delta ? (struct tensor_slice){.total_rows = all, .first = first, .step = 1}
                            : (struct tensor_slice){0};
}

/* Sizes of a mixer with a state, other than DeltaNet: rows of its input and columns of its output projection, its
 * convolution, and its biases. */
struct mixer_params {
    int in, out, channels, taps;
    bool bias, conv_bias;
    int steps; /* of Mamba: heads, or channels */
};
static struct mixer_params mixer_params_of(const struct config *c, int layer) {
    const struct mamba_config *m = &c->mamba;
    const int inner = m->heads * m->head_dim, channels = inner + 2 * m->groups * m->state,
              all = c->n_heads * c->head_dim, lightning = c->lightning.heads * c->lightning.dim;
    switch (c->layer[layer].mixer) {
    case MIXER_CONV:
        return (struct mixer_params){3 * c->hidden, c->hidden, c->hidden, c->conv.taps, c->conv.bias, c->conv.bias};
    case MIXER_LIGHTNING: return (struct mixer_params){.in = 3 * lightning, .out = lightning};
    case MIXER_ATTENTION:
        if (c->attn != ATTN_CCA) return (struct mixer_params){0};
        return (struct mixer_params){
            .channels = all + c->n_kv_heads * c->head_dim, .taps = c->cca.taps[0], .conv_bias = true};
    case MIXER_MAMBA2:
        return (struct mixer_params){
            inner + channels + m->heads, inner, channels, m->taps, m->projects_bias, m->conv_bias, m->heads};
    case MIXER_MAMBA1:
        return (struct mixer_params){2 * inner, inner, inner, m->taps, m->projects_bias, m->conv_bias, inner};
    default: return (struct mixer_params){0};
    }
}
static uint8_t rate_conversion(const struct config *c) {
    return !c->delta.rates_converted ? CONVERT_MINUS_EXP : c->kda.rates_are_positive ? CONVERT_MINUS : CONVERT_NONE;
}

static void list_ngram(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const struct ngram_config *of_layer = config_ngram(c, layer);
    if (!of_layer) return;
    const struct ngram_config g = *of_layer;
    const int hidden = c->hidden, wide = c->streams.n * hidden;
    const bool fused = c->ngram_numbers > 0, conv = g.taps > 1; /* fused: keys and values in one matrix */
    const struct tensor_slice keys = {.total_rows = fused ? wide + hidden : 0, .step = fused},
                              values = {.total_rows = keys.total_rows, .first = fused ? wide : 0, .step = fused};
    const struct row rows[] = {
        {{OF(layer, ngram_table, ngram_table, ATTENTION), .suffix = ".weight", .rows = g.rows,
          .cols = g.dim / config_ngram_hashes(&g), .parts = g.parts > 1 ? g.parts : 0, .is_table = true,
          .stays_on_host = true},
         true},
        MAT_IN(keys, layer, ngram_key, ngram_key, ".weight", ATTENTION, wide, g.dim, true),
        MAT_IN(values, layer, ngram_value, ngram_value, ".weight", ATTENTION, hidden, g.dim, true),
        VEC(layer, ngram_key_norm, ngram_key_norm, ".weight", ATTENTION, wide, !fused),
        VEC(layer, ngram_query_norm, ngram_query_norm, ".weight", ATTENTION, wide, !fused),
        TABLE(ngram_key_norm, ngram_key_norm, ATTENTION, wide, hidden, fused),
        TABLE(ngram_query_norm, ngram_query_norm, ATTENTION, wide, hidden, fused),
        {{OF(layer, ngram_ids, ngram_table, ATTENTION), .suffix = "", .rows = c->vocab,
          .conversion = CONVERT_TOKEN_NUMBERS},
         fused},
        VEC(layer, ngram_conv_norm, ngram_conv_norm, ".weight", ATTENTION, wide, conv),
        {{OF(layer, ngram_conv, ngram_conv, ATTENTION), .suffix = ".weight", .rows = wide * config_ngram_taps(&g),
          .taps = g.taps, .dilation = g.size, .conversion = CONVERT_TRANSPOSE},
         conv},
    };
    SELECT(rows);
}

/* Tensors that finish the previous layer and form the input of attention from one or more streams. */
static void list_before_attention(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden, mixes = op_mix_weights(c->streams.n, c->streams.iters),
              parts = op_mix_parts(c->streams.iters), wide = c->streams.n * hidden, taps = c->short_taps;
    const struct stream_kind s = params_stream_kind(c);
    const bool kv_inputs = s.pools && c->layer[layer].mixes_kv, later = layer > 0,
               previous_moe = later && c->layer[layer - 1].moe;
    const bool pools = s.pools && c->layer[layer].mixer != MIXER_NONE && later && !kv_inputs, raw = c->streams.sums_raw;
    const struct messages messages = params_messages(c, layer);
    const struct row rows[] = {
        GATED(layer, attn_gated, ATTENTION, s.gated),
        MAT(layer, attn_gated.inject, attn_gated_inject, ATTENTION, c->streams.n, wide, s.gated),
        MIX(layer, attn_mix, attn_mix, ATTENTION, mixes, parts, s.mixes),
        NORM_OF(-1, layer, previous_out_norm, ffn_out_norm, ATTENTION, hidden,
                later && params_has_ffn_out_norm(c, layer - 1)),
        NORM_GATE(-1, layer, previous_out_gate, ffn_out, ATTENTION, hidden,
                  later && params_has_ffn_out_norm(c, layer - 1) && c->gates_all_norms),
        VEC_OF(-1, layer, previous_experts_norm, experts_out_norm, ".weight", ATTENTION, hidden,
               c->parallel_dense && previous_moe),
        CONV_OF(-1, previous_conv, ffn_conv, ATTENTION, hidden, taps && later),
        VEC_OF(-1, layer, previous_ffn_scale, dense_scale, "", ATTENTION, 1, c->ffn_scale && later && !previous_moe),
        VEC_OF(-1, layer, previous_scale, stream_scale, "", ATTENTION, 1, c->stream_scale && later),
        TOKEN_INPUT(-1, layer - 1, layer, previous_token_input, ATTENTION, c->token_dim && later),
        MERGE_ROW(0, layer, previous_merge, output_bias, embed_merge, 0, ATTENTION, s.merges && !layer),
        MERGE_ROW(0, layer, previous_merge, output_scale, embed_merge, 1, ATTENTION, s.merges && !layer),
        MERGE(-1, layer, previous_merge, ffn_merge, ATTENTION, s.merges && later),
        GATES(-1, layer, previous_merge, ffn_merge_gate, ATTENTION, s.merge_gates && later),
        {{OF(layer, attn_pool, attn_pool, ATTENTION), .suffix = "", .rows = hidden, .name_shift = -1}, pools && !raw},
        POOL(layer, attn_pool, ATTENTION, pools && raw),
        {{OF(layer, attn_pool, attn_pool, ATTENTION), .suffix = "", .rows = 3 * hidden, .table_cols = hidden,
          .name_shift = -1},
         kv_inputs && later},
        MESSAGE(0, message_query, 0, ATTENTION),
        MESSAGE(1, message_kv_query, 0, ATTENTION),
        MESSAGE(2, message_kv_query, 1, ATTENTION),
    };
    SELECT(rows);
}

static void list_input_norm(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden;
    const bool mixes_tokens = c->layer[layer].mixer != MIXER_NONE,
               in_norm = !c->no_input_norm && !c->unit_norms && !c->streams.is_gated,
               kv_inputs = c->streams.block_layers > 0 && c->layer[layer].mixes_kv,
               gated = mixes_tokens && config_norm_is_gated(c, layer, false);
    const struct row rows[] = {
        NORM_OF(0, layer, attn_norm, attn_norm, ATTENTION, hidden, in_norm && mixes_tokens && !kv_inputs),
        VEC(layer, attn_norm, q_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        VEC(layer, kv_norm[0], k_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        VEC(layer, kv_norm[1], v_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        NORM_GATE(0, layer, attn_norm_gate, attn_norm, ATTENTION, hidden, in_norm && gated),
        VEC(layer, attn_norm_bias, attn_norm, ".bias", ATTENTION, hidden,
            mixes_tokens && c->norm == NORM_LAYER && c->norm_bias),
    };
    SELECT(rows);
}

static void list_qkv(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const int hidden = c->hidden, heads = config_heads(c, layer), kv_heads = config_kv_heads(c, layer),
              dim = config_head_dim(c, layer), v_dim = config_v_dim(c, layer), q = heads * dim, k = kv_heads * dim,
              v = kv_heads * v_dim, q_rows = c->attn_gate == ATTN_GATE_IN_QUERY ? q + heads * v_dim : q,
              taps = c->short_taps, cca_taps = c->cca.taps[1];
    const bool attends = c->layer[layer].mixer == MIXER_ATTENTION, gqa = c->attn == ATTN_GQA && attends,
               cca = c->attn == ATTN_CCA && attends;
    const bool low_q = attends && !cca && config_mla(c, layer).q_lora, bias = gqa && c->qkv_bias,
               rel = gqa && c->rel_dim, conv = gqa && taps,
               kv_inputs = c->streams.block_layers > 0 && c->layer[layer].mixes_kv,
               takes_kv = c->layer[layer].passes_kv == KV_TAKEN,
               gates = attends && (c->attn_gate == ATTN_GATE_ELEMENT || c->attn_gate == ATTN_GATE_HEAD),
               all_heads = c->qk_norm == QK_NORM_ALL || c->qk_norm == QK_NORM_OWN,
               qk_weights = gqa && (c->qk_norm == QK_NORM_HEAD || all_heads),
               mixes_values = gqa && config_mixes_values(c, layer);
    const struct tensor_slice q_in = in_qkv(c, layer, 0), k_in = in_qkv(c, layer, q), v_in = in_qkv(c, layer, q + k),
                              by_head = {.total_rows = heads, .step = 1, .repeats = v_dim};
    const struct row rows[] = {
        MAT_IN(q_in, layer, q, q, ".weight", ATTENTION, q_rows, hidden, !low_q && attends),
        VEC_IN(q_in, layer, q_bias, q, ".bias", ATTENTION, q_rows, bias),
        MAT(layer, q_a, q_a, ATTENTION, c->q_lora, hidden, gqa && low_q),
        VEC(layer, q_a_norm, q_a_norm, ".weight", ATTENTION, c->q_lora, gqa && low_q),
        MAT(layer, q_b, q_b, ATTENTION, q_rows, c->q_lora, gqa && low_q),
        VEC(layer, q_norm, q_norm, ".weight", ATTENTION, all_heads ? q : dim, qk_weights),
        MAT_IN(k_in, layer, k, k, ".weight", ATTENTION, k, hidden, (gqa && !takes_kv) || cca),
        VEC_IN(k_in, layer, k_bias, k, ".bias", ATTENTION, k, bias),
        VEC(layer, k_norm, k_norm, ".weight", ATTENTION, all_heads ? k : dim, qk_weights && !takes_kv),
        MAT_IN(v_in, layer, v, v, ".weight", ATTENTION, v, hidden,
               gqa && !takes_kv && !c->layer[layer].v_is_k && !mixes_values),
        MAT(layer, v_router, v_router, ATTENTION, c->n_value_experts, hidden, mixes_values),
        VEC(layer, v_router_bias, v_router, ".bias", ATTENTION, c->n_value_experts, mixes_values && c->router_bias),
        {{OF(layer, v, v_experts, ATTENTION), .suffix = ".weight", .rows = c->n_value_experts * v, .cols = hidden,
          .parts = c->layout->value_experts ? 0 : c->n_value_experts, .used_of = {c->value_topk, c->n_value_experts}},
         mixes_values},
        MAT(layer, v, v, ATTENTION, v / 2, hidden, cca),
        MAT(layer, v_delayed, v_delayed, ATTENTION, v / 2, hidden, cca),
        {{OF(layer, cca_taps, cca_taps, ATTENTION), .suffix = ".weight", .rows = (q + k) * dim * cca_taps,
          .taps = cca_taps, .taps_in = dim, .conversion = CONVERT_TRANSPOSE},
         cca},
        VEC(layer, cca_bias, cca_bias, "", ATTENTION, q + k, cca),
        VEC(layer, cca_temp, cca_temp, "", ATTENTION, kv_heads, cca),
        VEC_IN(v_in, layer, v_bias, v, ".bias", ATTENTION, v, bias),
        TABLE(q_norm, q_scale, ATTENTION, q, dim, gqa && c->qk_norm == QK_NORM_CLIP),
        CONV_OF(0, k_conv, k_conv, ATTENTION, k, conv && !kv_inputs),
        CONV_OF(0, v_conv, v_conv, ATTENTION, v, conv && !kv_inputs),
        TURNED_TAPS(k_conv, k_taps, k, kv_inputs),
        TURNED_TAPS(v_conv, v_taps, v, kv_inputs),
        {{OF(layer, k_row_taps, k_row_taps, ATTENTION), .suffix = "", .rows = kv_heads * taps, .cols = hidden},
         kv_inputs},
        {{OF(layer, v_row_taps, v_row_taps, ATTENTION), .suffix = "", .rows = kv_heads * taps, .cols = hidden},
         kv_inputs},
        CONV_OF(0, attn_conv, attn_conv, ATTENTION, hidden, conv),
        MAT(layer, rel, rel, ATTENTION, heads * c->rel_dim, hidden, rel),
        TABLE(rel_scale, rel_scale, ATTENTION, heads * c->rel_dim, c->rel_dim, rel && c->rel_limit > 0),
        {{OF(layer, rel_table, rel_table, ATTENTION), .suffix = "", .rows = c->rel_dim, .cols = c->layer[layer].extent},
         rel},
        MAT(layer, attn_gate, attn_gate, ATTENTION, c->attn_gate == ATTN_GATE_HEAD ? heads : heads * v_dim, hidden,
            gates),
        VEC_IN(by_head, layer, attn_gate_bias, attn_gate_bias, "", ATTENTION, heads * v_dim,
               gates && c->attn_gate_bias),
        VEC(layer, sinks, sinks, "", ATTENTION, heads, attends && c->sinks && !c->layer[layer].no_sinks),
        MAT(layer, sink_proj, sink_proj, ATTENTION, heads, hidden, gqa && c->projects_sinks),
        TABLE(sink_key, sink_key, ATTENTION, k, dim, gqa && c->sink_keys),
    };
    SELECT(rows);
}

/* Attention over latents: MLA, or compressed attention. */
static void list_latents(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const bool attends = c->layer[layer].mixer == MIXER_ATTENTION, compressed = c->attn == ATTN_COMPRESSED;
    if (!attends || c->attn == ATTN_GQA || c->attn == ATTN_CCA) return;
    const struct mla_sizes size = config_mla(c, layer);
    const int hidden = c->hidden, heads = config_heads(c, layer), v_dim = config_v_dim(c, layer),
              q = heads * config_head_dim(c, layer),
              q_rows = c->attn_gate == ATTN_GATE_IN_QUERY ? q + heads * v_dim : q, q_lora = size.q_lora,
              latent = compressed ? c->head_dim : size.latent;
    /* gates read the latents before they are scaled */
    const bool gates = c->gates_all_norms, scales = c->scales_latents && !gates;
    const float q_factor = scales && q_lora ? sqrtf((float)hidden / (float)q_lora) : c->q_latent_scale,
                kv_factor = scales ? sqrtf((float)hidden / (float)size.kv_lora) : c->kv_latent_scale;
    const uint8_t conversion = c->centered_norms ? CONVERT_ADD_ONE : CONVERT_NONE;
    const bool mla = !compressed, bias = c->qkv_bias, own_kv = compressed || c->layer[layer].passes_kv != KV_TAKEN;
    const struct row rows[] = {
        MAT(layer, q_a, q_a, ATTENTION, q_lora, hidden, q_lora),
        VEC(layer, q_a_bias, q_a, ".bias", ATTENTION, q_lora, q_lora && bias),
        {{OF(layer, q_a_norm, q_a_norm, ATTENTION), .suffix = ".weight", .rows = q_lora, .factor = q_factor,
          .conversion = conversion},
         q_lora},
        NORM_GATE(0, layer, q_a_norm_gate, q_a_norm, ATTENTION, q_lora, q_lora && gates),
        MAT(layer, q_b, q_b, ATTENTION, q_rows, c->q_raw ? 2 * q_lora : q_lora, q_lora),
        MAT(layer, kv_a, kv_a, ATTENTION, latent, hidden, own_kv),
        VEC(layer, kv_a_bias, kv_a, ".bias", ATTENTION, latent, mla && bias && own_kv),
        {{OF(layer, kv_a_norm, kv_a_norm, ATTENTION), .suffix = ".weight",
          .rows = compressed ? c->head_dim : size.kv_lora, .factor = kv_factor, .conversion = conversion},
         own_kv},
        NORM_GATE(0, layer, kv_a_norm_gate, kv_a_norm, ATTENTION, size.kv_lora, mla && own_kv && gates),
        VEC(layer, k_rope_norm, k_rope_norm, ".weight", ATTENTION, size.rope, mla && c->k_rope_norm),
        MAT(layer, kv_b, kv_b, ATTENTION, heads * (size.nope + v_dim), size.kv_lora, mla && !c->split_kv_b),
        MAT(layer, k_b, k_b, ATTENTION, heads * size.kv_lora, size.nope, mla && c->split_kv_b),
        MAT(layer, v_b, v_b, ATTENTION, heads * v_dim, size.kv_lora, mla && c->split_kv_b),
        VEC(layer, q_slope, q_slope, "", ATTENTION, heads, mla && c->scales_heads),
        VEC(layer, q_base, q_base, "", ATTENTION, heads, mla && c->scales_heads),
    };
    SELECT(rows);
}

/* The indexer, which selects the keys of sparse attention. */
static void list_index(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const bool attends = c->layer[layer].mixer == MIXER_ATTENTION,
               index = attends && c->attn == ATTN_DSA && c->layer[layer].index == INDEX_OWN,
               overlap = attends && config_selects_entries(c, layer) && c->layer[layer].index == INDEX_OWN,
               keys = overlap && c->index_from_entries && c->layer[layer].passes_kv == KV_PASSED, /* of entries */
        selects = config_selects_blocks(c, layer), blocks = selects && !c->index_by_group,
               groups = selects && c->index_by_group, split = blocks && !c->names->index_qk; /* in GGUF */
    const int hidden = c->hidden, q_lora = config_mla(c, layer).q_lora;
    const struct row rows[] = {
        MAT(layer, index_q, index_q, ATTENTION, c->index_heads * c->index_dim,
            selects || c->index_from_input ? hidden : q_lora, index || overlap || groups || split),
        MAT(layer, index_qk, index_qk, ATTENTION, (c->index_heads + 1) * c->index_dim, hidden, blocks && !split),
        VEC(layer, index_q_norm, index_q_norm, ".weight", ATTENTION, c->index_dim, selects),
        MAT(layer, index_k, index_k, ATTENTION, c->index_dim, keys ? c->head_dim : hidden,
            index || groups || split || keys),
        VEC(layer, index_k_norm, index_k_norm, ".weight", ATTENTION, c->index_dim, index || selects || keys),
        VEC(layer, index_k_bias, index_k_norm, ".bias", ATTENTION, c->index_dim, index),
        MAT(layer, index_weights, index_weights, ATTENTION, c->index_heads, hidden, index || overlap),
        VEC(layer, index_in_norm, index_in_norm, ".weight", ATTENTION, hidden, index && c->index_from_input),
        VEC(layer, index_in_bias, index_in_norm, ".bias", ATTENTION, hidden, index && c->index_from_input),
        VEC(layer, index_slope, index_slope, "", ATTENTION, c->index_heads, index && c->scales_heads),
        VEC(layer, index_base, index_base, "", ATTENTION, c->index_heads, index && c->scales_heads),
    };
    SELECT(rows);
}

/* Tensors that compress several keys, or several keys of the indexer, into one. */
static void list_compressed(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const bool attends = c->layer[layer].mixer == MIXER_ATTENTION, compressed = attends && c->attn == ATTN_COMPRESSED,
               index = attends && c->attn == ATTN_DSA && c->layer[layer].index == INDEX_OWN && c->index_block,
               squeeze = compressed && c->layer[layer].ratio > 0 && c->layer[layer].passes_kv != KV_TAKEN,
               overlap = squeeze && c->layer[layer].overlap,
               gates = squeeze && (!c->index_from_entries || c->layer[layer].ratio > 1),
               bias = squeeze && !c->index_from_entries;
    const int hidden = c->hidden, ratio = c->layer[layer].ratio, series = overlap ? 2 : 1;
    const struct row rows[] = {
        MAT(layer, compress_kv, compress_kv, ATTENTION, series * c->head_dim, hidden, squeeze),
        MAT(layer, compress_gate, compress_gate, ATTENTION, series * c->head_dim, hidden, gates),
        VEC(layer, compress_norm, compress_norm, ".weight", ATTENTION, c->head_dim, squeeze),
        TABLE(compress_bias, compress_bias, ATTENTION, ratio * series * c->head_dim, series * c->head_dim, bias),
        MAT(layer, index_compress_kv, index_compress_kv, ATTENTION, 2 * c->index_dim, hidden, overlap),
        MAT(layer, index_compress_gate, index_compress_gate, ATTENTION, 2 * c->index_dim, hidden, overlap),
        {{OF(layer, index_compress_gate, index_compress_gate, ATTENTION), .suffix = "", .rows = c->index_dim,
          .cols = hidden},
         index},
        TABLE(index_compress_bias, index_compress_bias, ATTENTION, c->index_block * c->index_dim, c->index_dim, index),
        VEC(layer, index_compress_norm, index_compress_norm, ".weight", ATTENTION, c->index_dim, overlap),
        TABLE(index_compress_bias, index_compress_bias, ATTENTION, ratio * 2 * c->index_dim, 2 * c->index_dim, overlap),
        MAT(layer, o_a, o_a, ATTENTION, c->o_groups * c->o_lora,
            c->n_heads * c->head_dim / (c->o_groups ? c->o_groups : 1), compressed),
    };
    SELECT(rows);
}

/* Gated DeltaNet. */
static void list_delta(const struct config *c, unsigned modules, struct param_list *out) {
    const struct delta_config *d = &c->delta;
    const int hidden = c->hidden, values = d->v_heads * d->v_dim, channels = 2 * d->k_heads * d->k_dim + values;
    const uint8_t rates = rate_conversion(c);
    const struct row rows[] = {
        MAT(layer, delta_qkvz, delta_qkvz, ATTENTION, channels + values, hidden, d->fused),
        MAT(layer, delta_ba, delta_ba, ATTENTION, 2 * d->v_heads, hidden, d->fused || d->fused_ba),
        MAT_IN(in_delta(c, 0), layer, delta_qkv, delta_qkv, ".weight", ATTENTION, channels, hidden, !d->fused),
        MAT_IN(in_delta(c, channels), layer, delta_z, delta_z, ".weight", ATTENTION, values, hidden, !d->fused),
        MAT_IN(in_delta(c, channels + values), layer, delta_b, delta_b, ".weight", ATTENTION, d->v_heads, hidden,
               !d->fused && !d->fused_ba),
        MAT_IN(in_delta(c, channels + values + d->v_heads), layer, delta_a, delta_a, ".weight", ATTENTION, d->v_heads,
               hidden, !d->fused && !d->fused_ba),
        TAPS(delta_conv, delta_conv, channels, d->taps, true),
        {{OF(layer, delta_rate, delta_rate, ATTENTION), .suffix = "", .rows = d->v_heads, .conversion = rates}, true},
        VEC(layer, delta_dt, delta_dt, "", ATTENTION, d->v_heads, true),
        {{OF(layer, delta_norm, delta_norm, ATTENTION), .suffix = ".weight", .rows = d->v_dim,
          .factor = d->norm_scale > 0 ? d->norm_scale : 1,
          .conversion = d->norm_centered ? CONVERT_ADD_FACTOR : CONVERT_NONE},
         true},
        MAT(layer, o, delta_out, ATTENTION, hidden, values, true),
    };
    SELECT(rows);
}

/* Mixers with a state, other than DeltaNet, and the convolution of CCA. */
static void list_mixer(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const uint8_t mixer = c->layer[layer].mixer, rates = rate_conversion(c);
    const bool mamba = mixer == MIXER_MAMBA2, scan = mixer == MIXER_MAMBA1,
               normed = mixer == MIXER_LIGHTNING && c->lightning.qk_norm;
    const int hidden = c->hidden, state = c->mamba.state, rank = c->mamba.rank;
    const struct mixer_params mix = mixer_params_of(c, layer);
    const struct row rows[] = {
        MAT(layer, mix_in, mix_in, ATTENTION, mix.in, hidden, mix.in > 0),
        VEC(layer, mix_in_bias, mix_in, ".bias", ATTENTION, mix.in, mix.bias),
        MAT(layer, mix_gate, mix_gate, ATTENTION, mix.out, hidden, mixer == MIXER_LIGHTNING),
        VEC(layer, q_norm, q_norm, ".weight", ATTENTION, c->lightning.dim, normed),
        VEC(layer, k_norm, k_norm, ".weight", ATTENTION, c->lightning.dim, normed),
        TAPS(mix_conv, mix_conv, mix.channels, mix.taps, mix.taps > 0),
        VEC(layer, mix_conv_bias, mix_conv, ".bias", ATTENTION, mix.channels, mix.conv_bias),
        {{OF(layer, mix_rate, mix_rate, ATTENTION), .suffix = "", .rows = mix.steps, .conversion = rates}, mamba},
        VEC(layer, mix_dt, mix_dt, "", ATTENTION, mix.steps, mamba || scan),
        VEC(layer, mix_skip, mix_skip, "", ATTENTION, mix.steps, mamba || scan),
        VEC(layer, mix_norm, mix_norm, ".weight", ATTENTION, mix.out,
            (mamba && c->mamba.norm != MAMBA_NORM_NONE) || mixer == MIXER_LIGHTNING),
        {{OF(layer, mix_rate, mix_rate, ATTENTION), .suffix = "", .rows = mix.steps * state, .table_cols = state,
          .conversion = c->delta.rates_converted ? CONVERT_TRANSPOSE_TABLE : CONVERT_RATES},
         scan},
        MAT(layer, mix_select, mix_select, ATTENTION, rank + 2 * state, mix.out, scan),
        MAT(layer, mix_step, mix_step, ATTENTION, mix.out, rank, scan),
        VEC(layer, mix_dt_norm, mix_dt_norm, ".weight", ATTENTION, rank, scan),
        VEC(layer, mix_b_norm, mix_b_norm, ".weight", ATTENTION, state, scan),
        VEC(layer, mix_c_norm, mix_c_norm, ".weight", ATTENTION, state, scan),
        MAT(layer, o, mix_out, ATTENTION, hidden, mix.out, mix.in > 0),
        VEC(layer, o_bias, mix_out, ".bias", ATTENTION, hidden, mix.bias),
    };
    SELECT(rows);
}

/* Kimi Delta Attention. */
static void list_kda(const struct config *c, unsigned modules, struct param_list *out) {
    const struct kda_config *a = &c->kda;
    const int hidden = c->hidden, width = a->heads * a->dim;
    const uint8_t rates = rate_conversion(c);
    const struct row rows[] = {
        {{OF(layer, mix_rate, mix_rate, ATTENTION), .suffix = "", .rows = a->heads, .is_padded = a->rates_are_padded,
          .conversion = rates},
         true},
        VEC(layer, mix_dt, mix_dt, "", ATTENTION, width, true),
        VEC(layer, mix_norm, mix_norm, ".weight", ATTENTION, a->dim, true),
        MAT(layer, q, q, ATTENTION, width, hidden, true),
        MAT(layer, k, k, ATTENTION, width, hidden, true),
        MAT(layer, v, v, ATTENTION, width, hidden, true),
        TAPS(kda_conv[0], kda_q_conv, width, a->taps, true),
        TAPS(kda_conv[1], kda_k_conv, width, a->taps, true),
        TAPS(kda_conv[2], kda_v_conv, width, a->taps, true),
        MAT(layer, kda_beta, kda_beta, ATTENTION, a->heads, hidden, true),
        MAT(layer, kda_decay, kda_decay, ATTENTION, a->rank ? a->rank : width, hidden, true),
        MAT(layer, kda_decay_up, kda_decay_up, ATTENTION, width, a->rank, a->rank),
        MAT(layer, kda_gate, kda_gate, ATTENTION, a->gate_rank ? a->gate_rank : width, hidden, true),
        MAT(layer, kda_gate_up, kda_gate_up, ATTENTION, width, a->gate_rank, a->gate_rank),
        MAT(layer, o, mix_out, ATTENTION, hidden, width, true),
    };
    SELECT(rows);
}

static void list_output(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const bool attends = c->layer[layer].mixer == MIXER_ATTENTION;
    const int hidden = c->hidden, width = c->attn == ATTN_COMPRESSED ? c->o_groups * c->o_lora
                                                                     : config_heads(c, layer) * config_v_dim(c, layer);
    const struct row rows[] = {
        MAT(layer, o, o, ATTENTION, hidden, width, attends),
        VEC(layer, o_bias, o, ".bias", ATTENTION, hidden, c->o_bias && attends),
    };
    SELECT(rows);
}

void params_attention_list(const struct config *c, int layer, unsigned modules, struct param_list *out) {
    const uint8_t mixer = c->layer[layer].mixer;
    list_ngram(c, layer, modules, out);
    list_before_attention(c, layer, modules, out);
    list_input_norm(c, layer, modules, out);
    list_qkv(c, layer, modules, out);
    list_latents(c, layer, modules, out);
    list_index(c, layer, modules, out);
    list_compressed(c, layer, modules, out);
    if (mixer == MIXER_DELTA) list_delta(c, modules, out);
    else if (mixer == MIXER_KDA) list_kda(c, modules, out);
    else list_mixer(c, layer, modules, out);
    list_output(c, layer, modules, out);
}
