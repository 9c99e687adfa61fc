/* Writes texts of a grammar at random, for test_grammar_walk.py: reads {"kind": ..., "source": ..., "seed": ...,
 * "count": ...} lines from stdin and writes
 * {"texts": [...]} or {"error": ...} for each. Steps are random bytes that the automaton allows; after a while the
 * shortest way out. Texts begin with "prefix", if given. With "accept": [text, ...] it writes {"accepted": [true or
 * false, ...]} instead. With "template": FILE the source is the schema of a tool's arguments, the texts are calls in
 * the form of that chat template, and the arguments of each call are written as the program reads them. With a
 * directory as argument steps are tokens of its tokenizer, drawn from masks, the last ones with little room for the
 * rest of the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/turn/tool_grammar.h"
#include "engine/ember/ember.h"
#include "tokenizer/chat/tool_calls.h"
#include "tokenizer/grammar/matcher.h"

static uint64_t state;
static uint32_t draw(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* Appends one text to out, which may have begun; false: a dead end, which a grammar must not have. */
static bool walk(struct automaton *a, uint32_t patience, struct buf *out) {
    state_id s = automaton_run(a, automaton_start(a), out->data, out->len);
    for (uint32_t n = 0;; n++) {
        uint8_t next[256];
        uint32_t n_next = 0, least = UINT32_MAX;
        if (automaton_is_final(a, s) || (automaton_is_complete(a, s) && (n > patience || !draw(4)))) return true;
        for (int b = 0; b < 256; b++) {
            const state_id to = automaton_step(a, s, (uint8_t)b);
            if (!to) continue;
            if (n > patience && automaton_missing(a, to) > least) continue;
            if (n > patience && automaton_missing(a, to) < least) n_next = 0, least = automaton_missing(a, to);
            next[n_next++] = (uint8_t)b;
        }
        if (!n_next) return false;
        const uint8_t byte = next[draw(n_next)];
        buf_char(out, (char)byte);
        s = automaton_step(a, s, byte);
    }
}

/* The same with tokens; a limit of `room` tokens past the least holds after `patience` tokens. */
static struct json tools; /* of the line; type NULL: texts are no calls */

static bool walk_tokens(const struct grammar *g, const struct token_trie *t, uint32_t patience, uint32_t room,
                        struct buf *out) {
    struct matcher *m;
    struct error e = {0};
    bool ok = !matcher_open(&m, g, t, &e);
    uint32_t left = UINT32_MAX;
    if (ok && tools.type == JSON_ARRAY) matcher_allow_line_ends(m);
    for (uint32_t n = 0; ok && !matcher_is_final(m); n++) {
        const uint64_t *bits;
        int32_t chosen = -1;
        uint32_t count = 0;
        if (matcher_is_complete(m) && (n > patience || !draw(4))) break;
        if (n >= patience) left = n == patience ? matcher_least_tokens(m) + room : left - 1;
        ok = !matcher_mask(m, left, &bits, &e);
        for (int32_t id = 0; ok && id < t->n_ids; id++)
            if (bits[id >> 6] >> (id & 63) & 1 && !draw(++count)) chosen = id;
        if (chosen < 0) break;
        size_t size;
        const char *s = tokenizer_token_bytes(t->tokenizer, chosen, &size, NULL);
        buf_add(out, s, size);
        ok = !matcher_accept(m, chosen, &e);
    }
    ok = ok && matcher_is_complete(m);
    matcher_close(&m);
    return ok;
}

static const struct token_trie *trie; /* NULL: steps are bytes */

/* Replaces the text of one call by its arguments. */
static void read_call(struct buf *text) {
    struct tool_calls calls = {0};
    const bool ok =
        !tool_calls_parse(text->data, text->len, &tools, &calls) && calls.n == 1 && !strcmp(calls.v[0].name.data, "f");
    struct buf out = {0};
    if (ok) buf_add(&out, calls.v[0].arguments.data, calls.v[0].arguments.len);
    else buf_fmt(&out, "<not a call> %s", text->data);
    buf_free(text);
    *text = out;
    tool_calls_free(&calls);
}

