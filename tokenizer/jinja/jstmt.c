#include "tokenizer/jinja/jparse.h"

/* Parses statements. Rejects by name the Jinja2 tags that need a template loader. */

static struct jnode *parse_statement(struct jparser *p);

/* Returns whether the token is one of the words, which '|' separates. */
static bool is_word_in(const struct jtoken *t, const char *words) {
    if (t->type != T_NAME) return false;
    for (const char *w = words; *w;) {
        size_t n = 0;
        while (w[n] && w[n] != '|') n++;
        if (n == t->value.s->n && !__builtin_memcmp(w, t->value.s->s, n)) return true;
        w += n + (w[n] == '|');
    }
    return false;
}
/* Parses up to one of the closing words, which becomes the current token; NULL: up to the end of the template. */
static struct jnode *parse_body(struct jparser *p, const char *until) {
    struct jnode *first = NULL, **end = &first;
    jparse_enter(p);
    for (;;) {
        struct jtoken *t = p->token;
        struct jnode *n = NULL;
        if (t->type == T_DATA) { /* v: the text */
            n = jparse_new(p, N_DATA, t->pos);
            n->value = t->value;
            p->token++;
        } else if (t->type == T_VAR_BEGIN) { /* a: what to print */
            p->token++;
            n = jparse_new(p, N_PRINT, t->pos);
            n->a = jparse_tuple(p, true, NULL);
            jparse_expect(p, T_VAR_END, "end of print statement");
        } else if (t->type == T_BLOCK_BEGIN) {
            p->token++;
            if (until && is_word_in(p->token, until)) break;
            n = parse_statement(p);
            jparse_expect(p, T_BLOCK_END, "end of statement block");
        } else if (until) {
            p->r->pos = t->pos;
            jfail(p->r, "unexpected end of template, looking for %s", until);
        } else break;
        if (n) {
            *end = n;
            while (*end) end = &(*end)->next;
        }
    }
    p->r->depth--;
    return first;
}
/* Parses a colon, if there is one, %} and a body up to one of the closing words; skip: and past it. */
static struct jnode *parse_block(struct jparser *p, const char *until, bool skip) {
    jparse_accept(p, T_COLON);
    jparse_expect(p, T_BLOCK_END, "end of statement block");
    struct jnode *n = parse_body(p, until);
    if (skip) p->token++;
    return n;
}

static struct jnode *parse_if(struct jparser *p, uint32_t pos) { /* list of N_PAIR: a test (NULL: else), body */
    struct jnode *n = jparse_new(p, N_IF, pos), **end = &n->list;
    for (;;) {
        struct jnode *branch = jparse_new(p, N_PAIR, p->token->pos);
        branch->a = jparse_tuple(p, false, NULL);
        branch->body = parse_block(p, "elif|else|endif", false);
        *end = branch;
        end = &branch->next;
        if (jparse_accept_name(p, "elif")) continue;
        if (jparse_accept_name(p, "else")) {
            branch = jparse_new(p, N_PAIR, p->token->pos);
            branch->body = parse_block(p, "endif", true);
            *end = branch;
        } else p->token++;
        return n;
    }
}

/* Returns whether a node or a part of it assigns to the name loop. */
static bool stores_loop(const struct jnode *n) {
    for (; n; n = n->next) {
        if (n->kind == N_NAME && n->is_stored && jstr_equals(n->value.s, "loop")) return true;
        if (stores_loop(n->a) || stores_loop(n->list) || stores_loop(n->body) || stores_loop(n->orelse)) return true;
    }
    return false;
}
/* a target, b iterable, c condition or NULL, is_recursive, body, orelse */
static struct jnode *parse_for(struct jparser *p, uint32_t pos) {
    struct jnode *n = jparse_new(p, N_FOR, pos);
    n->a = jparse_target(p, false, "in");
    if (!jparse_accept_name(p, "in")) jparse_fail(p, "expected 'in'");
    n->b = jparse_tuple(p, false, "recursive");
    if (jparse_accept_name(p, "if")) n->c = jparse_expr(p);
    n->is_recursive = jparse_accept_name(p, "recursive");
    p->n_loops++;
    n->body = parse_block(p, "endfor|else", false);
    p->n_loops--;
    if (jparse_accept_name(p, "else")) n->orelse = parse_block(p, "endfor", true);
    else p->token++;
    if (stores_loop(n)) {
        p->r->pos = pos;
        jfail(p->r, "can't assign to special loop variable in for-loop");
    }
    return n;
}

