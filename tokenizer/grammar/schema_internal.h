#pragma once
/* Parts of the schema front end: schema.c (applicators, types, enumerations), schema_keywords.c, schema_object.c,
 * schema_array.c, schema_string.c, schema_names.c, schema_items.c, schema_number.c, schema_multiple.c,
 * schema_disjoint.c, schema_rewrite.c, schema_tagged.c, schema_index.c, json_text.c. */
#include "tokenizer/grammar/look_ahead.h"
#include "tokenizer/grammar/schema.h"

/* Types as bits. A number is an integer or has a fraction. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};
enum { TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION };

/* One schema that a value must satisfy, with its JSON pointer. */
enum { PART_NO_ANY_OF = 1, PART_NO_ONE_OF = 2, PART_NO_VALUES = 4 }; /* keywords that were taken into account already */
struct part {
    const struct json *schema;
    const char *at;
    uint8_t skip;
};
enum { SCHEMA_MAX_COUNT = 1000000 }; /* of items, members or characters; a greater upper bound is none */
/* Schemas that a value must satisfy together. */
enum { MAX_PARTS = 48 };
struct conj {
    int n;
    bool never;               /* no value satisfies them */
    struct part v[MAX_PARTS]; /* schema_conj_keep() allocates n of them only */
};
struct json_exprs { /* shared expressions of JSON texts; EXPR_FAILED: not made yet */
    expr_id string, string_char, number, integer, value, object, array, comma, colon;
};
/* How a value is written: as JSON; an object as members between tags; a string as plain text. */
enum value_form { FORM_JSON, FORM_TAGGED, FORM_TEXT };
struct schema_memos;
struct schema_rewritten;
struct schema_tables;
struct schema {
    struct grammar *g;
    struct effort *effort;
    struct arena *arena; /* of the effort */
    const struct json *root;
    struct error *e;
    struct json_exprs json;
    struct schema_memos *memos; /* rules of conjunctions; arena */
    struct schema_rewritten *rewritten;
    struct schema_tables *tables;
    struct conj_pool *pool;
    const struct schema_tags *tags; /* NULL: the document is JSON */
    uint8_t form;                   /* enum value_form: how the current value is written */
    int depth, n_compiled;
};

