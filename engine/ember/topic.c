#include "engine/ember/topic.h"

#include <string.h>

#include "base/file.h"

struct topic {
    struct arena arena;
    struct file_map file;
    struct json root;
    /* word -> weight; hashed weights, a power of two of them; the two answers */
    const struct json *words, *hashed_weights, *off_topic_answer, *document_answer;
    int64_t bias, unknown_word_weight, number_weight;
    /* thresholds of the sum: general, within a conversation, with a document */
    int64_t threshold, threshold_follow_up, threshold_document;
};
struct text_range {
    const char *s;
    size_t n;
};

void topic_close(struct topic **sp) {
    struct topic *s = *sp;
    if (!s) return;
    arena_free(&s->arena);
    file_unmap(&s->file);
    mem_free(s);
    *sp = NULL;
}

static bool all_integers(const struct json *list, bool members) {
    for (uint32_t i = 0; i < list->n; i++)
        if (list->items[members ? 2 * i + 1 : i].type != JSON_INT) return false;
    return true;
}

int topic_open(struct topic **out, struct error *e) {
    static const char path[] = "ember:scope.json";
    struct topic *s = NULL;
    *out = NULL;
    if (!file_exists(path)) return 0;
    *out = s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory");
    int rc = file_map(&s->file, path, e);
    if (!rc) rc = json_parse(&s->arena, (const char *)s->file.data, s->file.size, 0, path, &s->root, e);
    if (!rc) {
        s->words = json_get(&s->root, "words");
        s->hashed_weights = json_get(&s->root, "slots");
        s->off_topic_answer = json_path(&s->root, "answers.other");
        s->document_answer = json_path(&s->root, "answers.document");
        bool good = s->words && s->words->type == JSON_OBJECT && all_integers(s->words, true) && s->hashed_weights &&
                    s->hashed_weights->type == JSON_ARRAY && all_integers(s->hashed_weights, false);
        good = good && s->hashed_weights->n && !(s->hashed_weights->n & (s->hashed_weights->n - 1)) &&
               s->off_topic_answer && s->off_topic_answer->type == JSON_STRING;
        if (!good || !s->document_answer || s->document_answer->type != JSON_STRING)
            rc = error_set(e, ERR_MODEL, "%s: words, slots or answers are missing", path);
    }
    if (rc) {
        topic_close(out);
        return rc;
    }
    s->bias = json_int(json_get(&s->root, "bias"), 0);
    s->threshold = json_int(json_path(&s->root, "limits.limit"), 0);
    s->threshold_follow_up = json_int(json_path(&s->root, "limits.follow"), 0);
    s->threshold_document = json_int(json_path(&s->root, "limits.document"), 0);
    s->unknown_word_weight = json_int(json_get(s->words, "?"), 0);
    s->number_weight = json_int(json_get(s->words, "#"), 0);
    return 0;
}

/* --- score, as in scope.py -------------------------------------------------------------------- */

static unsigned char to_lower(char c) { return (unsigned char)(c >= 'A' && c <= 'Z' ? c + 32 : c); }
static bool is_letter(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c >= 128;
}
static bool is_sign(unsigned char c) { return c == '-' || c == '/' || c == '&'; }

/* Returns the next word: letters and digits, or signs with attached letters ("--kv", "/undo"). n is 0 at the end. */
static struct text_range next_word(const char **at, const char *end) {
    while (*at < end && !is_letter(to_lower(**at)) && !is_sign(to_lower(**at))) ++*at;
    struct text_range w = {.s = *at};
    if (*at < end && is_letter(to_lower(**at)))
        while (*at < end && is_letter(to_lower(**at))) ++*at;
    else {
        while (*at < end && is_sign(to_lower(**at))) ++*at;
        while (*at < end && (**at == '-' || (is_letter(to_lower(**at)) && to_lower(**at) < 128 && **at != '_'))) ++*at;
    }
    w.n = (size_t)(*at - w.s);
    return w;
}

static bool key_matches(const struct json *key, const char *s, size_t n, const char *more) {
    size_t k = strlen(more);
    if (key->n != n + k || memcmp(key->string + n, more, k) != 0) return false;
    for (size_t i = 0; i < n; i++)
        if (to_lower(s[i]) != (unsigned char)key->string[i]) return false;
    return true;
}
static const struct json *find_word(const struct topic *s, const char *w, size_t n, const char *more) {
    for (uint32_t i = 0; i < s->words->n; i++)
        if (key_matches(&s->words->items[2 * i], w, n, more)) return &s->words->items[2 * i];
    return NULL;
}

enum { FNV = 16777619 };
static const uint32_t FNV_BEGIN = 2166136261u;
static uint32_t hash_text(uint32_t h, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * FNV;
    return h;
}
static int64_t hashed_weight(const struct topic *s, uint32_t h) {
    return s->hashed_weights->items[(h ^ h >> 15) & (s->hashed_weights->n - 1)].integer;
}

static int64_t bigram_weight(const struct topic *s, struct text_range a, struct text_range b) {
    return hashed_weight(s, hash_text(hash_text(hash_text(hash_text(FNV_BEGIN, "b", 1), a.s, a.n), " ", 1), b.s, b.n));
}

/* Sums the weights of all 4-grams of <word>. */
static int64_t ngram_weights(const struct topic *s, struct text_range w) {
    int64_t sum = 0;
    for (size_t i = 0; i + 4 <= w.n + 2; i++) {
        uint32_t h = hash_text(FNV_BEGIN, "c", 1);
        for (size_t k = i; k < i + 4; k++) {
            char c = k == 0 ? '<' : k == w.n + 1 ? '>' : (char)to_lower(w.s[k - 1]);
            h = hash_text(h, &c, 1);
        }
        sum += hashed_weight(s, h);
    }
    return sum;
}

