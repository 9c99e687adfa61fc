#include "base/gguf_tokens.h"

/* Source of the names: llama.cpp, src/llama-vocab.cpp, which stops at them too. Unlike llama.cpp, hearth takes an HTML
 * tag for a control token only if the file says so (END_PLAIN), and leaves tokens unused that the file calls unused. */
enum name_kind {
    NO_NAME,
    END,       /* ends a turn */
    END_PLAIN, /* ends a turn if the file calls it a control token: vocabularies have such HTML tags, too */
    INNER,     /* a control token within a turn */
};
static const struct {
    const char *text;
    enum name_kind kind;
} names[] = {
    {"<|eot_id|>", END},
    {"<|im_end|>", END},
    {"<|end|>", END},
    {"<|return|>", END},
    {"<|call|>", END},
    {"<|calls|>", END},
    {"<|flush|>", END},
    {"<end_of_turn>", END},
    {"<|endoftext|>", END},
    {"<|end_of_text|>", END},
    {"< EOT >", END},
    {"_<EOT>", END},
    {"<EOT>", END},
    {"[EOT]", END},
    {"[EOS]", END},
    {"<eos>", END},
    {"</s>", END_PLAIN},
    {"<｜end▁of▁sentence｜>", END},
    {"<end_of_utterance>", END},
    {"<|eom_id|>", END},
    {"<turn|>", END},
    {"<|tool_response>", END},
    /* after a model has filled a gap in code: padding, the next repository, the next file */
    {"<|fim_pad|>", END},
    {"<fim-pad>", END},
    {"<fim_pad>", END},
    {"<PAD>", END},
    {"[PAD]", END},
    {"<|fim_repo|>", END},
    {"<|repo_name|>", END},
    {"<fim-repo>", END},
    {"<REPO>", END},
    {"<reponame>", END},
    {"<|file_sep|>", END},

    {"<|fim_prefix|>", INNER},
    {"<fim-prefix>", INNER},
    {"<fim_prefix>", INNER},
    {"<PRE>", INNER},
    {"<|code_prefix|>", INNER},
    {"<|prefix|>", INNER},
    {"<|fim_suffix|>", INNER},
    {"<fim-suffix>", INNER},
    {"<fim_suffix>", INNER},
    {"<SUF>", INNER},
    {"<|code_suffix|>", INNER},
    {"<|suffix|>", INNER},
    {"<|fim_middle|>", INNER},
    {"<fim-middle>", INNER},
    {"<fim_middle>", INNER},
    {"<MID>", INNER},
    {"<|code_middle|>", INNER},
    {"<|middle|>", INNER},
};

static enum name_kind kind_of(const struct json *text) {
    if (text->type != JSON_STRING || !text->n) return NO_NAME;
    const char c = text->string[0];
    if (c != '<' && c != '[' && c != '_') return NO_NAME; /* nearly all tokens of a vocabulary */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(text, names[i].text)) return names[i].kind;
    return NO_NAME;
}

int64_t gguf_token_type(const struct json *texts, const struct json *types, uint32_t id) {
    const struct json *text = json_at(texts, id);
    const int64_t type = json_int(json_at(types, id), GGUF_TOKEN_NORMAL);
    if (type != GGUF_TOKEN_NORMAL && type != GGUF_TOKEN_USER && type != GGUF_TOKEN_PIECE) return type;
    const enum name_kind kind = text ? kind_of(text) : NO_NAME;
    return kind == END || kind == INNER ? GGUF_TOKEN_CONTROL : type;
}

struct end_list {
    int64_t *ids;
    uint32_t n, most;
};
static void add(struct end_list *l, int64_t id) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->ids[i] == id) return;
    if (l->n < l->most) l->ids[l->n++] = id;
}
static void drop(struct end_list *l, const struct json *texts, const char *name) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct json *text =
            l->ids[i] >= 0 && l->ids[i] <= UINT32_MAX ? json_at(texts, (uint32_t)l->ids[i]) : NULL;
        if (!text || !json_is(text, name)) l->ids[n++] = l->ids[i];
    }
    l->n = n;
}

uint32_t gguf_token_ends(const struct json *meta, int64_t *ids, uint32_t most) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
                                       "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};
    enum { FIRST_FIM = 3 };
    const struct json *texts = json_get(meta, "tokenizer.ggml.tokens"),
                      *types = json_get(meta, "tokenizer.ggml.token_type");
    struct end_list l = {.ids = ids, .most = most};
    const uint32_t n_texts = texts && texts->type == JSON_ARRAY ? texts->n : 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct json *given = json_get(meta, keys[i]);
        const uint32_t n = !given ? 0 : given->type == JSON_ARRAY ? given->n : 1;
        for (uint32_t k = 0; k < n; k++) {
            const int64_t id = json_int(given->type == JSON_ARRAY ? &given->items[k] : given, -1);
            if (id != -1 && id != GGUF_TOKEN_NONE && (i < FIRST_FIM || (id >= 0 && id < n_texts))) add(&l, id);
        }
    }
    bool has_return = false, has_call = false, has_flush = false, has_response = false;
    for (uint32_t i = 0; i < n_texts; i++) {
        const struct json *text = &texts->items[i];
        const enum name_kind kind = kind_of(text);
        if ((kind != END && kind != END_PLAIN) || gguf_token_type(texts, types, i) != GGUF_TOKEN_CONTROL) continue;
        has_return |= json_is(text, "<|return|>");
        has_call |= json_is(text, "<|call|>") || json_is(text, "<|calls|>");
        has_flush |= json_is(text, "<|flush|>");
        has_response |= json_is(text, "<|tool_response>");
        add(&l, i);
    }
    /* gpt-oss and Solar Open: a turn has several messages, and other tokens end it */
    if (has_call && (has_return || has_flush)) drop(&l, texts, "<|end|>");
    if (has_response) drop(&l, texts, "</s>"); /* Gemma 4 */
    return l.n;
}
