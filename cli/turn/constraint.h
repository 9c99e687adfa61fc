#pragma once
/* Answers that must match a grammar: reads the options, and filters the tokens of a turn. Thinking before the answer is
 * not restricted. */
#include <stdatomic.h>

#include "engine/engine.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/grammar/source.h"

struct app;
struct buf;
struct constraint;

/* Reads --schema, --json-object, --regex, --grammar or --choices into a->answer_source and checks it. ERR_USAGE names
 * the option and the place in its value. */
int constraint_read_options(struct app *a, struct error *e);
void constraint_free_options(struct app *a);
const struct grammar_source *constraint_of_options(const struct app *a); /* NULL: answers are not constrained */

/* Opens the filter of one answer. is_raw: the model does not think. tail: end of the prompt, which may have opened a
 * thinking block. */
int constraint_open(struct constraint **c, struct app *a, const struct grammar_source *s, bool is_raw, const char *tail,
                    size_t n, struct error *e);
void constraint_close(struct constraint **c);
const struct token_filter *constraint_filter(const struct constraint *c);
/* Appends a token of an earlier turn that this one continues. */
int constraint_replay(struct constraint *c, int32_t id, struct error *e);
/* Whether the grammar governs token i of the answer, which the engine has emitted. *part: the kind of its text then,
 * whatever markers are in it. */
bool constraint_governs(const struct constraint *c, int i, enum output_kind *part);

/* Appends members of a chat-completions request: response_format, or the guided_* extensions of hearth's server. */
void constraint_put_request(const struct grammar_source *s, struct buf *b);
