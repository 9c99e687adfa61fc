/* Embeddings of the hashed n-grams before layers, gathered on the CPU for executors without the tables: of gigabytes a
 * token reads some rows, so devices get these with the token. gated_streams.c adds them to the streams. */
#include "engine/layer/block.h"
#include "engine/layer/gated_streams.h"
#include "engine/layer/rows.h"

static int32_t token_at(const struct text_rows *t, int at) { return t->ids[at] < 0 ? t->image_token : t->ids[at]; }

/* Gathers the embeddings of one layer for n <= BATCH_INVARIANT_ROWS rows of a text from row `at` on. */
static int gather_rows(struct exec *x, const struct weights *m, struct work *w, float *out, int layer,
                       const struct text_rows *t, int at, int n) {
    const struct config *c = &m->config;
    const struct ngram_config *g = config_ngram(c, layer);
    const struct layer *y = &m->layers[layer];
    struct op_ngram o = gated_streams_ngram_op(c, y, layer);
    int32_t tokens[BATCH_INVARIANT_ROWS], before[NGRAM_MOST], after[NGRAM_MOST];
    for (int i = 0; i < n; i++) tokens[i] = token_at(t, at + i);
    for (int i = 0; i < g->size - 1; i++) {
        const int from = at - (g->size - 1) + i;
        before[i] = from < -t->n_before ? c->ngram_end : o.ids ? o.ids[token_at(t, from)] : token_at(t, from);
    }
    o.rows = w->ngram_rows, o.tokens = tokens, o.before = before, o.after = after, o.n = n;
    TRY(x->ops->ngram(x, &o));
    TRY(x->ops->embed(
        x, &(struct op_embed){
               .out = w->ngram, .ids = w->ngram_rows, .table = y->ngram_table, .n = n * config_ngram_hashes(g)}));
    return rows_copy(x, out + config_ngram_at(c, layer), config_ngram_floats(c), w->ngram, g->dim, n, g->dim);
}

int block_gather_ngrams(struct exec *x, const struct weights *m, struct work *w, float *out,
                        const struct text_rows *texts, int n_texts) {
    const struct config *c = &m->config;
    const int most = w->rows < BATCH_INVARIANT_ROWS ? w->rows : BATCH_INVARIANT_ROWS;
    for (int i = 0; i < n_texts && config_ngram_floats(c); i++)
        for (int at = 0, n; at < texts[i].n; at += n) {
            n = texts[i].n - at < most ? texts[i].n - at : most;
            for (int l = 0; l < c->n_layers; l++)
                if (config_ngram(c, l)) TRY(gather_rows(x, m, w, out, l, &texts[i], at, n));
            out += (size_t)n * (size_t)config_ngram_floats(c);
        }
    return 0;
}
