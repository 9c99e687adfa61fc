#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Turns token ids to bytes. The decoder's steps run once on every token when the vocabulary is loaded. Only steps that
 * see the text as a whole remain for the stream; all of them act at its beginning. */

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the decoder"); }

/* --- streaming -------------------------------------------------------------------------------- */

/* Returns the number of bytes at the end of s that start an incomplete character. */
static size_t incomplete_tail(const char *s, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)s[n - k];
        if ((c & 0xC0) == 0x80) continue;
        return c >= 0xC2 && c <= 0xF4 && utf8_size(c) > k && utf8_broken(s + n - k, k) == k ? k : 0;
    }
    return 0;
}

int decoder_add(struct decoder *d, int32_t id, struct buf *out) {
    const struct tokenizer *t = d->t;
    if (id < 0 || (uint32_t)id >= t->vocab.n_ids) return ERR_RUNTIME;
    const struct vocab_token *p = &t->vocab.tokens[id];
    if (!(p->flags & TOKEN_DEFINED) || (d->skip_special && p->flags & TOKEN_SPECIAL)) return 0;
    const char *s = t->vocab.pool + p->pool_offset;
    size_t n = p->n, from = out->len;
    uint8_t stripped = d->n_stripped;
    bool start_is_done = true;
    if (!d->has_output && t->decoding.unmark_first && p->flags & TOKEN_HAS_FIRST_FORM) {
        uint32_t k;
        memcpy(&k, s + n, sizeof k);
        s += n + sizeof k;
        n = k;
    }
    if (!d->has_output && t->decoding.n_strip) {
        size_t k = strlen(t->decoding.strip_start);
        while (stripped < t->decoding.n_strip && n >= k && !memcmp(s, t->decoding.strip_start, k))
            s += k, n -= k, stripped++;
        start_is_done = n > 0 || stripped == t->decoding.n_strip;
    }
    if ((d->n_held && buf_add(out, d->held, d->n_held)) ||
        (d->has_output && t->decoding.join_with_space && buf_char(out, ' ')) || buf_add(out, s, n)) {
        out->len = from;
        return ERR_MEMORY;
    }
    d->has_output |= start_is_done;
    d->n_stripped = stripped;
    d->n_held = (uint8_t)incomplete_tail(out->data + from, out->len - from);
    out->len -= d->n_held;
    memcpy(d->held, out->data + out->len, d->n_held);
    out->data[out->len] = 0;
    return 0;
}

int decoder_flush(struct decoder *d, struct buf *out) {
    if (d->n_held && buf_add(out, d->held, d->n_held)) return ERR_MEMORY;
    d->n_held = 0;
    return 0;
}

/* --- loading ---------------------------------------------------------------------------------- */

static int add_step(struct token_decoding *d, enum dec_kind kind, struct dec_step **step, struct error *e) {
    if (d->is_fused)
        return error_set(e, ERR_MODEL,
                         "decoder: a step after Fuse or ByteLevel needs the whole text, which is not supported");
    if (d->n == MOST_STEPS) return error_set(e, ERR_MODEL, "decoder: more than %d steps", MOST_STEPS);
    if (mem_grow(&d->steps, &d->cap, d->n + 1, sizeof *d->steps)) return no_memory(e);
    *step = &d->steps[d->n++];
    **step = (struct dec_step){.kind = kind};
    return 0;
}

static int load_strip(struct token_decoding *d, const struct json *j, struct error *e) {
    const struct json *content = json_get(j, "content");
    int64_t start = json_int(json_get(j, "start"), -1), stop = json_int(json_get(j, "stop"), -1);
    if (!content || content->type != JSON_STRING || !content->n ||
        utf8_size((unsigned char)content->string[0]) != content->n || start < 0 || start > 100 || stop < 0 ||
        stop > 100)
        return error_set(e, ERR_MODEL, "decoder: Strip has no content, start or stop");
    if (d->is_fused) {
        if (stop || d->strip_start)
            return error_set(e, ERR_MODEL, "decoder: Strip at the end of the text, or twice, is not supported");
        d->n_strip = (size_t)start;
        return (d->strip_start = json_strdup(content)) ? 0 : no_memory(e);
    }
    struct dec_step *s;
    int rc = add_step(d, DEC_STRIP, &s, e);
    if (rc) return rc;
    s->start = (size_t)start;
    s->stop = (size_t)stop;
    return (s->from = json_strdup(content)) ? 0 : no_memory(e);
}

