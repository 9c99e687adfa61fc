#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

/* Loads tokenizer.json. Rejects by name anything unknown that would change tokens. */

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the vocabulary"); }

struct load_state {
    struct tokenizer *t;
    char *decoded, *spelled; /* scratch: decoded and spelled-out tokens */
    size_t cap;
};

static int reserve_scratch(struct load_state *l, size_t n) {
    if (n <= l->cap) return 0;
    mem_free(l->decoded);
    l->decoded = mem_alloc(2 * n);
    l->cap = l->decoded ? n : 0;
    l->spelled = l->decoded ? l->decoded + n : NULL;
    return l->decoded ? 0 : ERR_MEMORY;
}

/* The tables exceed the CPU caches, so tokens are looked up in blocks: prefetch all slots of a block, then read
 * them. */
enum { BLOCK = 32 };
/* A token of a block in load_state.decoded, which one block fills from the start. */
struct staged_token {
    size_t at, n;
    uint64_t hash;
    bool literal;
};
static struct staged_token stage_token(const struct load_state *l, size_t at, const char *s, size_t n) {
    struct staged_token p = {.at = at};
    p.n = load_decode_spelling(l->t, s, n, l->decoded + at, &p.literal);
    p.hash = vocab_hash(l->decoded + at, p.n);
    vocab_prefetch(&l->t->vocab, p.hash);
    return p;
}

static int load_vocab(struct load_state *l, const struct json *vocab, size_t file_size, struct error *e) {
    struct tokenizer *t = l->t;
    if (!vocab || vocab->type != JSON_OBJECT) return error_set(e, ERR_MODEL, "model.vocab is missing");
    if (vocab_init(&t->vocab, vocab->n, file_size)) return no_memory(e);
    for (uint32_t from = 0; from < vocab->n; from += BLOCK) {
        uint32_t to = vocab->n - from < BLOCK ? vocab->n : from + BLOCK;
        struct staged_token p[BLOCK];
        size_t sum = 0, at = 0;
        for (uint32_t i = from; i < to; i++) sum += vocab->items[2 * i].n;
        if (reserve_scratch(l, sum)) return no_memory(e);
        for (uint32_t i = from; i < to; at += vocab->items[2 * i++].n)
            p[i - from] = stage_token(l, at, vocab->items[2 * i].string, vocab->items[2 * i].n);
        for (uint32_t i = from; i < to; i++) {
            const struct json *k = &vocab->items[2 * i], *v = k + 1;
            const struct staged_token *q = &p[i - from];
            if (v->type != JSON_INT || v->integer < 0 || v->integer >= VOCAB_MAX_IDS)
                return error_set(e, ERR_MODEL, "model.vocab: the id of \"%.*s\" is not a number from 0 to %d",
                                 (int)(k->n < 80 ? k->n : 80), k->string, VOCAB_MAX_IDS - 1);
            int rc = vocab_add(&t->vocab, (uint32_t)v->integer, q->hash, l->decoded + q->at, q->n, q->literal);
            if (rc == VOCAB_DUPLICATE_ID)
                return error_set(e, ERR_MODEL, "model.vocab: two tokens have the id %d", (int)v->integer);
            if (rc == VOCAB_DUPLICATE_TOKEN)
                return error_set(e, ERR_MODEL, "model.vocab: \"%.*s\" is defined twice", (int)(k->n < 80 ? k->n : 80),
                                 k->string);
            if (rc) return no_memory(e);
        }
    }
    return 0;
}

/* --- merges ----------------------------------------------------------------------------------- */

struct merge_side {
    const char *s;
    size_t n;
};

static int parse_merge(const struct json *m, uint32_t i, struct merge_side h[2], struct error *e) {
    if (m->type == JSON_ARRAY && m->n == 2 && m->items[0].type == JSON_STRING && m->items[1].type == JSON_STRING) {
        for (int k = 0; k < 2; k++) h[k] = (struct merge_side){m->items[k].string, m->items[k].n};
        return 0;
    }
    const char *space = m->type == JSON_STRING ? memchr(m->string, ' ', m->n) : NULL;
    if (!space || memchr(space + 1, ' ', (size_t)(m->string + m->n - space - 1)))
        return error_set(e, ERR_MODEL, "model.merges: entry %u is not a pair of tokens", i);
    h[0] = (struct merge_side){m->string, (size_t)(space - m->string)};
    h[1] = (struct merge_side){space + 1, (size_t)(m->string + m->n - space - 1)};
    return 0;
}

