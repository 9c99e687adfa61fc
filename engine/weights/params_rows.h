#pragma once
/* How params.c and the files beside it list tensors: a table of rows for each part of a model, from which
 * params_select_rows takes those that a layer has. */
#include <math.h>

#include "engine/model/arch.h"
#include "engine/weights/params.h"
#include "engine/weights/weights.h"

struct row {
    struct param p;
    bool when; /* the layer has it */
};
struct param_list {
    struct param *list; /* [PARAMS_MAX] */
    int n;
};
/* Appends the rows of `modules` that the layer has. */
void params_select_rows(const struct row *all, size_t n_rows, unsigned modules, struct param_list *out);
#define SELECT(rows) params_select_rows(rows, sizeof rows / sizeof *rows, modules, out)

/* Each appends the tensors of one part of layer `layer`, if they belong to `modules`. */
void params_attention_list(const struct config *c, int layer, unsigned modules, struct param_list *out);
void params_ffn_list(const struct config *c, int layer, unsigned modules, struct param_list *out);

/* Gate (which 0) or up (1) of an FFN, `inter` wide. */
struct tensor_slice params_in_gate_up(enum gate_up order, bool stacked, int inter, int which);
bool params_has_ffn_out_norm(const struct config *c, int layer);

/* How a block gets its input from the stream, and what is done to its output; all false: an addition. */
struct stream_kind {
    /* streams.is_gated; attention residuals; several streams that are mixed with each other */
    bool gated, pools, mixes;
    bool merges, merge_gates; /* merges_stream, without and with gates */
};
struct stream_kind params_stream_kind(const struct config *c);

/* Messages of the layers of a loop to their next pass (MESSAGE). The queries of all layers of the loop are one
 * tensor. */
struct messages {
    bool has;
    int queries, first, rank; /* rows of the tensor, and the first of this layer */
};
struct messages params_messages(const struct config *c, int layer);

/* Below, `c` is the struct config *, `hidden` its hidden size. */
#define OF(type, field_, name_, module_) \
    .offset = offsetof(struct type, field_), .name_offset = offsetof(struct tensor_names, name_), \
    .module = MODULE_##module_
/* A row: field, name, module, shape, and the condition under which a layer has it. */
#define MAT(type, field, name, module, r, c, when) \
    { {OF(type, field, name, module), .suffix = ".weight", .rows = r, .cols = c}, when }
#define VEC(type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = n}, when }
/* A row whose matrix or vector is a part of a stored tensor. */
#define MAT_TRANSPOSED_IN(transposed, s, type, field, name, end, module, r, c, when) \
    { \
        {OF(type, field, name, module), .suffix = end, .is_transposed = transposed, .rows = r, .cols = c, .slice = s}, \
            when \
    }
#define MAT_IN(s, type, field, name, end, module, r, c, when) \
    MAT_TRANSPOSED_IN(false, s, type, field, name, end, module, r, c, when)
#define VEC_IN(s, type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .suffix = end, .rows = n, .slice = s}, when }

/* A norm that centered_norms applies to. */
#define NORM_OF(shift, type, field, name, module, n, when) \
    { \
        {OF(type, field, name, module), .suffix = ".weight", .rows = n, .layer_shift = (int16_t)(shift), \
         .conversion = c->centered_norms ? CONVERT_ADD_ONE : CONVERT_NONE}, \
            when \
    }
/* The two matrices of the gate of a norm of n numbers, of the layer `shift` layers away. name_: that of the norm's gate
 * in struct tensor_names */