static int load_steps(struct token_decoding *d, const struct json *j, int depth, struct error *e) {
    const struct json *type = json_get(j, "type");
    struct dec_step *s;
    int rc;
    if (json_is(type, "Sequence")) {
        const struct json *list = json_get(j, "decoders");
        if (!list || list->type != JSON_ARRAY || depth > 8)
            return error_set(e, ERR_MODEL, "decoder: a Sequence has no list");
        for (uint32_t i = 0; i < list->n; i++) {
            if ((rc = load_steps(d, &list->items[i], depth + 1, e))) return rc;
        }
        return 0;
    }
    if (json_is(type, "Fuse")) return d->is_fused = true, 0;
    if (json_is(type, "Strip")) return load_strip(d, j, e);
    if (json_is(type, "ByteLevel")) {
        rc = add_step(d, DEC_BYTES, &s, e);
        d->is_fused = true;
        return rc;
    }
    if (json_is(type, "ByteFallback")) return add_step(d, DEC_FALLBACK, &s, e);
    if (json_is(type, "Replace")) {
        const struct json *from = json_path(j, "pattern.String"), *to = json_get(j, "content");
        if (!from || from->type != JSON_STRING || !from->n || !to || to->type != JSON_STRING)
            return error_set(e, ERR_MODEL, "decoder: Replace has no string to replace");
        if ((rc = add_step(d, DEC_REPLACE, &s, e))) return rc;
        s->from = json_strdup(from);
        s->to = json_strdup(to);
        return s->from && s->to ? 0 : no_memory(e);
    }
    if (json_is(type, "Metaspace")) {
        const struct json *mark = json_get(j, "replacement"), *scheme = json_get(j, "prepend_scheme");
        if (!mark || mark->type != JSON_STRING || !mark->n || utf8_size((unsigned char)mark->string[0]) != mark->n)
            return error_set(e, ERR_MODEL, "decoder: Metaspace has no replacement");
        if ((rc = add_step(d, DEC_METASPACE, &s, e))) return rc;
        d->unmark_first = !json_is(scheme, "never") && json_bool(json_get(j, "add_prefix_space"), true);
        return (s->from = json_strdup(mark)) ? 0 : no_memory(e);
    }
    return load_fail_unknown("decoder", type, e);
}

int decoder_load(struct token_decoding *d, const struct json *j, struct error *e) {
    if (j && j->type != JSON_NULL) return load_steps(d, j, 0, e);
    d->join_with_space = true;
    return 0;
}

void decoder_free_steps(struct token_decoding *d) {
    for (size_t i = 0; i < d->n; i++) {
        mem_free(d->steps[i].from);
        mem_free(d->steps[i].to);
    }
    mem_free(d->steps);
    mem_free(d->strip_start);
    *d = (struct token_decoding){0};
}

/* --- bytes of every token --------------------------------------------------------------------- */

/* ERR_MODEL: the text would become longer than a hostile file may make it, by doubling it step after step. */
static int replace_text(const struct buf *in, struct buf *out, const char *from, const char *to) {
    enum { MOST_BYTES = 64 << 10 };
    size_t n = strlen(from), at = 0;
    out->len = 0;
    int rc = buf_add(out, "", 0);
    for (const char *hit; !rc && (hit = memmem(in->data + at, in->len - at, from, n));) {
        rc = buf_add(out, in->data + at, (size_t)(hit - in->data) - at);
        if (!rc) rc = buf_str(out, to);
        if (!rc && out->len > MOST_BYTES) rc = ERR_MODEL;
        at = (size_t)(hit - in->data) + n;
    }
    return rc ? rc : buf_add(out, in->data + at, in->len - at);
}

static int strip_text(const struct dec_step *s, const struct buf *in, struct buf *out) {
    size_t n = strlen(s->from), begin = 0, end = in->len;
    for (size_t i = 0; i < s->start && end - begin >= n && !memcmp(in->data + begin, s->from, n); i++) begin += n;
    for (size_t i = 0; i < s->stop && end - begin >= n && !memcmp(in->data + end - n, s->from, n); i++) end -= n;
    out->len = 0;
    return buf_add(out, in->data + begin, end - begin);
}