static int fail_unknown_token(uint32_t i, const char *s, size_t n, struct error *e) {
    return error_set(e, ERR_MODEL, "model.merges: entry %u needs \"%.*s\", which is not in the vocabulary", i,
                     (int)(n < 80 ? n : 80), s);
}

/* Returns the id of the concatenated pair, or -1. */
static int64_t find_merged(struct load_state *l, const struct merge_side h[2], const struct staged_token *a,
                           const struct staged_token *b, size_t n_prefix, uint32_t expected_id) {
    const struct tokenizer *t = l->t;
    const struct vocab *v = &t->vocab;
    const char *s = l->decoded + a->at; /* b follows a in l->decoded */
    size_t n = a->n + b->n;
    bool literal = a->literal;
    if (a->literal != b->literal || n_prefix) { /* spell it out: one token is literal, or the prefix is removed */
        memcpy(l->spelled, h[0].s, h[0].n);
        memcpy(l->spelled + h[0].n, h[1].s + n_prefix, h[1].n - n_prefix);
        s = l->spelled;
        n = h[0].n + h[1].n - n_prefix;
        literal = t->bpe.is_byte_level;
    }
    if (l->t->bpe.split_at_marks && load_has_inner_mark(s, n)) l->t->bpe.split_at_marks = false;
    /* most vocabularies number tokens in merge order */
    const struct vocab_token *p = expected_id < v->n_ids ? &v->tokens[expected_id] : NULL;
    if (p && p->n == n && p->flags == (TOKEN_DEFINED | (literal ? TOKEN_LITERAL : 0u)) &&
        !memcmp(v->pool + p->pool_offset, s, n))
        return expected_id;
    return vocab_find(v, s, n, literal);
}

static int load_merges(struct load_state *l, const struct json *merges, struct error *e) {
    struct tokenizer *t = l->t;
    const struct vocab *v = &t->vocab;
    size_t n_prefix = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    if (!merges || merges->type != JSON_ARRAY) return error_set(e, ERR_MODEL, "model.merges is missing");
    if (merges_init(&t->bpe.merges, merges->n)) return no_memory(e);
    uint32_t expected_id = 0, rank = 0;
    for (uint32_t from = 0, to; from < merges->n; from = to) {
        struct merge_side h[BLOCK][2];
        struct staged_token p[BLOCK][2];
        int64_t id[BLOCK][3];
        uint32_t k = 0, number[BLOCK];
        size_t sum = 0, at = 0;
        int rc;
        for (to = from; to < merges->n && k < BLOCK; to++) {
            const struct json *m = &merges->items[to];
            if (m->type == JSON_STRING && m->n >= 8 && !memcmp(m->string, "#version", 8)) continue;
            if ((rc = parse_merge(m, to, h[k], e))) return rc;
            if (h[k][1].n < n_prefix) return fail_unknown_token(to, h[k][1].s, h[k][1].n, e);
            sum += h[k][0].n + h[k][1].n;
            number[k++] = to;
        }
        if (reserve_scratch(l, sum)) return no_memory(e);
        for (uint32_t i = 0; i < k; at += h[i][0].n + h[i][1].n, i++) {
            p[i][0] = stage_token(l, at, h[i][0].s, h[i][0].n);
            p[i][1] = stage_token(l, at + p[i][0].n, h[i][1].s, h[i][1].n);
        }
        for (uint32_t i = 0; i < k; i++) {
            for (int side = 0; side < 2; side++) {
                const struct staged_token *q = &p[i][side];
                id[i][side] = vocab_find_hashed(v, q->hash, l->decoded + q->at, q->n, q->literal);
                if (id[i][side] < 0) return fail_unknown_token(number[i], h[i][side].s, h[i][side].n, e);
            }
            merges_prefetch(&t->bpe.merges, (uint32_t)id[i][0], (uint32_t)id[i][1]);
            id[i][2] = find_merged(l, h[i], &p[i][0], &p[i][1], n_prefix, expected_id);
            if (id[i][2] < 0)
                return error_set(e, ERR_MODEL,
                                 "model.merges: entry %u makes \"%.*s%.*s\", which is not in the vocabulary", number[i],
                                 (int)(h[i][0].n < 80 ? h[i][0].n : 80), h[i][0].s,
                                 (int)(h[i][1].n < 80 ? h[i][1].n : 80), h[i][1].s);
            expected_id = (uint32_t)id[i][2] + 1;
        }
        for (uint32_t i = 0; i < k; i++)
            merges_add(&t->bpe.merges, (uint32_t)id[i][0], (uint32_t)id[i][1], rank++, (uint32_t)id[i][2]);
    }
    return 0;
}

