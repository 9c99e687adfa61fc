#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Finds added tokens with a trie: leftmost match first, longest match at a position. A candidate is at most as long as
 * the longest added token, so the search is linear in the text. */

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the added tokens"); }

/* Whether a token looks like a mark of chats. Many checkpoints do not flag theirs special: <tool_call> and <think> of
 * Qwen, <｜User｜> of DeepSeek. Typed text must not act as one. */
static bool is_chat_mark(const char *s, size_t n) {
    static const char *const shapes[] = {"<|", "|>", "<｜", "｜>"};
    static const char *const words[] = {"think", "reason", "tool",   "call",     "func",        "arg_",
                                        "role",  "turn",   "system", "response", "observation", "inst",
                                        "user",  "assist", "answer", "message"};
    char lower[64];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (memmem(s, n, shapes[i], strlen(shapes[i]))) return true;
    if ((!memchr("<[{(|]", s[0], 6) && strncmp(s, "◁", 3)) || n > sizeof lower) return false;
    for (size_t i = 0; i < n; i++) lower[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] | 32 : s[i]);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(lower, n, words[i], strlen(words[i]))) return true;
    return false;
}

int added_tokens_append(struct tokenizer *t, struct added_token a, struct error *e) {
    if (mem_grow(&t->added, &t->cap_added, t->n_added + 1, sizeof *t->added)) {
        mem_free(a.content);
        return no_memory(e);
    }
    a.is_control = a.special || is_chat_mark(a.content, a.n);
    t->added[t->n_added] = a;
    return added_trie_add(&t->added_trie, a.content, a.n, (int32_t)t->n_added++) ? no_memory(e) : 0;
}

int added_trie_add(struct trie *t, const char *s, size_t n, int32_t token) {
    uint32_t at = 0;
    if (!t->n) {
        if (mem_grow(&t->nodes, &t->cap, 1, sizeof *t->nodes)) return ERR_MEMORY;
        t->nodes[t->n++] = (struct trie_node){.token = -1}; /* index 0 means no node */
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        uint32_t next = at ? t->nodes[at].child : t->root[b], last = 0;
        while (at && next && t->nodes[next].byte != b) last = next, next = t->nodes[next].sibling;
        if (!next) {
            if (mem_grow(&t->nodes, &t->cap, t->n + 1, sizeof *t->nodes)) return ERR_MEMORY;
            next = (uint32_t)t->n++;
            t->nodes[next] = (struct trie_node){.token = -1, .byte = b};
            if (!at) t->root[b] = next;
            else if (last) t->nodes[last].sibling = next;
            else t->nodes[at].child = next;
        }
        at = next;
    }
    if (at && t->nodes[at].token < 0) t->nodes[at].token = token;
    return 0;
}
static const struct added_token *find_added(const struct tokenizer *t, const char *s, size_t n) {
    const struct trie *names = &t->added_trie;
    uint32_t at = n && names->n ? names->root[(uint8_t)s[0]] : 0;
    for (size_t i = 1; i < n && at; i++)
        for (at = names->nodes[at].child; at && names->nodes[at].byte != (uint8_t)s[i];) at = names->nodes[at].sibling;
    return at && names->nodes[at].token >= 0 ? &t->added[names->nodes[at].token] : NULL;
}
int32_t added_tokens_id(const struct tokenizer *t, const char *s, size_t n) {
    const struct added_token *a = find_added(t, s, n);
    return a ? a->id : -1;
}
bool added_tokens_is_control(const struct tokenizer *t, const char *s, size_t n) {
    const struct added_token *a = find_added(t, s, n);
    return a && a->is_control;
}
void added_trie_free(struct trie *t) {
    mem_free(t->nodes);
    *t = (struct trie){0};
}

/* Writes SentencePiece's mark for each space. */
static int mark_spaces(const struct added_token *a, struct buf *out) {
    for (size_t i = 0; i < a->n; i++)
        if (a->content[i] == ' ') buf_str(out, "\xE2\x96\x81");
        else buf_char(out, a->content[i]);
    return out->failed ? ERR_MEMORY : 0;
}