static int byte_token_value(const struct buf *b) { /* value of "<0x0A>", or -1 */
    int v = 0;
    if (b->len != 6 || memcmp(b->data, "<0x", 3) || b->data[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        int c = b->data[i], d = c >= '0' && c <= '9'                 ? c - '0'
                                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                                     : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Runs the steps on one token in a; b is scratch. first: it is the first of the text. added: it is literal text, not
 * byte-level characters. */
static int run_steps(const struct token_decoding *d, struct buf *a, struct buf *b, bool first, bool added) {
    for (size_t i = 0; i < d->n; i++) {
        const struct dec_step *s = &d->steps[i];
        int rc = 0, v;
        bool result_in_b = true;
        if (added && s->kind == DEC_BYTES) continue;
        switch (s->kind) {
        case DEC_BYTES: {
            b->len = 0;
            if ((rc = buf_add(b, a->data, a->len))) return rc;
            long n = vocab_bytes_of_chars(a->data, a->len, b->data);
            if (n >= 0) b->len = (size_t)n;
            break;
        }
        case DEC_FALLBACK:
            if ((result_in_b = (v = byte_token_value(a)) >= 0)) b->len = 0, rc = buf_char(b, (char)v);
            break;
        case DEC_STRIP: rc = strip_text(s, a, b); break;
        case DEC_REPLACE: rc = replace_text(a, b, s->from, s->to); break;
        case DEC_METASPACE: rc = replace_text(a, b, s->from, first ? "" : " "); break;
        }
        if (rc) return rc;
        if (result_in_b) {
            struct buf t = *a;
            *a = *b, *b = t;
        }
    }
    return 0;
}

int decoder_set_bytes(struct tokenizer *t, struct error *e) {
    const struct token_decoding *d = &t->decoding;
    struct vocab *v = &t->vocab;
    struct buf a = {0}, b = {0};
    int rc = 0;
    if ((t->bpe.is_byte_level && d->n == 1 && d->steps[0].kind == DEC_BYTES) || (!t->bpe.is_byte_level && !d->n))
        return 0; /* the pool already holds the final bytes */
    for (uint32_t id = 0; id < v->n_ids && !rc; id++) {
        struct vocab_token p = v->tokens[id];
        if (!(p.flags & TOKEN_DEFINED)) continue;
        bool added = p.flags & TOKEN_ADDED;
        a.len = 0;
        rc = buf_add(&a, "", 0);
        for (uint32_t i = 0; i < p.n && !rc; i++) {
            char c[4];
            if (t->bpe.is_byte_level && !(p.flags & (TOKEN_LITERAL | TOKEN_ADDED)))
                rc = buf_add(&a, c, vocab_char_of_byte((unsigned char)v->pool[p.pool_offset + i], c));
            else rc = buf_char(&a, v->pool[p.pool_offset + i]);
        }
        size_t n = a.len;
        if (!rc) rc = run_steps(d, &a, &b, false, added);
        bool is_unchanged = !rc && a.len == p.n && !memcmp(a.data, v->pool + p.pool_offset, p.n) && n == a.len;
        if (rc || (is_unchanged && !d->unmark_first)) continue;
        rc = vocab_set_bytes(v, id, a.data, a.len, p.flags);
        if (rc || !d->unmark_first) continue;
        /* the form without marks follows in the pool, preceded by its length */
        a.len = 0;
        rc = buf_add(&a, v->pool + p.pool_offset, p.n);
        if (!rc) rc = run_steps(d, &a, &b, true, added);
        uint32_t k = (uint32_t)a.len;
        struct vocab_token with_first_form = v->tokens[id];
        if (!rc) rc = vocab_set_bytes(v, id, (const char *)&k, sizeof k, 0);
        if (!rc) rc = vocab_set_bytes(v, id, a.data, a.len, 0);
        with_first_form.flags |= TOKEN_HAS_FIRST_FORM;
        v->tokens[id] = with_first_form;
    }
    buf_free(&a);
    buf_free(&b);
    if (rc == ERR_MODEL) return error_set(e, rc, "decoder: its steps make the text of a token too long");
    return rc ? no_memory(e) : 0;
}
