#include "tokenizer/tokenizer.h"

#include <string.h>

#include "engine/base/gguf.h"
#include "tokenizer/internal.h"
#include "tokenizer/jinja_str.h"

void text_free(struct text *t) {
    mem_free(t->data);
    mem_free(t->spans);
    *t = (struct text){0};
}
void ids_free(struct ids *ids) {
    mem_free(ids->data);
    *ids = (struct ids){0};
}

/* ---- opening ---- */

static int read_config(const char *dir, char **text, struct arena *a, struct json *config, struct error *e) {
    char path[4096];
    size_t n;
    *config = (struct json){0};
    int rc = file_join(path, sizeof path, dir, "tokenizer_config.json", e);
    if (rc || !file_exists(path)) return rc;
    if ((rc = file_read(path, 64 << 20, text, &n, e))) return rc;
    return json_parse(a, *text, n, 0, path, config, e);
}

/* Loads the tokenizer of a checkpoint directory. */
static int load_files(struct tokenizer *t, const char *dir, struct error *e) {
    char path[4096], *text = NULL;
    struct arena arena = {0};
    struct json config;
    int rc = read_config(dir, &text, &arena, &config, e);
    if (!rc) rc = file_join(path, sizeof path, dir, "tokenizer.json", e);
    if (!rc && file_exists(path)) rc = load_json(t, path, e);
    else if (!rc && !(rc = file_join(path, sizeof path, dir, "tiktoken.model", e))) {
        if (file_exists(path)) rc = load_tiktoken(t, path, &config, e);
        else rc = error_set(e, ERR_RUNTIME, "%s: no tokenizer.json or tiktoken.model", dir);
    }
    if (!rc) rc = load_bos(t, &config, e);
    arena_free(&arena);
    mem_free(text);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *dir, struct error *e) {
    char file[4096];
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return error_set(e, ERR_MEMORY, "no memory for the tokenizer");
    t->bos = -1;
    t->lock = mem_calloc(1, sizeof *t->lock);
    t->idle = mem_calloc(1, sizeof(struct encoder *));
    int rc = t->lock && t->idle ? 0 : error_set(e, ERR_MEMORY, "no memory for the tokenizer");
    if (t->lock) pthread_mutex_init(t->lock, NULL);
    if (!rc) rc = gguf_find(dir, file, sizeof file, e);
    if (rc >= 0) rc = rc ? load_gguf(t, file, e) : load_files(t, dir, e);
    if (!rc) rc = added_index(t, e);
    if (rc) tokenizer_close(&t);
    *out = t;
    return rc;
}

void tokenizer_close(struct tokenizer **at) {
    struct tokenizer *t = *at;
    *at = NULL;
    if (!t) return;
    for (struct encoder *x = t->idle ? *t->idle : NULL, *next; x; x = next) {
        next = x->next;
        encoder_free(x);
    }
    if (t->lock) pthread_mutex_destroy(t->lock);
    mem_free(t->lock);
    mem_free(t->idle);
    vocab_free(&t->vocab);
    merges_free(&t->bpe.merges);
    mem_free(t->bpe.prefix);
    mem_free(t->bpe.suffix);
    normalizer_free(&t->normalizer);
    pretok_free(&t->pretok);
    for (size_t i = 0; i < t->n_added; i++) mem_free(t->added[i].content);
    mem_free(t->added);
    trie_free(&t->names);
    trie_free(&t->raw);
    trie_free(&t->normal);
    decoding_free(&t->decoding);
    mem_free(t);
}

int tokenizer_vocab(const struct tokenizer *t) { return (int)t->vocab.n_ids; }

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n, bool *special) {
    if (id < 0 || (uint32_t)id >= t->vocab.n_ids || !(t->vocab.pieces[id].flags & PIECE_THERE)) return NULL;
    const struct piece *p = &t->vocab.pieces[id];
    if (n) *n = p->n;
    if (special) *special = p->flags & PIECE_SPECIAL;
    return t->vocab.pool + p->at;
}
int32_t tokenizer_id(const struct tokenizer *t, const char *piece) { return added_id(t, piece, strlen(piece)); }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }

/* ---- encoder pool ----
 * Word caches pay off only if they outlive a call, and a call must not wait for another thread's encoder. Finished encoders go to a list; a thread that finds
 * it empty creates one. */

int encoder_take(const struct tokenizer *t, struct encoder **out, struct error *e) {
    pthread_mutex_lock(t->lock);
    struct encoder *x = *t->idle;
    if (x) *t->idle = x->next;
    pthread_mutex_unlock(t->lock);
    if (!x) {
        if (!(x = mem_calloc(1, sizeof *x))) return error_set(e, ERR_MEMORY, "no memory to tokenize");
        int rc = regex_run_open(&x->run, e);
        if (rc) {
            mem_free(x);
            return rc;
        }
        x->t = t;
    }
    *out = x;
    return 0;
}

static void trim(struct buf *b) { /* do not keep the memory of one huge text */
    if (b->cap > 4 << 20) buf_free(b);
    b->failed = false;
}

void encoder_give(struct encoder *x) {
    const struct tokenizer *t = x->t;
    for (int i = 0; i < 2; i++) {
        trim(&x->norm[i].s);
        trim(&x->norm[i].origin);
    }
    trim(&x->text), trim(&x->map), trim(&x->clean), trim(&x->origin), trim(&x->rewritten);
    if (x->cap_symbols > 1 << 18 || x->cap_heap > 1 << 18) {
        mem_free(x->symbols);
        mem_free(x->heap);
        x->symbols = x->heap = NULL;
        x->cap_symbols = x->cap_heap = 0;
    }
    pthread_mutex_lock(t->lock);
    x->next = *t->idle;
    *t->idle = x;
    pthread_mutex_unlock(t->lock);
}

void encoder_free(struct encoder *x) {
    regex_run_close(&x->run);
    for (int i = 0; i < 2; i++) {
        buf_free(&x->norm[i].s);
        buf_free(&x->norm[i].origin);
        mem_free(x->spans[i].v);
        mem_free(x->found[i].v);
    }
    buf_free(&x->text);
    buf_free(&x->map);
    buf_free(&x->clean);
    buf_free(&x->origin);
    buf_free(&x->rewritten);
    mem_free(x->cache);
    mem_free(x->symbols);
    mem_free(x->heap);
    mem_free(x);
}

/* ---- encoding ---- */

static int add_id(struct ids *out, int32_t id, struct error *e) {
    if (mem_grow(&out->data, &out->cap, out->n + 1, sizeof *out->data)) return error_set(e, ERR_MEMORY, "no memory for the ids");
    out->data[out->n++] = id;
    return 0;
}

/* Encodes the text between two raw added tokens: normalizes it, then finds the added tokens that match normalized text. */
static int encode_stretch(struct encoder *x, struct flow in, uint8_t origin, bool first, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    struct flow f = in;
    int rc = normalize(x, &t->normalizer, in, &f, e);
    first = first && !f.cut;
    if (!rc) rc = added_find(t, &t->normal, f, origin, &x->found[1], e);
    size_t at = 0;
    for (size_t i = 0; i < x->found[1].n && !rc; i++) {
        const struct match *m = &x->found[1].v[i];
        if (m->begin > at) rc = pretok_encode(x, f.s + at, m->begin - at, first && !at, out, e);
        if (!rc) rc = add_id(out, m->id, e);
        at = m->end;
    }
    return rc || at >= f.n ? rc : pretok_encode(x, f.s + at, f.n - at, first && !at, out, e);
}

static int encode_flow(struct encoder *x, struct flow f, uint8_t origin, struct ids *out, struct error *e) {
    int rc = added_find(x->t, &x->t->raw, f, origin, &x->found[0], e);
    size_t at = 0;
    for (size_t i = 0; i <= x->found[0].n && !rc; i++) {
        const struct match *m = i < x->found[0].n ? &x->found[0].v[i] : NULL;
        size_t to = m ? m->begin : f.n;
        struct flow part = {f.s + at, to > at ? to - at : 0, f.origin ? f.origin + at : NULL, false};
        if (part.n) rc = encode_stretch(x, part, origin, !at, out, e);
        if (m && !rc) rc = add_id(out, m->id, e), at = m->end;
    }
    return rc;
}

