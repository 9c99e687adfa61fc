#pragma once
/* --think-limit: ends the thinking of an answer after so many tokens with the mark that the model's template knows. */
#include "cli/app.h"

struct think_limit;
/* Opens the filter of one answer, whose prompt ends with tail. *out is NULL if the template marks no thinking with a
 * pair of marks, which a note says once. ERR_MEMORY. */
int think_limit_open(struct think_limit **out, struct app *a, int limit, const char *tail, size_t n, struct error *e);
void think_limit_close(struct think_limit **at);
const struct token_filter *think_limit_filter(const struct think_limit *t);
