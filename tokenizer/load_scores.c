/* Merges of a vocabulary whose tokens have scores, as in GGUF files of SentencePiece models. */
#include <stdlib.h>

#include "base/gguf_tokens.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the vocabulary"); }

struct scored_merge {
    double score;
    uint32_t a, b, id;
};
static int compare_score(const void *x, const void *y) {
    const struct scored_merge *p = x, *q = y;
    if (p->score != q->score) return p->score > q->score ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

int load_scores(struct tokenizer *t, const struct json *vocab, const struct json *scores, const struct json *types,
                struct error *e) {
    struct scored_merge *list = NULL;
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < vocab->n; i++) {
        const struct json *k = &vocab->items[2 * i];
        uint32_t id = (uint32_t)k[1].integer;
        int64_t type = json_int(json_at(types, id), GGUF_TOKEN_NORMAL);
        if (type != GGUF_TOKEN_NORMAL && type != GGUF_TOKEN_USER && type != GGUF_TOKEN_PIECE) continue;
        if (load_has_inner_mark(k->string, k->n)) t->bpe.split_at_marks = false;
        for (size_t at = k->n ? utf8_size((unsigned char)k->string[0]) : 0; at < k->n;
             at += utf8_size((unsigned char)k->string[at])) {
            int64_t a = vocab_find(&t->vocab, k->string, at, false),
                    b = a < 0 ? -1 : vocab_find(&t->vocab, k->string + at, k->n - at, false);
            if (b < 0) continue;
            if (mem_grow(&list, &cap, n + 1, sizeof *list)) {
                mem_free(list);
                return no_memory(e);
            }
            list[n++] = (struct scored_merge){json_num(json_at(scores, id), 0), (uint32_t)a, (uint32_t)b, id};
        }
    }
    int rc = merges_init(&t->bpe.merges, n) ? no_memory(e) : 0;
    if (n) qsort(list, n, sizeof *list, compare_score);
    uint32_t rank = 0; /* equal scores share a rank: the leftmost pair merges first */
    for (size_t i = 0; i < n && !rc; i++) {
        rank += i && list[i].score != list[i - 1].score;
        merges_add(&t->bpe.merges, list[i].a, list[i].b, rank, list[i].id);
    }
    mem_free(list);
    return rc;
}
