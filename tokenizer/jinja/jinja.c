#include "tokenizer/jinja/jinja.h"

#include <string.h>

#include "tokenizer/jinja/jeval.h"
#include "tokenizer/unicode.h"

/* Entry points. Parsing and rendering each use one arena and one error handler (setjmp). */

enum { PARSE_MAX_BYTES = 256 << 20, RENDER_MAX_BYTES = 1 << 30, PARSE_MAX_STEPS = 100000000 };

/* Converts newlines to \n and drops one at the end, as Jinja2 does. */
static size_t normalize_newlines(char *to, const char *s, size_t n) {
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r') {
            to[o++] = '\n';
            if (i + 1 < n && s[i + 1] == '\n') i++;
        } else to[o++] = s[i];
    }
    return o && to[o - 1] == '\n' ? o - 1 : o;
}

static int parse_protected(struct jinja *j, struct error *e) {
    struct jrun r = {.arena = &j->arena,
                     .e = e,
                     .source_name = j->source_name,
                     .source = j->source,
                     .n_source = j->n_source,
                     .steps_left = PARSE_MAX_STEPS,
                     .code = ERR_MODEL};
    if (setjmp(r.on_error)) return r.code;
    j->body = jparse(&r);
    r.depth = 0;
    j->scope = jscope_resolve(&r, j->body);
    j->reads = r.reads;
    return 0;
}
int jinja_parse(struct jinja **out, const char *source, size_t n, const char *what, struct error *e) {
    struct jinja *j = mem_calloc(1, sizeof *j);
    int rc = ERR_MEMORY;
    *out = NULL;
    if (!j) return error_set(e, ERR_MEMORY, "%s: out of memory", what);
    j->arena.limit = PARSE_MAX_BYTES;
    if (!(j->source_name = arena_strndup(&j->arena, what, strlen(what))) || n > UINT32_MAX / 2 ||
        !(j->source = arena_alloc(&j->arena, n + 1)))
        error_set(e, rc, "%s: out of memory", what);
    else if (utf8_valid(source, n) != n) rc = error_set(e, ERR_MODEL, "%s: not UTF-8", what);
    else {
        j->n_source = normalize_newlines(j->source, source, n);
        rc = parse_protected(j, e);
    }
    if (rc) jinja_close(&j);
    *out = j;
    return rc;
}
void jinja_close(struct jinja **j) {
    if (!*j) return;
    arena_free(&(*j)->arena);
    mem_free(*j);
    *j = NULL;
}
const char *jinja_source(const struct jinja *j, size_t *n) {
    *n = j->n_source;
    return j->source;
}

bool jinja_reads(const struct jinja *j, const char *name) {
    const size_t n = strlen(name);
    for (const struct jread *at = j->reads; at; at = at->next)
        if (at->name->n == n && !memcmp(at->name->s, name, n)) return true;
    return false;
}

/* ---- rendering */

/* Returns 1 + the place of a whole number in r->big, which doubles at each power of two. */
static uint32_t keep_digits(struct jrun *r, const struct json *j) {
    if (!(r->n_big & (r->n_big - 1))) {
        const struct json **more = jalloc(r, (r->n_big ? 2 * (size_t)r->n_big : 1) * sizeof *more);
        if (r->n_big) memcpy(more, r->big, r->n_big * sizeof *more);
        r->big = more;
    }
    r->big[r->n_big++] = j;
    return r->n_big;
}

struct jval jval_from_json(struct jrun *r, const struct json *j) {
    struct jval v = jval_none();
    jenter_depth(r);
    switch (j->type) {
    case JSON_BOOL: v = jval_bool(j->boolean); break;
    case JSON_INT: v = jval_int(j->integer); break;
    case JSON_FLOAT:
        v = jval_float(json_num(j, 0));
        if (j->n) v.big = keep_digits(r, j);
        break;
    case JSON_STRING: v = jstr_new(r, j->n ? j->string : "", j->n, TEXT_VALUE); break;
    case JSON_ARRAY:
        v = jval_list(r, J_LIST, j->n);
        for (uint32_t i = 0; i < j->n; i++) v.l->v[i] = jval_from_json(r, &j->items[i]);
        break;
    case JSON_OBJECT:
        v = jdict_new(r);
        for (uint32_t i = 0; i < j->n; i++) {
            struct jval key = jval_from_json(r, &j->items[2 * i]);
            jdict_set(r, v.d, key, jval_from_json(r, &j->items[2 * i + 1]));
        }
        break;
    default: break;
    }
    v.origin = TEXT_VALUE;
    r->depth--;
    return v;
}

/* Copies the output out of the arena and turns the origins into runs. */
static int copy_output(const struct jbuf *b, struct text *out) {
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < b->n;) {
        size_t from = i;
        while (i < b->n && b->origins[i] == b->origins[from]) i++;
        if (n == cap && mem_grow(&out->runs, &cap, n + 1, sizeof *out->runs)) return ERR_MEMORY;
        out->runs[n++] = (struct text_run){.n = i - from, .origin = b->origins[from]};
    }
    out->n_runs = n;
    out->n = b->n;
    out->data = mem_strndup(b->n ? b->data : "", b->n);
    return out->data ? 0 : ERR_MEMORY;
}

static void render_template(struct jrun *r, const struct jinja *j, const struct json *vars, const struct jinja_var *own,
                            struct jbuf *b) {
    r->vars = jdict_new(r).d;
    for (; own && own->name; own++)
        if (own->text) jdict_set(r, r->vars, jstr_literal(r, own->name), jstr_new(r, own->text, own->n, TEXT_TEMPLATE));
    if (vars && vars->type == JSON_OBJECT) {
        struct jval all = jval_from_json(r, vars);
        for (size_t i = 0; i < all.d->n; i++) jdict_set(r, r->vars, all.d->kv[2 * i], all.d->kv[2 * i + 1]);
    }
    jexec_body(r, j->body, jexec_frame(r, j->scope, NULL), b);
}
static int render_protected(struct jrun *r, const struct jinja *j, const struct json *vars, const struct jinja_var *own,
                            struct jbuf *b) {
    if (setjmp(r->on_error)) return r->code;
    render_template(r, j, vars, own, b);
    return 0;
}
int jinja_render(const struct jinja *j, const struct json *vars, const struct jinja_var *own, struct text *out,
                 struct error *e) {
    struct arena arena = {.limit = RENDER_MAX_BYTES};
    struct jrun r = {.arena = &arena,
                     .e = e,
                     .source_name = j->source_name,
                     .source = j->source,
                     .n_source = j->n_source,
                     .steps_left = JINJA_MAX_STEPS,
                     .code = ERR_RUNTIME};
    struct jbuf b = {0};
    *out = (struct text){0};
    int rc = render_protected(&r, j, vars, own, &b);
    if (!rc && (rc = copy_output(&b, out))) {
        text_free(out);
        error_set(e, rc, "%s: no memory for the prompt", j->source_name);
    }
    arena_free(&arena);
    return rc;
}
