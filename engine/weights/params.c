#include "engine/weights/params.h"

#include <math.h>

#include "engine/model/arch.h"
#include "engine/weights/weights.h"

#define OF(type, field_, name_, module_) \
    .offset = offsetof(struct type, field_), .name_offset = offsetof(struct tensor_names, name_), .module = MODULE_##module_
/* A row: field, name, module, shape, and the condition under which a layer has it. */
#define MAT(type, field, name, module, r, c, when) \
    { {OF(type, field, name, module), .suffix = ".weight", .rows = r, .cols = c}, when }
#define VEC(type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = n}, when }
/* The same for a part of a stored tensor. */
#define MAT_IN(s, type, field, name, end, module, r, c, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = r, .cols = c, .slice = s}, when }
#define VEC_IN(s, type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = n, .slice = s}, when }

/* A norm that centered_norms applies to. */
#define NORM_OF(shift, type, field, name, module, n, when) \
    { {OF(type, field, name, module), .suffix = ".weight", .rows = n, .layer_shift = (int16_t)(shift), .conversion = centered}, when }
/* A vector of the layer `shift` layers away. */
#define VEC_OF(shift, type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = n, .layer_shift = (int16_t)(shift)}, when }

/* Weights of a short convolution over n channels, `shift` layers away. */
#define CONV_OF(shift, field, name, module, n, when) \
    { \
        {OF(layer, field, name, module), \
         .suffix = ".weight", \
         .rows = (n)*taps, \
         .taps = taps, \
         .layer_shift = (int16_t)(shift), \
         .conversion = CONVERT_ADD_INPUT, \
         .factor = c->scales_short ? 1 / sqrtf((float)taps + 1) : 0}, \
            when \
    }
/* The same where rows have more taps, which count as summands. */
#define TURNED_TAPS(field, name, n, when) \
    { \
        {OF(layer, field, name, ATTENTION),       .suffix = "", .rows = (n)*taps, .taps = taps, .conversion = CONVERT_TURN_TAPS, \
         .factor = 1 / sqrtf(2 * (float)taps + 1)}, \
            when \
    }

/* A message's query and gate: row 2 * (index in the loop) + which of the tensor of all queries. */
#define MESSAGE(part, query, which, module) \
    {{OF(layer, message_query[part], query, module), .suffix = "", .rows = hidden, .table_cols = hidden, \
      .slice = {.total_rows = 2 * loop * hidden, .step = 1, .first = (2 * in_loop + (which)) * hidden}}, \
     messages}, \
        {{OF(layer, message_gate[part].down, message_gate[part], module), .suffix = ".down_weight", .rows = message_rank, .cols = 2 * hidden}, messages}, \
        {{OF(layer, message_gate[part].forget, message_gate[part], module), .suffix = ".forget_weight", .rows = hidden, .cols = message_rank}, messages}, { \
        {OF(layer, message_gate[part].gain, message_gate[part], module), .suffix = ".gain_weight", .rows = hidden, .cols = message_rank}, messages \
    }

/* A vector of n numbers, published as a table of w columns. */
#define TABLE(field, name, module, n, w, when) \
    { {OF(layer, field, name, module), .suffix = "", .rows = n, .table_cols = w}, when }
/* The taps of a convolution of n channels. */
#define TAPS(field, name, n, length, when) \
    { {OF(layer, field, name, ATTENTION), .suffix = ".weight", .rows = (n) * (length), .taps = length, .conversion = CONVERT_TRANSPOSE}, when }
