/* Unigram models: loading of pieces and scores, and the search for the pieces with the largest sum of scores (Viterbi).
 * As in the reference, sums are of doubles from the start of the word, the first of equal sums stays, and a run of
 * unknown characters is spelled in byte tokens or becomes one unknown token. Differs from it: text that spells a
 * control token does not become one. */
#include "tokenizer/unigram_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

static const uint32_t NO_PIECE = UINT32_MAX;
static const double UNKNOWN_PENALTY = 10; /* the score of an unknown character is this far below the lowest one */

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the vocabulary"); }

/* --- loading ---------------------------------------------------------------------------------- */

static bool is_piece(const struct json *j) {
    const struct json *text = json_at(j, 0), *score = json_at(j, 1);
    return j->type == JSON_ARRAY && (j->n == 2 || j->n == 3) && text->type == JSON_STRING &&
           (score->type == JSON_FLOAT || score->type == JSON_INT) && isfinite(json_num(score, NAN));
}
/* Trees of SentencePiece's models mark pieces that no text becomes, as bytes and unused ones. */
static bool is_text(const struct json *piece) { return piece->n == 2; }

int unigram_load(struct tokenizer *t, const struct json *vocab, size_t file_size, struct error *e) {
    struct unigram *u = &t->unigram;
    double lowest = INFINITY;
    if (!vocab || vocab->type != JSON_ARRAY || !vocab->n)
        return error_set(e, ERR_MODEL, "model.vocab of the Unigram model is missing or not a list");
    if (vocab->n > VOCAB_MAX_IDS)
        return error_set(e, ERR_MODEL, "model.vocab has %u pieces, more than %d", vocab->n, VOCAB_MAX_IDS);
    if (vocab_init(&t->vocab, vocab->n, file_size) || !(u->scores = mem_alloc(vocab->n * sizeof *u->scores)))
        return no_memory(e);
    u->n = vocab->n;
    for (uint32_t id = vocab->n; id-- > 0;) { /* of two equal pieces text becomes the last */
        const struct json *text = json_at(&vocab->items[id], 0);
        if (!is_piece(&vocab->items[id]))
            return error_set(e, ERR_MODEL, "model.vocab: entry %u is not a piece and its score", id);
        u->scores[id] = json_num(json_at(&vocab->items[id], 1), 0);
        if (is_text(&vocab->items[id])) lowest = fmin(lowest, u->scores[id]);
        int rc = vocab_add(&t->vocab, id, vocab_hash(text->string, text->n), text->string, text->n, false);
        if (rc == VOCAB_DUPLICATE_TOKEN) rc = vocab_set_bytes(&t->vocab, id, text->string, text->n, 0);
        if (rc) return no_memory(e);
    }
    u->unknown = lowest - UNKNOWN_PENALTY;
    return 0;
}

struct piece {
    const char *s;
    uint32_t n, id;
};
static int compare_pieces(const void *x, const void *y) {
    const struct piece *a = x, *b = y;
    const int order = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    if (order) return order;
    return a->n != b->n ? (a->n < b->n ? -1 : 1) : (a->id < b->id ? -1 : 1);
}
static uint32_t common_bytes(const struct piece *a, const struct piece *b) {
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->s[n] == b->s[n]) n++;
    return n;
}

/* Adds sorted pieces: path has the nodes of the last one, of which the next one shares the first. */
static int add_pieces(struct unigram *u, const struct piece *pieces, size_t n, uint32_t *path, struct error *e) {
    static const struct piece none = {.s = ""};
    size_t nodes = 1;
    uint32_t next = 1;
    for (size_t i = 0; i < n; i++) nodes += pieces[i].n - common_bytes(i ? &pieces[i - 1] : &none, &pieces[i]);
    if (nodes >= NO_PIECE) return error_set(e, ERR_MODEL, "model.vocab: the pieces are too long");
    if (merges_init(&u->trie, nodes)) return no_memory(e);
    path[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct piece *p = &pieces[i];
        const uint32_t shared = common_bytes(i ? p - 1 : &none, p), last = p->n - 1;
        for (uint32_t k = shared; k < last; k++)
            merges_add(&u->trie, path[k], (uint8_t)p->s[k], path[k + 1] = next++, NO_PIECE);
        if (shared < p->n) path[p->n] = next++;
        merges_add(&u->trie, path[last], (uint8_t)p->s[last], path[p->n], p->id);
    }
    return 0;
}

