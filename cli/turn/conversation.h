#pragma once
/* A conversation, and the prompt that the model's chat template renders from it. */
#include "cli/app.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };
const char *conversation_role_name(enum role r);

struct message {
    enum role role;
    bool partial; /* an answer that was stopped */
    struct buf text, thinking;
};
struct conversation {
    struct message *messages;
    size_t n, cap;
};
/* These functions copy their arguments. On ERR_MEMORY the conversation is unchanged. */
int conversation_add(struct conversation *c, enum role role, const char *text, size_t n, const char *thinking, size_t thinking_n);
int conversation_set_system(struct conversation *c, const char *text); /* sets or replaces the first message; "" removes it */
int conversation_append(struct conversation *to, const struct conversation *from);
void conversation_truncate(struct conversation *c, size_t n); /* keeps the first n messages */
void conversation_free(struct conversation *c);
const struct message *conversation_last(const struct conversation *c, enum role role); /* NULL: none */
size_t conversation_n_questions(const struct conversation *c);                         /* number of user messages */

/* Returns the user's text after the attached documents, or NULL. Appends their names to documents as "(a.txt) (b.txt)". */
const char *conversation_question(const struct message *m, struct buf *documents);
/* Appends a title of at most `cols` columns: the first question. Appends nothing if there is none. */
void conversation_title(const struct conversation *c, int cols, struct buf *out);

/* Appends a message as JSON without its closing brace: role, content, and the reasoning under the key `thinking`. */
void conversation_message_json(const struct message *m, const char *thinking, struct buf *b);

struct prompt {
    struct ids ids;
    struct buf tail;         /* end of the rendered text: it may open a thinking block */
    int n_shareable;         /* length of the shareable prefix, in tokens (request.shared) */
    struct buf body;         /* for an attached or remote engine, instead of ids: members of a request */
    struct ids fixed_answer; /* the answer, if the program gives it without the model; empty: run the model */
    bool document_dropped;   /* the attached document was dropped; only the question is in the prompt */
    size_t n_given;          /* number of ids from the template; the ids after them were generated */
};
void prompt_free(struct prompt *p);
/* Renders and encodes the conversation and the opening of the answer. think: 1, 0, or -1 for the template's default. */
int prompt_make(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e);
/* Notes on stderr that the prompt went without its document (prompt.document_dropped). */
void prompt_note_dropped_document(const struct app *a);
/* As prompt_make, from a JSON object: messages and any template variables. */
int prompt_from_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* The same with the template and tokenizer of this process. */
int prompt_from_json_local(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* As prompt_make, but the last message of c is a partial answer to continue. */
int prompt_make_partial(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e);
/* Appends the beginning of the answer to a finished prompt. */
int prompt_add_partial(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* --raw: BOS and the text as given. */
int prompt_from_raw(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* Returns --think or --no-think as the argument of prompt_make. */
int prompt_think_option(const struct opts *o);
