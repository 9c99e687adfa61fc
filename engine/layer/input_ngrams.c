/* Embeddings of hashed n-grams, averaged with the tokens' (LongCat-Flash-Lite). Their tables are many times larger than
 * the token's, so rows are read where the checkpoint is mapped, and the embedding is always computed by the CPU, before
 * a device gets the residual stream. Reference: vLLM, models/longcat_flash_ngram.
 */
#include "engine/layer/block.h"
#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"

/* Fills row[k * stride] with the table row of each hash k of the n-grams that end at ids[at]. */
static void hash_token(const struct config *c, const struct text_rows *t, int at, int32_t *row, int stride) {
    const struct input_ngrams *g = &c->input_ngrams;
    uint64_t token[NGRAM_MOST] = {(uint64_t)t->ids[at]}; /* the latest first; 0 once the n-gram has ended */
    for (int back = 1; back < g->size && back <= at + t->n_before && t->ids[at - back] != c->ngram_end; back++)
        token[back] = (uint64_t)t->ids[at - back];
    for (int k = 0; k < config_input_hashes(c); k++) {
        uint64_t sum = 0;
        for (int i = k / g->per + 2; i-- > 0;) sum = (sum * (uint64_t)g->radix + token[i]) % (uint64_t)g->rows[k];
        row[k * stride] = (int32_t)sum;
    }
}

/* Adds the projected embeddings of n rows, whose table rows are in w->ngram_rows, and scales the sums. */
static int add_rows(struct exec *x, const struct weights *m, struct work *w, float *out, int n) {
    const struct config *c = &m->config;
    const int hidden = c->hidden, dim = c->input_ngrams.dim, hashes = config_input_hashes(c);
    for (int k = 0; k < hashes; k++) {
        TRY(x->ops->embed(x, &(struct op_embed){.out = w->ngram,
                                                .ids = w->ngram_rows + k * BATCH_INVARIANT_ROWS,
                                                .table = m->ngram_table[k],
                                                .n = n}));
        TRY(block_linear(x, c, out, hidden, w->ngram, dim, m->ngram_projection[k], NULL, n, true));
    }
    return rows_scale(x, out, 1 / (float)(1 + hashes), n, hidden);
}

int block_embed_ngrams(struct exec *x, const struct weights *m, struct work *w, float *out,
                       const struct text_rows *texts, int n_texts) {
    int n = 0;
    for (int i = 0; i < n_texts && m->config.input_ngrams.size; i++)
        for (int at = 0; at < texts[i].n; at++) {
            hash_token(&m->config, &texts[i], at, w->ngram_rows + n++, BATCH_INVARIANT_ROWS);
            if (n < BATCH_INVARIANT_ROWS && (at + 1 < texts[i].n || i + 1 < n_texts)) continue;
            TRY(add_rows(x, m, w, out, n));
            out += (size_t)n * (size_t)m->config.hidden;
            n = 0;
        }
    return 0;
}
