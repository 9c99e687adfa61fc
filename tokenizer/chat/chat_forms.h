#pragma once
/* The forms in which a chat template takes a conversation. Templates agree on roles, but differ in the members of
 * messages, and fail or drop text where they get another form. */
#include <stdbool.h>

#include "base/json.h"
#include "tokenizer/jinja/jinja.h"

struct chat_forms {             /* zero: the usual form of each */
    bool whole_tools;           /* tools must have a description and parameters */
    bool null_content;          /* content of a message that has only calls: null; else "" */
    bool text_arguments;        /* arguments of a call: JSON text; else an object */
    bool uses_ids;              /* the ids of calls are in the prompt */
    bool short_ids;             /* ids of calls must be nine letters or digits (Mistral) */
    const char *thought;        /* member that has the thinking; NULL: the usual one, reasoning_content */
    bool thought_is_part;       /* thinking is a part of the content (Ministral 3) */
    bool thought_alone;         /* beside calls, thinking and content exclude each other (gpt-oss) */
    bool hides_system;          /* system prompts are refused or dropped */
    bool hides_second_system;   /* those after the first */
    bool hides_late_system;     /* those after another message */
    bool refuses_two_users;     /* questions that follow each other */
    bool refuses_two_answers;   /* answers that follow each other */
    bool refuses_early_answer;  /* one before the first question, as a greeting */
    bool refuses_asking_result; /* a question after the result of a call */
};

/* The templates of a checkpoint that render a conversation with and without tools, and their variables (jinja.h). */
struct chat_forms_source {
    const struct jinja *with_tools, *without_tools;
    const struct jinja_var *vars;
};
/* Finds the forms by rendering short conversations. ERR_MEMORY. A template that refuses all of them has the usual
 * forms. */
int chat_forms_find(const struct chat_forms_source *s, struct chat_forms *out, struct error *e);

/* Puts the messages and tools of vars into these forms. Arguments of calls that are no object become one. A system
 * prompt that the template would refuse or drop goes to the first system prompt, if it follows that directly, and else
 * becomes a question. Answers that may not follow each other are joined, and an empty question precedes an answer that
 * may not be the first. Results get the order of their calls where the template has no ids. *out is in the arena and
 * points into vars. ERR_MEMORY. */
int chat_forms_apply(const struct chat_forms *f, const struct json *vars, struct arena *a, struct json *out,
                     struct error *e);
