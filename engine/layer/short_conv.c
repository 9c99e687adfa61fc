/* Short convolutions beside attention (Inkling): of projected keys and values, of the attention block's output and of
 * the FFN's. Each adds its input, which weights.c has put into the last tap. A layer's state has the last taps - 1 rows
 * of what goes into each: keys, values, attention output, and the FFN output of the layer before, which is complete
 * only when this layer begins. After the last layer, a bare one does that. Reference: transformers, models/inkling. */
#include "engine/layer/short_conv.h"
#include "engine/layer/rows.h"

/* Offset of an input's rows in a state, and their width. */
struct state_part {
    int at, channels;
};
enum part { PART_KEYS, PART_VALUES, PART_ATTENTION, PART_FFN, PARTS };
static struct state_part state_part(const struct config *c, int layer, enum part which) {
    const int heads = config_kv_heads(c, layer), kept = c->short_taps - 1,
              channels[PARTS] = {heads * config_head_dim(c, layer), heads * config_v_dim(c, layer), c->hidden,
                                 c->hidden};
    struct state_part p = {.channels = channels[which]};
    if (config_is_bare(c, layer)) return p; /* it has only one */
    for (int i = 0; i < (int)which; i++) p.at += kept * channels[i];
    return p;
}

struct cache_desc short_conv_plane(const struct config *c, int layer) {
    const struct state_part last = state_part(c, layer, PART_FFN);
    return (struct cache_desc){
        .heads = 1, .dim = last.at + (c->short_taps - 1) * last.channels, .fixed_rows = KV_STATES, .dtype = DT_F32};
}

/* Adds the sum over the last rows of a tap per row and head, taps [rows, heads * short_taps] with the latest row's
 * first, times that row. o: the call of the other taps, which has left the state as it was; it is replaced with the
 * last of these. scratch: [o->n, o->channels]. */
static int add_row_taps(struct exec *x, const struct config *c, int layer, const struct op_conv *o, const float *taps,
                        float *scratch) {
    const int heads = config_kv_heads(c, layer), dim = o->channels / heads;
    struct op_conv delayed = *o;
    delayed.out = scratch, delayed.w = NULL, delayed.taps = 1, delayed.past = c->short_taps - 1;
    for (int lag = 0; lag < c->short_taps; lag++) {
        delayed.delay = lag, delayed.is_peek = lag < c->short_taps - 1;
        TRY(lag ? x->ops->conv(x, &delayed) : rows_copy(x, scratch, o->channels, o->x, o->channels, o->n, o->channels));
        TRY(x->ops->gate(x, &(struct op_gate){.y = scratch,
                                              .g = taps + lag,
                                              .n = o->n,
                                              .heads = heads,
                                              .dim = dim,
                                              .ldy = o->channels,
                                              .ldg = heads * c->short_taps,
                                              .head_ldy = dim,
                                              .head_ldg = c->short_taps,
                                              .kind = GATE_LINEAR,
                                              .per_head = true}));
        TRY(rows_add(x, o->out, scratch, o->n, o->channels));
    }
    return 0;
}

/* Convolves the rows of all spans; in and out have the part's width. taps, scratch: NULL, or as add_row_taps has
 * them. */
static int convolve(struct exec *x, const struct config *c, int layer, enum part which, int plane, float *out,
                    const float *in, const float *weights, const float *taps, float *scratch, const struct span *spans,
                    int n_spans) {
    const struct state_part part = state_part(c, layer, which);
    const size_t row_taps = (size_t)(config_kv_heads(c, layer) * c->short_taps);
    for (int i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        const struct kv_state_step *v = &s->state_step;
        /* two parts if a state is saved at the mark */
        for (int row = 0, end, from = v->from_row; row < s->n; row = end) {
            const bool first = row < v->mark;
            const int to = first ? v->mark_row : v->to_row;
            const size_t at = (size_t)(s->row + row) * (size_t)part.channels;
            const float *before = attention_state(s, layer, plane, from);
            end = first ? v->mark : s->n;
            struct op_conv o = {.out = out + at,
                                .x = in + at,
                                .w = weights,
                                .is_linear = true,
                                .before = before ? before + part.at : NULL,
                                .after = attention_state(s, layer, plane, to) + part.at,
                                .n = end - row,
                                .channels = part.channels,
                                .taps = c->short_taps,
                                .ldx = part.channels,
                                .ldo = part.channels,
                                .at = attention_address(s, layer, plane),
                                .state_at = part.at};
            o.is_peek = taps;
            TRY(x->ops->conv(x, &o));
            if (taps) TRY(add_row_taps(x, c, layer, &o, taps + (size_t)(s->row + row) * row_taps, scratch));
            from = to;
        }
    }
    return 0;
}

enum { GQA_STATES = 2, BARE_STATES = 0 }; /* planes */

int short_conv_keys(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                    float *const out[2], float *const in[2], float *const taps[2], const struct span *spans,
                    int n_spans) {
    TRY(convolve(x, c, layer, PART_KEYS, GQA_STATES, out[0], in[0], y->k_conv, taps ? taps[0] : NULL, w->att, spans,
                 n_spans));
    return convolve(x, c, layer, PART_VALUES, GQA_STATES, out[1], in[1], y->v_conv, taps ? taps[1] : NULL, w->att,
                    spans, n_spans);
}

int short_conv_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *spans, int n_spans, int n) {
    if (!y->attn_conv) return 0;
    TRY(convolve(x, c, layer, PART_ATTENTION, GQA_STATES, w->xn, w->x, y->attn_conv, NULL, NULL, spans, n_spans));
    return rows_copy(x, w->x, c->hidden, w->xn, c->hidden, n, c->hidden);
}

int short_conv_ffn(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                   const struct span *spans, int n_spans, int n) {
    if (!y->previous_conv) return 0;
    const int plane = config_is_bare(c, layer) ? BARE_STATES : GQA_STATES;
    TRY(convolve(x, c, layer, PART_FFN, plane, w->xn, w->x, y->previous_conv, NULL, NULL, spans, n_spans));
    return rows_copy(x, w->x, c->hidden, w->xn, c->hidden, n, c->hidden);
}
