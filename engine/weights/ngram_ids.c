#include "engine/weights/ngram_ids.h"

#include "base/mem.h"
#include "tokenizer/tokenizer.h"

int ngram_ids_load(struct weights *w, const char *dir, struct error *e) {
    struct config *c = &w->config;
    struct tokenizer *t = NULL;
    int n_numbers = 0, rc = tokenizer_open(&t, dir, e);
    const int n = rc ? 0 : tokenizer_n_ids(t) < c->vocab ? tokenizer_n_ids(t) : c->vocab;
    if (!rc && !(w->ngram_ids = arena_calloc(&w->arena, (size_t)c->vocab, sizeof *w->ngram_ids)))
        rc = error_set(e, ERR_MEMORY, "%s: no memory for the numbers of its tokens", dir);
    if (!rc) rc = tokenizer_number_alike(t, w->ngram_ids, n, &n_numbers, e);
    if (!rc && n_numbers != c->ngram_numbers)
        rc = error_set(e, ERR_MODEL,
                       "%s: its tokenizer has %d different texts, config.json says %d "
                       "('engram_compressed_vocab_size'); it must be the checkpoint's own",
                       dir, n_numbers, c->ngram_numbers);
    if (!rc) c->ngram_end = w->ngram_ids[c->ngram_end];
    tokenizer_close(&t);
    return rc;
}