/* Splits a text at the vendor's limits and encodes each part as a text of its own. White space is Python's. */
static int encode_cut(struct encoder *x, struct flow f, uint8_t origin, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    const char *from = f.s, *end = f.s + f.n;
    size_t chars = 0, run = 0;
    bool space = false;
    int rc = 0;
    if (!t->max_chars || f.n <= t->max_run) return encode_flow(x, f, origin, out, e);
    for (const char *at = f.s, *next; at <= end && !rc; at = next, chars++) {
        bool last = at == end, full = chars && chars % t->max_chars == 0;
        size_t k = 1;
        bool now = !last && junicode_space(junicode_get(at, (size_t)(end - at), &k));
        run = now == space && !full ? run + 1 : 1;
        space = now;
        next = at + k;
        if (!last && !full && run <= t->max_run) continue;
        struct flow piece = {from, (size_t)(at - from), f.origin ? f.origin + (from - f.s) : NULL, false};
        rc = encode_flow(x, piece, origin, out, e);
        from = at;
        run = 1;
    }
    return rc;
}

/* Replaces invalid UTF-8 with U+FFFD, as Python does for the reference. */
static int clean(struct encoder *x, struct flow *f, struct error *e) {
    if (utf8_valid(f->s, f->n) == f->n) return 0;
    x->clean.len = 0;
    struct buf spare = {0};
    for (size_t i = 0; i < f->n;) {
        size_t k = utf8_valid(f->s + i, f->n - i), b = i + k < f->n ? utf8_broken(f->s + i + k, f->n - i - k) : 0;
        buf_add(&x->clean, f->s + i, k);
        if (f->origin) buf_add(&spare, f->origin + i, k);
        if (b) {
            uint8_t from[3];
            for (size_t j = 0; f->origin && j < 3; j++) from[j] = f->origin[i + k];
            buf_add(&x->clean, "\xEF\xBF\xBD", 3);
            if (f->origin) buf_add(&spare, from, 3);
        }
        i += k + b;
    }
    if (x->clean.failed || spare.failed) {
        buf_free(&spare);
        return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", f->n);
    }
    if (f->origin) {
        buf_free(&x->origin);
        x->origin = spare;
        f->origin = (const uint8_t *)x->origin.data;
    }
    f->s = x->clean.data;
    f->n = x->clean.len;
    return 0;
}

static int encode(struct encoder *x, struct flow f, uint8_t origin, struct ids *out, struct error *e) {
    size_t before = out->n;
    int rc = clean(x, &f, e);
    if (!rc) rc = encode_cut(x, f, origin, out, e);
    if (rc) out->n = before; /* all or nothing */
    encoder_give(x);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *data, size_t n, enum text_origin origin, struct ids *out, struct error *e) {
    struct encoder *x;
    int rc = encoder_take(t, &x, e);
    return rc ? rc : encode(x, (struct flow){n ? data : "", n, NULL, false}, origin, out, e);
}

int tokenizer_encode_text(const struct tokenizer *t, const struct text *text, struct ids *out, struct error *e) {
    struct flow f = {text->n ? text->data : "", text->n, NULL, false};
    bool mixed = false;
    size_t sum = 0;
    for (size_t i = 0; i < text->n_spans; i++) {
        if (text->spans[i].n > text->n - sum) return error_set(e, ERR_RUNTIME, "the runs of a text exceed its length");
        sum += text->spans[i].n;
        mixed |= text->spans[i].origin != text->spans[0].origin;
    }
    if (sum != text->n) return error_set(e, ERR_RUNTIME, "the runs of a text cover %zu of %zu bytes", sum, text->n);
    struct encoder *x;
    int rc = encoder_take(t, &x, e);
    if (rc) return rc;
    if (mixed) {
        x->origin.len = 0;
        if (mem_grow(&x->origin.data, &x->origin.cap, text->n + 1, 1)) {
            encoder_give(x);
            return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", text->n);
        }
        for (size_t i = 0, at = 0; i < text->n_spans; at += text->spans[i++].n) memset(x->origin.data + at, text->spans[i].origin, text->spans[i].n);
        f.origin = (const uint8_t *)x->origin.data;
    }
    return encode(x, f, text->n_spans ? text->spans[0].origin : TEXT_VALUE, out, e);
}
