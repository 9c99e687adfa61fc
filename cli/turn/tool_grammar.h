#pragma once
/* Grammars of answers that must be tool calls, or may be. */
#include "base/json.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/grammar/source.h"

struct tool_request {
    const struct json *tools;          /* as in a chat-completions request */
    const struct json *name;           /* names the only tool that may be called; NULL: any of them */
    bool is_single;                    /* at most one call */
    const struct grammar_source *text; /* what an answer without calls must match; NULL: calls are required */
};
/* Makes the source of a grammar of one or more calls in the form of the model's template, in the arena. ERR_USAGE: the
 * form cannot be constrained. */
int tool_grammar_make(struct arena *a, const struct chat_template *c, const struct tokenizer *t,
                      const struct tool_request *q, struct grammar_source *out, struct error *e);
