/* Loads tokenizer.model, the protobuf of SentencePiece (sentencepiece_model.proto), for checkpoints that have nothing
 * else: its pieces become the lists that a GGUF file of such a model has. */
#include <stdio.h>
#include <string.h>

#include "base/gguf_tokens.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

enum { MODEL_UNIGRAM = 1, MODEL_BPE };
enum wire { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

/* A message, or what is left of it. */
struct message {
    const uint8_t *at, *end;
};
struct field {
    uint32_t number;
    uint8_t wire;            /* enum wire */
    uint64_t value;          /* not of WIRE_BYTES */
    struct message contents; /* of WIRE_BYTES */
};

static bool read_varint(struct message *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        const uint8_t byte = *m->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}
static bool read_fixed(struct message *m, size_t n, uint64_t *out) {
    if ((size_t)(m->end - m->at) < n) return false;
    *out = 0;
    memcpy(out, m->at, n); /* little-endian, as the machine */
    m->at += n;
    return true;
}
/* Returns 1 with the next field, 0 at the end, -1 if the message is damaged. */
static int next_field(struct message *m, struct field *f) {
    uint64_t key, size;
    if (m->at == m->end) return 0;
    if (!read_varint(m, &key) || key >> 3 > UINT32_MAX || !(key >> 3)) return -1;
    *f = (struct field){.number = (uint32_t)(key >> 3), .wire = key & 7};
    switch (f->wire) {
    case WIRE_VARINT: return read_varint(m, &f->value) ? 1 : -1;
    case WIRE_64: return read_fixed(m, 8, &f->value) ? 1 : -1;
    case WIRE_32: return read_fixed(m, 4, &f->value) ? 1 : -1;
    case WIRE_BYTES:
        if (!read_varint(m, &size) || size > (uint64_t)(m->end - m->at)) return -1;
        f->contents = (struct message){m->at, m->at + size};
        m->at += size;
        return 1;
    default: return -1;
    }
}

struct pieces {
    struct json *tokens, *scores, *types;
    uint32_t n, cap;
    int64_t model_type, bos;
    bool add_prefix, collapses_spaces;
    struct json charsmap; /* bytes */
    struct arena *arena;
    struct error *e;
};
static int damaged(const struct pieces *p) {
    return error_set(p->e, ERR_MODEL, "piece %u of a SentencePiece model is damaged, or it is none", p->n);
}

static int add_piece(struct pieces *p, const char *text, size_t n, double score, int64_t type) {
    if (p->n == p->cap)
        return error_set(p->e, ERR_MODEL, "more than %u pieces: larger than hearth takes", (unsigned)VOCAB_MAX_IDS);
    p->tokens[p->n] = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = text};
    p->scores[p->n] = (struct json){.type = JSON_FLOAT, .number = score};
    p->types[p->n++] = (struct json){.type = JSON_INT, .integer = type};
    return 0;
}
/* Tokens have spaces, where pieces have marks (added_token.is_piece). */
static const char *with_spaces(struct arena *arena, const char *s, size_t *n) {
    static const char mark[] = "\xE2\x96\x81";
    char *out = memmem(s, *n, mark, 3) ? arena_alloc(arena, *n) : NULL;
    size_t k = 0;
    if (!out) return s;
    for (size_t i = 0; i < *n; k++) {
        const bool is_mark = *n - i >= 3 && !memcmp(s + i, mark, 3);
        out[k] = is_mark ? ' ' : s[i];
        i += is_mark ? 3 : 1;
    }
    *n = k;
    return out;
}
static int read_piece(struct pieces *p, struct message m) {
    struct message text = {0};
    struct field f;
    float score = 0;
    int64_t type = GGUF_TOKEN_NORMAL;
    int more;
    while ((more = next_field(&m, &f)) > 0) {
        if (f.number == 1 && f.wire == WIRE_BYTES) text = f.contents;
        if (f.number == 2 && f.wire == WIRE_32) memcpy(&score, &f.value, sizeof score);
        if (f.number == 3 && f.wire == WIRE_VARINT) type = (int64_t)f.value;
    }
    size_t n = (size_t)(text.end - text.at);
    if (more < 0 || !n || n > 1 << 16 || utf8_valid((const char *)text.at, n) != n || type < GGUF_TOKEN_NORMAL ||
        type > GGUF_TOKEN_BYTE || score != score)
        return damaged(p);
    const char *s = (const char *)text.at;
    if (type == GGUF_TOKEN_USER && memchr(s, ' ', n)) type = GGUF_TOKEN_UNUSED; /* no text has a space left */
    if (type == GGUF_TOKEN_USER) s = with_spaces(p->arena, s, &n), type = GGUF_TOKEN_PIECE;
    return add_piece(p, s, n, (double)score, type);
}
/* What the numbered fields of a message say; the others keep their values. bytes: the number of a field of bytes. */
static int read_options(struct pieces *p, struct message m, const uint32_t *numbers, int64_t *const *values, int n,
                        uint32_t bytes) {
    struct field f;
    int more;
    while ((more = next_field(&m, &f)) > 0) {
        for (int i = 0; i < n; i++)
            if (f.number == numbers[i] && f.wire == WIRE_VARINT) *values[i] = (int64_t)f.value;
        if (f.number == bytes && f.wire == WIRE_BYTES)
            p->charsmap = (struct json){.type = JSON_STRING,
                                        .n = (uint32_t)(f.contents.end - f.contents.at),
                                        .string = (const char *)f.contents.at};
    }
    return more < 0 ? damaged(p) : 0;
}