/* --- the model -------------------------------------------------------------------------------- */

static int load_affix(const struct json *j, char **out, struct error *e) {
    if (!j || j->type == JSON_NULL || (j->type == JSON_STRING && !j->n)) return 0;
    if (j->type != JSON_STRING || memchr(j->string, 0, j->n))
        return error_set(e, ERR_MODEL, "model: a prefix or suffix is not a string");
    return (*out = json_strdup(j)) ? 0 : no_memory(e);
}

static int load_bpe(struct load_state *l, const struct json *model, size_t file_size, struct error *e) {
    struct tokenizer *t = l->t;
    struct bpe *b = &t->bpe;
    const struct json *unk = json_get(model, "unk_token");
    if (json_num(json_get(model, "dropout"), 0) != 0) return error_set(e, ERR_MODEL, "model.dropout is not supported");
    b->ignore_merges = json_bool(json_get(model, "ignore_merges"), false);
    b->fuse_unk = json_bool(json_get(model, "fuse_unk"), false);
    int rc = load_affix(json_get(model, "continuing_subword_prefix"), &b->prefix, e);
    if (!rc) rc = load_affix(json_get(model, "end_of_word_suffix"), &b->suffix, e);
    if (rc) return rc;
    struct pretok *p = &t->pretok;
    if (p->n && p->steps[p->n - 1].kind == PRE_BYTES && !b->prefix && !b->suffix) {
        b->is_byte_level = true; /* the vocabulary is read as bytes, so the last step need not spell them out */
        p->n--;
    }
    b->split_at_marks = !b->is_byte_level && !b->prefix && !b->suffix && !b->ignore_merges;
    const struct json *vocab = json_get(model, "vocab"), *scores = json_get(model, "scores");
    if ((rc = load_vocab(l, vocab, file_size, e))) return rc;
    if ((rc = scores ? load_scores(t, vocab, scores, json_get(model, "types"), e)
                     : load_merges(l, json_get(model, "merges"), e)))
        return rc;
    b->split_at_marks = b->split_at_marks && vocab_find(&t->vocab, "\xE2\x96\x81", 3, false) >= 0;
    if (unk && unk->type == JSON_STRING && (b->unk = load_find_token(t, unk->string, unk->n)) < 0)
        return error_set(e, ERR_MODEL, "model.unk_token %.*s is not in the vocabulary",
                         (int)(unk->n < 80 ? unk->n : 80), unk->string);
    return 0;
}

static int load_unigram(struct tokenizer *t, const struct json *model, size_t file_size, struct error *e) {
    const struct json *unk = json_get(model, "unk_id");
    const int rc = unigram_load(t, json_get(model, "vocab"), file_size, e);
    if (rc) return rc;
    t->bpe.unk = json_int(unk, -1);
    if (unk && unk->type != JSON_NULL && (t->bpe.unk < 0 || t->bpe.unk >= t->vocab.n_ids))
        return error_set(e, ERR_MODEL, "model.unk_id is not a number from 0 to %u", t->vocab.n_ids - 1);
    return 0;
}

/* Files without a type are told apart as in the reference: by the members of each. */
static bool is_unigram(const struct json *model) {
    const struct json *type = json_get(model, "type"), *vocab = json_get(model, "vocab");
    return type ? json_is(type, "Unigram") : vocab && vocab->type == JSON_ARRAY;
}
static int load_model(struct load_state *l, const struct json *model, size_t file_size, struct error *e) {
    struct bpe *b = &l->t->bpe;
    const struct json *type = json_get(model, "type");
    const bool has_scores = is_unigram(model);
    if (!has_scores && (type ? !json_is(type, "BPE") : !json_get(model, "merges")))
        return load_fail_unknown("tokenizer model", type, e);
    b->byte_fallback = json_bool(json_get(model, "byte_fallback"), false);
    b->unk = -1;
    const int rc = has_scores ? load_unigram(l->t, model, file_size, e) : load_bpe(l, model, file_size, e);
    for (int i = 0; i < 256 && !rc; i++) {
        char c = (char)i, name[8];
        b->byte_id[i] = b->is_byte_level ? (int32_t)vocab_find(&l->t->vocab, &c, 1, false) : -1;
        snprintf(name, sizeof name, "<0x%02X>", i);
        b->fallback[i] = (int32_t)load_find_token(l->t, name, 6);
    }
    return rc;
}

