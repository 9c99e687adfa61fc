#pragma once
/* A conversation, and the prompt that the model's template makes of it. */
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
/* All copy what they are given. ERR_MEMORY leaves the conversation as it was. */
int conv_add(struct conv *c, enum role role, const char *text, size_t n, const char *thinking, size_t thinking_n);
int conv_system(struct conv *c, const char *text); /* sets or replaces the first message; "" removes it */
int conv_copy(struct conv *to, const struct conv *from);
void conv_cut(struct conv *c, size_t n); /* keeps the first n messages */
void conv_free(struct conv *c);
const struct message *conv_last(const struct conv *c, enum role role); /* NULL: none */
size_t conv_turns(const struct conv *c);                               /* questions */

/* What a user said behind the documents that came along; their names are appended as "(a.txt) (b.txt)". NULL: nothing. */
const char *conv_question(const struct message *m, struct buf *documents);
/* What a conversation is about, in a line of at most so many columns: its first question. Empty when there is none. */
void conv_title(const struct conv *c, int cols, struct buf *out);

/* A message as JSON, its last brace left open for more: role, content, and what was thought, under that name. */
void conv_message_json(const struct message *m, const char *thinking, struct buf *b);

struct prompt {
    struct ids ids;
    struct buf tail;  /* the end of the rendered text: it may open a thinking block */
    int shared;       /* so many ids others are likely to begin with (request.shared) */
    struct buf body;  /* for an engine elsewhere, instead: members of a request */
    struct ids known; /* the answer, where the program knows it without the model; none: the model is asked */
    bool alone;       /* the question without the document that came with it */
    size_t said;      /* so many ids were said to the model; those behind them it wrote itself */
};
void prompt_free(struct prompt *p);
/* Renders and encodes, with the opening of the answer. think: 1, 0, or -1 for what the template does by itself. */
int conv_prompt(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e);
/* Tells who asks that the prompt went without its document (prompt.alone). */
void conv_note_alone(const struct app *a);
/* A JSON object of the caller (messages and any template variables) instead. */
int conv_prompt_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* The same by the template and the tokenizer of this process. */
int conv_prompt_own(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* The last message of c is the beginning of the answer, which goes on there. */
int conv_prompt_begun(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e);
/* Behind a prompt that is made: the beginning of its answer. */
int conv_begun(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* --raw: BOS and the text itself. */
int conv_prompt_raw(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* --think and --no-think as conv_prompt wants them. */
int conv_think(const struct opts *o);