static uint32_t count_pieces(struct message m) {
    struct field f;
    uint32_t n = 0;
    while (next_field(&m, &f) > 0) n += f.number == 1 && n < VOCAB_MAX_IDS;
    return n;
}
static int read_model(struct pieces *p, struct message m) {
    static const uint32_t trainer[] = {3, 41}, normalizer[] = {3, 4};
    enum { NO_FIELD, CHARSMAP = 2 };
    int64_t prefix = 1, collapse = 1;
    int64_t *const of_trainer[] = {&p->model_type, &p->bos}, *const of_normalizer[] = {&prefix, &collapse};
    struct field f;
    int more, rc = 0;
    p->model_type = MODEL_UNIGRAM, p->bos = 1;
    while (!rc && (more = next_field(&m, &f)) > 0) {
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1) rc = read_piece(p, f.contents);
        if (f.number == 2) rc = read_options(p, f.contents, trainer, of_trainer, 2, NO_FIELD);
        if (f.number == 3) rc = read_options(p, f.contents, normalizer, of_normalizer, 2, CHARSMAP);
    }
    if (rc || more < 0 || !p->n) return rc ? rc : damaged(p);
    p->add_prefix = prefix, p->collapses_spaces = collapse;
    if (p->model_type == MODEL_BPE || p->model_type == MODEL_UNIGRAM) return 0;
    return error_set(p->e, ERR_MODEL, "a SentencePiece model of kind %lld; hearth reads unigrams (1) and BPE (2)",
                     (long long)p->model_type);
}

/* Tokens of tokenizer_config.json, which may follow the pieces or say which of these are control tokens. */
static int read_added(struct pieces *p, const struct json *config) {
    const struct json *all = json_get(config, "added_tokens_decoder");
    if (!all || all->type != JSON_OBJECT) return 0;
    for (uint32_t k = 0; k < all->n; k++) {
        const struct json *key = &all->items[2 * k];
        int64_t id;
        const int rc = load_config_token(key, p->cap, &id, p->e);
        if (rc) return rc;
        while (p->n <= (uint32_t)id) {
            const int full = add_piece(p, "", 0, 0, GGUF_TOKEN_UNUSED);
            if (full) return full;
        }
        p->tokens[id] = *json_get(key + 1, "content");
        if (p->types[id].integer != GGUF_TOKEN_UNKNOWN)
            p->types[id].integer =
                json_bool(json_get(key + 1, "special"), false) ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_USER;
    }
    return 0;
}

