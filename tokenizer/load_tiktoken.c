#include <stdio.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Loads vocabularies of tiktoken: Kimi's tiktoken.model, one "base64 rank" line per token, and Mistral's tekken.json.
 * Kimi's checkpoint has the split pattern and the control tokens as code, so they are a table by tokenizer_class. */

static const char kimi_pattern[] =
    "[\\p{Han}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&["
    "^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&["
    "^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const struct {
    int offset; /* added to the number of ranks */
    const char *name;
} kimi_control[] = {{0, "[BOS]"},
                    {1, "[EOS]"},
                    {2, "<|im_end|>"},
                    {3, "<|im_user|>"},
                    {4, "<|im_assistant|>"},
                    {6, "<|start_header_id|>"},
                    {7, "<|end_header_id|>"},
                    {9, "[EOT]"},
                    {10, "<|im_system|>"},
                    {17, "<|im_middle|>"},
                    {254, "[UNK]"},
                    {255, "[PAD]"}};
enum { N_CONTROL = 256, MAX_LINE = 4096 };
/* limits at which the vendor splits a text before all other processing, control tokens included */
enum { KIMI_CHARS = 400000, KIMI_RUN = 25000 };

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the vocabulary"); }

/* The six bits of a base64 character; -1: it is none. */
static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}
static int decode_base64(const char *s, size_t n, char *out) {
    uint32_t bits = 0;
    int have = 0, len = 0;
    if (!n || n % 4) return -1;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        int v = base64_value(c);
        if (c == '=' && i + 2 >= n && (i + 1 == n || s[n - 1] == '=')) break;
        if (v < 0) return -1;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have >= 8) out[len++] = (char)(bits >> (have -= 8));
    }
    return len;
}

static int load_ranks(struct tokenizer *t, const char *s, const char *end, struct error *e) {
    char piece[MAX_LINE];
    for (int line = 1; s < end; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        if (!stop) stop = end;
        const char *last = stop > s && stop[-1] == '\r' ? stop - 1 : stop, *space = memchr(s, ' ', (size_t)(last - s));
        if (last > s) {
            uint32_t rank = 0;
            int n = space && space - s <= MAX_LINE ? decode_base64(s, (size_t)(space - s), piece) : -1;
            const char *d = space ? space + 1 : last;
            if (n < 1 || d == last || last - d > 7)
                return error_set(e, ERR_MODEL, "line %d is not a base64 token and its rank", line);
            for (; d < last; d++) {
                if (*d < '0' || *d > '9') return error_set(e, ERR_MODEL, "line %d: the rank is not a number", line);
                rank = rank * 10 + (uint32_t)(*d - '0');
            }
            if (rank >= VOCAB_MAX_IDS) return error_set(e, ERR_MODEL, "line %d: the rank is out of range", line);
            int rc = vocab_add(&t->vocab, rank, vocab_hash(piece, (size_t)n), piece, (size_t)n, false);
            if (rc == ERR_MEMORY) return no_memory(e);
            if (rc)
                return error_set(e, ERR_MODEL, "line %d: duplicate %s", line,
                                 rc == VOCAB_DUPLICATE_ID ? "rank" : "token");
        }
        s = stop + 1;
    }
    return 0;
}

static int add_control(struct tokenizer *t, uint32_t id, const char *name, size_t n, struct error *e) {
    struct added_token a = {.content = mem_strndup(name, n), .n = n, .id = (int32_t)id, .special = true};
    if (!a.content || vocab_set_bytes(&t->vocab, id, name, n, TOKEN_ADDED | TOKEN_SPECIAL)) {
        mem_free(a.content);
        return no_memory(e);
    }
    return added_tokens_append(t, a, e);
}

static int load_control(struct tokenizer *t, const struct json *config, struct error *e) {
    const struct json *named = json_get(config, "added_tokens_decoder");
    uint32_t first = t->vocab.n_ids;
    for (uint32_t i = 0; i < N_CONTROL; i++) {
        char key[16], reserved[40];
        const char *name = reserved;
        size_t n;
        snprintf(key, sizeof key, "%u", first + i);
        const struct json *content = json_get(json_get(named, key), "content");
        if (content && content->type == JSON_STRING && content->n) name = content->string, n = content->n;
        else {
            snprintf(reserved, sizeof reserved, "<|reserved_token_%u|>", first + i);
            for (size_t k = 0; !named && k < sizeof kimi_control / sizeof *kimi_control; k++)
                if (kimi_control[k].offset == (int)i) name = kimi_control[k].name;
            n = strlen(name);
        }
        if (added_tokens_id(t, name, n) >= 0)
            return error_set(e, ERR_MODEL, "added_tokens_decoder: two control tokens are named %.*s",
                             (int)(n < 80 ? n : 80), name);
        int rc = add_control(t, first + i, name, n, e);
        if (rc) return rc;
    }
    return 0;
}

/* Sets what follows from a complete list of ranks, and the pattern that splits texts. */
static int finish_ranks(struct tokenizer *t, const char *pattern, size_t n, struct error *e) {
    t->bpe.ranks_by_bytes = t->bpe.is_byte_level = t->bpe.ignore_merges = true;
    t->bpe.unk = -1;
    for (int i = 0; i < 256; i++) {
        char c = (char)i;
        t->bpe.byte_id[i] = (int32_t)vocab_find(&t->vocab, &c, 1, false);
        t->bpe.fallback[i] = -1;
        if (t->bpe.byte_id[i] < 0) return error_set(e, ERR_MODEL, "the byte 0x%02x has no rank", i);
    }
    const int rc = pretok_add_pattern(&t->pretok, pattern, n, SPLIT_ISOLATED, e);
    return rc ? rc : pretok_compile(&t->pretok, e);
}