/* --- the rest of the file --------------------------------------------------------------------- */

/* Places a token that tokenizer_config.json adds: at the id that its text has, else at its own. False: it has none, or
 * another token's. */
static bool place_supplement(const struct tokenizer *t, const struct json *content, int64_t *id) {
    const int64_t known = load_find_token(t, content->string, content->n);
    if (known >= 0) return *id = known, true;
    if (*id >= 0 && (*id >= t->vocab.n_ids || !t->vocab.tokens[*id].flags)) return true;
    if (*id >= 0)
        log_say(LOG_INFO, "tokenizer_config.json: the token \"%.*s\" is left out: %lld is another token's id",
                (int)(content->n < 80 ? content->n : 80), content->string, (long long)*id);
    return false;
}
static int load_added(struct tokenizer *t, const struct json *list, struct error *e) {
    for (uint32_t i = 0; list && i < list->n; i++) {
        const struct json *j = json_at(list, i), *content = json_get(j, "content");
        const bool supplements = json_bool(json_get(j, LOAD_SUPPLEMENT), false);
        int64_t id = json_int(json_get(j, "id"), -1), known;
        if (!content || content->type != JSON_STRING)
            return error_set(e, ERR_MODEL, "added_tokens: entry %u has no content", i);
        int shown = (int)(content->n < 80 ? content->n : 80);
        if (supplements && !place_supplement(t, content, &id)) continue;
        if (id < 0 || id >= VOCAB_MAX_IDS)
            return error_set(e, ERR_MODEL, "added_tokens: the id of \"%.*s\" is not a number from 0 to %d", shown,
                             content->string, VOCAB_MAX_IDS - 1);
        if (!content->n) continue;
        bool special = json_bool(json_get(j, "special"), false);
        known = load_find_token(t, content->string, content->n);
        if (known < 0) known = added_tokens_id(t, content->string, content->n);
        if (known >= 0 && known != id && !json_bool(json_get(j, LOAD_REPEATS), false))
            return error_set(e, ERR_MODEL, "added_tokens: \"%.*s\" has the id %d, elsewhere %d", shown, content->string,
                             (int)id, (int)known);
        if (known < 0 && id < t->vocab.n_ids && t->vocab.tokens[id].flags)
            return error_set(e, ERR_MODEL, "added_tokens: \"%.*s\" has the id %d of another token", shown,
                             content->string, (int)id);
        struct added_token a = {.n = content->n, .id = (int32_t)id, .special = special};
        a.normalized = json_bool(json_get(j, "normalized"), !special);
        a.is_piece = json_bool(json_get(j, LOAD_PIECE), false);
        a.is_single_word = json_bool(json_get(j, "single_word"), false);
        a.lstrip = json_bool(json_get(j, "lstrip"), false);
        a.rstrip = json_bool(json_get(j, "rstrip"), false);
        if (!(a.content = json_strdup(content)) || vocab_set_bytes(&t->vocab, (uint32_t)id, content->string, content->n,
                                                                   TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0u))) {
            mem_free(a.content);
            return no_memory(e);
        }
        int rc = added_tokens_append(t, a, e);
        if (rc) return rc;
    }
    return 0;
}

/* Gives bytes to ids whose text is another id's: a model may generate them, text never becomes them. */
static int load_repeated(struct load_state *l, const struct json *list, struct error *e) {
    for (uint32_t i = 0; list && list->type == JSON_OBJECT && i < list->n; i++) {
        const struct json *text = &list->items[2 * i];
        const int64_t id = json_int(text + 1, -1);
        bool literal;
        if (id < 0 || id >= VOCAB_MAX_IDS) return error_set(e, ERR_MODEL, "a repeated token has no valid id");
        if (reserve_scratch(l, text->n + 1)) return no_memory(e);
        const size_t n = load_decode_spelling(l->t, text->string, text->n, l->decoded, &literal);
        if (vocab_set_bytes(&l->t->vocab, (uint32_t)id, l->decoded, n, literal ? TOKEN_LITERAL : 0u))
            return no_memory(e);
    }
    return 0;
}

