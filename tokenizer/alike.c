/* Numbers the tokens of a vocabulary so that tokens with like texts share a number: without case, accents,
 * compatibility forms and differences of white space. DeepSeek-V4.1 hashes n-grams of these numbers. Source: the
 * vendor's inference code, which builds the same map with the tokenizers library. */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_internal.h"

/* A space alone would be stripped, and is kept as U+E000 until then. */
static const char steps[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"NFD\"},{\"type\":"
                            "\"StripAccents\"},{\"type\":\"Lowercase\"},"
                            "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[ \\\\t\\\\r\\\\n]+\"},\"content\":\" \"},"
                            "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^ $\"},\"content\":\"\\uE000\"},"
                            "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
                            "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\uE000\"},\"content\":\" \"}]}";

/* Texts that have a number: a hash table with open addressing, of offsets into `text`. */
struct table {
    struct slot {
        uint32_t offset, n;
        int32_t number; /* -1: empty */
    } * slots;
    uint32_t mask;
    struct buf text;
    int n_numbers;
};

static int table_open(struct table *t, size_t n) {
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    *t = (struct table){.slots = mem_alloc(size * sizeof *t->slots), .mask = size - 1};
    for (uint32_t i = 0; t->slots && i < size; i++) t->slots[i].number = -1;
    return t->slots ? 0 : ERR_MEMORY;
}
static int number_of(struct table *t, const char *s, size_t n) {
    uint32_t at = (uint32_t)vocab_hash(s, n) & t->mask;
    for (; t->slots[at].number >= 0; at = (at + 1) & t->mask)
        if (t->slots[at].n == n && !memcmp(t->text.data + t->slots[at].offset, s, n)) return t->slots[at].number;
    t->slots[at] = (struct slot){.offset = (uint32_t)t->text.len, .n = (uint32_t)n, .number = t->n_numbers};
    return buf_add(&t->text, s, n) ? -1 : t->n_numbers++;
}

/* A part of a character, or the replacement character. */
static bool is_broken(const char *s, size_t n) { return utf8_valid(s, n) < n || memmem(s, n, "\xEF\xBF\xBD", 3); }

/* Appends the spelling of bytes in a byte-level vocabulary. */
static int spell(struct buf *out, const char *s, size_t n) {
    char text[4];
    for (size_t i = 0; i < n; i++)
        if (buf_add(out, text, vocab_char_of_byte((unsigned char)s[i], text))) return ERR_MEMORY;
    return 0;
}

/* Returns the number of a token, or a negative code. */
static int number_token(struct table *t, struct encoder *x, const struct normalizer *z, struct buf *spelled,
                        const char *s, size_t n, struct error *e) {
    struct norm_text key = {s, n, NULL, false};
    if (is_broken(s, n)) {
        spelled->len = 0;
        if (spell(spelled, s, n)) return ERR_MEMORY;
        key = (struct norm_text){spelled->data, spelled->len, NULL, false};
    } else {
        const int rc = normalizer_run(x, z, key, &key, e);
        if (rc) return rc;
        if (!key.n) key = (struct norm_text){s, n, NULL, false};
    }
    const int number = number_of(t, key.s, key.n);
    return number < 0 ? ERR_MEMORY : number;
}

int tokenizer_number_alike(const struct tokenizer *t, int32_t *out, int n, int *n_numbers, struct error *e) {
    struct arena a = {0};
    struct json root;
    struct normalizer z = {0};
    struct encoder *x = NULL;
    struct table table = {0};
    struct buf spelled = {0};
    int rc = json_parse(&a, steps, sizeof steps - 1, 0, "normalizer", &root, e);
    if (!rc) rc = normalizer_load(&z, &root, e);
    if (!rc) rc = encoder_acquire(t, &x, e);
    if (!rc && table_open(&table, (size_t)n)) rc = error_set(e, ERR_MEMORY, "no memory to number %d tokens", n);
    for (int i = 0; i < n && !rc; i++) {
        size_t size = 0;
        const char *s = tokenizer_token_bytes(t, i, &size, NULL);
        const int number = number_token(&table, x, &z, &spelled, s ? s : "", s ? size : 0, e);
        if (number >= 0) out[i] = number;
        else rc = number == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory to number %d tokens", n) : number;
    }
    *n_numbers = table.n_numbers;
    if (x) encoder_release(x);
    mem_free(table.slots);
    buf_free(&table.text), buf_free(&spelled);
    normalizer_free(&z);
    arena_free(&a);
    return rc;
}