/* A stream_mix: the weights that mix residual streams, in `parts` parts. */
#define MIX(type, field, name, module, weights, parts, when) \
    {{OF(type, field.fn, name, module), .suffix = "", .rows = weights, .cols = c->streams.n * hidden}, when}, \
        VEC(type, field.base, name##_base, "", module, weights, when), VEC(type, field.scale, name##_scale, "", module, parts, when)

/* Norms and gates of gated streams. */
#define GATED(type, field, module, when) \
    VEC(type, field.norm, field##_norm, ".weight", module, c->streams.n *hidden, when), \
        MAT(type, field.down, field##_down, module, c->streams.rank, c->streams.n *hidden, when), \
        MAT(type, field.up, field##_up, module, c->streams.n *hidden, c->streams.rank, when)

/* The four vectors of a block's stream_merge, of the layer `shift` layers away. */
#define MERGE_ROW(shift, type, field, part, name, i, module, when) \
    { {OF(type, field.part, name[i], module), .suffix = "", .rows = hidden, .layer_shift = (int16_t)(shift)}, when }
#define MERGE(shift, type, field, name, module, when) \
    MERGE_ROW(shift, type, field, output_bias, name, 0, module, when), MERGE_ROW(shift, type, field, output_scale, name, 1, module, when), \
        MERGE_ROW(shift, type, field, stream_bias, name, 2, module, when), MERGE_ROW(shift, type, field, stream_scale, name, 3, module, when)

/* The same from a block's gates (merge_temperature). */
#define GATE_ROW(shift, type, field, part, name, convert, module, when) \
    { \
        {OF(type, field.part, name, module), .suffix = "",          .rows = hidden, \
         .layer_shift = (int16_t)(shift),    .conversion = convert, .factor = 1 / c->merge_temperature}, \
            when \
    }
#define GATES(shift, type, field, name, module, when) \
    GATE_ROW(shift, type, field, output_scale, name, CONVERT_OUTPUT_GATE, module, when), \
        GATE_ROW(shift, type, field, stream_scale, name, CONVERT_STREAM_GATE, module, when)

/* The token_input of layer `of`, `shift` layers away. */
#define TOKEN_INPUT(shift, of, type, field, module, when) \
    {{OF(type, field.table, token_table, module), .suffix = ".weight", .rows = c->vocab, .cols = c->token_dim, .is_table = true, \
      .slice = {.total_rows = c->vocab, .step = 1, .total_cols = c->n_layers * c->token_dim, .first_col = (of)*c->token_dim}}, \
     when}, \
        {{OF(type, field.from_embed, token_from_embed, module), .suffix = ".weight", .rows = c->token_dim, .cols = hidden, \
          .slice = {.total_rows = c->n_layers * c->token_dim, .step = 1, .first = (of)*c->token_dim}}, \
         when}, \
        VEC(type, field.from_embed_norm, token_from_embed_norm, ".weight", module, c->token_dim, when), \
        {{OF(type, field.gate, token_gate, module), .suffix = ".weight", .rows = c->token_dim, .cols = hidden, .layer_shift = (int16_t)(shift)}, when}, \
        {{OF(type, field.out, token_out, module), .suffix = ".weight", .rows = hidden, .cols = c->token_dim, .layer_shift = (int16_t)(shift)}, when}, \
        VEC_OF(shift, type, field.out_norm, token_out_norm, ".weight", module, hidden, when)

/* Rows [first, first + rows) of q, k and v if they are one tensor. */
static struct tensor_slice in_qkv(const struct config *c, int layer, int first) {
    const int dim = config_head_dim(c, layer), all = config_heads(c, layer) * dim + config_kv_heads(c, layer) * (dim + config_v_dim(c, layer));
    return c->layout->qkv ? (struct tensor_slice){.total_rows = all, .first = first, .step = 1} : (struct tensor_slice){0};
}
/* The same of gated DeltaNet's inputs. */
static struct tensor_slice in_delta(const struct config *c, int first) {
    const struct delta_config *d = &c->delta;
    const int all = 2 * (d->k_heads * d->k_dim + d->v_heads * d->v_dim + d->v_heads);
    return c->layout->delta ? (struct tensor_slice){.total_rows = all, .first = first, .step = 1} : (struct tensor_slice){0};
}
/* Gate (which 0) or up (1) of an FFN, `inter` wide. */
static struct tensor_slice in_gate_up(enum gate_up order, bool stacked, int inter, int which) {
    struct tensor_slice s = {.total_rows = inter, .step = 1, .stacked = stacked};
    if (order == GATE_UP_STACKED) s.total_rows *= 2, s.first = which * inter;
    if (order == GATE_UP_INTERLEAVED) s.total_rows *= 2, s.first = which, s.step = 2;
    return s;
}
static struct tensor_slice in_experts(const struct config *c, int rows) {
    return (struct tensor_slice){.total_rows = rows, .step = 1, .stacked = c->layout->experts};
}

/* The same of a routed expert with transposed matrices [hidden, inter]: columns instead of rows. */
static struct tensor_slice in_gate_up_columns(const struct config *c, int which) {
    struct tensor_slice s = {.total_rows = config_routed_width(c), .step = 1, .stacked = c->layout->experts, .total_cols = c->moe_inter};
    if (c->layout->gate_up == GATE_UP_STACKED) s.total_cols *= 2, s.first_col = which * c->moe_inter;
    return s;
}

static bool has_ffn_out_norm(const struct config *c, int layer) {
    return c->output_norm == OUTPUT_NORM_BLOCKS || c->output_norm == OUTPUT_NORM_UNIT || (c->output_norm == OUTPUT_NORM_EXPERTS && c->layer[layer].moe);
}

/* Sizes of a mixer with a state, other than DeltaNet: rows of its input and columns of its output projection, its convolution, and its biases. */
struct mixer_params {
    int in, out, channels, taps;
    bool bias, conv_bias;
    int steps; /* of Mamba: heads, or channels */
};
static struct mixer_params mixer_params_of(const struct config *c, int layer) {
    const struct mamba_config *m = &c->mamba;
    const int inner = m->heads * m->head_dim, channels = inner + 2 * m->groups * m->state, all = c->n_heads * c->head_dim;
    switch (c->layer[layer].mixer) {
    case MIXER_CONV: return (struct mixer_params){3 * c->hidden, c->hidden, c->hidden, c->conv.taps, c->conv.bias, c->conv.bias};
    case MIXER_LIGHTNING: return (struct mixer_params){.in = 3 * all, .out = all};
    case MIXER_ATTENTION:
        if (c->attn != ATTN_CCA) return (struct mixer_params){0};
        return (struct mixer_params){.channels = all + c->n_kv_heads * c->head_dim, .taps = c->cca.taps[0], .conv_bias = true};
    case MIXER_MAMBA2: return (struct mixer_params){inner + channels + m->heads, inner, channels, m->taps, m->projects_bias, m->conv_bias, m->heads};
    case MIXER_MAMBA1: return (struct mixer_params){2 * inner, inner, inner, m->taps, m->projects_bias, m->conv_bias, inner};
    default: return (struct mixer_params){0};
    }
}

struct row {
    struct param p;
    bool when;
};
static int select_rows(const struct row *all, size_t n_rows, unsigned modules, struct param *out) {
    int n = 0;
    for (size_t i = 0; i < n_rows; i++)
        if (all[i].when && all[i].p.module & modules) out[n++] = all[i].p;
    return n;
}

/* Apart from the other modules: each upload of an expert lists these alone. */
enum { EXPERT_ROWS = 6 };
static int list_expert(const struct config *c, int layer, struct param *out) {
    if (!c->layer[layer].moe) return 0;
    const int latent_in = config_routed_width(c);
    const bool up = !c->no_up, bias = c->expert_bias, turned = c->layout->transposed_down, columns = c->layout->transposed_gate_up;
    const char *bare = c->layout->experts && !c->layout->has_suffix ? "" : ".weight",
               *bare_bias = c->layout->experts && !c->layout->has_suffix ? "_bias" : ".bias";
    const int down_rows = turned ? c->moe_inter : latent_in, down_cols = turned ? latent_in : c->moe_inter;
    const int gate_rows = columns ? latent_in : c->moe_inter, gate_cols = columns ? c->moe_inter : latent_in;
    const struct tensor_slice gate_in = columns ? in_gate_up_columns(c, 0) : in_gate_up(c->layout->gate_up, c->layout->experts, c->moe_inter, 0),
                              up_in = columns ? in_gate_up_columns(c, 1) : in_gate_up(c->layout->gate_up, c->layout->experts, c->moe_inter, 1),
                              down_in = in_experts(c, down_rows), down_bias_in = in_experts(c, latent_in);
    const struct row rows[EXPERT_ROWS] = {
        MAT_IN(gate_in, expert, gate, expert_gate, bare, EXPERT, gate_rows, gate_cols, true),
        MAT_IN(up_in, expert, up, expert_up, bare, EXPERT, gate_rows, gate_cols, up),
        MAT_IN(down_in, expert, down, expert_down, bare, EXPERT, down_rows, down_cols, true),
        VEC_IN(gate_in, expert, gate_bias, expert_gate, bare_bias, EXPERT, c->moe_inter, bias),
        VEC_IN(up_in, expert, up_bias, expert_up, bare_bias, EXPERT, c->moe_inter, up && bias),
        VEC_IN(down_bias_in, expert, down_bias, expert_down, bare_bias, EXPERT, latent_in, bias),
    };
    return select_rows(rows, EXPERT_ROWS, MODULE_EXPERT, out);
}

int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]) {
    if (modules == MODULE_EXPERT) return list_expert(c, layer, out);
    const int hidden = c->hidden, latent_in = config_routed_width(c), heads = config_heads(c, layer), dim = config_head_dim(c, layer),
              v_dim = config_v_dim(c, layer), q = heads * dim, k = config_kv_heads(c, layer) * dim, v = config_kv_heads(c, layer) * v_dim,
              compressed = c->attn == ATTN_COMPRESSED;
    const struct mla_sizes mla_of = config_mla(c, layer);
    const int q_lora = mla_of.q_lora, latent = compressed ? c->head_dim : mla_of.latent;
    const float q_factor = c->scales_latents && q_lora ? sqrtf((float)hidden / (float)q_lora) : c->q_latent_scale,
                kv_factor = c->scales_latents ? sqrtf((float)hidden / (float)mla_of.kv_lora) : c->kv_latent_scale;
    const struct delta_config *d = &c->delta;
    const int keys = d->k_heads * d->k_dim, values = d->v_heads * d->v_dim, channels = 2 * keys + values,
              q_rows = c->attn_gate == ATTN_GATE_IN_QUERY ? q + heads * v_dim : q, rank_gate = c->norm_gate_rank;
    const uint8_t mixer = c->layer[layer].mixer;
    const bool delta = mixer == MIXER_DELTA, attends = mixer == MIXER_ATTENTION, gqa = c->attn == ATTN_GQA && attends, cca = c->attn == ATTN_CCA && attends,
               low = attends && !gqa && !cca, mla = low && !compressed, low_q = low && q_lora, bias = c->qkv_bias,
               index = attends && c->attn == ATTN_DSA && c->layer[layer].index == INDEX_OWN, pools = c->streams.block_layers > 0,
               streams = c->streams.n > 0 && !c->streams.is_plain && !c->streams.is_gated && !pools, kv_inputs = pools && c->layer[layer].mixes_kv,
               squeeze = compressed && c->layer[layer].ratio > 0, overlap = squeeze && c->layer[layer].overlap, hashed = c->layer[layer].hashed;
    const int series = overlap ? 2 : 1, ratio = c->layer[layer].ratio, mixes = op_mix_weights(c->streams.n, c->streams.iters),
              parts = op_mix_parts(c->streams.iters), o_cols = compressed ? c->o_groups * c->o_lora : heads * v_dim;
    const bool mamba = mixer == MIXER_MAMBA2, scan = mixer == MIXER_MAMBA1, kda = mixer == MIXER_KDA;
    const bool merges = c->merges_stream && !(c->merge_temperature > 0), merge_gates = c->merges_stream && c->merge_temperature > 0,
               mlp = c->layer[layer].moe && c->router_inter;
    const int inner = c->router_inter, cca_taps = c->cca.taps[1], state = c->mamba.state, rank = c->mamba.rank;
    const struct kda_config *a = &c->kda;
    const uint8_t centered = c->centered_norms ? CONVERT_ADD_ONE : CONVERT_NONE;
    const int width = a->heads * a->dim;
    const bool ffn = !c->layer[layer].no_ffn, dense = !c->layer[layer].moe && ffn, rel = gqa && c->rel_dim, conv = gqa && c->short_taps,
               previous_conv = c->short_taps && layer > 0;
    const bool messages = c->layer[layer].pass > 0;
    const int loop = c->streams.loop_to - c->streams.loop_from, in_loop = config_stored_layer(c, layer) - c->streams.loop_from,
              message_rank = c->streams.message_rank;
    const int taps = c->short_taps, wide = c->streams.n * hidden;
    const bool gated = c->streams.is_gated, ngram = config_ngram(c, layer), selects = config_selects_blocks(c, layer), blocks = selects && !c->index_by_group,
               groups = selects && c->index_by_group, split = blocks && !c->names->index_qk; /* in GGUF */
    const struct ngram_config g = ngram ? *config_ngram(c, layer) : (struct ngram_config){.size = 2, .per = 1};
    const int hashes = config_ngram_hashes(&g);
    const bool moe = c->layer[layer].moe, shared = moe && c->shared_inter, up = !c->no_up, latent_moe = moe && c->moe_latent,
               mixes_tokens = mixer != MIXER_NONE, norm_bias = c->norm == NORM_LAYER && c->norm_bias;
    const bool dense_bias = dense && c->dense_bias, in_norm = !c->no_input_norm && !c->streams.is_gated, out_norm = c->output_norm == OUTPUT_NORM_BLOCKS,
               last_norm = has_ffn_out_norm(c, c->n_layers - 1), previous_norm = layer > 0 && has_ffn_out_norm(c, layer - 1);
    const bool parallel = moe && c->parallel_dense, last_parallel = c->parallel_dense && c->layer[c->n_layers - 1].moe,
               previous_parallel = c->parallel_dense && layer > 0 && c->layer[layer - 1].moe;
    const bool all_heads = c->qk_norm == QK_NORM_ALL, gates_attn = mixes_tokens && config_norm_is_gated(c, layer, false),
               gates_ffn = ffn && config_norm_is_gated(c, layer, true);
    const struct tensor_slice q_in = in_qkv(c, layer, 0), k_in = in_qkv(c, layer, q), v_in = in_qkv(c, layer, q + k);
    const bool takes_kv = c->layer[layer].passes_kv == KV_TAKEN;
    const bool gates = attends && (c->attn_gate == ATTN_GATE_ELEMENT || c->attn_gate == ATTN_GATE_HEAD), clips = gqa && c->qk_norm == QK_NORM_CLIP,
               qk_weights = gqa && (c->qk_norm == QK_NORM_HEAD || all_heads);
    const enum gate_up order = c->layout->dense_gate_up;
    const int dense_inter = config_dense_inter(c, layer),
              inter = moe && !parallel ? c->shared_inter : dense_inter; /* rows of gate and up in the dense FFN or the shared expert */
    const struct tensor_slice ffn_gate = in_gate_up(order, false, inter, 0), ffn_up = in_gate_up(order, false, inter, 1);
    const struct mixer_params mix = mixer_params_of(c, layer);
    const uint8_t rates = !d->rates_converted ? CONVERT_MINUS_EXP : c->kda.rates_are_positive ? CONVERT_MINUS : CONVERT_NONE;
    const struct tensor_slice head_in = {.total_rows = c->head_is_padded ? c->embed_rows : 0, .step = c->head_is_padded};
    const struct tensor_slice routed = {.total_rows = config_n_choices(c) - c->n_always, .step = 1}, same = {.total_rows = 1},
                              by_head = {.total_rows = heads, .step = 1, .repeats = v_dim};
    const struct row all[] = {
        MAT(weights, embed, embed, EMBED, c->embed_rows ? c->embed_rows : c->vocab, hidden, true),
        VEC(weights, embed_norm, embed_norm, ".weight", EMBED, hidden, c->embed_norm),
        VEC(weights, rope_alpha, rope_alpha, "", EMBED, c->rope.dim / 2, c->rope_alpha),
        VEC(weights, norm, norm, ".weight", HEAD, hidden, !gated),
        VEC(weights, norm_bias, norm, ".bias", HEAD, hidden, norm_bias),
        {{OF(weights, head, head, HEAD), .suffix = ".weight", .rows = c->vocab, .cols = hidden, .optional = c->tied, .slice = head_in}, true},
        VEC(weights, head_bias, head, ".bias", HEAD, c->vocab, c->head_bias),

        GATED(weights, head_gated, STREAM_MERGE, gated),
        VEC(weights, head_pool, head_pool, "", STREAM_MERGE, hidden, pools),
        MIX(weights, head_mix, head_mix, STREAM_MERGE, c->streams.n, 1, streams && !c->streams.is_averaged),
        NORM_OF(c->n_layers - 1, weights, last_out_norm, ffn_out_norm, STREAM_MERGE, hidden, last_norm),
        VEC_OF(c->n_layers - 1, weights, last_experts_norm, experts_out_norm, ".weight", STREAM_MERGE, hidden, last_parallel),
        VEC_OF(c->n_layers - 1, weights, last_scale, stream_scale, "", STREAM_MERGE, 1, c->stream_scale),
        TOKEN_INPUT(c->n_layers - 1, c->n_layers - 1, weights, last_token_input, STREAM_MERGE, c->token_dim > 0),
        MERGE(c->n_layers - 1, weights, last_merge, ffn_merge, STREAM_MERGE, merges),
        GATES(c->n_layers - 1, weights, last_merge, ffn_merge_gate, STREAM_MERGE, merge_gates),

        {{OF(layer, ngram_table, ngram_table, ATTENTION), .suffix = ".weight", .rows = g.rows, .cols = g.dim / hashes, .parts = g.parts > 1 ? g.parts : 0,
          .is_table = true},
         ngram},
        MAT(layer, ngram_key, ngram_key, ATTENTION, wide, g.dim, ngram),
        MAT(layer, ngram_value, ngram_value, ATTENTION, hidden, g.dim, ngram),
        VEC(layer, ngram_key_norm, ngram_key_norm, ".weight", ATTENTION, wide, ngram),
        VEC(layer, ngram_query_norm, ngram_query_norm, ".weight", ATTENTION, wide, ngram),
        VEC(layer, ngram_conv_norm, ngram_conv_norm, ".weight", ATTENTION, wide, ngram),
        {{OF(layer, ngram_conv, ngram_conv, ATTENTION), .suffix = ".weight", .rows = wide * config_ngram_taps(&g), .taps = g.taps, .dilation = g.size,
          .conversion = CONVERT_TRANSPOSE},
         ngram},
        GATED(layer, attn_gated, ATTENTION, gated),
        MAT(layer, attn_gated.inject, attn_gated_inject, ATTENTION, c->streams.n, wide, gated),
        MIX(layer, attn_mix, attn_mix, ATTENTION, mixes, parts, streams),
        NORM_OF(-1, layer, previous_out_norm, ffn_out_norm, ATTENTION, hidden, previous_norm),
        VEC_OF(-1, layer, previous_experts_norm, experts_out_norm, ".weight", ATTENTION, hidden, previous_parallel),
        CONV_OF(-1, previous_conv, ffn_conv, ATTENTION, hidden, previous_conv),
        VEC_OF(-1, layer, previous_ffn_scale, dense_scale, "", ATTENTION, 1, c->ffn_scale && layer > 0 && !c->layer[layer - 1].moe),
        VEC_OF(-1, layer, previous_scale, stream_scale, "", ATTENTION, 1, c->stream_scale && layer > 0),
        TOKEN_INPUT(-1, layer - 1, layer, previous_token_input, ATTENTION, c->token_dim && layer > 0),
        MERGE_ROW(0, layer, previous_merge, output_bias, embed_merge, 0, ATTENTION, merges && !layer),
        MERGE_ROW(0, layer, previous_merge, output_scale, embed_merge, 1, ATTENTION, merges && !layer),
        MERGE(-1, layer, previous_merge, ffn_merge, ATTENTION, merges && layer > 0),
        GATES(-1, layer, previous_merge, ffn_merge_gate, ATTENTION, merge_gates && layer > 0),
        {{OF(layer, attn_pool, attn_pool, ATTENTION), .suffix = "", .rows = hidden, .name_shift = -1}, pools && mixes_tokens && layer > 0 && !kv_inputs},
        {{OF(layer, attn_pool, attn_pool, ATTENTION), .suffix = "", .rows = 3 * hidden, .table_cols = hidden, .name_shift = -1}, kv_inputs && layer > 0},
        MESSAGE(0, message_query, 0, ATTENTION),
        MESSAGE(1, message_kv_query, 0, ATTENTION),
        MESSAGE(2, message_kv_query, 1, ATTENTION),
        NORM_OF(0, layer, attn_norm, attn_norm, ATTENTION, hidden, in_norm && mixes_tokens && !kv_inputs),
        VEC(layer, attn_norm, q_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        VEC(layer, kv_norm[0], k_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        VEC(layer, kv_norm[1], v_in_norm, ".weight", ATTENTION, hidden, kv_inputs),
        MAT(layer, attn_norm_gate[0], attn_norm_down, ATTENTION, rank_gate, hidden, in_norm && gates_attn),
        MAT(layer, attn_norm_gate[1], attn_norm_up, ATTENTION, hidden, rank_gate, in_norm && gates_attn),
        VEC(layer, attn_norm_bias, attn_norm, ".bias", ATTENTION, hidden, norm_bias && mixes_tokens),
        MAT_IN(q_in, layer, q, q, ".weight", ATTENTION, q_rows, hidden, !low_q && attends),
        VEC_IN(q_in, layer, q_bias, q, ".bias", ATTENTION, q_rows, gqa && bias),
        VEC(layer, q_norm, q_norm, ".weight", ATTENTION, all_heads ? q : dim, qk_weights),
        MAT_IN(k_in, layer, k, k, ".weight", ATTENTION, k, hidden, (gqa && !takes_kv) || cca),
        VEC_IN(k_in, layer, k_bias, k, ".bias", ATTENTION, k, gqa && bias),
        VEC(layer, k_norm, k_norm, ".weight", ATTENTION, all_heads ? k : dim, qk_weights && !takes_kv),
        MAT_IN(v_in, layer, v, v, ".weight", ATTENTION, v, hidden, gqa && !takes_kv && !c->layer[layer].v_is_k),
        MAT(layer, v, v, ATTENTION, v / 2, hidden, cca),
        MAT(layer, v_delayed, v_delayed, ATTENTION, v / 2, hidden, cca),
        {{OF(layer, cca_taps, cca_taps, ATTENTION), .suffix = ".weight", .rows = (q + k) * dim * cca_taps, .taps = cca_taps, .taps_in = dim,
          .conversion = CONVERT_TRANSPOSE},
         cca},
        VEC(layer, cca_bias, cca_bias, "", ATTENTION, q + k, cca),
        VEC(layer, cca_temp, cca_temp, "", ATTENTION, config_kv_heads(c, layer), cca),
        VEC_IN(v_in, layer, v_bias, v, ".bias", ATTENTION, v, gqa && bias),
        TABLE(q_norm, q_scale, ATTENTION, q, dim, clips),
        CONV_OF(0, k_conv, k_conv, ATTENTION, k, conv && !kv_inputs),
        CONV_OF(0, v_conv, v_conv, ATTENTION, v, conv && !kv_inputs),
        TURNED_TAPS(k_conv, k_taps, k, kv_inputs),
        TURNED_TAPS(v_conv, v_taps, v, kv_inputs),
        {{OF(layer, k_row_taps, k_row_taps, ATTENTION), .suffix = "", .rows = config_kv_heads(c, layer) * taps, .cols = hidden}, kv_inputs},
        {{OF(layer, v_row_taps, v_row_taps, ATTENTION), .suffix = "", .rows = config_kv_heads(c, layer) * taps, .cols = hidden}, kv_inputs},
        CONV_OF(0, attn_conv, attn_conv, ATTENTION, hidden, conv),
        MAT(layer, rel, rel, ATTENTION, heads * c->rel_dim, hidden, rel),
        TABLE(rel_scale, rel_scale, ATTENTION, heads * c->rel_dim, c->rel_dim, rel && c->rel_limit > 0),
        {{OF(layer, rel_table, rel_table, ATTENTION), .suffix = "", .rows = c->rel_dim, .cols = c->layer[layer].extent}, rel},
        MAT(layer, attn_gate, attn_gate, ATTENTION, c->attn_gate == ATTN_GATE_HEAD ? heads : heads * v_dim, hidden, gates),
        VEC_IN(by_head, layer, attn_gate_bias, attn_gate_bias, "", ATTENTION, heads * v_dim, gates && c->attn_gate_bias),
        VEC(layer, sinks, sinks, "", ATTENTION, heads, attends && c->sinks && !c->layer[layer].no_sinks),
        MAT(layer, sink_proj, sink_proj, ATTENTION, heads, hidden, gqa && c->projects_sinks),
        MAT(layer, q_a, q_a, ATTENTION, q_lora, hidden, low_q),
        VEC(layer, q_a_bias, q_a, ".bias", ATTENTION, q_lora, low_q && bias),
        {{OF(layer, q_a_norm, q_a_norm, ATTENTION), .suffix = ".weight", .rows = q_lora, .factor = q_factor}, low_q},
        MAT(layer, q_b, q_b, ATTENTION, q_rows, c->q_raw ? 2 * q_lora : q_lora, low_q),
        MAT(layer, kv_a, kv_a, ATTENTION, latent, hidden, low && !takes_kv),
        VEC(layer, kv_a_bias, kv_a, ".bias", ATTENTION, latent, mla && bias && !takes_kv),
        {{OF(layer, kv_a_norm, kv_a_norm, ATTENTION), .suffix = ".weight", .rows = compressed ? c->head_dim : mla_of.kv_lora, .factor = kv_factor},
         low && !takes_kv},
        VEC(layer, k_rope_norm, k_rope_norm, ".weight", ATTENTION, mla_of.rope, mla && c->k_rope_norm),
        MAT(layer, kv_b, kv_b, ATTENTION, heads * (mla_of.nope + v_dim), mla_of.kv_lora, mla && !c->split_kv_b),
        MAT(layer, k_b, k_b, ATTENTION, heads * mla_of.kv_lora, mla_of.nope, mla && c->split_kv_b),
        MAT(layer, v_b, v_b, ATTENTION, heads * v_dim, mla_of.kv_lora, mla && c->split_kv_b),
        VEC(layer, q_slope, q_slope, "", ATTENTION, heads, mla && c->scales_heads),
        VEC(layer, q_base, q_base, "", ATTENTION, heads, mla && c->scales_heads),
        MAT(layer, index_q, index_q, ATTENTION, c->index_heads * c->index_dim, selects || c->index_from_input ? hidden : q_lora,
            index || overlap || groups || split),
        MAT(layer, index_qk, index_qk, ATTENTION, (c->index_heads + 1) * c->index_dim, hidden, blocks && !split),
        VEC(layer, index_q_norm, index_q_norm, ".weight", ATTENTION, c->index_dim, selects),
        MAT(layer, index_k, index_k, ATTENTION, c->index_dim, hidden, index || groups || split),
        VEC(layer, index_k_norm, index_k_norm, ".weight", ATTENTION, c->index_dim, index || selects),
        VEC(layer, index_k_bias, index_k_norm, ".bias", ATTENTION, c->index_dim, index),
        MAT(layer, index_weights, index_weights, ATTENTION, c->index_heads, hidden, index || overlap),
        VEC(layer, index_in_norm, index_in_norm, ".weight", ATTENTION, hidden, index && c->index_from_input),
        VEC(layer, index_in_bias, index_in_norm, ".bias", ATTENTION, hidden, index && c->index_from_input),
        VEC(layer, index_slope, index_slope, "", ATTENTION, c->index_heads, index && c->scales_heads),
        VEC(layer, index_base, index_base, "", ATTENTION, c->index_heads, index && c->scales_heads),
        MAT(layer, compress_kv, compress_kv, ATTENTION, series * c->head_dim, hidden, squeeze),
        MAT(layer, compress_gate, compress_gate, ATTENTION, series * c->head_dim, hidden, squeeze),
        VEC(layer, compress_norm, compress_norm, ".weight", ATTENTION, c->head_dim, squeeze),
        TABLE(compress_bias, compress_bias, ATTENTION, ratio * series * c->head_dim, series * c->head_dim, squeeze),
        MAT(layer, index_compress_kv, index_compress_kv, ATTENTION, 2 * c->index_dim, hidden, overlap),
        MAT(layer, index_compress_gate, index_compress_gate, ATTENTION, 2 * c->index_dim, hidden, overlap),
        {{OF(layer, index_compress_gate, index_compress_gate, ATTENTION), .suffix = "", .rows = c->index_dim, .cols = hidden}, index && c->index_block},
        TABLE(index_compress_bias, index_compress_bias, ATTENTION, c->index_block * c->index_dim, c->index_dim, index && c->index_block),
        VEC(layer, index_compress_norm, index_compress_norm, ".weight", ATTENTION, c->index_dim, overlap),
        TABLE(index_compress_bias, index_compress_bias, ATTENTION, ratio * 2 * c->index_dim, 2 * c->index_dim, overlap),
        MAT(layer, o_a, o_a, ATTENTION, c->o_groups * c->o_lora, c->n_heads * c->head_dim / (c->o_groups ? c->o_groups : 1), compressed),
        MAT(layer, delta_qkvz, delta_qkvz, ATTENTION, channels + values, hidden, delta && d->fused),
        MAT(layer, delta_ba, delta_ba, ATTENTION, 2 * d->v_heads, hidden, delta && (d->fused || d->fused_ba)),
        MAT_IN(in_delta(c, 0), layer, delta_qkv, delta_qkv, ".weight", ATTENTION, channels, hidden, delta && !d->fused),
        MAT_IN(in_delta(c, channels), layer, delta_z, delta_z, ".weight", ATTENTION, values, hidden, delta && !d->fused),
        MAT_IN(in_delta(c, channels + values), layer, delta_b, delta_b, ".weight", ATTENTION, d->v_heads, hidden, delta && !d->fused && !d->fused_ba),
        MAT_IN(in_delta(c, channels + values + d->v_heads), layer, delta_a, delta_a, ".weight", ATTENTION, d->v_heads, hidden,
               delta && !d->fused && !d->fused_ba),
        TAPS(delta_conv, delta_conv, channels, d->taps, delta),
        {{OF(layer, delta_rate, delta_rate, ATTENTION), .suffix = "", .rows = d->v_heads, .conversion = rates}, delta},
        VEC(layer, delta_dt, delta_dt, "", ATTENTION, d->v_heads, delta),
        VEC(layer, delta_norm, delta_norm, ".weight", ATTENTION, d->v_dim, delta),
        MAT(layer, o, delta_out, ATTENTION, hidden, values, delta),
        MAT(layer, mix_in, mix_in, ATTENTION, mix.in, hidden, mix.in > 0),
        VEC(layer, mix_in_bias, mix_in, ".bias", ATTENTION, mix.in, mix.bias),
        MAT(layer, mix_gate, mix_gate, ATTENTION, mix.out, hidden, mixer == MIXER_LIGHTNING),
        TAPS(mix_conv, mix_conv, mix.channels, mix.taps, mix.taps > 0),
        VEC(layer, mix_conv_bias, mix_conv, ".bias", ATTENTION, mix.channels, mix.conv_bias),
        {{OF(layer, mix_rate, mix_rate, ATTENTION), .suffix = "", .rows = kda ? a->heads : mix.steps, .conversion = rates}, mamba || kda},
        VEC(layer, mix_dt, mix_dt, "", ATTENTION, kda ? width : mix.steps, mamba || scan || kda),
        VEC(layer, mix_skip, mix_skip, "", ATTENTION, mix.steps, mamba || scan),
        VEC(layer, mix_norm, mix_norm, ".weight", ATTENTION, kda ? a->dim : mix.out, mamba || mixer == MIXER_LIGHTNING || kda),
        MAT(layer, q, q, ATTENTION, width, hidden, kda),
        MAT(layer, k, k, ATTENTION, width, hidden, kda),
        MAT(layer, v, v, ATTENTION, width, hidden, kda),
        TAPS(kda_conv[0], kda_q_conv, width, a->taps, kda),
        TAPS(kda_conv[1], kda_k_conv, width, a->taps, kda),
        TAPS(kda_conv[2], kda_v_conv, width, a->taps, kda),
        MAT(layer, kda_beta, kda_beta, ATTENTION, a->heads, hidden, kda),
        MAT(layer, kda_decay, kda_decay, ATTENTION, a->rank ? a->rank : width, hidden, kda),
        MAT(layer, kda_decay_up, kda_decay_up, ATTENTION, width, a->rank, kda && a->rank),
        MAT(layer, kda_gate, kda_gate, ATTENTION, a->rank ? a->rank : width, hidden, kda),
        MAT(layer, kda_gate_up, kda_gate_up, ATTENTION, width, a->rank, kda && a->rank),
        MAT(layer, o, mix_out, ATTENTION, hidden, width, kda),
        {{OF(layer, mix_rate, mix_rate, ATTENTION), .suffix = "", .rows = mix.steps * state, .table_cols = state,
          .conversion = d->rates_converted ? CONVERT_TRANSPOSE_TABLE : CONVERT_RATES},
         scan},
        MAT(layer, mix_select, mix_select, ATTENTION, rank + 2 * state, mix.out, scan),
        MAT(layer, mix_step, mix_step, ATTENTION, mix.out, rank, scan),
        VEC(layer, mix_dt_norm, mix_dt_norm, ".weight", ATTENTION, rank, scan),
        VEC(layer, mix_b_norm, mix_b_norm, ".weight", ATTENTION, state, scan),
        VEC(layer, mix_c_norm, mix_c_norm, ".weight", ATTENTION, state, scan),
        MAT(layer, o, mix_out, ATTENTION, hidden, mix.out, mix.in > 0),
        VEC(layer, o_bias, mix_out, ".bias", ATTENTION, hidden, mix.bias),
        MAT(layer, o, o, ATTENTION, hidden, o_cols, attends),
        VEC(layer, o_bias, o, ".bias", ATTENTION, hidden, c->o_bias && attends),

        GATED(layer, ffn_gated, ROUTER, gated),
        MAT(layer, ffn_gated.inject, ffn_gated_inject, ROUTER, c->streams.n, wide, gated),
        MIX(layer, ffn_mix, ffn_mix, ROUTER, mixes, parts, streams),
        NORM_OF(0, layer, attn_out_norm, attn_out_norm, ROUTER, hidden, out_norm),
        MERGE(0, layer, attn_merge, attn_merge, ROUTER, merges),
        GATES(0, layer, attn_merge, attn_merge_gate, ROUTER, merge_gates),
        MAT(layer, ffn_norm_gate[0], ffn_norm_down, ROUTER, rank_gate, hidden, in_norm && gates_ffn),
        MAT(layer, ffn_norm_gate[1], ffn_norm_up, ROUTER, hidden, rank_gate, in_norm && gates_ffn),
        VEC(layer, ffn_pool, ffn_pool, "", ROUTER, hidden, pools && ffn),
        MESSAGE(3, message_query, 1, ROUTER),
        NORM_OF(0, layer, ffn_norm, ffn_norm, ROUTER, hidden, in_norm && ffn && !gates_ffn),
        VEC(layer, ffn_norm, gated_ffn_norm, ".weight", ROUTER, hidden, in_norm && gates_ffn),
        VEC(layer, ffn_norm_bias, ffn_norm, ".bias", ROUTER, hidden, norm_bias && ffn),
        MAT_IN(ffn_gate, layer, parallel_dense.gate, dense_gate, ".weight", ROUTER, dense_inter, hidden, parallel),
        MAT_IN(ffn_up, layer, parallel_dense.up, dense_up, ".weight", ROUTER, dense_inter, hidden, parallel),
        MAT(layer, parallel_dense.down, dense_down, ROUTER, hidden, dense_inter, parallel),
        VEC(layer, dense_out_norm, dense_out_norm, ".weight", ROUTER, hidden, parallel),
        {{OF(layer, router_norm, router_norm, ROUTER), .suffix = "", .rows = hidden, .factor = 1 / sqrtf((float)hidden)}, parallel},
        VEC(layer, expert_scale, expert_scale, "", ROUTER, c->n_experts, parallel),
        VEC(layer, experts_norm, experts_norm, ".weight", ROUTER, hidden, parallel || (moe && c->reads_early == EARLY_ROUTED)),
        MAT(layer, router_down, router_down, ROUTER, inner, hidden, mlp),
        VEC(layer, router_down_bias, router_down, ".bias", ROUTER, inner, mlp),
        VEC(layer, router_carry, router_carry, "", ROUTER, inner, mlp && layer > 0),
        VEC(layer, router_mlp_norm, router_mlp_norm, ".weight", ROUTER, inner, mlp),
        MAT(layer, router_fc1, router_fc1, ROUTER, inner, inner, mlp),
        VEC(layer, router_fc1_bias, router_fc1, ".bias", ROUTER, inner, mlp),
        MAT(layer, router_fc2, router_fc2, ROUTER, inner, inner, mlp),
        VEC(layer, router_fc2_bias, router_fc2, ".bias", ROUTER, inner, mlp),
        MAT(layer, router, router, ROUTER, config_n_choices(c), mlp ? inner : hidden, moe),
        VEC(layer, router_shift, router, ".bias", ROUTER, config_n_choices(c), moe && c->router_shift),
        VEC_IN(routed, layer, router_bias, router_bias, "", ROUTER, config_n_choices(c), moe && c->router_bias && !hashed),
        VEC_IN(same, layer, expert_scale, router_scale, "", ROUTER, c->n_experts, moe && c->ffn_scale),
        {{OF(layer, router_table, router_table, ROUTER), .suffix = "", .rows = c->vocab * c->topk, .table_cols = c->topk, .conversion = CONVERT_EXPERT_IDS},
         moe && hashed},
        MAT(layer, shared_gate, shared_gate, ROUTER, 1, hidden, moe && c->shared_gate),
        MAT(layer, routed_in, routed_in, ROUTER, latent_in, hidden, latent_moe),
        NORM_OF(0, layer, routed_in_norm, routed_in_norm, ROUTER, latent_in, latent_moe && c->names->routed_in_norm),
        NORM_OF(0, layer, expert_out_norm, expert_out_norm, ROUTER, latent_in, latent_moe && c->expert_out_norm),
        MAT(layer, routed_out, routed_out, ROUTER, hidden, latent_in, latent_moe),

        MAT_IN(ffn_gate, layer, dense.gate, dense_gate, ".weight", SHARED, dense_inter, hidden, dense),
        MAT_IN(ffn_up, layer, dense.up, dense_up, ".weight", SHARED, dense_inter, hidden, dense && up),
        MAT(layer, dense.down, dense_down, SHARED, hidden, dense_inter, dense),
        VEC_IN(ffn_gate, layer, dense.gate_bias, dense_gate, ".bias", SHARED, dense_inter, dense_bias),
        VEC_IN(ffn_up, layer, dense.up_bias, dense_up, ".bias", SHARED, dense_inter, dense_bias && up),
        VEC(layer, dense.down_bias, dense_down, ".bias", SHARED, hidden, dense_bias),
        MAT_IN(ffn_gate, layer, dense.gate, shared_gate_proj, ".weight", SHARED, c->shared_inter, hidden, shared),
        MAT_IN(ffn_up, layer, dense.up, shared_up, ".weight", SHARED, c->shared_inter, hidden, shared && up),
        MAT(layer, dense.down, shared_down, SHARED, hidden, c->shared_inter, shared),
    };
    _Static_assert(sizeof all / sizeof *all + EXPERT_ROWS <= PARAMS_MAX, "PARAMS_MAX");
    const int n = select_rows(all, sizeof all / sizeof *all, modules, out);
    return n + (modules & MODULE_EXPERT ? list_expert(c, layer, out + n) : 0);
}

size_t params_bytes(const void *base, const struct param *list, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) sum += list[i].cols ? mat_bytes(params_mat(base, &list[i])) : (size_t)list[i].rows * sizeof(float);
    return sum;
}

void params_set_traits(const struct config *c, int layer, struct expert *e) {
    e->glu = config_glu(c, layer, true);
    e->is_transposed = c->layout->transposed_down, e->gate_up_transposed = c->layout->transposed_gate_up;
}
static void copy_traits(const struct expert *src, struct expert *view) {
    view->glu = src->glu, view->is_transposed = src->is_transposed, view->gate_up_transposed = src->gate_up_transposed;
}
void params_copy_traits(unsigned modules, const void *src, void *view) {
    if (modules & MODULE_EXPERT) copy_traits(src, view);
    if (modules & MODULE_ROUTER) copy_traits(&((const struct layer *)src)->parallel_dense, &((struct layer *)view)->parallel_dense);
    if (modules & MODULE_SHARED) copy_traits(&((const struct layer *)src)->dense, &((struct layer *)view)->dense);
}