/* True if the words score at least `limit`, or name hearth. */
static bool is_on_topic(const struct topic *s, struct text_range text, int64_t limit) {
    enum { WORDS = 64 }; /* limit */
    const char *at = text.s, *end = text.s + text.n;
    struct text_range before = {"^", 1};
    int64_t sum = s->bias;
    for (int i = 0; i < WORDS; i++) {
        struct text_range w = next_word(&at, end), name = {"?", 1};
        if (!w.n) break;
        const struct json *key = find_word(s, w.s, w.n, "");
        if (!key) key = to_lower(w.s[w.n - 1]) == 's' ? find_word(s, w.s, w.n - 1, "") : find_word(s, w.s, w.n, "s");
        if (key) {
            name = (struct text_range){key->string, key->n};
            sum += key[1].integer;
            if (json_is(key, "hearth")) return true;
        } else {
            bool digits = true;
            for (size_t k = 0; k < w.n; k++) digits &= w.s[k] >= '0' && w.s[k] <= '9';
            if (digits) name.s = "#";
            sum += (digits ? s->number_weight : s->unknown_word_weight) + ngram_weights(s, w);
        }
        sum += bigram_weight(s, before, name);
        before = name;
    }
    return sum + bigram_weight(s, before, (struct text_range){"$", 1}) >= limit;
}

/* --- conversations ---------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Returns the last paragraph: the question follows the text that it is about. */
static struct text_range last_paragraph(struct text_range t) {
    while (t.n && is_blank(t.s[t.n - 1])) t.n--;
    for (size_t i = t.n; i-- > 1;)
        if (t.s[i] == '\n' && t.s[i - 1] == '\n') return (struct text_range){t.s + i + 1, t.n - i - 1};
    return t;
}

/* True if the text is too long, or has too many lines, for a question about hearth. */
static bool is_document(struct text_range t) {
    enum { LONG_QUESTION = 400, LINES = 4 }; /* bytes; non-empty lines */
    static const char attached[] = "<document name=\"";
    int lines = 1;
    while (t.n && is_blank(t.s[t.n - 1])) t.n--;
    for (size_t i = 1; i < t.n; i++) lines += t.s[i] == '\n' && t.s[i - 1] != '\n';
    return t.n >= LONG_QUESTION || lines >= LINES ||
           (t.n >= sizeof attached - 1 && !memcmp(t.s, attached, sizeof attached - 1));
}

static const struct json *content_of(const struct json *m, const char *role) {
    const struct json *content = json_is(json_get(m, "role"), role) ? json_get(m, "content") : NULL;
    return content && content->type == JSON_STRING ? content : NULL;
}
static bool is_fixed_answer(const struct topic *s, const struct json *text) {
    return text &&
           ((text->n == s->off_topic_answer->n && !memcmp(text->string, s->off_topic_answer->string, text->n)) ||
            (text->n == s->document_answer->n && !memcmp(text->string, s->document_answer->string, text->n)));
}

const struct json *topic_fixed_answer(const struct topic *s, const struct json *conv) {
    enum { LONGEST = 1000 }; /* longest question for the model, in bytes */
    const struct json *list = json_get(conv, "messages"), *said;
    const struct json *content =
        list && list->type == JSON_ARRAY && list->n ? content_of(&list->items[list->n - 1], "user") : NULL;
    bool follows = false; /* on an earlier answer of the model */
    if (!content) return NULL;
    for (uint32_t i = 0; i + 1 < list->n; i++)
        if ((said = content_of(&list->items[i], "assistant"))) follows |= !is_fixed_answer(s, said);
    struct text_range text = {content->string, content->n}, question = last_paragraph(text);
    bool document = is_document(text);
    if (question.n <= LONGEST && is_on_topic(s, question,
                                             document  ? s->threshold_document
                                             : follows ? s->threshold_follow_up
                                                       : s->threshold))
        return NULL;
    return document ? s->document_answer : s->off_topic_answer;
}

/* Copies an object with a new value for an existing key. */
static const struct json *copy_with_member(const struct json *j, const char *key, struct json value, struct arena *a) {
    struct json *items = json_members(a, j, 0), *copy = arena_alloc(a, sizeof *copy);
    if (!items || !copy) return NULL;
    json_set(items, j->n, key, &value);
    *copy = *j;
    copy->items = items;
    return copy;
}

const struct json *topic_model_input(const struct topic *s, const struct json *conv, struct arena *a) {
    const struct json *list = json_get(conv, "messages");
    if (!list || list->type != JSON_ARRAY) return conv;
    struct json *items = arena_alloc(a, (list->n + (size_t)1) * sizeof *items), value = *list;
    if (!items) return NULL;
    value.n = 0;
    value.items = items;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *m = &list->items[i], *content = content_of(m, "user");
        if (i + 1 < list->n && content && is_fixed_answer(s, content_of(m + 1, "assistant"))) {
            i++;
            continue;
        }
        struct text_range text = {content ? content->string : "", content ? content->n : 0},
                          question = last_paragraph(text);
        struct json cut = {.type = JSON_STRING, .n = (uint32_t)question.n, .string = question.s};
        if (is_document(text) && question.n < text.n && !(m = copy_with_member(m, "content", cut, a))) return NULL;
        items[value.n++] = *m;
    }
    return copy_with_member(conv, "messages", value, a);
}
