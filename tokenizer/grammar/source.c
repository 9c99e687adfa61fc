#include "tokenizer/grammar/source.h"

#include <string.h>

#include "tokenizer/grammar/gbnf.h"
#include "tokenizer/grammar/regex.h"
#include "tokenizer/grammar/schema.h"
#include "tokenizer/grammar/tool_source.h"

enum { MAX_SOURCE = 4 << 20, MAX_WORK = 512 << 20 }; /* bytes of the text; of working memory */

static int from_json(const struct grammar_source *s, struct arena *a, struct json *out, struct error *e) {
    int rc = json_parse(a, s->text, s->n, JSON_UNIQUE, "schema", out, e);
    return rc == ERR_MODEL ? (e->code = ERR_USAGE) : rc;
}

static int from_choices(struct grammar *g, const struct json *list, expr_id *out, struct error *e) {
    *out = EXPR_NEVER;
    if (list->type != JSON_ARRAY || !list->n)
        return error_set(e, ERR_USAGE, "a list of strings that is not empty is required");
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->items[i].type != JSON_STRING || !list->items[i].n)
            return error_set(e, ERR_USAGE, "choice %u is not a string, or is empty", i + 1);
        *out = grammar_alt(g, *out, grammar_literal(g, list->items[i].string, list->items[i].n));
    }
    return 0;
}

static int build(const struct grammar_source *s, struct grammar *g, struct arena *a, expr_id *out, struct error *e);

static int from_text_or_calls(struct grammar *g, struct arena *a, const struct json *j, expr_id *out, struct error *e) {
    const struct json *text = json_get(j, "text");
    const int64_t kind = json_int(json_get(j, "kind"), -1);
    expr_id calls;
    if (!text || text->type != JSON_STRING || kind < 0 || kind >= SOURCE_TOOL_CALLS)
        return error_set(e, ERR_USAGE, "a source of the text is required");
    TRY(tool_source_expr(g, a, j, &calls, e));
    TRY(build(&(struct grammar_source){.kind = (enum source_kind)kind, .text = text->string, .n = text->n}, g, a, out,
              e));
    *out = grammar_alt(g, calls, *out);
    return 0;
}

static int build(const struct grammar_source *s, struct grammar *g, struct arena *a, expr_id *out, struct error *e) {
    const struct regex *r;
    struct json j;
    if (s->n > MAX_SOURCE) return error_set(e, ERR_USAGE, "larger than %d MB", MAX_SOURCE >> 20);
    switch (s->kind) {
    case SOURCE_SCHEMA: TRY(from_json(s, a, &j, e)); return schema_expr(g, a, &j, out, e);
    case SOURCE_JSON_OBJECT: return *out = schema_any_object(g), 0;
    case SOURCE_REGEX: TRY(regex_parse(a, s->text, s->n, &r, e)); return regex_expr(g, r, out, e);
    case SOURCE_GBNF: return gbnf_expr(g, s->text, s->n, out, e);
    case SOURCE_TOOL_CALLS: TRY(from_json(s, a, &j, e)); return tool_source_expr(g, a, &j, out, e);
    case SOURCE_TEXT_OR_CALLS: TRY(from_json(s, a, &j, e)); return from_text_or_calls(g, a, &j, out, e);
    case SOURCE_CHOICES: TRY(from_json(s, a, &j, e)); return from_choices(g, &j, out, e);
    }
    return ERR_USAGE;
}

int source_compile(const struct grammar_source *s, struct grammar **out, struct error *e) {
    struct arena arena = {.limit = MAX_WORK};
    expr_id root = EXPR_FAILED;
    int rc = grammar_new(out, e);
    if (!rc) rc = build(s, *out, &arena, &root, e);
    if (!rc) rc = grammar_finish(*out, root, e);
    arena_free(&arena);
    if (rc) grammar_free(out);
    return rc;
}
