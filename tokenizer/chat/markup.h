#pragma once
/* Ranges of a model's markup, and the search for marks in them. Pure. */
#include <stdbool.h>

struct markup_range {
    const char *s, *end;
};
static inline bool markup_is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
const char *markup_find(struct markup_range t, const char *what); /* NULL: not in t */
bool markup_starts_with(struct markup_range t, const char *what);
void markup_skip_blanks(struct markup_range *t);
struct markup_range markup_trim(struct markup_range t); /* without blanks at either end */
/* Finds the text between the next `open` and the following `close`, and advances *rest past it. close NULL or missing:
 * to the end. */
bool markup_take_between(struct markup_range *rest, const char *open, const char *close, struct markup_range *in);
/* Finds the text before a mark, and advances *rest past the mark. */
bool markup_take_before(struct markup_range *rest, const char *mark, struct markup_range *head);
/* Returns the end of the JSON object or list at the beginning of t, or its beginning if there is none. */
const char *markup_skip_json(struct markup_range t);
/* The same as markup_take_between() for a call whose arguments are JSON, so that a mark in their strings does not end
 * it. The arguments begin with the first brace after `head`, or after `open` if head is NULL or missing. */
bool markup_take_call(struct markup_range *rest, const char *open, const char *head, const char *close,
                      struct markup_range *in);
/* Finds the text of an attribute: name="…". */
bool markup_find_attribute(struct markup_range tag, const char *name, struct markup_range *value);
