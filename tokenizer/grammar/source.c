#include "tokenizer/grammar/source.h"

#include <string.h>

#include "tokenizer/grammar/gbnf.h"
#include "tokenizer/grammar/regex.h"
#include "tokenizer/grammar/schema.h"
#include "tokenizer/grammar/tool_source.h"

enum { MAX_SOURCE = 4 << 20 }; /* bytes of the text */

static int from_json(const struct grammar_source *s, struct arena *a, struct json *out, struct error *e) {
    int rc = json_parse(a, s->text, s->n, JSON_UNIQUE, "schema", out, e);
    return rc == ERR_MODEL ? (e->code = ERR_USAGE) : rc;
}

static int from_choices(struct grammar *g, struct effort *f, const struct json *list, expr_id *out, struct error *e) {
    if (list->type != JSON_ARRAY || !list->n)
        return error_set(e, ERR_USAGE, "a list of strings that is not empty is required");
    struct grammar_text *v = arena_alloc(&f->arena, list->n * sizeof *v);
    if (!v) return error_set(e, ERR_MEMORY, "no memory for the choices");
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->items[i].type != JSON_STRING || !list->items[i].n)
            return error_set(e, ERR_USAGE, "choice %u is not a string, or is empty", i + 1);
        v[i] = (struct grammar_text){list->items[i].string, list->items[i].n};
    }
    *out = grammar_literals(g, v, list->n);
    return 0;
}

static int build(const struct grammar_source *s, struct grammar *g, struct effort *f, expr_id *out, struct error *e);

static int from_text_or_calls(struct grammar *g, struct effort *f, const struct json *j, expr_id *out,
                              struct error *e) {
    const struct json *text = json_get(j, "text");
    const int64_t kind = json_int(json_get(j, "kind"), -1);
    expr_id calls;
    if (!text || text->type != JSON_STRING || kind < 0 || kind >= SOURCE_TOOL_CALLS)
        return error_set(e, ERR_USAGE, "a source of the text is required");
    TRY(tool_source_expr(g, f, j, &calls, e));
    TRY(build(&(struct grammar_source){.kind = (enum source_kind)kind, .text = text->string, .n = text->n}, g, f, out,
              e));
    *out = grammar_alt(g, calls, *out);
    return 0;
}

static int build(const struct grammar_source *s, struct grammar *g, struct effort *f, expr_id *out, struct error *e) {
    const struct regex *r;
    struct json j;
    if (s->n > MAX_SOURCE) return error_set(e, ERR_USAGE, "larger than %d MB", MAX_SOURCE >> 20);
    switch (s->kind) {
    case SOURCE_SCHEMA: TRY(from_json(s, &f->arena, &j, e)); return schema_expr(g, f, &j, out, e);
    case SOURCE_JSON_OBJECT: return *out = schema_any_object(g), 0;
    case SOURCE_REGEX: TRY(regex_parse(&f->arena, s->text, s->n, &r, e)); return regex_expr(g, r, out, e);
    case SOURCE_GBNF: return gbnf_expr(g, s->text, s->n, out, e);
    case SOURCE_TOOL_CALLS: TRY(from_json(s, &f->arena, &j, e)); return tool_source_expr(g, f, &j, out, e);
    case SOURCE_TEXT_OR_CALLS: TRY(from_json(s, &f->arena, &j, e)); return from_text_or_calls(g, f, &j, out, e);
    case SOURCE_CHOICES: TRY(from_json(s, &f->arena, &j, e)); return from_choices(g, f, &j, out, e);
    }
    return ERR_USAGE;
}

static int compile(const struct grammar_source *s, const struct effort_guard *guard, struct grammar **out,
                   struct error *e) {
    struct effort effort;
    expr_id root = EXPR_FAILED;
    effort_begin(&effort, guard);
    int rc = grammar_new(out, &effort, e);
    if (!rc) rc = build(s, *out, &effort, &root, e);
    if (!rc) rc = grammar_finish(*out, root, e);
    if ((rc == ERR_MEMORY || effort.failed) && effort_error(&effort, e)) rc = effort_error(&effort, e);
    effort_end(&effort);
    if (rc) grammar_free(out);
    return rc && s->name ? error_prefix(e, "%s", s->name) : rc;
}

int source_compile(const struct grammar_source *s, struct grammar **out, struct error *e) {
    return compile(s, NULL, out, e);
}

int source_compile_all(const struct grammar_source *s, const struct effort_guard *guard, struct source_grammars *out,
                       struct error *e) {
    const struct grammar_source calls = {.kind = SOURCE_TOOL_CALLS, .text = s->text, .n = s->n, .name = s->name};
    *out = (struct source_grammars){0};
    int rc = compile(s, guard, &out->whole, e);
    if (!rc && s->kind == SOURCE_TEXT_OR_CALLS) rc = compile(&calls, guard, &out->calls, e);
    if (rc) source_free(out);
    return rc;
}

void source_free(struct source_grammars *g) {
    grammar_free(&g->whole);
    grammar_free(&g->calls);
}