#define NORM_GATE(shift, type, field, name_, module, n, when) \
    {{OF(type, field[0], name_##_down, module), .suffix = ".weight", .rows = c->norm_gate_rank, .cols = n, \
      .layer_shift = (int16_t)(shift)}, \
     when}, \
    { \
        {OF(type, field[1], name_##_up, module), .suffix = ".weight", .rows = n, .cols = c->norm_gate_rank, \
         .layer_shift = (int16_t)(shift)}, \
            when \
    }
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
/* Taps of a short convolution whose rows have more taps, which count as summands. */
#define TURNED_TAPS(field, name, n, when) \
    { \
        {OF(layer, field, name, ATTENTION), \
         .suffix = "", \
         .rows = (n)*taps, \
         .taps = taps, \
         .conversion = CONVERT_TURN_TAPS, \
         .factor = 1 / sqrtf(2 * (float)taps + 1)}, \
            when \
    }

/* A message's query and gate: row messages.first + which of the tensor of all queries. */
#define MESSAGE(part, query, which, module) \
    {{OF(layer, message_query[part], query, module), .suffix = "", .rows = hidden, .table_cols = hidden, \
      .slice = {.total_rows = messages.queries * hidden, .step = 1, .first = (messages.first + (which)) * hidden}}, \
     messages.has}, \
        {{OF(layer, message_gate[part].down, message_gate[part], module), .suffix = ".down_weight", \
          .rows = messages.rank, .cols = 2 * hidden}, \
         messages.has}, \
        {{OF(layer, message_gate[part].forget, message_gate[part], module), .suffix = ".forget_weight", \
          .rows = hidden, .cols = messages.rank}, \
         messages.has}, \
    { \
        {OF(layer, message_gate[part].gain, message_gate[part], module), .suffix = ".gain_weight", .rows = hidden, \
         .cols = messages.rank}, \
            messages.has \
    }

/* A query of op_pool with factors. op_pool divides its products by the root of hidden, the references do not. */
#define POOL(type, field, module, when) \
    { \
        {OF(type, field, field, module), \
         .suffix = ".weight", \
         .rows = hidden, \
         .table_cols = hidden, \
         .factor = sqrtf((float)hidden), \
         .times_offset = offsetof(struct tensor_names, field##_norm)}, \
            when \
    }

/* A vector of n numbers, published as a table of w columns. */
#define TABLE(field, name, module, n, w, when) \
    { {OF(layer, field, name, module), .suffix = "", .rows = n, .table_cols = w}, when }
/* The taps of a convolution of n channels. */
#define TAPS(field, name, n, length, when) \
    { \
        {OF(layer, field, name, ATTENTION), .suffix = ".weight", .rows = (n) * (length), .taps = length, \
         .conversion = CONVERT_TRANSPOSE}, \
            when \
    }
/* A stream_mix: the weights that mix residual streams, in `parts` parts. */
#define MIX(type, field, name, module, weights, parts, when) \
    {{OF(type, field.fn, name, module), .suffix = "", .rows = weights, .cols = c->streams.n * hidden}, when}, \
        VEC(type, field.base, name##_base, "", module, weights, when), \
        VEC(type, field.scale, name##_scale, "", module, parts, when)

/* Norms and gates of gated streams. */
#define GATED(type, field, module, when) \
    VEC(type, field.norm, field##_norm, ".weight", module, c->streams.n *hidden, when), \
        MAT(type, field.down, field##_down, module, c->streams.rank, c->streams.n *hidden, when), \
        MAT(type, field.up, field##_up, module, c->streams.n *hidden, c->streams.rank, when)

/* The four vectors of a block's stream_merge, of the layer `shift` layers away. */
#define MERGE_ROW(shift, type, field, part, name, i, module, when) \
    { {OF(type, field.part, name[i], module), .suffix = "", .rows = hidden, .layer_shift = (int16_t)(shift)}, when }
#define MERGE(shift, type, field, name, module, when) \
    MERGE_ROW(shift, type, field, output_bias, name, 0, module, when), \
        MERGE_ROW(shift, type, field, output_scale, name, 1, module, when), \
        MERGE_ROW(shift, type, field, stream_bias, name, 2, module, when), \
        MERGE_ROW(shift, type, field, stream_scale, name, 3, module, when)

/* A vector of stream_merge from a block's gates (merge_temperature). */
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
    {{OF(type, field.table, token_table, module), .suffix = ".weight", .rows = c->vocab, .cols = c->token_dim, \
      .is_table = true, \
      .slice = {.total_rows = c->vocab, \
                .step = 1, \
                .total_cols = c->n_layers * c->token_dim, \
                .first_col = (of)*c->token_dim}}, \
     when}, \
        {{OF(type, field.from_embed, token_from_embed, module), .suffix = ".weight", .rows = c->token_dim, \
          .cols = hidden, .slice = {.total_rows = c->n_layers * c->token_dim, .step = 1, .first = (of)*c->token_dim}}, \
         when}, \
        VEC(type, field.from_embed_norm, token_from_embed_norm, ".weight", module, c->token_dim, when), \
        {{OF(type, field.gate, token_gate, module), .suffix = ".weight", .rows = c->token_dim, .cols = hidden, \
          .layer_shift = (int16_t)(shift)}, \
         when}, \
        {{OF(type, field.out, token_out, module), .suffix = ".weight", .rows = hidden, .cols = c->token_dim, \
          .layer_shift = (int16_t)(shift)}, \
         when}, \
        VEC_OF(shift, type, field.out_norm, token_out_norm, ".weight", module, hidden, when)
