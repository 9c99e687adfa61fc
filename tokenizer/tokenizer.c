#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/gguf_file.h"
#include "tokenizer/tokenizer_internal.h"

void text_free(struct text *t) {
    mem_free(t->data);
    mem_free(t->runs);
    *t = (struct text){0};
}
void ids_free(struct ids *ids) {
    mem_free(ids->data);
    *ids = (struct ids){0};
}

/* --- opening ---------------------------------------------------------------------------------- */

static int read_config(const char *dir, char **text, struct arena *a, struct json *config, struct error *e) {
    char path[4096];
    size_t n;
    *config = (struct json){0};
    int rc = file_join(path, sizeof path, dir, "tokenizer_config.json", e);
    if (rc || !file_exists(path)) return rc;
    if ((rc = file_read(path, 64 << 20, text, &n, e))) return rc;
    return json_parse(a, *text, n, JSON_PYTHON, path, config, e);
}

/* Loads the tokenizer of a checkpoint directory. */
static int load_files(struct tokenizer *t, const char *dir, struct error *e) {
    char path[4096], *text = NULL;
    struct arena arena = {0};
    struct json config;
    int rc = read_config(dir, &text, &arena, &config, e);
    if (!rc) rc = file_join(path, sizeof path, dir, "tokenizer.json", e);
    if (!rc && file_exists(path)) rc = load_json(t, path, &config, e);
    else if (!rc && !(rc = file_join(path, sizeof path, dir, "tiktoken.model", e))) {
        if (file_exists(path)) rc = load_tiktoken(t, path, &config, e);
        else if (!(rc = file_join(path, sizeof path, dir, "tekken.json", e)) && file_exists(path))
            rc = load_tiktoken_tekken(t, path, e);
        else if (!rc && !(rc = file_join(path, sizeof path, dir, "tokenizer.model", e)) && file_exists(path))
            rc = load_sentencepiece(t, path, &config, e);
        else if (!rc)
            rc =
                error_set(e, ERR_RUNTIME, "%s: no tokenizer.json, tiktoken.model, tekken.json or tokenizer.model", dir);
    }
    if (!rc) rc = load_bos(t, &config, e);
    if (!rc) load_eos(t, &config);
    arena_free(&arena);
    mem_free(text);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *dir, struct error *e) {
    char file[4096];
    struct tokenizer *t = mem_calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return error_set(e, ERR_MEMORY, "no memory for the tokenizer");
    t->bos = t->eos = -1;
    t->lock = mem_calloc(1, sizeof *t->lock);
    t->idle = mem_calloc(1, sizeof(struct encoder *));
    int rc = t->lock && t->idle ? 0 : error_set(e, ERR_MEMORY, "no memory for the tokenizer");
    if (t->lock) pthread_mutex_init(t->lock, NULL);
    if (!rc) rc = gguf_find(dir, file, sizeof file, e);
    if (rc >= 0) rc = rc ? load_gguf(t, file, e) : load_files(t, dir, e);
    if (!rc) rc = added_tokens_index(t, e);
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
    unigram_free(&t->unigram);
    mem_free(t->bpe.prefix);
    mem_free(t->bpe.suffix);
    normalizer_free(&t->normalizer);
    pretok_free(&t->pretok);
    for (size_t i = 0; i < t->n_added; i++) mem_free(t->added[i].content);
    mem_free(t->added);
    added_trie_free(&t->added_trie);
    added_trie_free(&t->raw_trie);
    added_trie_free(&t->normalized_trie);
    decoder_free_steps(&t->decoding);
    mem_free(t);
}

int tokenizer_n_ids(const struct tokenizer *t) { return (int)t->vocab.n_ids; }

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n, bool *special) {
    if (id < 0 || (uint32_t)id >= t->vocab.n_ids || !(t->vocab.tokens[id].flags & TOKEN_DEFINED)) return NULL;
    const struct vocab_token *p = &t->vocab.tokens[id];
    if (n) *n = p->n;
    if (special) *special = p->flags & TOKEN_SPECIAL;
    return t->vocab.pool + p->pool_offset;
}
int32_t tokenizer_added_id(const struct tokenizer *t, const char *token) {
    return added_tokens_id(t, token, strlen(token));
}
bool tokenizer_strips_start(const struct tokenizer *t) { return t->decoding.unmark_first || t->decoding.n_strip; }
bool tokenizer_joins_with_space(const struct tokenizer *t) { return t->decoding.join_with_space; }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }

/* ---- encoder pool ----
 * Word caches pay off only if they outlive a call, and a call must not wait for another thread's encoder. Finished
 * encoders go to a list; a thread that finds it empty creates one. */

/* --- encoding --------------------------------------------------------------------------------- */

static int add_id(struct ids *out, int32_t id, struct error *e) {
    if (mem_grow(&out->data, &out->cap, out->n + 1, sizeof *out->data))
        return error_set(e, ERR_MEMORY, "no memory for the ids");
    out->data[out->n++] = id;
    return 0;
}

/* Encodes the text between two raw added tokens: normalizes it, then finds the added tokens that match normalized
 * text. */
