#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/gguf_file.h"
#include "base/gguf_tokens.h"
#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

/* Converts the tokenizer lists of a GGUF file to the tree of an equivalent tokenizer.json. GGUF stores only the name of
 * the pre-tokenizer: the names are llama.cpp's, the patterns the vendors'. */

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the vocabulary"); }

/* --- pre-tokenizers --------------------------------------------------------------------------- */

#define CONTRACTIONS   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\"},"
#define WORDS(letters, number) \
    SPLIT(CONTRACTIONS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" letters "+|" number \
                       "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASES(ending, number) \
    SPLIT("[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER \
          "+" LOWER "*" ending "|" number \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define GPT2 SPLIT("'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+")
#define DEEPSEEK_LETTERS \
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ" \
    "Ⴀ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-" \
    "ᾴᾶ-" \
    "ᾼιῂ-" \
    "ῄ" \
    "ῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲ" \
    "ⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-" \
    "𐲲𐳀-" \
    "𐳲𑢠-" \
    "𑣟𞤀-" \
    "𞥃]" \
    "+"
#define DEEPSEEK_CJK "[一-龥ࠀ-一가-퟿]+"

#define ASCII_WORDS \
    SPLIT("[!\\\"#$%&'()*+,\\\\-./" \
          ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| " \
          "?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|" \
          "\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define DEEPSEEK_V3 SPLIT("\\\\p{N}{1,3}") SPLIT("[一-龥぀-ゟ゠-ヿ]+") ASCII_WORDS
/* Digits in threes from the right. */
#define AYA \
    SPLIT("\\\\d{1,3}(?=(?:\\\\d{3})*(?![\\\\p{L}\\\\p{M}\\\\p{N}\\\\p{Pc}]))") \
    CASES(CONTRACTIONS "?", "\\\\p{N}{1," \
                            "3}")
#define LING \
    SPLIT("'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?+\\\\p{L}+|\\\\p{N}| " \
          "?[^\\\\s\\\\p{L}\\\\p{N}]++[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+")
#define ASIAN \
    "一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ"
#define KIMI_LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define KIMI_UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define KIMI \
    SPLIT("[\\\\p{Han}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS \
          "?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTIONS \
          "?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")

/* Digits in threes from the right, all other text in one piece. */
#define SUPERBPE SPLIT("\\\\p{N}{1,3}(?=(?:\\\\p{N}{3})*(?!\\\\p{N}))")
#define YOUTU \
    SPLIT("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+") \
    CASES(CONTRACTIONS "?", "\\\\p{N}")
#define BLOOM SPLIT(" ?[^(\\\\s|.,!?…。，、।۔،)]+")
/* llama.cpp's, for files from before May 2024, which do not name their pre-tokenizer. */
#define DEFAULT SPLIT("[\\\\p{P}$+<=>^~|]+") GPT2 SPLIT("\\\\p{N}+") SPLIT("[0-9][0-9][0-9]")

static const struct gguf_pretok {
    const char *name, *steps;
    /* ignore_merges: a word in the vocabulary is not split; bos: whether a BOS is added unless the file says */
    bool nfc, ignore_merges, bos;
} gguf_pretoks[] = {
    {"gpt-2", GPT2, false, false, false},
    {"phi-2", GPT2, false, false, false},
    {"olmo", GPT2, false, false, false},
    {"starcoder", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"smollm", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"refact", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"command-r", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"codeshell", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"llama-bpe", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"llama3", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"llama-v3", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"dbrx", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, false, false},
    {"smaug-bpe", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, false, false},
    {"glm4", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, false},
    {"glm5", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, false},
    {"chatglm-bpe", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, false, false},
    {"qwen2", WORDS("\\\\p{L}", "\\\\p{N}"), true, false, false},
    {"deepseek-r1-qwen", WORDS("\\\\p{L}", "\\\\p{N}"), true, false, false},
    {"qwen35",
     SPLIT(CONTRACTIONS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "
                        "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
     true, false, false},
    {"minicpm5", SPLIT("\\\\p{N}{1,3}") WORDS("\\\\p{L}", "\\\\p{N}+"), false, true, false},
    {"tekken", CASES("", "\\\\p{N}"), false, true, true},
    {"gpt-4o", CASES(CONTRACTIONS "?", "\\\\p{N}{1,3}"), false, true, false},
    {"llama4", CASES(CONTRACTIONS "?", "\\\\p{N}{1,3}"), false, true, false},
    {"minimax-m2", CASES(CONTRACTIONS "?", "\\\\p{N}{1,3}"), false, false, false},
    {"deepseek-llm",
     SPLIT("[\\r\\n]") SPLIT("\\\\s?" DEEPSEEK_LETTERS) SPLIT("\\\\s?[!-/:-~！-／：-～‘-‟　-。]+") SPLIT("\\\\s+$")
         SPLIT(DEEPSEEK_CJK) SPLIT("\\\\p{N}+"),
     false, false, false},
    {"deepseek-coder",
     SPLIT("[\\r\\n]") SPLIT("\\\\s?\\\\p{L}+") SPLIT("\\\\s?\\\\p{P}+") SPLIT(DEEPSEEK_CJK) SPLIT("\\\\p{N}"), false,
     false, false},
    {"deepseek-v3", DEEPSEEK_V3, false, false, false},
    {"hunyuan-dense", DEEPSEEK_V3, false, false, false},
    {"hy_v4", DEEPSEEK_V3, false, false, false},
    {"joyai-llm", DEEPSEEK_V3, false, false, false},
    {"lfm2", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"falcon3", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"pixtral", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"mellum", GPT2, false, false, false},
    {"exaone4", GPT2, false, false, false},
    {"trillion", GPT2, false, false, false},
    {"granite-docling", GPT2, false, false, false},
    {"mellum2", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"exaone", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"hunyuan", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"solar-open", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"megrez", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"laguna", SPLIT("[^\\\\n]+|\\\\n+") WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"cohere2moe", AYA, false, false, false},
    {"tiny_aya", AYA, false, false, false},
    {"bailingmoe", LING, false, false, false},
    {"bailingmoe2", LING, false, false, false},
    {"llada-moe", LING, false, false, false},
    {"seed-coder",
     SPLIT(CONTRACTIONS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
                        "?[^\\\\s\\\\p{L}\\\\p{N}\\\\r\\\\n]+|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"),
     false, false, false},
    {"exaone-moe",
     SPLIT(CONTRACTIONS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?(?:\\\\p{L}\\\\p{M}*(?: \\\\p{L}\\\\p{M}*)*)+|\\\\p{N}| "
                        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]?|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+"),
     false, false, false},
    {"afmoe", SPLIT("\\\\p{N}{1,3}(?=(?:\\\\p{N}{3})*(?!\\\\p{N}))") SPLIT("[" ASIAN "]+") ASCII_WORDS, false, false,
     false},
    {"kimi-k2", KIMI, false, false, false},
    {"grok-2", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"kormo", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"stablelm2", WORDS("\\\\p{L}", "\\\\p{N}"), false, false, false},
    {"midm-2.0", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"falcon-h1", WORDS("\\\\p{L}", "\\\\p{N}{1,3}"), false, true, true},
    {"gigachat", GPT2, false, false, false},
    {"a.x-4.0", GPT2, false, false, false},
    {"mpt", GPT2, false, false, false},
    {"jais", GPT2, false, false, false},
    {"minerva-7b", SPLIT("\\\\p{N}") GPT2, false, false, false},
    {"kanana2", CASES(CONTRACTIONS "?", "\\\\p{N}{1,3}"), false, false, false},
    {"youtu", YOUTU, false, true, false},
    {"superbpe", SUPERBPE, false, false, false},
    {"poro-chat", BLOOM, false, false, false},
    {"bloom", BLOOM, false, false, false},
    {"gpt3-finnish", BLOOM, false, false, false},
    {"viking", BLOOM SPLIT("\\\\p{N}"), false, false, false},
    {"falcon", SPLIT("[\\\\p{P}$+<=>^~|`]+") GPT2 SPLIT("[0-9][0-9][0-9]"), false, false, false},
    {"default", DEFAULT, false, false, false},
};

static const char bytes_step[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";

/* name: NULL in files from before May 2024. */
static const struct gguf_pretok *find_pretok(const struct json *name) {
    static const struct json none = {.type = JSON_STRING, .n = 7, .string = "default"};
    if (!name) name = &none;
    for (size_t i = 0; i < sizeof gguf_pretoks / sizeof *gguf_pretoks; i++)
        if (json_is(name, gguf_pretoks[i].name)) return &gguf_pretoks[i];
    return NULL;
}
static int fail_unknown_pretok(const struct json *name, struct error *e) {
    struct buf all = {0};
    for (size_t i = 0; i < sizeof gguf_pretoks / sizeof *gguf_pretoks; i++)
        buf_fmt(&all, "%s%s", i ? ", " : "", gguf_pretoks[i].name);
    bool named = name->type == JSON_STRING;
    int rc = error_set(e, ERR_MODEL, "'tokenizer.ggml.pre' is %.*s; hearth supports %s",
                       named ? (int)(name->n < 60 ? name->n : 60) : 9, named ? name->string : "no string",
                       all.data ? all.data : "");
    buf_free(&all);
    return rc;
}

/* ---- merges of SentencePiece ----
 * Any two tokens that concatenate to a token; higher scores merge first. */

/* --- the tree --------------------------------------------------------------------------------- */

struct json_builder {
    struct arena *arena;
    struct json *items;
    uint32_t n;
    struct error *e;
};
static int begin_object(struct json_builder *o, struct arena *a, uint32_t members, struct error *e) {
    *o = (struct json_builder){.arena = a, .items = arena_alloc(a, 2 * (size_t)members * sizeof *o->items), .e = e};
    return o->items ? 0 : no_memory(e);
}
static void put_member(struct json_builder *o, const char *key, struct json v) {
    o->items[2 * o->n] = (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(key), .string = key};
    o->items[2 * o->n++ + 1] = v;
}
static struct json object_value(const struct json_builder *o) {
    return (struct json){.type = JSON_OBJECT, .n = o->n, .items = o->items};
}
static struct json bool_value(bool v) { return (struct json){.type = JSON_BOOL, .boolean = v}; }
static struct json int_value(int64_t v) { return (struct json){.type = JSON_INT, .integer = v}; }
static struct json string_value(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}

/* Adds a member from its JSON text, which is copied to the arena. NULL: null. */
static int put_parsed(struct json_builder *o, const char *key, const char *s) {
    struct json v = {.type = JSON_NULL};
    size_t n = s ? strlen(s) : 0;
    const char *copy = s ? arena_strndup(o->arena, s, n) : NULL;
    if (s && !copy) return no_memory(o->e);
    int rc = s ? json_parse(o->arena, copy, n, 0, key, &v, o->e) : 0;
    if (!rc) put_member(o, key, v);
    return rc;
}

struct gguf_lists {
    const struct json *tokens, *types, *scores, *merges;
    bool is_spm, is_unigram; /* SentencePiece; of kind Unigram */
    bool is_marked;          /* merges of characters, with marks for spaces */
    bool strips;             /* control tokens take the white space behind them */
};

/* Phi-3's tokenizer.json has `rstrip`, for which GGUF has no key: llama.cpp goes by the name of the model. */
static bool is_phi3(const struct json *meta) {
    const struct json *arch = json_get(meta, "general.architecture"), *name = json_get(meta, "general.name");
    if (json_is(arch, "phi3") || json_is(arch, "phimoe")) return true;
    for (size_t i = 0; name && name->type == JSON_STRING && i + 4 <= name->n; i++)
        if (!strncasecmp(name->string + i, "phi3", 4) ||
            (i + 5 <= name->n && !strncasecmp(name->string + i, "phi-3", 5)))
            return true;
    return false;
}
static bool strips_behind(const struct gguf_lists *l, const struct json *text) {
    return l->strips && !json_is(text, "<unk>") && !json_is(text, "<s>") && !json_is(text, "<|endoftext|>");
}

static int read_lists(struct gguf_lists *l, const struct json *meta, struct error *e) {
    const struct json *model = json_get(meta, "tokenizer.ggml.model");
    l->tokens = json_get(meta, "tokenizer.ggml.tokens");
    l->types = json_get(meta, "tokenizer.ggml.token_type");
    l->scores = json_get(meta, "tokenizer.ggml.scores");
    l->merges = json_get(meta, "tokenizer.ggml.merges");
    l->is_unigram = json_is(model, "t5");
    l->is_spm = l->is_unigram || json_is(model, "llama");
    l->strips = l->is_spm && is_phi3(meta);
    if (!model || json_is(model, "no_vocab") || json_is(model, "none"))
        return error_set(e, ERR_MODEL, "no tokenizer in its metadata");
    /* Sarvam's pre-tokenizer is Gemma 4's */
    l->is_marked = json_is(model, "gemma4") ||
                   (json_is(model, "gpt2") && json_is(json_get(meta, "tokenizer.ggml.pre"), "sarvam-moe"));
    if (!l->is_spm && !l->is_marked && !json_is(model, "gpt2")) {
        bool named = model->type == JSON_STRING;
        return error_set(e, ERR_MODEL, "'tokenizer.ggml.model' is %.*s; hearth supports gpt2, llama, t5 and gemma4",
                         named ? (int)(model->n < 60 ? model->n : 60) : 1, named ? model->string : "?");
    }
    const struct {
        const char *name;
        const struct json *list;
        bool needed, number;
    } checks[] = {{"tokens", l->tokens, true, false},
                  {"token_type", l->types, l->is_spm, true},
                  {"scores", l->scores, l->is_spm, true}};
    for (size_t i = 0; i < 3; i++) {
        const struct json *a = checks[i].list;
        if (!a && !checks[i].needed) continue;
        if (!a || a->type != JSON_ARRAY || !a->n)
            return error_set(e, ERR_MODEL, "'tokenizer.ggml.%s' is missing or not a list", checks[i].name);
        if (a->n != l->tokens->n)
            return error_set(e, ERR_MODEL, "'tokenizer.ggml.%s' has %u items, 'tokenizer.ggml.tokens' %u",
                             checks[i].name, a->n, l->tokens->n);
        bool fits = checks[i].number ? a->items[0].type == JSON_INT || a->items[0].type == JSON_FLOAT
                                     : a->items[0].type == JSON_STRING;
        if (!fits) return error_set(e, ERR_MODEL, "'tokenizer.ggml.%s' has elements of the wrong type", checks[i].name);
    }
    return 0;
}

static bool is_user_defined(int64_t type) { return type == GGUF_TOKEN_USER || type == GGUF_TOKEN_PIECE; }
static bool is_in_vocabulary(const struct gguf_lists *l, uint32_t id) {
    const int64_t type = gguf_token_type(l->tokens, l->types, id);
    return type != GGUF_TOKEN_UNUSED && type != GGUF_TOKEN_CONTROL;
}
/* Marks ids whose text is another id's, too, which text then becomes: a user-defined token's, or else the lowest. The
 * official files of Gemma 4 QAT have such tokens. *n: their number. */
static int find_repeated(struct arena *a, const struct gguf_lists *l, uint8_t **out, uint32_t *n, struct error *e) {
    uint32_t size = 64;
    while (size < 2 * (uint64_t)l->tokens->n && size < 1u << 31) size *= 2;
    uint32_t *slots = arena_calloc(a, size, sizeof *slots); /* id + 1; 0: free */
    uint8_t *repeated = arena_calloc(a, (size_t)l->tokens->n + 1, 1);
    if (!slots || !repeated) return no_memory(e);
    *n = 0;
    for (uint32_t i = 0; i < l->tokens->n; i++) {
        const struct json *text = &l->tokens->items[i];
        if (!is_in_vocabulary(l, i)) continue;
        uint32_t at = (uint32_t)vocab_hash(text->string, text->n) & (size - 1);
        for (; slots[at]; at = (at + 1) & (size - 1)) {
            const struct json *other = &l->tokens->items[slots[at] - 1];
            if (other->n == text->n && !memcmp(other->string, text->string, text->n)) break;
        }
        const uint32_t other = slots[at];
        const bool replaces = other && is_user_defined(gguf_token_type(l->tokens, l->types, i)) &&
                              !is_user_defined(gguf_token_type(l->tokens, l->types, other - 1));
        if (other) repeated[replaces ? other - 1 : i] = 1, ++*n;
        if (!other || replaces) slots[at] = i + 1;
    }
    *out = repeated;
    return 0;
}

/* Writes the pieces of a Unigram model: [text, score], with a third item if text becomes no such piece. */
static int put_pieces(struct json_builder *model, const struct gguf_lists *l, struct error *e) {
    const uint32_t n = l->tokens->n;
    struct json *items = arena_alloc(model->arena, 4 * (size_t)n * sizeof *items);
    if (!items) return no_memory(e);
    for (uint32_t i = 0; i < n; i++) {
        const int64_t type = gguf_token_type(l->tokens, l->types, i);
        struct json *piece = &items[n + 3 * (size_t)i];
        piece[0] = l->tokens->items[i], piece[1] = *json_at(l->scores, i), piece[2] = bool_value(false);
        const bool is_text = type == GGUF_TOKEN_NORMAL || is_user_defined(type);
        items[i] = (struct json){.type = JSON_ARRAY, .n = is_text ? 2 : 3, .items = piece};
    }
    put_member(model, "vocab", (struct json){.type = JSON_ARRAY, .n = n, .items = items});
    return 0;
}

/* Control tokens are not in the vocabulary: no text may become one. Unused tokens are left out. */
static int put_tokens(struct json_builder *root, struct json_builder *model, const struct gguf_lists *l,
                      struct error *e) {
    uint32_t n = l->tokens->n, k = 0, added = 0, n_repeated = 0, again = 0;
    uint8_t *is_repeated = NULL;
    if (find_repeated(root->arena, l, &is_repeated, &n_repeated, e)) return ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        int64_t type = gguf_token_type(l->tokens, l->types, i);
        added += type == GGUF_TOKEN_CONTROL || is_user_defined(type) || type == GGUF_TOKEN_UNKNOWN;
    }
    struct json *vocab = arena_alloc(root->arena, 2 * (size_t)n * sizeof *vocab),
                *repeated = arena_alloc(root->arena, 2 * ((size_t)n_repeated + 1) * sizeof *repeated),
                *list = arena_alloc(root->arena, (size_t)(added + 1) * sizeof *list);
    if (!vocab || !list || !repeated) return no_memory(e);
    added = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t type = gguf_token_type(l->tokens, l->types, i);
        if (type == GGUF_TOKEN_UNUSED) continue;
        if (type != GGUF_TOKEN_CONTROL) {
            struct json *to = is_repeated[i] ? &repeated[2 * again++] : &vocab[2 * k++];
            to[0] = l->tokens->items[i];
            to[1] = int_value(i);
        }
        if (is_repeated[i]) continue;
        if (type != GGUF_TOKEN_CONTROL && !is_user_defined(type) && type != GGUF_TOKEN_UNKNOWN) continue;
        struct json_builder o;
        if (begin_object(&o, root->arena, 7, e)) return ERR_MEMORY;
        put_member(&o, "id", int_value(i));
        put_member(&o, "content", l->tokens->items[i]);
        put_member(&o, "special", bool_value(!is_user_defined(type)));
        put_member(&o, LOAD_PIECE, bool_value(type == GGUF_TOKEN_PIECE));
        put_member(&o, "normalized", bool_value(false));
        put_member(&o, LOAD_REPEATS, bool_value(true));
        put_member(&o, "rstrip", bool_value(strips_behind(l, &l->tokens->items[i])));
        list[added++] = object_value(&o);
    }
    if (l->is_unigram) again = 0;
    else put_member(model, "vocab", (struct json){.type = JSON_OBJECT, .n = k, .items = vocab});
    if (l->is_unigram && put_pieces(model, l, e)) return ERR_MEMORY;
    put_member(root, LOAD_REPEATS, (struct json){.type = JSON_OBJECT, .n = again, .items = repeated});
    put_member(root, "added_tokens", (struct json){.type = JSON_ARRAY, .n = added, .items = list});
    return 0;
}

/* Byte-level BPE like GPT-2's. */
static int put_bpe(struct json_builder *root, struct json_builder *model, const struct gguf_lists *l,
                   const struct gguf_pretok *pre, struct error *e) {
    struct buf steps = {0};
    buf_fmt(&steps, "{\"type\":\"Sequence\",\"pretokenizers\":[%s%s]}", pre->steps, bytes_step);
    int rc = steps.failed ? no_memory(e) : put_parsed(root, "pre_tokenizer", steps.data);
    buf_free(&steps);
    if (!rc) rc = put_parsed(root, "normalizer", pre->nfc ? "{\"type\":\"NFC\"}" : NULL);
    if (!rc) rc = put_parsed(root, "decoder", "{\"type\":\"ByteLevel\"}");
    put_member(model, "ignore_merges", bool_value(pre->ignore_merges));
    if (l->merges) put_member(model, "merges", *l->merges);
    return rc;
}

/* What SentencePiece does with a text first. */
struct spm_options {
    bool prefix, collapses; /* begins it with a mark; strips spaces, and joins those that follow each other */
    struct json charsmap;   /* its table of replacements, in bytes or numbers; or null */
};
static void read_options(struct spm_options *o, const struct json *meta, bool is_spm) {
    const struct json *map = json_get(meta, "tokenizer.ggml.precompiled_charsmap");
    o->prefix = is_spm && json_bool(json_get(meta, "tokenizer.ggml.add_space_prefix"), true);
    o->collapses = is_spm && json_bool(json_get(meta, "tokenizer.ggml.remove_extra_whitespaces"), false);
    if (is_spm && map && map->n) o->charsmap = *map;
}
static int put_charsmap(struct buf *steps, const struct json *map, struct error *e) {
    struct buf bytes = {0};
    for (uint32_t i = 0; map->type == JSON_ARRAY && i < map->n; i++) {
        const char byte = (char)json_int(&map->items[i], 0);
        buf_add(&bytes, &byte, 1);
    }
    if (map->type == JSON_STRING) buf_add(&bytes, map->string, map->n);
    buf_str(steps, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    base64_put(steps, bytes.data, bytes.len);
    buf_str(steps, "\"},");
    const bool failed = bytes.failed;
    buf_free(&bytes);
    return failed ? no_memory(e) : 0;
}
/* In SentencePiece's order: its table, the spaces, the first mark, marks for all spaces, and those at the end. */
static int put_normalizer(struct json_builder *root, const struct spm_options *o) {
    struct buf steps = {0};
    buf_str(&steps, "{\"type\":\"Sequence\",\"normalizers\":[");
    int rc = o->charsmap.n ? put_charsmap(&steps, &o->charsmap, root->e) : 0;
    if (o->collapses)
        buf_str(&steps, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +\"},\"content\":\"\"},"
                        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},");
    if (o->prefix) buf_str(&steps, "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},");
    buf_str(&steps, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}");
    if (o->collapses)
        buf_str(&steps, ",{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\xE2\x96\x81+\\\\z\"},\"content\":\"\"}");
    buf_str(&steps, "]}");
    if (!rc) rc = steps.failed ? no_memory(root->e) : put_parsed(root, "normalizer", steps.data);
    buf_free(&steps);
    return rc;
}

/* SentencePiece, and Gemma 4's merges of a SentencePiece vocabulary: words begin with a mark, unknown characters fall
 * back to bytes. */
static int put_spm(struct json_builder *root, struct json_builder *model, const struct gguf_lists *l,
                   const struct spm_options *options) {
    const bool prefix = options->prefix;
    int rc = put_normalizer(root, options);
    if (!rc)
        rc = put_parsed(root, "decoder",
                        prefix ? "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                                 "\"\xE2\x96\x81\"},\"content\":\" \"},"
                                 "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
                                 "\",\"start\":1,\"stop\":0}]}"
                               : "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                                 "\"\xE2\x96\x81\"},\"content\":\" \"},"
                                 "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}");
    put_member(model, "byte_fallback", bool_value(true));
    put_member(model, "fuse_unk", bool_value(true));
    for (uint32_t i = 0; i < l->tokens->n; i++)
        if (json_int(json_at(l->types, i), 0) == GGUF_TOKEN_UNKNOWN) {
            if (l->is_unigram) put_member(model, "unk_id", int_value(i));
            else put_member(model, "unk_token", l->tokens->items[i]);
            break;
        }
    if (l->is_marked) {
        if (l->merges) put_member(model, "merges", *l->merges);
        return rc ? rc
                  : put_parsed(
                        root, "pre_tokenizer",
                        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\n]+|\\n+\"},\"behavior\":\"Isolated\"}");
    }
    if (l->is_unigram) return rc;
    put_member(model, "scores", *l->scores);
    put_member(model, "types", *l->types);
    return rc;
}

static int set_bos(struct tokenizer *t, const struct json *meta, const struct gguf_lists *l, bool adds_by_default,
                   struct error *e) {
    int64_t id = json_int(json_get(meta, "tokenizer.ggml.bos_token_id"), l->is_spm ? 1 : -1);
    if (!json_bool(json_get(meta, "tokenizer.ggml.add_bos_token"), adds_by_default) || id < 0) return 0;
    if (id >= t->vocab.n_ids || !t->vocab.tokens[id].flags)
        return error_set(e, ERR_MODEL, "'tokenizer.ggml.bos_token_id' is %lld, which is not a token id", (long long)id);
    t->bos = (int32_t)id;
    return 0;
}

int load_gguf_meta(struct tokenizer *t, const struct json *meta, struct arena *arena, size_t size, struct error *e) {
    struct gguf_lists l = {0};
    struct json_builder root, model;
    const struct gguf_pretok *pre = find_pretok(json_get(meta, "tokenizer.ggml.pre"));
    int rc = read_lists(&l, meta, e);
    const bool is_bytes = !rc && !l.is_spm && !l.is_marked;
    if (is_bytes && pre && !strcmp(pre->name, "default"))
        log_say(LOG_WARN, "the tokenizer names no pre-tokenizer, like files from before May 2024: text is split as "
                          "llama.cpp does by default, and answers may be worse for it; use a newer file of the model");
    if (is_bytes && !pre) rc = fail_unknown_pretok(json_get(meta, "tokenizer.ggml.pre"), e);
    if (!rc && !(rc = begin_object(&root, arena, 6, e)) && !(rc = begin_object(&model, arena, 8, e))) {
        put_member(&model, "type", string_value(l.is_unigram ? "Unigram" : "BPE"));
        rc = put_tokens(&root, &model, &l, e);
        struct spm_options options = {.charsmap = {.type = JSON_NULL}};
        read_options(&options, meta, l.is_spm);
        if (!rc) rc = is_bytes ? put_bpe(&root, &model, &l, pre, e) : put_spm(&root, &model, &l, &options);
        put_member(&root, "model", object_value(&model));
        struct json tree = object_value(&root);
        if (!rc) rc = load_json_tree(t, &tree, size < (64u << 20) ? size : 64u << 20, e);
    }
    return rc ? rc : set_bos(t, meta, &l, !is_bytes || pre->bos, e);
}

int load_gguf(struct tokenizer *t, const char *file, struct error *e) {
    struct file_map map = {0};
    struct arena arena = {0};
    struct gguf g;
    int rc = file_map(&map, file, e);
    if (rc) return rc;
    /* its errors name the file */
    if (!(rc = gguf_parse(&g, &arena, map.data, map.size, file, e)) &&
        (rc = load_gguf_meta(t, &g.meta, &arena, map.size, e)))
        error_prefix(e, "%s", file);
    arena_free(&arena);
    file_unmap(&map);
    return rc;
}
