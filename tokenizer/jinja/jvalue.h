#pragma once
/* Values of a running template. The arena of a rendering owns them, so nothing is freed individually, and errors
 * longjmp to the owner of the arena (jinja.c). Strings are immutable and carry their origin. */
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"

struct json;

enum jtype {
    J_MISSING, /* no value: an argument not given, a variable before assignment */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* dict.keys(), .values(), .items(): sub is enum jview */
    J_RANGE,
    J_ITER,      /* a generator: consumed by reading */
    J_NAMESPACE, /* namespace() */
    J_MACRO,
    J_LOOP,
    J_JOINER,
    J_METHOD, /* bound: sub is the method's number */
    J_GLOBAL, /* a global function: sub is its number */
};
enum jview { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct jval {
    uint8_t type;
    uint8_t origin; /* enum text_origin of the printed value; strings have their own (struct jstr) */
    uint8_t sub;
    /* index + 1 in jrun.big of a J_FLOAT that Python would keep as an int of more than 64 bits; 0: a real float */
    uint32_t big;
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l; /* list and tuple */
        struct jdict *d; /* dict, view and namespace */
        struct jundef *u;
        struct jrange *r;
        struct jiter *it;
        struct jmacro *m;
        struct jloop *loop;
        struct jjoiner *c;
        struct jmethod *me;
    };
};

struct jstr {
    const char *s;           /* UTF-8, not NUL-terminated */
    const uint8_t *origins;  /* origin of each byte; NULL when all are `origin` */
    struct jbuf *append_buf; /* the buffer that s ends in, for appending in place */
    size_t n, n_chars;       /* bytes; code points, SIZE_MAX until counted */
    uint8_t origin;
    bool markup; /* result of safe or escape: text appended to it is escaped */
};
struct jlist {
    size_t n;
    struct jval *v;
    bool is_group; /* groupby's pair, which also has .grouper and .list */
};
struct jdict { /* in insertion order */
    size_t n, cap, n_index;
    struct jval *kv; /* key, value, key, value … */
    uint32_t *index; /* open addressing, entry + 1; NULL while small */
};
struct jundef {
    const char *hint; /* message, or NULL if name and object are set */
    struct jval name;
    const char *object; /* type name of the value without that attribute; NULL: a variable */
};
struct jrange {
    int64_t start, stop, step;
};
struct jjoiner {
    struct jval sep;
    bool used;
};
struct jmethod {
    struct jval self;
    const char *name;
};

struct jargs {
    struct jval *v; /* positional */
    size_t n;
    struct jval *keywords; /* name, value, name, value … */
    size_t n_keywords;     /* pairs */
};

/* A generator: its source and the operation on each item. */
enum jiter_kind {
    ITER_VALUE,
    ITER_REVERSE,
    ITER_MAP_ATTR,
    ITER_MAP,
    ITER_SELECT,
    ITER_UNIQUE,
    ITER_BATCH,
    ITER_LOOP_FILTER
};
struct jrun;
struct jiter {
    uint8_t kind;
    bool negate, by_attr, by_test, fold_case, exhausted;
    struct jiter *source;
    struct jval obj, attr, fill; /* source; attribute path; default or filler */
    /* called before the first item, when Python's generators check arguments */
    void (*start)(struct jrun *r, struct jiter *it);
    const void *fn; /* struct jfilter or struct jtest */
    struct jargs args;
    size_t i, n;        /* items read; ITER_BATCH: items in a batch */
    struct jdict *seen; /* ITER_UNIQUE: its keys so far */
    void *loop_filter;  /* evaluator state of a loop's filter condition */
};

struct jrun {
    struct arena *arena;
    struct error *e;
    jmp_buf on_error;
    const char *source_name, *source; /* for errors */
    size_t n_source;
    uint32_t pos; /* current offset in the source */
    uint64_t steps_left;
    int depth, calls;
    int code; /* of errors outside the template: ERR_MEMORY; also the parser's ERR_MODEL */
    struct jdict *vars;
    const struct json **big; /* whole numbers past 64 bits of the variables, which are printed as they are written */
    uint32_t n_big;
    struct jread *reads; /* while names are resolved: variables that the template reads */
};
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
enum { JINJA_MAX_STEPS = 20000 }; /* fuzzing gains nothing from long loops */
#else
enum { JINJA_MAX_STEPS = 10000000 };
#endif
/* Limits of one rendering, far above any chat template's needs: a hostile one ends with an error, not with the memory
 * or the stack. RANGE is that of Jinja2's sandbox. CALLS: of macros and recursive loops within each other. DEPTH: of C
 * functions of the parser and evaluator. OUTPUT: bytes of one text. ITEMS: of one list or dict. */