int added_tokens_index(struct tokenizer *t, struct error *e) {
    struct encoder *x = NULL;
    struct buf piece = {0};
    int rc = 0;
    for (int pass = 0; pass < 2 && !rc; pass++) /* special tokens first, as in the reference */
        for (size_t i = 0; i < t->n_added && !rc; i++) {
            const struct added_token *a = &t->added[i];
            struct norm_text text = {a->content, a->n, NULL, false};
            if (a->special == (pass == 1)) continue;
            piece.len = 0;
            if (a->is_piece && mark_spaces(a, &piece)) rc = no_memory(e);
            else if (a->is_piece) text.s = piece.data, text.n = piece.len;
            else if (a->normalized && t->normalizer.n) {
                if (!x && (rc = encoder_acquire(t, &x, e))) break;
                if ((rc = normalizer_run(x, &t->normalizer, text, &text, e))) break;
            }
            struct trie *trie = a->normalized || a->is_piece ? &t->normalized_trie : &t->raw_trie;
            if (!rc && text.n && added_trie_add(trie, text.s, text.n, (int32_t)i)) rc = no_memory(e);
            trie->has_plain |= !a->is_control;
        }
    if (x) encoder_release(x);
    buf_free(&piece);
    return rc;
}

/* Finds the longest added token at text.s[from] that these bytes may become. Returns its index or -1. */
static int32_t longest_match(const struct tokenizer *t, const struct trie *trie, struct norm_text text, uint8_t origin,
                             size_t from, size_t *end) {
    int32_t best = -1;
    uint32_t at = trie->root[(uint8_t)text.s[from]];
    bool takes_control = true;
    for (size_t i = from; at;) {
        takes_control = takes_control && (text.origin ? text.origin[i] : origin) == TEXT_TEMPLATE;
        if (!takes_control && !trie->has_plain) break;
        const int32_t token = trie->nodes[at].token;
        if (token >= 0 && (takes_control || !t->added[token].is_control)) best = token, *end = i + 1;
        if (++i == text.n) break;
        for (at = trie->nodes[at].child; at && trie->nodes[at].byte != (uint8_t)text.s[i];)
            at = trie->nodes[at].sibling;
    }
    return best;
}

static bool word_before(struct norm_text t, size_t at) {
    if (!at) return false;
    const char *c = utf8_back(t.s + at);
    return unicode_is_word(utf8_next(&c));
}
static bool word_after(struct norm_text t, size_t at) {
    const char *c = t.s + at;
    return at < t.n && unicode_is_word(utf8_next(&c));
}

int added_tokens_find(const struct tokenizer *t, const struct trie *trie, struct norm_text text, uint8_t origin,
                      struct added_matches *out, struct error *e) {
    out->n = 0;
    if (!trie->n || (!text.origin && origin != TEXT_TEMPLATE && !trie->has_plain)) return 0;
    size_t done = 0;
    for (size_t i = 0; i < text.n;) {
        size_t end = 0;
        int32_t k = trie->root[(uint8_t)text.s[i]] ? longest_match(t, trie, text, origin, i, &end) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        const struct added_token *a = &t->added[k];
        size_t begin = i;
        i = end;
        if (a->is_single_word && (word_before(text, begin) || word_after(text, end))) continue;
        if (a->lstrip)
            while (begin > done) {
                const char *p = utf8_back(text.s + begin), *q = p;
                if (!unicode_is_space(utf8_next(&q))) break;
                begin = (size_t)(p - text.s);
            }
        /* The rstrip of the previous token took these spaces. A token without lstrip still matches. */
        if (a->lstrip && begin < done) begin = done;
        if (begin >= end) continue;
        if (a->rstrip)
            for (const char *p = text.s + end; end < text.n && unicode_is_space(utf8_next(&p));)
                end = (size_t)(p - text.s);
        if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v)) return no_memory(e);
        out->v[out->n++] = (struct added_match){begin, end, a->id};
        done = end;
    }
    return 0;
}
