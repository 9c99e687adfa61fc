#pragma once
/* A parsed template: tokens, syntax tree, and the slot of each variable. */
#include "tokenizer/jinja/jvalue.h"

enum jtoken_type {
    T_EOF,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_IN,
    T_NOTIN, /* the last two are operators */
};
struct jtoken {
    uint8_t type;
    uint32_t pos;      /* in the source */
    struct jval value; /* string, int and float: the value; name and data: the text as a string */
};
/* Returns all tokens of r->source, with T_EOF at the end. Newlines must already be \n. */
struct jtoken *jlex(struct jrun *r, size_t *n);

enum jnode_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_PAIR,
    N_COND,
    N_OR,
    N_AND,
    N_NOT,
    N_COMPARE,
    N_MATH,
    N_NEG,
    N_POS,
    N_CONCAT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NSREF,
    /* statements */
    N_DATA,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_BREAK,
    N_CONTINUE,
};
/* The parser function of each kind documents the fields it uses. Lists are linked by next. */
struct jnode {
    uint8_t kind, op;                            /* op: the operator token of an operand in N_COMPARE and N_MATH */
    bool is_recursive, is_stored;                /* N_FOR: recursive; N_NAME: assigned to */
    bool uses_caller, uses_varargs, uses_kwargs; /* N_MACRO, N_CALLBLOCK: the body reads them */
    /* N_NAME, N_NSREF, N_MACRO: number of frames outwards, and the slot there */
    uint16_t hops, slot;
    uint32_t pos;
    struct jnode *next, *a, *b, *c, *d, *list, *keywords, *body, *orelse;
    struct jnode *star, *starstar; /* f(*a, **b) */
    struct jval value;             /* constant, name */
    /* N_FILTER, N_TEST: the function; NULL: unknown, an error only if executed */
    const void *fn;
    struct jscope *scope, *filter_scope, *else_scope; /* body; N_FOR: condition, else */
};

/* Initial value of a variable in a new frame. Jinja2 decides it at compile time, and templates depend on it. */
enum jload { LOAD_UNDEFINED, LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS };
struct jvar {
    struct jval name;
    uint8_t load;
    bool is_stored;
    uint16_t hops, slot; /* LOAD_ALIAS: source of its initial value */
};
struct jscope {
    struct jscope *parent;
    struct jvar *vars;
    uint16_t n, cap;
    uint16_t *index; /* hash index: variable number + 1; NULL while there are few */
    uint32_t n_index;
    int loop_slot, caller_slot, varargs_slot, kwargs_slot; /* slots of the special names, or -1 */
};

struct jread { /* a variable that the template reads and nothing in it sets before */
    struct jread *next;
    const struct jstr *name;
};

struct jinja {
    struct arena arena;
    char *source;
    size_t n_source;
    char *source_name;
    struct jnode *body;
    struct jscope *scope;
    struct jread *reads;
};

struct jnode *jparse(struct jrun *r); /* parses the whole template */
/* assigns a slot to every name; returns the root scope */
struct jscope *jscope_resolve(struct jrun *r, struct jnode *body);