static struct json list_of(const struct json *items, uint32_t n) {
    return (struct json){.type = JSON_ARRAY, .n = n, .items = items};
}
/* Whether a BOS is added unless add_bos_token says: as Llama's tokenizers do. */
static bool adds_bos(const struct json *config) {
    const struct json *class = json_get(config, "tokenizer_class");
    return !class || json_is(class, "LlamaTokenizer") || json_is(class, "LlamaTokenizerFast");
}
static int load_pieces(struct tokenizer *t, struct pieces *p, const struct json *config, size_t size) {
    const bool is_unigram = p->model_type == MODEL_UNIGRAM;
    const struct {
        const char *key;
        struct json value;
    } members[] = {{"model", is_unigram ? (struct json){.type = JSON_STRING, .n = 2, .string = "t5"}
                                        : (struct json){.type = JSON_STRING, .n = 5, .string = "llama"}},
                   {"precompiled_charsmap", p->charsmap},
                   {"remove_extra_whitespaces", {.type = JSON_BOOL, .boolean = p->collapses_spaces}},
                   {"tokens", list_of(p->tokens, p->n)},
                   {"scores", list_of(p->scores, p->n)},
                   {"token_type", list_of(p->types, p->n)},
                   {"bos_token_id", {.type = JSON_INT, .integer = p->bos}},
                   {"add_bos_token", {.type = JSON_BOOL, .boolean = adds_bos(config) && p->bos >= 0}},
                   {"add_space_prefix", {.type = JSON_BOOL, .boolean = p->add_prefix}}};
    enum { MEMBERS = sizeof members / sizeof *members };
    struct json items[2 * MEMBERS];
    char keys[MEMBERS][40];
    for (int i = 0; i < MEMBERS; i++) {
        const int n = snprintf(keys[i], sizeof keys[i], "tokenizer.ggml.%s", members[i].key);
        items[2 * i] = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = keys[i]};
        items[2 * i + 1] = members[i].value;
    }
    const struct json meta = {.type = JSON_OBJECT, .n = MEMBERS, .items = items};
    return load_gguf_meta(t, &meta, p->arena, size, p->e);
}

int load_sentencepiece(struct tokenizer *t, const char *path, const struct json *config, struct error *e) {
    struct file_map map = {0};
    struct arena arena = {0};
    int rc = file_map(&map, path, e);
    if (rc) return rc;
    const struct message whole = {map.data, map.data + map.size};
    size_t bytes = 0;
    struct pieces p = {.arena = &arena, .e = e};
    const struct json *added = json_get(config, "added_tokens_decoder");
    p.cap = count_pieces(whole) + 65536 + (added && added->type == JSON_OBJECT ? added->n : 0);
    if (p.cap > VOCAB_MAX_IDS) p.cap = VOCAB_MAX_IDS;
    p.tokens = arena_alloc(&arena, p.cap * sizeof *p.tokens);
    p.scores = arena_alloc(&arena, p.cap * sizeof *p.scores);
    p.types = arena_alloc(&arena, p.cap * sizeof *p.types);
    if (!p.tokens || !p.scores || !p.types) rc = error_set(e, ERR_MEMORY, "no memory for the vocabulary");
    if (!rc) rc = read_model(&p, whole);
    if (!rc) rc = read_added(&p, config);
    for (uint32_t i = 0; i < p.n; i++) bytes += p.tokens[i].n;
    if (!rc) rc = load_pieces(t, &p, config, bytes);
    if (rc) error_prefix(e, "%s", path);
    arena_free(&arena);
    file_unmap(&map);
    return rc;
}