int load_tiktoken(struct tokenizer *t, const char *path, const struct json *config, struct error *e) {
    const struct json *class = json_get(config, "tokenizer_class");
    if (!json_is(class, "TikTokenTokenizer")) {
        bool named = class && class->type == JSON_STRING;
        return error_set(e, ERR_MODEL, "%s: unknown tokenizer_class in tokenizer_config.json: %.*s", path,
                         named ? (int)class->n : 4, named ? class->string : "none");
    }
    struct file_map map = {0};
    int rc = file_map(&map, path, e);
    if (rc) return rc;
    t->max_chars = KIMI_CHARS;
    t->max_run = KIMI_RUN;
    size_t lines = 1;
    for (size_t i = 0; i < map.size; i++) lines += map.data[i] == '\n';
    if (vocab_init(&t->vocab, lines, map.size + 1)) rc = no_memory(e);
    if (!rc) rc = load_ranks(t, (const char *)map.data, (const char *)map.data + map.size, e);
    if (!rc) rc = finish_ranks(t, kimi_pattern, sizeof kimi_pattern - 1, e);
    if (!rc) rc = load_control(t, config, e);
    if (rc) error_prefix(e, "%s", path);
    file_unmap(&map);
    return rc;
}

/* --- tekken.json ------------------------------------------------------------------------------ */

/* Adds the control tokens, which have the first ids, and fills the gaps after them. */
static int tekken_control(struct tokenizer *t, const struct json *list, uint32_t n, struct error *e) {
    for (uint32_t i = 0; i < n; i++) {
        char filler[40];
        const struct json *one = i < list->n ? json_at(list, i) : NULL, *name = json_get(one, "token_str");
        if (one &&
            (!name || name->type != JSON_STRING || !name->n || json_int(json_get(one, "rank"), -1) != (int64_t)i))
            return error_set(e, ERR_MODEL, "special_tokens: entry %u is not a token with 'token_str' and rank %u", i,
                             i);
        snprintf(filler, sizeof filler, "<SPECIAL_%u>", i);
        const char *s = one ? name->string : filler;
        const size_t bytes = one ? name->n : strlen(filler);
        if (added_tokens_id(t, s, bytes) >= 0)
            return error_set(e, ERR_MODEL, "special_tokens: two tokens are named %.*s", (int)(bytes < 80 ? bytes : 80),
                             s);
        const int rc = add_control(t, i, s, bytes, e);
        if (rc) return rc;
    }
    return 0;
}
/* Adds tokens of `list`, whose ids follow the `first` control tokens. */
static int tekken_ranks(struct tokenizer *t, const struct json *list, uint32_t n, uint32_t first, struct error *e) {
    char piece[MAX_LINE];
    for (uint32_t i = 0; i < n; i++) {
        const struct json *bytes = json_get(json_at(list, i), "token_bytes");
        const int len = bytes && bytes->type == JSON_STRING && bytes->n <= MAX_LINE
                            ? decode_base64(bytes->string, bytes->n, piece)
                            : -1;
        if (len < 1) return error_set(e, ERR_MODEL, "vocab: 'token_bytes' of entry %u is not base64", i);
        const int rc = vocab_add(&t->vocab, first + i, vocab_hash(piece, (size_t)len), piece, (size_t)len, false);
        if (rc == ERR_MEMORY) return no_memory(e);
        if (rc) return error_set(e, ERR_MODEL, "vocab: entry %u is a duplicate", i);
    }
    return 0;
}
static int load_tekken_tree(struct tokenizer *t, const struct json *root, size_t file_size, struct error *e) {
    const struct json *config = json_get(root, "config"), *pattern = json_get(config, "pattern"),
                      *vocab = json_get(root, "vocab"), *special = json_get(root, "special_tokens");
    if (!pattern || pattern->type != JSON_STRING) return error_set(e, ERR_MODEL, "'config.pattern' is missing");
    if (!vocab || vocab->type != JSON_ARRAY) return error_set(e, ERR_MODEL, "'vocab' is not a list");
    if (!special || special->type != JSON_ARRAY)
        return error_set(
            e, ERR_MODEL,
            "'special_tokens' is not a list: a file of an old version, which transformers converts to tokenizer.json");
    const int64_t control = json_int(json_get(config, "default_num_special_tokens"), special->n),
                  all = json_int(json_get(config, "default_vocab_size"), control + vocab->n);
    if (control < special->n || all < control || all > VOCAB_MAX_IDS)
        return error_set(e, ERR_MODEL, "%lld ids, %lld of them for %u special tokens", (long long)all,
                         (long long)control, special->n);
    const uint32_t ranks = all - control < vocab->n ? (uint32_t)(all - control) : vocab->n;
    if (vocab_init(&t->vocab, ranks + 1, file_size)) return no_memory(e);
    int rc = tekken_ranks(t, vocab, ranks, (uint32_t)control, e);
    if (!rc) rc = finish_ranks(t, pattern->string, pattern->n, e);
    return rc ? rc : tekken_control(t, special, (uint32_t)control, e);
}
int load_tiktoken_tekken(struct tokenizer *t, const char *path, struct error *e) {
    char *text = NULL;
    size_t n;
    struct arena a = {0};
    struct json root;
    int rc = file_read(path, 256u << 20, &text, &n, e);
    if (!rc) rc = json_parse(&a, text, n, 0, path, &root, e);
    if (!rc && (rc = load_tekken_tree(t, &root, n, e))) error_prefix(e, "%s", path);
    arena_free(&a);
    mem_free(text);
    return rc;
}
