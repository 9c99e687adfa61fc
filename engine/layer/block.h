#pragma once
/* One transformer block, written once against the operations table. The execution mode decides where it runs: it passes
 * the executor, and weights, workspace and KV planes in that executor's memory. Sources: DeepSeek-V3, section 2.1 (MLA
 * absorbed and expanded); the vendors' modeling code.
 *
 * Parameters have the same names in this folder: x, the executor; c, the config; m, the model's weights; y, the weights
 * of layer number `layer`; w, the workspace; n, rows of the batch, which the spans cover in order. ld..: distance of
 * rows in floats. Functions that run operations return 0 or an operation's error code. They write the workspace and the
 * KV planes, and nothing else. */
#include "engine/layer/span.h"
#include "engine/layer/work.h"
#include "engine/weights/weights.h"

/* Whether a layer's MLA over n rows is cheaper with expanded keys and values than in absorbed form. False up to
 * BATCH_INVARIANT_ROWS rows. If it is true for n rows, it is also true for more. Pure. */
bool block_expands_mla(const struct config *c, int layer, int n);
/* Most bytes that attention over `keys` keys allocates beyond the workspace. */
size_t block_grown_bytes(const struct config *c, int keys);

/* Fills cos and sin for the n rows of w->pos. total: sequence length of all rows, 0: that of each row in w->seq_length;
 * only LongRoPE depends on it. */
int block_rope(struct exec *x, const struct weights *m, struct work *w, int n, int total);
/* whether a layer's attention block can be recorded: what varies by token is read from memory */
bool block_is_recordable(const struct config *c, int layer);
/* rows that see at most this many keys are recorded separately; 0: no distinction */
int block_few_keys_limit(const struct config *c, int layer);
/* Adds the attention block's result to w->x. With several residual streams w->x is the block's output, which the next
 * block adds to the streams. cos and sin are filled. */
int block_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                    const struct span *spans, int n_spans, int n);
/* block_attention in parts, for keys that come in pieces: block_kv norms the input and stores keys and values;
 * block_query fills w->q; block_attend computes a span's rows of w->att over keys [first, first + n) of its cache,
 * piece by piece or all at once; block_output adds the projection of w->att. The pieces of a span must be consecutive.
 * They need piece_out, piece_lse and lse in the workspace. */
bool block_makes_queries_first(const struct config *c, int layer); /* block_kv fills w->q; block_query does nothing */
bool block_needs_all_keys(const struct config *c, int layer);      /* keys cannot come in pieces */
int block_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
             const struct span *spans, int n_spans, int n);
int block_query(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
int block_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                 const struct span *s, struct key_range keys);
/* Attends as block_attend() does for each of the spans, over all their keys. Matrices of absorbed MLA and of groups of
 * heads (DeepSeek-V4) are read once for up to BATCH_INVARIANT_ROWS rows of several spans. */
int block_attend_spans(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *spans, int n_spans);
int block_output(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n);
/* Call after the last layer: merges several residual streams, if any, into w->x [rows, hidden]. */
int block_merge_streams(struct exec *x, const struct weights *m, struct work *w, int n);
/* Norms the FFN's input and routes it: fills w->xn, ids, weights, shared_weight. */
int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n);
/* Keeps what the router or the experts of a layer read of its attention's input, w->x and w->xn. */
int block_keep_early(struct exec *x, const struct config *c, int layer, struct work *w, int n);
/* Whether the experts of a layer can be predicted from the residual stream before earlier layers have added to it.
 * block_predict_route() does so for n rows of `stream`, which it leaves as they are: fills w->ids. */
bool block_predicts_route(const struct config *c, int layer);
int block_predict_route(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                        float *stream, int n);
/* Adds FFNs of w->xn to out [n, hidden] (w->x, or a partial sum that is added later): routed experts of w->ids,
 * shared expert or dense FFN, or both in one operation, which saves the CPU pool a call. */
enum { PART_ROUTED = 1, PART_SHARED = 2, PART_ROUTED_SHARED = 3 };
int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int parts,
                  float *out, int n);
/* Final norm of rows [row, row + n) and their logits [n, vocab]. top: [n] argmax of each (op_linear), or NULL. */
int block_head(struct exec *x, const struct weights *m, struct work *w, int row, int n, float *logits, int32_t *top);
/* Embeds ids [n] into out [n, hidden]: the residual stream before the first layer. Of models with config.input_ngrams
 * it is the tokens' part alone. */
int block_embed(struct exec *x, const struct weights *m, float *out, const int32_t *ids, int n);
/* Rows of a batch that are consecutive tokens of a text: ids [n]. In memory n_before tokens of the text precede them:
 * all, or at least config_lookback(). */
struct text_rows {
    const int32_t *ids;
    int n, n_before;
    int32_t image_token; /* stands for ids below 0, those of images, in n-grams before layers */
};
/* Writes the embeddings of the n-grams that end at the texts' rows, of all layers that have them, to out [all n,
 * config_ngram_floats()], on the CPU executor: what a device, which holds no tables of n-grams, finds in w->ngrams.
 * Uses w->ngram and w->ngram_rows. */
int block_gather_ngrams(struct exec *x, const struct weights *m, struct work *w, float *out,
                        const struct text_rows *texts, int n_texts);
/* Averages the rows of block_embed(), out [all n, hidden], with the embeddings of the n-grams that end at them
 * (config.input_ngrams), on the CPU executor. A row has the same bits in any batch. Uses w->ngram and w->ngram_rows. */
int block_embed_ngrams(struct exec *x, const struct weights *m, struct work *w, float *out,
                       const struct text_rows *texts, int n_texts);
