#include "cli/turn/constraint.h"

#include <limits.h>
#include <string.h>

#include "base/file.h"
#include "cli/app.h"
#include "cli/terminal/out.h"
#include "tokenizer/grammar/matcher.h"

/* --- options ---------------------------------------------------------------------------------- */

static const struct {
    enum opt_id id;
    enum source_kind kind;
} constraint_options[] = {{OPT_SCHEMA, SOURCE_SCHEMA},
                          {OPT_JSON_OBJECT, SOURCE_JSON_OBJECT},
                          {OPT_REGEX, SOURCE_REGEX},
                          {OPT_GRAMMAR, SOURCE_GBNF},
                          {OPT_CHOICES, SOURCE_CHOICES}};

enum { MAX_SOURCE_BYTES = 4 << 20 };

static int read_text_file(const char *path, struct buf *out, struct error *e) {
    char *data = NULL;
    size_t n = 0;
    int rc = file_read(path, MAX_SOURCE_BYTES, &data, &n, e);
    if (!rc && buf_add(out, data, n)) rc = error_set(e, ERR_MEMORY, "no memory");
    mem_free(data);
    return rc;
}

/* "a,b,c" as a JSON array. */
static void put_choices(const char *text, struct buf *out) {
    buf_char(out, '[');
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (at > text) buf_char(out, ',');
        out_json_string(out, at, n);
        at += n;
        if (!*at) break;
    }
    buf_char(out, ']');
}