static void put_texts(const struct grammar *g, struct automaton *a, const struct json *j, struct buf *out) {
    const struct json *prefix = json_get(j, "prefix");
    buf_str(out, "{\"texts\": [");
    for (int64_t i = 0; i < json_int(json_get(j, "count"), 1); i++) {
        struct buf one = {0};
        buf_str(&one, "");
        if (prefix) buf_add(&one, prefix->string, prefix->n);
        if (trie ? !walk_tokens(g, trie, draw(100), draw(20), &one) : !walk(a, 20 + draw(300), &one))
            buf_str(&one, "<dead end>");
        if (tools.type == JSON_ARRAY) read_call(&one);
        buf_str(out, i ? ", " : "");
        json_quote(out, one.data, one.len);
        buf_free(&one);
    }
    buf_char(out, ']');
}

static void put_accepted(struct automaton *a, const struct json *texts, struct buf *out) {
    buf_str(out, "{\"accepted\": [");
    for (uint32_t i = 0; i < texts->n; i++) {
        const state_id s = automaton_run(a, automaton_start(a), texts->items[i].string, texts->items[i].n);
        buf_fmt(out, "%s%s", i ? ", " : "", automaton_is_complete(a, s) ? "true" : "false");
    }
    buf_char(out, ']');
}

/* The source of a call of the tool "f" in the form of a template. */
static int calls_source(struct arena *arena, const char *template, const struct json *parameters,
                        const struct tokenizer *t, struct grammar_source *out, struct error *e) {
    struct chat_template *c;
    struct buf b = {0};
    buf_str(&b, "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": ");
    buf_add(&b, parameters->string, parameters->n);
    buf_str(&b, "}}]");
    int rc = json_parse(arena, arena_strndup(arena, b.data, b.len), b.len, 0, "tools", &tools, e);
    buf_free(&b);
    if (rc || (rc = chat_template_open(&c, NULL, template, e))) return rc;
    rc = tool_grammar_make(arena, c, t, &(struct tool_request){.tools = &tools, .is_single = true}, out, e);
    chat_template_close(&c);
    return rc;
}

static const struct tokenizer *tokenizer; /* for the markers of calls */

static void answer(struct arena *arena, const struct json *j, struct buf *out) {
    static const char *const kinds[] = {"schema", "json-object", "regex", "gbnf", "choices"};
    const struct json *text = json_get(j, "source"), *template = json_get(j, "template");
    struct grammar_source source = {.text = text->string, .n = text->n};
    struct grammar *g = NULL;
    struct automaton *a = NULL;
    struct error e = {0};
    for (int k = 0; k < 5; k++)
        if (json_is(json_get(j, "kind"), kinds[k])) source.kind = (enum source_kind)k;
    state = (uint64_t)json_int(json_get(j, "seed"), 1) * 7919 + 1;
    tools = (struct json){0};
    if ((template &&
         calls_source(arena, arena_strndup(arena, template->string, template->n), text, tokenizer, &source, &e)) ||
        source_compile(&source, &g, &e) || automaton_open(&a, g, &e)) {
        buf_str(out, "{\"error\": ");
        json_quote(out, e.text, strlen(e.text));
    } else {
        if (json_get(j, "accept")) put_accepted(a, json_get(j, "accept"), out);
        else put_texts(g, a, j, out);
    }
    buf_str(out, "}\n");
    automaton_close(&a);
    grammar_free(&g);
}

int main(int argc, char **argv) {
    struct tokenizer *t = NULL;
    struct token_trie *opened = NULL;
    struct error why = {0};
    file_embed(ember_files);
    if (tokenizer_open(&t, argc > 1 ? argv[1] : "ember:", &why) || (argc > 1 && token_trie_open(&opened, t, &why)))
        return fprintf(stderr, "%s\n", why.text), 1;
    trie = opened, tokenizer = t;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct arena arena = {0};
        struct json j;
        struct error e = {0};
        struct buf out = {0};
        if (json_parse(&arena, line, (size_t)n, 0, "line", &j, &e)) return fprintf(stderr, "%s\n", e.text), 1;
        answer(&arena, &j, &out);
        fwrite(out.data, 1, out.len, stdout);
        fflush(stdout);
        buf_free(&out);
        arena_free(&arena);
    }
    free(line);
    if (opened) token_trie_close(&opened);
    tokenizer_close(&t);
    return 0;
}