static int encode_normalized(struct encoder *x, struct norm_text in, uint8_t origin, bool first, struct ids *out,
                             struct error *e) {
    const struct tokenizer *t = x->t;
    struct norm_text f = in;
    int rc = normalizer_run(x, &t->normalizer, in, &f, e);
    first = first && !f.begin_stripped;
    if (!rc) rc = added_tokens_find(t, &t->normalized_trie, f, origin, &x->added_matches[1], e);
    size_t at = 0;
    for (size_t i = 0; i < x->added_matches[1].n && !rc; i++) {
        const struct added_match *m = &x->added_matches[1].v[i];
        if (m->begin > at) rc = pretok_encode(x, f.s + at, m->begin - at, first && !at, out, e);
        if (!rc) rc = add_id(out, m->id, e);
        at = m->end;
    }
    return rc || at >= f.n ? rc : pretok_encode(x, f.s + at, f.n - at, first && !at, out, e);
}

static int encode_with_added(struct encoder *x, struct norm_text f, uint8_t origin, struct ids *out, struct error *e) {
    int rc = added_tokens_find(x->t, &x->t->raw_trie, f, origin, &x->added_matches[0], e);
    size_t at = 0;
    for (size_t i = 0; i <= x->added_matches[0].n && !rc; i++) {
        const struct added_match *m = i < x->added_matches[0].n ? &x->added_matches[0].v[i] : NULL;
        size_t to = m ? m->begin : f.n;
        struct norm_text part = {f.s + at, to > at ? to - at : 0, f.origin ? f.origin + at : NULL, false};
        if (part.n) rc = encode_normalized(x, part, origin, !at, out, e);
        if (m && !rc) rc = add_id(out, m->id, e), at = m->end;
    }
    return rc;
}

/* Splits a text at the vendor's limits and encodes each part as a text of its own. White space is Python's. */
static int encode_limited(struct encoder *x, struct norm_text f, uint8_t origin, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    const char *from = f.s, *end = f.s + f.n;
    size_t chars = 0, run = 0;
    bool space = false;
    int rc = 0;
    if (!t->max_chars || f.n <= t->max_run) return encode_with_added(x, f, origin, out, e);
    for (const char *at = f.s, *next; at <= end && !rc; at = next, chars++) {
        bool last = at == end, full = chars && chars % t->max_chars == 0;
        bool now = false;
        next = last ? at + 1 : at;
        if (!last) now = unicode_is_python_space(utf8_next(&next));
        run = now == space && !full ? run + 1 : 1;
        space = now;
        if (!last && !full && run <= t->max_run) continue;
        struct norm_text piece = {from, (size_t)(at - from), f.origin ? f.origin + (from - f.s) : NULL, false};
        rc = encode_with_added(x, piece, origin, out, e);
        from = at;
        run = 1;
    }
    return rc;
}

/* Replaces invalid UTF-8 with U+FFFD, as Python does for the reference. */
static int replace_invalid_utf8(struct encoder *x, struct norm_text *f, struct error *e) {
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

static int encode_and_release(struct encoder *x, struct norm_text f, uint8_t origin, struct ids *out, struct error *e) {
    size_t before = out->n;
    int rc = replace_invalid_utf8(x, &f, e);
    if (!rc) rc = encode_limited(x, f, origin, out, e);
    if (rc) out->n = before; /* all or nothing */
    encoder_release(x);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *data, size_t n, enum text_origin origin, struct ids *out,
                     struct error *e) {
    struct encoder *x;
    int rc = encoder_acquire(t, &x, e);
    return rc ? rc : encode_and_release(x, (struct norm_text){n ? data : "", n, NULL, false}, origin, out, e);
}

int tokenizer_encode_text(const struct tokenizer *t, const struct text *text, struct ids *out, struct error *e) {
    struct norm_text f = {text->n ? text->data : "", text->n, NULL, false};
    bool mixed = false;
    size_t sum = 0;
    for (size_t i = 0; i < text->n_runs; i++) {
        if (text->runs[i].n > text->n - sum) return error_set(e, ERR_RUNTIME, "the runs of a text exceed its length");
        sum += text->runs[i].n;
        mixed |= text->runs[i].origin != text->runs[0].origin;
    }
    if (sum != text->n) return error_set(e, ERR_RUNTIME, "the runs of a text cover %zu of %zu bytes", sum, text->n);
    struct encoder *x;
    int rc = encoder_acquire(t, &x, e);
    if (rc) return rc;
    if (mixed) {
        x->origin.len = 0;
        if (mem_grow(&x->origin.data, &x->origin.cap, text->n + 1, 1)) {
            encoder_release(x);
            return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", text->n);
        }
        for (size_t i = 0, at = 0; i < text->n_runs; at += text->runs[i++].n)
            memset(x->origin.data + at, text->runs[i].origin, text->runs[i].n);
        f.origin = (const uint8_t *)x->origin.data;
    }
    return encode_and_release(x, f, text->n_runs ? text->runs[0].origin : TEXT_VALUE, out, e);
}