/* a target; N_SET: b value; N_SETBLOCK: b filters or NULL, body */
static struct jnode *parse_set(struct jparser *p, uint32_t pos) {
    struct jnode *target = jparse_target(p, true, NULL), *n;
    if (jparse_accept(p, T_ASSIGN)) {
        n = jparse_new(p, N_SET, pos);
        n->b = jparse_tuple(p, true, NULL);
    } else {
        n = jparse_new(p, N_SETBLOCK, pos);
        if (p->token->type == T_PIPE) n->b = jparse_filters(p, NULL, false);
        n->body = parse_block(p, "endset", true);
    }
    n->a = target;
    return n;
}

/* (a, b=1): list of N_PAIR: a name, b default or NULL */
static struct jnode *parse_signature(struct jparser *p) {
    struct jnode *first = NULL, **end = &first;
    bool defaults = false;
    int n_parameters = 0;
    jparse_expect(p, T_LPAREN, "'('");
    while (p->token->type != T_RPAREN) {
        if (first) jparse_expect(p, T_COMMA, "','");
        struct jnode *arg = jparse_new(p, N_PAIR, p->token->pos);
        arg->a = jparse_name(p);
        if (++n_parameters > JINJA_MAX_KEYWORDS) jparse_fail(p, "too many parameters of a macro");
        for (struct jnode *o = first; o; o = o->next)
            if (!jstr_cmp(o->a->value.s, arg->a->value.s)) jparse_fail(p, "duplicate argument in a macro's definition");
        if (jparse_accept(p, T_ASSIGN)) {
            arg->b = jparse_expr(p);
            defaults = true;
        } else if (defaults) jparse_fail(p, "non-default argument follows default argument");
        *end = arg;
        end = &arg->next;
    }
    p->token++;
    return first;
}

enum name_use { UNUSED, READ, SET };
/* Returns how nodes use a name first. */
static enum name_use first_use(const struct jnode *n, const char *name) {
    for (; n; n = n->next) {
        enum name_use k = UNUSED;
        if ((n->kind == N_NAME || n->kind == N_NSREF) && jstr_equals(n->value.s, name)) k = n->is_stored ? SET : READ;
        const struct jnode *set_last[] = {n->b, n->list, n->a}; /* the value of a set is evaluated before its target */
        const struct jnode *usual[] = {n->a,        n->b,    n->c,        n->d,    n->list,
                                       n->keywords, n->star, n->starstar, n->body, n->orelse};
        bool set = n->kind == N_SET;
        for (size_t i = 0; !k && i < (set ? 3 : 10); i++) k = first_use(set ? set_last[i] : usual[i], name);
        if (k) return k;
    }
    return UNUSED;
}
/* A macro whose body reads caller, varargs or kwargs gets them, unless they are its parameters. */
static void set_implicit_arguments(struct jparser *p, struct jnode *n) {
    bool own_caller = false, own_varargs = false, own_kwargs = false;
    for (struct jnode *a = n->list; a; a = a->next) {
        if (jstr_equals(a->a->value.s, "caller")) {
            own_caller = true;
            if (!a->b && first_use(n->body, "caller") == READ)
                jparse_fail(p, "the special \"caller\" argument must be omitted or be given a default");
        }
        own_varargs |= jstr_equals(a->a->value.s, "varargs");
        own_kwargs |= jstr_equals(a->a->value.s, "kwargs");
    }
    n->uses_caller = !own_caller && first_use(n->body, "caller") == READ;
    n->uses_varargs = !own_varargs && first_use(n->body, "varargs") == READ;
    n->uses_kwargs = !own_kwargs && first_use(n->body, "kwargs") == READ;
}