int schema_fail(struct schema *s, const char *at, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Fails with an error of a pattern, a language or their combination; ERR_MEMORY stays what it is. */
int schema_fail_text(struct schema *s, const char *at, const char *keyword, int rc, const char *what,
                     const struct error *why);
/* Pointer of a member or item, in the arena; NULL: no memory. */
const char *schema_at(struct schema *s, const char *at, const char *key, size_t n);
const char *schema_at_item(struct schema *s, const char *at, const char *key, uint32_t i);
/* Conjunctions for the time of one function: each that is borrowed is returned, except after an error. NULL: no memory.
 * schema_conj_keep() copies one to the arena. */
struct conj *schema_conj_borrow(struct schema *s);
void schema_conj_return(struct schema *s, struct conj *c);
struct conj *schema_conj_keep(struct schema *s, const struct conj *c);
/* follows $ref and allOf; ERR_USAGE */
int schema_add_part(struct schema *s, struct conj *c, const struct json *j, const char *at);
/* Sets the members that all front ends set. ERR_MEMORY. */
int schema_open(struct schema *s, struct grammar *g, struct effort *effort, const struct json *root, struct error *e);
int schema_compile(struct schema *s, const struct conj *c, expr_id *out);
/* Fails for an unknown or unsupported keyword of one schema, or for one with a value of the wrong kind. */
int schema_check_keywords(struct schema *s, const struct json *j, const char *at);
/* null for a keyword that has no such value, as serializers write what is not set. `type: null` is not one: documents
 * in YAML mean the type by it. */
bool schema_is_unset(const struct json *key);
bool schema_says_nothing(const struct json *key); /* an annotation, or where schemas for references are */
unsigned schema_type_bits(const struct json *type);
/* What the value of a keyword has in it. */
enum schema_holding { HOLDS_NOTHING, HOLDS_SCHEMA, HOLDS_LIST, HOLDS_MAP };
enum schema_holding schema_holding_of(const struct json *key);

/* schema_reference.c: the schema of the document that a $ref names; NULL: none, or the effort is spent. */
const struct json *schema_reference(struct schema *s, const struct json *ref);

/* schema_older.c: returns a copy of a schema of any draft in the words of 2020-12, the others' only words; NULL: no
 * memory. */
const struct json *schema_older(struct arena *a, const struct json *root);
/* implied: without `type`, only the types that the keywords are about */
unsigned schema_types(const struct conj *c, bool implied);
/* the next part from *i on with this keyword */
bool schema_keyword(const struct conj *c, int *i, const char *name, const struct json **value);
/* the smallest value of a numeric keyword */
double schema_least(const struct conj *c, const char *keyword, double none);
double schema_greatest(const struct conj *c, const char *keyword, double none);

/* schema_rewrite.c: sets *out to the list of schemas that say the same as keywords of the schema; NULL: it has no such
 * keyword. schema_rewritten() returns that list; NULL also before schema_rewrite() was called. */
int schema_rewrite(struct schema *s, const struct json *schema, const char *at, const struct json **out);
const struct json *schema_rewritten(const struct schema *s, const struct json *schema);
/* {key: value} in the arena; NULL: no memory */
struct json *schema_node(struct schema *s, const char *key, const struct json *value);
/* The n values that `not` of a schema excludes by listing them; NULL if it does not. */
const struct json *schema_excluded(const struct json *schema, uint32_t *n);
bool schema_excludes_value(struct schema *s, const struct conj *c, const struct json *value);
/* all of enum, const and such a `not` allow the value */
bool schema_enumerates(struct schema *s, const struct conj *c, const struct json *value);

/* Names of members in order: of properties, then other required ones. */
struct members {
    struct member {
        const char *name;
        uint32_t n;
        bool required;
    } * v;
    size_t n, cap;   /* arena */
    uint32_t *table; /* [size] by the hashes of names: numbers of members plus 1, 0: free */
    size_t size;
    bool extras; /* others are generated */
};
int schema_members(struct schema *s, const struct conj *c, struct members *out);
/* the schemas of a member's value */
int schema_member_conj(struct schema *s, const struct conj *c, const char *name, size_t n, struct conj *out);
bool schema_is_required(struct schema *s, const struct conj *c, const char *name, size_t n);

/* schema_index.c: the item of an array that is equal to a value, or the key of an object; of several equal ones the
 * last; NULL: none. Equal values have equal hashes. */
const struct json *schema_find(struct schema *s, const struct json *list, const struct json *value);
const struct json *schema_find_name(struct schema *s, const struct json *list, const char *name, size_t n);
uint64_t schema_hash_value(const struct json *value);
struct schema_tables *schema_tables_new(struct arena *a); /* NULL: no memory */

/* schema_names.c: whether propertyNames allows a name; the names that it lists, or NULL; the names of l that it
 * allows. */
int schema_allows_name(struct schema *s, const struct conj *c, const char *name, size_t n, bool *out);
int schema_listed_names(struct schema *s, const struct conj *c, const struct json **list, uint32_t *n);
int schema_restrict_names(struct schema *s, const struct conj *c, struct lang *l);

int schema_object(struct schema *s, const struct conj *c, expr_id *out);
int schema_array(struct schema *s, const struct conj *c, expr_id *out);
struct item_counts {
    uint32_t least, most; /* most: GRAMMAR_UNBOUNDED */
};
/* The items of an array with `contains` or `uniqueItems`, without brackets; *done: false if it has neither. item: the
 * schemas of each item. */
int schema_items(struct schema *s, const struct conj *c, const struct conj *item, const struct item_counts *n,
                 bool has_prefix, bool *done, expr_id *out);
int schema_string(struct schema *s, const struct conj *c, expr_id *out);
/* the strings without their spelling; enum and const do not count */
int schema_string_lang(struct schema *s, const struct conj *c, struct lang *out);
int schema_number(struct schema *s, const struct conj *c, bool integer, expr_id *out);
int schema_multiple(struct schema *s, const struct conj *c, int part, expr_id *out); /* part: one with multipleOf */
struct number_range {
    double lo, hi;     /* -INFINITY, INFINITY: none */
    bool above, below; /* strictly */
};
struct number_range schema_range(const struct conj *c);
/* Whether no value that is generated for x is valid by y. False if that is not certain. */
int schema_excludes(struct schema *s, const struct conj *x, const struct conj *y, bool *out);
/* Fails unless each value that is generated for branch[i] is valid by item i only of oneOf, which is at `at`. */
int schema_check_one_of(struct schema *s, const struct json *list, const char *at, struct conj *const *branch);

/* schema_tagged.c: a member with its tags; one with another name; plain text of a language; whether text contains a tag
 * that ends values. */
int schema_tagged_member(struct schema *s, const struct conj *value, const char *name, size_t n, const char *at,
                         expr_id *out);
int schema_tagged_extra(struct schema *s, const struct conj *value, struct lang *names, const char *at, expr_id *out);
int schema_tagged_string(struct schema *s, const struct conj *c, const struct lang *l, expr_id *out);
bool schema_tagged_has_end(const struct schema *s, const char *text, size_t n);
/* JSON as it is written between tags or elsewhere: appended to out; as an expression */
void schema_put_json(const struct schema *s, const char *text, size_t n, struct buf *out);
expr_id schema_json_literal(struct schema *s, const char *text, size_t n);

/* json_text.c */
expr_id json_string(struct schema *s); /* a string in quotes */
expr_id json_char(struct schema *s);   /* one character of it */
expr_id json_number(struct schema *s);
expr_id json_integer(struct schema *s);
expr_id json_value(struct schema *s);
expr_id json_any_object(struct schema *s);
expr_id json_comma(struct schema *s);
expr_id json_colon(struct schema *s);
expr_id json_lang(struct schema *s, const struct lang *l); /* the strings of a language, as JSON without quotes */
expr_id json_in_quotes(struct grammar *g, expr_id characters);
/* Appends compact JSON whose numbers are the shortest that give the same double. ERR_USAGE: a number that no double or
 * int64 holds. */
int json_compact(struct buf *b, const struct json *j);
bool json_equal(const struct json *a, const struct json *b);