enum {
    JINJA_MAX_CALLS = 100,
    JINJA_MAX_KEYWORDS = 256, /* written in a call, and parameters of a macro: each is compared with the others */
    JINJA_MAX_DEPTH = 1500,
    JINJA_MAX_RANGE = 100000,
    JINJA_MAX_OUTPUT = 64 << 20,
    JINJA_MAX_ITEMS = 4000000
};

/* -- errors (jvalue.c) */
_Noreturn void jfail(struct jrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void jfail_undef(struct jrun *r, const struct jundef *u);
_Noreturn void jfail_memory(struct jrun *r);
void *jalloc(struct jrun *r, size_t size);
void jcount_steps(struct jrun *r, size_t n);
void jenter_depth(struct jrun *r); /* enters a level of nesting; the caller leaves it with r->depth-- */

static inline struct jval jval_none(void) { return (struct jval){.type = J_NONE, .origin = TEXT_TEMPLATE}; }
static inline struct jval jval_missing(void) { return (struct jval){.type = J_MISSING}; }
static inline struct jval jval_bool(bool b) { return (struct jval){.type = J_BOOL, .origin = TEXT_TEMPLATE, .b = b}; }
static inline struct jval jval_int(int64_t i) { return (struct jval){.type = J_INT, .origin = TEXT_TEMPLATE, .i = i}; }
static inline struct jval jval_float(double f) {
    return (struct jval){.type = J_FLOAT, .origin = TEXT_TEMPLATE, .f = f};
}
static inline bool jval_is_number(struct jval v) { return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT; }
static inline bool jval_is_int(struct jval v) { return v.type == J_BOOL || v.type == J_INT; }
static inline int64_t jval_as_int(struct jval v) { return v.type == J_BOOL ? v.b : v.i; }
static inline double jval_as_float(struct jval v) { return v.type == J_FLOAT ? v.f : (double)jval_as_int(v); }

struct jval jval_undef(struct jrun *r, const char *hint);
struct jval jval_undef_name(struct jrun *r, struct jval name, const struct jval *object);
struct jval jval_list(struct jrun *r, uint8_t type, size_t n); /* n uninitialized items */
const char *jval_type(struct jval v);                          /* Python's type name */
bool jval_is_true(struct jrun *r, struct jval v);
bool jval_eq(struct jrun *r, struct jval a, struct jval b);
int jval_cmp(struct jrun *r, struct jval a, struct jval b, const char *op); /* <0 0 >0; 2: unordered (NaN) */
bool jval_less(struct jrun *r, struct jval a, struct jval b);
uint64_t jval_hash(struct jrun *r, struct jval v);
size_t jval_len(struct jrun *r, struct jval v);
/* jexec.c: number of its items; reads a generator to its end */
size_t jloop_length(struct jrun *r, struct jloop *loop);
bool jval_has_len(struct jval v);
bool jval_contains(struct jrun *r, struct jval item, struct jval container);
int64_t jval_index(struct jrun *r, struct jval v, const char *what); /* an int, or an error */

struct jval jdict_new(struct jrun *r);
struct jval *jdict_find(struct jrun *r, struct jdict *d, struct jval key); /* the value, or NULL */
struct jval *jdict_find_n(struct jrun *r, struct jdict *d, const char *key, size_t n);
void jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval v);

struct jiter *jiter_new(struct jrun *r, struct jval v); /* iter(v), or an error */
bool jiter_is_iterable(struct jval v);
bool jiter_next(struct jrun *r, struct jiter *it, struct jval *out);
struct jlist *jiter_to_list(struct jrun *r, struct jval v); /* list(v) */
struct jval jrange_item(struct jval range, size_t i);
size_t jrange_len(const struct jrange *g);
