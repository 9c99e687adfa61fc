#include "cli/turn/infill.h"

#include "cli/app.h"

/* Marks as vocabularies name them, in the order in which their models were trained. */
static const struct {
    const char *before_prefix, *before_suffix, *before_middle; /* NULL: none */
    bool suffix_first;
} marks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false},    /* Qwen, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},          /* StarCoder, Granite */
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},          /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false},    /* DeepSeek */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false}, /* GLM */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", false},                            /* Code Llama */
    {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", true},     /* Seed-Coder */
    {"[PREFIX]", "[SUFFIX]", NULL, true},                             /* Codestral */
};
enum { N_MARKS = sizeof marks / sizeof *marks };

static int add_id(struct prompt *p, int32_t id, struct error *e) {
    if (mem_grow(&p->ids.data, &p->ids.cap, p->ids.n + 1, sizeof *p->ids.data))
        return error_set(e, ERR_MEMORY, "no memory");
    p->ids.data[p->ids.n++] = id;
    return 0;
}

static int add_part(struct app *a, const char *mark, const struct json *text, struct prompt *p, struct error *e) {
    TRY(add_id(p, tokenizer_added_id(a->tokenizer, mark), e));
    return tokenizer_encode(a->tokenizer, text->n ? text->string : "", text->n, TEXT_VALUE, &p->ids, e);
}

int infill_make_prompt(struct app *a, const struct json *prefix, const struct json *suffix, struct prompt *out,
                       struct error *e) {
    const int32_t bos = tokenizer_bos(a->tokenizer);
    size_t i = 0;
    for (; i < N_MARKS; i++)
        if (tokenizer_added_id(a->tokenizer, marks[i].before_prefix) >= 0 &&
            tokenizer_added_id(a->tokenizer, marks[i].before_suffix) >= 0 &&
            (!marks[i].before_middle || tokenizer_added_id(a->tokenizer, marks[i].before_middle) >= 0))
            break;
    if (i == N_MARKS)
        return error_set(e, ERR_USAGE,
                         "suffix: this model does not fill in the middle: its vocabulary has no marks for that");
    const struct {
        const char *mark;
        const struct json *text;
    } parts[] = {{marks[i].before_prefix, prefix}, {marks[i].before_suffix, suffix}};
    if (bos >= 0) TRY(add_id(out, bos, e));
    for (int k = 0; k < 2; k++) {
        const int part = marks[i].suffix_first ? 1 - k : k;
        TRY(add_part(a, parts[part].mark, parts[part].text, out, e));
    }
    if (marks[i].before_middle) TRY(add_id(out, tokenizer_added_id(a->tokenizer, marks[i].before_middle), e));
    out->n_given = out->ids.n;
    return 0;
}