/* Reads the token that the template puts before the text. Tokens after the text are for training, not for prompts. */
static int load_template(struct tokenizer *t, const struct json *j, struct error *e) {
    const struct json *list = json_get(j, "single");
    if (!list || list->type != JSON_ARRAY)
        return error_set(e, ERR_MODEL, "post_processor: the template has no \"single\"");
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *name = json_path(&list->items[i], "SpecialToken.id");
        if (json_get(&list->items[i], "Sequence")) return 0;
        const struct json *special_tokens = json_get(j, "special_tokens"), *ids = NULL;
        for (uint32_t k = 0; name && special_tokens && special_tokens->type == JSON_OBJECT && k < special_tokens->n;
             k++)
            if (special_tokens->items[2 * k].n == name->n &&
                !memcmp(special_tokens->items[2 * k].string, name->string, name->n))
                ids = json_get(&special_tokens->items[2 * k + 1], "ids");
        int64_t id = ids && ids->n == 1 ? json_int(json_at(ids, 0), -1) : -1;
        if (id < 0 || id >= t->vocab.n_ids || !t->vocab.tokens[id].flags)
            return error_set(e, ERR_MODEL, "post_processor: a special token of the template is unknown");
        if (t->bos >= 0) return error_set(e, ERR_MODEL, "post_processor: more than one token before the text");
        t->bos = (int32_t)id;
    }
    return 0;
}

static int load_post(struct tokenizer *t, const struct json *j, int depth, struct error *e) {
    const struct json *type = json_get(j, "type");
    if (!j || j->type == JSON_NULL || json_is(type, "ByteLevel")) return 0; /* ByteLevel only moves offsets */
    if (json_is(type, "TemplateProcessing")) return load_template(t, j, e);
    const struct json *list = json_get(j, "processors");
    if (json_is(type, "Sequence") && list && list->type == JSON_ARRAY && depth < 8) {
        for (uint32_t i = 0; i < list->n; i++) {
            int rc = load_post(t, &list->items[i], depth + 1, e);
            if (rc) return rc;
        }
        return 0;
    }
    return load_fail_unknown("post-processor", type, e);
}

int load_json_tree(struct tokenizer *t, const struct json *root, size_t file_size, struct error *e) {
    struct load_state l = {.t = t};
    int rc = normalizer_load(&t->normalizer, json_get(root, "normalizer"), e);
    if (!rc) rc = pretok_load(&t->pretok, json_get(root, "pre_tokenizer"), e);
    if (!rc) rc = load_model(&l, json_get(root, "model"), file_size, e);
    if (!rc) rc = pretok_compile(&t->pretok, e);
    if (!rc) rc = decoder_load(&t->decoding, json_get(root, "decoder"), e);
    if (!rc) rc = load_repeated(&l, json_get(root, LOAD_REPEATS), e);
    if (!rc) rc = load_added(t, json_get(root, "added_tokens"), e);
    if (!rc && t->unigram.scores) rc = unigram_index(t, json_path(root, "model.vocab"), e);
    if (!rc) rc = decoder_set_bytes(t, e);
    if (!rc) rc = load_post(t, json_get(root, "post_processor"), 0, e);
    mem_free(l.decoded);
    return rc;
}

int load_json(struct tokenizer *t, const char *path, const struct json *config, struct error *e) {
    struct file_map map = {0};
    struct arena arena = {0};
    struct json root;
    int rc = file_map(&map, path, e);
    if (rc) return rc;
    if (!map.size) rc = error_set(e, ERR_MODEL, "%s is empty", path);
    /* its errors name the file */
    if (!rc && (rc = json_parse(&arena, (const char *)map.data, map.size, JSON_PYTHON, path, &root, e))) goto out;
    if (!rc && root.type != JSON_OBJECT) rc = error_set(e, ERR_MODEL, "not an object");
    if (!rc) rc = load_config_added(&arena, &root, config, e);
    if (!rc) rc = load_json_tree(t, &root, map.size, e);
    if (rc) error_prefix(e, "%s", path);
out:
    arena_free(&arena);
    file_unmap(&map);
    return rc;
}
