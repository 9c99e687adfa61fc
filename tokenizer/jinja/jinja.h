#pragma once
/* Jinja templates as transformers renders chat templates: an immutable sandbox with trim_blocks, lstrip_blocks, loop
 * controls, tojson, raise_exception, strftime_now and generation blocks. Parsed once, rendered often, from any thread.
 * Tracks for every rendered byte whether it came from the template or from a value (tokenizer.h, struct text). */
#include "base/json.h"
#include "tokenizer/tokenizer.h"

struct jinja;

/* Parses a copy of source[0..n). `what` names it in errors. ERR_MODEL with line and column for everything that Jinja2
 * rejects at compile time, and for what only Jinja2 supports (blocks, imports, autoescape). */
int jinja_parse(struct jinja **j, const char *source, size_t n, const char *what, struct error *e);
void jinja_close(struct jinja **j);
const char *jinja_source(const struct jinja *j, size_t *n);
/* Whether the template reads a variable of this name that it has not set itself. */
bool jinja_reads(const struct jinja *j, const char *name);

/* A variable that belongs to the template. Its text is TEXT_TEMPLATE. */
struct jinja_var {
    const char *name;
    const char *text; /* NULL: undefined; the entry is skipped */
    size_t n;
};
/* vars: an object with the template's variables (TEXT_VALUE). They override `own`, which ends with a NULL name.
 * ERR_RUNTIME with the message of raise_exception, or the error with line and column. */
int jinja_render(const struct jinja *j, const struct json *vars, const struct jinja_var *own, struct text *out,
                 struct error *e);