static int read_option(enum opt_id id, const struct opt_value *v, struct buf *out, struct error *e) {
    buf_str(out, ""); /* data is not NULL, as constraint_of_options() requires */
    if (id == OPT_JSON_OBJECT) return 0;
    if (id == OPT_GRAMMAR) return read_text_file(v->text, out, e);
    if (id == OPT_CHOICES) return put_choices(v->text, out), 0;
    const char *text = v->text + strspn(v->text, " \t\r\n");
    if (id == OPT_SCHEMA && *text != '{' && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return read_text_file(v->text, out, e);
    return buf_str(out, v->text);
}

int constraint_read_options(struct app *a, struct error *e) {
    for (size_t i = 0; i < sizeof constraint_options / sizeof *constraint_options; i++) {
        const enum opt_id id = constraint_options[i].id;
        const struct opt_value *v = &a->opts.v[id];
        if (!v->text) continue;
        int rc = read_option(id, v, &a->answer_text, e);
        if (!rc && a->answer_text.failed) rc = error_set(e, ERR_MEMORY, "no memory");
        if (rc) return error_prefix(e, "--%s", opt_table[id].name);
        a->answer_source = (struct grammar_source){
            .kind = constraint_options[i].kind, .text = a->answer_text.data, .n = a->answer_text.len};
        if ((rc = source_compile_all(&a->answer_source, NULL, &a->answer_grammars, e)))
            return error_prefix(e, "--%s", opt_table[id].name);
        a->answer_source.compiled = &a->answer_grammars;
    }
    return 0;
}

void constraint_free_options(struct app *a) {
    buf_free(&a->answer_text);
    source_free(&a->answer_grammars);
    a->answer_source = (struct grammar_source){0};
}

const struct grammar_source *constraint_of_options(const struct app *a) {
    return a->answer_source.text ? &a->answer_source : NULL;
}

/* --- one answer ------------------------------------------------------------------------------- */

enum { MAX_OPENINGS = 8 };
struct constraint {
    struct token_filter filter;
    const struct token_trie *trie;
    struct source_grammars own; /* of a source that was not compiled */
    struct matcher *matcher;
    struct output_parser *parser; /* follows the thinking; NULL: raw */
    bool is_free;                 /* thinking: every token is allowed */
    /* of the grammar of calls, at its beginning, if the answer may be calls or text; else NULL */
    struct matcher *call_matcher;
    bool may_call;                  /* an answer may be calls */
    _Atomic int part;               /* kind of the text that the grammar governs: enum output_kind */
    int32_t openings[MAX_OPENINGS]; /* tokens that open thinking, allowed as the first token */
    int n_openings, n_tokens, n_replayed;
    uint64_t *bits;            /* a mask of the grammar's tokens and the openings */
    _Atomic int governed_from; /* the first token that the grammar governs; INT32_MAX: not known yet */
};

static int ignore_part(void *ctx, enum output_kind part, const char *data, size_t n) { return 0; }

static int filter_allowed(void *ctx, int left, const uint64_t **bits, int *n_ids, struct error *e) {
    struct constraint *c = ctx;
    *bits = NULL;
    *n_ids = c->trie->n_ids;
    if (c->is_free) return 0;
    TRY(matcher_mask(c->matcher, left ? (uint32_t)left : UINT32_MAX, bits, e));
    if (c->n_tokens || !c->n_openings || left) return 0;
    memcpy(c->bits, *bits, ((size_t)*n_ids + 63) / 64 * sizeof *c->bits);
    for (int i = 0; i < c->n_openings; i++) c->bits[c->openings[i] >> 6] |= 1ull << (c->openings[i] & 63);
    *bits = c->bits;
    return 0;
}

static bool is_opening(const struct constraint *c, int32_t id) {
    for (int i = 0; i < c->n_openings && !c->n_tokens; i++)
        if (c->openings[i] == id) return true;
    return false;
}

static bool filter_fits(void *ctx, int32_t id, int left) {
    struct constraint *c = ctx;
    return c->is_free || is_opening(c, id) || matcher_fits(c->matcher, id, left > 0 ? (uint32_t)left : 0);
}

static int filter_least(void *ctx) {
    const uint32_t n = matcher_least_tokens(((struct constraint *)ctx)->matcher);
    return n < INT_MAX ? (int)n : INT_MAX;
}

static int accept_free(struct constraint *c, int32_t id, struct error *e) {
    bool special = false;
    size_t n = 0;
    const char *s = tokenizer_token_bytes(c->trie->tokenizer, id, &n, &special);
    c->n_tokens++;
    if (s && output_parser_feed(c->parser, s, n, special, ignore_part, NULL))
        return error_set(e, ERR_MEMORY, "no memory");
    c->is_free = !output_parser_in_answer(c->parser);
    if (!c->is_free) atomic_store(&c->governed_from, c->n_tokens - c->n_replayed);
    return 0;
}

/* Decides by the first token that is not a newline whether the answer is tool calls or text. */
static void find_part(struct constraint *c, int32_t id) {
    size_t n = 0, i = 0;
    bool special;
    const char *s = tokenizer_token_bytes(c->trie->tokenizer, id, &n, &special);
    while (s && i < n && (s[i] == '\n' || s[i] == '\r')) i++;
    if (i == n) return;
    c->filter.is_whole = matcher_fits(c->call_matcher, id, UINT32_MAX);
    atomic_store(&c->part, c->filter.is_whole ? OUTPUT_TOOL_CALL : OUTPUT_TEXT);
    matcher_close(&c->call_matcher);
}

static int accept_token(void *ctx, int32_t id, struct error *e) {
    struct constraint *c = ctx;
    if (c->is_free || is_opening(c, id)) {
        c->is_free = true;
        return accept_free(c, id, e);
    }
    if (c->call_matcher) find_part(c, id);
    if (!c->n_tokens++) atomic_store(&c->governed_from, 0);
    return matcher_accept(c->matcher, id, e);
}

/* Tokenizes the bytes that must follow. The last token may be joined with what comes after it, so it is left out. */
static int filter_forced(void *ctx, int most, int32_t *out) {
    struct constraint *c = ctx;
    uint8_t bytes[64];
    struct ids ids = {0};
    const size_t n =
        c->is_free || (!c->n_tokens && c->n_openings) ? 0 : matcher_forced(c->matcher, bytes, sizeof bytes);
    if (n > 1 && tokenizer_encode(c->trie->tokenizer, (const char *)bytes, n, TEXT_VALUE, &ids, NULL)) ids.n = 0;
    int k = 0;
    for (; k < most && k + 1 < (int)ids.n; k++) out[k] = ids.data[k];
    ids_free(&ids);
    return k;
}

static enum filter_state filter_state(const void *ctx) {
    const struct constraint *c = ctx;
    return c->is_free || !matcher_is_complete(c->matcher) ? FILTER_OPEN
           : matcher_is_final(c->matcher)                 ? FILTER_FINAL
                                                          : FILTER_COMPLETE;
}

/* Finds the tokens that may open a thinking block, unless the prompt has closed one already. */
static void find_openings(struct constraint *c, const struct dialect_set *s, const char *tail, size_t n) {
    for (const struct dialect *const *d = s->active; *d; d++) {
        const int32_t id = (*d)->kind == OUTPUT_THINKING ? tokenizer_added_id(c->trie->tokenizer, (*d)->open) : -1;
        if (id >= 0 && c->n_openings < MAX_OPENINGS && !memmem(tail, n, (*d)->close, strlen((*d)->close)))
            c->openings[c->n_openings++] = id;
    }
}

int constraint_open(struct constraint **out, struct app *a, const struct grammar_source *s, bool is_raw,
                    const char *tail, size_t n, struct error *e) {
    struct constraint *c = *out = mem_calloc(1, sizeof *c);
    if (!c) return error_set(e, ERR_MEMORY, "no memory for a grammar");
    c->filter = (struct token_filter){.ctx = c,
                                      .allowed = filter_allowed,
                                      .fits = filter_fits,
                                      .least = filter_least,
                                      .accept = accept_token,
                                      .state = filter_state,
                                      .forced = filter_forced};
    atomic_store(&c->governed_from, INT32_MAX);
    int rc = a->trie ? 0 : token_trie_open(&a->trie, a->tokenizer, e);
    c->trie = a->trie;
    c->may_call = s->kind == SOURCE_TOOL_CALLS || s->kind == SOURCE_TEXT_OR_CALLS;
    atomic_store(&c->part, s->kind == SOURCE_TOOL_CALLS ? OUTPUT_TOOL_CALL : OUTPUT_TEXT);
    c->filter.is_whole = s->kind == SOURCE_TOOL_CALLS;
    if (!rc && !s->compiled) rc = source_compile_all(s, NULL, &c->own, e);
    const struct source_grammars *g = s->compiled ? s->compiled : &c->own;
    if (!rc) rc = matcher_open(&c->matcher, g->whole, c->trie, e);
    if (!rc && c->may_call) matcher_allow_line_ends(c->matcher);
    if (!rc && g->calls) rc = matcher_open(&c->call_matcher, g->calls, c->trie, e);
    if (!rc && a->template && !is_raw) {
        c->parser = output_parser_open(a->template, tail, n);
        c->bits = mem_calloc((size_t)c->trie->n_ids / 64 + 1, sizeof *c->bits);
        if (!c->parser || !c->bits) rc = error_set(e, ERR_MEMORY, "no memory for a grammar");
        else {
            /* calls have headers */
            c->is_free = !output_parser_in_answer(c->parser) && !(c->may_call && output_parser_in_header(c->parser));
            find_openings(c, chat_template_dialects(a->template), tail, n);
        }
    }
    if (rc) constraint_close(out);
    return rc;
}

void constraint_close(struct constraint **at) {
    struct constraint *c = *at;
    *at = NULL;
    if (!c) return;
    matcher_close(&c->matcher);
    matcher_close(&c->call_matcher);
    source_free(&c->own);
    output_parser_close(&c->parser);
    mem_free(c->bits);
    mem_free(c);
}

const struct token_filter *constraint_filter(const struct constraint *c) { return &c->filter; }
int constraint_replay(struct constraint *c, int32_t id, struct error *e) {
    int rc = accept_token(c, id, e);
    c->n_replayed = c->n_tokens;
    if (!c->is_free) atomic_store(&c->governed_from, 0);
    return rc;
}
bool constraint_governs(const struct constraint *c, int i, enum output_kind *part) {
    *part = (enum output_kind)atomic_load(&c->part);
    return i >= atomic_load(&c->governed_from);
}

/* --- requests --------------------------------------------------------------------------------- */

void constraint_put_request(const struct grammar_source *s, struct buf *b) {
    switch (s->kind) {
    case SOURCE_SCHEMA:
        buf_str(b, "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"answer\", "
                   "\"strict\": true, \"schema\": ");
        buf_add(b, s->text, s->n);
        buf_str(b, "}}");
        break;
    case SOURCE_JSON_OBJECT: buf_str(b, "\"response_format\": {\"type\": \"json_object\"}"); break;
    case SOURCE_CHOICES:
        buf_str(b, "\"guided_choice\": ");
        buf_add(b, s->text, s->n);
        break;
    case SOURCE_TOOL_CALLS:
    case SOURCE_TEXT_OR_CALLS: break; /* a request's own: never sent */
    case SOURCE_REGEX:
    case SOURCE_GBNF:
        buf_str(b, s->kind == SOURCE_REGEX ? "\"guided_regex\": " : "\"guided_grammar\": ");
        out_json_string(b, s->text, s->n);
        break;
    }
}