int unigram_index(struct tokenizer *t, const struct json *vocab, struct error *e) {
    struct piece *pieces = mem_alloc(vocab->n * sizeof *pieces);
    size_t n = 0, longest = 0;
    for (uint32_t id = 0; id < vocab->n && pieces; id++) {
        const struct json *text = json_at(&vocab->items[id], 0);
        if (!text->n || !is_text(&vocab->items[id]) || added_tokens_is_control(t, text->string, text->n)) continue;
        pieces[n++] = (struct piece){text->string, text->n, id};
        if (text->n > longest) longest = text->n;
    }
    uint32_t *path = mem_alloc((longest + 1) * sizeof *path);
    if (n && pieces) qsort(pieces, n, sizeof *pieces, compare_pieces);
    const int rc = pieces && path ? add_pieces(&t->unigram, pieces, n, path, e) : no_memory(e);
    mem_free(path);
    mem_free(pieces);
    return rc;
}
void unigram_free(struct unigram *u) {
    mem_free(u->scores);
    if (u->trie.slots) merges_free(&u->trie);
}

/* --- encoding --------------------------------------------------------------------------------- */

/* A position in the word: the best pieces up to it, and after the search the piece that begins there. */
struct path_end {
    union {
        double score;  /* sum of the pieces' scores */
        uint32_t next; /* end of the piece that begins here */
    };
    uint32_t begin; /* where the last piece begins */
    uint32_t id;    /* the last piece; after the search, the one that begins here */
};
static const uint32_t UNKNOWN = UINT32_MAX, UNREACHED = UINT32_MAX;

static void reach(struct path_end *v, size_t begin, size_t end, double score, uint32_t id) {
    if (v[end].begin != UNREACHED && score <= v[end].score) return;
    v[end] = (struct path_end){.score = score, .begin = (uint32_t)begin, .id = id};
}
static void find_best(const struct tokenizer *t, struct path_end *v, const char *s, size_t n) {
    const struct unigram *u = &t->unigram;
    v[0] = (struct path_end){.score = 0};
    for (size_t i = 1; i <= n; i++) v[i].begin = UNREACHED;
    for (size_t i = 0, size; i < n; i += size) {
        uint32_t node = 0, id = NO_PIECE;
        bool has_char = false;
        size = utf8_size((unsigned char)s[i]);
        if (size > n - i) size = n - i; /* cut off */
        for (size_t k = i; k < n && merges_find(&u->trie, node, (uint8_t)s[k], &node, &id); k++) {
            if (id == NO_PIECE) continue;
            reach(v, i, k + 1, u->scores[id] + v[i].score, t->bpe.unk == id ? UNKNOWN : id);
            has_char = has_char || k + 1 == i + size;
        }
        if (!has_char) reach(v, i, i + size, u->unknown + v[i].score, UNKNOWN);
    }
}

static int add_unknown(const struct tokenizer *t, const char *s, size_t n, struct ids *out, struct error *e) {
    bool has_bytes = t->bpe.byte_fallback && vocab_find(&t->vocab, s, n, false) != t->bpe.unk;
    for (size_t i = 0; i < n; i++) has_bytes = has_bytes && t->bpe.fallback[(unsigned char)s[i]] >= 0;
    if (mem_grow(&out->data, &out->cap, out->n + n, sizeof *out->data)) return no_memory(e);
    for (size_t i = 0; i < n && has_bytes; i++) out->data[out->n++] = t->bpe.fallback[(unsigned char)s[i]];
    if (!has_bytes && t->bpe.unk >= 0) out->data[out->n++] = (int32_t)t->bpe.unk;
    return 0;
}
int unigram_encode(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    struct path_end *v;
    if (!n) return 0;
    if (n >= UNREACHED / 8) return error_set(e, ERR_RUNTIME, "a word of %zu bytes is too long to tokenize", n);
    if (mem_grow(&x->symbols, &x->cap_symbols, n + 1, sizeof *v))
        return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", n);
    v = x->symbols;
    find_best(t, v, s, n);
    uint32_t id = v[n].id;
    for (uint32_t end = (uint32_t)n, begin; end; end = begin) { /* turn the links around */
        const uint32_t before = v[begin = v[end].begin].id;
        v[begin].next = end, v[begin].id = id, id = before;
    }
    int rc = 0;
    for (uint32_t at = 0, end; at < n && !rc; at = end) {
        end = v[at].next, id = v[at].id;
        while (id == UNKNOWN && end < n && v[end].id == UNKNOWN) end = v[end].next;
        if (id == UNKNOWN) rc = add_unknown(t, s + at, end - at, out, e);
        else if (mem_grow(&out->data, &out->cap, out->n + 1, sizeof *out->data)) rc = no_memory(e);
        else out->data[out->n++] = (int32_t)id;
    }
    return rc;
}