static struct jnode *parse_macro(struct jparser *p, uint32_t pos) { /* a name, list arguments, body */
    struct jnode *n = jparse_new(p, N_MACRO, pos);
    int loops = p->n_loops;
    n->a = jparse_name(p);
    n->list = parse_signature(p);
    p->n_loops = 0;
    n->body = parse_block(p, "endmacro", true);
    p->n_loops = loops;
    set_implicit_arguments(p, n);
    return n;
}
static struct jnode *parse_call(struct jparser *p, uint32_t pos) { /* list arguments, b the call, body */
    struct jnode *n = jparse_new(p, N_CALLBLOCK, pos);
    int loops = p->n_loops;
    if (p->token->type == T_LPAREN) n->list = parse_signature(p);
    n->b = jparse_expr(p);
    if (n->b->kind != N_CALL) jparse_fail(p, "expected call");
    p->n_loops = 0;
    n->body = parse_block(p, "endcall", true);
    p->n_loops = loops;
    set_implicit_arguments(p, n);
    return n;
}
/* {% generation %} marks model output for training. Its body has its own scope, like a call block. */
static struct jnode *parse_generation(struct jparser *p, uint32_t pos) {
    struct jnode *n = jparse_new(p, N_CALLBLOCK, pos);
    int loops = p->n_loops;
    p->n_loops = 0;
    n->body = parse_block(p, "endgeneration", true);
    p->n_loops = loops;
    set_implicit_arguments(p, n);
    return n;
}
static struct jnode *parse_with(struct jparser *p, uint32_t pos) { /* list of N_PAIR: a target, b value; body */
    struct jnode *n = jparse_new(p, N_WITH, pos), **end = &n->list;
    while (p->token->type != T_BLOCK_END && p->token->type != T_COLON) {
        if (n->list) jparse_expect(p, T_COMMA, "','");
        struct jnode *pair = jparse_new(p, N_PAIR, p->token->pos);
        pair->a = jparse_target(p, false, NULL);
        jparse_expect(p, T_ASSIGN, "'='");
        pair->b = jparse_expr(p);
        *end = pair;
        end = &pair->next;
    }
    n->body = parse_block(p, "endwith", true);
    return n;
}
static struct jnode *parse_filter(struct jparser *p, uint32_t pos) { /* b filters, body */
    struct jnode *n = jparse_new(p, N_FILTERBLOCK, pos);
    n->b = jparse_filters(p, NULL, true);
    n->body = parse_block(p, "endfilter", true);
    return n;
}
static struct jnode *parse_print(struct jparser *p, uint32_t pos) {
    struct jnode *first = NULL, **end = &first;
    while (p->token->type != T_BLOCK_END) {
        if (first) jparse_expect(p, T_COMMA, "','");
        *end = jparse_new(p, N_PRINT, pos);
        (*end)->a = jparse_expr(p);
        end = &(*end)->next;
    }
    return first;
}
static struct jnode *leave_loop(struct jparser *p, uint32_t pos, uint8_t kind) {
    if (!p->n_loops) {
        p->r->pos = pos;
        jfail(p->r, "%s outside of a loop", kind == N_BREAK ? "break" : "continue");
    }
    return jparse_new(p, kind, pos);
}
static struct jnode *parse_break(struct jparser *p, uint32_t pos) { return leave_loop(p, pos, N_BREAK); }
static struct jnode *parse_continue(struct jparser *p, uint32_t pos) { return leave_loop(p, pos, N_CONTINUE); }

static struct jnode *parse_statement(struct jparser *p) {
    static const struct {
        const char *tag;
        struct jnode *(*parse)(struct jparser *, uint32_t);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call},
        {"filter", parse_filter},
        {"with", parse_with},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_continue},
        {"generation", parse_generation},
    };
    struct jtoken *t = p->token;
    p->r->pos = t->pos;
    if (t->type != T_NAME) jfail(p->r, "tag name expected");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (jstr_equals(t->value.s, tags[i].tag)) {
            p->token++;
            return tags[i].parse(p, t->pos);
        }
    if (is_word_in(t, "block|extends|include|import|from|autoescape"))
        jfail(p->r, "the tag '%s' is not supported", jstr_for_error(p->r, t->value.s));
    jfail(p->r, "encountered unknown tag '%s'", jstr_for_error(p->r, t->value.s));
}

struct jnode *jparse(struct jrun *r) {
    size_t n;
    struct jparser p = {.r = r, .token = jlex(r, &n)};
    struct jnode *b = parse_body(&p, NULL);
    if (p.token->type != T_EOF) jparse_fail(&p, "unexpected token");
    return b;
}
