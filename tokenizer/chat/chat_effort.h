#pragma once
/* The efforts of reasoning that a chat template takes. Clients choose among seven levels; templates know two to four of
 * them, and refuse or misread the others. */
#include "tokenizer/chat/chat_template.h"

enum { CHAT_EFFORTS = 7 };
extern const char *const chat_effort_levels[CHAT_EFFORTS]; /* from none to the most */

/* Finds the level for a template that reads `reasoning_effort`: the given one if the template names it or, as most do,
 * takes low, medium and high without naming them; else the nearest of these that the template does not refuse, of two
 * the lower. *out: NULL if the text is no level. ERR_MEMORY. */
int chat_effort_fit(const struct chat_template *c, const char *given, size_t n, const char **out, struct error *e);
