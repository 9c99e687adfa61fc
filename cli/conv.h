#pragma once
/* A conversation, and the prompt that the model's chat template renders from it. */
#include "cli/app.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };
const char *role_name(enum role r);

struct message {
    enum role role;
    bool partial; /* an answer that was stopped */
    struct buf text, thinking;
};
struct conv {
    struct message *m;
    size_t n, cap;
};
/* These functions copy their arguments. On ERR_MEMORY the conversation is unchanged. */
int conv_add(struct conv *c, enum role role, const char *text, size_t n, const char *thinking, size_t thinking_n);
int conv_system(struct conv *c, const char *text); /* sets or replaces the first message; "" removes it */
int conv_copy(struct conv *to, const struct conv *from);
void conv_cut(struct conv *c, size_t n); /* keeps the first n messages */
void conv_free(struct conv *c);
const struct message *conv_last(const struct conv *c, enum role role); /* NULL: none */
size_t conv_turns(const struct conv *c);                               /* number of user messages */

/* Returns the user's text after the attached documents, or NULL. Appends their names to documents as "(a.txt) (b.txt)". */
const char *conv_question(const struct message *m, struct buf *documents);
/* Appends a title of at most `cols` columns: the first question. Appends nothing if there is none. */
void conv_title(const struct conv *c, int cols, struct buf *out);

/* Appends a message as JSON without its closing brace: role, content, and the reasoning under the key `thinking`. */
void conv_message_json(const struct message *m, const char *thinking, struct buf *b);

struct prompt {
    struct ids ids;
    struct buf tail;  /* end of the rendered text: it may open a thinking block */
    int shared;       /* length of the shareable prefix, in tokens (request.shared) */
    struct buf body;  /* for an attached or remote engine, instead of ids: members of a request */
    struct ids known; /* the answer, if the program gives it without the model; empty: run the model */
    bool alone;       /* the attached document was dropped; only the question is in the prompt */
    size_t said;      /* number of ids from the template; the ids after them were generated */
};
void prompt_free(struct prompt *p);
/* Renders and encodes the conversation and the opening of the answer. think: 1, 0, or -1 for the template's default. */
int conv_prompt(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e);
/* Notes on stderr that the prompt went without its document (prompt.document_dropped). */
void conv_note_alone(const struct app *a);
/* As prompt_make, from a JSON object: messages and any template variables. */
int conv_prompt_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* The same with the template and tokenizer of this process. */
int conv_prompt_own(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* As prompt_make, but the last message of c is a partial answer to continue. */
int conv_prompt_begun(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e);
/* Appends the beginning of the answer to a finished prompt. */
int conv_begun(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* --raw: BOS and the text as given. */
int conv_prompt_raw(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* Returns --think or --no-think as the argument of prompt_make. */
int conv_think(const struct opts *o);
